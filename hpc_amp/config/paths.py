r"""Replace variables of the submitting shell in the paths of a job file or a site file:
`$SCRATCH/runs`, `${PROJECT}/data`, `~/pytorch.sif`.

The schema marks the keys that hold paths (`values.Path`, `values.Binds`). Variables are replaced
once, when the file is read, by their values in the shell that submits. Other keys are not expanded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from hpc_amp.config.keys import Key, keys_of
from hpc_amp.config.tree import Items, MappingNode, Node, Scalar, shown
from hpc_amp.errors import ConfigError

S = TypeVar("S")
_DOLLAR = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))?", re.ASCII)


class Expansion(NamedTuple):
    """A path that was written with a variable or `~`, and its value."""

    key: str
    written: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}: {self.written} is {self.value}"


def missing_path(path: str, kind: str) -> tuple[str, str]:
    """Message and hint for a path that does not exist. `kind` is "file" or "folder"."""
    hint = "check the path" if os.path.isabs(path) else f"it is looked up in {os.getcwd()}"
    return f"there is no {kind} {path}", hint


def expand_paths(
    table: MappingNode, section: type, path: str = ""
) -> tuple[MappingNode, list[Expansion]]:
    """Replace the variables in all paths of a section. Returns the new tree and the expansions.

    `table` is the section with shorthands expanded, `section` its schema and `path` its key path.
    Raises ConfigError if this shell does not have a variable, or if no name follows a `$`.
    """
    keys = keys_of(section)
    entries: dict[str, Node] = {}
    expansions: list[Expansion] = []
    for name, node in table.entries.items():
        below = f"{path}.{name}" if path else name
        entries[name] = node
        if name in keys:
            entries[name], more = _expand_node(node, keys[name], below)
            expansions += more
    return MappingNode(entries, table.where), expansions


def expand_path(node: Scalar, path: str) -> tuple[Scalar, list[Expansion]]:
    """Replace the variables in the value of one key that holds a path. `path` is the key path."""
    return _expand_text(node, path, separator=None)


def literal(path: str) -> str:
    """Escape a path so that `expand_paths` reads it unchanged."""
    text = path.replace("$", r"\$")
    return f"./{text}" if text.startswith("~") else text


def as_overrides(job: Any, expansions: Iterable[Expansion]) -> list[str]:
    """Overrides that set the expanded paths of a `job` to their present values. They are used when
    the job file is read again later and the variables may have changed."""
    overrides = []
    for key in dict.fromkeys(expansion.key.partition("[")[0] for expansion in expansions):
        value = job
        for name in key.split("."):
            value = getattr(value, name)
        text = json.dumps(list(map(literal, value))) if isinstance(value, list) else literal(value)
        overrides.append(f"{key}={text}")
    return overrides


def paths_in(section: Any, path: str = "") -> Iterator[tuple[str, Key, str]]:
    """Yield the paths in a section and its subsections: the key path, the key, and the path itself.
    Lists of binds, and keys that the section does not use, are left out."""
    for names, key in _path_keys(type(section)):
        value = section
        for name in names:
            value = None if value is None else getattr(value, name)
        if value is not None:
            yield ".".join([path, *names] if path else names), key, value


def with_paths(section: S, change: Callable[[Key, str], str | None]) -> S:
    """Replace each path of `paths_in` by the result of `change(key, path)`."""
    for where, key, value in paths_in(section):
        section = _with_value(section, where.split("."), change(key, value))
    return section


def _with_value(section: Any, names: Sequence[str], value: str | None) -> Any:
    name, *rest = names
    if rest:
        value = _with_value(getattr(section, name), rest, value)
    return dataclasses.replace(section, **{name: value})


def _path_keys(section: type) -> tuple[tuple[tuple[str, ...], Key], ...]:
    """The keys for single paths in a section and its subsections, each with the names of its
    path."""
    return _path_keys_of(section)


@functools.cache
def _path_keys_of(section: type[Any]) -> tuple[tuple[tuple[str, ...], Key], ...]:
    # Cached by class: a sweep calls this for each of its points.
    found: list[tuple[tuple[str, ...], Key]] = []
    unused = getattr(section, "UNUSED", ())
    for name, key in keys_of(section).items():
        if name in unused:
            continue
        if key.is_section:
            found += [((name, *names), below) for names, below in _path_keys(key.type)]
        elif key.is_path and key.type is str:
            found.append(((name,), key))
    return tuple(found)


def _expand_node(node: Node, key: Key, path: str) -> tuple[Node, list[Expansion]]:
    """Expand a node. A node of the wrong form is not changed: `build` refuses it later."""
    if key.is_section and isinstance(node, MappingNode):
        return expand_paths(node, key.type, path)
    if not key.is_path:
        return node, []
    if isinstance(node, Scalar) and key.type is str:
        return _expand_text(node, path, separator=None)
    if isinstance(node, Items) and key.type is not str:
        return _expand_binds(node, path)
    return node, []


def _expand_binds(node: Items, path: str) -> tuple[Items, list[Expansion]]:
    """Expand the source and the destination of each bind: `~/data:/data`."""
    items: list[Node] = []
    expansions: list[Expansion] = []
    for index, item in enumerate(node.items):
        if isinstance(item, Scalar):
            item, more = _expand_text(item, f"{path}[{index}]", separator=":")
            expansions += more
        items.append(item)
    return Items(tuple(items), node.where), expansions


def _expand_text(node: Scalar, path: str, separator: str | None) -> tuple[Scalar, list[Expansion]]:
    if node.is_null:
        return node, []
    try:
        text = _DOLLAR.sub(_value_of, node.text)
        parts = text.split(separator) if separator is not None else [text]
        text = (separator or "").join(map(_with_home, parts))
    except ConfigError as error:
        message = f"{path}: {shown(node.text)}: {error.message}"
        raise ConfigError(message, where=node.where, hint=error.hint) from None
    if text == node.text:
        return node, []
    # Marked as quoted: the value is a path even if a variable makes it look like a number.
    expanded = node._replace(text=text, quoted=True)
    if text == node.text.replace(r"\$", "$"):
        return expanded, []
    return expanded, [Expansion(path, node.text, text)]


def _value_of(match: re.Match[str]) -> str:
    """The text that replaces `$NAME`, `${NAME}` or an escaped dollar sign."""
    if match[0] == r"\$":
        return "$"
    name = match[1] or match[2]
    if name is None:
        raise ConfigError(
            "no variable name follows the $", hint=r"write \$ for a dollar sign in a name"
        )
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(
            f"the environment of this shell has no variable {name}",
            hint=rf"export it, or write \${name} for a folder of that name",
        )
    if value == "":
        raise ConfigError(
            f"the variable {name} is empty in this shell", hint="set it, or write the path out"
        )
    if any("\udc80" <= letter <= "\udcff" for letter in value):
        raise ConfigError(
            f"the value of the variable {name} is not UTF-8", hint="write the path out"
        )
    return value


def _with_home(path: str) -> str:
    """Replace `~` or `~user` at the beginning of a path by the home folder."""
    if not path.startswith("~"):
        return path
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = path.partition("/")[0]
        raise ConfigError(
            f"this machine knows no home folder {user}",
            hint=f"write ./{user} for a folder of that name",
        )
    return expanded
