"""A machine whose scheduler and containers are the programs in tests/stubs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.submit import prepare
from support import commands
from support.environment import REPOSITORY, clean_environ, working_directory

STUBS = REPOSITORY / "tests" / "stubs"
REPORT = REPOSITORY / "tests" / "support" / "report.py"
RUN_ID = "20261127-223455-kqzf"

_SLURM = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch script ended."""

    status: int
    """Exit status; negative for a signal."""
    output: str
    """What it and its ranks wrote."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a process that ran tests/support/report.py really got."""

    argv: list[str]
    environ: dict[str, str]
    cwd: str


class StubHost:
    """Has every stub on PATH, and a folder `work` to submit from."""

    def __init__(self, folder: Path, *, version: str = "apptainer version 1.4.5") -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.state = folder / "state"
        self.work = folder / "work"
        for made in (self.bin, self.state / "calls", self.work):
            made.mkdir(parents=True)
        for name in ("common.bash", *_SLURM):
            (self.bin / name).symlink_to(STUBS / name)
        self.install_container("apptainer", version)
        (self.state / "queue").touch()
        self.image = folder / "image.sif"
        self.image.write_text("hsqs: the beginning of an image")

    def install_container(self, name: str, version: str) -> None:
        """Make `apptainer` or `singularity` the only container program, of this version text."""
        for other in ("apptainer", "singularity"):
            (self.bin / other).unlink(missing_ok=True)
        (self.bin / name).symlink_to(STUBS / "apptainer")
        (self.state / "version").write_text(version + "\n")

    def fail(self, command: str, text: str) -> None:
        """Make a stub fail from now on."""
        (self.state / f"fail-{command}").write_text(text)

    def before(self, command: str, lines: str) -> None:
        """Let a stub run these lines of bash first, from now on."""
        real = (self.bin / command).rename(self.bin / f"real-{command}")
        (self.bin / command).write_text(f'#!/usr/bin/env bash\n# Stub\n{lines}exec {real} "$@"\n')
        (self.bin / command).chmod(0o755)

    def environ(self, **more: str) -> dict[str, str]:
        """Of a shell on this machine."""
        environ = clean_environ(**{"XDG_STATE_HOME": str(self.folder / "state-home"), **more})
        return {**environ, "PATH": f"{self.bin}:{environ['PATH']}"}

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of every call of a stub, in order."""
        made = [
            path.read_text().split("\0")[:-1] for path in sorted((self.state / "calls").iterdir())
        ]
        return [words[1:] for words in made if words[0] == name]

    # ---- runs ------------------------------------------------------------------------------------

    def plan(
        self,
        config: dict[str, Any],
        *overrides: str,
        cwd: Path | None = None,
        run_id: str = RUN_ID,
    ) -> Plan:
        """The plan of a job file, given as a dictionary. `name` and a small `job` are filled in.
        The preflight is left out unless it is asked for: it would be a launch before the launch."""
        job = {"gpus_per_node": 0, "walltime": "10m", **config.get("job", {})}
        text = yaml.safe_dump({"name": "test", "site": "slurm", **config, "job": job})
        path = self.folder / "job.yaml"
        path.write_text(text)
        with working_directory(cwd or self.work):
            plan, _ = prepare(path, ["launch.preflight=false", *overrides], run_id=run_id)
        return plan

    def create(self, config: dict[str, Any], *overrides: str, cwd: Path | None = None) -> Path:
        """A run directory as `submit` makes it, without handing it to a scheduler."""
        plan = self.plan(config, *overrides, cwd=cwd)
        rundir.create(plan, render(plan), "")
        return plan.run_dir

    def start(
        self,
        run_dir: Path,
        *,
        nodes: str = "n1",
        job_id: str = "42",
        log: IO[str] | int = subprocess.PIPE,
        **environ: str,
    ) -> subprocess.Popen[str]:
        """The run's script, as Slurm starts a batch script on the first of `nodes`."""
        batch = {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": nodes, "SLURM_NTASKS": "64"}
        batch |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
        return subprocess.Popen(
            ["bash", str(run_dir / "launch.sh")],
            cwd="/",
            env={**self.environ(), **batch, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, run_dir: Path, *, nodes: str = "n1", job_id: str = "42", **environ: str) -> Ended:
        """Run the script to its end, which must come."""
        return wait(self.start(run_dir, nodes=nodes, job_id=job_id, **environ))

    def hpc_amp(
        self, *args: str, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """`python -m hpc_amp ...` on this machine."""
        return commands.hpc_amp(*args, cwd=cwd or self.work, environ=self.environ(**environ))

    def python(
        self, *args: str, cwd: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """This Python on this machine."""
        return subprocess.run(
            [sys.executable, *args],
            cwd=cwd or self.work,
            env=self.environ(**environ),
            text=True,
            capture_output=True,
            timeout=300,
        )

    def write_job(self, config: dict[str, Any], name: str = "job.yaml") -> Path:
        """A job file in the folder to submit from."""
        path = self.work / name
        path.write_text(yaml.safe_dump(config, allow_unicode=True))
        return path


def wait(process: subprocess.Popen[str], timeout: float = 300) -> Ended:
    """The end of a started script. One that does not end is killed with all that it started."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        import os

        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the script did not end:\n{output}") from None
    return Ended(process.returncode, output)


def events(run_dir: Path) -> list[str]:
    """The states of a run's events, in order."""
    return [event["state"] for event in read_events(run_dir)]


def report_command(folder: Path, arguments: Sequence[str] = ()) -> list[str]:
    """A `run` that leaves a report of each rank in `folder`."""
    return ["python", "-I", "-S", str(REPORT), str(folder), *arguments]


def read_reports(folder: Path) -> list[Report]:
    """The reports of all ranks, by rank."""
    files = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [Report(**json.loads(path.read_text())) for path in files]


def command_that_says(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    name: str,
    out: str,
    err: str = "",
    status: int = 0,
) -> Callable[[], list[str]]:
    """Put a command on PATH that says this, whatever it is asked. Returns what lists its calls."""
    (folder / f"{name}.out").write_text(out)
    (folder / f"{name}.err").write_text(err)
    calls = folder / f"{name}.calls"
    calls.touch()
    program = folder / name
    program.write_text(
        f'#!/bin/sh\ncd {folder}\necho "$*" >>{calls}\ncat {name}.out\ncat {name}.err >&2\n'
        f"exit {status}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return lambda: calls.read_text().splitlines()


def remove(folder: Path) -> None:
    """Remove a folder whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def write_outcome(outcome: str, cause: str = "NONE") -> list[str]:
    """A `run` that ends as the training does: with an outcome file, and a status of its own."""
    content = json.dumps({"outcome": outcome, "cause": cause}, indent=1)
    return ["bash", "-c", 'printf "%s" "$0" >"$HPC_AMP_OUTCOME_FILE"', content]
