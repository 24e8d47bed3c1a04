"""`--to native`: what takes the place of each function of apex.amp where its API is to go.

Nothing is changed there. O1 casts around every function of the whole process, a native autocast
only in its block, and where that has to begin and end a script does not say.
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
_NONE = "nothing native; stay with hpc_amp.amp, or go on as with O1: "
_LEVELS = {
    "O0": "leave it out: O0 is plain fp32",
    "O1": _O1,
    "O2": _NONE + _O1,
    "O3": _NONE + _O1,
}
_FUNCTIONS = {
    "scale_loss": (
        "scaler.scale(loss).backward(), and later scaler.step(optimizer) in place of "
        "optimizer.step(), then scaler.update() once an iteration; native scalers have one scale "
        "for all losses of an optimizer"
    ),
    "master_params": "scaler.unscale_(optimizer), then model.parameters()",
    "state_dict": "scaler.state_dict()",
    "load_state_dict": (
        "scaler.load_state_dict(...); of an old checkpoint, what "
        "hpc_amp.amp.grad_scaler_state_dict() returns after amp.load_state_dict"
    ),
    "disable_casts": 'torch.autocast("cuda", enabled=False)',
    "float_function": 'a function with its body under torch.autocast("cuda", enabled=False), and '
    "its inputs through .float()",
    "half_function": "a function whose inputs go through .half() under autocast",
    "promote_function": "nothing native: cast its inputs to the widest of their types",
    "register_float_function": 'torch.autocast("cuda", enabled=False) around its calls, and '
    ".float() on their inputs",
    "register_half_function": "nothing native: .half() on the inputs of its calls",
    "register_promote_function": "nothing native: cast the inputs of its calls",
}


def check_native(program: MigratedProgram, report: ScriptFindings) -> None:
    """Report every use of apex.amp, under either name of it."""
    for binding in program.names.bindings:
        if binding.path in _PACKAGES or binding.module in _PACKAGES:
            report.add("apex-to-native", binding.alias, twin="delete it when its uses are gone")
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
    return _LEVELS.get(said or "", f"where the level is O1: {_O1}; O2 and O3: nothing native")
