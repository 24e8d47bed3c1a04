"""The lines of `setup`, and the user's start-up and log-out files, in the launch script."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
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
    command = "sh -c 'touch waits; exec sleep 600'"
    run_dir = host.create({"run": ["touch", "ran"], "job": {"setup": f"true\n{command}"}})
    process = host.start(run_dir)
    wait_for_file(run_dir / "waits")

    os.killpg(process.pid, signal.SIGTERM)
    ended = wait(process)

    assert ended.status == 2
    assert last_reason(run_dir) == f"job.setup: line 2: `{command}` was ended by SIGTERM"
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


NAMES = """\
attempt=3 status=7 outcome=finished job_id=x launch_pid=1 keeper=1 began=0 deadline=0 session=y
run_dir=/nowhere image=/nowhere own={precious}
fail() {{ exit 9; }}
record() {{ exit 9; }}
count() {{ echo 9; }}
exit() {{ builtin exit 9; }}
enter_container() {{ exit 9; }}
launch() {{ exit 9; }}
"""


def test_names_of_the_script_may_be_used_in_setup(host: StubHost) -> None:
    setup = NAMES.format(precious=host.work)
    run_dir = host.create({"run": ["true"], "job": {"setup": setup}}, "launch.preflight=true")

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    assert events(run_dir) == ["started", "finished"]
    assert read_events(run_dir)[-1]["job_id"] == "42"


def test_no_variable_of_setup_names_what_is_removed(host: StubHost) -> None:
    precious = host.folder / "precious"
    precious.mkdir()
    run_dir = host.create({"run": ["true"], "job": {"setup": NAMES.format(precious=precious)}})
    (run_dir / "attempts").rmdir()
    (run_dir / "attempts").touch()

    ended = host.run(run_dir)

    assert ended.status == 2
    assert "hpc-amp: cannot write in " in ended.output
    assert precious.is_dir()


def test_options_of_setup_end_with_it(host: StubHost) -> None:
    out = host.folder / "out"
    setup = "set -aCfuvxET -o posix\nshopt -s failglob nocasematch nullglob\nshopt -u nullglob"
    run_dir = host.create(
        {"run": report_command(out), "job": {"setup": setup}}, "launch.preflight=true"
    )

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    assert events(run_dir) == ["started", "finished"]
    (report,) = read_reports(out)
    assert not {"hosts", "verdict", "master_addr"} & report.environ.keys()


def test_a_variable_of_the_environment_is_no_image(host: StubHost) -> None:
    out = host.folder / "out"
    run_dir = host.create({"run": report_command(out)}, "launch.preflight=true")

    ended = host.run(run_dir, image="/nowhere", bind_sources="/nowhere", job="mine")

    assert ended.status == 0, ended.output
    (report,) = read_reports(out)
    assert report.environ["image"] == "/nowhere"


def test_the_environment_may_ask_for_posix_mode(host: StubHost) -> None:
    """bash refuses functions with the names of some of its commands then."""
    run_dir = host.create({"run": ["true"]})

    ended = host.run(run_dir, POSIXLY_CORRECT="1")

    assert ended.status == 0, ended.output
    assert events(run_dir) == ["started", "finished"]


def test_without_its_folder_a_script_does_nothing(host: StubHost) -> None:
    """Its `setup` would be at work wherever the scheduler started it."""
    run_dir = host.create({"run": ["true"], "job": {"setup": f"touch {host.work}/ran"}})
    script = host.folder / "spooled.sh"
    script.write_bytes((run_dir / "launch.sh").read_bytes())
    run_dir.rename(host.folder / "moved")

    result = subprocess.run(
        ["bash", script],
        env=host.environ(),
        check=False,
        timeout=300,
        text=True,
        stderr=subprocess.PIPE,
    )

    assert result.returncode == 2
    assert result.stderr.startswith(f"hpc-amp: there is no run directory {run_dir} on ")
    assert "hpc-amp render --create" in result.stderr.splitlines()[0]
    assert not (host.work / "ran").exists()


def test_no_signal_changes_the_status_of_a_script_that_ends() -> None:
    """One signal at any moment. Many at once may find the microseconds in which bash 5.2 itself
    crashes: it counts a signal and then gets to know that it is ignored."""
    part = REPOSITORY / "hpc_amp" / "host" / "exit.sh"
    script = f"leave() {{ :; }}\ntrap : TERM\nsource {part}\necho ready\nexit 5\n"
    moments = random.Random(0)
    for _ in range(200):
        process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0, 0.003))
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 5


def test_setup_has_the_last_argument_of_its_commands(host: StubHost) -> None:
    out = host.folder / "out"
    setup = f'mkdir {host.work}/a && cd "$_"\nexport ONE="$PWD"\nls {host.work}/b\nexport TWO="$_"'
    run_dir = host.create({"run": report_command(out), "job": {"setup": setup}})

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    (report,) = read_reports(out)
    assert report.environ["ONE"] == f"{host.work}/a"
    assert report.environ["TWO"] == f"{host.work}/b"
    assert "note: job.setup: line 3: `ls" in ended.output
