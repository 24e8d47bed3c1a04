"""How long the command line takes, in CPU seconds of the process and its children.

    python benchmarks/cli_start.py [--repeats 11] [--json]

CPU time is read from the kernel's accounting, so other load on the machine has little effect.
`python -c pass` shows the minimum of any Python program, and `torchrun --help` a program that
imports torch. Each round runs all commands in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rounds import machine, report

ROOT = Path(__file__).resolve().parents[1]
BASE = "python -c pass"
TORCHRUN = "torchrun --help"


def commands() -> dict[str, list[str]]:
    """The commands to measure, by name. torchrun is only measured if it is installed."""
    hpc_amp = [sys.executable, "-m", "hpc_amp"]
    config = str(ROOT / "configs" / "cifar_resnet.yaml")
    measured = {
        BASE: [sys.executable, "-c", "pass"],
        "hpc-amp --help": [*hpc_amp, "--help"],
        "hpc-amp --version": [*hpc_amp, "--version"],
        "hpc-amp submit --dry-run": [*hpc_amp, "submit", config, "--dry-run"],
    }
    torchrun = shutil.which("torchrun", path=os.path.dirname(sys.executable))
    if torchrun:
        measured[TORCHRUN] = [sys.executable, torchrun, "--help"]
    return measured


def cpu_seconds(command: list[str], folder: str) -> float:
    """User and system time of one run of a command, including its children."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled modules are used, as in an installation
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=11, help="runs of each command")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    measured = commands()
    times: dict[str, list[float]] = {name: [] for name in measured}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.repeats > 1:
            for name in measured:  # fill the caches: compiled modules, file system
                cpu_seconds(measured[name], folder)
        for _ in range(arguments.repeats):
            for name, command in measured.items():
                times[name].append(cpu_seconds(command, folder))

    report(
        {**machine(), "repeats": arguments.repeats},
        {"CPU seconds": times},
        beside=BASE,
        missing={} if TORCHRUN in times else {TORCHRUN: "torch is not installed"},
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
