"""Rules about the order of calls of a GradScaler, along each path through a function."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.paths import Loop, Paths, Step, TooManyPaths
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import method, receiver

_METHODS = ("step", "update", "unscale_")


def check_scaler_order(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    if not program.scalers:
        return
    order = _Order(program, report)
    for function in program.script.functions:
        order.check(function)


class _Order:
    def __init__(self, program: MigratedProgram, report: ScriptFindings) -> None:
        self._program = program
        self._report = report
        self._paths = Paths(program.script, self._matters, self._implied)

    def check(self, function: cst.FunctionDef | cst.Module) -> None:
        try:
            paths = self._paths.through(function)
        except TooManyPaths:
            return
        guards = "get_scale" in self._program.script.code(function)
        clips: dict[cst.Call, str] = {}
        clean: set[cst.Call] = set()
        for path in paths:
            self._gradients(path, clips, clean)
            self._micro_batches(path)
            if not guards:
                self._schedules(path)
        for call, scaler in clips.items():
            # `if use_amp: scaler.unscale_(optimizer)`: if this is false, the scaler is disabled.
            if call not in clean:
                self._report.add("clip-before-unscale", call, scaler=scaler)

    def _matters(self, call: cst.Call) -> bool:
        return method(call) in (*_METHODS, "backward") or self._is_clip(call)

    def _is_clip(self, call: cst.Call) -> bool:
        name = self._program.names.of(call.func).rpartition(".")[2] or method(call)
        if not name.startswith("clip_grad_"):
            return False
        # If an optimizer has such a method, it is a wrapper that handles its own scale.
        code = self._program.script.code
        return not method(call) or code(receiver(call)) not in self._program.optimizers

    def _scaler(self, call: cst.Call) -> str:
        """The scaler that a call uses, or "". A disabled scaler does not count."""
        if scaler := self._program.scaler_of(call):
            return "" if scaler in self._program.disabled_scalers else scaler
        if method(call) not in _METHODS:
            return ""
        text = self._program.script.code(receiver(call))
        return text if text in self._program.scalers - self._program.disabled_scalers else ""

    def _implied(self, call: cst.Call) -> Mapping[str, bool]:
        scaler = self._scaler(call)
        return {scaler: True, f"{scaler} is None": False} if scaler else {}

    def _gradients(
        self, path: tuple[Step, ...], clips: dict[cst.Call, str], clean: set[cst.Call]
    ) -> None:
        """Follow the gradients that are multiplied by a scale.

        Adds the calls that clip scaled gradients to `clips`, each with its scaler, and the calls
        that clip unscaled gradients to `clean`.
        """
        scaled: dict[str, bool] = {}  # for each scaler, whether the gradients are unscaled
        for call in path:
            if not isinstance(call, cst.Call):
                continue
            scaler = self._scaler(call)
            if scaler and method(call) == "backward":
                scaled[scaler] = False
            elif scaler and method(call) == "update":
                scaled.pop(scaler, None)
            elif scaler:
                scaled[scaler] = True
            elif method(call) == "backward":
                scaled.clear()
            elif self._is_clip(call):
                for name, unscaled in scaled.items():
                    if unscaled:
                        clean.add(call)
                    else:
                        clips[call] = name
            else:
                self._other_step(call, scaled)

    def _other_step(self, call: cst.Call, scaled: dict[str, bool]) -> None:
        stepped = self._program.script.code(receiver(call))
        if stepped not in self._program.optimizers or method(call) != "step":
            return
        for name, unscaled in scaled.items():
            if not unscaled:
                self._report.add("optimizer-step-past-scaler", call, scaler=name, optimizer=stepped)

    def _micro_batches(self, path: tuple[Step, ...]) -> None:
        """Check for unscaling in iterations that do not update the scaler."""
        waiting: dict[str, cst.Call] = {}
        for step in path:
            if not isinstance(step, cst.Call):
                for scaler, unscale in waiting.items():
                    if step in self._program.script.ancestors(unscale):
                        self._report.add("unscale-each-micro-batch", unscale, scaler=scaler)
            elif (scaler := self._scaler(step)) and method(step) == "unscale_":
                if scaler in self._program.on("update"):
                    waiting[scaler] = step
            elif scaler and method(step) == "update":
                waiting.pop(scaler, None)

    def _schedules(self, path: tuple[Step, ...]) -> None:
        """Check for schedules that are stepped after an optimizer step that may be skipped."""
        steps: dict[str, Loop | None] = {}
        for call in path:
            if not isinstance(call, cst.Call) or method(call) != "step":
                continue
            loop = self._loop(call)
            if scaler := self._scaler(call):
                steps[scaler] = loop
            elif self._program.script.code(receiver(call)) in self._program.schedules:
                for scaler, around in steps.items():
                    if around is loop and loop is not None:
                        self._report.add("scheduler-after-skipped-step", call, scaler=scaler)

    def _loop(self, call: cst.Call) -> Loop | None:
        """The innermost loop around a call, or None."""
        for above in self._program.script.ancestors(call):
            if isinstance(above, cst.For | cst.While):
                return above
        return None
