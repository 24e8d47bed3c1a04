"""The test cluster (tests/cluster) as tests use it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_amp.train.heartbeat import read_heartbeats
from support import commands
from support.environment import LOGOUT, REPOSITORY, clean_environ, in_ci
from support.warm_python import WarmPython

SCRIPTS = REPOSITORY / "tests" / "cluster"
TWO_NODES = ["job.nodes=2", "job.gpus_per_node=2", "job.walltime=10m", "job.stop_margin=1m"]
"""Overrides of a job on two nodes."""
TRAINING = [
    "train.precision=fp32",
    "train.data.download=false",
    "train.data.synthetic={train: 128, test: 33, image_size: 16}",
    "train.batch_size=16",
    "train.epochs=15",
    "train.max_steps=120",
    "train.log_every=1",
    "train.evaluate_every=60",
    "train.checkpoint=30steps",
]
"""Overrides of a training: small enough for two cores, long enough to be stopped half-way."""
STEPS = 120


@dataclass(frozen=True, slots=True)
class Cluster:
    """A real Slurm and a real Apptainer, with what it takes to submit to them."""

    image: str
    """A container image without any Python package of ours."""
    binds: list[str]
    """Folders that a container has to see to run this Python."""
    environ: Mapping[str, str]
    """Environment of a shell that submits."""
    python: str = sys.executable
    """What runs the ranks."""

    @property
    def overrides(self) -> list[str]:
        """What makes a job run in the container, with this Python, on the cluster."""
        return [
            "site=slurm",
            f"container.image={self.image}",
            f"container.bind={json.dumps(self.binds)}",
            f"container.python={self.python}",
        ]

    def run(
        self, *command: str, cwd: Path, check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Any command in the submitting environment. With `check`, a failure fails the test and
        shows what the command said."""
        result = subprocess.run(
            command, cwd=cwd, env=self.environ, text=True, capture_output=True, timeout=timeout
        )
        return _checked(result) if check else result

    def hpc_amp(
        self, *args: str, cwd: Path, check: bool = True, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """`python -m hpc_amp ...`, like `run`."""
        result = commands.hpc_amp(*args, cwd=cwd, environ=self.environ, timeout=timeout)
        return _checked(result) if check else result


def _checked(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The result, unless it is a failure, which fails the test."""
    if result.returncode != 0:
        said = f"{result.stdout}\n{result.stderr}".strip()
        pytest.fail(f"{result.args} exited with {result.returncode}:\n{said}")
    return result


@contextlib.contextmanager
def requeued_jobs_start_soon(cluster: Cluster) -> Iterator[None]:
    """Jobs that are requeued start two seconds later. Slurm lets them wait for as long as the
    credential of their earlier start is valid, 11 s here. A new one only has to be made in a later
    second than that in which the earlier one was revoked, which is before the line in the log. A
    job that lost a node waits as it is: the node's daemon may still end what it finds of the job.
    """
    log = Path(cluster.environ["HPC_AMP_CLUSTER_STATE"]) / "log" / "slurmctld.log"
    over = threading.Event()

    def watch() -> None:
        with log.open() as lines:
            lines.seek(0, os.SEEK_END)
            cut = ""
            lost: set[str] = set()
            while not over.wait(0.1):
                *whole, cut = (cut + lines.read()).split("\n")
                text = "\n".join(whole)
                lost |= set(re.findall(r"requeue job JobId=(\w+) due to failure", text))
                for job_id in re.findall(r"\] Requeuing JobId=(\w+)", text):
                    if job_id in lost:
                        lost.remove(job_id)
                        continue
                    words = ["scontrol", "update", f"JobId={job_id}", "StartTime=now+2"]
                    # Where the controller is away, the job waits.
                    subprocess.run(words, env=cluster.environ, capture_output=True)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    over.set()
    watcher.join()


def one_real_rank(warm: WarmPython) -> Path:
    """A Python with which rank 0 of a training imports torch itself, and so does torchrun on the
    first node of a Slurm job. The others are forks. It is bound with the Python of `warm`."""
    folder = warm.python.parents[1] / "one-real-rank"
    python = folder / "bin" / "python"
    if not python.exists():
        first, rest = warm.interpreter(folder).read_text().split("\n", 1)
        real = f'[ "${{RANK:-${{SLURM_PROCID:-1}}}}" != 0 ] || exec -a "$0" "{sys.executable}" "$@"'
        python.write_text("\n".join([first, real, rest]))
    return python


@contextlib.contextmanager
def held(run_dir: Path, attempt: int = 1) -> Iterator[None]:
    """The ranks of a training stand still, so that what is done to the run meets it where it is,
    however long a command takes. Signals reach them at the end, except for SIGKILL. They begin to
    train after their heartbeats begin. Their processes have to be visible on the host."""
    beats = read_heartbeats(run_dir / "attempts" / str(attempt) / "heartbeat")
    assert beats, f"no rank of attempt {attempt} runs"
    for beat in beats:
        os.kill(beat["pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        for beat in beats:
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat["pid"], signal.SIGCONT)


def site_parameters(
    sites: Mapping[str, Mapping[str, Any]], names: Iterable[str] | None = None
) -> list[Any]:
    """The sites, or those with these names, as parameters of tests: the ones of the real Slurm are
    marked so."""
    slurm = [pytest.mark.slurm]
    return [
        pytest.param(name, marks=slurm if sites[name]["scheduler"] == "slurm" else [])
        for name in (sites if names is None else names)
    ]


def gridengine_environ(cluster: Cluster) -> dict[str, str]:
    """What a shell that submits to the cluster's Grid Engine has besides: its variables, and its
    commands before others of the same names. Skips the test where the cluster has none."""
    settings = cluster.environ.get("HPC_AMP_GRIDENGINE")
    if settings is None:
        (pytest.fail if in_ci() else pytest.skip)("the test cluster has no Grid Engine")
    shown = subprocess.run(
        ["bash", "-c", 'source "$0" && env -0', settings],
        env={"PATH": cluster.environ["PATH"]},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    pairs = (entry.partition("=") for entry in shown.split("\0"))
    return {name: value for name, _, value in pairs if name == "PATH" or name.startswith("SGE_")}


def complaints() -> str | None:
    """What keeps the cluster from being used; None where it is healthy."""
    health = subprocess.run([SCRIPTS / "status"], text=True, capture_output=True, timeout=300)
    if health.returncode == 0:
        return None
    lines = health.stdout.splitlines()
    bad = [" ".join(line.split()) for line in lines if " BAD " in line or "no cluster" in line]
    return f"no healthy test cluster; start it with tests/cluster/up ({'; '.join(bad)})"


def connect(home: Path) -> Cluster:
    """`eval "$(tests/cluster/env PYTHON)"`, by a shell as its README says."""
    shown = subprocess.run(
        ["bash", "-c", 'eval "$("$0" "$1")" && exec env -0', SCRIPTS / "env", sys.executable],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    ).stdout
    pairs = (entry.partition("=") for entry in shown.decode().split("\0"))
    environ = {name: value for name, equals, value in pairs if equals and name != "_"}
    binds = environ["HPC_AMP_CLUSTER_BINDS"].split(":")
    # A home as a new user has it.
    (home / ".bash_logout").write_text(LOGOUT)
    environ["HOME"] = str(home)
    return Cluster(image=environ["HPC_AMP_TEST_IMAGE"], binds=binds, environ=environ)
