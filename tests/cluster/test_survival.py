"""Runs that meet with every accident a Slurm cluster has in store: each ends `finished` without a
person, with the weights of a run that was left alone.

What takes minutes, since Slurm is in no hurry to miss a node or a limit, is marked `chaos`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import SCRIPTS, Cluster, held
from support.waiting import size_of, wait_for_news

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

# Two ranks on two nodes; long enough to be met by an accident, with few checkpoints on the way.
JOB: dict[str, Any] = {
    "name": "survival",
    "site": "slurm",
    "job": {
        "nodes": 2,
        "ranks_per_node": 1,
        "gpus_per_node": 0,
        "walltime": "10m",
        "stop_margin": "30s",
    },
    "container": {"python": sys.executable},
    "train": {
        "model": {"name": "resnet8", "width": 16},
        "data": {
            "name": "synthetic",
            "synthetic": {"train": 128, "test": 32, "image_size": 16},
        },
        "batch_size": 16,
        "epochs": 100,
        "max_steps": 200,
        "log_every": 1,
        "evaluate_every": 100,
        "device": "cpu",
        "checkpoint": {"every": "50steps"},
    },
}
# Until it is asked to stop, where Slurm takes its time.
ENDLESS = ["train.max_steps=10000000", "train.epochs=1000000", "train.evaluate_every=1000000"]


@dataclass
class Run:
    """A run on the cluster, and what can happen to it."""

    cluster: Cluster
    work: Path
    path: Path

    # ---- what the run says -----------------------------------------------------------------------

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = (self.path / "state.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["state"] != "queued"]

    @property
    def states(self) -> list[str]:
        return [event["state"] for event in self.events]

    @property
    def job_id(self) -> str:
        return next(
            json.loads(line)["job_id"]
            for line in reversed((self.path / "state.jsonl").read_text().splitlines())
            if "job_id" in json.loads(line)
        )

    @property
    def log(self) -> str:
        path = self.path / "logs" / "job.log"
        return path.read_text() if path.exists() else ""

    @property
    def weights(self) -> str:
        digest: str = json.loads((self.path / "summary.json").read_text())["weights_sha256"]
        return digest

    def status(self) -> dict[str, Any]:
        shown = self.cluster.hpc_amp("status", str(self.path), "--json", cwd=self.work)
        (entry,) = json.loads(shown.stdout)
        return dict(entry)

    def step(self, attempt: int) -> int:
        try:
            progress = self.path / "attempts" / str(attempt) / "progress.json"
            return int(json.loads(progress.read_text())["step"])
        except (OSError, ValueError, KeyError):
            return 0

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = 400) -> None:
        """The limit only ends what would hang."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what}\n{self.states}\n{self.log}")
            time.sleep(0.1)

    def wait_for_step(self, attempt: int, beyond: int) -> None:
        self.wait_until(lambda: self.step(attempt) > beyond, f"attempt {attempt}, step {beyond}")

    def wait_for_end(self) -> dict[str, Any]:
        """The end of the run, which nobody has helped."""
        final = ("finished", "failed", "checkpointed", "cancelled", "lost")
        deadline = time.monotonic() + 400  # which only ends what would hang
        while True:
            known = size_of(self.path / "state.jsonl")
            entry = self.status()
            if entry["state"] in final or time.monotonic() > deadline:
                assert entry["state"] == "finished", f"{entry}\n{self.states}\n{self.log}"
                return entry
            wait_for_news(self.path / "state.jsonl", known)

    def save_and_stop(self) -> None:
        """The end of a run that has no end, after which all of it is there."""
        self.cluster.hpc_amp("cancel", "--save", str(self.path), cwd=self.work)
        entry = self.status()
        assert entry["state"] == "checkpointed", f"{entry}\n{self.log}"
        lines = map(json.loads, (self.path / "metrics.jsonl").read_text().splitlines())
        steps = [line["step"] for line in lines if "train/loss" in line]
        assert steps == list(range(1, entry["step"] + 1))

    # ---- what happens to it ----------------------------------------------------------------------

    def slurm(self, *command: str) -> str:
        return self.cluster.run(*command, cwd=self.work).stdout.strip()

    def nodes_of_attempt(self, attempt: int) -> list[str]:
        """Its nodes, the first one first."""
        return (self.path / "attempts" / str(attempt) / "nodes").read_text().split()


def daemon(name: str, cluster: Cluster) -> int:
    """The process of a daemon of the cluster: `slurmctld`, or a node's slurmd by the node."""
    run = Path(cluster.environ["HPC_AMP_CLUSTER_STATE"]) / "run"
    return int((run / f"{name}.pid").read_text())


def kill(name: str, cluster: Cluster) -> None:
    os.kill(daemon(name, cluster), signal.SIGKILL)


def wait_until_slurm_has_saved(run: Run) -> None:
    """Until the state from which slurmctld starts again has the job and its steps. Slurm saves it
    some seconds after a change."""
    state = Path(run.cluster.environ["HPC_AMP_CLUSTER_STATE"]) / "spool" / "slurmctld" / "job_state"
    before = time.time()
    run.slurm("scontrol", "update", f"JobId={run.job_id}", "Comment=saved")

    def saved() -> bool:
        try:
            return state.stat().st_mtime > before
        except FileNotFoundError:  # Slurm is replacing it
            return False

    run.wait_until(saved, "Slurm to save its state")


def mend() -> None:
    """Start what is dead, bring back what is down."""
    subprocess.run([SCRIPTS / "up"], check=True, capture_output=True, timeout=300)


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Submits a run; afterwards nothing of it is left, and the cluster is whole."""
    made: list[Run] = []

    def submit_run(config: dict[str, Any], *overrides: str) -> Run:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
        shown = cluster.hpc_amp("submit", "job.yaml", "--json", *overrides, cwd=tmp_path)
        made.append(Run(cluster, tmp_path, Path(json.loads(shown.stdout)["run_dir"])))
        return made[-1]

    try:
        yield submit_run
    finally:
        mend()
        ours = {run.job_id for run in made}
        cluster.run("scancel", *ours, cwd=tmp_path, check=False)
        deadline = time.monotonic() + 120
        while ours & set(cluster.run("squeue", "-h", "-o", "%i", cwd=tmp_path).stdout.split()):
            assert time.monotonic() < deadline, "jobs do not leave the queue"
            time.sleep(0.3)


@pytest.fixture(scope="module")
def weights(cluster: Cluster, warm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run that was left alone."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    words = ("submit", "job.yaml", "--json", f"container.python={warm_python}")
    shown = cluster.hpc_amp(*words, cwd=folder)
    run = Run(cluster, folder, Path(json.loads(shown.stdout)["run_dir"]))
    assert run.wait_for_end()["attempt"] == 1
    return run.weights


def waiting(outcome: str) -> dict[str, Any]:
    """A job of a program that waits for a file `go` in its first attempt, and has this outcome
    then; in its second attempt it finishes at once."""
    script = (
        "touch ready-$RANK\n"
        f"if [ $HPC_AMP_ATTEMPT -gt 1 ]; then outcome=finished; else outcome={outcome}; fi\n"
        "[ $HPC_AMP_ATTEMPT -gt 1 ] || until [ -e go ]; do sleep 0.1; done\n"
        """echo '{"outcome": "'$outcome'", "cause": "DEADLINE"}' >"$HPC_AMP_OUTCOME_FILE.$RANK"\n"""
        'mv "$HPC_AMP_OUTCOME_FILE.$RANK" "$HPC_AMP_OUTCOME_FILE"'
    )
    return program(script)


def program(script: str) -> dict[str, Any]:
    """A job of a program of one's own, in bash."""
    job = {key: value for key, value in JOB.items() if key != "train"}
    return {**job, "run": ["bash", "-c", script]}


# ---- in every run of the tests -------------------------------------------------------------------


def test_one_script_submitted_twice_works_once(submit: Callable[..., Run]) -> None:
    run = submit(waiting("finished"))
    run.wait_until(lambda: "started" in run.states, "the start")

    second = run.slurm("sbatch", "--parsable", str(run.path / "launch.sh"))
    run.wait_until(lambda: not run.slurm("squeue", "-h", "-j", second), "the second job to end")
    assert f"hpc-amp: job {run.job_id} on " in run.log
    assert " has been at work on this run since " in run.log
    (run.work / "go").touch()

    assert run.wait_for_end()["attempt"] == 1
    assert run.states == ["submitted", "started", "finished"]


def test_the_controller_is_away_when_a_run_wants_to_go_on(submit: Callable[..., Run]) -> None:
    run = submit(waiting("checkpointed"))
    run.wait_until(lambda: (run.work / "ready-1").exists(), "the ranks")
    wait_until_slurm_has_saved(run)
    kill("slurmctld", run.cluster)
    (run.work / "go").touch()
    run.wait_until(lambda: "continued" in run.states, "the end of the attempt")
    time.sleep(1)
    mend()

    assert run.wait_for_end()["attempt"] == 2
    assert run.states == ["submitted", "started", "continued", "started", "finished"]


def test_a_training_survives_a_warning_and_a_lost_node(
    submit: Callable[..., Run], weights: str, warm_python: Path
) -> None:
    run = submit(JOB, f"container.python={warm_python}")
    run.wait_for_step(1, beyond=20)
    # Step 0 was the preflight.
    with held(run.path):
        run.slurm("scancel", "--signal=USR1", f"{run.job_id}.1")
    run.wait_for_step(2, beyond=run.step(1) + 20)
    node = run.nodes_of_attempt(2)[1]
    with held(run.path, attempt=2):
        run.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    run.wait_until(lambda: run.states.count("started") > 2, "the next attempt")
    mend()

    entry = run.wait_for_end()
    ends = [attempt["state"] for attempt in entry["attempts"]]
    assert (ends[0], ends[-1]) == ("continued", "finished")
    assert run.weights == weights


# ---- what takes longer ---------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_training_survives_every_signal_and_a_requeue(
    submit: Callable[..., Run], weights: str
) -> None:
    run = submit(JOB, "restarts.on_failure=1")
    for attempt, name in enumerate(("TERM", "KILL"), start=1):
        run.wait_for_step(attempt, beyond=run.step(attempt - 1) + 30)
        run.slurm("scancel", f"--signal={name}", f"{run.job_id}.1")
    run.wait_for_step(3, beyond=run.step(2) + 20)
    run.slurm("scontrol", "requeue", run.job_id)

    entry = run.wait_for_end()
    ends = [attempt["state"] for attempt in entry["attempts"]]
    assert ends[:2] == ["preempted", "retried"]
    assert ends[2] in ("requeued", "lost")
    assert ends[-1] == "finished"
    assert run.weights == weights


@pytest.mark.chaos
def test_a_daemon_that_starts_again_in_time_is_not_missed(submit: Callable[..., Run]) -> None:
    run = submit(JOB, *ENDLESS)
    run.wait_for_step(1, beyond=20)
    wait_until_slurm_has_saved(run)
    kill("slurmctld", run.cluster)
    kill(run.nodes_of_attempt(1)[0], run.cluster)
    run.wait_for_step(1, beyond=run.step(1) + 20)
    mend()
    run.wait_for_step(1, beyond=run.step(1) + 20)
    run.save_and_stop()

    assert run.states == ["submitted", "started", "stopping", "checkpointed"]


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
def test_a_training_survives_a_node_without_its_daemon(
    submit: Callable[..., Run], rank: int
) -> None:
    """Slurm starts the job again elsewhere, while all that ran on the node still does."""
    run = submit(JOB, *ENDLESS)
    run.wait_for_step(1, beyond=20)
    kill(run.nodes_of_attempt(1)[rank], run.cluster)
    run.wait_until(lambda: len(starts_of_one_job(run)) == 2, "the next attempt")
    run.wait_for_step(2, beyond=run.step(1))
    run.save_and_stop()

    ended, started = run.status()["attempts"][0]["end"], starts_of_one_job(run)[1]["time"]
    assert ended <= started, run.log


@pytest.mark.chaos
def test_a_training_survives_a_node_that_loses_power(
    submit: Callable[..., Run], weights: str
) -> None:
    run = submit(JOB)
    run.wait_for_step(1, beyond=70)
    lost = run.nodes_of_attempt(1)[0]
    for pid in subprocess.check_output(["ip", "netns", "pids", lost], text=True).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    run.wait_until(lambda: len(run.status()["attempts"]) == 2, "the next attempt")
    mend()

    entry = run.wait_for_end()
    assert entry["attempts"][0]["state"] == "lost"
    assert entry["attempts"][1]["from_step"] >= 50
    assert run.weights == weights


@pytest.mark.chaos
def test_the_time_limit_itself_is_survived(submit: Callable[..., Run]) -> None:
    """By a program that looks at no clock, and saves when it is terminated."""
    script = (
        "[ $HPC_AMP_ATTEMPT -eq 1 ] || exit 0\n"
        """trap 'echo {\\"outcome\\": \\"checkpointed\\"} >"$HPC_AMP_OUTCOME_FILE"; exit' TERM\n"""
        "while :; do sleep 0.1; done"
    )
    run = submit(program(script), "job.walltime=1m", "job.stop_margin=1s")

    assert run.wait_for_end()["attempt"] == 2
    assert run.states == ["submitted", "started", "continued", "started", "finished"]


@pytest.mark.chaos
def test_a_program_that_dies_of_its_preemption_starts_again(submit: Callable[..., Run]) -> None:
    script = "[ $HPC_AMP_ATTEMPT -gt 1 ] || exec sleep 300"
    run = submit(program(script), "job.queue=preemptable")
    run.wait_until(lambda: "rank(s) on 2 node(s)" in run.log, "the ranks")
    time.sleep(1)
    urgent = run.slurm(
        *("sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "--wrap", "sleep 5"),
        *("--output", "/dev/null"),
    )
    try:
        assert run.wait_for_end()["attempt"] == 2
    finally:
        run.cluster.run("scancel", urgent, cwd=run.work)
    assert run.states == ["submitted", "started", "preempted", "started", "finished"]


def starts_of_one_job(run: Run) -> list[dict[str, Any]]:
    starts = [event for event in run.events if event["state"] == "started"]
    assert len({event["job_id"] for event in starts}) <= 1
    return starts
