"""What it costs to submit 1,000 points to Slurm: `hpc-amp sweep` beside submitit's `map_array`.

    python benchmarks/sweep.py [--points 1000] [--repeats 9] [--json]

Seconds of the whole command with all its children, and the files that it makes. There
is no cluster: stand-ins of Slurm's programs take the job at once and ask nothing, so it is the
submission alone. submitit (`pip install submitit`) takes part if it is installed. Each point of
hpc-amp is a training with a seed of its own; each of submitit is a function that gets the seed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from cli_start import cpu_seconds
from rounds import Values, machine, report

SLURM = {
    "sbatch": '[ "$1" = --parsable ] && echo 4242 || echo "Submitted batch job 4242"',
    "scontrol": "echo MaxArraySize = 10000",
    "sinfo": "echo 'main*|up|1-00:00:00|idle|4|(null)'",
    "srun": "exit 1",
}
"""What the stand-in of each program does. Neither contestant starts srun; submitit looks for it."""
JOB = """\
name: points
site: slurm
job: {gpus_per_node: 0, walltime: "10m"}
train: {}
"""
PEER = """
import sys
import submitit

def train(seed):
    return seed

executor = submitit.SlurmExecutor(folder="submitted")
executor.update_parameters(time=10)
executor.map_array(train, range(int(sys.argv[1])))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9, help="submissions of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    seeds = ",".join(map(str, range(arguments.points)))
    commands = {
        "hpc-amp": [sys.executable, "-m", "hpc_amp", "sweep", "job.yaml", f"train.seed={seeds}"],
        "submitit": [sys.executable, "peer.py", str(arguments.points)],
    }
    missing = {}
    if find_spec("submitit") is None:
        missing["submitit"] = "submitit is not installed"
        del commands["submitit"]
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ["PATH"] = f"{folder / 'slurm'}:{os.environ['PATH']}"
    try:
        (folder / "slurm").mkdir()
        for name, lines in SLURM.items():
            (folder / "slurm" / name).write_text(f"#!/bin/sh\n{lines}\n")
            (folder / "slurm" / name).chmod(0o755)
        values = measure(folder, commands, arguments.repeats)
    finally:
        shutil.rmtree(folder)
    report(
        {**machine("submitit"), "points": arguments.points, "repeats": arguments.repeats},
        values,
        beside="submitit" if "submitit" in commands else "hpc-amp",
        missing=missing,
        as_json=arguments.json,
    )


def measure(folder: Path, commands: dict[str, list[str]], repeats: int) -> dict[str, Values]:
    """What each command costs in each round, each time in a new folder."""
    cpu: Values = {name: [] for name in commands}
    wall: Values = {name: [] for name in commands}
    files: Values = {name: [] for name in commands}
    for number in range(repeats + 1):
        for name, command in commands.items():
            work = Path(tempfile.mkdtemp(dir=folder))
            (work / "job.yaml").write_text(JOB)
            (work / "peer.py").write_text(PEER)
            begun = time.perf_counter()
            seconds = cpu_seconds(command, str(work))
            if number > 0:  # the first round fills the caches
                wall[name].append(time.perf_counter() - begun)
                cpu[name].append(seconds)
                files[name].append(len(files_below(work)) - 2)
            shutil.rmtree(work)
    return {"CPU seconds": cpu, "wall seconds": wall, "files": files}


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and its folders."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


if __name__ == "__main__":
    main()
