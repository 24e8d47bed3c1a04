"""Submissions that end without a clear answer: the job may be in the queue all the same. And
options that make something else of a submission than one job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.stubs import RUN_ID, StubHost
from support.waiting import wait_until

from hpc_amp.errors import ConfigError
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers import get_scheduler

JOB: dict[str, Any] = {
    "name": "test",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "walltime": "10m"},
    "train": {"data": "synthetic"},
}
# A queue that knows the script of a job (%o), as the real one does. `lines` is what goes
# wrong after the job has been taken, `first` what goes wrong before.
_SBATCH = """#!/bin/bash
{first}
id=$((4242 + $(wc -l <{state}/folders)))
echo "$id|$PWD" >>{state}/folders
echo "$id|PENDING|Priority" >>{state}/queue
{lines}
echo "$id"
"""
_SQUEUE = """#!/bin/bash
[ ! -e {state}/silent ] || {{ echo "slurm_load_jobs error: Unable to contact" >&2; exit 1; }}
case "$*" in
  *"%i|%T|%r|%S") cat {state}/queue ;;
  *"%i|%o") cat {state}/folders ;;
  *) exit 1 ;;
esac
"""


def has_queue(host: StubHost, *, first: str = "", lines: str = "") -> None:
    host.write_job(JOB)
    (host.state / "folders").touch()
    for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE)):
        (host.bin / name).unlink()
        path = host.bin / name
        path.write_text(text.format(state=host.state, first=first, lines=lines))
        path.chmod(0o755)


def submit(host: StubHost) -> subprocess.CompletedProcess[str]:
    return host.hpc_amp("submit", "job.yaml", f"--run-id={RUN_ID}")


def status(host: StubHost) -> dict[str, Any]:
    """By the run's name, as somebody would ask who has seen no job id."""
    (facts,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert facts["run_dir"] == str(run_dir(host))
    return dict(facts)


def run_dir(host: StubHost) -> Path:
    return host.work / "runs/test" / RUN_ID


@pytest.mark.parametrize(
    "lines",
    [
        "exit 0",
        'echo "sbatch: Batch job submission failed: Socket timed out on send/recv" >&2; exit 1',
        "echo Submitted; exit 0",
        "kill -9 $$",
    ],
)
def test_a_job_whose_id_nobody_told_is_found(host: StubHost, lines: str) -> None:
    has_queue(host, lines=lines)

    result = submit(host)

    assert result.returncode == 0
    assert "job 4242 was found in the queue" in result.stderr
    assert result.stdout.startswith("submitted job 4242 (slurm)\n")
    assert (status(host)["job_id"], status(host)["state"]) == ("4242", "pending")


def test_an_id_counts_whatever_the_exit_status(host: StubHost) -> None:
    has_queue(host, lines="echo $id; echo 'a hook complains' >&2; exit 1")

    result = submit(host)

    assert result.stdout.startswith("submitted job 4242 (slurm)\n")
    assert result.stderr == "a hook complains\n"


def test_without_an_answer_of_the_queue_the_run_stays_until_it_is_clear(host: StubHost) -> None:
    has_queue(host, lines="exit 0")
    (host.state / "silent").touch()

    result = submit(host)

    assert result.returncode == 1
    assert f"is in the queue, so {run_dir(host)} is kept; hpc-amp status" in result.stderr
    assert (run_dir(host) / "launch.sh").exists()
    assert (status(host)["state"], status(host)["reason"]) == (
        "unknown",
        "the scheduler does not answer",
    )
    refused = host.hpc_amp("cancel", "test")
    assert refused.returncode == 2
    assert "its job is not known; try again" in refused.stderr
    assert host.calls("scancel") == []

    (host.state / "silent").unlink()
    assert host.hpc_amp("cancel", "test").stdout == f"cancelled job 4242 of {run_dir(host)}\n"
    assert host.calls("scancel") == [["4242"]]


def test_a_job_that_never_came_is_no_job_after_a_while(host: StubHost) -> None:
    has_queue(host, first="exit 0")

    assert submit(host).returncode == 1
    assert status(host)["reason"] == "its submission has not ended yet"

    path = run_dir(host) / "state.jsonl"
    event = json.loads(path.read_text())
    path.write_text(json.dumps({**event, "time": int(time.time()) - 181}) + "\n")
    assert (status(host)["state"], status(host)["reason"]) == (
        "failed",
        "its submission was interrupted: no job of it is in the queue",
    )


def test_ctrl_c_of_the_terminal_does_not_reach_the_schedulers_command(host: StubHost) -> None:
    """OpenPBS's qsub sets its signals anew, and took a Ctrl-C that was blocked."""
    anew = "import os, signal; signal.pthread_sigmask(signal.SIG_SETMASK, []); "
    anew += "os.execvp('sleep', ['sleep', '1'])"
    has_queue(host, first=f'kill -INT $PPID; {sys.executable} -c "{anew}" || exit 1')
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "submit", "job.yaml", f"--run-id={RUN_ID}"],
        cwd=host.work, env=host.environ(), stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: run_dir(host).joinpath("state.jsonl").exists(), "the submission")
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)

    output, _ = process.communicate()
    assert output.startswith("submitted job 4242 (slurm)\n")
    assert (status(host)["job_id"], status(host)["state"]) == ("4242", "pending")


@pytest.mark.parametrize("number", ["INT", "TERM", "HUP"])
def test_a_signal_waits_until_the_job_is_on_record(host: StubHost, number: str) -> None:
    has_queue(host, first=f"kill -{number} $PPID $$", lines=f"kill -{number} $PPID $$")

    # Under nohup, HUP is ignored: then it has nothing to end.
    before = signal.signal(signal.Signals[f"SIG{number}"], signal.SIG_DFL)
    try:
        result = submit(host)
    finally:
        signal.signal(signal.Signals[f"SIG{number}"], before)

    assert result.returncode not in (0, 1)
    assert result.stdout.startswith("submitted job 4242 (slurm)\n")
    assert (status(host)["job_id"], status(host)["state"]) == ("4242", "pending")


def test_the_run_of_a_command_that_was_killed_is_found_by_its_name(host: StubHost) -> None:
    has_queue(host, lines="kill -9 $PPID")

    assert submit(host).returncode == -9

    assert status(host)["job_id"] == "4242"
    assert read_events(run_dir(host))[-1]["job_id"] == "4242"
    assert json.loads(host.hpc_amp("status", "4242", "--json").stdout)[0]["job_id"] == "4242"


def test_a_chain_that_cannot_be_taken_back_keeps_its_folder(host: StubHost) -> None:
    """Cobalt refuses the second of two jobs and is gone: the first one waits in the queue."""
    site = host.folder / "cobalt.yaml"
    site.write_text("scheduler: cobalt\n")
    host.write_job({**JOB, "site": str(site), "job": {**JOB["job"], "chain": 1}})
    away = "echo 'Proxy.py     :L#422:cn:queue-manager' >&2; exit 1"
    job = f"6 {run_dir(host)}/launch.sh"
    for name, lines in (
        ("qsub", '[ "$1" != -h ] || { echo 6; exit 0; }; echo "queue is full" >&2; exit 1'),
        ("qdel", away),
        ("qstat", f"case $* in *Command) echo '{job}' ;; *) echo '6 user_hold' ;; esac"),
    ):
        (host.bin / name).write_text(f"#!/bin/bash\n{lines}\n")
        (host.bin / name).chmod(0o755)

    result = submit(host)

    assert result.returncode == 1
    assert (
        "could not be deleted again: 6; " in result.stderr
        and f"{run_dir(host)} is kept" in result.stderr
    )
    found = status(host)
    assert (found["job_id"], found["state"], found["reason"]) == (
        "6",
        "pending",
        "held by its user",
    )


def test_a_resumed_run_does_not_take_its_old_job_for_the_new_one(host: StubHost) -> None:
    has_queue(host)
    assert submit(host).returncode == 0
    record_event(run_dir(host), "failed", reason="exit status 1")
    (host.state / "queue").write_text("")  # but the old job is listed with its folder for a while
    has_queue(host, first="exit 0")

    assert host.hpc_amp("resume", "test").returncode == 1
    assert (status(host)["job_id"], status(host)["state"]) == (None, "unknown")


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ("pbs", "-J 0-1"),
        ("pbs", "-J0-1"),
        ("pbs", "-z"),
        ("pbs", "-fz"),
        ("pbs", "-I"),
        ("pbs", "-W block=true"),
        ("pbs", "-W umask=022,block=true"),
        ("pbs", "-Wblock=true"),
        ("pbs", "-W interactive=true"),
        ("pbs", "-l walltime=60 -z"),
        ("slurm", "--array=0-1"),
        ("slurm", "--arr 0-1"),
        ("slurm", "-a0-1"),
        ("slurm", "--wait"),
        ("slurm", "-W"),
        ("slurm", "--test-only"),
        ("slurm", "--clusters=other"),
        ("slurm", "hetjob"),
    ],
)
def test_options_that_hide_a_job_are_refused(host: StubHost, scheduler: str, line: str) -> None:
    plan = host.plan({"site": scheduler, "run": ["true"], "job": {"directives": [line]}})

    with pytest.raises(ConfigError, match=r"job\.directives: '.*' cannot be used: "):
        get_scheduler(scheduler).check(plan)


@pytest.mark.parametrize("line", ["-I", "--interactive", "--help", "--version"])
def test_cobalt_knows_no_options_but_those_of_a_job(host: StubHost, line: str) -> None:
    plan = host.plan({"site": "cobalt", "run": ["true"], "job": {"directives": [line]}})

    with pytest.raises(ConfigError, match=r"the directive '.*'"):
        get_scheduler("cobalt").directives(plan)


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ("pbs", "-W umask=022"),
        ("pbs", "-h"),
        ("pbs", "-N J"),
        ("slurm", "--comment=wait"),
        ("slurm", "--hold"),
        ("slurm", "--wait-all-nodes=1"),
        ("cobalt", "-h"),
    ],
)
def test_options_that_hide_nothing_are_taken(host: StubHost, scheduler: str, line: str) -> None:
    plan = host.plan({"site": scheduler, "run": ["true"], "job": {"directives": [line]}})

    get_scheduler(scheduler).check(plan)
    assert line in get_scheduler(scheduler).directives(plan)
