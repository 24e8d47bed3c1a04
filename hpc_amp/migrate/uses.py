"""Decides for one use of an old name how to change it, or why it is not changed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from hpc_amp.migrate.apex_parts import inside_amp
from hpc_amp.migrate.arguments import Arguments, Undecidable
from hpc_amp.migrate.edits import Edit, NodeChange, changed
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.moves import Move, Version
from hpc_amp.migrate.names import Reference
from hpc_amp.migrate.program import AUTOCASTS, HALF, MigratedProgram
from hpc_amp.migrate.rules import RULES

# The test of a branch for one version of a library. Code in such a branch is not changed.
_VERSION_TEST = re.compile(r"version|hasattr|torch_?\d|parse\(", re.IGNORECASE)
# Packages that moved as a whole. A name in them that is not in the table has no new name.
_PACKAGES = ("torch.amp", "hpc_amp.amp")
_AUTOCAST = "torch.amp.autocast"
# These functions set the default type of torch.amp.autocast. The old autocasts ignore it.
_SETTERS = tuple(f"torch.set_autocast_{of}dtype" for of in ("gpu_", "cpu_", ""))
_OLD_API = ("apex.amp.init", "apex.amp.AmpHandle", "apex.amp.NoOpHandle")


class Uses:
    """Decides about single uses. `torch` is the oldest version that the script must support."""

    def __init__(
        self,
        program: MigratedProgram,
        moves: Mapping[str, Move],
        torch: Version,
        report: ScriptFindings,
    ) -> None:
        self._program = program
        self._script = program.script
        self._moves = moves
        self._torch = torch
        self._report = report

    def find(self, name: str) -> tuple[Move, str]:
        """Return the move for a full name, and the attributes after it.

        Raises KeyError if there is no move, and Undecidable if the package has moved but this name
        in it has not.
        """
        known, rest = name, ""
        while known not in self._moves:
            known, dot, last = known.rpartition(".")
            if not dot:
                raise KeyError(name)
            rest = f".{last}{rest}"
        move = self._moves[known]
        if rest and move.new in _PACKAGES:
            raise Undecidable(f"`{name}` has no new name")
        return move, rest

    def refuse(self, node: cst.CSTNode, move: Move) -> None:
        """Raise Undecidable if a node must not be changed because of its place or of --torch."""
        if move.since > self._torch:
            needed = ".".join(map(str, move.since))
            raise Undecidable(f"it needs torch {needed}, and --torch is older")
        inside = node
        for above in self._script.ancestors(node):
            if isinstance(above, cst.FormattedString):
                raise Undecidable("it is in an f-string, where quotes depend on Python's version")
            if isinstance(above, cst.ExceptHandler):
                raise Undecidable("it is in an exception handler")
            if (
                isinstance(above, cst.If | cst.IfExp)
                and inside is not above.test
                and _VERSION_TEST.search(self._script.code(above.test))
            ):
                raise Undecidable("it is in a branch for a certain version")
            inside = above

    def edits(self, use: Reference, new_name: str | None = None) -> tuple[Edit, ...]:
        """Return the changes that a use needs.

        `new_name` is the new name to write, or None if the name is kept. Raises Undecidable.
        """
        move, rest = self.find(use.name)
        if move.uncalled == "anywhere" and new_name is None:
            return ()
        self.refuse(use.node, move)
        renamed: tuple[Edit, ...] = ()
        if new_name is not None:
            new = cst.parse_expression(new_name)
            renamed = (NodeChange(use.node, lambda _: new),)
        if move.uncalled == "anywhere":
            return renamed
        if not use.certain:
            raise Undecidable(f"`{use.local}` has more than one meaning in this file")
        above = self._script.parent(use.node)
        arguments = move.arguments
        if isinstance(above, cst.Call) and above.func is use.node and not rest:
            self._refuse_other_type(above, move)
            return renamed if arguments is None else (*renamed, _call_change(above, arguments))
        if isinstance(above, cst.Decorator) and move.decorates and arguments is not None:
            return (*renamed, _decorator_change(above, arguments))
        if move.uncalled == "as type" and not rest and self._is_type(use.node):
            return renamed
        raise Undecidable(f"`{self._script.code(use.node)}` is used without being called")

    def _refuse_other_type(self, call: cst.Call, move: Move) -> None:
        """Raise Undecidable if the new autocast could have another type than the old one.

        An old autocast without dtype uses the type of its device. The new one uses the type of the
        autocast around it, if there is one.
        """
        program = self._program
        if move.new != _AUTOCAST or program.dtype_of(call) != "" or program.is_disabled(call):
            return
        on_cpu = program.names.of(call.func) == "torch.cpu.amp.autocast"
        own = {"torch.bfloat16"} if on_cpu else HALF
        for other in program.calls_of(*AUTOCASTS):
            of_gpu = program.names.of(other.func) == "torch.cuda.amp.autocast"
            if program.dtype_of(other) not in ("", *own) and not (on_cpu and of_gpu):
                line = program.script.place(other)[0]
                raise Undecidable(
                    f"inside the autocast of line {line}, it would use that type; add dtype="
                )
        for setter in program.calls_of(*_SETTERS):
            line = program.script.place(setter)[0]
            raise Undecidable(f"it would use the type that line {line} sets; add dtype=")

    def report(self, use: Reference, edits: tuple[Edit, ...], left_because: str = "") -> None:
        """Report a use and its changes. With `left_because`, the changes are not made."""
        try:
            move, _ = self.find(use.name)
        except Undecidable:
            rule = _rule_of_unknown(use.name)
            self._report.add(rule, use.node, twin=inside_amp(use.name))
            return
        except KeyError:
            return  # the name has another meaning, which is not an old name
        place = self._place(use)
        if edits:
            new = self._script.shown(changed(place, edits))
        else:
            new = move.new if place is use.node else f"{move.new}(...)"
        if left_because:
            edits = ()
        note = RULES[move.rule].note if isinstance(place, cst.Call) else ""
        self._report.add(move.rule, place, *edits, left_because=left_because, note=note, new=new)

    def _place(self, use: Reference) -> cst.CSTNode:
        """The call or the decorator that uses a name, or else the name itself."""
        above = self._script.parent(use.node)
        if isinstance(above, cst.Decorator):
            return above
        return above if isinstance(above, cst.Call) and above.func is use.node else use.node

    def _is_type(self, node: cst.CSTNode) -> bool:
        """Whether a name is used in an annotation, or as a type for isinstance."""
        inside = node
        for above in self._script.ancestors(node):
            if isinstance(above, cst.Annotation):
                return True
            if isinstance(above, cst.Call):
                called = self._script.code(above.func)
                return called in ("isinstance", "issubclass") and above.args[0] is not inside
            inside = above
        return False


def _rule_of_unknown(name: str) -> str:
    if name in _OLD_API:
        return "apex-old-api"
    return "apex-amp-name" if name.startswith("apex.") else "old-amp-name"


def _call_change(call: cst.Call, arguments: Arguments) -> Edit:
    arguments(call)  # raises Undecidable
    return NodeChange(call, lambda new: arguments(cst.ensure_type(new, cst.Call)))


def _decorator_change(decorator: cst.Decorator, arguments: Arguments) -> Edit:
    """Add the arguments that a decorator `@name` needs."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        new = cst.ensure_type(node, cst.Decorator)
        return new.with_changes(decorator=arguments(cst.Call(new.decorator)))

    return NodeChange(decorator, change)
