"""The rules of `hpc-amp migrate`: what is found, why it is found, and what to write instead.

`{new}` is the new text, `{code}` the old one, other fields are explained by their names. The ids
are stable. docs/migrate.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

_WRITE = "write: {new}"
_AUTOCAST = 'torch.autocast("cuda", dtype=torch.float16)'


@dataclass(frozen=True)
class Rule:
    """`message` says what is found and why it is wrong, `instead` what to do. `group` is a headline
    of the table. `note` is what has to be looked at behind a change that `--write` makes."""

    group: str
    message: str
    instead: str
    note: str = ""

    @property
    def mechanical(self) -> bool:
        """Whether there are places where `--write` makes the change."""
        return self.instead == _WRITE


_OLD = "Old torch.cuda.amp"
_APEX = "apex"
_APEX_USE = "apex.amp, used wrongly (also with hpc_amp.amp)"
_HAND = "Hand-made fp16"
_NATIVE = "torch.amp, used wrongly"

RULES: dict[str, Rule] = {
    # ---- old names ------------------------------------------------------------------------------
    "old-amp-import": Rule(
        _OLD, "`{code}`: torch.cuda.amp and torch.cpu.amp are deprecated since torch 2.4", _WRITE
    ),
    "old-autocast": Rule(
        _OLD,
        "`{code}`: deprecated since torch 2.4; in torch.amp the device comes first, so arguments "
        "by position need their names",
        _WRITE,
    ),
    "old-grad-scaler": Rule(
        _OLD, "`{code}`: deprecated since torch 2.4; torch.amp has it since 2.3", _WRITE
    ),
    "old-custom-function": Rule(
        _OLD, "`{code}`: deprecated since torch 2.4; the device has to be named", _WRITE
    ),
    "old-autocast-state": Rule(
        _OLD, "`{code}`: deprecated since torch 2.4; one function for all devices took over", _WRITE
    ),
    "old-amp-name": Rule(
        _OLD,
        "`{code}` is not a public name of torch.cuda.amp",
        "torch.amp has autocast, GradScaler, custom_fwd and custom_bwd; write what it is needed "
        "for with these",
    ),
    "star-import": Rule(
        _OLD,
        "`{code}`: {names}",
        "{twin}",
    ),
    # ---- apex -----------------------------------------------------------------------------------
    "apex-import": Rule(
        _APEX,
        "`{code}`: apex.amp and apex's DistributedDataParallel were removed from apex in May 2025",
        _WRITE,
    ),
    "apex-amp": Rule(_APEX, "`{code}`: apex.amp was removed from apex in May 2025", _WRITE),
    "apex-ddp": Rule(
        _APEX,
        "`{code}`: apex's class was removed in May 2025; torch's overlaps by itself, and sends "
        "buffers around unless told not to",
        _WRITE,
        "apex did not mind parameters that never get a gradient, torch's stops with an error at "
        "the second pass: where there are some, find_unused_parameters=True (which is not for "
        "reentrant checkpoints, nor for several passes before one backward), or requires_grad_("
        "False) on them; torch 2.13 calls broadcast_buffers forward_sync_buffers, and warns",
    ),
    "apex-syncbn": Rule(
        _APEX,
        "`{code}`: apex's was removed in May 2025; torch has had its own since 1.1",
        _WRITE,
    ),
    "apex-amp-name": Rule(
        _APEX,
        "`{code}` is no part of the documented API of apex.amp 1.0",
        "{twin}",
    ),
    "apex-old-api": Rule(
        _APEX,
        "`{code}`: the handle API of apex before 1.0 (March 2019); 1.0 refuses it",
        'call `model, optimizer = amp.initialize(model, optimizer, opt_level="O1")` once, and '
        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`",
    ),
    "apex-optimizer": Rule(
        _APEX,
        "`{code}`: {state}; {difference}",
        "{twin}; checkpoints do not carry over",
    ),
    "apex-fp16-utils": Rule(
        _APEX,
        "`{code}`: apex.fp16_utils is fp16 by hand, from before amp; it was removed from apex in "
        "May 2025",
        "{twin}",
    ),
    "apex-unused": Rule(
        _APEX,
        "`{code}`: nothing in this file uses it{fails}",
        "delete it, unless it is there to see whether apex is installed, or for other files",
    ),
    "apex-other": Rule(
        _APEX,
        "`{code}`: no mixed precision, so it is left to you; {state}",
        "{twin}",
    ),
    "apex-still-needed": Rule(_APEX, "`{code}`: {why}", "{twin}"),
    "apex-extension": Rule(
        _APEX,
        "`{code}`: a compiled part of apex, for its own use; {state}",
        "hpc_amp.amp needs none of it; {twin}",
    ),
    "apex-to-native": Rule(_APEX, "`{code}`: asked for with --to native", "{twin}"),
    # ---- apex.amp, used wrongly -----------------------------------------------------------------
    "apex-opt-level": Rule(
        _APEX_USE,
        "opt_level={code} does not exist: the levels are a capital letter O and a digit",
        'one of "O0", "O1", "O2", "O3"',
    ),
    "apex-o1-override": Rule(
        _APEX_USE,
        "{option} cannot be given with O1, not even as False: O1 casts around functions, and the "
        "weights stay fp32",
        "leave it out, or take O2",
    ),
    "apex-initialize-order": Rule(
        _APEX_USE,
        "`{model}` is {state} before amp.initialize, which refuses it",
        "the order is: model to the GPU, optimizer, amp.initialize, then DistributedDataParallel; "
        "no .half()",
    ),
    "apex-inside-scale-loss": Rule(
        _APEX_USE,
        "`{code}` inside `with amp.scale_loss(...)`: the gradients are unscaled at its end only",
        "move it behind the block",
    ),
    "apex-unscaled-backward": Rule(
        _APEX_USE,
        "`{code}` inside `with amp.scale_loss(...) as {scaled}`: this loss is not the scaled one, "
        "but its gradients will be divided by the scale",
        "{scaled}.backward()",
    ),
    "apex-clip": Rule(
        _APEX_USE,
        "`{code}`: with O2 these are the fp16 copies, still scaled; the optimizer steps on masters",
        "clip amp.master_params(optimizer), behind the scale_loss block",
    ),
    "apex-state-not-saved": Rule(
        _APEX_USE,
        "this checkpoint has the optimizer's state, but nothing here saves the loss scale: a "
        "resume starts at 65536 and skips steps",
        'add "amp": amp.state_dict(); load it after amp.initialize, model and optimizer',
    ),
    # ---- hand-made fp16 -------------------------------------------------------------------------
    "half-model": Rule(
        _HAND,
        "`{code}`: the weights are fp16, where an update below about 1/2000 of a weight is lost; "
        "GradScaler refuses their gradients",
        f"leave it out and run forward and loss under `with {_AUTOCAST}:` with a "
        "torch.amp.GradScaler",
    ),
    "half-tensor": Rule(
        _HAND,
        "`{code}`: a cast by hand; under autocast each operation casts for itself, and one that "
        "needs fp32 gets it",
        f"leave it out, and put the forward pass under `with {_AUTOCAST}:`",
    ),
    "half-default": Rule(
        _HAND,
        "`{code}`: every new tensor is fp16, also losses, sums and statistics",
        f"leave it out, and put the forward pass under `with {_AUTOCAST}:`",
    ),
    "manual-loss-scale": Rule(
        _HAND,
        "`{code}`: a loss scaled by hand; nothing checks the gradients for infinity, and printed "
        "losses are scaled, too",
        'scaler = torch.amp.GradScaler("cuda"), then scaler.scale(loss).backward()',
    ),
    "manual-unscale": Rule(
        _HAND,
        "`{code}`: gradients unscaled by hand",
        "scaler.unscale_(optimizer) where gradients are looked at or clipped; scaler.step does it "
        "otherwise",
    ),
    "manual-master-weights": Rule(
        _HAND,
        "`{code}`: fp32 copies of the weights by hand",
        "leave the model in fp32 under autocast: it is its own master; or amp.initialize with O2 "
        "of hpc_amp.amp, which keeps masters",
    ),
    "manual-batchnorm-float": Rule(
        _HAND,
        "`{code}`: batch norm brought back to fp32 by hand",
        "not needed in an fp32 model under autocast; O2 of hpc_amp.amp does it itself",
    ),
    # ---- torch.amp, used wrongly ----------------------------------------------------------------
    "clip-before-unscale": Rule(
        _NATIVE,
        "`{code}`: the gradients are still multiplied by the scale, so the limit is as much too "
        "small",
        "put {scaler}.unscale_(optimizer) before it",
    ),
    "unscale-each-micro-batch": Rule(
        _NATIVE,
        "`{code}` also runs where no step follows; the second time before a step it raises",
        "unscale and clip only where {scaler}.step follows",
    ),
    "step-without-update": Rule(
        _NATIVE,
        "`{code}`, but no {scaler}.update() in this file: the second step "
        "raises, and the scale never changes",
        "{scaler}.update() once an iteration, after all steps",
    ),
    "optimizer-step-past-scaler": Rule(
        _NATIVE,
        "`{code}` after {scaler}.scale(...).backward(): it steps on scaled gradients, also on "
        "infinite ones",
        "{scaler}.step({optimizer}), then {scaler}.update()",
    ),
    "scheduler-after-skipped-step": Rule(
        _NATIVE,
        "`{code}` after every {scaler}.step, also where the step was skipped, as the first ones "
        "often are: the schedule runs ahead, and torch warns about the order",
        "scale = {scaler}.get_scale() before {scaler}.update(), and step the schedule only if "
        "{scaler}.get_scale() >= scale after it",
    ),
    "scaler-in-loop": Rule(
        _NATIVE,
        "`{code}` in a loop: the scale starts at 65536 in every turn and never adapts",
        "make it once, before the loop",
    ),
    "scaler-not-saved": Rule(
        _NATIVE,
        "this checkpoint has the optimizer's state, but nothing here saves the scaler's: a resume "
        "starts at 65536 and skips steps",
        'add "scaler": {scaler}.state_dict(), and load it',
    ),
    "scaler-not-loaded": Rule(
        _NATIVE,
        "`{code}` is saved, but nothing here loads it",
        "{scaler}.load_state_dict(...) where the optimizer's is loaded",
    ),
    "fp16-without-scaler": Rule(
        _NATIVE,
        "`{code}` with fp16 autocast, and no GradScaler in this file: small gradients become zero",
        'scaler = torch.amp.GradScaler("cuda"), scaler.scale(loss).backward(), '
        "scaler.step(optimizer), scaler.update(); or dtype=torch.bfloat16, which needs none",
    ),
    "scaler-with-bf16": Rule(
        _NATIVE,
        "`{code}`, but all autocast here is bfloat16, which has the range of fp32",
        "leave the scaler out, or enabled=False",
    ),
    "backward-in-autocast": Rule(
        _NATIVE,
        "`{code}` under autocast: backward runs its operations in the types of the forward pass by "
        "itself, and torch advises against it",
        "end the autocast block before it",
    ),
    "bce-fp16": Rule(
        _NATIVE,
        "`{code}`: binary_cross_entropy raises under CUDA autocast, and under apex's O1",
        "binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss) on values before the sigmoid, "
        "without the sigmoid in the model",
    ),
}
