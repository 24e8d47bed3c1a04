"""A study that is interrupted anywhere, by anything: no run is lost, none is submitted twice."""

from __future__ import annotations

import fcntl
import json
import os
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
from support.campaigns import begin_task, points_of
from support.environment import working_directory
from support.rank_times import rank_file
from support.stubs import StubHost, command_that_says
from support.studies import find_study, write_timing
from support.waiting import wait_until

from hpc_amp.campaigns import interrupted, submit
from hpc_amp.campaigns.folder import holding
from hpc_amp.campaigns.record import read_submitted
from hpc_amp.campaigns.status import UNDER_WAY, PointStatus
from hpc_amp.campaigns.submit import parts_of
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.study.folder import Study
from hpc_amp.study.view import SCALE

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
echo "$id|${{@: -1}}" >>folders
echo "$id|PENDING|Priority" >>queue
[ "$(cat dies)" != after ] || kill -9 $PPID
echo "$id"
"""
_SQUEUE = """#!/bin/bash
cd {state}
[ ! -e silent ] || {{ echo "slurm_load_jobs error: Unable to contact" >&2; exit 1; }}
[ "${{*:1:5}}" = "-h -u $(id -u) --states=all -o" ] || exit 1
case $6 in
  "%i|%T|%r|%S") cat queue ;;
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
        """The scripts of all jobs that were ever submitted."""
        rows = (line.split("|") for line in (self.state / "folders").read_text().splitlines())
        return {job_id: Path(script) for job_id, script in rows}

    @property
    def names(self) -> list[str]:
        """The names of all run directories that these jobs make."""
        return [name for script in self.jobs.values() for name in points_of(script)]

    def has(self, job_id: str, state: str) -> None:
        rows = [line.split("|") for line in (self.state / "queue").read_text().splitlines()]
        text = "".join(
            "|".join([r[0], state if r[0] == job_id else r[1], *r[2:]]) + "\n" for r in rows
        )
        (self.state / "queue").write_text(text)

    def finish(self, job_id: str, world: int = 1) -> None:
        """The job has measured all it should."""
        self.has(job_id, "COMPLETED")
        folder = begin_task(self.jobs[job_id], job_id)
        nodes = json.loads((folder / "job.json").read_text())["job"]["job"]["nodes"]
        ranks = [rank_file(rank, nodes, [0.1] * 30, gpus_per_node=1) for rank in range(nodes)]
        write_timing(folder, ranks)
        for state in ("started", "finished"):
            record_event(folder, state, job_id=job_id, attempt=1)

    def begin(self, job_id: str) -> Path:
        """The job runs, and has begun with its run, whose directory is returned."""
        self.has(job_id, "RUNNING")
        folder = begin_task(self.jobs[job_id], job_id)
        record_event(folder, "started", job_id=job_id, attempt=1)
        return folder


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


def look(study: Study) -> dict[str, PointStatus]:
    statuses = SCALE.statuses(study.campaign)
    return {run.label: statuses[study.point(run)] for run in study.planned_runs()}


# ---- what is made again --------------------------------------------------------------------------


def test_only_what_is_missing_failed_or_ended_early_is_submitted(inside: Queue) -> None:
    study = start(inside, "1,2,4", 2)
    # The small points first, then all once more.
    assert inside.names == [f"{index:04d}" for index in range(6)]
    inside.finish("4242")
    inside.begin("4243")
    record_event(inside.begin("4244"), "failed", reason="exit status 1")
    inside.has("4244", "FAILED")
    inside.has("4245", "CANCELLED")
    # Ended after half of its steps, which it has left behind.
    half = inside.begin("4246")
    write_timing(half, [rank_file(0, 2, [0.1] * 3), rank_file(1, 2, [0.1] * 3)])
    record_event(half, "cancelled")
    inside.has("4246", "CANCELLED")

    assert {name: one.state for name, one in look(study).items()} == {
        "strong-n0001-r01": "measured",
        "strong-n0001-r02": "missing",
        "strong-n0002-r01": "running",
        "strong-n0002-r02": "cancelled",
        "strong-n0004-r01": "failed",
        "strong-n0004-r02": "pending",
    }
    result = scale(inside, "continue", "cifar")

    assert result.returncode == 0, result.stderr
    assert "3 runs: 3.50 node-hours at most" in result.stdout
    # A run that has begun is made again elsewhere: half a measurement is none.
    assert inside.names[6:] == ["0002-2", "0003", "0004-2"]
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
    inside.finish("4248")
    assert look(study)["strong-n0004-r01"].state == "measured"
    assert study.campaign.point_dir(2).name == "0002-2"


def test_a_run_that_ended_with_all_ranks_but_not_all_steps_is_made_again(inside: Queue) -> None:
    study = start(inside, "1", 1)
    run_dir = inside.begin("4242")
    write_timing(run_dir, [rank_file(0, 1, [0.1] * 3, gpus_per_node=1)])
    record_event(run_dir, "terminated")
    inside.has("4242", "CANCELLED")

    statuses = SCALE.statuses(study.campaign)

    assert [one.state for one in statuses] == ["checkpointed"]
    assert SCALE.unfinished(statuses) == [0]


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
    assert "QOSMaxSubmitJob; 2 jobs were submitted; " in result.stderr
    assert f"hpc-amp scale continue {study.folder} submits the rest" in result.stderr
    assert f"to leave it out: hpc-amp scale drop {study.folder} 2-3\n" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    inside.set(limit="9")
    assert scale(inside, "continue", "cifar").returncode == 0
    assert len(inside.jobs) == 4
    assert {one.state for one in look(study).values()} == {"pending"}


def test_a_refused_continue_changes_nothing(inside: Queue) -> None:
    study = start(inside, "1", 2)
    inside.finish("4242")
    record_event(inside.begin("4243"), "failed", reason="exit status 1")
    before = look(study)
    inside.set(limit="2")

    assert scale(inside, "continue", "cifar").returncode == 1

    assert look(study) == before
    assert [one.state for one in before.values()] == ["measured", "failed"]


def test_an_array_for_each_number_of_nodes(inside: Queue) -> None:
    words = ("--nodes=1,2", "--repeats=3", "--array", "--max-parallel=2", "--json")
    result = scale(inside, "job.yaml", *words)

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["job_ids"] == ["4242", "4243"]
    small, large = (script.read_text() for script in inside.jobs.values())
    assert "#SBATCH --array=0-2%1\n" in small and "#SBATCH --nodes=1\n" in small
    assert "#SBATCH --array=0-2%1\n" in large and "#SBATCH --nodes=2\n" in large
    assert inside.names == ["0000", "0002", "0004", "0001", "0003", "0005"]


# ---- how many are queued -------------------------------------------------------------------------


def test_no_more_than_so_many_are_in_the_queue(
    inside: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = start(inside, "1,2", 3)
    for job_id in inside.jobs:
        inside.has(job_id, "CANCELLED")
    before = len(inside.jobs)
    queued: list[int] = []

    def wait(seconds: float) -> None:
        """Meanwhile, the oldest job comes to its end."""
        open_jobs = [one for one in look(study).values() if one.state in UNDER_WAY]
        queued.append(len(open_jobs))
        inside.finish(min(one.job_id or "" for one in open_jobs))

    monkeypatch.setattr(submit, "time", SimpleNamespace(sleep=wait))
    wanted = SCALE.unfinished(SCALE.statuses(study.campaign))
    parts = parts_of(study.campaign, wanted, None)
    submitted = submit.submit(study.campaign, parts, max_queued=2)

    assert queued == [2, 2, 2, 2]
    assert submitted == list(inside.jobs)[before:]
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
    study = newest(queue)
    (one,) = read_submitted(study.campaign)
    assert (one.job_ids, one.points, one.has_ended) == ((job_id,), (0,), True)
    assert [status.state for status in SCALE.statuses(study.campaign)].count("missing") == 2


def test_a_job_on_this_machine_hears_signals(queue: Queue) -> None:
    """It is a child of the command, which lets signals wait while a scheduler is asked."""
    data = {"name": "synthetic", "synthetic": {"train": 4096, "test": 8}}
    train = {"model": "fc", "batch_size": 8, "device": "cpu", "data": data}
    queue.host.write_job({"name": "cifar", "job": {"gpus_per_node": 0}, "train": train})
    result = scale(queue, "job.yaml", "site=local", "--nodes=1", "--seconds=600", "--json")
    assert result.returncode == 0, result.stderr
    (job_id,) = json.loads(result.stdout)["job_ids"]
    status = Path(f"/proc/{job_id.split('-')[1]}/status")

    def hears() -> bool:
        """A shell blocks them for the moment in which it starts a program."""
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return not int(lines["SigBlk"], 16) & 0x4003  # HUP, INT, TERM

    wait_until(hears, "a script that hears signals")
    get_scheduler("local").cancel(job_id)


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
        made = list(studies.glob("cifar/*/campaign.json"))
        if not made:
            assert queue.jobs == {}
            continue
        instants += 1
        study = newest(queue)
        _age(study)
        result = scale(queue, "continue", "cifar")
        assert result.returncode == 0, result.stderr
        # One job a run: strong and weak share it.
        assert queue.names == ["0000"], instant
        assert {one.job_id for one in look(study).values()} == set(queue.jobs)
        if status == 0:
            break
    assert status == 0
    assert instants > 5


def _age(study: Study) -> None:
    """As if whatever the command had started were over."""
    path = study.folder / "state.jsonl"
    if path.exists():
        events = [{**event, "time": event["time"] - 1000} for event in read_events(study.folder)]
        path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.parametrize("dies", ["after", "before"])
def test_a_submission_whose_answer_nobody_heard(queue: Queue, dies: str) -> None:
    queue.set(dies=dies)
    assert scale(queue, "job.yaml", "--nodes=1", "--repeats=2").returncode == -signal.SIGKILL
    before = queue.jobs
    assert len(before) == (dies == "after")
    queue.set(dies="no")
    study = newest(queue)
    _age(study)

    assert scale(queue, "continue", "cifar").returncode == 0

    assert len(queue.jobs) == 2
    assert before.items() <= queue.jobs.items()
    assert sorted(queue.names) == ["0000", "0001"]
    assert {one.job_id for one in look(study).values()} == set(queue.jobs)


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

    fake = SimpleNamespace(sleep=sleep, time=lambda: clock[0])
    monkeypatch.setattr(interrupted, "time", fake)
    told: list[bool] = []
    interrupted.settle(study.campaign, lambda: told.append(True))

    assert told == [True]
    assert 40 * len(waits) > interrupted.ANSWER_SECONDS >= 40 * (len(waits) - 2)
    assert [one.was_refused for one in read_submitted(study.campaign)] == [True]


# ---- two commands at once ------------------------------------------------------------------------


def test_one_command_at_a_time(inside: Queue) -> None:
    study = start(inside, "1", 1)
    for words in (["continue", "cifar"], ["cancel", "cifar"]):
        with (study.campaign.description).open("r+b") as held:
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
    with holding(study.campaign, "runs"):
        pass


# ---- cancel, status ------------------------------------------------------------------------------


def test_cancel_ends_what_is_queued_or_runs(inside: Queue) -> None:
    study = start(inside, "1,2", 2)
    inside.finish("4242")
    inside.begin("4243")

    result = scale(inside, "cancel", "cifar", "--json")

    assert len(json.loads(result.stdout)["cancelled"]) == 3
    assert sorted(call[0] for call in inside.host.calls("scancel")) == ["4243", "4244", "4245"]
    for job_id in ("4243", "4244", "4245"):
        inside.has(job_id, "CANCELLED")
    states = [one.state for one in look(study).values()]
    assert sorted(states) == ["cancelled", "cancelled", "cancelled", "measured"]
    assert json.loads(scale(inside, "cancel", "cifar", "--json").stdout)["cancelled"] == []
    scale(inside, "continue", "cifar")
    assert len(inside.jobs) == 7


def test_what_slurm_did_not_cancel_is_cancelled_by_the_next_try(inside: Queue) -> None:
    study = start(inside, "1,2", 1)
    inside.finish("4242")
    inside.host.fail("scancel", "Unable to contact slurm controller")
    assert scale(inside, "cancel", "cifar").returncode == 1
    (inside.host.state / "fail-scancel").unlink()

    result = scale(inside, "cancel", "cifar", "--json")

    assert len(json.loads(result.stdout)["cancelled"]) == 1
    assert [call[0] for call in inside.host.calls("scancel")][-1] == "4243"
    inside.has("4243", "CANCELLED")
    assert look(study)["strong-n0002-r01"].state == "cancelled"
    assert json.loads(scale(inside, "cancel", "cifar", "--json").stdout)["cancelled"] == []


def test_status_for_people_and_for_programs(inside: Queue) -> None:
    start(inside, "1,2", 1, kind="both")
    inside.finish("4242")
    run_dir = inside.begin("4243")

    text = scale(inside, "status", "cifar").stdout.splitlines()
    facts = json.loads(scale(inside, "status", "cifar", "--json").stdout)

    assert text[0].endswith("  3 runs: 1 measured, 1 running, 1 pending")
    assert [" ".join(line.split()) for line in text[1:]] == [
        "point scaling nodes batch_size state step step ms job reason",
        "0 strong and weak 1 512 measured - 100 4242 -",
        "1 strong 2 512 running - - 4243 -",
        "2 weak 2 1024 pending - - 4244 Priority",
    ]
    assert (facts["name"], facts["view"]) == ("cifar", "scale")
    assert facts["counts"] == {"measured": 1, "running": 1, "pending": 1}
    assert [point["scaling"] for point in facts["points"]] == ["strong and weak", "strong", "weak"]
    assert [point["job_id"] for point in facts["points"]] == ["4242", "4243", "4244"]
    assert facts["points"][1]["run_dir"] == str(run_dir)


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

    for verb in ("status", "continue", "cancel"):
        result = scale(inside, verb, str(there))
        assert result.returncode == 2, result.stdout
        word = "is a copy of" if how == "copied" else "was"
        assert result.stderr.startswith(f"hpc-amp: {there} {word} {study.folder}")

    assert len(inside.jobs) == 2
    assert inside.host.calls("scancel") == []
