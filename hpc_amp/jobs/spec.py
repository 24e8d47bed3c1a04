"""`Spec`: the part of a plan that schedulers, launchers and containers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpc_amp import __version__
from hpc_amp.config.bind import parse_bind
from hpc_amp.config.fabric import Fabric
from hpc_amp.config.paths import paths_in
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration

# Folders that every image has. A bind of the host's folder would hide the image's files.
SYSTEM_FOLDERS = frozenset(
    {"/", *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/mnt", "/opt", "/proc")}
    | {"/root", "/run", "/sbin", "/sys", "/usr", "/var"}
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Spec(ABC):
    """A job on a site. All paths are absolute and contain no symbolic links."""

    job: Job
    site: Site
    run_dir: Path
    workdir: Path
    python: str
    fabric: Fabric | None = None
    umask: int = 0o022
    """The umask of the submitting shell. The job uses it too."""
    remarks: tuple[str, ...] = ()
    """Remarks for the user, one line each (`jobs.remarks`)."""
    expanded: tuple[str, ...] = ()
    """The paths that were written with variables, and their values, for the log."""
    version: str = __version__
    overrides: tuple[str, ...] = ()
    """The overrides of the command line, and those that fix the values of expanded paths."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where the values of the job's keys are from; a key that is missing has its default."""
    submitted_from: Path = Path("/")
    """The folder from which relative paths of job file and command line are resolved."""
    shares_code: bool = False
    """Whether `src` in the run directory is a link to a copy of the package in `shared_code`."""

    @property
    @abstractmethod
    def step_launcher(self) -> str:
        """The name of the scheduler's own launcher, which starts processes on the nodes of a job.
        Empty if the scheduler has none."""

    @property
    @abstractmethod
    def starts_agents(self) -> bool:
        """Whether the launcher starts one process on each node, which starts the node's ranks."""

    @property
    def tasks_per_node(self) -> int:
        """Processes that the launcher starts on each node."""
        return 1 if self.starts_agents else self.job.ranks_per_node

    @property
    def cpus_per_task(self) -> int:
        """Cores of each such process."""
        return self.job.cpus_per_node if self.starts_agents else self.job.resources.cpus_per_gpu

    @property
    def gpu_inside(self) -> bool:
        """Whether the container needs the node's GPU driver."""
        wanted = self.job.container.gpu
        return self.job.resources.gpus_per_node > 0 if wanted is None else wanted

    @property
    def walltime(self) -> int:
        """Time limit of an attempt in seconds."""
        return parse_duration(self.job.resources.walltime)

    @property
    def stop_margin(self) -> int:
        """Seconds before the time limit at which the run saves and stops."""
        return parse_duration(self.job.resources.stop_margin)

    @property
    def fabric_env(self) -> dict[str, str]:
        """The environment variables of the fabric profile."""
        return self.fabric.settings(self.job.resources.nodes) if self.fabric is not None else {}

    @property
    def shared_code(self) -> Path:
        """The folder of copies of the package that runs share: see `jobs.shared_code`."""
        return shared_code_of(self.run_dir)

    @property
    def binds(self) -> list[str]:
        """The binds of the container, without duplicates: those of the site and of the job, and the
        folders that the job reads and writes."""
        wanted = [*self.site.bind, *self.job.container.bind]
        if self.job.launch.mpi == "bind":
            prefix = self.site.host_mpi.prefix
            wanted += [*self.site.host_mpi.bind, *([prefix] if prefix else [])]
        own = [self.run_dir, self.workdir, *([self.shared_code] if self.shares_code else [])]
        if self.job.train is not None:
            own += [_folder_of(Path(path)) for _, _, path in paths_in(self.job.train)]
        taken = {source for source in map(_same_inside, wanted) if source is not None}
        for folder in sorted(set(own), key=lambda path: len(path.parts)):
            if str(folder) in SYSTEM_FOLDERS:
                continue
            if any(folder.is_relative_to(path) for path in taken if path not in SYSTEM_FOLDERS):
                continue
            wanted.append(str(folder))
            taken.add(str(folder))
        return wanted


def shared_code_of(run_dir: Path) -> Path:
    """The folder of copies of the package beside a run: see `jobs.shared_code`."""
    return run_dir.parents[1] / ".hpc_amp" / "src"


def _folder_of(path: Path) -> Path:
    """The folder to bind for a path of a task: the path itself if it is a folder, else the nearest
    folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _same_inside(text: str) -> str | None:
    """The folder of a bind that is writable and has the same path in the container; None for any
    other bind."""
    bind = parse_bind(text)
    if bind is None or bind.destination != bind.source or bind.read_only:
        return None
    return bind.source
