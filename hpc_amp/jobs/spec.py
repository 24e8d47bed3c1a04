"""What schedulers, launchers and containers get to see of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from hpc_amp import __version__
from hpc_amp.config.bind import parse_bind
from hpc_amp.config.fabric import Fabric
from hpc_amp.config.paths import paths_in
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration

# Folders that a container has itself; binding the host's over them breaks the image.
SYSTEM_FOLDERS = frozenset(
    {"/", *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/mnt", "/opt", "/proc")}
    | {"/root", "/run", "/sbin", "/sys", "/usr", "/var"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec(ABC):
    """A job on a site, resolved. All paths are absolute and free of symbolic links."""

    job: Job
    site: Site
    run_dir: Path
    workdir: Path
    python: str
    fabric: Fabric | None = None
    umask: int = 0o022
    """Of the submitting shell: the job's files shall have the same permissions."""
    remarks: tuple[str, ...] = ()
    """What the user should know, although nothing is wrong."""
    expanded: tuple[str, ...] = ()
    """The paths that were written with variables, and what they are. The log tells, too."""
    version: str = __version__
    overrides: tuple[str, ...] = ()
    """What the command line set besides the job file."""
    submitted_from: Path = Path("/")
    """Where relative paths of job file and command line count from."""

    @property
    @abstractmethod
    def step_launcher(self) -> str:
        """The launcher with which the scheduler itself starts processes on the nodes of a job;
        empty where it has none."""

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
        """What the network between the nodes needs."""
        return self.fabric.settings(self.job.resources.nodes) if self.fabric is not None else {}

    @property
    def binds(self) -> list[str]:
        """What the container has to see besides itself, without repetitions: the site's folders,
        the user's, and what the job itself reads and writes."""
        wanted = [*self.site.bind, *self.job.container.bind]
        if self.job.launch.mpi == "bind":
            prefix = self.site.host_mpi.prefix
            wanted += [*self.site.host_mpi.bind, *([prefix] if prefix else [])]
        own = [self.run_dir, self.workdir]
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


def _folder_of(path: Path) -> Path:
    """The folder to bind for a path of a task: that of a file, and for what does not exist yet the
    one that it will be made in."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _same_inside(text: str) -> str | None:
    """The folder of a bind that leaves it where it is and writable; None for any other bind."""
    bind = parse_bind(text)
    if bind is None or bind.destination != bind.source or bind.read_only:
        return None
    return bind.source
