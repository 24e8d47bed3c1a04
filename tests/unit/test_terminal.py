"""A watched command: when the window is closed or a key pressed before the job's id is known."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.environment import clean_environ
from support.terminal import Terminal
from support.waiting import wait_for_file

# Says the id once the test lets it, and then waits for resources.
_QSUB = """\
touch started
until [ -e say ]; do sleep 0.02; done
echo "waiting for job 7.head to start"
sleep 1000
"""

# What `hpc-amp shell` does with qsub, and a qdel that says what it got.
_WATCH = """
import os, signal, sys, time
from hpc_amp.jobs import terminal
from hpc_amp.schedulers.base import Interactive

def cancel(job_id):
    open("deleting", "w").close()
    while not os.path.exists("delete"):
        time.sleep(0.02)
    open("deleted", "w").write(job_id)

terminal._ID_SECONDS = float(sys.argv[1])
how = Interactive(["bash", "qsub"], dict(os.environ), r"job (\\S+) to start", r"job \\S+ ready")
try:
    terminal.watch(how, cancel)
except terminal.SessionInterrupted as interrupted:
    open("interrupted", "w").write(f"{interrupted.number} {interrupted.job_id}")
"""


@pytest.fixture
def window(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    (tmp_path / "qsub").write_text(_QSUB)
    command = [sys.executable, "-c", _WATCH, str(getattr(request, "param", 600))]
    with Terminal(command, cwd=tmp_path, environ=clean_environ()) as terminal:
        wait_for_file(tmp_path / "started")
        yield terminal


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_id_is_known_waits_for_it(
    window: Terminal, tmp_path: Path, number: signal.Signals
) -> None:
    """Otherwise the job would stay in the queue, and nobody would know of it."""
    os.kill(window.pid, number)
    (tmp_path / "say").touch()
    wait_for_file(tmp_path / "deleting")
    # Who closes a window may say so more than once.
    os.kill(window.pid, signal.SIGHUP)
    os.kill(window.pid, signal.SIGTERM)
    (tmp_path / "delete").touch()
    window.end()

    assert (tmp_path / "deleted").read_text() == "7.head"
    assert (tmp_path / "interrupted").read_text() == f"{int(number)} 7.head"


def test_ctrl_c_before_the_id_is_known_waits_for_it(window: Terminal, tmp_path: Path) -> None:
    (tmp_path / "delete").touch()
    window.interrupt()
    (tmp_path / "say").touch()
    window.end()

    assert (tmp_path / "interrupted").read_text() == "2 7.head"


@pytest.mark.parametrize("window", [0.2], indirect=True)
def test_an_id_that_does_not_come_is_not_waited_for(window: Terminal, tmp_path: Path) -> None:
    os.kill(window.pid, signal.SIGHUP)
    window.end()

    assert (tmp_path / "interrupted").read_text() == "1 None"
    assert not (tmp_path / "deleting").exists()


def test_a_terminal_that_is_gone_is_a_window_that_was_closed(tmp_path: Path) -> None:
    (tmp_path / "qsub").write_text(_QSUB)
    (tmp_path / "delete").touch()
    command = [sys.executable, "-c", _WATCH, "600"]
    with Terminal(command, cwd=tmp_path, environ=clean_environ()) as terminal:
        wait_for_file(tmp_path / "started")
        terminal.close()
        (tmp_path / "say").touch()
        wait_for_file(tmp_path / "interrupted")

    assert (tmp_path / "interrupted").read_text() == "1 7.head"
