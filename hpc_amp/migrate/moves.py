"""What has a new name, and how its calls change.

Sources: torch's deprecation messages and signatures (2.1 to 2.14); apex at 25.05, the last release
with `apex.amp` and its DistributedDataParallel.
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
    """A thing with a new full name.

    `rule` reports its uses. `since` is the torch that has the new name. `arguments` changes a call,
    None where calls stay as they are. `uncalled` says where it may stand without being called: as a
    type (isinstance, annotations), anywhere, or nowhere. `decorates` may stand as `@name`, and
    needs arguments then. `keeps_name` is False where an import cannot give the new thing the old
    name.
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
    """torch.cuda.amp or torch.cpu.amp."""
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

# The documented API of apex.amp 1.0, which hpc_amp.amp has, too.
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

# What apex's DistributedDataParallel takes and torch's does not.
_DDP_ANSWERS = {
    "message_size": "leave it out, or say bucket_cap_mb, which is in MiB",
    "allreduce_always_fp32": "leave it out at O0 and O1, where gradients are fp32; at O2 torch's "
    "adds them up in half precision",
    "gradient_average": "it always averages; for a sum, multiply the loss by the world size",
    "gradient_predivide_factor": "leave it out: it divides by the world size before it adds up",
    "retain_allreduce_buffers": "gradient_as_bucket_view=True is nearest",
    "allreduce_trigger_params": "leave it out: it overlaps by itself",
    "num_allreduce_streams": "leave it out: it overlaps by itself",
    "allreduce_communicators": "leave it out: it overlaps by itself",
    "shared_param": "leave it out: shared parameters work, and apex refused it, too",
    "prof": "leave it out; torch.profiler sees it",
}
# torch's name for it before, and since this version.
_BUFFERS, _BUFFERS_SINCE = ("broadcast_buffers", "forward_sync_buffers"), (2, 13)


def apex_parallel(torch: Version) -> dict[str, Move]:
    """What moves from apex.parallel to torch; `torch` is the oldest to run with."""
    # apex's class sends no buffers around.
    buffers = keyword_added(_BUFFERS[torch >= _BUFFERS_SINCE], "False")
    return {
        "apex.parallel.DistributedDataParallel": Move(
            "apex-ddp",
            "torch.nn.parallel.DistributedDataParallel",
            arguments=only(
                {"module"},
                buffers,
                # With it, apex did not mind which parameters get a gradient.
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
