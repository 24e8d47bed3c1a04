"""Rules about parts of apex without an exact replacement: what to use instead."""

from __future__ import annotations

import libcst as cst

from hpc_amp.migrate.apex_parts import EXTENSIONS, part
from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.moves import APEX_AMP, apex_parallel
from hpc_amp.migrate.names import STAR_IMPORTS, Reference, canonical, module_of
from hpc_amp.migrate.program import MigratedProgram
from hpc_amp.migrate.script import argument

# How the optimizers differ from those of torch.
_DIFFERENCES = {
    "FusedAdam": "it is AdamW unless adam_w_mode=False, and its default weight decay is 0",
    "FusedSGD": "torch.optim.SGD computes the same",
    "FusedAdagrad": "torch.optim.Adagrad computes the same",
    "FusedLAMB": "torch has no LAMB; this one clips all gradients together at max_grad_norm, "
    "which is 1.0 by default",
    "FusedMixedPrecisionLamb": "torch has no LAMB; this one clips all gradients together at "
    "max_grad_norm, which is 1.0 by default",
    "FusedNovoGrad": "torch has no NovoGrad",
    "FP16_Optimizer": "it is manual fp16, older than amp",
}
_OTHER_OPTIMIZER = "torch may not have an equivalent"
# Arguments of FusedAdam that change the result and that torch does not have. The first two exist
# before August 2019 and in apex.contrib.optimizers.
_ADAM_ONLY = {
    "max_grad_norm": "torch does not clip: call torch.nn.utils.clip_grad_norm_(parameters, "
    "{value}) before step()",
    "eps_inside_sqrt": "torch adds eps outside the root",
    "bias_correction": "torch always corrects the bias",
}
# Values of these arguments with which torch computes the same.
_HARMLESS = {
    "max_grad_norm": ("0", "0.0", "0."),
    "eps_inside_sqrt": ("False",),
    "bias_correction": ("True",),
}
_FP16_UTILS = {
    "FP16_Optimizer": (
        'amp.initialize(model, optimizer, opt_level="O2") of hpc_amp.amp; optimizer.backward(loss) '
        "becomes `with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`"
    ),
    "network_to_half": 'amp.initialize(..., opt_level="O2") of hpc_amp.amp casts the model',
    "BN_convert_float": "O2 of hpc_amp.amp keeps batch norm in fp32",
    "prep_param_lists": "O2 of hpc_amp.amp keeps the masters; clip amp.master_params(optimizer)",
    "model_grads_to_master_grads": "remove it: optimizer.step() with O2 does it",
    "master_params_to_model_params": "remove it: optimizer.step() with O2 does it",
    "clip_grad_norm": "torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), ...)",
    "to_python_float": "loss.item()",
}
_FP16_METHODS = {
    "backward": "with amp.scale_loss(loss, {optimizer}) as scaled_loss: scaled_loss.backward()",
    "update_master_grads": "remove it: the end of the scale_loss block does it",
    "clip_master_grads": "torch.nn.utils.clip_grad_norm_(amp.master_params({optimizer}), ...)",
}
_FP16_REST = (
    'amp.initialize(..., opt_level="O2") of hpc_amp.amp, which replaces all of apex.fp16_utils'
)
# exchange.py handles these names, and the imports that bind them.
_MOVES = {**APEX_AMP, **apex_parallel((2, 4))}
_NAMED = {name for name, move in _MOVES.items() if move.keeps_name}


def check_apex_parts(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    for use in program.names.references:
        package = use.name.partition(".")[0]
        if package == "apex":
            _use(program, use, report)
        elif package in EXTENSIONS:
            known = EXTENSIONS[package]
            report.add("apex-extension", use.node, state=known.state, twin=known.twin)
    for binding in program.names.bindings:
        extension = EXTENSIONS.get(binding.path.partition(".")[0])
        if extension is not None and not program.names.uses_of(binding):
            report.add("apex-extension", binding.alias, state=extension.state, twin=extension.twin)
        is_apex = binding.path.partition(".")[0] == "apex"
        if is_apex and binding.path not in _NAMED and not program.names.uses_of(binding):
            state = part(binding.module or binding.path)
            fails = f", and it was {state.state}: the import fails" if state.gone else ""
            report.add("apex-unused", binding.alias, fails=fails)
    _star_imports(program, report)
    _old_handles(program, report)
    _old_optimizers(program, report)


def _star_imports(program: MigratedProgram, report: ScriptFindings) -> None:
    for statement in program.names.statements:
        if not isinstance(statement, cst.ImportFrom):
            continue
        module = module_of(statement)
        package = canonical(f"{module}.x").removesuffix(".x")
        old = package.partition(".")[0] == "apex" or package in ("torch.cuda.amp", "torch.cpu.amp")
        if not (old and isinstance(statement.names, cst.ImportStar)):
            continue
        uses = [use for use in program.names.references if use.star is statement]
        used = ", ".join(dict.fromkeys(use.local for use in uses))
        if used:
            names, twin = f"this file uses {used} from it", f"from {module} import {used}"
        elif package in STAR_IMPORTS:
            names, twin = "this file uses none of its names", "delete it"
        else:
            names = "its names are not known, so they are not checked"
            twin = "import the names that are used"
        if package.startswith("apex.") and part(package).gone:
            names += f"; {part(package).state}: the import fails"
            twin = "replace what this file uses from it, then delete it" if used else "delete it"
        report.add("star-import", statement, names=names, twin=twin)


def _use(program: MigratedProgram, use: Reference, report: ScriptFindings) -> None:
    above = program.script.parent(use.node)
    call = above if isinstance(above, cst.Call) and above.func is use.node else None
    place = use.node if call is None else call
    package, _, name = use.name.removeprefix("apex.").partition(".")
    if any(f"{use.name}.".startswith(f"{done}.") for done in _MOVES):
        return
    known = part(use.name)
    if package == "optimizers" or use.name.startswith("apex.contrib.optimizers."):
        name = name.rpartition(".")[2]
        difference = _DIFFERENCES.get(name, _OTHER_OPTIMIZER)
        twin = _adam(program, call) if name == "FusedAdam" else known.twin
        report.add("apex-optimizer", place, state=known.state, difference=difference, twin=twin)
    elif package == "fp16_utils":
        report.add("apex-fp16-utils", place, twin=_FP16_UTILS.get(name, _FP16_REST))
    else:
        report.add("apex-other", place, state=known.state, twin=known.twin)


def _adam(program: MigratedProgram, call: cst.Call | None) -> str:
    if call is None:
        return "torch.optim.AdamW, or torch.optim.Adam if adam_w_mode=False"
    mode, decay = argument(call, "adam_w_mode", 5), argument(call, "weight_decay", 6)
    is_open = any(arg.star for arg in call.args)
    code = program.script.code
    is_adam_w = "adam_w_mode" if is_open else "True"
    if mode is not None:
        is_adam_w = code(mode)
    name = {"True": "torch.optim.AdamW", "False": "torch.optim.Adam"}.get(is_adam_w)
    name = name or f"torch.optim.AdamW if {is_adam_w} else torch.optim.Adam"
    amount = "0.0" if decay is None else code(decay)
    if decay is None and is_open:
        amount = "... (default 0.0)"
    parts = [f"{name}(..., weight_decay={amount})"]
    for option, text in _ADAM_ONLY.items():
        value = argument(call, option)
        if value is not None and code(value) not in _HARMLESS[option]:
            parts.append(text.format(value=code(value)))
    return "; ".join([*parts, "fused=True for one kernel"])


def _old_handles(program: MigratedProgram, report: ScriptFindings) -> None:
    """Report the handles from amp.init() and the optimizers that they wrap."""
    for call in program.amp_calls("init"):
        report.add("apex-old-api", call)
    handles = program.made_by(program.amp_calls("init"))
    wrapped: set[str] = set()
    for call, text in program.methods("wrap_optimizer", "scale_loss", "reset"):
        if text in handles:
            report.add("apex-old-api", call)
            wrapped |= program.made_by([call])
    for call, text in program.methods("scale_loss"):
        if text in wrapped:
            report.add("apex-old-api", call)


def _old_optimizers(program: MigratedProgram, report: ScriptFindings) -> None:
    """Report the methods that only FP16_Optimizer has."""
    packages = ("apex.fp16_utils", "apex.optimizers", "apex.contrib.optimizers")
    made = program.made_by(program.calls_of(*(f"{one}.FP16_Optimizer" for one in packages)))
    for call, text in program.methods(*_FP16_METHODS):
        if text in made:
            twin = _FP16_METHODS[cst.ensure_type(call.func, cst.Attribute).attr.value]
            report.add("apex-fp16-utils", call, twin=twin.format(optimizer=text))
