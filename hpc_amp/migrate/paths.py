"""Finds the paths through a function: the orders in which relevant calls can run.

Both branches of an `if` around such a call are followed. The same condition always has the same
value on a path, so `if use_amp:` twice gives two paths, not four. A loop body is followed once.
Exception handlers are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import libcst as cst

from hpc_amp.migrate.script import SourceScript

Loop = cst.For | cst.While
# An element of a path: a call, or a loop at the end of its body.
Step = cst.Call | Loop
_MOST_PATHS = 256


@dataclass(frozen=True)
class _Path:
    steps: tuple[Step, ...] = ()
    assumed: Mapping[str, bool] = field(default_factory=dict)
    ended: Literal["", "function", "loop"] = ""


class TooManyPaths(Exception):
    """A function has too many paths to follow."""


class Paths:
    """Finds the paths through functions.

    `matters` selects the relevant calls. `implied` returns what a call assumes: expressions and
    whether they are true.
    """

    def __init__(
        self,
        script: SourceScript,
        matters: Callable[[cst.Call], bool],
        implied: Callable[[cst.Call], Mapping[str, bool]],
    ) -> None:
        self._script = script
        self._matters = matters
        self._implied = implied

    def through(self, function: cst.FunctionDef | cst.Module) -> list[tuple[Step, ...]]:
        """Return the relevant calls on each path, in order. Raises TooManyPaths."""
        body = function.body.body if isinstance(function, cst.FunctionDef) else function.body
        return [path.steps for path in self._block(body, [_Path()])]

    def _block(self, statements: Sequence[cst.CSTNode], paths: list[_Path]) -> list[_Path]:
        for statement in statements:
            done = [path for path in paths if path.ended]
            paths = done + self._statement(statement, [path for path in paths if not path.ended])
            if len(paths) > _MOST_PATHS:
                raise TooManyPaths
        return paths

    def _statement(self, node: cst.CSTNode, paths: list[_Path]) -> list[_Path]:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            return paths
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite | cst.IndentedBlock):
            return self._block(node.body, paths)
        if isinstance(node, cst.Else | cst.Finally):
            return self._statement(node.body, paths)
        if not self._calls(node) and not isinstance(node, cst.BaseSmallStatement):
            return paths
        if isinstance(node, cst.If):
            return self._if(node, paths)
        if isinstance(node, cst.For | cst.While):
            return self._loop(node, paths)
        if isinstance(node, cst.With):
            entered = self._run([item.item for item in node.items], paths)
            return self._statement(node.body, entered)
        if isinstance(node, cst.Try | cst.TryStar):
            parts = [node.body, node.orelse, node.finalbody]
            return self._block([part for part in parts if part is not None], paths)
        if isinstance(node, cst.Match):
            return [path for case in node.cases for path in self._statement(case.body, paths)]
        paths = self._run([node], paths)
        if isinstance(node, cst.Return | cst.Raise):
            return [replace(path, ended="function") for path in paths]
        if isinstance(node, cst.Break | cst.Continue):
            return [replace(path, ended="loop") for path in paths]
        return paths

    def _calls(self, node: cst.CSTNode) -> list[cst.Call]:
        return [call for call in self._script.all(cst.Call, node) if self._matters(call)]

    def _run(self, nodes: Sequence[cst.CSTNode], paths: list[_Path]) -> list[_Path]:
        for call in (call for node in nodes for call in self._calls(node)):
            paths = [
                replace(known, steps=(*known.steps, call))
                for path in paths
                if (known := _assume(path, self._implied(call))) is not None
            ]
        return paths

    def _if(self, node: cst.If, paths: list[_Path]) -> list[_Path]:
        paths = self._run([node.test], paths)
        yes = _assume_all(paths, self._assumptions(node.test, True))
        no = _assume_all(paths, self._assumptions(node.test, False))
        taken = self._statement(node.body, yes)
        return taken + (no if node.orelse is None else self._statement(node.orelse, no))

    def _loop(self, node: Loop, paths: list[_Path]) -> list[_Path]:
        head = node.iter if isinstance(node, cst.For) else node.test
        paths = self._statement(node.body, self._run([head], paths))
        return [
            path if path.ended == "function" else replace(path, steps=(*path.steps, node), ended="")
            for path in paths
        ]

    def _assumptions(self, test: cst.BaseExpression, value: bool) -> dict[str, bool]:
        """What is known if a test has this value: expressions and whether they are true."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self._assumptions(test.expression, not value)
        if isinstance(test, cst.BooleanOperation) and (
            value if isinstance(test.operator, cst.And) else not value
        ):
            return {
                **self._assumptions(test.left, value),
                **self._assumptions(test.right, value),
            }
        text = self._script.code(test)
        if text.endswith(" is not None"):
            return {text.replace(" is not None", " is None"): not value}
        return {text: value}


def _assume(path: _Path, known: Mapping[str, bool]) -> _Path | None:
    if any(path.assumed.get(text, value) != value for text, value in known.items()):
        return None
    return replace(path, assumed={**path.assumed, **known})


def _assume_all(paths: list[_Path], known: Mapping[str, bool]) -> list[_Path]:
    return [new for path in paths if (new := _assume(path, known)) is not None]
