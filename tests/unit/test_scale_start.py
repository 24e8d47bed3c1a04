"""Starting a scaling study: what is checked, estimated, asked and submitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import begin_task, points_of
from support.rank_times import rank_file
from support.stubs import StubHost
from support.studies import find_study, write_timing
from support.terminal import Terminal

from hpc_amp.jobs.events import record_event
from hpc_amp.study.analysis import analyse
from hpc_amp.study.folder import KINDS, Study

JOB: dict[str, Any] = {
    "name": "cifar",
    "site": "slurm",
    "job": {"gpus_per_node": 4, "walltime": "30m"},
    "train": {"batch_size": 512, "data": "synthetic"},
}


def newest(host: StubHost) -> Study:
    return find_study("cifar", host.work / "studies")


def jobs_of(study: Study) -> dict[str, dict[str, Any]]:
    """The resolved job of each planned run."""
    lines = (study.folder / "jobs.jsonl").read_text().splitlines()
    jobs = [json.loads(line)["job"] for line in lines]
    return {run.label: jobs[study.point(run)] for run in study.planned_runs()}


def begin(study: Study, label: str, job_id: str = "4242") -> Path:
    """The run directory of a run that has begun; its job was the first one with its point."""
    (run,) = (run for run in study.planned_runs() if run.label == label)
    return begin_task(study.folder / f"array-{study.point(run) + 1}.sh", job_id)


# ---- what is submitted ---------------------------------------------------------------------------


def test_one_ordinary_job_for_each_point_and_repeat(host: StubHost) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("scale", "job.yaml", "--nodes", "1,2", "--repeats", "2", "--json")

    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    study = newest(host)
    assert (facts["folder"], facts["submitted"]) == (str(study.folder), 4)
    assert facts["job_ids"] == ["4242", "4243", "4244", "4245"]
    jobs = jobs_of(study)
    assert {name: job["job"]["nodes"] for name, job in jobs.items()} == {
        "strong-n0001-r01": 1,
        "strong-n0001-r02": 1,
        "strong-n0002-r01": 2,
        "strong-n0002-r02": 2,
    }
    assert {job["train"]["batch_size"] for job in jobs.values()} == {512}
    # The small points first, then all once more.
    scripts = [Path(call[-1]) for call in host.calls("sbatch")]
    assert [points_of(script) for script in scripts] == [[f"{index:04d}"] for index in range(4)]
    planned = {run.label: study.point(run) for run in study.planned_runs()}
    order = ["strong-n0001-r01", "strong-n0002-r01", "strong-n0001-r02", "strong-n0002-r02"]
    assert [planned[label] for label in order] == [0, 1, 2, 3]
    assert all("--array" not in script.read_text() for script in scripts)
    config = (study.folder / "config.yaml").read_text()
    assert config == (host.work / "job.yaml").read_text()


def test_only_the_steps_are_measured_and_nothing_runs_beside_them(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp(
        *("scale", "job.yaml", "--nodes=1", "--repeats=1", "--warmup=7", "--steps=30"),
        *("train.evaluate_every=2", "train.checkpoint=5steps", "restarts=3", "job.max_restarts=9"),
    )

    (job,) = jobs_of(newest(host)).values()

    train = job["train"]
    assert (train["timing"]["warmup"], train["timing"]["steps"]) == (7, 30)
    assert (train["max_steps"], train["log_every"]) == (37, 37)
    assert train["epochs"] >= 37
    assert train["evaluate_every"] == 0
    checkpoint = train["checkpoint"]
    assert int(checkpoint["every"].removesuffix("steps")) > 37
    assert (checkpoint["keep_best"], checkpoint["keep_every"]) == (0, None)
    assert (job["restarts"]["on_failure"], job["job"]["max_restarts"]) == (0, 0)


def test_seconds_instead_of_steps(host: StubHost) -> None:
    host.write_job(JOB)
    result = host.hpc_amp("scale", "job.yaml", "--nodes=1", "--repeats=1", "--seconds=30")

    assert "then about 30 s measured" in result.stdout
    (job,) = jobs_of(newest(host)).values()
    train = job["train"]
    assert train["timing"]["seconds"] == 30
    assert train["max_steps"] > 10**8
    assert train["log_every"] == 1000


def test_evaluations_and_checkpoints_where_they_are_asked_for(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp(
        *("scale", "job.yaml", "--nodes=1", "--repeats=1", "--evaluate", "--checkpoints"),
        *("train.evaluate_every=2", "train.checkpoint=5steps"),
    )

    (job,) = jobs_of(newest(host)).values()

    assert job["train"]["evaluate_every"] == 2
    assert job["train"]["checkpoint"]["every"] == "5steps"
    assert job["train"]["checkpoint"]["keep_best"] == 1


def test_weak_scaling_keeps_the_batch_of_a_rank(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("scale", "job.yaml", "--nodes=1,3,4", "--kind=weak", "--repeats=1", "job.nodes=2")

    batches = {name: job["train"]["batch_size"] for name, job in jobs_of(newest(host)).items()}

    # 512 on 2 nodes of 4 ranks are 64 a rank.
    assert batches == {"weak-n0001-r01": 256, "weak-n0003-r01": 768, "weak-n0004-r01": 1024}


def test_strong_and_weak_share_the_runs_that_are_the_same(host: StubHost) -> None:
    host.write_job(JOB)
    result = host.hpc_amp("scale", "job.yaml", "--nodes=1,2", "--kind=both", "--repeats=2")

    assert "strong and weak share their runs on 1 node\n" in result.stdout
    assert len(host.calls("sbatch")) == 6
    study = newest(host)
    points = {run.label: study.point(run) for run in study.planned_runs()}
    for repeat in ("r01", "r02"):
        assert points[f"strong-n0001-{repeat}"] == points[f"weak-n0001-{repeat}"]
    assert len(set(points.values())) == 6
    strong, weak = (jobs_of(study)[f"{kind}-n0002-r01"]["train"]["batch_size"] for kind in KINDS)
    assert (strong, weak) == (512, 1024)


def test_a_shared_run_counts_for_both_curves(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("scale", "job.yaml", "--nodes=1", "--kind=both", "--repeats=1")
    study = newest(host)
    run_dir = begin(study, "strong-n0001-r01")
    write_timing(run_dir, [rank_file(rank, 1, [0.1] * 30) for rank in range(4)])
    record_event(run_dir, "finished")

    assert [curve.kind for curve in analyse(study).curves] == ["strong", "weak"]


def test_a_job_file_elsewhere_and_a_study_that_outlives_it(host: StubHost) -> None:
    """`continue` needs neither the job file nor the folder of the start."""
    (host.work / "data").mkdir()
    path = host.write_job({**JOB, "train": {**JOB["train"], "data": {"root": "data"}}})
    elsewhere = host.folder / "elsewhere.yaml"
    path.rename(elsewhere)
    words = ["scale", str(elsewhere), "train.seed=7", "--nodes=1", "--repeats=1"]
    assert host.hpc_amp(*words).returncode == 0
    elsewhere.unlink()
    study = newest(host)
    record_event(begin(study, "strong-n0001-r01"), "failed")

    result = host.hpc_amp("scale", "continue", str(study.folder), cwd=host.folder)

    assert result.returncode == 0, result.stderr
    (job,) = jobs_of(newest(host)).values()
    assert job["train"]["seed"] == 7
    assert job["train"]["data"]["root"] == str(host.work / "data")


# ---- what it may cost ----------------------------------------------------------------------------


def test_the_estimate_is_an_upper_bound(host: StubHost) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("scale", "job.yaml", "--nodes=1,2,4", "--kind=both", "--dry-run")

    # Strong on 1, 2, 4 nodes and weak on 2, 4: 13 nodes, half an hour, three times.
    assert "15 runs: 19.5 node-hours at most (each of 00:30:00)\n" in result.stdout
    assert host.calls("sbatch") == []
    assert not (host.work / "studies").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Four nodes for half an hour, whatever runs on them.
        (["--in-allocation"], "9 runs: 2.00 node-hours at most (one job of 00:30:00)\n"),
        # This machine, which has no limit for all of them.
        (["site=local"], "9 runs: 4.50 node-hours at most (each of 00:30:00)\n"),
    ],
)
def test_runs_that_share_their_nodes(host: StubHost, words: list[str], said: str) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("scale", "job.yaml", "--nodes=1,2,4", "--dry-run", *words)

    assert result.stdout.endswith(said)


def test_what_is_expensive_needs_a_yes(host: StubHost) -> None:
    host.write_job(JOB)
    words = ["scale", "job.yaml", "--nodes=1", "--repeats=3", "--ask-above=1.4"]

    refused = host.hpc_amp(*words)
    accepted = host.hpc_amp(*words, "--yes")

    assert refused.returncode == 2
    # The figure of the estimate above it.
    assert "1.50 node-hours at most (each" in refused.stdout
    assert refused.stderr == (
        "hpc-amp: 1.50 node-hours at most are above --ask-above 1.4, and there is no terminal to "
        "ask; confirm with --yes\n"
    )
    assert accepted.returncode == 0
    assert len(host.calls("sbatch")) == 3


@pytest.mark.parametrize(("answer", "status", "jobs"), [("n", 1, 0), ("", 1, 0), ("y", 0, 3)])
def test_the_question_is_answered_in_a_terminal(
    host: StubHost, answer: str, status: int, jobs: int
) -> None:
    host.write_job(JOB)
    command = [sys.executable, "-m", "hpc_amp", "scale", "job.yaml", "--nodes=1", "--ask-above=1"]

    with Terminal(command, cwd=host.work, environ=host.environ()) as terminal:
        terminal.wait_for(r"Submit\? \[y/N\]: ")
        terminal.type(answer)
        assert terminal.end() == status

    assert len(host.calls("sbatch")) == jobs
    assert ("nothing was submitted" in terminal.seen) == (jobs == 0)
    assert (host.work / "studies").exists() == (jobs > 0)


def test_what_is_left_is_estimated_by_what_is_measured(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("scale", "job.yaml", "--nodes=2", "--repeats=2")
    study = newest(host)
    first = begin(study, "strong-n0002-r01")
    second = begin(study, "strong-n0002-r02", "4243")
    write_timing(first, [rank_file(rank, 2, [0.1] * 30) for rank in range(8)])
    for state, time in (("started", 1000), ("finished", 1450)):
        line = json.dumps({"time": time, "state": state, "job_id": "4242"})
        with (first / "state.jsonl").open("a") as out:
            out.write(line + "\n")
    record_event(second, "failed")

    result = host.hpc_amp("scale", "continue", str(study.folder))

    # 450 s on two nodes.
    assert "1 run: 1.00 node-hours at most (each of 00:30:00), 0.250 by the time" in result.stdout


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job.yaml", "--nodes", "1,3"], "512 is not divisible by the 12 ranks of 3 nodes"),
        (["job.yaml", "--nodes", "1,3"], "use 504 or 516, which is divisible on 1 and 3 nodes"),
        (["job.yaml", "--nodes", "0"], "is not a list of numbers of nodes"),
        (["job.yaml", "--nodes", "1,,2"], "is not a list of numbers of nodes"),
        (["job.yaml", "--steps=5", "--seconds=5"], "Give either --steps or --seconds."),
        (["job.yaml", "--in-allocation", "--max-queued=1"], "jobs of their own: leave it out"),
        (["job.yaml", "train.batch=1"], "did you mean train.batch_size?"),
        (["other.yaml"], "other.yaml: there is no such job file"),
        (["own.yaml", "--kind=both"], "--rank-batch NAME or --global-batch NAME names"),
        (["own.yaml", "--rank-batch=batch"], "the job has no value batch"),
        (["job.yaml", "--rank-batch=batch"], "--rank-batch and --global-batch are for your own"),
        (["continue", "nope"], "there is no study 'nope'"),
        (["status", "nope"], "there is no study 'nope'"),
        (["cancel", "nope"], "there is no study 'nope'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    host: StubHost, words: list[str], said: str
) -> None:
    host.write_job(JOB)
    own = {key: value for key, value in JOB.items() if key != "train"}
    host.write_job({**own, "run": ["true"]}, "own.yaml")

    result = host.hpc_amp("scale", *words)

    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert host.calls("sbatch") == []
    assert not (host.work / "studies").exists()
