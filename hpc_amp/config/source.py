"""Parse YAML text into a tree that has the line of every key.

Scalars stay text here. PyYAML's rules of YAML 1.1, by which an unquoted `01:00:00` is the number
3600 and `no` is false, are not applied. `config.scalars` converts scalars by the rules of YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import yaml

from hpc_amp.config.tree import Items, MappingNode, Node, Scalar, shown
from hpc_amp.errors import ConfigError, to_type

_MAX_DEPTH = 50
_PLAIN = "?"
_Base: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIRST_KEY = {
    "job file": "name: my_run",
    "site file": "scheduler: local",
    "fabric profile": "description: ...",
}
_OPENED = r"quoted scalar|simple key|flow (sequence|mapping)"
_ADVICE = {
    "mapping values are not allowed": "quote a text that holds ': ', and check the indentation",
    "cannot start any token": "indent with spaces, not tabs, and quote a text that starts with "
    "'@', '%' or '`'",
    "expected ',' or": "close the bracket, and quote a text that holds '[', ']', '{', '}' or ','",
    "expected ':'": "write 'key: value', with a space after the colon",
    "expected node content": "write a value here, or close the bracket",
    "expected key": "check that the indentation fits the lines above, and quote a text that starts "
    "with '{' or '['",
    "expected <block end>": "check that the indentation fits the lines above",
    "expected alphabetic": "quote a text that starts with '*', '&' or '!'",
    "undefined alias": "quote a text that starts with '*'",
    "end of stream": "close the quotes",
    "escape": "write the text in single quotes to keep its backslashes",
    "another document": "keep one document: remove the line '---' and what does not belong",
}


_PROGRAMS = (".py", ".sh")
"""Endings of the names of programs."""


class _Loader(_Base):  # type: ignore[misc]  # its C base may be absent, so it has no static type
    """Composes nodes without resolving types. A node with an explicit tag keeps it."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}
    DEFAULT_SCALAR_TAG = DEFAULT_SEQUENCE_TAG = DEFAULT_MAPPING_TAG = _PLAIN


def read_file(path: Path, kind: str) -> tuple[str, MappingNode]:
    """Read a YAML file. Returns its text and its tree. `kind` is the kind of file for errors, such
    as "job file".

    Raises ConfigError if the file cannot be read, is not valid YAML or is not a mapping.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no such {kind}", where=str(path), hint=_neighbours(path, kind)
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"this is a folder, not a {kind}", where=str(path), hint="name a file in it"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} is not UTF-8 text",
            where=str(path),
            hint=f"is this a {kind}? If so, save it as UTF-8",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read this {kind}: {reason}", where=str(path)) from None
    if kind == "job file" and path.suffix in _PROGRAMS:
        raise ConfigError(
            "this is a program, and not a job file",
            where=str(path),
            hint=f"{to_type('init', path)} writes a job file for it",
        )
    return text, parse_file(text, str(path), kind)


def parse_file(text: str, path: str, kind: str) -> MappingNode:
    """`read_file` for a file's content. `path` is its path for errors."""
    tree = parse(text, lambda line: f"{path}:{line}")
    if tree is None or (isinstance(tree, Scalar) and tree.is_null):
        raise ConfigError(
            f"this {kind} is empty", where=path, hint=f"write keys, such as {_FIRST_KEY[kind]}"
        )
    if not isinstance(tree, MappingNode):
        raise ConfigError(
            f"this is not a {kind}", where=path, hint=f"write keys, such as {_FIRST_KEY[kind]}"
        )
    return MappingNode(tree.entries, path)


def parse(text: str, place: Callable[[int], str]) -> Node | None:
    """Parse a YAML text. Returns None for an empty text. `place` converts a line number (from 1) to
    the `where` of a node.

    Raises ConfigError if the text is not exactly one valid YAML document.
    """
    strange = _UNPRINTABLE.search(text)
    if strange:
        line = text.count("\n", 0, strange.start()) + 1
        raise ConfigError(f"the character {strange[0]!r} may not stand in YAML", where=place(line))
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, place) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"not valid YAML: {problem}", where=place(1)) from None
    except RecursionError:  # only PyYAML without libyaml
        raise ConfigError("nested too deeply", where=place(1)) from None
    return None if root is None else _Converter(place).node(root, 0)


def _syntax_error(error: yaml.MarkedYAMLError, place: Callable[[int], str]) -> ConfigError:
    """An error of PyYAML as one line, with the line number where the mistake probably is."""
    problem = error.problem or "it cannot be read"
    context = error.context or ""
    # PyYAML reports an unclosed quote or bracket at the end of the file. The line where it was
    # opened is more useful.
    mark = error.context_mark if re.search(_OPENED, context) else error.problem_mark
    mark = mark or error.problem_mark
    message = f"{context}, {problem}" if context.startswith("while") else problem
    hint = next((advice for sign, advice in _ADVICE.items() if sign in problem), None)
    return ConfigError(
        f"not valid YAML: {message}", where=place(mark.line + 1 if mark else 1), hint=hint
    )


class _Converter:
    """Converts PyYAML nodes to trees. A node with several aliases is converted once and shared."""

    def __init__(self, place: Callable[[int], str]) -> None:
        self.place = place
        self.done: dict[int, Node | None] = {}

    def node(self, node: yaml.Node, depth: int) -> Node:
        where = self.place(node.start_mark.line + 1)
        if depth > _MAX_DEPTH:
            raise ConfigError(f"nested more than {_MAX_DEPTH} levels deep", where=where)
        if id(node) not in self.done:
            self.done[id(node)] = None  # its conversion has begun
            self.done[id(node)] = self.convert(node, where, depth)
        converted = self.done[id(node)]
        if converted is None:
            raise ConfigError("an alias (*) stands inside its own anchor (&)", where=where)
        return converted

    def convert(self, node: yaml.Node, where: str, depth: int) -> Node:
        if node.tag != _PLAIN:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise ConfigError(
                f"the tag {shown(tag)} is not understood", where=where, hint="remove it"
            )
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, where, quoted=bool(node.style))
        if isinstance(node, yaml.MappingNode):
            return self.table(node, where, depth)
        return Items(tuple(self.node(item, depth + 1) for item in node.value), where)

    def table(self, node: yaml.MappingNode, where: str, depth: int) -> MappingNode:
        own: dict[str, Node] = {}
        inherited: dict[str, Node] = {}
        seen: dict[str, str] = {}
        for key, value in node.value:
            place = self.place(key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    "a key must be plain text", where=place, hint="quote a text with brackets"
                )
            if key.value in seen:
                raise ConfigError(
                    f"the key {shown(key.value)} is here for the second time, after "
                    f"{seen[key.value]}",
                    where=place,
                    hint="keep one of them",
                )
            seen[key.value] = place
            child = self.node(value, depth + 1)
            if key.value == "<<" and not key.style:
                inherited = self.merged(child, place)
            else:
                own[key.value] = child._replace(where=place)
        return MappingNode({**inherited, **own}, where)

    @staticmethod
    def merged(value: Node, where: str) -> dict[str, Node]:
        """The entries of a merge key (`<<: *base`, `<<: [*first, *second]`). If several mappings
        have the same key, the first one counts."""
        tables = value.items if isinstance(value, Items) else (value,)
        entries: dict[str, Node] = {}
        for table in tables:
            if not isinstance(table, MappingNode):
                raise ConfigError(
                    "<< takes mappings only", where=where, hint="write <<: *name_of_an_anchor"
                )
            for name, entry in table.entries.items():
                entries.setdefault(name, entry)
        return entries


def _neighbours(path: Path, kind: str) -> str:
    """The hint for a missing file: the name of a similar file in its folder, if there is one. A
    program can stand in the place of a job file."""
    from difflib import get_close_matches

    endings = (".yaml", ".yml", *(_PROGRAMS if kind == "job file" else ()))
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix in endings]
    except OSError:
        return f"there is no folder {path.parent} either; check the path"
    # Of files that only differ in their endings, the one with the ending that was given.
    names.sort(key=lambda name: (not name.endswith(path.suffix), name))
    stems = [name.rpartition(".")[0] for name in names]
    near = get_close_matches(path.stem, stems, n=1)
    if not near:
        return "check the path"
    return f"did you mean {path.parent / names[stems.index(near[0])]}?"
