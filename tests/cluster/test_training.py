"""The main job on the real cluster: sbatch, srun, apptainer, four gloo ranks on two nodes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.cluster import STEPS, TRAINING, TWO_NODES, Cluster, held
from support.environment import REPOSITORY
from support.waiting import size_of, wait_for_file, wait_for_news, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

CONFIG = str(REPOSITORY / "configs" / "cifar_resnet.yaml")

JOB = [*TWO_NODES, *TRAINING, "train.ema=0.9"]
# The preflight is in the runs that are left alone and killed.
NO_PREFLIGHT = "launch.preflight=false"
ONE_EACH = "job.gpus_per_node=1"


def submit(cluster: Cluster, folder: Path, *overrides: str) -> tuple[Path, str]:
    """Submit the main job; returns its run directory and job id."""
    shown = cluster.hpc_amp(
        "submit", CONFIG, "--json", *cluster.overrides, *JOB, *overrides, cwd=folder
    )
    facts = json.loads(shown.stdout)
    assert set(facts) == {"job_id", "run_dir", "scheduler"}
    assert facts["scheduler"] == "slurm"
    return Path(facts["run_dir"]), facts["job_id"]


def status(cluster: Cluster, run_dir: Path) -> dict[str, Any]:
    shown = cluster.hpc_amp("status", str(run_dir), "--json", cwd=run_dir.parent)
    (entry,) = json.loads(shown.stdout)
    return entry


def wait_for(cluster: Cluster, run_dir: Path, *states: str, seconds: float = 600) -> dict[str, Any]:
    """Wait until the run is in one of `states`; fails with its log where it takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        known = size_of(run_dir / "state.jsonl")
        entry = status(cluster, run_dir)
        if entry["state"] in states:
            return entry
        if time.monotonic() > deadline or entry["state"] in ("failed", "lost"):
            pytest.fail(f"{entry}\n{(run_dir / 'logs' / 'job.log').read_text()}")
        wait_for_news(run_dir / "state.jsonl", known)


def wait_for_step(run_dir: Path, step: int, *, attempt: int = 1, seconds: float = 400) -> None:
    """Wait until the metrics of `attempt` have come to `step`."""
    progress = run_dir / "attempts" / str(attempt) / "progress.json"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if json.loads(progress.read_text())["step"] >= step:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.01)
    pytest.fail(f"step {step} was not reached:\n{(run_dir / 'logs' / 'job.log').read_text()}")


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def metrics(run_dir: Path, name: str) -> list[tuple[int, float]]:
    lines = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines if name in line]


@pytest.fixture(scope="module")
def uninterrupted(warm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone, of two ranks on each node."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run_dir, _ = submit(warm_cluster, folder, "train.max_steps=60")
    wait_for(warm_cluster, run_dir, "finished")
    return run_dir


@pytest.fixture(scope="module")
def uninterrupted_pair(warm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of one rank on each node."""
    run_dir, _ = submit(warm_cluster, tmp_path_factory.mktemp("pair"), ONE_EACH, NO_PREFLIGHT)
    wait_for(warm_cluster, run_dir, "finished")
    return run_dir


def test_the_main_job_runs_on_two_nodes_in_a_container(uninterrupted: Path) -> None:
    facts = summary(uninterrupted)
    assert facts["outcome"] == "finished"
    assert facts["world_size"] == 4
    assert facts["nodes"] == 2
    assert facts["data"] == "SYNTHETIC"
    assert facts["synthetic"] is True
    assert facts["steps"] == 60
    assert facts["precision"] == "fp32"
    assert facts["loss_scale"] is None
    assert facts["skipped_steps"] == 0
    assert facts["samples_per_second"] > 0
    assert facts["seconds"] > 0
    assert facts["metrics"]["accuracy"] > 0.2  # ten classes
    assert [step for step, _ in metrics(uninterrupted, "train/loss")] == list(range(1, 61))
    events = list((uninterrupted / "tensorboard").rglob("events.out.tfevents.*"))
    assert len(events) == 1, "rank 0 alone writes TensorBoard"
    log = (uninterrupted / "logs" / "job.log").read_text()
    assert "container: apptainer version" in log


def test_a_cancelled_run_resumes_to_the_same_weights(
    warm_cluster: Cluster, uninterrupted_pair: Path, tmp_path: Path
) -> None:
    run_dir, job_id = submit(warm_cluster, tmp_path, ONE_EACH, NO_PREFLIGHT)
    wait_for_step(run_dir, 20)
    with held(run_dir):
        warm_cluster.hpc_amp("cancel", job_id, cwd=tmp_path)
    assert status(warm_cluster, run_dir)["state"] == "cancelled"
    # The ranks have the scheduler's grace to save; then the job is gone and can be resumed.
    deadline = time.monotonic() + 240
    while warm_cluster.hpc_amp("resume", str(run_dir), cwd=tmp_path, check=False).returncode != 0:
        assert time.monotonic() < deadline
        time.sleep(1)
    entry = wait_for(warm_cluster, run_dir, "finished")
    assert entry["attempt"] == 2
    stopped = json.loads((run_dir / "attempts" / "1" / "outcome.json").read_text())
    assert stopped["outcome"] == "checkpointed"
    assert 20 <= stopped["step"] < STEPS
    assert summary(run_dir)["weights_sha256"] == summary(uninterrupted_pair)["weights_sha256"]
    assert metrics(run_dir, "train/loss") == metrics(uninterrupted_pair, "train/loss")
    assert metrics(run_dir, "eval/accuracy") == metrics(uninterrupted_pair, "eval/accuracy")


def test_killed_hard_then_requeued_by_slurm_ends_with_the_same_weights(
    warm_cluster: Cluster, uninterrupted_pair: Path, tmp_path: Path
) -> None:
    run_dir, job_id = submit(warm_cluster, tmp_path, ONE_EACH)
    wait_for_step(run_dir, 31)
    wait_for_file(run_dir / "checkpoints" / "step-00000030")  # written beside the steps
    # A requeue terminates the ranks and starts the job again; KILL first, so that nothing can save.
    # Step 0 was the preflight.
    with held(run_dir):
        warm_cluster.run("scancel", "--signal=KILL", f"{job_id}.1", cwd=tmp_path)
    failed = wait_for_any_end(warm_cluster, run_dir)
    assert failed["state"] == "failed"
    warm_cluster.hpc_amp("resume", str(run_dir), cwd=tmp_path)
    job_id = status(warm_cluster, run_dir)["job_id"]
    wait_for_step(run_dir, 40, attempt=2)
    with held(run_dir, attempt=2):
        warm_cluster.run("scontrol", "requeue", job_id, cwd=tmp_path)
    log = (run_dir / "logs" / "job.log").read_text().splitlines()
    resumed = [line for line in log if "resumed" in line]
    assert "at step 30" in resumed[0], "the newest checkpoint before the kill"
    entry = wait_for(warm_cluster, run_dir, "finished")
    assert entry["attempt"] == 3
    assert summary(run_dir)["weights_sha256"] == summary(uninterrupted_pair)["weights_sha256"]
    assert metrics(run_dir, "train/loss") == metrics(uninterrupted_pair, "train/loss")


def wait_for_any_end(cluster: Cluster, run_dir: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        known = size_of(run_dir / "state.jsonl")
        entry = status(cluster, run_dir)
        if entry["state"] not in ("pending", "running"):
            return entry
        wait_for_news(run_dir / "state.jsonl", known)
    pytest.fail((run_dir / "logs" / "job.log").read_text())


def test_a_preempted_run_saves_and_goes_on(
    warm_cluster: Cluster, uninterrupted_pair: Path, tmp_path: Path
) -> None:
    """Preemption terminates the ranks first; they save, and the script requeues the job."""
    run_dir, job_id = submit(
        *(warm_cluster, tmp_path, ONE_EACH, NO_PREFLIGHT),
        *("job.queue=preemptable", "train.checkpoint=1h"),
    )
    wait_for_step(run_dir, 15)
    with held(run_dir):
        urgent = warm_cluster.run(
            *("sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "--wrap", "sleep 2"),
            *("--output", "/dev/null"),
            cwd=tmp_path,
        ).stdout.strip()
        wait_until(lambda: preempted(warm_cluster, job_id), "the preemption")
    try:
        entry = wait_for(warm_cluster, run_dir, "finished")
    finally:
        warm_cluster.run("scancel", urgent, cwd=tmp_path)
    assert entry["attempt"] == 2
    events = [json.loads(line) for line in (run_dir / "state.jsonl").read_text().splitlines()]
    states = [event["state"] for event in events if event["state"] != "queued"]
    assert states == ["submitted", "started", "preempted", "started", "finished"]
    stopped = json.loads((run_dir / "attempts" / "1" / "outcome.json").read_text())
    assert (stopped["outcome"], stopped["cause"]) == ("checkpointed", "TERMINATED")
    assert summary(run_dir)["weights_sha256"] == summary(uninterrupted_pair)["weights_sha256"]


def preempted(cluster: Cluster, job_id: str) -> bool:
    """Whether Slurm has told the ranks of a job that others need its nodes."""
    shown = cluster.run("scontrol", "show", "job", job_id, cwd=Path("/")).stdout
    return "PreemptTime=None" not in shown


def test_a_run_that_comes_near_its_time_limit_is_requeued(
    warm_cluster: Cluster, uninterrupted_pair: Path, tmp_path: Path
) -> None:
    """The deadline is in the past once the walltime is all margin, so each attempt makes at least
    one step, saves and requeues itself, until `max_restarts` stops the chain."""
    run_dir, _ = submit(
        *(warm_cluster, tmp_path, ONE_EACH, NO_PREFLIGHT),
        *("job.walltime=3m", "job.stop_margin=179s", "job.max_restarts=1"),
    )
    entry = wait_for(warm_cluster, run_dir, "checkpointed")
    assert entry["attempt"] == 2
    assert entry["reason"] == "job.max_restarts reached"
    steps = [
        json.loads((run_dir / "attempts" / str(n) / "outcome.json").read_text())["step"]
        for n in (1, 2)
    ]
    assert 1 <= steps[0] < steps[1] < STEPS
    assert metrics(run_dir, "train/loss") == metrics(uninterrupted_pair, "train/loss")[: steps[1]]
