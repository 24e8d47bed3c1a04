"""The parts of apex: whether apex still has them, and what replaces them.

The entries come from the history of NVIDIA/apex up to commit 6424da3 (July 2026). A date is that of
the commit that removed the part: 8a7a332 (July 2022), cb65b8e (May 2025), 4fcca77 (January 2026),
526871a and 6424da3 (July 2026), 1904e48 (October 2019), 6e41291 (June 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

THERE = "apex still has it, compiled"
_PYTHON = "apex still has it"
_2019 = "moved to apex.contrib.optimizers in October 2019"
_JUNE_2022 = "removed from apex in June 2022"
_2022 = "removed from apex in July 2022"
_2025 = "removed from apex in May 2025"
_TRANSFORMER = "removed from apex in January 2026"
_2026 = "removed from apex in July 2026"
_UNKNOWN = "check whether your apex has it"


@dataclass(frozen=True)
class ApexPart:
    """A part of apex."""

    state: str
    """Whether apex still has it, as text."""
    twin: str
    """What to use instead."""

    @property
    def gone(self) -> bool:
        """Whether importing it fails with the current apex."""
        return self.state not in (THERE, _PYTHON, _UNKNOWN)


_ATTENTION = "torch.nn.functional.scaled_dot_product_attention, or torch.nn.MultiheadAttention"
_OWN_DEVICE = "keep it, or use an optimizer of torch.optim"
_NO_TWIN = "torch has no equivalent: keep it, or use another implementation"
_ZERO = "torch.distributed.optim.ZeroRedundancyOptimizer, or fully_shard of torch"

PARTS: dict[str, ApexPart] = {
    "apex": ApexPart(_UNKNOWN, "the equivalent in torch, if there is one"),
    "apex.amp": ApexPart(_2025, "hpc_amp.amp"),
    "apex.fp16_utils": ApexPart(_2025, 'amp.initialize(..., opt_level="O2") of hpc_amp.amp'),
    "apex.RNN": ApexPart(_2025, "torch.nn.LSTM, GRU, RNN; there is no mLSTM"),
    "apex.parallel": ApexPart(_2025, "torch.nn.parallel and torch.distributed"),
    "apex.parallel.DistributedDataParallel": ApexPart(
        _2025, "torch.nn.parallel.DistributedDataParallel"
    ),
    "apex.parallel.convert_syncbn_model": ApexPart(
        _2025, "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
    ),
    "apex.parallel.Reducer": ApexPart(
        _2025, "torch.distributed.all_reduce on each gradient, divided by the world size"
    ),
    "apex.parallel.ReduceOp": ApexPart(_2025, "torch.distributed.ReduceOp"),
    "apex.parallel.multiproc": ApexPart(_2025, "torchrun"),
    "apex.parallel.create_syncbn_process_group": ApexPart(
        _2025, "torch.distributed.new_group, in the same order on all ranks"
    ),
    "apex.parallel.SyncBatchNorm": ApexPart(
        _2025, "torch.nn.SyncBatchNorm, which has no channel_last and no fuse_relu"
    ),
    "apex.parallel.LARC": ApexPart(
        _2025, "torch has no equivalent: write an optimizer wrapper, which hpc_amp.amp accepts"
    ),
    "apex.reparameterization": ApexPart(_2022, "torch.nn.utils.parametrizations.weight_norm"),
    "apex.pyprof": ApexPart(_2022, "torch.profiler, or torch.autograd.profiler.emit_nvtx"),
    "apex.transformer": ApexPart(
        _TRANSFORMER, "Megatron Core, which it came from, or torch.distributed.tensor.parallel"
    ),
    "apex.normalization": ApexPart(
        THERE, "torch.nn.LayerNorm and, since torch 2.4, torch.nn.RMSNorm"
    ),
    "apex.mlp": ApexPart(THERE, "torch.nn.Sequential of torch.nn.Linear and an activation"),
    "apex.fused_dense": ApexPart(THERE, "torch.nn.Linear, and torch.nn.GELU between two of them"),
    "apex.multi_tensor_apply": ApexPart(
        THERE,
        "torch._foreach_norm, torch._foreach_mul_ and similar; the optimizers and clip_grad_norm_ "
        "of torch already use them",
    ),
    "apex.optimizers": ApexPart(_UNKNOWN, _OWN_DEVICE),
    "apex.optimizers.FusedAdam": ApexPart(THERE, "torch.optim.AdamW or Adam"),
    "apex.optimizers.FusedSGD": ApexPart(
        THERE, "torch.optim.SGD with the same arguments; fused=True for one kernel"
    ),
    "apex.optimizers.FusedAdagrad": ApexPart(
        THERE, "torch.optim.Adagrad with lr, eps and weight_decay; adagrad_w_mode has no equivalent"
    ),
    "apex.optimizers.FusedLAMB": ApexPart(THERE, _NO_TWIN),
    "apex.optimizers.FusedMixedPrecisionLamb": ApexPart(THERE, _NO_TWIN),
    "apex.optimizers.FusedNovoGrad": ApexPart(THERE, _NO_TWIN),
    "apex.optimizers.FP16_Optimizer": ApexPart(
        _2019, 'amp.initialize(model, optimizer, opt_level="O2") of hpc_amp.amp'
    ),
    "apex.contrib.optimizers": ApexPart(THERE, _OWN_DEVICE),
    "apex.contrib.optimizers.FP16_Optimizer": ApexPart(
        THERE, 'amp.initialize(model, optimizer, opt_level="O2") of hpc_amp.amp'
    ),
    "apex.contrib.optimizers.FusedLAMB": ApexPart(THERE, _NO_TWIN),
    "apex.contrib.optimizers.distributed_fused_adam": ApexPart(THERE, _ZERO),
    "apex.contrib.optimizers.distributed_fused_lamb": ApexPart(THERE, _ZERO),
    "apex.contrib.optimizers.distributed_fused_adam_v2": ApexPart(_JUNE_2022, _ZERO),
    "apex.contrib.optimizers.distributed_fused_adam_v3": ApexPart(_JUNE_2022, _ZERO),
    "apex.contrib.multihead_attn": ApexPart(_2026, _ATTENTION),
    "apex.contrib.fmha": ApexPart(_2026, _ATTENTION),
    "apex.contrib.gpu_direct_storage": ApexPart(_2026, "torch.cuda.gds"),
    "apex.contrib.xentropy": ApexPart(
        THERE,
        "torch.nn.functional.cross_entropy with label_smoothing, reduction='none' and, as "
        "padding_idx is 0 unless given, ignore_index=0",
    ),
    "apex.contrib.focal_loss": ApexPart(THERE, "keep it, or torchvision.ops.sigmoid_focal_loss"),
    "apex.contrib.clip_grad": ApexPart(THERE, "torch.nn.utils.clip_grad_norm_ with foreach=True"),
    "apex.contrib.layer_norm": ApexPart(THERE, "torch.nn.LayerNorm"),
    "apex.contrib.group_norm": ApexPart(THERE, "torch.nn.GroupNorm"),
    "apex.contrib.groupbn": ApexPart(THERE, "torch.nn.SyncBatchNorm, in channels_last"),
    "apex.contrib.cudnn_gbn": ApexPart(THERE, "torch.nn.SyncBatchNorm, in channels_last"),
    "apex.contrib.sparsity": ApexPart(
        _PYTHON, "keep it, or torch.sparse.to_sparse_semi_structured"
    ),
    **{
        f"apex.contrib.{name}": ApexPart(THERE, "the equivalent in torch, if there is one")
        for name in (
            "bottleneck", "conv_bias_relu", "index_mul_2d", "nccl_allocator", "peer_memory",
            "transducer",
        )
    },
    "apex.contrib.openfold_triton": ApexPart(_PYTHON, "the equivalent in torch, if there is one"),
    "apex.contrib.torchsched": ApexPart(_PYTHON, "the equivalent in torch, if there is one"),
}  # fmt: skip

_FOREACH = PARTS["apex.multi_tensor_apply"].twin
# The compiled modules of apex. They are not meant for other packages.
EXTENSIONS: dict[str, ApexPart] = {
    "amp_C": ApexPart(THERE, _FOREACH),
    "apex_C": ApexPart(THERE, "torch._utils._flatten_dense_tensors and _unflatten_dense_tensors"),
    "fused_adam_cuda": ApexPart(THERE, "torch.optim.AdamW with fused=True"),
    "fused_lamb_cuda": ApexPart(THERE, _NO_TWIN),
    "fused_layer_norm_cuda": ApexPart(THERE, "torch.nn.functional.layer_norm"),
    "fast_multihead_attn": ApexPart(_2026, _ATTENTION),
    "fmhalib": ApexPart(_2026, _ATTENTION),
}


def part(name: str) -> ApexPart:
    """Return the entry for a full name of apex, or for the package that contains it."""
    while name not in PARTS:
        name = name.rpartition(".")[0]
    return PARTS[name]


_STATE = "apex.amp._amp_state"
_GIVEN = "the arguments of amp.initialize: keep them in your own variables"
# Internal names of apex.amp that scripts use, and what replaces them in hpc_amp.amp.
_INSIDE = {
    f"{_STATE}.loss_scalers": (
        "to read a scale: amp.loss_scale(loss_id); to set it, after amp.initialize: "
        'state = amp.state_dict(), state["loss_scaler0"]["loss_scale"] = 2.0**20, '
        "amp.load_state_dict(state); its limits: min_loss_scale and max_loss_scale of "
        "amp.initialize"
    ),
    f"{_STATE}.min_loss_scale": "min_loss_scale of amp.initialize",
    f"{_STATE}.max_loss_scale": "max_loss_scale of amp.initialize",
    f"{_STATE}.opt_properties": _GIVEN,
    f"{_STATE}.verbosity": "verbosity of amp.initialize",
    f"{_STATE}.maybe_print": "print(...)",
    f"{_STATE}.warn_or_err": "raise RuntimeError(...)",
}


def inside_amp(name: str) -> str:
    """Return what to write instead of an undocumented name of apex.amp."""
    while name not in _INSIDE:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return (
                "hpc_amp.amp has amp.loss_scale(loss_id) for a scale, amp.stepped(optimizer) for a "
                "skipped step, and amp.master_params(optimizer) for the parameters that are stepped"
            )
    return _INSIDE[name]
