"""Disks that are full, read-only or forbidden: training goes on, and saves again when it can."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.ranks import Attempt, Run, mishap
from hpc_amp.train.checkpoint import CheckpointStore, Retention

pytestmark = pytest.mark.ranks

MEBIBYTE = 2**20
SLOW = mishap("step", "sleep", 0.02, rank=None)
# A checkpoint has 4.3 MB: networks, their average, momentum.
LARGE: dict[str, Any] = {"epochs": 10**6, "ema": 0.9, "checkpoint": "5steps"}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path, str], None]]:
    """Mounts a tmpfs with options on a folder."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    mounted: list[Path] = []

    def do(folder: Path, options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", folder], check=True)
        mounted.append(folder)

    yield do
    for folder in reversed(mounted):
        subprocess.run(["umount", "--lazy", folder], check=True)


def train_on(attempt: Attempt, steps: int) -> None:
    """Wait until so many more steps are made."""
    target = attempt.run.last_step() + steps
    attempt.until(lambda: attempt.run.last_step() >= target or not attempt.living())
    assert attempt.living(), attempt.said()


def valid(folder: Path) -> list[int]:
    """The checkpoints in a folder, all of which are valid."""
    store = CheckpointStore(folder, run="run", retention=Retention(), warn=pytest.fail)
    return [step for step in store.steps() if store.load(step)]


def stop(attempt: Attempt) -> None:
    """It still stops as it should, at a checkpoint."""
    os.kill(attempt.pids[0], signal.SIGTERM)
    assert attempt.wait() == [75]
    assert valid(attempt.run.path / "checkpoints")[-1] == attempt.outcome["step"]


def fill(folder: Path, room: int) -> None:
    """Leave no more than this room on the disk."""
    disk = os.statvfs(folder)
    wanted = max(0, disk.f_bavail * disk.f_frsize - room)
    # The run may have taken it meanwhile.
    with contextlib.suppress(OSError), (folder / "ballast").open("ab", buffering=0) as ballast:
        ballast.write(bytes(wanted))


def test_a_full_disk(
    new_run: Callable[..., Run], mount: Callable[[Path, str], None], tmp_path: Path
) -> None:
    """16 MB for everything: run directory, log and checkpoints of 4.3 MB, of which three should
    stay. Then somebody else takes the room that is left."""
    mount(tmp_path / "run", "size=16m")
    run = new_run(**LARGE)
    folder = run.path / "checkpoints"
    attempt = run.start(SLOW, task="Large")
    attempt.until(lambda: "to make room" in attempt.said())
    assert "3 kept and one being written, need" in attempt.said(), "it was told at the start"
    train_on(attempt, 10)

    def refused() -> bool:
        """Several times: what one refused save leaves is taken before the next."""
        fill(run.path, MEBIBYTE)
        return attempt.said().count("WARNING: no checkpoint of step") >= 4

    attempt.until(refused)
    before = valid(folder)
    assert len(before) >= 2
    train_on(attempt, 15)
    assert valid(folder) == before, "what was there is intact"

    (run.path / "ballast").unlink()
    attempt.until(lambda: max(run.checkpoints()) > before[-1])
    stop(attempt)
    assert "No space left on device; training goes on" in attempt.said()


def test_a_disk_that_becomes_read_only(
    new_run: Callable[..., Run], mount: Callable[[Path, str], None], tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    mount(folder, "size=100m")
    run = new_run(**LARGE)
    attempt = run.start(SLOW, task="Large")
    attempt.until(lambda: run.checkpoints())
    remount(attempt, folder, "ro")
    attempt.until(lambda: "WARNING: no checkpoint of step" in attempt.said())
    assert "Read-only file system" in attempt.said()
    before = valid(folder)
    train_on(attempt, 15)
    assert valid(folder) == before

    remount(attempt, folder, "rw")
    attempt.until(lambda: max(run.checkpoints()) > before[-1])
    stop(attempt)


def remount(attempt: Attempt, folder: Path, mode: str) -> None:
    """Between two writes: a disk on which a file is open for writing cannot become read-only."""
    command = ["mount", "-o", f"remount,{mode}", folder]
    attempt.until(lambda: subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user and root again")
def test_permission_that_is_lost_and_comes_back(new_run: Callable[..., Run]) -> None:
    """Between the steps 12 and 33 the process is another user's, who may not write here."""
    nobody, root = mishap("step", "become", 65534, at=12), mishap("step", "become", 0, at=33)
    run = new_run(**LARGE)
    attempt = run.start(SLOW, nobody, root)
    attempt.until(lambda: max(run.checkpoints(), default=0) >= 40)
    stop(attempt)
    refused = re.findall(
        r"WARNING: no checkpoint of step (\d+): \[Errno 13\] Permission denied", attempt.said()
    )
    saved = re.findall(r"\] checkpoint \S+/step-0*(\d+)\n", attempt.said())
    # What was being written when the user changed may have got either.
    assert {"15", "20", "25"} <= set(refused)
    assert {"5", "35", "40"} <= set(saved)
    assert not set(refused) & set(saved)


def test_a_run_whose_last_step_is_on_no_disk_has_not_finished(new_run: Callable[..., Run]) -> None:
    run = new_run(checkpoint="5steps")
    attempt = run.start(mishap("writing", "refuse", at=10))
    assert attempt.wait() == [1]
    assert attempt.outcome["outcome"] == run.summary["outcome"] == "failed"
    assert "all steps done, but step 10 could not be saved" in attempt.outcome["reason"]
    assert run.start(attempt=2).wait() == [0]
    assert (run.summary["outcome"], run.checkpoints()) == ("finished", [5, 10])


def test_a_stop_that_could_not_be_saved_says_so(new_run: Callable[..., Run]) -> None:
    """The run goes on all the same, from the checkpoint before."""
    run = new_run(checkpoint="5steps")
    stopping = (mishap("start", "exchange"), mishap("step", "signal", "SIGTERM", at=7))
    attempt = run.start(*stopping, mishap("writing", "refuse", at=7))
    assert attempt.wait() == [75]
    assert attempt.outcome["outcome"] == "checkpointed"
    assert "but step 7 could not be saved" in attempt.outcome["reason"]
    assert run.checkpoints() == [5]


def test_a_log_that_takes_no_line(new_run: Callable[..., Run]) -> None:
    """The log is on the disk that is full, as a rule: its lines are lost, not the run, and the exit
    status still tells how it ended."""
    run = new_run(checkpoint="5steps")
    run.log = Path("/dev/full")
    stopping = (mishap("start", "exchange"), mishap("step", "signal", "SIGTERM", at=7))
    assert run.start(*stopping).wait() == [75]
    assert run.start(attempt=2).wait() == [0]
    assert run.summary["outcome"] == "finished"
    assert valid(run.path / "checkpoints") == [5, 7, 10]
