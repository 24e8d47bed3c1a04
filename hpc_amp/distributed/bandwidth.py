"""`python -m hpc_amp.distributed.bandwidth FILE`: all-reduces of growing size over all ranks.

The program of a small job (`hpc-amp doctor CONFIG --network`), on the devices that training would
use. Rank 0 writes the times to FILE. NCCL's own log says which transport it used.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpc_amp.distributed.ending import end_process
from hpc_amp.distributed.setup import choose_device, join, leave
from hpc_amp.distributed.world import resolve
from hpc_amp.files import write_json

_SECONDS = 1.0
"""For how long each size is measured, approximately."""


def main(file: Path) -> None:
    """Measure all sizes. Rank 0 writes the result."""
    world = resolve(os.environ)
    device = choose_device("auto", world)
    started = time.monotonic()
    join(world, device, 300)
    joined = time.monotonic() - started
    largest = 2**28 if device.type == "cuda" else 2**24
    sizes = []
    size = 2**3
    while size <= largest:
        sizes.append({"bytes": size, "seconds": _measure(size, device)})
        size *= 8
    facts: dict[str, Any] = {
        "ranks": world.size,
        "nodes": world.nodes,
        "device": device.type,
        "backend": dist.get_backend() if dist.is_initialized() else "none",
        "join_seconds": round(joined, 3),
        "sizes": sizes,
    }
    if world.is_main:
        write_json(file, facts)
    leave()


def _measure(size: int, device: torch.device) -> float:
    """Seconds of one all-reduce of `size` bytes. Raises RuntimeError if the sum is wrong."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    values = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    seconds = 0.0
    # The first all-reduce makes the connections, and the next ones tell how many to measure.
    for count in (1, 3, 0):
        if count == 0:
            count = _agree(max(1, min(200, int(_SECONDS / max(seconds, 1e-6)))), device)
        values.fill_(1.0)
        _wait(device)
        before = time.perf_counter()
        for _ in range(count):
            if ranks > 1:
                dist.all_reduce(values, op=dist.ReduceOp.MAX)
        _wait(device)
        seconds = (time.perf_counter() - before) / count
    total = torch.ones(1, device=device)
    if ranks > 1:
        dist.all_reduce(total)
    if int(total.item()) != ranks:
        raise RuntimeError(f"the sum over {ranks} ranks is {total.item()}")
    return seconds


def _agree(count: int, device: torch.device) -> int:
    """The count of rank 0, so that all ranks do the same number of all-reduces."""
    if not dist.is_initialized():
        return count
    value = torch.tensor([count], device=device)
    dist.broadcast(value, 0)
    return int(value.item())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_process(0)
