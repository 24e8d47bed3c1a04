"""The values of tensors, from one rank on all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rank_trainings import run_on
from support.warm import Warm

pytestmark = pytest.mark.ranks

_SCRIPT = """
import os
import torch
import torch.distributed as dist
from hpc_amp.distributed.collect import copy_from_first
from hpc_amp.distributed.setup import join, leave
from hpc_amp.distributed.world import resolve

def tensors(first):
    image = torch.arange(first, first + 24.0).view(1, 2, 3, 4)
    return [
        torch.arange(first, first + 3),
        image.contiguous(memory_format=torch.channels_last),
        torch.tensor(first),
        torch.zeros(0),
        torch.full((2, 2), first / 4, dtype=torch.float16),
        torch.tensor([first == 0, True]),
    ]

world = resolve(os.environ)
join(world, torch.device("cpu"), 600)
broadcast, exchanges = dist.broadcast, []
dist.broadcast = lambda *args, **kwargs: exchanges.append(args) or broadcast(*args, **kwargs)
mine = tensors(100 * world.rank)
same = [tensor.stride() for tensor in mine]
copy_from_first(world, mine)
for seen, expected in zip(mine, tensors(0), strict=True):
    assert torch.equal(seen, expected), (seen, expected)
assert [tensor.stride() for tensor in mine] == same
assert len(exchanges) == 4, "one for each type"
print("equal", flush=True)
leave()
os._exit(0)  # gloo's threads may abort an orderly end
"""


def test_all_ranks_get_the_values_of_the_first(warm: Warm, tmp_path: Path) -> None:
    """Of several types, shapes and memory orders."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    assert run_on(warm, 2, script).count("equal") == 2
