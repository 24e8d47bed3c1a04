"""FUNIT and COCO-FUNIT on several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.funit import NAMES, plain_train
from support.ports import free_ports
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

LOSSES = ("d", "r1", "gan", "features", "reconstruction")
METRICS = ("frechet_random", "nearest_class", "truth_l1")
COMMON: dict[str, Any] = {"log_every": 1, "device": "cpu", "checkpoint": {"every": "100epochs"}}
# Larger steps enlarge the differences of rounding, as in any GAN.
PARITY: dict[str, Any] = {
    **COMMON,
    "epochs": 3,
    "precision": {"mode": "fp32"},
    "adversarial": {"generator_lr": 2e-4, "discriminator_lr": 2e-4},
}
# Overflows at once, and again each time that a scale has grown back.
FP16: dict[str, Any] = {
    **COMMON,
    "precision": {"mode": "fp16", "init_scale": 2.0**20, "growth_interval": 2},
    "accumulate": 2,
    "ema": 0.9,
    "epochs": 3,
    "max_steps": 8,
}
STOP = 5
"""In the middle of the second epoch."""

TRAINING = """
import json, sys
from hpc_amp.config.schema import from_plain
from hpc_amp.tasks.registry import config_class
from hpc_amp.train import Observer, fit, run_program

class Stop(Observer):
    def __init__(self, step):
        self.step = step

    def reported(self, engine, values):
        if engine.step == self.step:
            engine.agreement.due = lambda step: True
            engine.agreement.watch.stop_at = 0.0

def main():
    for folder, train, stop in json.load(open(sys.argv[1])):
        fit(from_plain(config_class(train["task"]), train), folder, observers=[Stop(stop)])
    return 0

run_program(main)
"""
"""Trainings one after another in the same processes: importing torch takes seconds."""


def run(warm: Warm, ranks: int, *command: Path) -> None:
    """Start a program on some ranks; fails where one fails."""
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **world} if ranks > 1 else {}
        started.append(warm.start(*command, environ=place))
    ended = [rank.wait() for rank in started]
    assert not any(rank.returncode for rank in ended), ended


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was stopped."""
    made = tmp_path_factory.mktemp("funit")
    script = made / "training.py"
    script.write_text(TRAINING)
    plans: dict[int, list[tuple[str, dict[str, Any], int]]] = {1: [], 2: []}
    for name in NAMES:
        parity, fp16 = plain_train(name, **PARITY), plain_train(name, **FP16)
        for ranks, trainings in plans.items():
            trainings.append((str(made / name / f"parity-{ranks}"), parity, 0))
        plans[2] += [
            (str(made / name / "whole"), fp16, 0),
            (str(made / name / "stopped"), fp16, STOP),
            (str(made / name / "stopped"), fp16, 0),
        ]
    for ranks, trainings in plans.items():
        plan = made / f"plan-{ranks}.json"
        plan.write_text(json.dumps(trainings))
        run(warm, ranks, script, plan)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(name: str, folder: Path) -> None:
    """The same samples in each step, the same losses, the same metrics."""
    one, two = (folder / name / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert len(expected) == 12
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=1e-3, abs=1e-4)
    first, *_, last = curve(one, "train/d")
    assert last[1] < first[1] - 0.1, "it trains"
    for metric in METRICS:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [4, 8, 12]
        # An image at the border between two classes may change sides.
        tolerance = 0.1 if metric == "nearest_class" else 0.0
        assert [v for _, v in seen] == pytest.approx(
            [v for _, v in expected], rel=1e-2, abs=tolerance
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_on_two_ranks_is_bit_exact(name: str, folder: Path) -> None:
    """In the middle of an epoch, under fp16 with overflows, with accumulation and an EMA."""
    stopped, whole = folder / name / "stopped", folder / name / "whole"
    seen, expected = (json.loads((run / "summary.json").read_text()) for run in (stopped, whole))
    for key in ("outcome", "weights_sha256", "loss_scale", "skipped_steps", "steps"):
        assert seen[key] == expected[key], key
    assert (expected["outcome"], expected["world_size"]) == ("finished", 2)
    assert expected["skipped_steps"] > 0
    outcome = json.loads((stopped / "attempts" / "1" / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["step"]) == ("checkpointed", STOP)
    curves = [*(f"train/{loss}" for loss in LOSSES), *(f"eval/{metric}" for metric in METRICS)]
    for each in curves:
        assert curve(stopped, each) == curve(whole, each)
        assert curve(whole, each), each
