"""The old names, their new names, and how calls change.

Sources: the deprecation messages and signatures of torch 2.1 to 2.14, and apex 25.05, the last
release with `apex.amp` and DistributedDataParallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpc_amp.migrate.arguments import (
    Arguments,
    device_first,
    device_first_then_keywords,
    keyword_added,
    only,
)

Version = tuple[int, int]


@dataclass(frozen=True)
class Move:
    """A function or class with a new full name, `new`.

    `rule` is the rule that reports its uses. `since` is the first version of torch with the new
    name. `arguments` changes the arguments of a call, or is None if they are the same. `uncalled`
    says where the name may be used without a call: as a type (isinstance, annotations), anywhere,
    or nowhere. `decorates` says that it may be used as `@name`, which then needs arguments.
    `keeps_name` is False if an import cannot bind the new function to the old name.
    """

    rule: str
    new: str
    since: Version = (2, 1)
    arguments: Arguments | None = None
    uncalled: Literal["nowhere", "as type", "anywhere"] = "nowhere"
    decorates: bool = False
    keeps_name: bool = True


_AUTOCAST_POSITIONS = ("enabled", "dtype", "cache_enabled")


def _device_moves(device: str) -> dict[str, Move]:
    """The moves of torch.cuda.amp or torch.cpu.amp."""
    old = f"torch.{device}.amp"
    return {
        old: Move("old-amp-import", "torch.amp"),
        f"{old}.autocast": Move(
            "old-autocast",
            "torch.amp.autocast",
            arguments=device_first_then_keywords(device, _AUTOCAST_POSITIONS),
            uncalled="as type",
        ),
        f"{old}.GradScaler": Move(
            "old-grad-scaler",
            "torch.amp.GradScaler",
            since=(2, 3),
            arguments=device_first(device),
            uncalled="as type",
        ),
    }


def _custom_function(name: str) -> Move:
    return Move(
        "old-custom-function",
        f"torch.amp.{name}",
        since=(2, 4),
        arguments=keyword_added("device_type", '"cuda"'),
        decorates=True,
    )


def _dtype_function(new: str, device: str) -> Move:
    return Move("old-autocast-state", f"torch.{new}", since=(2, 4), arguments=device_first(device))


TORCH: dict[str, Move] = {
    **_device_moves("cuda"),
    **_device_moves("cpu"),
    "torch.cuda.amp.custom_fwd": _custom_function("custom_fwd"),
    "torch.cuda.amp.custom_bwd": _custom_function("custom_bwd"),
    "torch.get_autocast_gpu_dtype": _dtype_function("get_autocast_dtype", "cuda"),
    "torch.set_autocast_gpu_dtype": _dtype_function("set_autocast_dtype", "cuda"),
    "torch.get_autocast_cpu_dtype": _dtype_function("get_autocast_dtype", "cpu"),
    "torch.set_autocast_cpu_dtype": _dtype_function("set_autocast_dtype", "cpu"),
    "torch.is_autocast_cpu_enabled": _dtype_function("is_autocast_enabled", "cpu"),
    "torch.set_autocast_cpu_enabled": _dtype_function("set_autocast_enabled", "cpu"),
}

# The documented API of apex.amp 1.0. hpc_amp.amp has the same.
APEX_AMP_API = (
    "initialize",
    "scale_loss",
    "master_params",
    "state_dict",
    "load_state_dict",
    "disable_casts",
    "half_function",
    "float_function",
    "promote_function",
    "register_half_function",
    "register_float_function",
    "register_promote_function",
)

APEX_AMP: dict[str, Move] = {
    "apex.amp": Move("apex-amp", "hpc_amp.amp", uncalled="anywhere"),
    **{
        f"apex.amp.{name}": Move("apex-amp", f"hpc_amp.amp.{name}", uncalled="anywhere")
        for name in APEX_AMP_API
    },
}

# Arguments of apex's DistributedDataParallel that torch's does not have.
_DDP_ANSWERS = {
    "message_size": "remove it, or use bucket_cap_mb, which is in MiB",
    "allreduce_always_fp32": "remove it with O0 and O1, where gradients are fp32; with O2, torch "
    "adds them in half precision",
    "gradient_average": "torch always averages; for a sum, multiply the loss by the world size",
    "gradient_predivide_factor": "remove it: torch divides by the world size before it adds",
    "retain_allreduce_buffers": "use gradient_as_bucket_view=True, which is similar",
    "allreduce_trigger_params": "remove it: torch overlaps communication automatically",
    "num_allreduce_streams": "remove it: torch overlaps communication automatically",
    "allreduce_communicators": "remove it: torch overlaps communication automatically",
    "shared_param": "remove it: torch supports shared parameters, and apex refused the option too",
    "prof": "remove it; torch.profiler records it",
}
# The old and the new name in torch, and the first version with the new name.
_BUFFERS, _BUFFERS_SINCE = ("broadcast_buffers", "forward_sync_buffers"), (2, 13)


def apex_parallel(torch: Version) -> dict[str, Move]:
    """The moves from apex.parallel to torch. `torch` is the oldest version to support."""
    # apex's class does not broadcast buffers.
    buffers = keyword_added(_BUFFERS[torch >= _BUFFERS_SINCE], "False")
    return {
        "apex.parallel.DistributedDataParallel": Move(
            "apex-ddp",
            "torch.nn.parallel.DistributedDataParallel",
            arguments=only(
                {"module"},
                buffers,
                # With this option, apex allowed any parameter to have no gradient.
                renamed={"delay_allreduce": "find_unused_parameters"},
                answers=_DDP_ANSWERS,
            ),
            uncalled="as type",
        ),
        "apex.parallel.convert_syncbn_model": Move(
            "apex-syncbn",
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
            arguments=only({"module", "process_group"}),
            keeps_name=False,
        ),
    }
