"""Trainings on several ranks, one after another in the same processes: importing torch takes
seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from support.ports import free_ports
from support.training import curve
from support.warm import Warm

Training = tuple[Path, dict[str, Any], int]
"""The run directory, the keys of `train`, and the step where it is stopped (0: it is not)."""

COMMON: dict[str, Any] = {
    "log_every": 1,
    "device": "cpu",
    "checkpoint": {"every": "100epochs"},
    "eval_batch_size": 8,
}
"""Keys of `train` of all these trainings."""
PARITY: dict[str, Any] = {
    **COMMON,
    "precision": {"mode": "fp32"},
    # Adam divides by the size of a gradient: without this, one that is nothing but rounding, such
    # as that of a bias before a normalisation, makes a step of full size.
    "adversarial": {"eps": 1e-2},
}
"""To compare numbers of ranks."""
FP16: dict[str, Any] = {
    **COMMON,
    "precision": {"mode": "fp16", "init_scale": 2.0**14, "growth_interval": 2},
    "accumulate": 2,
    "ema": 0.9,
}
"""Most models overflow now and then."""

_SCRIPT = """
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


def run_on(warm: Warm, ranks: int, *command: str | Path, cwd: Path | None = None) -> str:
    """Run a program on some ranks, and return what they say; fails where one fails."""
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **world} if ranks > 1 else {}
        started.append(warm.start(*command, cwd=cwd, environ=place))
    ended = [rank.wait() for rank in started]
    assert not any(rank.returncode for rank in ended), ended
    return "".join(rank.stdout for rank in ended)


def train_all(warm: Warm, folder: Path, plans: Mapping[int, Sequence[Training]]) -> str:
    """Make the trainings of each number of ranks, and return their log; `folder` is for the files
    of this."""
    script = folder / "training.py"
    script.write_text(_SCRIPT)
    said = ""
    for ranks, trainings in plans.items():
        plan = folder / f"plan-{ranks}.json"
        plan.write_text(json.dumps([(str(run), train, stop) for run, train, stop in trainings]))
        said += run_on(warm, ranks, script, plan)
    return said


def train_models(
    warm: Warm,
    folder: Path,
    models: Mapping[str, tuple[dict[str, Any], dict[str, Any]]],
    saved: int,
) -> None:
    """For each model, below `folder`/NAME: `parity-1` and `parity-2`, on one rank and on two, with
    the first keys of `train`; `whole` on two, with the second, which saves after step `saved`, too;
    and `resumed`, a copy of `whole` without its end, which goes on from that checkpoint."""
    plans: dict[int, list[Training]] = {1: [], 2: []}
    resumed: list[Training] = []
    for name, (parity, fp16) in models.items():
        for ranks, trainings in plans.items():
            trainings.append((folder / name / f"parity-{ranks}", parity, 0))
        saving = {**fp16, "checkpoint": {"every": f"{saved}steps"}}
        plans[2].append((folder / name / "whole", saving, 0))
        resumed.append((folder / name / "resumed", saving, 0))
    train_all(warm, folder, plans)
    for run, _, _ in resumed:
        lost = shutil.ignore_patterns("summary.json")
        shutil.copytree(run.with_name("whole"), run, ignore=lost)
        for checkpoint in (run / "checkpoints").iterdir():
            if checkpoint.name > f"step-{saved:08d}":
                shutil.rmtree(checkpoint)
    said = train_all(warm, folder, {2: resumed})
    assert said.count(f"step-{saved:08d} at step {saved}") == len(models), said


def check_resume(resumed: Path, whole: Path, saved: int, curves: Sequence[str]) -> None:
    """A run on two ranks that was resumed from the checkpoint of step `saved` ends as one that was
    not, bit by bit, with overflows and the same curves."""
    seen, expected = (json.loads((run / "summary.json").read_text()) for run in (resumed, whole))
    for key in ("outcome", "weights_sha256", "loss_scale", "skipped_steps", "steps"):
        assert seen[key] == expected[key], key
    assert (expected["outcome"], expected["world_size"]) == ("finished", 2)
    assert expected["skipped_steps"] > 0
    for step, fewest in ((saved, 2), (expected["steps"], None)):
        file = whole / "checkpoints" / f"step-{step:08d}" / "optimizers.pt"
        updated = [bool(each["state"]) for each in torch.load(file, weights_only=True).values()]
        assert sum(updated) >= (fewest or len(updated)), "not all updates were skipped"
    for each in curves:
        assert curve(resumed, each) == curve(whole, each)
        assert curve(whole, each), each
