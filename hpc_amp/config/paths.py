r"""Variables of the submitting shell in the paths of a job file or a site file: `$SCRATCH/runs`,
`${PROJECT}/data`, `~/pytorch.sif`.

Which keys hold paths, the schema says (`values.Path`, `values.Binds`). They are replaced once, when
the file is read: the job has what they meant in the shell that submitted it. Nothing else of a job
file is expanded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hpc_amp.config.keys import Key, keys_of
from hpc_amp.config.tree import Items, MappingNode, Node, Scalar, shown
from hpc_amp.errors import ConfigError

S = TypeVar("S")
_DOLLAR = re.compile(r"\\\$|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Expansion:
    """A path that was written with a variable or `~`, and what has become of it."""

    key: str
    written: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}: {self.written} is {self.value}"


def missing_path(path: str, kind: str) -> tuple[str, str]:
    """Message and hint for a path that does not exist."""
    hint = "check the path" if os.path.isabs(path) else f"it is looked up in {os.getcwd()}"
    return f"there is no {kind} {path}", hint


def expand_paths(
    table: MappingNode, section: type, path: str = ""
) -> tuple[MappingNode, list[Expansion]]:
    """`table`, a section of a tree with shorthands expanded, with the variables in all its paths
    replaced, and what was replaced. `path` is the key path of the section.

    Raises ConfigError for a variable that this shell does not have, or a `$` that begins none.
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
    """The same for the value of one key that holds a path."""
    return _expand_text(node, path, separator=None)


def literal(path: str) -> str:
    """A path as it has to stand in a key, so that it is read as it is."""
    text = path.replace("$", r"\$")
    return f"./{text}" if text.startswith("~") else text


def as_overrides(job: Any, expansions: Iterable[Expansion]) -> list[str]:
    """Overrides with the expanded paths of a `job` as they are now, for a job file that is read
    again later, when the variables may be others."""
    overrides = []
    for key in dict.fromkeys(expansion.key.partition("[")[0] for expansion in expansions):
        value = job
        for name in key.split("."):
            value = getattr(value, name)
        text = json.dumps(list(map(literal, value))) if isinstance(value, list) else literal(value)
        overrides.append(f"{key}={text}")
    return overrides


def paths_in(section: Any, path: str = "") -> Iterator[tuple[str, Key, str]]:
    """The paths in a section and those in it: where each stands, its key, and the path itself.
    Lists of binds are none, and neither is what the section does not use."""
    for names, key in _path_keys(type(section)):
        value = section
        for name in names:
            value = None if value is None else getattr(value, name)
        if value is not None:
            yield ".".join([path, *names] if path else names), key, value


def with_paths(section: S, change: Callable[[Key, str], str | None]) -> S:
    """The section with each path of `paths_in` as `change` gives it."""
    for where, key, value in paths_in(section):
        section = _with_value(section, where.split("."), change(key, value))
    return section


def _with_value(section: Any, names: Sequence[str], value: str | None) -> Any:
    name, *rest = names
    if rest:
        value = _with_value(getattr(section, name), rest, value)
    return dataclasses.replace(section, **{name: value})


def _path_keys(section: type) -> tuple[tuple[tuple[str, ...], Key], ...]:
    """The keys for single paths in a section and those in it, each with the names that lead to
    it."""
    return _path_keys_of(section)


@functools.cache
def _path_keys_of(section: type[Any]) -> tuple[tuple[tuple[str, ...], Key], ...]:
    # Those of the class: a sweep asks for them at each of its points.
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
    """What has another form than the key asks for stays as it is: `build` refuses it."""
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
    """Of a bind, source and destination are paths: `~/data:/data`."""
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
    # Quoted: a number from a variable is a path, too.
    expanded = dataclasses.replace(node, text=text, quoted=True)
    if text == node.text.replace(r"\$", "$"):
        return expanded, []
    return expanded, [Expansion(path, node.text, text)]


def _value_of(match: re.Match[str]) -> str:
    """What stands in the place of a `$NAME`, `${NAME}` or an escaped dollar sign."""
    if match[0] == r"\$":
        return "$"
    name = match[1] or match[2]
    if name is None:
        raise ConfigError(
            "a $ that begins no $NAME or ${NAME}", hint=r"write \$ for a dollar sign in a name"
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
    """`~` and `~user` in front of a path as that home folder."""
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
