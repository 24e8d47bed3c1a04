"""Loader processes: started once, without a fork; whatever happens to them is told, and none stays
behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.training import curve
from support.waiting import wait_until

from chaos.ranks import Attempt, Run, mishap

pytestmark = pytest.mark.ranks

SLOW: dict[str, Any] = mishap("step", "sleep", 0.02, rank=None)


@pytest.fixture
def streamed(new_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Makes runs of 4 steps an epoch with two loader processes a rank."""
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(16):
                image = Image.new("RGB", (8, 8), (10 * number, 0, 0))
                image.save(tmp_path / "images" / split / label / f"{number}.png")
    data = {"name": "imagefolder", "root": str(tmp_path / "images"), "in_memory": False}
    data |= {"image_size": 8, "workers": 2}
    model = {"name": "resnet8", "width": 8}

    def make(**options: Any) -> Run:
        return new_run(model=model, data=data, batch_size=8, **options)

    return make


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    """Nobody may reap it for a while; a zombie is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


def start(run: Run, *mishaps: dict[str, Any], size: int = 1) -> tuple[Attempt, list[list[int]]]:
    """An attempt that has trained for some steps, and the loaders of each rank."""
    attempt = run.start(*mishaps, size=size, task=None)
    attempt.until(lambda: run.last_step() >= 3)
    loaders = [children(pid) for pid in attempt.pids]
    assert [len(own) for own in loaders] == [2] * size
    return attempt, loaders


def test_a_rank_forks_nothing_and_keeps_its_loaders(streamed: Callable[..., Run]) -> None:
    """While threads of the sentry, the writer of checkpoints and the curves live in it."""
    run = streamed(epochs=10**6, checkpoint="1epoch")
    attempt, loaders = start(run, SLOW, mishap("start", "forks", rank=None), size=2)
    attempt.until(lambda: len(curve(run.path, "eval/accuracy")) >= 3 and run.checkpoints())
    assert [children(pid) for pid in attempt.pids] == loaders
    assert all(len(os.listdir(f"/proc/{pid}/task")) > 2 for pid in attempt.pids)
    os.kill(attempt.pids[0], signal.SIGTERM)
    assert attempt.wait() == [75, 75], attempt.said()
    assert "a fork" not in attempt.said()
    for pid in (*loaders[0], *loaders[1]):
        wait_until(lambda pid=pid: is_gone(pid), f"the end of {pid}")


def test_a_loader_that_stands_still_ends_with_its_rank(streamed: Callable[..., Run]) -> None:
    """SIGTERM would not reach it."""
    attempt, ((first, second),) = start(streamed(epochs=10**6), SLOW)
    os.kill(first, signal.SIGSTOP)
    for pid in (first, second):
        os.kill(pid, signal.SIGTERM)
    attempt.kill()
    attempt.wait()
    for pid in (first, second):
        wait_until(lambda pid=pid: is_gone(pid), f"the end of {pid}")


def test_a_hang_of_a_loader_ends_the_run_and_the_loader(streamed: Callable[..., Run]) -> None:
    run = streamed(epochs=10**6)
    run_of = Run(run.zygote, run.path, run.train, "15s")
    attempt, ((first, _), _) = start(run_of, SLOW, size=2)
    os.kill(first, signal.SIGSTOP)
    assert 1 in attempt.wait()
    assert attempt.outcome["reason"].startswith("no progress for"), attempt.said()
    assert 'hpc_amp/data/loaders.py", line' in attempt.said()
    wait_until(lambda: is_gone(first), f"the end of {first}")


def test_a_loader_that_is_killed_is_told_in_one_line(streamed: Callable[..., Run]) -> None:
    attempt, ((first, second),) = start(streamed(epochs=10**6), SLOW)
    os.kill(first, signal.SIGKILL)
    assert attempt.wait() == [1]
    assert attempt.outcome["reason"].startswith(f"loader process {first} was killed (SIGKILL)")
    assert "/images/t" in attempt.outcome["reason"]
    assert "Traceback" not in attempt.said()
    wait_until(lambda: is_gone(second), f"the end of {second}")
