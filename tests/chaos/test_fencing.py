"""Two attempts in one run directory: the later one has it, the earlier one leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from support.training import curve

from chaos.ranks import Run, mishap

pytestmark = pytest.mark.ranks

TRAIN: dict[str, Any] = {"epochs": 40, "checkpoint": "3steps"}
STEPS = 200
SLOW = mishap("step", "sleep", 0.02, rank=None)


@pytest.fixture
def whole(new_run: Callable[..., Run]) -> Run:
    """The same run, left alone."""
    run = new_run("whole", **TRAIN)
    assert run.start().wait() == [0]
    return run


def check_end(run: Run, whole: Run) -> None:
    assert run.summary["outcome"] == "finished"
    assert run.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert run.checkpoints()[-1] == STEPS
    assert list((run.path / "checkpoints").glob(".tmp-*")) == []


@pytest.mark.parametrize("size", [1, 2])
def test_an_earlier_attempt_that_still_trains_leaves_without_saving(
    new_run: Callable[..., Run], whole: Run, size: int
) -> None:
    run = new_run(**TRAIN)
    first = run.start(SLOW, size=size)
    first.until(lambda: run.checkpoints())
    second = run.start(SLOW, attempt=2)
    assert first.wait() == [1] * size
    assert "a later attempt has taken over this run" in first.said()
    assert "Traceback" not in first.said()
    assert not (first.path / "outcome.json").exists(), "it has nothing to say any more"
    assert second.wait() == [0]
    if size == 1:
        check_end(run, whole)
    assert [step for step, _ in curve(run.path, "train/loss")][-1] == STEPS


@pytest.mark.chaos
def test_an_earlier_attempt_that_wakes_up_in_the_middle_of_a_write(
    new_run: Callable[..., Run], whole: Run
) -> None:
    """A node that was taken for lost: its rank is held up with the files written and the name not
    yet given, while the run is continued elsewhere, and then goes on where it was."""
    run = new_run(**TRAIN)
    # The thread that stops its process may get on a little before it stops itself.
    held = mishap("writing", "signal", "SIGSTOP", at=6), mishap("writing", "sleep", 1.0, at=6)
    first = run.start(*held, SLOW)
    first.until(lambda: any((run.path / "checkpoints").glob(".tmp-step-00000006-*/MANIFEST.json")))
    second = run.start(SLOW, attempt=2)
    second.until(lambda: max(run.checkpoints()) > 12)
    os.kill(first.pids[0], signal.SIGCONT)
    assert first.wait() == [1]
    assert "a later attempt has taken over this run" in first.said()
    assert second.wait() == [0], second.said()
    assert "WARNING" not in second.said()
    check_end(run, whole)
