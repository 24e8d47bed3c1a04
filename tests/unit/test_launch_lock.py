"""Attempts of one run never work at once: what a launch script does where it meets another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost, events, wait
from support.waiting import wait_until

from hpc_amp.jobs.events import read_events

# Writes down that it has begun, and ends well when it is told to.
PATIENT = "touch ready-$HPC_AMP_ATTEMPT; until [ -e go ]; do sleep 0.05; done"
OLD = 1000


def patient(**more: Any) -> dict[str, Any]:
    return {"run": ["bash", "-c", PATIENT], "launch": "single", **more}


def until_at_work(host: StubHost, attempt: int = 1) -> None:
    wait_until((host.work / f"ready-{attempt}").exists, f"attempt {attempt}")


def in_queue(host: StubHost, *rows: str) -> None:
    (host.state / "queue").write_text("".join(f"{row}\n" for row in rows))


def kill_all(process: subprocess.Popen[str]) -> None:
    """What the end of a node does."""
    os.killpg(process.pid, signal.SIGKILL)
    wait(process)


def make_attempt(run_dir: Path, number: int, *, job_id: str, host: str = "elsewhere") -> Path:
    """An attempt that somebody is at work on, or was."""
    folder = run_dir / "attempts" / str(number)
    folder.mkdir(parents=True)
    owner = {"job_id": job_id, "host": host, "pid": 1, "time": 1795848895}
    (folder / "owner").write_text(json.dumps(owner) + "\n")
    (folder / "alive").touch()
    return folder


def let_age(folder: Path, seconds: int) -> None:
    """No sign of life for so long."""
    then = time.time() - seconds
    os.utime(folder / "alive", (then, then))


# ---- the marks of an attempt ---------------------------------------------------------------------


def test_an_attempt_says_whose_it_is_and_when_it_is_over(host: StubHost) -> None:
    run_dir = host.create(patient())
    process = host.start(run_dir)
    until_at_work(host)
    folder = run_dir / "attempts" / "1"

    owner = json.loads((folder / "owner").read_text())
    assert (owner["job_id"], owner["pid"]) == ("42", process.pid)
    assert abs(owner["time"] - time.time()) < 120
    assert int((folder / "end_at").read_text()) > time.time()
    assert (folder / "from").read_text() == "0\n"
    first = (folder / "alive").stat().st_mtime_ns
    wait_until(lambda: (folder / "alive").stat().st_mtime_ns > first, "a second sign of life")
    assert not (folder / "ended").exists()

    (host.work / "go").touch()
    assert wait(process).status == 0
    assert (folder / "ended").exists()
    assert [path.name for path in (run_dir / "attempts").iterdir()] == ["1"]


def test_the_sign_of_life_ends_with_the_script(host: StubHost) -> None:
    """However that ends; a heartbeat of the dead would keep others away."""
    run_dir = host.create(patient())
    process = host.start(run_dir)
    until_at_work(host)
    os.kill(process.pid, signal.SIGKILL)
    (host.work / "go").touch()

    assert wait(process).status == -signal.SIGKILL
    # Processes of the script's own session: its heartbeat is one of them.
    wait_until(lambda: not members_of_session(process.pid), "the heartbeat to end")
    assert not (run_dir / "attempts" / "1" / "ended").exists()


@pytest.mark.parametrize("launch", ["single", "srun"])
def test_the_ranks_end_with_the_script(host: StubHost, launch: str) -> None:
    """Without a sign of life another attempt would begin beside them."""
    run_dir = host.create(patient(launch=launch))
    process = host.start(run_dir)
    until_at_work(host)
    os.kill(process.pid, signal.SIGKILL)

    assert wait(process).status == -signal.SIGKILL
    wait_until(lambda: not members_of_session(process.pid), "the ranks to end")


def members_of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_the_newest_checkpoint_at_the_beginning_is_noted(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    for name in (
        "step-00000009",
        "step-00000120",
        "step-100000000",
        "step-20",
        "step-x",
        ".tmp-step-00000999",
    ):
        (run_dir / "checkpoints" / name).mkdir(parents=True)

    host.run(run_dir)

    assert (run_dir / "attempts" / "1" / "from").read_text() == "100000000\n"


# ---- two at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["slurm", "local"])
def test_a_second_start_gives_way(host: StubHost, site: str) -> None:
    run_dir = host.create(patient(site=site))
    first = host.start(run_dir)
    until_at_work(host)
    in_queue(host, "42|RUNNING|None")

    second = host.run(run_dir, job_id="43")

    (line,) = second.output.splitlines()
    owner = json.loads((run_dir / "attempts" / "1" / "owner").read_text())
    assert line.startswith(
        f"hpc-amp: job {owner['job_id']} on {owner['host']} has been at work on "
    )
    assert line.endswith("(attempt 1); two at once would spoil it")
    assert second.status == 2
    assert events(run_dir) == ["started"]
    assert [path.name for path in (run_dir / "attempts").iterdir()] == ["1"]
    (host.work / "go").touch()
    assert wait(first).status == 0
    assert events(run_dir) == ["started", "finished"]


def test_of_many_starts_at_the_same_moment_one_works(host: StubHost) -> None:
    ids = [str(number) for number in range(50, 58)]
    in_queue(host, *(f"{job_id}|RUNNING|None" for job_id in ids))
    run_dir = host.create(patient())

    processes = [host.start(run_dir, job_id=job_id) for job_id in ids]
    wait_until(lambda: sum(p.poll() is None for p in processes) == 1, "all but one to give way")
    until_at_work(host)
    (host.work / "go").touch()

    statuses = [wait(process).status for process in processes]
    assert sorted(statuses) == [0] + [2] * 7
    assert events(run_dir) == ["started", "finished"]
    assert {event["attempt"] for event in read_events(run_dir)} == {1}


def test_a_failing_start_does_not_disturb_the_one_at_work(host: StubHost) -> None:
    run_dir = host.create(patient())
    make_attempt(run_dir, 1, job_id="42")
    in_queue(host, "42|RUNNING|None")

    assert host.run(run_dir, job_id="43", nodes="n1,n2,n3").status == 2
    assert host.run(run_dir, job_id="").status == 2
    assert events(run_dir) == []


# ---- after a death without a word ----------------------------------------------------------------


@pytest.mark.parametrize(
    "row", ["42|PENDING|BeginTime", "42|NODE_FAIL|None", "42|TIMEOUT|None", "7|RUNNING|None"]
)
def test_a_job_that_the_scheduler_has_ended_is_followed(host: StubHost, row: str) -> None:
    run_dir = host.create({"run": ["true"]})
    let_age(make_attempt(run_dir, 1, job_id="42"), OLD)
    in_queue(host, row)

    assert host.run(run_dir, job_id="43").status == 0
    assert read_events(run_dir)[-1]["attempt"] == 2


def test_a_killed_local_run_is_followed(host: StubHost) -> None:
    run_dir = host.create(patient(site="local"))
    process = host.start(run_dir)
    until_at_work(host)
    kill_all(process)
    let_age(run_dir / "attempts" / "1", OLD)
    (host.work / "go").touch()

    assert host.run(run_dir).status == 0
    assert read_events(run_dir)[-1]["attempt"] == 2


def test_a_job_that_starts_once_more_follows_itself(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    let_age(make_attempt(run_dir, 1, job_id="42"), OLD)
    in_queue(host, "42|RUNNING|None")

    assert host.run(run_dir, job_id="42").status == 0
    assert read_events(run_dir)[-1]["attempt"] == 2


def test_where_nobody_knows_an_old_sign_of_life_is_an_end(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    folder = make_attempt(run_dir, 1, job_id="42")
    host.fail("squeue", "Unable to contact slurm controller")
    let_age(folder, 181)

    ended = host.run(run_dir, job_id="43")

    assert ended.status == 0, ended.output
    assert read_events(run_dir)[-1]["attempt"] == 2


@pytest.mark.parametrize("answer", ["silence", "not shown", "completing"])
def test_a_new_sign_of_life_says_more_than_the_scheduler(host: StubHost, answer: str) -> None:
    """It may be away, or not show the jobs of another user."""
    run_dir = host.create(patient())
    first = host.start(run_dir)
    until_at_work(host)
    if answer == "silence":
        host.fail("squeue", "Unable to contact slurm controller")
    elif answer == "completing":
        in_queue(host, "42|COMPLETING|None")

    second = host.run(run_dir, job_id="43")

    assert second.status == 2
    assert second.output.splitlines()[0].endswith(
        " has not said that it has ended: waiting for a sign of life"
    )
    assert "has been at work on this run since" in second.output.splitlines()[-1]
    (host.work / "go").touch()
    assert wait(first).status == 0
    assert events(run_dir) == ["started", "finished"]


def test_on_another_machine_a_local_run_is_judged_by_its_sign_of_life(host: StubHost) -> None:
    run_dir = host.create({"site": "local", "run": ["true"]})
    folder = make_attempt(run_dir, 1, job_id="local-1-1")
    let_age(folder, 181)

    assert host.run(run_dir).status == 0


# ---- taken for dead ------------------------------------------------------------------------------


def test_an_attempt_that_was_taken_for_dead_leaves_the_run_alone(host: StubHost) -> None:
    """Slurm has started the job again elsewhere; this node had only lost its daemon."""
    run_dir = host.create(patient(restarts=3))
    first = host.start(run_dir)
    until_at_work(host)

    second = host.start(run_dir)  # of the same job
    ended = wait(first)

    assert "attempt 1 ended: attempt 2 has taken the run over" in ended.output.splitlines()
    assert events(run_dir)[0] == "started"
    assert all(event["attempt"] == 2 for event in read_events(run_dir)[1:])
    until_at_work(host, attempt=2)
    over = (run_dir / "attempts" / "1" / "ended").stat().st_mtime
    assert (host.work / "ready-2").stat().st_mtime >= over
    (host.work / "go").touch()
    assert wait(second).status == 0
    assert events(run_dir) == ["started", "started", "finished"]


def test_a_job_that_waits_for_a_sign_of_life_may_be_ended(host: StubHost) -> None:
    """It has made no attempt, and has nothing to record."""
    run_dir = host.create(patient())
    make_attempt(run_dir, 1, job_id="41")
    host.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    process = host.start(run_dir)
    assert process.stdout is not None
    said = ""
    while "waiting for a sign of life" not in said:
        said = process.stdout.readline()
        assert said, "the script has ended"

    process.send_signal(signal.SIGTERM)

    assert wait(process).status == 143
    assert [path.name for path in (run_dir / "attempts").iterdir()] == ["1"]
    assert events(run_dir) == []
