"""`hpc-amp status RUN` and `hpc-amp cancel --save`: what a user learns of attempts, and how a run
is asked to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost, events, wait
from support.waiting import wait_for_file, wait_until

from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers.local import scheduler as local


def job(**more: Any) -> dict[str, Any]:
    resources = {"gpus_per_node": 0, "walltime": "10m", **more.pop("job", {})}
    program = {} if "train" in more else {"run": ["true"]}
    return {"name": "test", "site": "slurm", **program, **more, "job": resources}


TRAINING = {"data": "synthetic", "batch_size": 100}


def submitted(host: StubHost, config: dict[str, Any]) -> Path:
    host.write_job(config)
    result = host.hpc_amp("submit", "job.yaml", "launch.preflight=false", "--json")
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def queue(host: StubHost, *rows: str) -> None:
    (host.state / "queue").write_text("".join(f"{row}\n" for row in rows))


def details(host: StubHost) -> dict[str, Any]:
    shown = host.hpc_amp("status", "test", "--json")
    assert shown.returncode == 0, shown.stderr
    (entry,) = json.loads(shown.stdout)
    return dict(entry)


def attempt(
    run_dir: Path, number: int, *states: str, reason: str = "", start: int, end: int, **files: Any
) -> Path:
    """The traces of an attempt: its owner, its events, and `files` as JSON."""
    folder = run_dir / "attempts" / str(number)
    folder.mkdir(parents=True)
    owner = {"job_id": "4242", "host": f"n{number}", "pid": 1, "time": start}
    for name, content in {"owner": owner, **files}.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content) + "\n")
    (folder / "alive").touch()
    os.utime(folder / "alive", (end, end))
    with (run_dir / "state.jsonl").open("a") as out:
        for state in ("started", *states):
            when = start if state == "started" else end
            event = {"time": when, "state": state, "attempt": number, "job_id": "4242"}
            out.write(json.dumps({**event, "reason": reason}) + "\n")
    return folder


START = 1795848895


# ---- attempts ------------------------------------------------------------------------------------


def test_every_attempt_and_how_it_ended(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    attempt(
        *(run_dir, 1, "continued"), start=START, end=START + 600,
        **{"from": 0, "outcome__json": {"outcome": "checkpointed", "step": 120,
                                        "reason": "the time limit is near"}},
    )  # fmt: skip
    attempt(
        *(run_dir, 2), start=START + 700, end=START + 800,
        **{"from": 120, "progress__json": {"step": 150, "total_steps": 400}},
    )  # fmt: skip
    attempt(
        *(run_dir, 3, "retried"), start=START + 900, end=START + 905, reason="exit status 9",
        **{"from": 120},
    )  # fmt: skip
    attempt(*(run_dir, 4), start=START + 1000, end=START + 1000, **{"from": 120})
    queue(host, "4242|RUNNING|None")

    found = details(host)["attempts"]

    assert [(one["number"], one["job_id"], one["host"], one["state"]) for one in found] == [
        (1, "4242", "n1", "continued"),
        (2, "4242", "n2", "lost"),
        (3, "4242", "n3", "retried"),
        (4, "4242", "n4", "running"),
    ]
    assert [(one["start"] - START, one["end"] and one["end"] - START) for one in found] == [
        (0, 600), (700, 800), (900, 905), (1000, None),
    ]  # fmt: skip
    assert [(one["from_step"], one["to_step"]) for one in found] == [
        (0, 120), (120, 150), (120, None), (120, None),
    ]  # fmt: skip
    assert [one["ending"] for one in found] == [
        "stopped at a checkpoint, to continue in the next attempt: the time limit is near",
        "ended without a message: it was killed, or its node failed",
        "failed, and is tried again: exit status 9",
        "",
    ]


def test_the_last_attempt_of_a_job_that_has_vanished_is_lost(host: StubHost) -> None:
    run_dir = submitted(host, job())
    attempt(run_dir, 1, start=START, end=START + 60)
    queue(host)

    entry = details(host)

    assert (entry["state"], entry["attempts"][0]["state"]) == ("lost", "lost")
    assert entry["attempts"][0]["end"] == START + 60


@pytest.mark.parametrize("last", [(), ("terminated",), ("failed",)])
def test_a_cancelled_attempt_is_no_failure(host: StubHost, last: tuple[str, ...]) -> None:
    run_dir = submitted(host, job())
    attempt(run_dir, 1, start=START, end=START + 60)
    record_event(run_dir, "cancelled", reason="by hpc-amp cancel")
    for state in last:
        record_event(run_dir, state, attempt=1, job_id="4242")

    (one,) = details(host)["attempts"]

    assert (one["state"], one["ending"]) == ("cancelled", "cancelled")


@pytest.mark.parametrize(
    ("waits", "state"), [(["4242|PENDING|BeginTime"], "pending"), ([], "failed")]
)
def test_a_job_that_was_ended_may_wait_for_another_start(
    host: StubHost, waits: list[str], state: str
) -> None:
    """PBS starts a job again after `qrerun`, without telling it before."""
    run_dir = submitted(host, job())
    attempt(run_dir, 1, start=START, end=START + 60)
    record_event(run_dir, "killed", attempt=1, job_id="4242", reason="exit status 143")
    queue(host, *waits)

    entry = details(host)

    assert entry["state"] == state
    assert entry["attempts"][0]["state"] == "killed"
    assert entry["attempts"][0]["ending"] == (
        "the job was ended, by its user or by its scheduler: exit status 143"
    )
    assert entry["reason"] == ("BeginTime" if waits else "exit status 143")


def test_damaged_traces_do_not_hide_a_run(host: StubHost) -> None:
    run_dir = submitted(host, job())
    folder = run_dir / "attempts" / "1"
    (folder / "heartbeat").mkdir(parents=True)
    for name in (
        "owner",
        "from",
        "end_at",
        "progress.json",
        "outcome.json",
        "heartbeat/rank-00000",
    ):
        (folder / name).write_text('{"time": ')
    (run_dir / "attempts" / "2.bak").mkdir()
    queue(host, "4242|RUNNING|None")

    entry = details(host)

    assert [one["number"] for one in entry["attempts"]] == [1]
    assert (entry["time_left"], entry["seconds_to_go"], entry["heartbeat"]) == (None, None, None)
    assert host.hpc_amp("status", "test").returncode == 0


# ---- progress ------------------------------------------------------------------------------------


def at_work(host: StubHost) -> Path:
    run_dir = submitted(host, job(train=TRAINING))
    now = int(time.time())
    folder = attempt(
        run_dir, 1, start=now - 60, end=now,
        **{"from": 0, "end_at": now + 3600,
           "progress__json": {"step": 120, "total_steps": 160, "samples_per_second": 50.0}},
    )  # fmt: skip
    (folder / "heartbeat").mkdir()
    for rank, age in ((0, 2), (1, 300), (2, 5)):
        beat = {"rank": rank, "host": f"n{rank}", "pid": 1, "step": 118, "phase": "training"}
        path = folder / "heartbeat" / f"rank-{rank:05d}"
        path.write_text(json.dumps({**beat, "time": time.time() - age}))
    queue(host, "4242|RUNNING|None")
    return run_dir


def test_progress_time_and_signs_of_life(host: StubHost) -> None:
    at_work(host)

    entry = details(host)

    assert (entry["step"], entry["total_steps"]) == (120, 160)
    assert entry["seconds_to_go"] == 40 * 100 / 50
    assert 3600 - 60 < entry["time_left"] <= 3600
    assert 300 <= entry["heartbeat"].pop("age") < 360
    assert entry["heartbeat"] == {
        "ranks": 3, "rank": 1, "host": "n1", "step": 118, "phase": "training",
    }  # fmt: skip


def test_in_words(host: StubHost) -> None:
    run_dir = at_work(host)

    lines = host.hpc_amp("status", "test").stdout.splitlines()

    assert lines[:4] == [
        "test: running",
        f"  run        {run_dir}",
        "  job        4242 (slurm)",
        "  progress   step 120 of 160 (75%), about 00:01:20 left",
    ]
    assert re.fullmatch(r"  time left  0[01]:[0-5]\d:\d\d until the job's time limit", lines[4])
    assert lines[5].startswith("  alive      3 ranks, each reported within the last 30")
    assert lines[5].endswith("(oldest: rank 1 on n1, step 118, training)")
    assert lines[7].split() == ["ATTEMPT", "JOB", "HOST", "STARTED", "TOOK", "STEPS", "ENDED"]
    assert lines[8].split()[:3] == ["1", "4242", "n1"]
    assert lines[8].endswith("  0 to 120  running")


def test_the_list_of_runs_asks_once_and_stays_short(host: StubHost) -> None:
    at_work(host)

    (entry,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert "attempts" not in entry
    assert len(host.calls("squeue")) == 1


def test_details_of_several_runs_ask_once(host: StubHost) -> None:
    first, second = (str(submitted(host, job())) for _ in range(2))
    queue(host, "4242|RUNNING|None", "4243|RUNNING|None")

    shown = host.hpc_amp("status", first, second, "--json")

    assert [entry["job_id"] for entry in json.loads(shown.stdout)] == ["4242", "4243"]
    assert len(host.calls("squeue")) == 1


# ---- cancel --save -------------------------------------------------------------------------------


def test_a_run_that_waits_has_nothing_to_save(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))

    result = host.hpc_amp("cancel", "--save", "test")

    assert result.stdout == (
        f"cancelled job 4242 of {run_dir}, which was not running: there was nothing to save\n"
    )
    assert events(run_dir)[-1] == "cancelled"
    assert host.calls("scancel") == [["4242"]]


def test_a_run_that_waits_to_go_on_keeps_what_it_has(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    attempt(run_dir, 1, "continued", start=START, end=START + 60)
    queue(host, "4242|PENDING|BeginTime")

    assert host.hpc_amp("cancel", "--save", "test").stdout.endswith(": its checkpoints are kept\n")
    assert host.calls("scancel") == [["4242"]]


def test_a_run_that_works_saves_and_is_not_killed(host: StubHost) -> None:
    run_dir = at_work(host)
    process = cancelling(host)
    wait_for_file(run_dir / "attempts" / "1" / "stop")
    assert process.poll() is None, "it waits"
    assert details(host)["reason"] == "it was asked to save and stop"
    outcome = {"outcome": "checkpointed", "step": 121, "reason": "a stop was asked for"}
    (run_dir / "attempts" / "1" / "outcome.json").write_text(json.dumps(outcome))
    (run_dir / "attempts" / "1" / "progress.json").write_text('{"step": 121, "total_steps": 160}')
    record_event(
        run_dir, "checkpointed", attempt=1, job_id="4242", reason="a stop was asked for"
    )  # fmt: skip

    assert wait(process).output.splitlines() == [
        "asked job 4242 to save and stop; it will not restart by itself "
        "(Ctrl-C returns without waiting)",
        f"{run_dir} is checkpointed at step 121: a stop was asked for",
    ]
    assert host.calls("scancel") == []
    assert events(run_dir)[-2:] == ["stopping", "checkpointed"]


def cancelling(host: StubHost) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "cancel", "--save", "test"],
        cwd=host.work, env=host.environ(PYTHONUNBUFFERED="1"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def test_ctrl_c_ends_the_waiting_alone(host: StubHost) -> None:
    run_dir = at_work(host)
    process = cancelling(host)
    wait_for_file(run_dir / "attempts" / "1" / "stop")
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)

    ended = wait(process)

    assert ended.status == 130
    assert ended.output.splitlines()[-1] == f"not waiting any more; see hpc-amp status {run_dir}"
    assert host.calls("scancel") == []


def test_a_program_of_ones_own_is_not_waited_for(host: StubHost) -> None:
    run_dir = submitted(host, job())
    attempt(run_dir, 1, start=START, end=START)
    queue(host, "4242|RUNNING|None")

    result = host.hpc_amp("cancel", "--save", "test")

    assert result.returncode == 0
    assert "runs your own program: it stops when it sees the file attempts/1/stop" in result.stdout
    assert (run_dir / "attempts" / "1" / "stop").exists()
    assert events(run_dir)[-1] == "stopping"
    assert host.calls("scancel") == []


def test_a_run_that_has_ended_is_left_alone(host: StubHost) -> None:
    run_dir = submitted(host, job())
    record_event(run_dir, "finished")

    result = host.hpc_amp("cancel", "--save", "test")

    assert result.stdout == f"{run_dir} has already ended (finished)\n"
    assert events(run_dir) == ["submitted", "queued", "finished"]


@pytest.fixture
def here(host: StubHost) -> Iterator[StubHost]:
    """A machine on which local runs are started; none outlives the test."""
    yield host
    for path in host.work.glob("runs/*/[0-9]*/state.jsonl"):
        for event in read_events(path.parent):
            job_id = str(event.get("job_id", ""))
            if job_id.startswith("local-") and local._alive(job_id):
                for member in local._family(int(job_id.split("-")[1])):
                    os.kill(member, signal.SIGKILL)


def test_a_local_run_from_the_stop_to_its_resumption(here: StubHost) -> None:
    """The program looks for the stop file, as the built-in tasks do."""
    program = (
        "[ $HPC_AMP_ATTEMPT -eq 1 ] || exit 0\n"
        'until [ -e "$(dirname "$HPC_AMP_OUTCOME_FILE")/stop" ]; do sleep 0.05; done; exit 75'
    )
    run_dir = submitted(here, job(site="local", run=["bash", "-c", program]))
    wait_until(lambda: "started" in events(run_dir), "the start")

    assert here.hpc_amp("cancel", "--save", "test").returncode == 0
    wait_until(lambda: details(here)["state"] == "checkpointed", "the stop")
    assert details(here)["reason"] == "a stop was asked for"
    assert here.hpc_amp("resume", "test").returncode == 0
    wait_until(lambda: details(here)["state"] == "finished", "the end")

    states = [state for state in events(run_dir) if state != "queued"]
    stopped = ["submitted", "started", "stopping", "checkpointed"]
    assert states == [*stopped, "submitted", "started", "finished"]


def test_a_run_whose_description_is_damaged_hides_no_other_one(host: StubHost) -> None:
    damaged = submitted(host, job())
    (damaged / "job.json").write_text("")
    submitted(host, job(name="other"))

    shown = host.hpc_amp("status")

    assert shown.returncode == 0, shown.stderr
    assert "its job.json cannot be read" in shown.stdout and "pending" in shown.stdout
    for verb in ("cancel", "resume"):
        result = host.hpc_amp(verb, str(damaged))
        assert result.returncode == 2
        assert result.stderr.startswith(f"hpc-amp: {damaged}/job.json cannot be read: ")
        assert len(result.stderr.splitlines()) == 1
