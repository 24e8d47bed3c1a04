"""Rules about mistakes with torch.amp that do not depend on the order of calls."""

from __future__ import annotations

import libcst as cst

from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.program import AUTOCASTS, GRAD_SCALERS, HALF, MigratedProgram
from hpc_amp.migrate.script import argument, method, text_of

_BCE_FUNCTION = "torch.nn.functional.binary_cross_entropy"
_BCE_CLASS = "torch.nn.BCELoss"


def check_torch(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    _update(program, report)
    _in_loop(program, report)
    _checkpoint(program, report)
    _range(program, report)
    _inside_autocast(program, report)


def _update(program: MigratedProgram, report: ScriptFindings) -> None:
    updated = program.on("update")
    for call, scaler in program.methods("step"):
        known = scaler in program.scalers and scaler not in updated
        if known and not program.is_handed_on(scaler):
            report.add("step-without-update", call, scaler=scaler)


def _in_loop(program: MigratedProgram, report: ScriptFindings) -> None:
    for call in program.calls_of(*GRAD_SCALERS):
        for above in program.script.ancestors(call):
            if isinstance(above, cst.FunctionDef):
                break
            if isinstance(above, cst.For | cst.While):
                if any(method(one) == "backward" for one in program.script.all(cst.Call, above)):
                    report.add("scaler-in-loop", call)
                break


def _checkpoint(program: MigratedProgram, report: ScriptFindings) -> None:
    saved, loaded = program.on("state_dict"), program.on("load_state_dict")
    mine = program.own_scalers
    if any(program.is_handed_on(scaler, within_file=False) for scaler in mine):
        return
    if mine and not program.scalers & saved:
        for checkpoint in program.saves_optimizer():
            report.add("scaler-not-saved", checkpoint, scaler=min(mine))
    if loaded & program.optimizers and not program.scalers & loaded:
        for call, scaler in program.methods("state_dict"):
            if scaler in mine:
                report.add("scaler-not-loaded", call, scaler=scaler)


def _range(program: MigratedProgram, report: ScriptFindings) -> None:
    """Check that fp16 has a scaler and that bfloat16 has none."""
    casts = [call for call in program.calls_of(*AUTOCASTS) if not program.is_disabled(call)]
    types = {program.dtype_of(call) for call in casts}
    if types == {"torch.bfloat16"}:
        for call in program.calls_of(*GRAD_SCALERS):
            if argument(call, "enabled") is None:
                report.add("scaler-with-bf16", call)
    fp16 = any(_on_gpu(program, call) and program.dtype_of(call) in {"", *HALF} for call in casts)
    if not fp16 or "scaler" in program.script.text.lower() or program.amp_calls("scale_loss"):
        return
    for call, _ in program.methods("backward"):
        # engine.backward(loss) belongs to a framework, which scales the loss.
        if not any(arg.keyword is None for arg in call.args):
            report.add("fp16-without-scaler", call)


def _on_gpu(program: MigratedProgram, autocast: cst.Call) -> bool:
    name = program.names.of(autocast.func)
    if name == "torch.amp.autocast":
        return text_of(argument(autocast, "device_type", 0)) == "cuda"
    return name == "torch.cuda.amp.autocast"


def _inside_autocast(program: MigratedProgram, report: ScriptFindings) -> None:
    """Check for calls that must not run under autocast."""
    criteria = [
        target
        for call in program.calls_of(_BCE_CLASS)
        for target in program.script.targets_of(call)
    ]
    for call in program.script.calls:
        around = program.autocast_around(call)
        if around is None:
            continue
        if method(call) == "backward" and not any(arg.keyword is None for arg in call.args):
            report.add("backward-in-autocast", call)
        is_bce = program.names.of(call.func) == _BCE_FUNCTION or any(
            program.script.code(one) == program.script.code(call.func)
            and program.is_same_variable(one, call.func)
            for one in criteria
        )
        if is_bce and _on_gpu(program, around):
            report.add("bce-fp16", call)
    for call in program.amp_calls("initialize"):
        level = argument(call, "opt_level", 3)
        if level is None or text_of(level) == "O1":
            for bce in program.calls_of(_BCE_FUNCTION, _BCE_CLASS):
                report.add("bce-fp16", bce)
