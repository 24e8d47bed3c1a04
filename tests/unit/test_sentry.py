"""The thread that ends a rank when it has to: after a hang, and before the scheduler kills.

Most tests run its loop on a clock of their own, which every look moves on.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_amp.train import heartbeat, stopping
from hpc_amp.train import sentry as module
from hpc_amp.train.heartbeat import read_heartbeats
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.sentry import Sentry, stacks
from hpc_amp.train.stopping import StopReason, StopWatch

TODAY = 1_800_000_000.0


class Left(Exception):
    """The rank has left; the argument is its exit status."""


class Clock:
    """Time that passes in looks only. `events` happen at their seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.set_by = 0.0
        self.events: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return TODAY + self.set_by + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def select(self, readers: Any, writers: Any, errors: Any, timeout: float) -> Any:
        self.now += timeout
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()
        return [], [], []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "select", made)
    for other in (stopping, heartbeat):
        monkeypatch.setattr(other, "time", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path, 1)
    made.attempt_path.mkdir(parents=True)
    return made


def leave(status: int) -> None:
    raise Left(status)


def sentry(run: RunDirectory, *, grace: float = 30.0, **watch: float) -> Sentry:
    times = {"stop_at": None, "end_at": None, **watch}
    made = Sentry(run, StopWatch(stop_file=None, **times), rank=0, grace=grace, leave=leave)
    made.moved(5, "training")
    return made


def outcome(run: RunDirectory) -> dict[str, Any]:
    return json.loads(run.outcome_file.read_text())


def watch_until(made: Sentry, clock: Clock, seconds: float) -> None:
    """Let it watch for so long; it must not leave."""
    clock.events[clock.now + seconds] = made.close
    made.run()
    assert clock.now >= seconds
    assert not made.run_directory.outcome_file.exists()


# -- hangs ---------------------------------------------------------------------------------------


def test_no_progress_is_a_hang_that_is_explained(
    run: RunDirectory, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    made = sentry(run)
    made.limit(60)
    clock.events[30] = lambda: made.moved(6, "evaluation")
    with pytest.raises(Left, match="1"):
        made.run()
    assert 90 < clock.now < 100
    found = outcome(run)
    assert (found["outcome"], found["cause"], found["step"]) == ("failed", "NONE", 6)
    assert re.fullmatch(
        r"no progress for 6\d s in step 6 \(evaluation\), seen by rank 0", found["reason"]
    )
    said = capfd.readouterr().err
    assert "launch.timeout" in said
    lines = said.splitlines()
    assert all(line.startswith("hpc-amp: rank 0: ") for line in lines)
    assert any("in test_no_progress_is_a_hang_that_is_explained" in line for line in lines)


@pytest.mark.parametrize("late", [False, True])
def test_it_leaves_even_where_nothing_can_be_kept(
    run: RunDirectory,
    clock: Clock,
    late: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A process with too many open files; a Python that was built for an old system has no memfd.
    A thread that died of it would end nothing any more."""

    def refuse(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    made = sentry(run)
    made.limit(60)
    if late:
        clock.events[10] = lambda: made.watch.note(signal.SIGTERM)
    with pytest.raises(Left, match="75" if late else "1"):
        made.run()
    assert "in test_it_leaves_even_where_nothing_can_be_kept" in capfd.readouterr().err


def test_progress_is_no_hang(run: RunDirectory, clock: Clock) -> None:
    made = sentry(run)
    made.limit(60)
    for second in range(50, 1000, 50):
        clock.events[second] = lambda second=second: made.moved(second, "training")
    watch_until(made, clock, 1000)


def test_what_has_limits_of_its_own_is_no_hang(run: RunDirectory, clock: Clock) -> None:
    """The start, in which networks are built and ranks wait for each other, and the end."""
    made = sentry(run)
    clock.events[5000] = lambda: made.limit(60)
    clock.events[5030] = made.unlimit
    watch_until(made, clock, 9000)


def test_a_process_that_slept_has_not_hung(run: RunDirectory, clock: Clock) -> None:
    """A job that was suspended for hours. What it does afterwards is watched as before."""
    made = sentry(run)
    made.limit(60)
    clock.events[10] = lambda: clock.sleep(7200)
    with pytest.raises(Left):
        made.run()
    assert 7200 + 60 < clock.now < 7200 + 90


def test_a_clock_that_is_set_is_no_hang_and_no_end(run: RunDirectory, clock: Clock) -> None:
    made = sentry(run, stop_at=TODAY + 5000, end_at=TODAY + 6000)
    made.limit(600)
    for at, change in ((100, 86_400.0), (200, -86_400.0)):
        clock.events[at] = lambda change=change: setattr(clock, "set_by", change)
    clock.events[300] = lambda: made.moved(6, "training")
    watch_until(made, clock, 800)
    assert made.watch.look() is StopReason.NONE


def test_a_silent_rank_of_this_machine_is_named_and_ended(
    run: RunDirectory, clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real process that is stopped: it is woken for its stacks, and then killed."""
    code = "import faulthandler, signal, sys, time; from pathlib import Path\n"
    code += "from hpc_amp.train.heartbeat import Heartbeat\n"
    code += "faulthandler.register(signal.SIGQUIT)\n"
    code += "def hang():\n  print('alive', flush=True); time.sleep(1e5)\n"
    code += "Heartbeat(Path(sys.argv[1]), 1).write(4, 'training', 0); hang()"
    command = [sys.executable, "-c", code, str(run.heartbeats)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "alive\n"
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
            made = sentry(run)
            made.limit(60)
            (beat,) = read_heartbeats(run.heartbeats)
            elsewhere = {**beat, "rank": 2, "host": "b"}
            lively = {**beat, "rank": 3, "time": beat["time"] + 60}
            for changed in (elsewhere, lively):
                file = run.heartbeats / f"rank-{changed['rank']:05d}"
                file.write_text(json.dumps(changed))
            clock.set_by = beat["time"] - TODAY
            clock.sleep = time.sleep  # type: ignore[method-assign]  # the stacks take real time
            with pytest.raises(Left):
                made.run()
            assert other.wait() == -signal.SIGKILL
        finally:
            other.kill()
    reason = outcome(run)["reason"]
    assert re.search(rf"silent: rank 1 \(\S+, process {other.pid}, step 4: stopped\)", reason)
    assert re.search(r"rank 2 \(b, process \d+, step 4: since \d+ s\)", reason)
    assert "rank 3" not in reason
    said = capfd.readouterr().err
    assert re.search(r"the stacks of rank 1 .*(\n.*)*File .* in hang", said)


# -- a stop that takes too long ------------------------------------------------------------------


@pytest.mark.parametrize(("grace", "latest"), [(30, 25), (4, 3)])
def test_it_leaves_before_the_grace_ends(
    run: RunDirectory, clock: Clock, grace: float, latest: float
) -> None:
    made = sentry(run, grace=grace)
    clock.events[10] = lambda: made.watch.note(signal.SIGTERM)
    with pytest.raises(Left, match="75"):
        made.run()
    assert 10 + latest <= clock.now < 10 + grace
    found = outcome(run)
    assert (found["outcome"], found["cause"]) == ("checkpointed", "TERMINATED")
    assert "rank 0 could not save in time in step 5 (training)" in found["reason"]


def test_the_reason_before_the_first_step(run: RunDirectory, clock: Clock) -> None:
    watch = StopWatch(stop_file=None, stop_at=None, end_at=None)
    made = Sentry(run, watch, rank=0, grace=30, leave=leave)
    clock.events[10] = lambda: made.watch.note(signal.SIGTERM)
    with pytest.raises(Left, match="75"):
        made.run()
    assert "rank 0 could not save in time in step 0 (starting)" in outcome(run)["reason"]


@pytest.mark.parametrize(("stop_at", "latest"), [(60, 90), (10, 85)])
def test_it_leaves_before_the_job_ends(
    run: RunDirectory, clock: Clock, stop_at: float, latest: float
) -> None:
    made = sentry(run, stop_at=TODAY + stop_at, end_at=TODAY + 100)
    with pytest.raises(Left, match="75"):
        made.run()
    assert latest < clock.now < 100
    assert (outcome(run)["outcome"], outcome(run)["cause"]) == ("checkpointed", "DEADLINE")


def test_it_does_not_leave_where_there_is_time(run: RunDirectory, clock: Clock) -> None:
    made = sentry(run, stop_at=TODAY + 5000, end_at=TODAY + 6000)
    clock.events[10] = lambda: made.watch.note(signal.SIGUSR1)  # a warning, not the end
    watch_until(made, clock, 4000)


def test_a_rank_that_is_done_is_left_alone(run: RunDirectory, clock: Clock) -> None:
    made = sentry(run, grace=8)
    made.watch.note(signal.SIGTERM)
    watch_until(made, clock, 5)


def test_the_first_outcome_stays(run: RunDirectory, clock: Clock) -> None:
    run.outcome_file.write_text('{"outcome": "finished"}')
    made = sentry(run)
    made.watch.note(signal.SIGTERM)
    with pytest.raises(Left, match="75"):
        made.run()
    assert outcome(run) == {"outcome": "finished"}


# -- signs of life, signals, stacks --------------------------------------------------------------


@pytest.mark.parametrize(("limit", "interval"), [(None, 10), (600, 10), (8, 2)])
def test_signs_of_life_follow_each_other(
    run: RunDirectory, clock: Clock, limit: float | None, interval: float
) -> None:
    made = sentry(run)
    if limit is not None:
        made.limit(limit)
    seen = []

    def look() -> None:
        made.moved(made.step + 1, "training")
        seen.append(read_heartbeats(run.heartbeats))
        clock.events[clock.now + 0.9] = look

    clock.events[1] = look
    watch_until(made, clock, 60)
    times = sorted({beat["time"] - TODAY for beats in seen for beat in beats})
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert len(gaps) > 3
    assert all(interval <= gap <= interval + 1 for gap in gaps)


@pytest.fixture
def listening(run: RunDirectory) -> Iterator[Sentry]:
    """A sentry that listens to this process's signals, whose own handlers do nothing."""
    before = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    made = Sentry(run, StopWatch(stop_at=None, stop_file=None), rank=0, grace=30, leave=leave)
    made.listen()
    yield made
    made.close()
    made.join()
    signal.signal(signal.SIGUSR2, before)


def test_a_signal_is_heard_without_the_help_of_the_main_thread(listening: Sentry) -> None:
    os.kill(os.getpid(), signal.SIGUSR2)
    deadline = time.monotonic() + 60
    while listening.watch.look() is StopReason.NONE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert listening.watch.look() is StopReason.WARNED


def test_a_rank_that_is_done_is_deaf_again(listening: Sentry) -> None:
    """A notebook goes on after a training."""
    listening.close()
    listening.join()
    assert signal.set_wakeup_fd(-1) == -1
    os.kill(os.getpid(), signal.SIGUSR2)
    assert listening.watch.look() is StopReason.NONE


def test_there_is_a_sign_of_life_from_the_start(listening: Sentry) -> None:
    """A rank that is stopped in its first second would not be missed otherwise."""
    (beat,) = read_heartbeats(listening.run_directory.heartbeats)
    assert (beat["pid"], beat["phase"]) == (os.getpid(), "starting")


def test_another_rank_may_ask_for_the_stacks(
    listening: Sentry, capfd: pytest.CaptureFixture[str]
) -> None:
    """With SIGQUIT, whose handler needs no Python. It writes to the true standard error."""
    os.kill(os.getpid(), signal.SIGQUIT)
    assert "in test_another_rank_may_ask_for_the_stacks" in capfd.readouterr().err


def test_stacks_are_those_of_all_threads(listening: Sentry) -> None:
    shown = stacks()
    assert "in test_stacks_are_those_of_all_threads" in shown
    assert "sentry.py" in shown
