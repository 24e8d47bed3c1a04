"""Whole launch scripts, byte for byte, as a reviewer sees a change to one of them.

After a change that is meant: `python -m pytest tests/unit/test_golden.py --update-golden`, then
look at the difference.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from support.environment import REPOSITORY, require_program

from hpc_amp.config.fabric import find_fabric
from hpc_amp.config.schema import ContainerOptions, Job, Launch, Resources, Restarts
from hpc_amp.config.site import Site
from hpc_amp.containers import get_container
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.launchers import get_launcher
from hpc_amp.schedulers import get_scheduler
from hpc_amp.tasks.classification.config import ClassificationConfig

GOLDEN = REPOSITORY / "tests" / "golden"
CASES = [
    *itertools.product(["slurm"], ["srun", "torchrun", "single"], ["apptainer", "none"]),
    ("slurm", "mpirun", "apptainer"),
    *itertools.product(["slurm"], ["srun"], ["charliecloud", "podman"]),
    *itertools.product(["slurm"], ["srun", "torchrun"], ["pyxis"]),
    *itertools.product(["local"], ["torchrun", "processes", "single"], ["apptainer", "none"]),
    *itertools.product(["pbs", "cobalt"], ["mpirun", "mpiexec", "single"], ["apptainer"]),
    *itertools.product(["pbs", "cobalt"], ["mpirun"], ["none"]),
    *itertools.product(["gridengine"], ["mpirun", "single"], ["apptainer"]),
]


IMAGES = {
    "charliecloud": "/projects/images/pytorch 25.sqfs",
    "pyxis": "/projects/images/pytorch 25.sqsh",
    "podman": "nvcr.io/nvidia/pytorch:25.06-py3",
}
DIRECTIVES = {
    "slurm": ["--qos=premium"],
    "pbs": ["-l filesystems=home:eagle", "-M me@example.org"],
    "cobalt": ["--attrs filesystems=home"],
    "gridengine": ["-l os=el9"],
    "local": [],
}
OPTIONS = {"gridengine": {"slots_per_node": "32", "memory_resource": "mem_free"}}


def plan(scheduler: str, launcher: str, runtime: str) -> Plan:
    """A plan that depends on no file of this machine. The single ones run an own command."""
    single = launcher == "single"
    job = Job(
        name="golden",
        resources=Resources(
            nodes=1 if single or scheduler == "local" else 2,
            gpus_per_node=1 if single else 4,
            cpus_per_gpu=8,
            memory="64GiB",
            walltime="02:00:00",
            queue="gpu",
            account="my_project" if scheduler == "cobalt" else "my project",
            directives=DIRECTIVES[scheduler],
            setup="module load apptainer\n",
        ),
        container=ContainerOptions(
            image=IMAGES.get(runtime, "/projects/images/pytorch 25.sif"),
            runtime=runtime,
            # ch-run has no read-only binds.
            bind=["/scratch", f"/projects/data:/data{'' if runtime == 'charliecloud' else ':ro'}"],
            env={"HYDRA_FULL_ERROR": "1"},
            args=["--cleanenv"] if single else [],
        ),
        launch=Launch(
            method=launcher,  # type: ignore[arg-type]
            args=["--label"] if launcher == "srun" else [],
            mpi="hybrid" if launcher == "mpiexec" else "none",
        ),
        restarts=Restarts(on_failure=1),
        train=None if single else ClassificationConfig(),
        run=["python", "train.py", "--lr", "0.1"] if single else None,
    )
    site = Site(
        name="golden",
        scheduler=scheduler,  # type: ignore[arg-type]
        gpu_type="a100" if scheduler == "slurm" else None,
        env={"NCCL_SOCKET_IFNAME": "hsn0,hsn1"},
        address="{host}-ib0" if scheduler in ("slurm", "pbs") else None,
        options=OPTIONS.get(scheduler, {}),
        chunk=["system=polaris"] if scheduler == "pbs" else [],
        launcher_args=["--verbose"] if launcher == "mpiexec" else [],
        skip_directives=["--mem"] if launcher == "torchrun" else [],
    )
    return Plan(
        job=job,
        site=site,
        scheduler=get_scheduler(scheduler),
        launcher=get_launcher(launcher),
        container=get_container(job, site),
        run_dir=Path("/projects/me/runs/golden/20261127-223455-kqzf"),
        workdir=Path("/projects/me"),
        fabric=find_fabric("slingshot") if scheduler == "pbs" else None,
        python="/projects/venv/bin/python" if runtime == "none" else "python3",
        version="0.0.0",
    )


@pytest.mark.parametrize(("scheduler", "launcher", "runtime"), CASES)
def test_the_script_is_the_golden_one(
    scheduler: str, launcher: str, runtime: str,
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # `make demo` makes a folder `data`, which would be bound
    monkeypatch.setattr("hpc_amp.schedulers.local.scheduler._nvidia_gpus", lambda: 0)
    path = GOLDEN / f"{scheduler}-{launcher}-{runtime}.sh"
    script = render(plan(scheduler, launcher, runtime))
    if pytestconfig.getoption("update_golden"):
        path.write_text(script)
    assert path.exists(), f"no {path}: see the top of {__file__}"

    assert script == path.read_text(), (
        f"{path.relative_to(REPOSITORY)} is not what is rendered now; if the change is meant: "
        "python -m pytest tests/unit/test_golden.py --update-golden"
    )


def test_there_is_no_golden_script_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sh")} == {"-".join(case) for case in CASES}


@pytest.mark.parametrize("case", ["-".join(case) for case in CASES])
def test_a_golden_script_is_bash(case: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / f"{case}.sh"], check=True, timeout=300)


@pytest.mark.parametrize("case", ["-".join(case) for case in CASES])
def test_a_golden_script_fits_on_a_screen(case: str) -> None:
    """Comments included; what is the same in every script is in `hpc_amp/host`."""
    assert len((GOLDEN / f"{case}.sh").read_text().splitlines()) <= 80


def test_the_host_library_is_bash_as_it_is() -> None:
    files = sorted((REPOSITORY / "hpc_amp").rglob("*.sh"))

    assert len(files) > 15
    for path in files:
        assert "{%" not in path.read_text() and "{{" not in path.read_text()
        subprocess.run(["bash", "-n", path], check=True)


def test_golden_scripts_pass_shellcheck() -> None:
    require_program("shellcheck")

    result = subprocess.run(
        ["shellcheck", *sorted(GOLDEN.glob("*.sh"))], text=True, capture_output=True, timeout=300
    )

    assert result.returncode == 0, result.stdout
