"""Pyxis under a real Slurm: the stand-in of its options in front of the real srun. There is no
container around the ranks; what is real is Slurm, its steps, and the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from support.cluster import Cluster
from support.environment import REPOSITORY

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder for the front of PATH."""
    folder = tmp_path / "pyxis"
    folder.mkdir()
    real = shutil.which("srun")
    assert real is not None
    (folder / "srun-of-slurm").symlink_to(real)
    (folder / "srun").symlink_to(REPOSITORY / "tests" / "standins" / "pyxis")
    superblock = b"hsqs" + bytes(36) + (106).to_bytes(8, "little") + bytes(48)
    (folder / "image.sqsh").write_bytes(superblock + b"IMAGE=own\n")
    return folder


@pytest.mark.parametrize(("launcher", "ranks_per_node"), [("srun", 1), ("torchrun", 2)])
def test_a_training_on_two_nodes(
    warm_cluster: Cluster,
    tmp_path: Path,
    stand_in: Path,
    launcher: str,
    ranks_per_node: int,
) -> None:
    job = {
        "name": "inside",
        "site": "slurm",
        "job": {
            "nodes": 2,
            "ranks_per_node": ranks_per_node,
            "gpus_per_node": 0,
            "walltime": "10m",
            "setup": f"export PATH={stand_in}:$PATH",
        },
        "container": {
            "runtime": "pyxis",
            "image": str(stand_in / "image.sqsh"),
            "bind": warm_cluster.binds,
            "python": warm_cluster.python,
        },
        "launch": launcher,
        "train": {
            "data": {
                "name": "synthetic",
                "synthetic": {"train": 64, "test": 16, "image_size": 16},
            },
            "model": "resnet8",
            "batch_size": 16,
            "max_steps": 3,
            "precision": "fp32",
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    warm_cluster.hpc_amp("submit", "job.yaml", "--follow", cwd=tmp_path)

    (run_dir,) = (tmp_path / "runs" / "inside").glob("2*")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["world_size"] == 2 * ranks_per_node and summary["steps"] == 3
    log = (run_dir / "logs" / "job.log").read_text()
    assert "container: Pyxis, " in log and "attempt 1 ended: finished" in log
    reports = [*(run_dir / "attempts" / "1").glob("preflight-*.json")]
    assert len(reports) == 2
