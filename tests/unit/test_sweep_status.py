"""Where the points of a sweep stand, and going on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support import commands
from support.campaigns import planned_sweep
from support.environment import clean_environ, working_directory
from support.stubs import events

from hpc_amp.campaigns import interrupted
from hpc_amp.campaigns.control import cancel
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.interrupted import settle
from hpc_amp.campaigns.overview import nothing_to_continue
from hpc_amp.campaigns.parts import render_part
from hpc_amp.campaigns.record import (
    read_submitted,
    record_accepted,
    record_cancelled,
    record_queued,
    record_submitted,
)
from hpc_amp.campaigns.status import PointStatus, point_statuses
from hpc_amp.campaigns.submit import describe, parts_of, write
from hpc_amp.errors import UsageError
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.slurm.arrays import SlurmArrays
from hpc_amp.sweep.view import SWEEP


class Queue:
    """The command that tells of jobs: it says what it is told to say, and counts."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.say("")
        for command in (name, "scancel", "qdel"):
            program = folder / command
            said = "cat out" if command == name else ""
            program.write_text(
                f'#!/bin/sh\ncd {folder}\necho "$0 $*" >>calls\n{said}\nexit "$(cat status)"\n'
            )
            program.chmod(0o755)

    def say(self, text: str, *, status: int = 0) -> None:
        (self.folder / "out").write_text(text)
        (self.folder / "status").write_text(f"{status}\n")

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        text = path.read_text() if path.exists() else ""
        return [line.removeprefix(f"{self.folder}/") for line in text.splitlines()]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return queue(tmp_path, monkeypatch, "squeue")


def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Queue:
    made = Queue(tmp_path / "bin", name)
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    return made


def sweep_of(folder: Path, points: int, site: str = "slurm", *overrides: str) -> Campaign:
    """A sweep that is written, but of which nothing is submitted."""
    job: dict[str, Any] = {"name": "test", "site": site, "train": {}}
    job["job"] = {"gpus_per_node": 0, "walltime": "10m"}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    seeds = "train.seed=" + ",".join(map(str, range(points)))
    with working_directory(folder):
        plan = planned_sweep(Path("job.yaml"), seeds, *overrides)
    sweep = describe(SWEEP, plan)
    write(sweep, plan)
    return sweep


def submit(sweep: Campaign, wanted: Any, *job_ids: str) -> None:
    """Record that the points are in the queue."""
    (part,) = parts_of(sweep, wanted, None)
    record_submitted(sweep, part)
    record_queued(sweep, part, job_ids)


def start(sweep: Campaign, index: int, job_id: str, *states: str, array: int = 1) -> None:
    """What the script of a point records."""
    run_dir = sweep.point_dir(index)
    run_dir.mkdir(parents=True, exist_ok=True)
    job = (sweep.folder / "jobs.jsonl").read_text().splitlines()[index]
    (run_dir / "job.json").write_text(job)
    record_event(run_dir, "submitted", array=array, scheduler=sweep.scheduler)
    record_event(run_dir, "queued", job_id=job_id)
    for state in ("started", *states):
        record_event(run_dir, state, attempt=1, job_id=job_id, reason="")


def states(statuses: list[PointStatus]) -> list[str]:
    return [status.state for status in statuses]


def test_a_thousand_points_cost_one_question(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 1000)
    submit(sweep, range(1000), "41")
    for index in range(300):
        start(sweep, index, f"41_{index}", *(["finished"] if index < 200 else []))
    squeue.say(
        "".join(f"41_{index}|RUNNING|None\n" for index in range(200, 300))
        + "".join(f"41_{index}|PENDING|JobArrayTaskLimit\n" for index in range(300, 1000))
    )

    statuses = point_statuses(sweep)

    assert Counter(states(statuses)) == {"finished": 200, "running": 100, "pending": 700}
    assert statuses[999].reason == "JobArrayTaskLimit"
    assert statuses[999].job_id == "41_999"
    assert squeue.calls == [f"squeue -h -r -u {os.getuid()} --states=all -o %i|%T|%r|%S"]


def test_no_question_where_all_have_ended(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 3)
    submit(sweep, range(3), "41")
    for index, state in enumerate(("finished", "failed", "checkpointed")):
        start(sweep, index, f"41_{index}", state)

    assert states(point_statuses(sweep)) == ["finished", "failed", "checkpointed"]
    assert squeue.calls == []


def test_what_became_of_points_that_never_started(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 4)
    submit(sweep, [0, 1, 2], "41")
    squeue.say("41_0|CANCELLED|None\n41_2|PENDING|Priority\n")

    assert states(point_statuses(sweep)) == ["missing", "missing", "pending", "missing"]
    assert SWEEP.unfinished(point_statuses(sweep)) == [0, 1, 3]


def test_a_scheduler_that_does_not_answer_is_no_end(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "41")
    start(sweep, 1, "41_1")
    squeue.say("slurm_load_jobs error: Unable to contact slurm controller\n", status=1)

    statuses = point_statuses(sweep)

    assert states(statuses) == ["unknown", "unknown"]
    assert {status.reason for status in statuses} == {"the scheduler does not answer"}


def test_a_submission_without_an_end_is_not_known(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 2)
    (part,) = parts_of(sweep, range(2), None)
    record_submitted(sweep, part)

    (first, _) = point_statuses(sweep)

    assert first.state == "unknown"
    assert "looks for its job in the queue" in first.reason


_FOUND = [
    (
        "slurm",
        "squeue",
        "7|{0}/points/0001/launch.sh\n41_[1-2]|{0}/array-1.sh\n41_0|{0}/array-1.sh\n9|sleep\n",
        "41",
    ),
    (
        "pbs",
        "qstat",
        "Job Id: 7.head\n    Output_Path = head:{0}/points/0001/logs/job.log\n\n"
        "Job Id: 41[].head\n    Output_Path = head:{0}/logs/^array_index^.log\n",
        "41[].head",
    ),
    ("cobalt", "qstat", "JobID  Command\n====\n41  {0}/array-1.sh\n7  /array-1.sh\n", "41"),
]


@pytest.mark.parametrize(("site", "command", "said", "job_id"), _FOUND)
def test_the_queue_knows_of_a_submission_whose_answer_nobody_heard(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    site: str,
    command: str,
    said: str,
    job_id: str,
) -> None:
    said_by = queue(tmp_path, monkeypatch, command)
    sweep = sweep_of(tmp_path, 3, site)
    (part,) = parts_of(sweep, range(3), None)
    record_submitted(sweep, part)
    said_by.say(said.format(sweep.folder))

    settle(sweep, lambda: pytest.fail("there is nothing to wait for"))

    assert [(one.job_ids, one.has_ended) for one in read_submitted(sweep)] == [((job_id,), True)]


def test_the_queue_knows_of_a_point_whose_answer_nobody_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was resumed by itself: `sweep continue` would submit it once more."""
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "41")
    start(sweep, 0, "41_0", "failed")
    start(sweep, 1, "41_1", "finished")
    run_dir = sweep.point_dir(0)
    with (run_dir / "state.jsonl").open("a") as out:
        out.write('{"time": 1000, "state": "submitted", "scheduler": "slurm"}\n')
    squeue = tmp_path / "squeue"
    squeue.write_text(
        f"#!/bin/sh\ncase $* in *%o) echo '50|{run_dir}/launch.sh' ;;\n"
        "*) echo '50|PENDING|' ;; esac\n"
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    statuses = point_statuses(sweep)

    assert (statuses[0].state, statuses[0].job_id) == ("pending", "50")
    assert SWEEP.unfinished(statuses) == []


def test_so_do_tasks_that_have_begun(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "40")
    (part,) = parts_of(sweep, range(2), None)
    record_submitted(sweep, part)
    start(sweep, 0, "40_0", "failed")
    start(sweep, 0, "41_0", "finished", array=2)
    squeue.say(f"40_1|{sweep.folder}\n")

    settle(sweep, lambda: pytest.fail("there is nothing to wait for"))

    assert [one.job_ids for one in read_submitted(sweep)] == [("40",), ("41",)]


def test_a_submission_that_never_was_is_made_again(
    tmp_path: Path, squeue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path, 2)
    (part,) = parts_of(sweep, range(2), None)
    record_submitted(sweep, part)
    clock = [time.time()]
    fake = SimpleNamespace(
        sleep=lambda seconds: clock.append(clock[-1] + 100), time=lambda: clock[-1]
    )
    monkeypatch.setattr(interrupted, "time", fake)
    told: list[bool] = []

    settle(sweep, lambda: told.append(True))

    assert told == [True]
    assert clock[-1] - clock[0] > interrupted.ANSWER_SECONDS
    assert SWEEP.unfinished(point_statuses(sweep)) == [0, 1]


_COBALT = {
    # Accepts the number of a point at a time, and kills the command at the point in `dies`.
    "qsub": """cd {state}
number=${{2#HPC_AMP_TASK=}}
[ "$number $when" != "$(cat dies) before" ] || {{ kill -9 $PPID; exit 1; }}
id=$((41 + $(wc -l <jobs)))
echo "$id ${{*: -1}}" >>jobs
[ "$number $when" != "$(cat dies) after" ] || kill -9 $PPID
echo "$id"
""",
    # Job 41 has ended and left the queue.
    "qstat": """cd {state}
[ "$*" != "--header JobID:Command" ] || {{ printf 'JobID Command\\n====\\n'; sed 1d jobs; exit; }}
printf 'JobID State\\n====\\n'; sed 1d jobs | while read -r id script; do echo "$id queued"; done
""",
}


@pytest.mark.parametrize(("when", "accepted"), [("before", 2), ("after", 3)])
def test_a_killed_command_left_jobs_for_some_of_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, accepted: int
) -> None:
    """On a scheduler without arrays, the command is killed at the third of four points."""
    sweep_of(tmp_path, 4, "cobalt")  # writes the job file
    (tmp_path / "jobs").touch()
    (tmp_path / "dies").write_text("2")
    for name, text in _COBALT.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\nwhen={when}\n" + text.format(state=tmp_path))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    def sweep_command(*words: str) -> subprocess.CompletedProcess[str]:
        environ = clean_environ(PATH=os.environ["PATH"])
        return commands.hpc_amp("sweep", *words, cwd=tmp_path, environ=environ)

    assert sweep_command("job.yaml", "train.seed=0,1,2,3").returncode == -signal.SIGKILL
    sweep = SWEEP.find("test", tmp_path / "sweeps")
    jobs = (tmp_path / "jobs").read_text().splitlines()
    assert len(jobs) == accepted
    # The jobs of the first two points are on record. Nobody knows of the third one yet.
    before = states(point_statuses(sweep))
    assert before == ["missing", "pending", "unknown", "unknown"]

    (tmp_path / "dies").write_text("none")
    age = [{**event, "time": event["time"] - 1000} for event in read_events(sweep.folder)]
    (sweep.folder / "state.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in age))
    again = sweep_command("continue", "test")

    assert again.returncode == 0, again.stderr
    first, second = read_submitted(sweep)
    assert first.job_ids == tuple(str(41 + index) for index in range(accepted))
    assert second.points == (0, *range(accepted, 4))
    assert [status.job_id for status in point_statuses(sweep)][1] == "42"
    assert states(point_statuses(sweep)) == ["pending"] * 4


def test_a_job_that_was_on_its_way_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of other points of the same submission do not settle it."""
    qstat = queue(tmp_path, monkeypatch, "qstat")
    sweep = sweep_of(tmp_path, 3, "cobalt")
    (part,) = parts_of(sweep, range(3), None)
    record_submitted(sweep, part)
    record_accepted(sweep, part, "41")
    script = sweep.folder / "array-1.sh"
    qstat.say(f"JobID Command\n====\n41 {script}\n")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            qstat.say(f"JobID Command\n====\n41 {script}\n42 {script}\n")

    monkeypatch.setattr(interrupted, "time", SimpleNamespace(sleep=sleep, time=time.time))

    settle(sweep, lambda: None)

    assert len(waits) == 3
    assert [(one.job_ids, one.has_ended) for one in read_submitted(sweep)] == [(("41", "42"), True)]


@pytest.mark.parametrize(
    ("others", "state"), [("41_1|PENDING|Priority\n", "pending"), ("", "missing")]
)
def test_a_point_that_starts_while_we_ask_is_not_missing(
    tmp_path: Path, squeue: Queue, monkeypatch: pytest.MonkeyPatch, others: str, state: str
) -> None:
    """Its job can have run and left the queue between our look at the files and the answer, as the
    last one in there."""
    sweep = sweep_of(tmp_path, 1 + 1)
    submit(sweep, range(2), "41")
    squeue.say(others)
    arrays = get_scheduler("slurm").arrays()
    ask = type(arrays).query

    def finish_then_ask(self: Any, *asked: Any) -> Any:
        start(sweep, 0, "41_0", "finished")
        return ask(self, *asked)

    monkeypatch.setattr(type(arrays), "query", finish_then_ask)

    assert states(point_statuses(sweep)) == ["finished", state]


def test_a_point_that_is_submitted_again_waits(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 3)
    submit(sweep, range(3), "41")
    for index, state in enumerate(("finished", "failed", "failed")):
        start(sweep, index, f"41_{index}", state)
    assert SWEEP.unfinished(point_statuses(sweep)) == [1, 2]
    submit(sweep, [1, 2], "77")
    squeue.say("77_0|PENDING|Priority\n")

    statuses = point_statuses(sweep)

    assert states(statuses) == ["finished", "pending", "failed"]
    assert [point_statuses(sweep, only=index)[0] for index in range(3)] == statuses
    assert [status.job_id for status in statuses] == ["41_0", "77_0", "41_2"]
    start(sweep, 1, "77_0", "finished", array=2)
    assert states(point_statuses(sweep)) == ["finished", "finished", "failed"]


def test_continue_keeps_the_bound_of_the_campaign(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 3)
    (part,) = parts_of(sweep, range(3), 2)
    record_submitted(sweep, part)
    record_queued(sweep, part, ["41"])
    start(sweep, 0, "41_0", "failed")
    squeue.say("41_1|RUNNING|\n41_2|RUNNING|\n")

    # The array has two tasks left, and may run both.
    statuses = point_statuses(sweep)
    with pytest.raises(UsageError, match="earlier arrays may run 2"):
        parts_of(sweep, SWEEP.unfinished(statuses), 2, statuses)

    start(sweep, 1, "41_1", "failed")
    statuses = point_statuses(sweep)
    (part,) = parts_of(sweep, SWEEP.unfinished(statuses), 2, statuses)

    assert "#SBATCH --array=0-1%1" in render_part(sweep, part).splitlines()


def test_there_may_be_nothing_to_continue(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "41")
    start(sweep, 0, "41_0", "finished")
    squeue.say("41_1|PENDING|Priority\n")

    statuses = point_statuses(sweep)
    assert SWEEP.unfinished(statuses) == []
    assert "1 point is under way" in nothing_to_continue(statuses, "point", "finished")

    start(sweep, 1, "41_1", "finished")
    statuses = point_statuses(sweep)
    assert SWEEP.unfinished(statuses) == []
    assert nothing_to_continue(statuses, "point", "finished") == "all points have finished"


# ---- cancelling ----------------------------------------------------------------------------------


def test_cancelling_ends_the_array_and_is_remembered(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 4)
    submit(sweep, range(4), "41")
    start(sweep, 0, "41_0", "finished")
    start(sweep, 1, "41_1")
    start(sweep, 2, "41_2", "failed")
    record_event(sweep.point_dir(2), "submitted", scheduler="slurm")  # by hpc-amp resume
    record_event(sweep.point_dir(2), "queued", job_id="99")
    squeue.say("41_1|RUNNING|None\n41_3|PENDING|Priority\n99|PENDING|Priority\n")

    before = cancel(sweep, lambda: None)

    assert [(status.index, status.state) for status in before] == [
        (1, "running"),
        (2, "pending"),
        (3, "pending"),
    ]
    assert squeue.calls[1:] == ["scancel 41", "scancel 99"]
    squeue.say("")
    assert states(point_statuses(sweep)) == ["finished", "cancelled", "cancelled", "cancelled"]
    assert events(sweep.point_dir(1))[-1] == "cancelled"
    assert cancel(sweep, lambda: None) == []


def test_a_point_that_starts_while_it_is_cancelled(
    tmp_path: Path, squeue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path, 3)
    submit(sweep, range(3), "41")
    squeue.say("41_0|RUNNING|None\n41_1|RUNNING|None\n41_2|PENDING|Priority\n")
    end = SlurmArrays.cancel

    def late(arrays: SlurmArrays, job_ids: Sequence[str]) -> None:
        start(sweep, 0, "41_0")
        start(sweep, 1, "41_1", "finished")
        end(arrays, job_ids)
        squeue.say("")

    monkeypatch.setattr(SlurmArrays, "cancel", late)

    cancel(sweep, lambda: None)

    assert states(point_statuses(sweep)) == ["cancelled", "finished", "cancelled"]


def test_what_the_scheduler_did_not_end_is_ended_by_the_next_try(
    tmp_path: Path, squeue: Queue
) -> None:
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "41")
    start(sweep, 0, "41_0", "finished")
    start(sweep, 1, "41_1")
    record_cancelled(sweep, "by hpc-amp sweep cancel")
    record_event(sweep.point_dir(1), "cancelled", reason="by hpc-amp sweep cancel")
    squeue.say("41_1|RUNNING|None\n")

    before = cancel(sweep, lambda: None)

    assert [(status.index, status.state) for status in before] == [(1, "cancelled")]
    assert squeue.calls[-1] == "scancel 41"


def test_where_signals_do_not_reach_ranks_they_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qstat = queue(tmp_path, monkeypatch, "qstat")
    sweep = sweep_of(tmp_path, 2, "pbs")
    submit(sweep, range(2), "490[].head")
    start(sweep, 0, "490[0].head")
    attempt = sweep.point_dir(0) / "attempts" / "1"
    attempt.mkdir(parents=True)
    qstat.say("Job Id: 490[0].head\n    job_state = R\nJob Id: 490[1].head\n    job_state = Q\n")
    asked = []

    def saved() -> None:
        asked.append((attempt / "stop").exists())
        (attempt / "ended").touch()

    cancel(sweep, saved)

    assert asked == [True]
    assert qstat.calls == ["qstat -f -t 490[].head", "qdel 490[].head"]


# ---- PBS and Cobalt ------------------------------------------------------------------------------

# The form that OpenPBS 23.06 was seen to print; a real array has not been tried with this code.
QSTAT = """\
Job Id: 490[].head
    Job_Name = test
    job_state = B
    array = True
Job Id: 490[0].head
    job_state = X
    Exit_status = 0
Job Id: 490[1].head
    job_state = R
Job Id: 490[2].head
    job_state = Q
    comment = Not Running: Insufficient amount of resource: ncpus
Job Id: 512.head
    job_state = R
"""


def test_pbs_tells_of_every_task_in_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qstat = queue(tmp_path, monkeypatch, "qstat")
    sweep = sweep_of(tmp_path, 4, "pbs")
    submit(sweep, range(4), "490[].head")
    start(sweep, 0, "490[0].head", "finished")
    start(sweep, 1, "490[1].head")
    start(sweep, 3, "490[3].head", "continued")
    record_event(sweep.point_dir(3), "started", attempt=2, job_id="512.head")
    qstat.say(QSTAT)

    statuses = point_statuses(sweep)

    assert states(statuses) == ["finished", "running", "pending", "running"]
    assert statuses[2].reason == "Not Running: Insufficient amount of resource: ncpus"
    assert qstat.calls == ["qstat -f -t 490[].head 512.head"]


def test_pbs_knows_when_jobs_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = queue(tmp_path, monkeypatch, "qstat")
    qstat.say("", status=153)

    assert get_scheduler("pbs").arrays().query(["490[].head"], []) == {}


def test_pbs_is_asked_once_about_all_that_it_lists_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qstat = queue(tmp_path, monkeypatch, "qstat")
    sweep = sweep_of(tmp_path, 3, "pbs")
    submit(sweep, range(3), "490[].head")
    for index in range(3):
        start(sweep, index, f"490[{index}].head")
    (qstat.folder / "qstat").write_text(
        f'#!/bin/sh\ncd {qstat.folder}\necho "qstat $*" >>calls\n[ "$1" = -x ] || exit 153\n'
        'printf "Job Id: 490[1].head\\n    job_state = F\\n    Exit_status = 271\\n"; exit 153\n'
    )

    statuses = point_statuses(sweep)

    assert states(statuses) == ["lost", "cancelled", "lost"]
    assert statuses[0].reason == "it is not in the queue"
    assert qstat.calls == [
        "qstat -f -t 490[].head",
        "qstat -x -f 490[0].head 490[1].head 490[2].head",
    ]


def test_a_cobalt_queue_that_took_only_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qstat = queue(tmp_path, monkeypatch, "qstat")
    sweep = sweep_of(tmp_path, 3, "cobalt")
    submit(sweep, range(3), "7", "8")
    qstat.say("JobID State\n=====\n7 running\n8 queued\n")

    statuses = point_statuses(sweep)

    assert states(statuses) == ["running", "pending", "missing"]
    assert statuses[2].reason == "the scheduler did not take it"


def test_json_has_what_the_table_has(tmp_path: Path, squeue: Queue) -> None:
    sweep = sweep_of(tmp_path, 2)
    submit(sweep, range(2), "41")
    start(sweep, 1, "41_1", "finished")
    squeue.say("41_0|PENDING|Priority\n")

    plain = [status.to_plain(sweep.keys) for status in point_statuses(sweep)]

    assert json.loads(json.dumps(plain))[0] == {
        "point": 0,
        "values": {"train.seed": "0"},
        "repeat": 1,
        "state": "pending",
        "reason": "Priority",
        "job_id": "41_0",
        "run_dir": None,
        "attempt": 0,
        "step": None,
        "total_steps": None,
    }
    assert plain[1]["run_dir"] == str(sweep.point_dir(1))
