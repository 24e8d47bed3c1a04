"""SPADE, pix2pixHD, UNIT and MUNIT on several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import paired, unpaired
from support.ports import free_ports
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

COMMON: dict[str, Any] = {"log_every": 1, "device": "cpu", "checkpoint": {"every": "100epochs"}}
PARITY: dict[str, Any] = {
    **COMMON,
    "precision": {"mode": "fp32"},
    # Adam divides by the size of a gradient: without this, one that is nothing but rounding, such
    # as that of a bias before a normalisation, makes a step of full size.
    "adversarial": {"eps": 1e-2},
}
# Overflows at once, and again each time that a scale has grown back.
FP16: dict[str, Any] = {
    **COMMON,
    "precision": {"mode": "fp16", "init_scale": 2.0**20, "growth_interval": 2},
    "accumulate": 2,
    "ema": 0.9,
}
STOP = 4
"""In the middle of the second epoch."""
EPOCHS = {"pix2pixhd": 3}
"""Of more than two: pix2pixHD updates other networks in the third."""
UNPAIRED = unpaired.NAMES
NAMES = (*UNPAIRED, *paired.MODELS)
LOSSES = {
    **{name: ("d", "r1", *unpaired.LOSSES[name]) for name in UNPAIRED},
    **paired.LOSSES,
}
METRICS = {**unpaired.METRICS, **dict.fromkeys(paired.MODELS, paired.METRICS)}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `NAMES`."""
    train["epochs"] = EPOCHS.get(name, 2)
    of = unpaired if name in UNPAIRED else paired
    return of.plain_train(name, **train)


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
    made = tmp_path_factory.mktemp("unpaired")
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
    """The same samples, noise and styles in each step, the same losses, the same metrics, in all
    phases."""
    one, two = (folder / name / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES[name]:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert expected and len(seen) == len(expected)
        first, values = ([value for _, value in each] for each in (expected, seen))
        assert values[:4] == pytest.approx(first[:4], rel=1e-2, abs=1e-3)
        assert values == pytest.approx(first, rel=5e-2, abs=1e-2)
    if name in UNPAIRED:
        first, *_, last = curve(one, "train/image_recon")
        assert last[1] < first[1] - 0.02, "it trains"
    for metric in METRICS[name]:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [step for step, _ in expected]
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=2e-2, abs=5e-3)


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
    curves = [f"train/{loss}" for loss in LOSSES[name]]
    for each in (*curves, *(f"eval/{metric}" for metric in METRICS[name])):
        assert curve(stopped, each) == curve(whole, each)
        assert curve(whole, each), each
