"""A save that takes longer than the scheduler's patience: the rank leaves before it is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from chaos.ranks import Run, mishap
from hpc_amp.train.checkpoint import CheckpointStore, Retention

pytestmark = pytest.mark.ranks

SLOW = mishap("step", "sleep", 0.02, rank=None)


def newest(run: Run) -> int | None:
    """The newest valid checkpoint."""
    folder = run.path / "checkpoints"
    return CheckpointStore(folder, run="run", retention=Retention(), warn=print).newest()


@pytest.mark.parametrize("size", [1, 2])
def test_a_save_beyond_the_grace_ends_with_what_is_there(
    new_run: Callable[..., Run], size: int
) -> None:
    run = new_run(epochs=10**6, checkpoint="4steps")
    stuck = mishap("writing", "sleep", 1e5, at=8)
    attempt = run.start(stuck, SLOW, size=size, HPC_AMP_GRACE=4)
    files = "checkpoints/.tmp-step-00000008-*/MANIFEST.json"
    attempt.until(lambda: any(run.path.glob(files)))
    for pid in attempt.pids:
        os.kill(pid, signal.SIGTERM)
    assert attempt.wait() == [75] * size
    outcome = attempt.outcome
    assert (outcome["outcome"], outcome["cause"]) == ("checkpointed", "TERMINATED")
    assert "could not save in time" in outcome["reason"]
    assert "newest checkpoint" in outcome["reason"]
    assert "in _run_code" in attempt.said(), "the stacks show what took so long"
    assert newest(run) == 4

    again = run.start(SLOW, attempt=2, size=size)
    again.until(lambda: max(run.checkpoints()) > 4)
    again.kill()
    assert "at step 4" in again.said()


def test_the_same_for_the_end_of_the_job(new_run: Callable[..., Run]) -> None:
    """No signal at all: only the clock says that the job is about to end."""
    run = new_run(epochs=10**6, checkpoint="4steps")
    stuck = mishap("writing", "sleep", 1e5, at=8)
    now = time.time()
    attempt = run.start(stuck, SLOW, HPC_AMP_STOP_AT=now + 2, HPC_AMP_END_AT=now + 6)
    assert attempt.wait() == [75]
    assert time.time() >= now + 2
    assert (attempt.outcome["outcome"], attempt.outcome["cause"]) == ("checkpointed", "DEADLINE")
    assert "could not save in time" in attempt.outcome["reason"]
    assert newest(run) == 4
