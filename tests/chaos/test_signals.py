"""A signal to any one process of a run, at any time: all ranks save and stop at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.training import curve

from chaos.ranks import Attempt, Run, mishap

pytestmark = pytest.mark.ranks

CAUSES = {
    "SIGTERM": "TERMINATED",
    "SIGUSR1": "WARNED",
    "SIGUSR2": "WARNED",
    "SIGINT": "ASKED",
}
SLOW: dict[str, Any] = mishap("step", "sleep", 0.02, rank=None)
BUDGET_SECONDS = 5.0


def check_stop(attempt: Attempt, cause: str, size: int) -> None:
    """All ranks stopped at one checkpoint, and no step is lost that had been made."""
    assert attempt.wait() == [75] * size, attempt.said()
    outcome = attempt.outcome
    assert (outcome["outcome"], outcome["cause"]) == ("checkpointed", cause)
    steps = [step for step, _ in curve(attempt.run.path, "train/loss")]
    assert attempt.run.checkpoints()[-1] == outcome["step"] == steps[-1]
    assert steps == list(range(1, outcome["step"] + 1))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("SIGTERM", 1),
        ("SIGUSR1", 1),
        pytest.param("SIGTERM", 0, marks=pytest.mark.chaos),
        pytest.param("SIGUSR1", 0, marks=pytest.mark.chaos),
        pytest.param("SIGUSR2", 0, marks=pytest.mark.chaos),
        pytest.param("SIGUSR2", 1, marks=pytest.mark.chaos),
        pytest.param("SIGINT", 0, marks=pytest.mark.chaos),
        pytest.param("SIGINT", 1, marks=pytest.mark.chaos),
    ],
)
def test_a_signal_to_one_rank_stops_all(new_run: Callable[..., Run], name: str, rank: int) -> None:
    run = new_run(epochs=10**6)
    attempt = run.start(SLOW, size=2)
    attempt.until(lambda: run.last_step() >= 3)
    begun = time.time()
    os.kill(attempt.pids[rank], getattr(signal, name))
    check_stop(attempt, CAUSES[name], size=2)
    manifest = run.path / f"checkpoints/step-{attempt.outcome['step']:08d}/MANIFEST.json"
    # Against the run's own pace, since the machine may be busy with something else.
    steps_per_second = run.summary["samples_per_second"] / run.train.get("batch_size", 8)
    assert manifest.stat().st_mtime - begun < BUDGET_SECONDS + 20 / steps_per_second


def test_a_signal_during_a_save(new_run: Callable[..., Run]) -> None:
    """The signal comes while the writer has the files but not yet the name."""
    run = new_run(epochs=10**6, checkpoint="4steps")
    slow_writer = mishap("writing", "sleep", 0.5, at=4)
    attempt = run.start(SLOW, mishap("writing", "signal", "SIGTERM", at=4), slow_writer, size=2)
    check_stop(attempt, "TERMINATED", size=2)
    assert run.checkpoints()[0] == 4, "what was being written is complete"
    assert run.checkpoints()[-1] > 4, "and the training went on meanwhile"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_signal_during_an_evaluation(new_run: Callable[..., Run], rank: int) -> None:
    """The shares of the test data are uneven: rank 1 has most, rank 2 nothing. The evaluation is
    given up, and the next attempt does it once."""
    run = new_run(epochs=2, batch_size=6)
    # Half a minute; an evaluation that was not given up would show below.
    attempt = run.start(mishap("evaluation", "sleep", 0.5, rank=1), size=3, task="Uneven")
    attempt.until(lambda: run.last_step() == 5)
    time.sleep(0.7)
    os.kill(attempt.pids[rank], signal.SIGTERM)
    check_stop(attempt, "TERMINATED", size=3)
    assert attempt.outcome["step"] == 5
    assert curve(run.path, "eval/error") == []

    assert run.start(attempt=2, size=3, task="Uneven").wait() == [0] * 3
    whole = new_run("whole", epochs=2, batch_size=6)
    assert whole.start(size=3, task="Uneven").wait() == [0] * 3
    assert curve(run.path, "eval/error") == curve(whole.path, "eval/error") != []
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
