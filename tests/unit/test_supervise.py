"""A user's own program as a rank: exit statuses and signals between it and the launcher."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.environment import clean_environ
from support.waiting import is_running

SUPERVISE = """
import os, pathlib, sys
from hpc_amp.distributed.supervise import supervise
mark = pathlib.Path(sys.argv[1])
sys.exit(supervise(sys.argv[2:], os.environ, lambda: None, may_stop=True, mark=mark))
"""


def words(mark: Path, program: str) -> list[str]:
    return [sys.executable, "-c", SUPERVISE, str(mark), "bash", "-c", program]


def status(mark: Path, program: str) -> int:
    return subprocess.run(words(mark, program), env=clean_environ(), check=False).returncode


@pytest.mark.parametrize(("program", "seen"), [("true", 0), ("exit 3", 3), ("exit 255", 255)])
def test_a_status_is_passed_on(tmp_path: Path, program: str, seen: int) -> None:
    assert status(tmp_path / "stopped", program) == seen
    assert not (tmp_path / "stopped").exists()


def test_a_stop_at_a_checkpoint_is_no_crash(tmp_path: Path) -> None:
    assert status(tmp_path / "stopped", "exit 75") == 0
    assert (tmp_path / "stopped").exists()


def test_a_stop_that_cannot_be_marked_is_told_by_the_status(tmp_path: Path) -> None:
    """On a full disk: the script understands a 75, too, though launchers do not."""
    assert status(tmp_path / "missing" / "stopped", "exit 75") == 75


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM"])
def test_it_ends_by_the_signal_that_ended_the_program(tmp_path: Path, name: str) -> None:
    ended = status(tmp_path / "stopped", f"kill -{name} $$")

    assert ended == -getattr(signal, f"SIG{name}")


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "USR2"])
def test_signals_reach_the_program(tmp_path: Path, name: str) -> None:
    program = f"trap 'echo got {name}; exit 75' {name}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        words(tmp_path / "stopped", program),
        env=clean_environ(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        process.send_signal(getattr(signal, f"SIG{name}"))

        assert process.stdout.readline() == f"got {name}\n"
        assert process.wait() == 0


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISE, str(tmp_path / "stopped"), "/no/such"]
    ended = subprocess.run(command, env=clean_environ(), capture_output=True, text=True)

    assert ended.returncode == 1
    assert "FileNotFoundError" in ended.stderr


def test_the_program_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """With what `exec` prepares in the child."""
    pid_file = tmp_path / "pid"
    script = SUPERVISE.replace("lambda: None", "end_with_parent").replace(
        "import os,", "from hpc_amp.distributed.ending import end_with_parent\nimport os,"
    )
    program = f"echo $$ >{pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 1000"
    command = [sys.executable, "-c", script, str(tmp_path / "stopped"), "bash", "-c", program]
    process = subprocess.Popen(command, env=clean_environ())
    while not pid_file.exists():
        time.sleep(0.02)

    process.kill()
    process.wait()

    pid = int(pid_file.read_text())
    try:
        while os.path.exists(f"/proc/{pid}/exe") or is_running(pid):
            time.sleep(0.02)
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


COUNTING = """
import os, signal, sys, time
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: print(number, flush=True))
print("ready", flush=True)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    time.sleep(0.05)
"""


def test_two_signals_in_short_order_reach_the_program_once_each(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISE, str(tmp_path / "stopped"), sys.executable, "-c"]
    with subprocess.Popen(
        [*command, COUNTING],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # the witness is started after the program

        os.killpg(process.pid, signal.SIGUSR1)
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)

        got = sorted(int(line) for line in process.stdout)
    assert got == sorted([signal.SIGUSR1, signal.SIGTERM])


def test_it_ends_by_a_real_time_signal(tmp_path: Path) -> None:
    number = signal.SIGRTMIN + 3
    assert status(tmp_path / "stopped", f"kill -{number} $$") == -number


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    ended = subprocess.run(
        words(tmp_path / "stopped", "kill -HUP $$; exit 3"),
        env=clean_environ(),
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert ended.returncode == 3


def test_more_files_than_select_can_take(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    opened = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2000, {most}))\n"
        "import os\nfor _ in range(1100): os.dup(0)\n"
    )
    command = [sys.executable, "-c", opened + SUPERVISE, str(tmp_path / "stopped")]
    ended = subprocess.run(
        [*command, "sh", "-c", "sleep 0.3; exit 3"],
        env=clean_environ(), check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert ended.returncode == 3
