"""Scaling studies on the real cluster: Slurm's queue, containers, ranks on nodes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands
from support.cluster import Cluster, held
from support.waiting import wait_until

from hpc_amp.train.heartbeat import read_heartbeats

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

JOB: dict[str, Any] = {
    "name": "tiny",
    "job": {"gpus_per_node": 0, "walltime": "10m", "stop_margin": "1m"},
    "train": {
        "model": {"name": "resnet8", "width": 8},
        "data": {"name": "synthetic", "synthetic": {"train": 512, "test": 64, "image_size": 16}},
        "batch_size": 16,
        "device": "cpu",
    },
}
STEPS = 60

HASTY = (
    "-c",
    "from hpc_amp.campaigns import submit\nsubmit.POLL_SECONDS = 0.5\n"
    "from hpc_amp.cli import main\nmain()",
)
"""Words before those of `hpc-amp` with which `python` looks more often whether there is room for
another run."""


def job_file(folder: Path, **launch: Any) -> str:
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "launch": launch}))
    return "job.yaml"


def runs_of(cluster: Cluster, folder: Path) -> dict[str, dict[str, Any]]:
    """The runs by the kind of scaling and the number of nodes."""
    shown = json.loads(cluster.hpc_amp("scale", "status", "tiny", "--json", cwd=folder).stdout)
    return {
        f"{kind}-{point['values']['job.nodes']}": point
        for point in shown["points"]
        for kind in point["scaling"].split(" and ")
    }


def states(cluster: Cluster, folder: Path) -> set[str]:
    return {run["state"] for run in runs_of(cluster, folder).values()}


def logs(folder: Path) -> str:
    found = (folder / "studies").rglob("job.log")
    return "\n".join(f"==== {path}\n{path.read_text()}" for path in found)


def measured(cluster: Cluster, folder: Path) -> dict[str, dict[str, Any]]:
    """All runs, when every one of them is."""

    def ended() -> bool:
        now = states(cluster, folder)
        if now & {"failed", "lost", "cancelled", "checkpointed", "partial", "silent"}:
            pytest.fail(f"{now}\n{logs(folder)}")
        return now == {"measured"}

    wait_until(ended, "all runs to be measured", pause=1)
    return runs_of(cluster, folder)


def hosts(run: dict[str, Any], steps: int) -> list[str]:
    timing = Path(run["run_dir"]) / "attempts" / "1" / "timing"
    ranks = [json.loads(path.read_text()) for path in sorted(timing.glob("rank-*.json"))]
    assert all(len(rank["steps"]) == steps for rank in ranks)
    return [rank["host"] for rank in ranks]


def ranks(run_dir: Path) -> list[dict[str, Any]]:
    """The heartbeats of the ranks that have begun. A file without content does not count."""
    return read_heartbeats(run_dir / "attempts" / "1" / "heartbeat")


def report(cluster: Cluster, folder: Path) -> dict[str, Any]:
    shown = cluster.hpc_amp("scale", "report", "tiny", "--json", "--out", "out", cwd=folder)
    assert (folder / "out" / "report.html").stat().st_size > 5_000
    (study,) = json.loads(shown.stdout)["studies"]
    return study


def test_a_study_survives_the_end_of_its_command_and_of_a_job(
    warm_cluster: Cluster, tmp_path: Path
) -> None:
    """Strong and weak over 1 and 2 nodes."""
    words = [
        *("scale", job_file(tmp_path, preflight=False), *warm_cluster.overrides),
        *("--nodes", "1,2", "--kind", "both", "--repeats", "1"),
        *("--warmup", "3", "--steps", str(STEPS), "--max-queued", "2"),
    ]
    command = subprocess.Popen(
        [sys.executable, *HASTY, *words],
        cwd=tmp_path,
        env=warm_cluster.environ,
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: list((tmp_path / "studies").glob("tiny/*/campaign.json")), "the study")
    second = wait_until(
        lambda: _job_ids(warm_cluster, tmp_path)[1:], "the second job's id", pause=0.1
    )[0]
    command.kill()
    command.wait()
    before = runs_of(warm_cluster, tmp_path)
    assert [run["state"] for run in before.values()].count("missing") == 1

    # The second job dies half-way: its script is killed, and Slurm ends what it had started.
    victim = wait_until(lambda: _run_dir(warm_cluster, tmp_path, second), "its run", pause=0.5)
    log = Path(victim) / "logs" / "job.log"
    wait_until(lambda: log.exists() and "samples, " in log.read_text(), "its training to begin")
    with held(Path(victim)):
        warm_cluster.run("scancel", "--batch", "--signal=KILL", second, cwd=tmp_path)
    ended = wait_until(
        lambda: _ended(warm_cluster, tmp_path, second), "the second job to end", pause=0.5
    )
    assert ended == "lost", logs(tmp_path)

    warm_cluster.hpc_amp("scale", "continue", "tiny", cwd=tmp_path)
    runs = measured(warm_cluster, tmp_path)

    assert len({run["job_id"] for run in runs.values()}) == 3  # of four: one run counts for two
    assert second not in {run["job_id"] for run in runs.values()}
    assert runs["strong-1"] == runs["weak-1"]
    for name, run in runs.items():
        nodes = int(name.split("-")[1])
        assert len(set(hosts(run, STEPS))) == len(hosts(run, STEPS)) == nodes
    study = report(warm_cluster, tmp_path)
    for kind, batches in (("strong", [16, 16]), ("weak", [16, 32])):
        (curve,) = [curve for curve in study["curves"] if curve["kind"] == kind]
        assert [point["nodes"] for point in curve["points"]] == [1, 2]
        assert [point["batch_size"] for point in curve["points"]] == batches
        assert curve["points"][0]["efficiency"] == 1
        assert [point["allreduce"] is not None for point in curve["points"]] == [False, True]
    topics = {caveat["topic"] for caveat in study["caveats"]}
    assert not topics & {"incomplete", "damaged", "mixed", "batch", "layout", "warm-up"}
    assert (
        "all runs are measured"
        in warm_cluster.hpc_amp("scale", "continue", "tiny", cwd=tmp_path).stdout
    )


def _job_ids(cluster: Cluster, folder: Path) -> list[str]:
    """Of all jobs so far, oldest first."""
    found = {run["job_id"] for run in runs_of(cluster, folder).values()} - {None}
    return sorted(found, key=int)


def _run_dir(cluster: Cluster, folder: Path, job_id: str) -> str | None:
    """The run directory of a job, once it has begun."""
    runs = runs_of(cluster, folder).values()
    (run_dir,) = {run["run_dir"] for run in runs if run["job_id"] == job_id}
    return run_dir


def _ended(cluster: Cluster, folder: Path, job_id: str) -> str | None:
    """The state of a job's run, once it has ended."""
    runs = runs_of(cluster, folder).values()
    (state,) = {run["state"] for run in runs if run["job_id"] == job_id}
    return None if state in ("pending", "running") else state


def test_runs_that_share_an_allocation(warm_cluster: Cluster, tmp_path: Path) -> None:
    """One job of two nodes, whose first one has a run for itself."""
    words = ["--nodes", "1,2", "--kind", "weak", "--repeats", "1", "--in-allocation"]
    words += ["--warmup", "3", "--steps", "20"]
    warm_cluster.hpc_amp("scale", job_file(tmp_path), *warm_cluster.overrides, *words, cwd=tmp_path)

    runs = measured(warm_cluster, tmp_path)

    assert len({run["job_id"] for run in runs.values()}) == 1
    one, two = (hosts(runs[f"weak-{nodes}"], 20) for nodes in (1, 2))
    assert one == two[:1]
    assert len(set(two)) == 2


def test_runs_on_the_same_node_at_the_same_time_are_left_out(
    warm_cluster: Cluster, tmp_path: Path
) -> None:
    """Two nodes, and two runs at once that do not ask for whole ones."""
    words = [*warm_cluster.overrides, "job.exclusive=false", "job.directives=['--exclude=n3,n4']"]
    words += ["--nodes", "1,2", "--repeats", "1", "--warmup", "3", "--steps", str(STEPS)]
    warm_cluster.hpc_amp("scale", job_file(tmp_path, preflight=False), *words, cwd=tmp_path)
    (study,) = tmp_path.glob("studies/tiny/2*")
    one, two = study / "points" / "0000", study / "points" / "0001"
    wait_until(lambda: len(ranks(one)) == 1, "the first run")
    with held(one):
        wait_until(lambda: len(ranks(two)) == 2, "the second run")
        with held(two):
            time.sleep(3)  # of an overlap, two seconds do not count
    wait_until(
        lambda: not states(warm_cluster, tmp_path) & {"pending", "running"}, "both to end", pause=1
    )
    assert states(warm_cluster, tmp_path) == {"overlapped"}, logs(tmp_path)
    shown = report(warm_cluster, tmp_path)
    assert shown["curves"] == []
    (caveat,) = [one["text"] for one in shown["caveats"] if one["topic"] == "overlap"]
    assert caveat.startswith("2 runs used a node at the same time as another run of the study")

    words = (*HASTY, "scale", "continue", "tiny", "--max-queued", "1")
    ended = commands.python(*words, cwd=tmp_path, environ=warm_cluster.environ)
    assert ended.returncode == 0, ended.stderr

    measured(warm_cluster, tmp_path)
    (curve,) = report(warm_cluster, tmp_path)["curves"]
    assert [point["nodes"] for point in curve["points"]] == [1, 2]


def test_runs_that_ask_for_whole_nodes_follow_one_another(
    warm_cluster: Cluster, tmp_path: Path
) -> None:
    """On the same two nodes: Slurm starts the second run when the first one has ended."""
    words = [*warm_cluster.overrides, "job.directives=['--exclude=n3,n4']", "--nodes", "1,2"]
    words += ["--repeats", "1", "--warmup", "3", "--steps", "20", "train.model.name=resnet8"]
    warm_cluster.hpc_amp("scale", job_file(tmp_path, preflight=False), *words, cwd=tmp_path)
    measured(warm_cluster, tmp_path)
    study = report(warm_cluster, tmp_path)
    assert "hpc-amp scale job.yaml" in study["command"].replace("-m hpc_amp", "hpc-amp")
    assert study["model"] == ["resnet8"]
    assert study["parameters"][0] > 1000
    assert study["versions"]["torch"]
