"""Rules about manual fp16, for scripts that train. A model for inference may be fp16."""

from __future__ import annotations

import math
import re

import libcst as cst

from hpc_amp.migrate.finding import ScriptFindings
from hpc_amp.migrate.program import HALF, MigratedProgram
from hpc_amp.migrate.script import method, receiver, text_of

_HALF_TENSORS = {"torch.HalfTensor", "torch.cuda.HalfTensor"}
_FLOAT_TENSORS = {"torch.FloatTensor", "torch.cuda.FloatTensor"}
_DEFAULTS = ("torch.set_default_dtype", "torch.set_default_tensor_type")
# loss_scale, args.static_loss_scale, scale_factor, SCALE; not `upscaled`, nor a scaler.
_SCALE = re.compile(r"(?:^|[_.])scale(?:$|[_.])|loss_?scal(?!er)", re.IGNORECASE)

# Words in a file with manual fp16. Without any of them, a factor of the loss is probably the weight
# of a task, or the fraction of a batch.
_BY_HAND = re.compile(
    r"fp_?16|float16|\bhalf\(|HalfTensor|mixed.?precision|overflow|underflow|LossScaler",
    re.IGNORECASE,
)
# Smaller numbers are weights of the loss, not loss scales.
_LEAST_SCALE = 64


def check_half(program: MigratedProgram, report: ScriptFindings) -> None:
    """All rules of this module."""
    if not program.trains:
        return
    for call in program.script.calls:
        _cast(program, call, report)
        _scaled_backward(program, call, report)
        _unscaling_call(program, call, report)
        _batch_norm(program, call, report)
    for assign in program.script.all(cst.Assign):
        _scaled_loss(program, assign, report)
        _unscaling_assign(program, assign, report)
    for change in program.script.all(cst.AugAssign):
        _changed_in_place(program, change, report)
    for copies in program.script.all(cst.ListComp):
        _masters(program, copies, report)


def _cast(program: MigratedProgram, call: cst.Call, report: ScriptFindings) -> None:
    if program.names.of(call.func) in _DEFAULTS and any(_is_half(program, a) for a in call.args):
        report.add("half-default", call)
    elif not _is_cast(program, call):
        return
    elif _is_of_model(program, call):
        report.add("half-model", call)
    elif program.script.assigned_to(call) or not _is_made_here(program, call):
        report.add("half-tensor", call)


def _is_cast(program: MigratedProgram, call: cst.Call) -> bool:
    """Whether a call casts a value to fp16 that is used in computations."""
    by_name = method(call) == "half" and not call.args
    by_type = method(call) in ("to", "type") and any(_is_half(program, arg) for arg in call.args)
    return (by_name or by_type) and not _is_stored_or_undone(program, call)


def _is_of_model(program: MigratedProgram, cast: cst.Call) -> bool:
    targets = program.script.assigned_to(cast)
    return bool(program.models & {*targets, program.script.code(receiver(cast))})


def _is_stored_or_undone(program: MigratedProgram, call: cst.Call) -> bool:
    """Whether a cast only reduces the size of a file, or `.half().float()` only rounds."""
    above = program.script.parent(call)
    if isinstance(above, cst.Attribute) and above.attr.value == "float":
        return True
    return any(
        isinstance(one, cst.Dict)
        or (isinstance(one, cst.Call) and program.names.of(one.func) == "torch.save")
        for one in program.script.ancestors(call)
    )


def _is_made_here(program: MigratedProgram, call: cst.Call) -> bool:
    """Whether the value comes from an unknown function, which may return a model for inference."""
    base = receiver(call)
    while isinstance(base, cst.Call) and method(base):
        base = receiver(base)
    return isinstance(base, cst.Call) and not program.names.of(base.func).startswith("torch.")


def _is_half(program: MigratedProgram, arg: cst.Arg) -> bool:
    name = program.names.of(arg.value) or text_of(arg.value) or ""
    return name in HALF | _HALF_TENSORS


def _is_scale(program: MigratedProgram, node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Name | cst.Attribute):
        named = _SCALE.search(program.script.code(node)) is not None
        return named and not _is_weight(program, node)
    return _is_power_of_two(node) and any(
        _is_cast(program, call) and _is_of_model(program, call) for call in program.script.calls
    )


def _is_weight(program: MigratedProgram, node: cst.Name | cst.Attribute) -> bool:
    """Whether the code around a scale shows that it is a weight of the loss.

    This is so if it is a quotient (a fraction of a batch, accumulated steps) or a small number.
    """
    text = program.script.code(node)
    around = program.function_around(node)
    inside = program.script.module if around is None else around
    values = [
        assign.value
        for assign in program.script.all(cst.Assign, inside)
        if any(program.script.code(target.target) == text for target in assign.targets)
    ]
    values += [
        parameter.default
        for parameter in program.script.all(cst.Param, inside)
        if parameter.name.value == text and parameter.default is not None
    ]
    for value in values:
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
            return True
        if isinstance(value, cst.Integer | cst.Float) and value.evaluated_value < _LEAST_SCALE:
            return True
    return False


def _is_power_of_two(node: cst.CSTNode) -> bool:
    """Whether it is a number that is a loss scale where the weights are fp16: 128, 1024.0, 2**10.
    Smaller ones may be parts of a batch, or the weight of a loss."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        base = node.left
        return isinstance(base, cst.Integer | cst.Float) and base.evaluated_value == 2
    if not isinstance(node, cst.Integer | cst.Float):
        return False
    value = node.evaluated_value
    return value >= _LEAST_SCALE and math.log2(value).is_integer()


def _times_scale(program: MigratedProgram, node: cst.BaseExpression, result: str = "") -> bool:
    """Whether an expression is `loss * loss_scale`, or its result is called a loss."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return False
    sides = (node.left, node.right)
    texts = (result, *(program.script.code(side) for side in sides))
    return (
        any(map(_is_loss, texts))
        and any(_is_scale(program, side) for side in sides)
        and _scales_by_hand(program, node)
    )


def _is_loss(text: str) -> bool:
    """Whether something is called a loss, and not the scale of one."""
    return "loss" in text and not _SCALE.search(text)


def _scales_by_hand(program: MigratedProgram, node: cst.CSTNode) -> bool:
    """Whether a loss may be scaled by hand at a place: the file makes fp16, and in the same class,
    or outside of all classes, nothing scales for it."""
    if not _BY_HAND.search(program.script.text):
        return False
    around = program.class_around(node)
    scalings = [call for call in program.script.calls if program.scaler_of(call)]
    scalings += program.amp_calls("scale_loss")
    return all(program.class_around(call) is not around for call in scalings)


def _scaled_backward(program: MigratedProgram, call: cst.Call, report: ScriptFindings) -> None:
    if method(call) == "backward" and _times_scale(program, receiver(call)):
        report.add("manual-loss-scale", call)


def _scaled_loss(program: MigratedProgram, assign: cst.Assign, report: ScriptFindings) -> None:
    targets = " ".join(program.script.code(target) for target in assign.targets)
    if _times_scale(program, assign.value, targets):
        report.add("manual-loss-scale", assign)


def _changed_in_place(
    program: MigratedProgram, change: cst.AugAssign, report: ScriptFindings
) -> None:
    if not _is_scale(program, change.value):
        return
    target = program.script.code(change.target)
    by_hand = isinstance(change.operator, cst.MultiplyAssign) and _scales_by_hand(program, change)
    if by_hand and _is_loss(target):
        report.add("manual-loss-scale", change)
    if isinstance(change.operator, cst.DivideAssign) and _is_gradient(target):
        report.add("manual-unscale", change)


def _is_gradient(text: str) -> bool:
    return re.search(r"\.grad(?:\.data)?(?:\.float\(\))?$", text) is not None


def _unscaling_call(program: MigratedProgram, call: cst.Call, report: ScriptFindings) -> None:
    """`p.grad.div_(loss_scale)`, `p.grad.mul_(1 / loss_scale)`"""
    if method(call) not in ("div_", "mul_") or not call.args:
        return
    factor = call.args[0]
    kinds = (cst.Name, cst.Attribute, cst.Integer, cst.Float)
    by_scale = any(
        _is_scale(program, n) for kind in kinds for n in program.script.all(kind, factor)
    )
    if by_scale and _is_gradient(program.script.code(receiver(call))):
        report.add("manual-unscale", call)


def _unscaling_assign(program: MigratedProgram, assign: cst.Assign, report: ScriptFindings) -> None:
    value = assign.value
    if (
        isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Divide)
        and _is_scale(program, value.right)
        and _is_gradient(program.script.code(value.left))
    ):
        report.add("manual-unscale", assign)


def _masters(program: MigratedProgram, copies: cst.ListComp, report: ScriptFindings) -> None:
    source = copies.for_in.iter
    if not (isinstance(source, cst.Call) and method(source) == "parameters"):
        return
    for call in program.script.all(cst.Call, copies.elt):
        to_type = method(call) in ("type", "to") and any(
            program.names.of(arg.value) in {"torch.float32", "torch.float", *_FLOAT_TENSORS}
            for arg in call.args
        )
        if to_type or method(call) == "float":
            report.add("manual-master-weights", copies)


def _batch_norm(program: MigratedProgram, call: cst.Call, report: ScriptFindings) -> None:
    """`if isinstance(m, nn.BatchNorm2d): m.float()`"""
    if method(call) != "float" or call.args:
        return
    module = program.script.code(receiver(call))
    for above in program.script.ancestors(call):
        if isinstance(above, cst.If):
            test = program.script.code(above.test)
            if re.search(rf"isinstance\({re.escape(module)},.*BatchNorm", test):
                report.add("manual-batchnorm-float", call)
