"""How long a program of one's own takes from `submit` to its first step, beside torchrun.

    OMP_NUM_THREADS=1 python benchmarks/first_step.py [--repeats 7] [--ranks 2] [--json]

Both start the same training of two ranks on this machine's CPUs (a linear layer under DDP with
gloo). The program itself writes the time after its first step; the time before is that of the call.
Each round starts all of them in turn, so only the ratios within a run mean something. The next one
starts when the one before has ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import machine, report

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    with open("stamp.new", "w") as file:
        file.write(str(time.time()))
    os.rename("stamp.new", "stamp")
dist.barrier()
os._exit(0)  # torch 2.14 sometimes aborts when gloo's threads are taken down
"""
JOB = """\
name: first
site: local
run: [python, {folder}/train.py]
job: {{gpus_per_node: 0, ranks_per_node: {ranks}, walltime: "10m"}}
"""


def commands(ranks: int) -> dict[str, list[str]]:
    """The commands to measure, by name."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    run = [sys.executable, "-m", "hpc_amp", "run", "job.yaml"]
    return {
        "torchrun": [*torchrun, "train.py"],
        "hpc-amp": run,
        "hpc-amp, launch=torchrun": [*run, "launch=torchrun"],
        "hpc-amp, without preflight": [*run, "launch.preflight=false"],
    }


def seconds_to_first_step(command: list[str], folder: Path) -> float:
    """The seconds from the call to the end of the first step."""
    stamp = folder / "stamp"
    stamp.unlink(missing_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # all use compiled modules, as installed ones do
    begin = time.time()
    ended = subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout}")
    return float(stamp.read_text()) - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="starts of each")
    parser.add_argument("--ranks", type=int, default=2, help="ranks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    measured = commands(arguments.ranks)
    times: dict[str, list[float]] = {name: [] for name in measured}
    folder = Path(tempfile.mkdtemp(prefix="first-step-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        (folder / "train.py").write_text(PROGRAM)
        (folder / "job.yaml").write_text(JOB.format(ranks=arguments.ranks, folder=folder))
        if arguments.repeats > 1:
            for command in measured.values():  # fill the caches: compiled modules, file system
                seconds_to_first_step(command, folder)
        for _ in range(arguments.repeats):
            for name, command in measured.items():
                times[name].append(seconds_to_first_step(command, folder))
    finally:
        shutil.rmtree(folder)
    report(
        {**machine("torch"), "ranks": arguments.ranks, "repeats": arguments.repeats},
        {"seconds": times},
        beside="torchrun",
        missing={},
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
