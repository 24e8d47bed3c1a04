"""Rules about mistakes with apex.amp or hpc_amp.amp, which fail or train incorrectly."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.paths import Paths, Step, TooManyPaths
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import argument, method, receiver, text_of

_LEVELS = ("O0", "O1", "O2", "O3")
_WRAPPERS = (
    "apex.parallel.DistributedDataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.DataParallel",
)


def check_apex_use(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    _options(program, report)
    _scale_loss(program, report)
    _clip(program, report)
    _checkpoint(program, report)
    if program.amp_calls("initialize"):
        _InitializeOrder(program, report).check()


def _options(program: MigratedProgram, report: ScriptFindings) -> None:
    for call in program.amp_calls("initialize"):
        given = argument(call, "opt_level", 3)
        level = "O1" if given is None else text_of(given)
        if given is not None and level is not None and level not in _LEVELS:
            report.add("apex-opt-level", given)
        for option in ("keep_batchnorm_fp32", "master_weights"):
            value = argument(call, option)
            # A variable may be None, which is allowed.
            is_constant = isinstance(value, cst.SimpleString) or (
                value is not None and program.script.code(value) in ("True", "False")
            )
            if level == "O1" and value is not None and is_constant:
                report.add("apex-o1-override", value, option=option)


def _scale_loss(program: MigratedProgram, report: ScriptFindings) -> None:
    """Check the calls inside `with amp.scale_loss(...) as scaled_loss:`."""
    for call in program.amp_calls("scale_loss"):
        item = program.script.parent(call)
        block = program.script.parent(item) if isinstance(item, cst.WithItem) else None
        if not isinstance(item, cst.WithItem) or not isinstance(block, cst.With):
            continue
        scaled = program.script.code(item.asname.name) if item.asname is not None else ""
        for inner in program.script.all(cst.Call, block.body):
            text = program.script.code(receiver(inner)) if method(inner) else ""
            is_step = method(inner) == "step" and text in program.optimizers
            if is_step or _is_clip(program, inner):
                report.add("apex-inside-scale-loss", inner)
            plain = method(inner) == "backward" and not any(a.keyword is None for a in inner.args)
            if plain and scaled:
                names = {name.value for name in program.script.all(cst.Name, receiver(inner))}
                if scaled not in names:
                    report.add("apex-unscaled-backward", inner, scaled=scaled)


def _is_clip(program: MigratedProgram, call: cst.Call) -> bool:
    return program.names.of(call.func).startswith("torch.nn.utils.clip_grad_")


def _clip(program: MigratedProgram, report: ScriptFindings) -> None:
    """Check for clipping of model parameters although the optimizer updates the masters."""
    levels = [argument(call, "opt_level", 3) for call in program.amp_calls("initialize")]
    if not any(level is not None and text_of(level) in (None, "O2") for level in levels):
        return
    masters = program.amp_calls("master_params")
    knows = {program.function_around(call) for call in masters}
    scaled = set(program.amp_calls("scale_loss"))
    paths = Paths(
        program.script, lambda call: call in scaled or _clips_model(program, call), _nothing
    )
    for function in program.script.functions:
        inside = None if isinstance(function, cst.Module) else function
        clips = [
            call
            for call in program.script.all(cst.Call, function)
            if _clips_model(program, call) and program.function_around(call) is inside
        ]
        if not clips or inside in knows:
            continue  # the masters are clipped too, so this is the branch without amp
        if any(program.function_around(call) is inside for call in scaled):
            clips = _behind(paths, function, scaled)
        elif masters:
            continue
        for call in clips:
            report.add("apex-clip", call)


def _clips_model(program: MigratedProgram, call: cst.Call) -> bool:
    return (
        _is_clip(program, call) and bool(call.args) and method(call.args[0].value) == "parameters"
    )


def _behind(
    paths: Paths, function: cst.FunctionDef | cst.Module, first: set[cst.Call]
) -> list[cst.Call]:
    """The calls that come after one of `first` on some path through a function."""
    try:
        found = paths.through(function)
    except TooManyPaths:
        return []
    behind = []
    for path in found:
        seen = False
        for call in path:
            if call in first:
                seen = True
            elif seen and isinstance(call, cst.Call):
                behind.append(call)
    return behind


def _checkpoint(program: MigratedProgram, report: ScriptFindings) -> None:
    if program.amp_calls("initialize") and not program.amp_calls("state_dict"):
        for checkpoint in program.saves_optimizer():
            report.add("apex-state-not-saved", checkpoint)


class _InitializeOrder:
    """Checks for models that are wrapped or cast before they are passed to amp.initialize."""

    def __init__(self, program: MigratedProgram, report: ScriptFindings) -> None:
        self._program = program
        self._report = report
        self._initialize = set(program.amp_calls("initialize"))
        self._wraps = set(program.calls_of(*_WRAPPERS))
        self._paths = Paths(program.script, self._matters, _nothing)

    def check(self) -> None:
        for function in self._program.script.functions:
            try:
                paths = self._paths.through(function)
            except TooManyPaths:
                continue
            for path in paths:
                self._along(path)

    def _matters(self, call: cst.Call) -> bool:
        return call in self._initialize or call in self._wraps or method(call) == "half"

    def _along(self, path: tuple[Step, ...]) -> None:
        state: dict[str, str] = {}
        for call in path:
            if not isinstance(call, cst.Call):
                continue
            if call in self._initialize:
                models = argument(call, "models", 0)
                for model in self._models(models):
                    if model in state:
                        self._report.add(
                            "apex-initialize-order", call, model=model, state=state[model]
                        )
                continue
            changed = "cast by .half()" if method(call) == "half" else "wrapped"
            targets = self._program.script.assigned_to(call)
            if method(call) == "half":
                targets = [*targets, self._program.script.code(receiver(call))]
            state |= dict.fromkeys(targets, changed)

    def _models(self, models: cst.BaseExpression | None) -> list[str]:
        if isinstance(models, cst.List | cst.Tuple):
            return [self._program.script.code(element.value) for element in models.elements]
        return [] if models is None else [self._program.script.code(models)]


def _nothing(_: cst.Call) -> Mapping[str, bool]:
    return {}
