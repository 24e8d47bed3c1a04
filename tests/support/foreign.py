"""A scheduler of another package: the example of docs/extending-scheduler.md."""

from __future__ import annotations

from pathlib import Path

from support.documents import blocks_of
from support.environment import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "extending-scheduler.md"

_MPIRUN = """\
#!/bin/bash
# Stub of mpirun where the nodes of a job are all this machine: starts as many processes as -n says.
count=$2
while [ "$1" != env ]; do shift; done
for ((rank = 0; rank < count; rank++)); do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$count \\
    OMPI_COMM_WORLD_LOCAL_RANK=$((rank % HPC_AMP_PPN)) OMPI_COMM_WORLD_LOCAL_SIZE=$HPC_AMP_PPN \\
    "$@" &
  ranks+=($!)
done
status=0
for rank in "${ranks[@]}"; do wait "$rank" || status=$?; done
exit "$status"
"""


def install(folder: Path) -> None:
    """Make `folder` what a package with the example installs, with the entry points of both of its
    schedulers. It has to stand on PYTHONPATH."""
    blocks = blocks_of(DOCUMENT.read_text(), DOCUMENT.name)
    python = [block.text for block in blocks if block.language == "python"]
    metadata = folder / "spool-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "spool.py").write_text(python[0])
    (folder / "spool_arrays.py").write_text(python[1])
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spool\nVersion: 1.0\n")
    (entry_points,) = (block.text for block in blocks if block.language == "toml")
    assert entry_points == (
        '[project.entry-points."hpc_amp.schedulers"]\nspool = "spool:Spool"\n'
    ), "the entry points of the test are not those of the document any more"
    (metadata / "entry_points.txt").write_text(
        "[hpc_amp.schedulers]\nspool = spool:Spool\nspool-arrays = spool_arrays:SpoolWithArrays\n"
    )


def write_mpirun(folder: Path) -> None:
    """The stub of a launcher for several nodes."""
    folder.mkdir(exist_ok=True)
    (folder / "mpirun").write_text(_MPIRUN)
    (folder / "mpirun").chmod(0o755)
