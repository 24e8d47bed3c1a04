"""Device and process group of this rank."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from hpc_amp.distributed.world import World


class DeviceError(RuntimeError):
    """The device that was asked for is not usable here."""


def choose_device(wanted: str, world: World) -> torch.device:
    """This rank's device: `cuda` with the local rank's index, or the CPU.

    `auto` takes the CPU only on a node that has no NVIDIA device at all: an image without a working
    driver on a GPU node would otherwise train on the CPU, a hundred times slower, in silence.
    Raises DeviceError.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        # One visible device is what a per-task GPU binding leaves; else every rank has its own.
        if count > 1 and world.local_size > count:
            raise DeviceError(f"{world.local_size} ranks on this node, but it has {count} GPUs")
        device = torch.device("cuda", world.local_rank % count)
        torch.cuda.set_device(device)
        return device
    if wanted == "cuda" or os.path.exists("/dev/nvidiactl"):
        raise DeviceError(
            "torch sees no CUDA device"
            + (", although the node has one" if os.path.exists("/dev/nvidiactl") else "")
            + ": check the driver, `container.gpu`, and that torch was built with CUDA "
            "(train.device=cpu computes on CPUs)"
        )
    return torch.device("cpu")


def join(world: World, device: torch.device, timeout_seconds: float) -> None:
    """Join the process group, where there is more than one rank. Tensors on the CPU go through
    gloo also on GPUs, so that control messages never wait for the GPU."""
    if world.size == 1:
        return
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        rank=world.rank,
        world_size=world.size,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )


def leave() -> None:
    """Wait until every rank is done, so that none takes the connections of another down with it.

    The group itself ends with the process: gloo's orderly end can hang (seen on torch 2.1 and 2.6:
    it waits for a thread that waits for Python's lock), NCCL complains where it is left out."""
    if not dist.is_initialized():
        return
    dist.barrier()
    if torch.cuda.is_available() and "nccl" in dist.get_backend():
        dist.destroy_process_group()
