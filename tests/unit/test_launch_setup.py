"""The lines of `setup`, and the user's start-up and log-out files, in the launch script."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.environment import LOGOUT, REPOSITORY
from support.stubs import StubHost, events, read_reports, report_command, wait
from support.waiting import wait_for_file

from hpc_amp.errors import ConfigError
from hpc_amp.jobs.events import read_events


def test_a_line_that_fails_is_noted_and_ends_nothing(host: StubHost) -> None:
    out = host.folder / "out"
    (host.work / "activate").write_text("[[ $- == *i* ]] || return\nexport NEVER=1\n")
    run_dir = host.create(
        {
            "run": report_command(out),
            "job": {
                "setup": f"export ONE='a b'\n. {host.work}/activate\nfalse\ncd /\n"
                "export TWO=2\nIFS=,"
            },
        }
    )

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    assert "note: job.setup: line 3: `false` returned 1\n" in ended.output
    (report,) = read_reports(out)
    assert report.environ["ONE"] == "a b"
    assert report.environ["TWO"] == "2"
    assert "NEVER" not in report.environ
    assert events(run_dir)[-1] == "finished"


@pytest.mark.parametrize(
    ("setup", "line", "status"),
    [
        ("true\nset -e\nfalse\ntrue", "job.setup: line 3: `false`", 1),
        ("true\nexit 3", "job.setup: line 2: `exit 3`", 3),
        ('set -u\necho "$NOWHERE"', 'job.setup: line 2: `echo "$NOWHERE"`', 1),
        ("exit 0", "job.setup: line 1: `exit 0`", 0),
        (
            'set -e\nfor i in 1 2; do\n  test "$i" = "\\1"\ndone',
            'job.setup: line 3: `test "$i" = "\\1"`',
            1,
        ),
    ],
)
def test_the_line_that_ends_the_job_is_named(
    host: StubHost, setup: str, line: str, status: int
) -> None:
    """In the log, in the record of the run, and so in `status`; also with a log-out file that would
    make a success of it."""
    home = host.folder / "home"
    home.mkdir()
    (home / ".bash_logout").write_text(f"{LOGOUT}exit 0\n")
    (home / ".bash_profile").write_text(f"export PATH={host.bin}:$PATH\n")
    run_dir = host.create({"run": ["touch", "ran"], "job": {"setup": setup}})

    result = as_a_login_shell(host, run_dir, home)

    assert result.returncode == 2
    assert f"hpc-amp: {line} ended with status {status}\n" in result.stderr
    assert last_reason(run_dir) == f"{line} ended with status {status}"
    assert events(run_dir) == ["failed"]
    assert (run_dir / "attempts/1/ended").exists()
    assert not (host.work / "ran").exists()


def test_a_signal_in_a_line_of_setup_is_recorded(host: StubHost) -> None:
    run_dir = host.create({"run": ["touch", "ran"], "job": {"setup": "touch waits\nsleep 600"}})
    process = host.start(run_dir)
    wait_for_file(run_dir / "waits")

    os.killpg(process.pid, signal.SIGTERM)
    ended = wait(process)

    assert ended.status == 2
    assert last_reason(run_dir) == "job.setup: line 2: `sleep 600` was ended by SIGTERM"
    assert not (host.work / "ran").exists()


@pytest.mark.parametrize("logout", [LOGOUT, "exit 0\n", "exit 9\n", "set -e\nfalse\n"])
@pytest.mark.parametrize("status", [0, 5, 75])
def test_no_log_out_file_decides_the_status(host: StubHost, logout: str, status: int) -> None:
    home = host.folder / "home"
    home.mkdir()
    (home / ".bash_logout").write_text(logout)
    (home / ".bash_profile").write_text(f"export PATH={host.bin}:$PATH\n")
    run_dir = host.create({"run": ["sh", "-c", f"exit {status}"], "job": {"max_restarts": 0}})

    result = as_a_login_shell(host, run_dir, home)

    assert result.returncode == status, result.stderr
    assert (run_dir / "attempts/1/ended").exists()


@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        ("echo 'a", "line 1: unexpected EOF"),
        ("cat <<END\nhello", "here-document"),
        ("if true; then", "line 2: syntax error"),
        ("module load a \\", "ends with a backslash"),
    ],
)
def test_lines_that_bash_cannot_read_are_refused(host: StubHost, setup: str, problem: str) -> None:
    """They would swallow the script that comes after them."""
    with pytest.raises(ConfigError) as error:
        host.create({"run": ["true"], "job": {"setup": setup}})

    assert problem in str(error.value)
    assert "job.yaml:" in str(error.value)


def test_no_end_of_a_child_is_lost_behind_a_trap() -> None:
    """PBS sends SIGTERM to all processes of a job at once. With bash's `wait` in a loop a script
    hung in 8 of 40 rounds, and had lost the status in many more."""
    part = REPOSITORY / "hpc_amp" / "host" / "child.sh"
    script = f"""{part.read_text()}
pid=
stop_signal=
pass_on() {{ stop_signal=TERM; [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null || true; }}
trap pass_on TERM
child() {{ exec bash -c 'trap "exit 75" TERM; echo ready; while :; do sleep 0.05; done'; }}
status=0
run_child pid child || status=$?
echo "$status [$pid]"
"""
    for _ in range(40):
        process = subprocess.Popen(
            ["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout.readline() == "75 []\n"


def last_reason(run_dir: Path) -> str:
    return str(read_events(run_dir)[-1]["reason"])


def as_a_login_shell(host: StubHost, run_dir: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """The script by its first line, as schedulers start it, in the innermost shell there can be."""
    return subprocess.run(
        [run_dir / "launch.sh"],
        env={
            "HOME": str(home),
            "PATH": host.environ()["PATH"],
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "n1",
        },
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_the_record_is_json_whatever_the_command_is(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "job": {"setup": 'set -e\ntest "\\\t\'é" = x'}})

    host.run(run_dir)

    reason = read_events(run_dir)[-1]["reason"]
    assert reason == 'job.setup: line 2: `test "\\?\'é" = x` ended with status 1'
