"""A study that is interrupted anywhere, by anything: no run is lost, none is submitted twice."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import commands
from support.environment import working_directory
from support.stubs import StubHost, command_that_says
from support.studies import rank_file, write_timing
from support.waiting import wait_until

from hpc_amp.campaigns import settling, unsettled
from hpc_amp.campaigns.lock import holding
from hpc_amp.campaigns.unsettled import settle
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.signals import INTERRUPTING
from hpc_amp.study import submission
from hpc_amp.study.folder import Study, find_study
from hpc_amp.study.progress import Progress, progress, to_be_made
from hpc_amp.study.recipe import read_recipe
from hpc_amp.study.submission import submit_runs

JOB: dict[str, Any] = {
    "name": "cifar",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "walltime": "30m"},
    "train": {"batch_size": 512, "data": "synthetic"},
}

# Like tests/stubs, but the queue knows the script of a job (%o), as the real one does,
# and a file makes sbatch misbehave: `limit` is how many jobs it takes, `dies` makes it kill the
# command that called it, before or after it has taken the job.
_SBATCH = """#!/bin/bash
cd {state}
[ "$(wc -l <folders)" -lt "$(cat limit)" ] || {{ echo QOSMaxSubmitJob >&2; exit 1; }}
[ "$(cat dies)" != before ] || {{ kill -9 $PPID; exit 1; }}
id=$((4242 + $(wc -l <folders)))
echo "$id|$OLDPWD" >>folders
echo "$id|PENDING|Priority" >>queue
[ "$(cat dies)" != after ] || kill -9 $PPID
echo "$id"
"""
_SQUEUE = """#!/bin/bash
cd {state}
[ ! -e silent ] || {{ echo "slurm_load_jobs error: Unable to contact" >&2; exit 1; }}
[ "${{*:1:5}}" = "-h -u $(id -u) --states=all -o" ] || exit 1
case $6 in
  "%i|%T|%r") cat queue ;;
  "%i|%o") cat folders ;;
  *) exit 1 ;;
esac
"""


class Queue:
    """The queue of a stub host."""

    def __init__(self, host: StubHost) -> None:
        self.host = host
        self.state = host.state
        for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE)):
            (host.bin / name).unlink()
            (host.bin / name).write_text(text.format(state=host.state))
            (host.bin / name).chmod(0o755)
        self.set(limit="1000", dies="no", folders="")

    def set(self, **files: str) -> None:
        for name, content in files.items():
            (self.state / name).write_text(content)

    @property
    def jobs(self) -> dict[str, Path]:
        """The folders of all jobs that were ever submitted."""
        rows = (line.split("|") for line in (self.state / "folders").read_text().splitlines())
        return {job_id: Path(folder) for job_id, folder in rows}

    def has(self, job_id: str, state: str) -> None:
        rows = [line.split("|") for line in (self.state / "queue").read_text().splitlines()]
        text = "".join(
            "|".join([r[0], state if r[0] == job_id else r[1], *r[2:]]) + "\n" for r in rows
        )
        (self.state / "queue").write_text(text)

    def finish(self, job_id: str, world: int = 1) -> None:
        """The job has measured all it should."""
        self.has(job_id, "COMPLETED")
        folder = self.jobs[job_id]
        nodes = json.loads((folder / "job.json").read_text())["job"]["job"]["nodes"]
        ranks = [rank_file(rank, nodes, [0.1] * 30, gpus_per_node=1) for rank in range(nodes)]
        write_timing(folder, ranks)
        for state in ("started", "finished"):
            record_event(folder, state, job_id=job_id, attempt=1)


@pytest.fixture
def queue(host: StubHost) -> Queue:
    host.write_job(JOB)
    return Queue(host)


def scale(queue: Queue, *words: str) -> subprocess.CompletedProcess[str]:
    return queue.host.hpc_amp("scale", *words)


def start(queue: Queue, nodes: str = "1,2", repeats: int = 2, kind: str = "strong") -> Study:
    result = scale(queue, "job.yaml", "--nodes", nodes, f"--repeats={repeats}", f"--kind={kind}")
    assert result.returncode == 0, result.stderr
    return newest(queue)


def newest(queue: Queue) -> Study:
    return find_study("cifar", queue.host.work / "studies")


@pytest.fixture
def inside(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """This very process submits."""
    monkeypatch.setenv("PATH", str(queue.host.bin), prepend=":")
    with working_directory(queue.host.work):
        yield queue


def look(study: Study) -> dict[str, Progress]:
    items = progress(study)
    return {one.measurement.first.folder_name: one for one in items}


# ---- what is made again --------------------------------------------------------------------------


def test_only_what_is_missing_failed_or_ended_early_is_submitted(inside: Queue) -> None:
    study = start(inside, "1,2,4", 2)
    assert len(inside.jobs) == 6
    inside.finish("4242")  # strong-n0001-r01
    inside.has("4243", "RUNNING")
    record_event(inside.jobs["4244"], "failed", reason="exit status 1")
    inside.has("4245", "CANCELLED")
    # Ended after half of its steps, which it has left behind.
    write_timing(inside.jobs["4246"], [rank_file(0, 2, [0.1] * 3), rank_file(1, 2, [0.1] * 3)])
    record_event(inside.jobs["4246"], "cancelled")

    assert {name: one.state for name, one in look(study).items()} == {
        "strong-n0001-r01": "measured",
        "strong-n0001-r02": "cancelled",
        "strong-n0002-r01": "waiting",
        "strong-n0002-r02": "cancelled",
        "strong-n0004-r01": "failed",
        "strong-n0004-r02": "pending",
    }
    result = scale(inside, "continue", "cifar")

    assert result.returncode == 0, result.stderr
    assert "3 runs: 3.50 node-hours at most" in result.stdout
    assert len(inside.jobs) == 9
    again = {name: one.job_id for name, one in look(study).items()}
    assert again == {
        "strong-n0001-r01": "4242",
        "strong-n0001-r02": "4249",
        "strong-n0002-r01": "4243",
        "strong-n0002-r02": "4250",
        "strong-n0004-r01": "4248",
        "strong-n0004-r02": "4247",
    }
    # And once more: all are measured or under way now.
    result = scale(inside, "continue", "cifar")
    assert (result.returncode, len(inside.jobs)) == (0, 9)
    assert "5 runs are under way" in result.stdout


def test_a_run_that_ended_with_all_ranks_but_not_all_steps_is_made_again(inside: Queue) -> None:
    study = start(inside, "1", 1)
    write_timing(inside.jobs["4242"], [rank_file(0, 1, [0.1] * 3, gpus_per_node=1)])
    record_event(inside.jobs["4242"], "terminated")
    inside.has("4242", "CANCELLED")

    (one,) = look(study).values()

    assert (one.state, one.is_complete) == ("checkpointed", False)
    assert to_be_made([one]) == [one.measurement]


def test_a_scheduler_that_does_not_answer_ends_nothing(inside: Queue) -> None:
    study = start(inside, "1", 2)
    inside.finish("4242")
    inside.set(silent="")

    result = scale(inside, "continue", "cifar")

    assert "1 run is under way" in result.stdout
    assert len(inside.jobs) == 2
    assert [one.state for one in look(study).values()] == ["measured", "unknown"]


def test_a_refusal_keeps_what_was_submitted(inside: Queue) -> None:
    inside.set(limit="2")
    result = scale(inside, "job.yaml", "--nodes=1,2", "--repeats=2")

    study = newest(inside)
    assert result.returncode == 1
    assert "QOSMaxSubmitJob; 2 runs were submitted before" in result.stderr
    assert f"hpc-amp scale continue {study.folder} submits the rest" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    inside.set(limit="9")
    assert scale(inside, "continue", "cifar").returncode == 0
    assert len(inside.jobs) == 4
    assert {one.state for one in look(study).values()} == {"pending"}


# ---- how many are queued -------------------------------------------------------------------------


def test_no_more_than_so_many_are_in_the_queue(
    inside: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.set(limit="0")
    scale(inside, "job.yaml", "--nodes=1,2", "--repeats=3")
    inside.set(limit="1000")
    study = newest(inside)
    recipe = read_recipe(study)
    queued: list[int] = []

    def wait(seconds: float) -> None:
        """Meanwhile, the oldest job comes to its end."""
        open_jobs = [one for one in look(study).values() if one.is_under_way]
        queued.append(len(open_jobs))
        inside.finish(min(one.job_id or "" for one in open_jobs))

    monkeypatch.setattr(submission, "time", SimpleNamespace(sleep=wait))
    submitted: list[str] = []
    submit_runs(
        study,
        recipe,
        to_be_made(progress(study)),
        max_queued=2,
        tell=lambda measurement, job_id: submitted.append(job_id),
    )

    assert queued == [2, 2, 2, 2]
    assert submitted == list(inside.jobs)
    assert len(submitted) == 6


def test_ctrl_c_while_it_waits_for_room(queue: Queue) -> None:
    process = _in_a_terminal(queue, "job.yaml", "--nodes=1", "--repeats=4", "--max-queued=2")
    wait_until(lambda: len(queue.jobs) == 2, "two jobs in the queue")
    wait_until(lambda: _is_asleep(process.pid), "the command to wait")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[0]

    study = newest(queue)
    assert process.returncode == 130
    assert f"the rest: hpc-amp scale continue {study.folder}" in said
    assert "Traceback" not in said
    assert scale(queue, "continue", "cifar").returncode == 0
    assert len(queue.jobs) == 4


def _in_a_terminal(queue: Queue, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "scale", *words],
        cwd=queue.host.work,
        env=queue.host.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _is_asleep(pid: int) -> bool:
    """Whether it waits with nothing else to do: its system call is a sleep."""
    call = Path(f"/proc/{pid}/wchan").read_text()
    return "nanosleep" in call or "poll" in call


def test_ctrl_c_during_a_submission_waits_for_the_schedulers_answer(queue: Queue) -> None:
    """Nor may sbatch die between taking a job and saying so. It is in another session."""
    sbatch = queue.host.bin / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("\nid=", "\nkill -INT $PPID 0; sleep 0.2\nid="))

    process = _in_a_terminal(queue, "job.yaml", "--nodes=1", "--repeats=3")
    said = process.communicate(timeout=300)[0]

    assert process.returncode == 130, said
    (job_id,) = queue.jobs
    one = look(newest(queue))["strong-n0001-r01"]
    assert (one.job_id, one.run.run_dir) == (job_id, queue.jobs[job_id])
    assert [event["state"] for event in read_events(queue.jobs[job_id])] == ["submitted", "queued"]


_HEARS = """
import dataclasses
import time
from pathlib import Path
from hpc_amp.schedulers.local import scheduler as local
from hpc_amp.study.draft import StudyOptions, draft_study
from hpc_amp.study.recipe import measurements
from hpc_amp.study.submission import submit_runs

options = StudyOptions(kinds=("strong",), nodes=(1,), repeats=1, warmup=1, steps=1, seconds=None)
draft = draft_study(Path("job.yaml"), ["site=local"], Path("studies"), options)
draft.write()
recipe = dataclasses.replace(draft.recipe, in_allocation=False)

def tell(measurement, job_id):
    status = Path(f"/proc/{job_id.split('-')[1]}/status")
    for _ in range(600):  # a shell blocks them for the moment in which it starts a program
        masks = dict(line.split(":", 1) for line in status.read_text().splitlines())
        if not int(masks["SigBlk"], 16) & 0x4003:  # HUP, INT, TERM
            break
        time.sleep(0.05)
    print("SigBlk:", masks["SigBlk"].strip())
    local.Local().cancel(job_id)

submit_runs(draft.study, recipe, measurements(draft.study), max_queued=None, tell=tell)
"""


def test_a_run_on_this_machine_hears_signals(queue: Queue) -> None:
    """It is a child of the command, which lets signals wait while a scheduler is asked."""
    result = queue.host.python("-c", _HEARS)

    assert result.returncode == 0, result.stderr
    (blocked,) = re.findall(r"^SigBlk:\s*(\w+)$", result.stdout, re.MULTILINE)
    assert [number for number in INTERRUPTING if int(blocked, 16) >> (number - 1) & 1] == []


# ---- a command that is killed --------------------------------------------------------------------

_KILLED = """
import os, signal, sys

left = int(sys.argv.pop(1))

def hook(event, details):
    global left
    if event in ("os.mkdir", "os.rename", "subprocess.Popen", "fcntl.flock"):
        counts = "/src/" not in str(details)
    elif event == "open":
        counts = "studies" in str(details[0]) and "/src/" not in str(details[0])
    else:
        return
    left -= counts
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
from hpc_amp.cli import main
main()
"""


def _killed_at(queue: Queue, instant: int, *words: str) -> int:
    words = ("-c", _KILLED, str(instant), "scale", *words)
    return commands.python(*words, cwd=queue.host.work, environ=queue.host.environ()).returncode


def test_a_command_that_is_killed_at_any_instant(queue: Queue) -> None:
    """Before each file and folder that it makes, and before each program that it starts."""
    words = ("job.yaml", "--nodes=1", "--repeats=1", "--kind=both")
    studies = queue.host.work / "studies"
    instants = 0
    status = -signal.SIGKILL
    for instant in range(1000):
        queue.set(queue="", folders="")
        subprocess.run(["rm", "-rf", studies], check=True)
        status = _killed_at(queue, instant, *words)
        made = list(studies.glob("cifar/*/study.json"))
        if not made:
            assert queue.jobs == {}
            continue
        instants += 1
        study = newest(queue)
        _age(study)
        result = scale(queue, "continue", "cifar")
        assert result.returncode == 0, result.stderr
        runs = {run.folder_name: study.run_dir(run) for run in study.planned_runs()}
        # One job a run, and every planned run has its own.
        assert sorted(queue.jobs.values()) == sorted(set(filter(None, runs.values()))), instant
        assert len(queue.jobs) == 1
        assert runs["strong-n0001-r01"] == runs["weak-n0001-r01"]
        if status == 0:
            break
    assert status == 0
    assert instants > 15


def _age(study: Study) -> None:
    """As if whatever the command had started were over."""
    for run in study.planned_runs():
        run_dir = study.run_dir(run)
        if run_dir is not None and (run_dir / "state.jsonl").exists():
            events = [{**event, "time": event["time"] - 1000} for event in read_events(run_dir)]
            lines = "".join(json.dumps(event) + "\n" for event in events)
            (run_dir / "state.jsonl").write_text(lines)


@pytest.mark.parametrize(("dies", "jobs"), [("after", 2), ("before", 2)])
def test_a_submission_whose_answer_nobody_heard(queue: Queue, dies: str, jobs: int) -> None:
    queue.set(dies=dies)
    assert scale(queue, "job.yaml", "--nodes=1", "--repeats=2").returncode == -signal.SIGKILL
    before = queue.jobs
    assert len(before) == (dies == "after")
    queue.set(dies="no")
    study = newest(queue)
    _age(study)

    assert scale(queue, "continue", "cifar").returncode == 0

    assert len(queue.jobs) == jobs
    assert before.items() <= queue.jobs.items()
    runs = [study.run_dir(run) for run in study.planned_runs()]
    assert sorted(filter(None, runs)) == sorted(queue.jobs.values())


def test_the_job_before_is_not_the_one_that_nobody_heard_of(inside: Queue) -> None:
    """A run of a study was resumed, and slurmctld lists its old job for some minutes."""
    study = start(inside, "1", 1)
    ((job_id, folder),) = inside.jobs.items()
    record_event(folder, "failed", job_id=job_id, reason="exit status 1")
    inside.has(job_id, "FAILED")
    record_event(folder, "submitted", scheduler="slurm")
    _age(study)

    settle(study.run_dirs, lambda: None)

    assert read_events(folder)[-1]["reason"] == unsettled.INTERRUPTED


def test_a_run_whose_description_was_not_written(inside: Queue) -> None:
    """The command was killed after it had made the file."""
    study = start(inside, "1,2", 1)
    folder = inside.jobs["4243"]
    (folder / "job.json").write_text("")
    (folder / "state.jsonl").unlink()

    result = scale(inside, "continue", "cifar")

    assert result.returncode == 0, result.stderr
    assert len(inside.jobs) == 3
    assert study.run_dir(study.planned_runs()[1]) == inside.jobs["4244"]


def test_it_waits_until_an_answer_can_not_come_any_more(
    inside: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.set(dies="before")
    scale(inside, "job.yaml", "--nodes=1", "--repeats=1")
    study = newest(inside)
    clock = [time.time()]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += 40

    monkeypatch.setattr(settling, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(unsettled, "time", SimpleNamespace(time=lambda: clock[0]))
    told: list[bool] = []
    settle(study.run_dirs, lambda: told.append(True))

    assert told == [True]
    assert 40 * len(waits) > unsettled.ANSWER_SECONDS >= 40 * (len(waits) - 2)
    (run,) = study.planned_runs()
    run_dir = study.run_dir(run)
    assert run_dir is not None
    assert read_events(run_dir)[-1]["reason"] == unsettled.INTERRUPTED


def test_a_job_that_has_begun_meanwhile_speaks_for_itself(inside: Queue) -> None:
    inside.set(dies="after")
    scale(inside, "job.yaml", "--nodes=1", "--repeats=1")
    ((job_id, folder),) = inside.jobs.items()
    record_event(folder, "started", job_id=job_id, attempt=1)
    inside.has(job_id, "RUNNING")
    before = read_events(folder)

    settle(newest(inside).run_dirs, lambda: pytest.fail("there is nothing to wait for"))

    assert read_events(folder) == before
    assert [one.job_id for one in look(newest(inside)).values()] == [job_id]


# ---- two commands at once ------------------------------------------------------------------------


def test_one_command_at_a_time(inside: Queue) -> None:
    study = start(inside, "1", 1)
    for words in (["continue", "cifar"], ["cancel", "cifar"]):
        with (study.folder / "study.json").open("r+b") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            result = scale(inside, *words)
        assert result.returncode == 2
        assert "another command is submitting runs" in result.stderr
    assert scale(inside, "continue", "cifar").returncode == 0


def test_a_file_system_without_locks(inside: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    study = start(inside, "1", 1)

    def flock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with holding(study.folder / "study.json", "runs"):
        pass


# ---- cancel, status ------------------------------------------------------------------------------


def test_cancel_ends_what_is_queued_or_runs(inside: Queue) -> None:
    study = start(inside, "1,2", 2)
    inside.finish("4242")
    inside.has("4243", "RUNNING")

    result = scale(inside, "cancel", "cifar", "--json")

    assert json.loads(result.stdout) == {"study": str(study.folder), "cancelled": 3}
    assert sorted(call[0] for call in inside.host.calls("scancel")) == ["4243", "4244", "4245"]
    states = [one.state for one in look(study).values()]
    assert sorted(states) == ["cancelled", "cancelled", "cancelled", "measured"]
    assert json.loads(scale(inside, "cancel", "cifar", "--json").stdout)["cancelled"] == 0
    scale(inside, "continue", "cifar")
    assert len(inside.jobs) == 7


def test_what_slurm_did_not_cancel_is_cancelled_by_the_next_try(inside: Queue) -> None:
    study = start(inside, "1,2", 1)
    inside.finish("4242")
    inside.host.fail("scancel", "Unable to contact slurm controller")
    assert scale(inside, "cancel", "cifar").returncode == 1
    assert look(study)["strong-n0002-r01"].state == "cancelled"
    (inside.host.state / "fail-scancel").unlink()

    result = scale(inside, "cancel", "cifar", "--json")

    assert json.loads(result.stdout)["cancelled"] == 1
    assert [call[0] for call in inside.host.calls("scancel")][-1] == "4243"
    assert json.loads(scale(inside, "cancel", "cifar", "--json").stdout)["cancelled"] == 0


def test_status_for_people_and_for_programs(inside: Queue) -> None:
    start(inside, "1,2", 1, kind="both")
    inside.finish("4242")
    inside.has("4243", "RUNNING")

    text = scale(inside, "status", "cifar").stdout.splitlines()
    facts = json.loads(scale(inside, "status", "cifar", "--json").stdout)

    assert text[0].endswith("  3 runs: 1 measured, 1 waiting and 1 pending")
    assert [" ".join(line.split()) for line in text[1:]] == [
        "scaling nodes repeat state job reason",
        "strong and weak 1 1 measured 4242 -",
        "strong 2 1 waiting 4243 -",
        "weak 2 1 pending 4244 Priority",
    ]
    assert facts["name"] == "cifar"
    assert facts["runs"][0]["counts_for"] == ["strong-n0001-r01", "weak-n0001-r01"]
    assert [run["job_id"] for run in facts["runs"]] == ["4242", "4243", "4244"]
    assert facts["runs"][0]["run_dir"] == str(inside.jobs["4242"])


# ---- jobs in other queues ------------------------------------------------------------------------

_FOLDER = "/home/user/studies/cifar/20261127-223455-kqzf/runs/cifar"
# qstat breaks long values, and goes on behind a tab.
_PBS = f"""\
Job Id: 490.head
    Job_Name = x
    Output_Path = head:{_FOLDER[:30]}
\t{_FOLDER[30:]}/1/logs/job.log
    Priority = 0

Job Id: 491.head
    Output_Path = head:{_FOLDER[:31]}
\t{_FOLDER[31:]}/2/logs/job.log
"""
_COBALT = f"""\
JobID  Command
=====================
490    {_FOLDER}/1/launch.sh
491    {_FOLDER}/2/launch.sh
"""


@pytest.mark.parametrize(
    ("scheduler", "command", "said", "job_id"),
    [
        ("pbs", "qstat", _PBS, "491.head"),
        ("cobalt", "qstat", _COBALT, "491"),
    ],
)
def test_the_job_of_a_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: str,
    command: str,
    said: str,
    job_id: str,
) -> None:
    command_that_says(monkeypatch, tmp_path, command, said)

    assert get_scheduler(scheduler).find_jobs(Path(_FOLDER, "2")) == [job_id]
    assert get_scheduler(scheduler).find_jobs(Path(_FOLDER, "3")) == []


def test_the_process_of_a_folder(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text("sleep 60\nexit\n")
    process = subprocess.Popen(["bash", str(script)])
    try:
        wait_until(lambda: get_scheduler("local").find_jobs(tmp_path) != [], "the script")
        (found,) = get_scheduler("local").find_jobs(tmp_path)
        assert found.startswith(f"local-{process.pid}-")
        assert get_scheduler("local").find_jobs(tmp_path / "other") == []
    finally:
        process.kill()
        process.wait()


def test_a_subshell_of_a_script_is_no_process_of_a_folder(tmp_path: Path) -> None:
    """It has the same command line."""
    script = tmp_path / "launch.sh"
    script.write_text("(sleep 60; true) & (sleep 60; true)\n")
    process = subprocess.Popen(["bash", str(script)], start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        wait_until(lambda: len(children.read_text().split()) == 2, "the subshells")
        (found,) = get_scheduler("local").find_jobs(tmp_path)
        assert found.startswith(f"local-{process.pid}-")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_study_that_was_started_in_a_folder_that_is_gone(inside: Queue) -> None:
    study = start(inside, "1", 1)
    path = study.folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "workdir": "/nowhere"}))

    result = scale(inside, "continue", "cifar")

    assert result.returncode == 2
    assert "the study was started in /nowhere: No such file or directory" in result.stderr


# ---- studies that are not where they were started ------------------------------------------------


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_nothing_is_done_to_a_study_elsewhere(inside: Queue, how: str) -> None:
    """Its runs and their jobs are those of the folder that it was started in."""
    study = start(inside, "1,2", 1)
    there = inside.host.work / "there"
    if how == "copied":
        shutil.copytree(study.folder, there, symlinks=True)
    else:
        study.folder.rename(there)

    for verb in ("continue", "cancel"):
        result = scale(inside, verb, str(there))
        assert result.returncode == 2, result.stdout
        word = "is a copy of" if how == "copied" else "was"
        assert result.stderr.startswith(f"hpc-amp: {there} {word} {study.folder}")

    assert len(inside.jobs) == 2
    assert inside.host.calls("scancel") == []
    told = scale(inside, "status", str(there), "--json")
    assert told.returncode == 0, told.stderr
    assert "unknown" in told.stdout and "pending" not in told.stdout
