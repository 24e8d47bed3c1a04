"""`--to native`: what replaces each function of apex.amp without its API.

These uses are only reported. O1 casts around functions in the whole process, but native autocast
only in a block, and the script does not show where this block must begin and end.
"""

from __future__ import annotations

import libcst as cst

from hpc_amp.migrate.apex_parts import inside_amp
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.names import Reference
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import argument, text_of

_PACKAGES = ("apex.amp", "hpc_amp.amp")
_O1 = (
    'scaler = torch.amp.GradScaler("cuda"), and forward pass and loss, also of the evaluation, '
    'under `with torch.autocast("cuda", dtype=torch.float16):`'
)
_NONE = "there is no native equivalent; use hpc_amp.amp, or the equivalent of O1: "
_LEVELS = {
    "O0": "remove it: O0 is plain fp32",
    "O1": _O1,
    "O2": _NONE + _O1,
    "O3": _NONE + _O1,
}
_FUNCTIONS = {
    "scale_loss": (
        "scaler.scale(loss).backward(), and later scaler.step(optimizer) in place of "
        "optimizer.step(), then scaler.update() once in each iteration; a native scaler has one "
        "scale for all losses of an optimizer"
    ),
    "master_params": "scaler.unscale_(optimizer), then model.parameters()",
    "state_dict": "scaler.state_dict()",
    "load_state_dict": (
        "scaler.load_state_dict(...); for an old checkpoint, call amp.load_state_dict of "
        "hpc_amp.amp and load what hpc_amp.amp.grad_scaler_state_dict() returns"
    ),
    "disable_casts": 'torch.autocast("cuda", enabled=False)',
    "float_function": 'call .float() on the inputs, and run the body under torch.autocast("cuda", '
    "enabled=False)",
    "half_function": "call .half() on the inputs, under autocast",
    "promote_function": "no native equivalent: cast the inputs to the widest of their types",
    "register_float_function": 'use torch.autocast("cuda", enabled=False) around the calls, and '
    ".float() on their inputs",
    "register_half_function": "no native equivalent: call .half() on the inputs of its calls",
    "register_promote_function": "no native equivalent: cast the inputs of its calls",
}


def check_native(program: MigratedProgram, report: ScriptFindings) -> None:
    """Report every use of apex.amp and hpc_amp.amp."""
    for binding in program.names.bindings:
        if binding.path in _PACKAGES or binding.module in _PACKAGES:
            twin = "delete it when nothing uses it any more"
            report.add("apex-to-native", binding.alias, twin=twin)
    for use in program.names.references:
        package = next((one for one in _PACKAGES if use.name.startswith(f"{one}.")), None)
        if package is None:
            continue
        name = use.name.removeprefix(f"{package}.")
        if name == "initialize":
            report.add("apex-to-native", use.node, twin=_initialize(program, use))
        elif name in _FUNCTIONS:
            report.add("apex-to-native", use.node, twin=_FUNCTIONS[name])
        elif name != "init":
            report.add("apex-amp-name", use.node, twin=inside_amp(f"apex.amp.{name}"))


def _initialize(program: MigratedProgram, use: Reference) -> str:
    above = program.script.parent(use.node)
    level = None
    if isinstance(above, cst.Call) and above.func is use.node:
        level = argument(above, "opt_level", 3)
        if level is None:
            return _O1
    said = text_of(level)
    unknown = f"if the level is O1: {_O1}; O2 and O3 have no native equivalent"
    return _LEVELS.get(said or "", unknown)
