"""A task from outside the package, that of docs/extending-task.md, in jobs on this machine."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.outside import hpc_amp, write_installed, write_job, write_package

pytestmark = pytest.mark.ranks

KILLED = '''\
"""The task of the page. Rank 1 is killed in the first attempt, after the step in `KILL_AT`."""

import os
import signal

from discs import task


class Training(task.Training):
    def epoch(self, epoch, start=0):
        for step, batches in enumerate(super().epoch(epoch, start), start):
            at = epoch * self.steps_per_epoch + step
            kill = os.environ["HPC_AMP_ATTEMPT"] == "1" and os.environ.get("KILL_AT") == str(at)
            if kill and self.task.world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batches


class Segmentation(task.Segmentation):
    def prepare_data(self):
        return Training(self)
'''
TWO_RANKS = ("job.ranks_per_node=2", "train.ema=0.9", "train.task=discs.killed:Segmentation")
# Every attempt saves after each epoch, and writes nothing in between.
SAVING = ("train.checkpoint={every: 1epoch, keep: 2, keep_best: 1}", "launch.preflight=false")


@pytest.fixture
def project(tmp_path: Path, warm_python: Path) -> Path:
    write_package(tmp_path)
    write_job(tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(f"{job.read_text()}container: {{python: {warm_python}}}\n")
    (tmp_path / "discs" / "killed.py").write_text(KILLED)
    return tmp_path


def submit(folder: Path, *overrides: str, path: Path | None = None) -> Path:
    """Submit and wait; the run has to finish."""
    result = hpc_amp(folder, "submit", "job.yaml", "--follow", *SAVING, *overrides, path=path)
    assert result.returncode == 0, result.stdout + result.stderr
    return newest(folder)


def newest(folder: Path) -> Path:
    return max((folder / "runs" / "discs").glob("2*"))


def summary(run_dir: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return facts


def evaluations(run_dir: Path) -> list[float]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line["eval/wrong"] for line in lines if "eval/wrong" in line]


def test_two_ranks_that_are_killed_and_resumed_end_with_the_same_bits(project: Path) -> None:
    whole = submit(project, *TWO_RANKS)

    words = (*SAVING, *TWO_RANKS, "container.env.KILL_AT=10")
    killed = hpc_amp(project, "submit", "job.yaml", "--follow", *words)
    run_dir = newest(project)
    assert killed.returncode == 1 and run_dir != whole
    # What the run was submitted with counts, whatever has become of the folder.
    (project / "discs" / "config.py").write_text("raise RuntimeError\n")
    resumed = hpc_amp(project, "resume", str(run_dir), "train.log_every=2", "--follow")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr

    log = (run_dir / "logs" / "job.log").read_text()
    assert "step-00000008 at step 8" in log
    assert "changed since the checkpoint: train.log_every 20 -> 2" in log
    assert summary(run_dir)["weights_sha256"] == summary(whole)["weights_sha256"]
    assert evaluations(run_dir) == evaluations(whole)
    assert summary(run_dir)["best"] == summary(whole)["best"]


def test_resume_refuses_a_key_that_the_weights_depend_on(project: Path) -> None:
    run_dir = submit(project, "train.epochs=1")

    result = hpc_amp(project, "resume", str(run_dir), "train.discs.width=8")
    assert result.returncode == 2
    assert (
        "train.discs.width: it stays 4 and cannot become 8: the weights in the checkpoints are "
        "those of this network; submit a new run" in result.stderr
    )
    assert hpc_amp(project, "resume", str(run_dir), "train.discs.widht=8").returncode == 2
    longer = hpc_amp(project, "resume", str(run_dir), "train.epochs=2", "--follow")
    assert longer.returncode == 0, longer.stdout + longer.stderr
    assert summary(run_dir)["steps"] == 8


def test_a_sweep_ranks_by_the_metric_of_the_task(project: Path) -> None:
    words = ("train.optimizer.lr=0.05,0.0", "train.epochs=2", "launch.preflight=false")
    made = hpc_amp(project, "sweep", "job.yaml", *words)
    assert made.returncode == 0, made.stdout + made.stderr

    shown = hpc_amp(project, "sweep", "report", "discs", "--json")
    report = json.loads(shown.stdout)
    assert report["metric"] == "wrong"
    assert report["highest_first"] is False
    assert [point["values"]["train.optimizer.lr"] for point in report["ranked"]] == [
        "0.05",
        "0.0",
    ]


def test_it_is_scaled_and_benched(project: Path) -> None:
    words = ("--steps=3", "--warmup=1", "--repeats=1", "launch.preflight=false")
    scaled = hpc_amp(project, "scale", "job.yaml", "--nodes=1", "--kind=weak", "--yes", *words)
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
    benched = hpc_amp(project, "bench", "job.yaml", "--precisions=fp32,bf16", *words)
    assert benched.returncode == 0, benched.stdout + benched.stderr


def test_an_installed_package_adds_a_task_and_a_tracker(warm_python: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    write_installed(installed)
    write_job(tmp_path)
    words = ("code=null", "train.task=segmentation", "train.trackers=[tensorboard, csv]")
    words += (f"container.python={warm_python}",)

    # The search path of the submitting shell does not reach the job.
    run_dir = submit(tmp_path, *words, f"container.env.PYTHONPATH={installed}", path=installed)

    rows = list(csv.reader((run_dir / "curves.csv").read_text().splitlines()))
    wrong = [float(value) for _, name, value in rows if name == "eval/wrong"]
    assert wrong == evaluations(run_dir)
    assert list((run_dir / "tensorboard").iterdir())
