"""When a process wants to stop, and when the ranks ask each other."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.environment import clean_environ

from hpc_amp.distributed.world import World
from hpc_amp.train.stopping import StopReason, StopWatch

SIGNALS = {
    signal.SIGUSR1: StopReason.WARNED,
    signal.SIGUSR2: StopReason.WARNED,
    signal.SIGTERM: StopReason.TERMINATED,
    signal.SIGINT: StopReason.ASKED,
}


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[StopWatch]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    made = StopWatch(stop_at=None, stop_file=tmp_path / "stop")
    made.install_handlers()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_no_reason(watch: StopWatch) -> None:
    assert watch.look() is StopReason.NONE
    watch.stop_at = time.time() + 3600
    assert watch.look() is StopReason.NONE
    assert StopWatch(stop_at=None, stop_file=None).look() is StopReason.NONE


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_reason_until_the_end(watch: StopWatch, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert watch.look() is watch.look() is SIGNALS[number]


def test_the_highest_reason_prevails(watch: StopWatch, tmp_path: Path) -> None:
    """Whether the run goes on by itself depends on it: a stop that the user asked for must not be
    hidden by a warning that came before."""
    watch.stop_at = time.time() - 1
    assert watch.look() is StopReason.DEADLINE
    os.kill(os.getpid(), signal.SIGUSR1)
    assert watch.look() is StopReason.WARNED
    (tmp_path / "stop").touch()
    assert watch.look() is StopReason.ASKED
    os.kill(os.getpid(), signal.SIGTERM)
    assert watch.look() is StopReason.TERMINATED
    os.kill(os.getpid(), signal.SIGUSR1)
    assert watch.look() is StopReason.TERMINATED


def test_a_later_attempt_prevails_over_all(watch: StopWatch, tmp_path: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    watch.successor = tmp_path / "attempts" / "2"
    assert watch.look() is StopReason.TERMINATED
    watch.successor.mkdir(parents=True)
    assert watch.look() is StopReason.SUPERSEDED


def test_a_file_system_that_does_not_answer_is_no_reason(
    watch: StopWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    watch.successor = tmp_path / "2"
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        assert watch.look() is StopReason.NONE


def test_the_time_of_the_first_sigterm_is_kept(watch: StopWatch) -> None:
    watch.note(signal.SIGUSR1)
    assert watch.terminated_at is None
    watch.note(signal.SIGTERM)
    first = watch.terminated_at
    assert first is not None
    time.sleep(0.01)
    watch.note(signal.SIGTERM)
    assert watch.terminated_at == first


def test_a_deadline_moves_forward_where_a_save_needs_more_time() -> None:
    now = time.time()
    watch = StopWatch(stop_at=now + 1000, stop_file=None, end_at=now + 1200)
    watch.leave_time(100)
    assert watch.stop_at == now + 1000, "the plan leaves more"
    watch.leave_time(500)
    assert watch.stop_at == now + 700
    watch.leave_time(300)
    assert watch.stop_at == now + 700, "it never moves back"
    assert watch.look() is StopReason.NONE
    watch.leave_time(1300)
    assert watch.look() is StopReason.DEADLINE


def test_without_an_end_no_deadline_moves() -> None:
    watch = StopWatch(stop_at=time.time() + 1000, stop_file=None)
    watch.leave_time(5000)
    assert watch.look() is StopReason.NONE
    assert StopWatch(stop_at=None, stop_file=None, end_at=1.0).look() is StopReason.NONE


@pytest.mark.parametrize("change", [-86_400, 86_400])
def test_a_clock_that_is_set_moves_no_deadline(
    monkeypatch: pytest.MonkeyPatch, change: float
) -> None:
    late = StopWatch(stop_at=time.time() - 1, stop_file=None)
    early = StopWatch(stop_at=time.time() + 3600, stop_file=None)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + change)
    assert late.look() is StopReason.DEADLINE
    assert early.look() is StopReason.NONE
    assert abs(early.now() - real()) < 600


def test_a_second_interrupt_interrupts(watch: StopWatch) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_every_reason_has_words() -> None:
    assert len({reason.text for reason in StopReason}) == len(StopReason)


def test_handlers_stand_before_torch_is_imported() -> None:
    code = "import sys, hpc_amp.train.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=clean_environ(), check=True)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def exchanges(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], *, first_step: int = 1
) -> list[int]:
    """The steps after which an agreement with an interval of 1 s was due, where the n-th step takes
    `seconds[n]`."""
    from hpc_amp.train import agreement

    clock = Clock()
    monkeypatch.setattr(agreement, "time", clock)
    made = agreement.Agreement(World(), StopWatch(stop_at=None, stop_file=None), interval=1.0)
    clock.now += 60  # building networks, loading data
    due = []
    for step, duration in enumerate(seconds, first_step):
        clock.now += duration
        if made.due(step):
            due.append(step)
            made.exchange(step, save=False)
    return due


def test_the_exchange_is_about_as_often_as_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exchanges(monkeypatch, [0.125] * 30) == [1, 2, 10, 18, 26]


def test_slow_steps_exchange_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exchanges(monkeypatch, [5.0] * 4) == [1, 2, 3, 4]


def test_it_adapts_when_steps_become_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = exchanges(monkeypatch, [0.125] * 12 + [2.0] * 10)
    assert seen == [1, 2, 10, 18, 19, 20, 21, 22]


def test_very_fast_steps_still_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exchanges(monkeypatch, [1e-9] * 2500) == [1, 2, 1002, 2002]


def test_a_resumed_run_does_not_take_its_steps_for_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million steps that an earlier attempt made took no time in this one."""
    seen = exchanges(monkeypatch, [5.0] * 4, first_step=1_000_001)
    assert seen == [1_000_001, 1_000_002, 1_000_003, 1_000_004]


def test_alone_the_agreement_is_this_process_view(watch: StopWatch, tmp_path: Path) -> None:
    from hpc_amp.train.agreement import Agreement

    made = Agreement(World(), watch)
    assert made.exchange(1, save=True) == (StopReason.NONE, True)
    (tmp_path / "stop").touch()
    assert made.exchange(2, save=False) == (StopReason.ASKED, False)
