"""Threads that read image files: nothing forks beside them, and what happens to files is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.training import curve

from chaos.ranks import Run, mishap

pytestmark = pytest.mark.ranks

SLOW: dict[str, Any] = mishap("step", "sleep", 0.02, rank=None)


@pytest.fixture
def streamed(new_run: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Makes runs of 4 steps an epoch with two reading threads a rank."""
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


def break_files(folder: Path, replace: Callable[[Path], None]) -> None:
    """Replace all training images; some have been read ahead."""
    for path in (folder / "images" / "train").rglob("*.png"):
        path.unlink()
        replace(path)


def test_a_rank_forks_nothing(streamed: Callable[..., Run]) -> None:
    """While threads of the sentry, the readers, the writer of checkpoints and the curves live in
    it."""
    run = streamed(epochs=10**6, checkpoint="1epoch")
    attempt = run.start(SLOW, mishap("start", "forks", rank=None), size=2, task=None)
    attempt.until(lambda: run.last_step() >= 3)
    attempt.until(lambda: len(curve(run.path, "eval/accuracy")) >= 3 and run.checkpoints())
    assert all(len(os.listdir(f"/proc/{pid}/task")) > 4 for pid in attempt.pids)
    os.kill(attempt.pids[0], signal.SIGTERM)
    assert attempt.wait() == [75, 75], attempt.said()
    assert "a fork" not in attempt.said()


def test_a_file_that_never_answers_ends_the_run(
    streamed: Callable[..., Run], tmp_path: Path
) -> None:
    """A named pipe that nobody writes to stands for a file system that hangs."""
    made = streamed(epochs=10**6)
    run = Run(made.zygote, made.path, made.train, "15s")
    attempt = run.start(SLOW, size=2, task=None)
    attempt.until(lambda: run.last_step() >= 3)
    break_files(tmp_path, os.mkfifo)
    assert 1 in attempt.wait()
    assert attempt.outcome["reason"].startswith("no progress for"), attempt.said()
    assert 'hpc_amp/data/readers.py", line' in attempt.said()


def test_a_file_that_is_damaged_is_told_in_one_line(
    streamed: Callable[..., Run], tmp_path: Path
) -> None:
    run = streamed(epochs=10**6)
    attempt = run.start(SLOW, task=None)
    attempt.until(lambda: run.last_step() >= 3)
    break_files(tmp_path, lambda path: path.write_bytes(b"no image") and None)
    assert attempt.wait() == [2]
    assert attempt.outcome["reason"].startswith(f"the image {tmp_path}/images/train/")
    assert "Traceback" not in attempt.said()
