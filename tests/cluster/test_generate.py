"""`hpc-amp generate --submit`: a job of several ranks on two nodes, in a container."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from PIL import Image
from support.cluster import Cluster
from support.paired import paired, plain_train

from hpc_amp.config.schema import Job, to_plain
from hpc_amp.gan.data.synthetic import draw_pairs
from hpc_amp.train.generate import load_generator

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

SETTINGS = {"epochs": 1, "ema": 0.9, "images": {"instances": False}, "device": "cpu"}
RANKS = ("job.nodes=2", "job.ranks_per_node=2", "launch.preflight=false")


@pytest.fixture(scope="module")
def run(warm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a SPADE that was trained in the container. It was in fact trained here: the
    job reads no more of it than `job.json` and a checkpoint."""
    folder = tmp_path_factory.mktemp("work") / "runs" / "spade" / "20261129-120000-abcd"
    made = paired(folder, "spade", **SETTINGS)
    made.fit()
    made.tracker.close()
    plain = to_plain(Job(name="spade")) | {
        "site": "slurm",
        "train": plain_train("spade", **SETTINGS),
    }
    plain["container"] |= {
        "image": warm_cluster.image,
        "bind": warm_cluster.binds,
        "python": warm_cluster.python,
    }
    plain["job"] |= {"gpus_per_node": 0, "walltime": "5m", "stop_margin": "1m"}
    (folder / "job.json").write_text(json.dumps({"job": plain, "submitted_from": str(folder)}))
    return folder


def generate(cluster: Cluster, run: Path, maps: Path, output: Path, *words: str) -> Path:
    """Submit the job; returns its run directory."""
    shown = cluster.hpc_amp(
        *("generate", str(run), "--input", str(maps), "--output", str(output)),
        *("--batch-size", "2", "--submit", "--json", *RANKS, *words),
        cwd=run.parents[2],
    )
    return Path(json.loads(shown.stdout)["run_dir"])


def state(cluster: Cluster, run_dir: Path) -> str:
    shown = cluster.hpc_amp("status", str(run_dir), "--json", cwd=run_dir)
    (entry,) = json.loads(shown.stdout)
    return str(entry["state"])


def test_a_job_of_four_ranks_makes_the_bytes_of_one_and_can_be_cancelled(
    cluster: Cluster, run: Path, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    for number, labels in enumerate(draw_pairs(7, 4, (16, 16), 0, "maps").labels):
        Image.fromarray(labels.numpy()).save(maps / f"{number}.png")
    run_dir = generate(cluster, run, maps, tmp_path / "made")
    logs = cluster.hpc_amp("logs", "-f", str(run_dir), cwd=tmp_path).stdout
    assert state(cluster, run_dir) == "finished", logs
    assert "7 images to make with the weights of step 3 (average), cpu, 4 ranks" in logs
    assert all(f"rank {rank}: {2 - rank // 3} images in" in logs for rank in range(4))
    load_generator(run).make(maps, tmp_path / "here", batch_size=2)
    made, here = (
        {file.name: file.read_bytes() for file in (tmp_path / folder).iterdir()}
        for folder in ("made", "here")
    )
    assert len(here) == 7 and made == here

    # More than it can make before it is cancelled.
    many = tmp_path / "many"
    many.mkdir()
    for number in range(8000):
        os.link(maps / "0.png", many / f"{number}.png")
    output = tmp_path / "cancelled"
    run_dir = generate(cluster, run, many, output)
    deadline = time.monotonic() + 400
    while not any(output.glob("*.png")):
        assert time.monotonic() < deadline, (run_dir / "logs" / "job.log").read_text()
        time.sleep(0.2)
    shown = cluster.hpc_amp("cancel", str(run_dir), cwd=tmp_path)
    assert shown.stdout.startswith("cancelled job")
    assert state(cluster, run_dir) == "cancelled"
    for file in output.glob("*.png"):
        with Image.open(file) as image:
            image.load()
