"""Plans: a job with its site, scheduler, launcher and container, ready to be rendered."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.bind import parse_bind
from hpc_amp.config.fabric import Fabric, fabric_of
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.paths import as_overrides, paths_in, with_paths
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.containers import Container, get_container
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.bash_checks import check_host_code, check_setup
from hpc_amp.jobs.places import follow_latest
from hpc_amp.jobs.remarks import remarks_on
from hpc_amp.jobs.spec import Spec, shared_code_of
from hpc_amp.launchers import Launcher, get_launcher, launchers_of
from hpc_amp.schedulers import Scheduler, get_scheduler


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Plan(Spec):
    """A run with everything that its launch script depends on."""

    scheduler: Scheduler
    launcher: Launcher
    container: Container

    @property
    def step_launcher(self) -> str:
        """The name of the scheduler's own launcher, which starts processes on the nodes of a job.
        Empty if the scheduler has none."""
        return self.scheduler.step_launcher

    @property
    def starts_agents(self) -> bool:
        """Whether the launcher starts one process on each node, which starts the node's ranks."""
        return self.launcher.starts_agents

    @property
    def grace(self) -> int:
        """Seconds between the scheduler's SIGTERM and its SIGKILL: `job.grace`, else the default of
        the scheduler."""
        given = self.job.resources.grace
        return parse_duration(given) if given is not None else self.scheduler.grace

    @property
    def whole_nodes(self) -> bool:
        """Whether the job certainly shares its nodes with no other job: the scheduler or the site
        allocates whole nodes, or a directive requests exclusive ones."""
        if self.scheduler.whole_nodes or self.site.gpu_request == "none":
            return True
        directives = (*self.site.directives, *self.job.resources.directives)
        if any(re.search(r"\bexcl(host|usive)?\b", line) for line in directives):
            return True
        wanted = self.job.resources.exclusive
        own = self.scheduler.exclusive_directive(self.site)
        return bool(wanted) and own in self.scheduler.directives(self)


def make_plan(loaded: LoadedJob, site: Site, run_dir: Path, *, shares_code: bool = False) -> Plan:
    """Choose scheduler, launcher and container for a job on a site, and check that they work
    together.

    Paths in the job are made absolute, from the working directory. `run_dir` need not exist.
    `shares_code`: whether the run may use the copy of the package that other runs use too. Raises
    ConfigError if the parts do not work together, and UsageError if host code is incomplete.
    """
    job = loaded.job
    workdir = Path.cwd().resolve()
    run_dir = run_dir.resolve()
    container = get_container(job, site)
    job = _absolute_paths(job, workdir, container)
    scheduler = get_scheduler(site.scheduler)
    check_host_code(scheduler, container)
    expanded = tuple(map(str, (*site.expanded, *loaded.expanded)))
    remarks = (*expanded, *remarks_on(loaded, site))
    if scheduler.one_machine and job.resources.nodes > 1:
        remarks += (
            f"this machine stands for all {job.resources.nodes} nodes: "
            f"the {job.world_size} ranks run here together",
        )
        job = _on_one_node(job)
    method: str = job.launch.method if job.launch.method != "auto" else site.launcher
    if method == "auto":
        method = scheduler.default_launcher(job)
    launcher = get_launcher(method)
    if not scheduler.works_with(launcher):
        raise ConfigError(
            f"launch.method {method} does not work with {scheduler.title}",
            where=loaded.where("launch.method"),
            hint=f"use one of: auto, {', '.join(launchers_of(scheduler))}",
        )
    if job.resources.nodes > 1 and not launcher.reaches_nodes(scheduler.step_launcher):
        raise ConfigError(
            f"launch.method {method} starts ranks on one node only, "
            f"and job.nodes is {job.resources.nodes}",
            where=loaded.where("launch.method"),
            hint="use mpirun or mpiexec, which need no MPI in the image",
        )
    if launcher.makes_steps:
        _refuse_step_in_step(loaded, launcher.name)
    if job.launch.mpi != "none" and not launcher.mpi:
        raise ConfigError(
            f"launch.mpi {job.launch.mpi}: {method} does not start the ranks as an MPI program",
            where=loaded.where("launch.mpi"),
            hint="use launch.method srun, mpirun or mpiexec",
        )
    if job.launch.args and not launcher.takes_args:
        unused = f"launch.args {' '.join(job.launch.args)}: {method} has no options"
        if job.launch.method != "auto":
            raise ConfigError(
                unused, where=loaded.where("launch.args"), hint="leave launch.args out"
            )
        remarks += (unused,)
    _check_entry(loaded, container, scheduler, launcher)
    _check_paths(loaded, job, run_dir, workdir, container)
    remarks += _missing_binds(loaded, container, here=scheduler.one_machine)
    check_setup(loaded, site)
    fabric = fabric_of(job, site)
    default_python = "python3" if container.uses_image else sys.executable
    plan = Plan(
        job=job,
        site=site,
        scheduler=scheduler,
        launcher=launcher,
        fabric=fabric,
        remarks=remarks,
        expanded=expanded,
        container=container,
        run_dir=run_dir,
        workdir=run_dir / "code" if job.code is not None else workdir,
        python=_absolute_program(job.container.python or default_python, workdir),
        umask=_umask(),
        # Expanded paths are fixed by overrides: `resume` reads the job file again, and the
        # variables may have changed by then.
        overrides=(*loaded.overrides, *as_overrides(loaded.job, loaded.expanded)),
        origins=origins_of(loaded, site, fabric),
        submitted_from=workdir,
        shares_code=shares_code and _may_share_code(run_dir, job.name),
    )
    container.check(plan)
    return plan


def origins_of(loaded: LoadedJob, site: Site, fabric: Fabric | None) -> dict[str, str]:
    """Where the values of a job's keys are from: a line of a file, an override, the fabric profile
    or the site. A key that is missing has its default."""
    found: dict[str, str] = {}
    if fabric is not None:
        env = fabric.settings(loaded.job.resources.nodes)
        found = {f"container.env.{name}": f"fabric {fabric.name}" for name in env}
    found |= {f"container.env.{name}": f"site {site.name}" for name in site.env}
    return {**found, **loaded.tree.places()}


def _may_share_code(run_dir: Path, name: str) -> bool:
    """Whether a run can use the copies of the package in its folder of runs: it is
    `<runs>/<name>/<id>`, and the copies belong to this user, who else would run files that somebody
    else can change."""
    shared = shared_code_of(run_dir)
    existing = next(one for one in (shared, *shared.parents) if os.path.exists(one))
    if run_dir.parent.name != name or not os.access(existing, os.W_OK):
        return False
    return existing not in (shared, shared.parent) or os.stat(existing).st_uid == os.geteuid()


def _umask() -> int:
    """This process's umask. The only way to read it is to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _refuse_step_in_step(loaded: LoadedJob, launcher: str) -> None:
    """Refuse a command that starts a step inside a step. The outer step has all cores, so the inner
    one would wait for them forever (observed with srun of Slurm 22.05)."""
    if loaded.job.run is None:
        return
    from hpc_amp.config.command import launcher_in  # only for own programs

    found = launcher_in(loaded.job.run)
    if found is not None and found.name == launcher and "--overlap" not in found.arguments:
        raise loaded.error(
            "run",
            f"{launcher} inside a step of {launcher} waits forever for the cores of this step",
            "write launch: single, so that the batch script itself starts the command",
        )


def _check_entry(
    loaded: LoadedJob, container: Container, scheduler: Scheduler, launcher: Launcher
) -> None:
    """Refuse a container runtime that needs options of a step launcher if the job has no such
    step."""
    needed = container.entered_by
    if not needed:
        return
    by_steps = launcher.makes_steps or launcher.starts_agents
    if scheduler.step_launcher == needed and by_steps:
        return
    if scheduler.step_launcher == needed:
        problem, hint = f"the launcher is {launcher.name}", f"use launch: {needed}"
    else:
        problem = f"{scheduler.title} has none"
        hint = "choose another runtime, or leave container.runtime out"
    raise ConfigError(
        f"container.runtime: {container.title} is entered by options of {needed}, and {problem}",
        where=loaded.where("container.runtime"),
        hint=hint,
    )


def _on_one_node(job: Job) -> Job:
    """The job with all its ranks and GPUs on one node."""
    request = job.resources
    resources = dataclasses.replace(
        request,
        nodes=1,
        ranks_per_node=job.world_size,
        gpus_per_node=request.nodes * request.gpus_per_node,
    )
    return dataclasses.replace(job, resources=resources)


def absolute_path(path: str, workdir: Path) -> str:
    """Make a path of a job file absolute, and resolve its symbolic links and `latest`."""
    return str(follow_latest((workdir / path).resolve()))


def _absolute_program(program: str, workdir: Path) -> str:
    """Make the path of a program absolute. A bare name is not changed; it is searched in PATH.
    Symbolic links are not resolved: the interpreter of a virtual environment is one, and its target
    would not use the environment."""
    if "/" not in program:
        return program
    return os.path.abspath(workdir / program)


def _absolute_paths(job: Job, workdir: Path, runtime: Container) -> Job:
    def absolute(path: str) -> str:
        return absolute_path(path, workdir)

    def absolute_bind(bind: str) -> str:
        source, colon, rest = bind.partition(":")
        # Symbolic links are not resolved: `/scratch` has to be mounted under this name.
        source = os.path.abspath(follow_latest(workdir / source)) if source else ""
        return f"{source}{colon}{rest}" if rest else source

    container, image = job.container, job.container.image
    if image is not None and runtime.is_path(image):
        image = absolute(image)
    container = dataclasses.replace(
        container,
        image=image,
        bind=[absolute_bind(bind) for bind in container.bind],
    )
    train = job.train
    if train is not None:
        train = with_paths(train, lambda key, path: absolute(path))
    code = absolute(job.code) if job.code is not None else None
    return dataclasses.replace(job, container=container, train=train, code=code)


def _check_paths(
    loaded: LoadedJob, job: Job, run_dir: Path, workdir: Path, container: Container
) -> None:
    """Refuse paths that cannot be used everywhere: `:` separates search paths, schedulers accept no
    control characters, and scripts and job.json are UTF-8."""
    for what, path in (("the run directory", run_dir), ("the working directory", workdir)):
        text = str(path)
        if any(
            ord(letter) < 32 or letter in "\x7f:" or "\ud800" <= letter <= "\udfff"
            for letter in text
        ):
            raise ConfigError(
                f"{what} {text!r} has a colon, a control character or a byte that is not UTF-8",
                hint="search paths and mounts cannot contain it; work in another folder",
            )
    if not container.uses_image:
        return
    own = [str(run_dir), str(workdir)]
    if job.train is not None:
        own += [path for _, key, path in paths_in(job.train) if not key.is_first_weights]
    for folder in own:
        if not container.mountable(folder):
            raise ConfigError(
                f"{folder!r} cannot be bound into a container: {container.unmountable}",
                hint="work in another folder",
            )
    for text in job.container.bind:
        message, hint = _wrong_bind(text, container)
        if message:
            where = loaded.where("container.bind")
            raise ConfigError(f"container.bind: {message}", where=where, hint=hint)


def _wrong_bind(text: str, container: Container) -> tuple[str, str]:
    """Message and hint for a bind that cannot work; both are empty if it can."""
    bind = parse_bind(text)
    if bind is None or not bind.destination.startswith("/"):
        return f"{text!r} is not a bind", (
            "write source, source:/destination or source:/destination:ro"
        )
    if not container.mountable(bind.source) or not container.mountable(bind.destination):
        return f"{text!r} cannot be mounted: {container.unmountable}", (
            "bind a folder with another name, such as one above it"
        )
    problem = container.check_bind(bind)
    if problem is not None:
        return f"{text!r} cannot be mounted: {problem}", "write it in another form"
    return "", ""


def _missing_binds(loaded: LoadedJob, container: Container, *, here: bool) -> tuple[str, ...]:
    """Remarks on sources of binds that do not exist on this machine. If the ranks run `here`, this
    is an error instead."""
    remarks = []
    for text in loaded.job.container.bind if container.uses_image else ():
        bind = parse_bind(text)
        if bind is None or follow_latest(Path(bind.source)).exists():
            continue
        if here:
            raise ConfigError(
                f"container.bind: {bind.source} does not exist",
                where=loaded.where("container.bind"),
                hint="a missing source stops the container before anything runs",
            )
        remarks.append(
            f"container.bind: {bind.source} is not on this machine; without it on the nodes, the "
            "container does not start"
        )
    return tuple(remarks)
