"""The rules of `hpc-amp migrate`: what is found, why it is wrong, and what to write instead.

In the texts, `{code}` is the old code and `{new}` the new code. The ids of rules do not change.
docs/migrate.md has a table of all rules.
"""

from __future__ import annotations

from dataclasses import dataclass

_WRITE = "write: {new}"
_AUTOCAST = 'torch.autocast("cuda", dtype=torch.float16)'


@dataclass(frozen=True)
class Rule:
    """A rule.

    `group` is a heading in the table, `message` says what is found and why it is wrong, `instead`
    says what to write. `note` says what to check after a change by `--write`.
    """

    group: str
    message: str
    instead: str
    note: str = ""

    @property
    def mechanical(self) -> bool:
        """Whether `--write` can make the change."""
        return self.instead == _WRITE


_OLD = "Old torch.cuda.amp"
_APEX = "apex"
_APEX_USE = "Mistakes with apex.amp (also with hpc_amp.amp)"
_HAND = "Manual fp16"
_NATIVE = "Mistakes with torch.amp"
_RANKS = "Ranks and GPUs"

RULES: dict[str, Rule] = {
    # ---- old names ------------------------------------------------------------------------------
    "old-amp-import": Rule(
        _OLD, "`{code}`: torch.cuda.amp and torch.cpu.amp are deprecated since torch 2.4", _WRITE
    ),
    "old-autocast": Rule(
        _OLD,
        "`{code}`: deprecated since torch 2.4; the device is the first argument of torch.amp, so "
        "positional arguments must become keywords",
        _WRITE,
    ),
    "old-grad-scaler": Rule(
        _OLD, "`{code}`: deprecated since torch 2.4; torch.amp has it since torch 2.3", _WRITE
    ),
    "old-custom-function": Rule(
        _OLD, "`{code}`: deprecated since torch 2.4; the device is now an argument", _WRITE
    ),
    "old-autocast-state": Rule(
        _OLD,
        "`{code}`: deprecated since torch 2.4; there is now one function for all devices",
        _WRITE,
    ),
    "old-amp-name": Rule(
        _OLD,
        "`{code}` is not a public name of torch.cuda.amp",
        "use autocast, GradScaler, custom_fwd and custom_bwd of torch.amp",
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
        "`{code}`: this class was removed from apex in May 2025; the class of torch overlaps "
        "communication automatically and broadcasts buffers by default",
        _WRITE,
        "if some parameters never get a gradient, torch fails in the second step (apex did not): "
        "use find_unused_parameters=True (not with reentrant checkpoints, and not with several "
        "forward passes before one backward), or requires_grad_(False) on these parameters; torch "
        "2.13 warns that broadcast_buffers is now called forward_sync_buffers",
    ),
    "apex-syncbn": Rule(
        _APEX,
        "`{code}`: removed from apex in May 2025; torch has the same since 1.1",
        _WRITE,
    ),
    "apex-amp-name": Rule(
        _APEX,
        "`{code}` is not in the documented API of apex.amp 1.0",
        "{twin}",
    ),
    "apex-old-api": Rule(
        _APEX,
        "`{code}`: the handle API of apex before 1.0 (March 2019), which 1.0 refuses",
        'call `model, optimizer = amp.initialize(model, optimizer, opt_level="O1")` once, and '
        "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`",
    ),
    "apex-optimizer": Rule(
        _APEX,
        "`{code}`: {state}; {difference}",
        "{twin}; the state in checkpoints is not compatible",
    ),
    "apex-fp16-utils": Rule(
        _APEX,
        "`{code}`: apex.fp16_utils (manual fp16) was removed from apex in May 2025",
        "{twin}",
    ),
    "apex-unused": Rule(
        _APEX,
        "`{code}`: this file does not use it{fails}",
        "delete it, unless it tests whether apex is installed, or other files need it",
    ),
    "apex-other": Rule(
        _APEX,
        "`{code}`: a part of apex without mixed precision, which is not changed; {state}",
        "{twin}",
    ),
    "apex-still-needed": Rule(_APEX, "`{code}`: {why}", "{twin}"),
    "apex-extension": Rule(
        _APEX,
        "`{code}`: an internal compiled module of apex; {state}",
        "hpc_amp.amp does not need it; {twin}",
    ),
    "apex-to-native": Rule(_APEX, "`{code}`: reported because of --to native", "{twin}"),
    # ---- apex.amp, used wrongly -----------------------------------------------------------------
    "apex-opt-level": Rule(
        _APEX_USE,
        "opt_level={code} does not exist: a level is the letter O and a digit",
        'use "O0", "O1", "O2" or "O3"',
    ),
    "apex-o1-override": Rule(
        _APEX_USE,
        "{option} cannot be used with O1, not even as False: O1 casts around functions and keeps "
        "the weights in fp32",
        "remove it, or use O2",
    ),
    "apex-initialize-order": Rule(
        _APEX_USE,
        "`{model}` is {state} before amp.initialize, which refuses it",
        "use this order: move the model to the GPU, create the optimizer, amp.initialize, "
        "DistributedDataParallel; do not use .half()",
    ),
    "apex-inside-scale-loss": Rule(
        _APEX_USE,
        "`{code}` inside `with amp.scale_loss(...)`: the gradients are unscaled only at its end",
        "move it after the block",
    ),
    "apex-unscaled-backward": Rule(
        _APEX_USE,
        "`{code}` inside `with amp.scale_loss(...) as {scaled}`: this loss is not scaled, but its "
        "gradients will be divided by the scale",
        "call {scaled}.backward()",
    ),
    "apex-clip": Rule(
        _APEX_USE,
        "`{code}`: with O2 these are the fp16 copies with scaled gradients; the optimizer updates "
        "the fp32 masters",
        "clip amp.master_params(optimizer), after the scale_loss block",
    ),
    "apex-state-not-saved": Rule(
        _APEX_USE,
        "this checkpoint has the state of the optimizer, but this file does not save the loss "
        "scale: after a resume, it starts at 65536 and steps are skipped",
        'add "amp": amp.state_dict(); load it after amp.initialize, the model and the optimizer',
    ),
    # ---- hand-made fp16 -------------------------------------------------------------------------
    "half-model": Rule(
        _HAND,
        "`{code}`: fp16 weights lose updates smaller than about 1/2000 of a weight, and GradScaler "
        "refuses their gradients",
        f"remove it, run the forward pass and the loss under `with {_AUTOCAST}:`, and use a "
        "torch.amp.GradScaler",
    ),
    "half-tensor": Rule(
        _HAND,
        "`{code}`: a manual cast; under autocast, each operation casts its inputs, and operations "
        "that need fp32 use it",
        f"remove it, and run the forward pass under `with {_AUTOCAST}:`",
    ),
    "half-default": Rule(
        _HAND,
        "`{code}`: every new tensor is fp16, also losses, sums and statistics",
        f"remove it, and run the forward pass under `with {_AUTOCAST}:`",
    ),
    "manual-loss-scale": Rule(
        _HAND,
        "`{code}`: manual loss scaling; the gradients are not checked for infinity, and printed "
        "losses are scaled too",
        'use scaler = torch.amp.GradScaler("cuda"), then scaler.scale(loss).backward()',
    ),
    "manual-unscale": Rule(
        _HAND,
        "`{code}`: manual unscaling of gradients",
        "call scaler.unscale_(optimizer) before gradients are read or clipped; otherwise "
        "scaler.step does it",
    ),
    "manual-master-weights": Rule(
        _HAND,
        "`{code}`: manual fp32 copies of the weights",
        "keep the model in fp32 and use autocast, which needs no copies; or use amp.initialize "
        "with O2 of hpc_amp.amp, which keeps fp32 masters",
    ),
    "manual-batchnorm-float": Rule(
        _HAND,
        "`{code}`: batch norm is cast back to fp32 manually",
        "remove it: an fp32 model under autocast does not need it, and O2 of hpc_amp.amp does it",
    ),
    # ---- torch.amp, used wrongly ----------------------------------------------------------------
    "clip-before-unscale": Rule(
        _NATIVE,
        "`{code}`: the gradients are still multiplied by the scale, so the limit is too small by "
        "the same factor",
        "call {scaler}.unscale_(optimizer) before it",
    ),
    "unscale-each-micro-batch": Rule(
        _NATIVE,
        "`{code}` also runs in iterations without a step; the second call before a step raises an "
        "error",
        "unscale and clip only in iterations with {scaler}.step",
    ),
    "step-without-update": Rule(
        _NATIVE,
        "`{code}` without {scaler}.update() in this file: the second step raises an error, and the "
        "scale never changes",
        "call {scaler}.update() once in each iteration, after all steps",
    ),
    "optimizer-step-past-scaler": Rule(
        _NATIVE,
        "`{code}` after {scaler}.scale(...).backward(): it uses scaled gradients, also infinite "
        "ones",
        "call {scaler}.step({optimizer}), then {scaler}.update()",
    ),
    "scheduler-after-skipped-step": Rule(
        _NATIVE,
        "`{code}` after every {scaler}.step, also after skipped steps (the first steps are often "
        "skipped): the schedule is ahead of the optimizer, and torch warns about the order",
        "set scale = {scaler}.get_scale() before {scaler}.update(), and step the schedule only if "
        "{scaler}.get_scale() >= scale after it",
    ),
    "scaler-in-loop": Rule(
        _NATIVE,
        "`{code}` in a loop: the scale starts at 65536 in every iteration and never adapts",
        "create it once, before the loop",
    ),
    "scaler-not-saved": Rule(
        _NATIVE,
        "this checkpoint has the state of the optimizer, but this file does not save that of the "
        "scaler: after a resume, the scale starts at 65536 and steps are skipped",
        'add "scaler": {scaler}.state_dict(), and load it',
    ),
    "scaler-not-loaded": Rule(
        _NATIVE,
        "`{code}` is saved, but this file does not load it",
        "call {scaler}.load_state_dict(...) where the state of the optimizer is loaded",
    ),
    "fp16-without-scaler": Rule(
        _NATIVE,
        "`{code}` with fp16 autocast, and no GradScaler in this file: small gradients become zero",
        'use scaler = torch.amp.GradScaler("cuda"), scaler.scale(loss).backward(), '
        "scaler.step(optimizer), scaler.update(); or dtype=torch.bfloat16, which needs no scaler",
    ),
    "scaler-with-bf16": Rule(
        _NATIVE,
        "`{code}`, but autocast in this file only uses bfloat16, which has the range of fp32",
        "remove the scaler, or use enabled=False",
    ),
    "backward-in-autocast": Rule(
        _NATIVE,
        "`{code}` under autocast: torch advises against it; backward always uses the types of the "
        "forward pass",
        "end the autocast block before it",
    ),
    "bce-fp16": Rule(
        _NATIVE,
        "`{code}`: binary_cross_entropy raises an error under CUDA autocast and under O1 of apex",
        "use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), and remove the sigmoid from "
        "the model",
    ),
    # ---- ranks ----------------------------------------------------------------------------------
    "local-rank-argument": Rule(
        _RANKS,
        "`{code}`: only the old torch.distributed.launch sets this option; with torchrun, srun and "
        "mpirun it is {default} in every rank, so all ranks of a node use the same GPU",
        'use default=int(os.environ.get("LOCAL_RANK", 0)), which torchrun and hpc-amp set',
    ),
}
