"""Sweeps on a real Slurm: one array of ordinary runs; and functions through submitit."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import Cluster
from support.stubs import events
from support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

JOB: dict[str, Any] = {
    "name": "sweep",
    "job": {"nodes": 1, "gpus_per_node": 0, "walltime": "5m", "stop_margin": "1m"},
}
# Two ranks on two nodes, a few steps.
TRAINING = {
    "model": {"name": "resnet8", "width": 8},
    "data": {"name": "synthetic", "synthetic": {"train": 64, "test": 32, "image_size": 8}},
    "batch_size": 16,
    "epochs": 1,
    "device": "cpu",
}


def start(cluster: Cluster, folder: Path, job: dict[str, Any], *words: str) -> dict[str, Any]:
    """Submit a sweep in the container; what `--json` says of it."""
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, **job}))
    shown = cluster.hpc_amp(
        "sweep", "job.yaml", "--json", *cluster.overrides, "launch.preflight=false", *words,
        cwd=folder,
    )  # fmt: skip
    facts: dict[str, Any] = json.loads(shown.stdout)
    return facts


def points(cluster: Cluster, folder: Path) -> list[dict[str, Any]]:
    shown = cluster.hpc_amp("sweep", "status", "sweep", "--json", cwd=folder)
    found: list[dict[str, Any]] = json.loads(shown.stdout)["points"]
    return found


def states(cluster: Cluster, folder: Path) -> list[str]:
    return [point["state"] for point in points(cluster, folder)]


def wait_for(
    cluster: Cluster, folder: Path, done: Callable[[list[str]], bool], seconds: float = 600
) -> list[str]:
    """Until the states are as wanted; fails with them and the logs where that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        found = states(cluster, folder)
        if done(found):
            return found
        if time.monotonic() > deadline:
            logs = sorted((folder / "sweeps").rglob("job.log"))
            pytest.fail("\n".join([str(found), *(path.read_text() for path in logs)]))
        time.sleep(1)


def have_ended(found: list[str]) -> bool:
    return not {"pending", "running", "unknown"} & set(found)


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_points_on_several_nodes_are_tasks_of_one_array(
    warm_cluster: Cluster, tmp_path: Path
) -> None:
    facts = start(
        warm_cluster, tmp_path, {"train": TRAINING}, "job.nodes=2", "job.ranks_per_node=1",
        "train.optimizer.lr=0.01,0.1", "train.precision=fp32,bf16", "--max-parallel=2",
        "job.directives=[--hold]",
    )  # fmt: skip
    (array,) = facts["job_ids"]
    folder = Path(facts["folder"])
    assert len(everything_in(folder.parent)) <= 10, "before the jobs start"
    assert states(warm_cluster, tmp_path) == ["pending"] * 4

    warm_cluster.run("scontrol", "release", array, cwd=tmp_path)

    assert wait_for(warm_cluster, tmp_path, have_ended) == ["finished"] * 4
    assert [point["job_id"] for point in points(warm_cluster, tmp_path)] == [
        f"{array}_{task}" for task in range(4)
    ]
    text = warm_cluster.hpc_amp("sweep", "report", "sweep", cwd=tmp_path).stdout
    assert "4 points: 4 finished" in text
    assert "SYNTHETIC" in text
    assert (folder / "report" / "sweep.png").is_file()
    log = (folder / "points" / "0003" / "logs" / "job.log").read_text()
    assert "2 ranks on 2 nodes" in log
    assert (folder / "logs" / "job.log").read_text() == "", "nothing went past the runs' own logs"


def test_a_thousand_points(cluster: Cluster, tmp_path: Path) -> None:
    seeds = ",".join(map(str, range(1000)))
    facts = start(
        cluster, tmp_path, {"train": TRAINING}, f"train.seed={seeds}", "job.directives=[--hold]"
    )
    (array,) = facts["job_ids"]
    rows = cluster.run("squeue", "-h", "-r", "-j", array, "-o", "%i", cwd=tmp_path).stdout

    assert len(rows.split()) == 1000
    assert len(everything_in(Path(facts["folder"]).parent)) <= 10
    assert Counter(states(cluster, tmp_path)) == {"pending": 1000}

    cluster.hpc_amp("sweep", "cancel", "sweep", cwd=tmp_path)

    assert Counter(states(cluster, tmp_path)) == {"cancelled": 1000}
    assert not (Path(facts["folder"]) / "points").exists()


def test_a_task_that_saves_is_requeued_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    """Also the last task of an array, whose job has the id of the whole array."""
    command = '[ "$HPC_AMP_ATTEMPT" -gt 1 ] || [ "$WORD" = done ] || exit 75'
    facts = start(
        cluster, tmp_path, {"run": ["sh", "-c", command]}, "container.env.WORD=save,done,go-on"
    )

    assert wait_for(cluster, tmp_path, have_ended) == ["finished"] * 3

    found = [events(Path(facts["folder"]) / "points" / f"{index:04d}") for index in range(3)]
    assert [one.count("started") for one in found] == [2, 1, 2]
    assert [one.count("submitted") for one in found] == [1, 1, 1]


def test_what_failed_is_submitted_again_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    command = f'[ "$WORD" = good ] || [ -e {tmp_path}/mended ]'
    facts = start(
        cluster, tmp_path, {"run": ["sh", "-c", command]}, "container.env.WORD=bad,good,worse"
    )
    assert wait_for(cluster, tmp_path, have_ended) == ["failed", "finished", "failed"]
    (tmp_path / "mended").touch()

    shown = cluster.hpc_amp("sweep", "continue", "sweep", "--json", cwd=tmp_path)

    again = json.loads(shown.stdout)
    assert again["submitted"] == 2
    assert wait_for(cluster, tmp_path, have_ended) == ["finished"] * 3
    run_dir = Path(facts["folder"]) / "points" / "0002"
    assert events(run_dir).count("submitted") == 2
    assert f'"job_id": "{again["job_ids"][0]}_1"' in (run_dir / "state.jsonl").read_text()


def test_cancelling_ends_what_runs_and_what_waits(cluster: Cluster, tmp_path: Path) -> None:
    start(
        cluster, tmp_path, {"run": ["sleep", "600"]}, "container.env.WORD=a,b,c",
        "--max-parallel=1",
    )  # fmt: skip
    wait_for(cluster, tmp_path, lambda found: found[0] == "running")
    assert states(cluster, tmp_path) == ["running", "pending", "pending"]

    cluster.hpc_amp("sweep", "cancel", "sweep", cwd=tmp_path)

    assert wait_for(cluster, tmp_path, have_ended) == ["cancelled"] * 3
    user = str(os.getuid())
    shown = ("squeue", "-h", "-u", user, "-n", "sweep")
    wait_until(lambda: not cluster.run(*shown, cwd=tmp_path).stdout, "an empty queue", pause=0.5)


# ---- functions -----------------------------------------------------------------------------------

FUNCTION = """
import json
import hpc_amp, submitit

def describe(word):
    import os, submitit
    there = submitit.JobEnvironment()
    inside = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    return word, os.environ["WORD"], there.global_rank, there.hostname, bool(inside)

executor = hpc_amp.executor("job.yaml", **{"container.env.WORD": "it's $HOME"})
print(json.dumps(sorted(executor.submit(describe, "hello").results())))
print(json.dumps([job.results() for job in executor.map_array(describe, ["one", "two"])]))
"""

CHECKPOINT = """
import os, time
import hpc_amp, submitit

class Count:
    def __init__(self, attempt):
        self.attempt = attempt

    def __call__(self):
        import os, time
        if self.attempt == 0:
            open(os.path.join(os.environ["HERE"], "running"), "w").close()
            time.sleep(600)
        return self.attempt

    def checkpoint(self):
        import os
        import submitit
        with open(os.path.join(os.environ["HERE"], "saves"), "a") as saves:
            saves.write("x")
        return submitit.helpers.DelayedSubmission(Count(self.attempt + 1))

executor = hpc_amp.executor("job.yaml", **{"container.env.HERE": os.getcwd()})
job = executor.submit(Count(0))
while not os.path.exists("running"):
    time.sleep(0.5)
time.sleep(2)
job._interrupt()
print(job.result())
"""


def run_script(cluster: Cluster, folder: Path, text: str, **job: Any) -> list[str]:
    """The lines that a user's script prints, less submitit's own: it misses sacct, which this
    cluster does not have."""
    config = {**JOB, "job": {**JOB["job"], **job}, "site": "slurm"}
    config["container"] = {
        "image": cluster.image,
        "bind": [*cluster.binds],
        "python": sys.executable,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    (folder / "script.py").write_text(text)
    said = cluster.run(sys.executable, "script.py", cwd=folder, timeout=600).stdout
    return [line for line in said.splitlines() if not line.startswith("submitit ")]


def test_a_function_runs_in_the_container_on_every_node(cluster: Cluster, tmp_path: Path) -> None:
    said = run_script(cluster, tmp_path, FUNCTION, nodes=2, ranks_per_node=1)

    one, two = said
    first, second = json.loads(one)
    assert first[:3] == ["hello", "it's $HOME", 0]
    assert second[:3] == ["hello", "it's $HOME", 1]
    assert first[3] != second[3], "two nodes"
    assert first[4] and second[4], "inside"
    assert [[rank[0] for rank in job] for job in json.loads(two)] == [["one"] * 2, ["two"] * 2]


def test_a_function_that_is_preempted_goes_on_from_its_checkpoint(
    cluster: Cluster, tmp_path: Path
) -> None:
    said = run_script(cluster, tmp_path, CHECKPOINT)

    assert said == ["1"]
    assert (tmp_path / "saves").read_text() == "x", "one signal, one checkpoint"
