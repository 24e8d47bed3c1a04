"""Trees: a configuration before its conversion to types, with the place of every value.

A YAML file, an override and a site's defaults are all read as trees. The trees are merged, and the
result is converted to types last (`config.build`). Every error can therefore name the line or the
override that is wrong.

`where` of a node is `file:line`, the text of an override, or another place that an error can name.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

_NULLS = {"", "~", "null", "Null", "NULL"}


class Scalar(NamedTuple):
    """A single value as its source text. The type of its key decides how it is converted."""

    text: str
    where: str
    quoted: bool = False
    """Whether it was written in quotes or as a block (`|`, `>`). It then cannot be a number or
    null."""

    @property
    def is_null(self) -> bool:
        """Whether it is null in YAML 1.2. An empty value is null too."""
        return not self.quoted and self.text in _NULLS


class Items(NamedTuple):
    """A list."""

    items: tuple[Node, ...]
    where: str


class MappingNode(NamedTuple):
    """A mapping. The `where` of an entry is that of its key."""

    entries: dict[str, Node]
    where: str

    def get(self, name: str) -> Node | None:
        """The entry of that name, or None."""
        return self.entries.get(name)

    def has(self, key_path: str) -> bool:
        """Whether a key such as `train.batch_size` was written."""
        node: Node | None = self
        for name in key_path.split("."):
            node = node.get(name) if isinstance(node, MappingNode) else None
        return node is not None

    def place(self, key_path: str) -> str:
        """Where a key such as `train.batch_size` was written. For a key that was not written, the
        place of the nearest section above it that was."""
        node = self
        for name in key_path.split("."):
            below = node.get(name)
            if not isinstance(below, MappingNode):
                return below.where if below else node.where
            node = below
        return node.where

    def places(self, prefix: str = "") -> dict[str, str]:
        """Where each value was written, by its key. `prefix` comes before the keys."""
        found: dict[str, str] = {}
        for name, node in self.entries.items():
            if isinstance(node, MappingNode) and node.entries:
                found |= node.places(f"{prefix}{name}.")
            else:
                found[f"{prefix}{name}"] = node.where
        return found


Node = Union[Scalar, Items, MappingNode]  # noqa: UP007  evaluated at run time, before its classes' hints


def merge(under: Node | None, over: Node) -> Node:
    """Merge `over` onto `under`. Mappings are merged key by key; any other node of `over` replaces
    that of `under`."""
    if not (isinstance(under, MappingNode) and isinstance(over, MappingNode)):
        return over
    joined = {name: merge(under.get(name), node) for name, node in over.entries.items()}
    return MappingNode({**under.entries, **joined}, over.where)


def assign(table: MappingNode, path: list[str], node: Node) -> MappingNode:
    """Merge `node` into `table` at a key path. Missing sections on the path are created."""
    name, *rest = path
    present = table.get(name)
    if not rest:
        changed = merge(present, node)
    else:
        below = present if isinstance(present, MappingNode) else MappingNode({}, node.where)
        changed = assign(below, rest, node)
    return MappingNode({**table.entries, name: changed}, table.where)


def plain(node: Node) -> dict[str, Any] | list[Any] | str | None:
    """A tree as JSON values. Scalars stay text."""
    if isinstance(node, MappingNode):
        return {name: plain(entry) for name, entry in node.entries.items()}
    if isinstance(node, Items):
        return [plain(item) for item in node.items]
    return None if node.is_null else node.text


def shown(text: str) -> str:
    """Text for a message of one line: quoted, escaped and cut to 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def describe(node: Node) -> str:
    """What a node is, for a message of the form `must be ..., not ...`."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.is_null:
        return "null"
    return f"the text {shown(node.text)}" if node.quoted else shown(node.text)
