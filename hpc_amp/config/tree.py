"""A configuration before it has types: what was written, and where it was written.

A YAML file, an override and a site's defaults all become such trees. They are merged as trees and
get their types last (`config.build`), so every error can name the line or the override at fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

_NULLS = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value as its source text. Its type is decided by the key that it belongs to."""

    text: str
    where: str
    quoted: bool = False
    """Written in quotes or as a block (`|`, `>`): it is text and cannot be a number or null."""

    @property
    def is_null(self) -> bool:
        """Whether YAML 1.2 reads it as null: an empty value is null too."""
        return not self.quoted and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    where: str


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A mapping. The `where` of an entry is that of its key."""

    entries: dict[str, Node]
    where: str

    def get(self, name: str) -> Node | None:
        """The entry of that name, or None."""
        return self.entries.get(name)

    def has(self, key_path: str) -> bool:
        """Whether somebody wrote a key such as `train.batch_size`."""
        node: Node | None = self
        for name in key_path.split("."):
            node = node.get(name) if isinstance(node, MappingNode) else None
        return node is not None

    def place(self, key_path: str) -> str:
        """Where a key such as `train.batch_size` was written; for one that nobody wrote, the place
        of the nearest section above it that somebody did."""
        node = self
        for name in key_path.split("."):
            below = node.get(name)
            if not isinstance(below, MappingNode):
                return below.where if below else node.where
            node = below
        return node.where


Node = Union[Scalar, Items, MappingNode]  # noqa: UP007  evaluated at run time, before its classes' hints


def merge(under: Node | None, over: Node) -> Node:
    """`over` on top of `under`: mappings are joined key by key, everything else is replaced."""
    if not (isinstance(under, MappingNode) and isinstance(over, MappingNode)):
        return over
    joined = {name: merge(under.get(name), node) for name, node in over.entries.items()}
    return MappingNode({**under.entries, **joined}, over.where)


def assign(table: MappingNode, path: list[str], node: Node) -> MappingNode:
    """`table` with `node` merged in at a key path. Sections on the way are made as needed."""
    name, *rest = path
    present = table.get(name)
    if not rest:
        changed = merge(present, node)
    else:
        below = present if isinstance(present, MappingNode) else MappingNode({}, node.where)
        changed = assign(below, rest, node)
    return MappingNode({**table.entries, name: changed}, table.where)


def shown(text: str) -> str:
    """Text as it may stand in a message of one line: in quotes, escaped and not too long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def describe(node: Node) -> str:
    """What a node is, for a message that says `must be ..., not ...`."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.is_null:
        return "null"
    return f"the text {shown(node.text)}" if node.quoted else shown(node.text)
