"""The device and the process group of this rank."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError


class DeviceError(InputError):
    """The requested device cannot be used here."""


def choose_device(wanted: str, world: World) -> torch.device:
    """This rank's device: `cuda` with the local rank's index, or the CPU.

    `wanted` is `auto`, `cuda` or `cpu`. `auto` means the CPU only on a node without any NVIDIA
    device. On a GPU node, an image without a working driver would otherwise train on the CPU, a
    hundred times slower, without a message. Raises DeviceError.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        # A GPU binding of each task leaves one visible device; otherwise every rank has its own.
        if count > 1 and world.local_size > count:
            raise DeviceError(f"{world.local_size} ranks on this node, but it has {count} GPUs")
        device = torch.device("cuda", world.local_rank % count)
        torch.cuda.set_device(device)
        return device
    node_has_gpu = os.path.exists("/dev/nvidiactl")
    if wanted == "cuda" or node_has_gpu:
        raise DeviceError(
            "torch sees no CUDA device"
            + (", although the node has one" if node_has_gpu else "")
            + ": check the driver, `container.gpu`, and that torch was built with CUDA "
            "(train.device=cpu computes on CPUs)"
        )
    return torch.device("cpu")


def join(world: World, device: torch.device, timeout_seconds: float) -> None:
    """Create the process group, if there is more than one rank. A collective call.

    CPU tensors are exchanged by gloo on GPU nodes as well, so that control messages never wait for
    the GPU. `timeout_seconds`: how long a collective call waits for other ranks.
    """
    if world.size == 1:
        return
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        rank=world.rank,
        world_size=world.size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )


def leave() -> None:
    """Wait until every rank is done, so that no rank closes connections that another one uses.

    The process group itself is left to the end of the process with gloo, whose orderly end can hang
    (seen on torch 2.1 and 2.6: it waits for a thread that waits for the GIL). NCCL warns if its
    group is not destroyed.
    """
    if not dist.is_initialized():
        return
    dist.barrier()
    if torch.cuda.is_available() and "nccl" in dist.get_backend():
        dist.destroy_process_group()
