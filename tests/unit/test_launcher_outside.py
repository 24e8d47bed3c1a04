"""A launcher of another package: the example of docs/extending.md, from its very text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import commands
from support.documents import blocks_of
from support.environment import REPOSITORY, clean_environ

PAGE = REPOSITORY / "docs" / "extending.md"
RANKS = "import os, sys; print('place', os.environ['RANK'], os.environ['WORLD_SIZE'])"
JOB = f"""
name: test
site: local
job: {{gpus_per_node: 0, ranks_per_node: 3, walltime: 10m}}
launch: {{method: together, preflight: false}}
run: [{sys.executable}, -c, "{RANKS}"]
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder for the search path in which the example is installed."""
    blocks = blocks_of(PAGE.read_text(), PAGE.name)
    (code,) = (block.text for block in blocks if block.language == "python")
    (points,) = (block.text for block in blocks if block.language == "toml")
    metadata = tmp_path / "packages" / "together-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: together\nVersion: 1.0\n")
    heading, line = points.splitlines()
    assert heading == '[project.entry-points."hpc_amp.launchers"]'
    (metadata / "entry_points.txt").write_text(
        f"[hpc_amp.launchers]\n{line.replace(chr(34), '')}\n"
    )
    (metadata.parent / "together.py").write_text(code)
    return metadata.parent


def hpc_amp(folder: Path, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environ(PYTHONPATH=f"{packages}:{REPOSITORY}")
    return commands.hpc_amp(*words, cwd=folder, environ=environ, timeout=600)


def test_it_starts_the_ranks(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    ran = hpc_amp(tmp_path, packages, "submit", "job.yaml", "--follow")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    places = sorted(line for line in ran.stdout.splitlines() if "]: place" in line)
    assert places == [f"[rank{rank}]: place {rank} 3" for rank in range(3)]


def test_a_rank_that_fails_is_the_status_of_the_run(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        JOB.replace(RANKS, "import os, sys; sys.exit(7 * (os.environ['RANK'] == '1'))")
    )

    ran = hpc_amp(tmp_path, packages, "submit", "job.yaml", "--follow")

    assert ran.returncode == 1
    assert "status 7" in ran.stdout + ran.stderr


def test_a_name_that_is_not_there(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("together", "togethr"))

    refused = hpc_amp(tmp_path, packages, "validate", "job.yaml")

    assert refused.returncode == 2
    assert "did you mean together?" in refused.stderr


def test_several_nodes_are_refused_before_anything_is_submitted(
    tmp_path: Path, packages: Path
) -> None:
    """The example has no `node_command`, so nothing would be checked or started elsewhere."""
    (tmp_path / "job.yaml").write_text(JOB)

    refused = hpc_amp(tmp_path, packages, "validate", "job.yaml", "site=slurm", "job.nodes=2")

    assert refused.returncode == 2
    assert "launch.method together starts ranks on one node only" in refused.stderr
