"""A Python script as a syntax tree, with positions, scopes and parents of its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.metadata import (
    CodeRange,
    ExpressionContext,
    ExpressionContextProvider,
    MetadataWrapper,
    PositionProvider,
    Scope,
    ScopeProvider,
)

Node = TypeVar("Node", bound=cst.CSTNode)
# Methods that return their object: `Net().cuda()` is a `Net`.
_RETURNS_ITSELF = {
    "cuda", "cpu", "to", "type", "half", "float", "double", "bfloat16", "train", "eval",
    "requires_grad_",
}  # fmt: skip
_SHOWN_CHARACTERS = 70
_COMMENT = re.compile(r"(?:^|\s+)#[^'\"]*$")
# The space that remains of a line break after an opening or before a closing bracket.
_PADDING = re.compile(r"(?:(?<=[(\[{]) |,? ([)\]}]))")


class SourceScript:
    """A parsed script. `name` is the file name for findings. Raises ParserSyntaxError."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        # No copy: a tree that was parsed contains no node twice.
        self._wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module = self._wrapper.module
        # The scopes need the contexts, which are kept.
        self._scopes: Mapping[cst.CSTNode, Scope | None] = self._wrapper.resolve(ScopeProvider)
        self._contexts: Mapping[cst.CSTNode, ExpressionContext | None] = self._wrapper.resolve(
            ExpressionContextProvider
        )
        self._tree = _Tree()
        self.module.visit(self._tree)

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """The positions of all nodes, which only scripts with findings need."""
        return self._wrapper.resolve(PositionProvider)

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the line and the column of a node, both counted from 1."""
        start = self._positions[node].start
        return start.line, start.column + 1

    def order(self, node: cst.CSTNode) -> int:
        """Return the number of a node in the order of the text."""
        return self._tree.spans[node][0]

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """Return the scope of a node, or None."""
        return self._scopes.get(node)

    def is_read(self, node: cst.CSTNode) -> bool:
        """Whether a name is read, not assigned or deleted."""
        return self._contexts.get(node) is ExpressionContext.LOAD

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node that contains a node, or None for the module."""
        return self._tree.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes that contain a node, from the innermost one to the module."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def code(self, node: cst.CSTNode) -> str:
        """Return the code of a node on one line, without comments."""
        text = self.module.code_for_node(node)
        if "\n" not in text:
            return text.strip()
        lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
        text = " ".join(line for line in lines if line)
        return _PADDING.sub(r"\1", text)

    def shown(self, node: cst.CSTNode) -> str:
        """Return the code of a node for a message: one line, printable, and not too long."""
        text = "".join(letter if letter.isprintable() else "?" for letter in self.code(node))
        if isinstance(node, cst.ImportAlias):
            text = text.rstrip(",")
        return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"

    def all(self, kind: type[Node], inside: cst.CSTNode | None = None) -> list[Node]:
        """Return all nodes of a type in the order of the text.

        With `inside`, only this node and the nodes in it are returned.
        """
        first, last = self._tree.spans[self.module if inside is None else inside]
        return [node for node in self._tree.nodes[first:last] if isinstance(node, kind)]

    @cached_property
    def calls(self) -> list[cst.Call]:
        """All calls, in the order of the text."""
        return self.all(cst.Call)

    def assigned_to(self, value: cst.CSTNode) -> list[str]:
        """Return the texts of the targets that a value is assigned to, also after `.cuda()`."""
        return [self.code(target) for target in self.targets_of(value)]

    def targets_of(self, value: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the targets that a value is assigned to, also after `.cuda()` and similar."""
        above = self.parent(value)
        while isinstance(above, cst.Attribute) and above.attr.value in _RETURNS_ITSELF:
            call = self.parent(above)
            if not isinstance(call, cst.Call):
                return []
            value, above = call, self.parent(call)
        if isinstance(above, cst.Assign):
            return [target.target for target in above.targets]
        if isinstance(above, cst.AnnAssign):
            return [above.target]
        return []

    @cached_property
    def functions(self) -> list[cst.FunctionDef | cst.Module]:
        """All functions, and the module itself."""
        return [self.module, *self.all(cst.FunctionDef)]


class _Tree(cst.CSTVisitor):
    """Collects all nodes in the order of the text. The nodes in a node are a slice of them."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[cst.CSTNode] = []
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._open: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._open:
            self.parents[node] = self._open[-1]
        self._open.append(node)
        self.spans[node] = len(self.nodes), 0
        self.nodes.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._open.pop()
        self.spans[original_node] = self.spans[original_node][0], len(self.nodes)


def method(call: cst.CSTNode) -> str:
    """Return the name of the method that is called, or "" if it is not a method call."""
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    return ""


def receiver(call: cst.Call) -> cst.BaseExpression:
    """Return the object on which a method is called. `call` must be a method call."""
    return cst.ensure_type(call.func, cst.Attribute).value


def argument(
    call: cst.Call, keyword: str, position: int | None = None
) -> cst.BaseExpression | None:
    """Return the value of an argument, given by keyword or by position, or None."""
    for index, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
        if arg.keyword is None and not arg.star and index == position:
            return arg.value
    return None


def text_of(value: cst.BaseExpression | None) -> str | None:
    """Return the value of a string literal, or None for other expressions."""
    if isinstance(value, cst.SimpleString):
        said = value.evaluated_value
        return said if isinstance(said, str) else None
    return None
