"""Networks that get no gradient in a phase, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.environment import REPOSITORY
from support.gan import Idle
from support.rank_trainings import run_on, train_all
from support.training import curve
from support.warm import Warm
from torch import nn

from hpc_amp.config.schema import Train, from_plain
from hpc_amp.distributed.world import World
from hpc_amp.train.randomness import seed_everything

pytestmark = pytest.mark.ranks

NAIVE = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x, *, generates):
        return self.critic(self.generator(x) if generates else x)

dist.init_process_group("gloo")
gan = DistributedDataParallel(Gan())
try:
    for _ in range(2):
        for generates in (False, True):
            gan(torch.randn(2, 4), generates=generates).mean().backward()
except RuntimeError as error:
    print("refused:", str(error).splitlines()[0])
dist.destroy_process_group()
"""
TRAIN: dict[str, Any] = {
    "task": "support.gan:Idle",
    "epochs": 3,
    "batch_size": 8,
    "accumulate": 2,
    "log_every": 1,
    "device": "cpu",
    "ema": 0.9,
}


def test_one_ddp_for_the_whole_gan_waits_for_gradients_that_never_come(
    warm: Warm, tmp_path: Path
) -> None:
    """The control (lightning#20328, accelerate#3536)."""
    script = tmp_path / "naive.py"
    script.write_text(NAIVE)
    assert run_on(warm, 2, script).count("refused: Expected to have finished reduction") == 2


def test_networks_without_gradients_do_not_hold_up_the_ranks(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is used by no loss of its phase, another by those of a later phase; and under fp16,
    phases are skipped now and then."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests"))
    fp16 = {"mode": "fp16", "init_scale": 2.0**20, "growth_interval": 2}
    plain = TRAIN | {"precision": {"mode": "fp32"}}
    one, two, half = (tmp_path / name for name in ("one", "two", "half"))
    plans = {1: [(one, plain, 0)], 2: [(two, plain, 0), (half, TRAIN | {"precision": fp16}, 0)]}
    train_all(warm, tmp_path, plans)

    for loss, steps in {"real": 15, "fake": 15, "fooled": 5, "helped": 10}.items():
        expected, seen, skipping = (curve(run, f"train/{loss}") for run in (one, two, half))
        assert len(expected) == len(skipping) == steps
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=1e-2)
    assert json.loads((half / "summary.json").read_text())["skipped_steps"] > 0
    before = {name: network.state_dict() for name, network in build_networks().items()}
    for run in (two, half):
        weights = torch.load(run / "checkpoints/step-00000015/networks.pt", weights_only=True)
        for name, state in weights.items():
            moved = not torch.equal(state["weight"], before[name]["weight"])
            assert moved == (name != "idle"), name


def build_networks() -> dict[str, nn.Module]:
    """The networks as the engine builds them."""
    train = from_plain(Train, {"task": TRAIN["task"]})
    seed_everything(train.seed)
    return Idle(train, World(), torch.device("cpu")).build_networks()
