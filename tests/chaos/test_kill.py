"""SIGKILL at any instant: there is always a checkpoint that loads, and nothing of it is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chaos.ranks import Attempt, Run
from hpc_amp.train.checkpoint import CheckpointStore, Retention

pytestmark = pytest.mark.ranks

# Overflows, EMA and momentum, in steps that depend on no end of the run.
TRAIN: dict[str, Any] = {
    "precision": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
    "schedule": {"name": "constant", "warmup": 0.0},
    "ema": 0.9,
    "epochs": 10**6,
}


def store_of(run: Run) -> tuple[CheckpointStore, list[str]]:
    """The checkpoints of a run as the next attempt sees them, and its warnings."""
    warnings: list[str] = []
    folder = run.path / "checkpoints"
    made = CheckpointStore(folder, run=run.path.name, retention=Retention(), warn=warnings.append)
    return made, warnings


def kill(attempt: Attempt, instants: random.Random) -> None:
    """SIGKILL to all ranks, one after the other."""
    for pid in instants.sample(attempt.pids, len(attempt.pids)):
        os.kill(pid, signal.SIGKILL)
    assert set(attempt.wait()) == {-signal.SIGKILL}


@pytest.mark.parametrize(
    ("size", "kills"),
    [
        pytest.param(1, 40, id="40-kills"),
        pytest.param(1, 250, id="250-kills", marks=pytest.mark.chaos),
        pytest.param(2, 100, id="100-kills-of-2-ranks", marks=pytest.mark.chaos),
    ],
)
def test_the_newest_checkpoint_loads_after_every_kill(
    new_run: Callable[..., Run], size: int, kills: int
) -> None:
    """The run saves after each step, so that most kills hit the writer. In the end the weights are
    those of a run that nobody killed."""
    run = new_run("killed", **TRAIN, checkpoint="1steps")
    instants = random.Random(kills)
    interrupted = progress = 0
    for number in range(1, kills + 1):
        before = store_of(run)[0].newest() or 0
        attempt = run.start(attempt=number, size=size)
        # Every other attempt must get on; the others may be killed before their first step.
        if number % 2 == 0:
            attempt.until(lambda before=before: max(run.checkpoints(), default=0) > before)
        time.sleep(instants.uniform(0, 0.3))
        kill(attempt, instants)
        names = [path.name for path in (run.path / "checkpoints").glob(".tmp-*")]
        interrupted += bool(names)
        store, warnings = store_of(run)
        steps = store.steps()
        assert all(store.load(step).trainer["step"] == step for step in steps)
        assert (store.newest() or 0) == max(steps, default=0) >= before
        assert warnings == []
        progress += max(steps, default=0) > before
    assert interrupted >= kills / 10, "kills have hit the writing"
    assert progress >= kills / 10, "and training went on between them"

    last = store_of(run)[0].newest()
    whole = new_run("whole", **TRAIN, max_steps=last)
    assert whole.start(size=size).wait() == [0] * size
    killed, expected = (store_of(which)[0].load(last).tensors for which in (run, whole))
    for part in ("networks", "average"):
        for name, tensor in expected[part]["model"].items():
            assert torch.equal(killed[part]["model"][name], tensor), (part, name)
