"""Everything that a launch script depends on, resolved: the input of rendering."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.bind import parse_bind
from hpc_amp.config.command import launcher_in
from hpc_amp.config.fabric import fabric_of
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.paths import as_overrides, paths_in, with_paths
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import parse_duration
from hpc_amp.containers import Container, get_container
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.host_code import check_host_code
from hpc_amp.jobs.remarks import remarks_on
from hpc_amp.jobs.setup_lines import check_setup
from hpc_amp.jobs.spec import Spec
from hpc_amp.launchers import Launcher, get_launcher, launchers_of
from hpc_amp.schedulers import Scheduler, get_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Spec):
    """One run, ready to be rendered."""

    scheduler: Scheduler
    launcher: Launcher
    container: Container

    @property
    def step_launcher(self) -> str:
        """The launcher with which the scheduler itself starts processes on the nodes of a job;
        empty where it has none."""
        return self.scheduler.step_launcher

    @property
    def starts_agents(self) -> bool:
        """Whether the launcher starts one process on each node, which starts the node's ranks."""
        return self.launcher.starts_agents

    @property
    def grace(self) -> int:
        """Seconds between the scheduler's SIGTERM and its SIGKILL, as far as is known here."""
        given = self.job.resources.grace
        return parse_duration(given) if given is not None else self.scheduler.grace

    @property
    def whole_nodes(self) -> bool:
        """Whether its nodes are known to be its own: where they are given whole, or it says so."""
        if self.scheduler.whole_nodes or self.site.gpu_request == "none":
            return True
        directives = (*self.site.directives, *self.job.resources.directives)
        return any(re.search(r"\bexcl(host|usive)?\b", line) for line in directives)


def make_plan(loaded: LoadedJob, site: Site, run_dir: Path) -> Plan:
    """Choose scheduler, launcher and container for a job on a site.

    Paths in the job become absolute, relative to the working directory. Raises ConfigError where
    the parts do not fit together.
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
            f"launch.mpi {job.launch.mpi}: under {method} the ranks are no MPI world",
            where=loaded.where("launch.mpi"),
            hint="use launch.method srun, mpirun or mpiexec",
        )
    _check_entry(loaded, container, scheduler, launcher)
    _check_paths(loaded, job, run_dir, workdir, container)
    check_setup(loaded, site)
    default_python = "python3" if container.uses_image else sys.executable
    plan = Plan(
        job=job,
        site=site,
        scheduler=scheduler,
        launcher=launcher,
        fabric=fabric_of(job, site),
        remarks=remarks,
        expanded=expanded,
        container=container,
        run_dir=run_dir,
        workdir=run_dir / "code" if job.code is not None else workdir,
        python=_absolute_program(job.container.python or default_python, workdir),
        umask=_umask(),
        # Variables in paths are those of the submitting shell, also when the file is read again.
        overrides=(*loaded.overrides, *as_overrides(loaded.job, loaded.expanded)),
        submitted_from=workdir,
    )
    container.check(plan)
    return plan


def _umask() -> int:
    """This process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _refuse_step_in_step(loaded: LoadedJob, launcher: str) -> None:
    """A step has all cores of its tasks, so that another one inside would wait for ever (seen with
    srun of Slurm 22.05)."""
    found = launcher_in(loaded.job.run or [])
    if found is not None and found.name == launcher and "--overlap" not in found.arguments:
        raise loaded.error(
            "run",
            f"{launcher} inside a step of {launcher} waits for ever for the cores that this step "
            "has",
            "write launch: single: then the batch script itself starts the command",
        )


def _check_entry(
    loaded: LoadedJob, container: Container, scheduler: Scheduler, launcher: Launcher
) -> None:
    """Refuse a container that options of a step launcher enter where no such step is made."""
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
    """The same world on one node, with the resources of all."""
    request = job.resources
    resources = dataclasses.replace(
        request,
        nodes=1,
        ranks_per_node=job.world_size,
        gpus_per_node=request.nodes * request.gpus_per_node,
    )
    return dataclasses.replace(job, resources=resources)


def absolute_path(path: str, workdir: Path) -> str:
    """A path of a job file as absolute, and free of symbolic links."""
    return str((workdir / path).resolve())


def _absolute_program(program: str, workdir: Path) -> str:
    """A path as absolute; a bare name stays, to be found on PATH. The interpreter of a virtual
    environment is a symbolic link and only works as one."""
    if "/" not in program:
        return program
    return os.path.abspath(workdir / program)


def _absolute_paths(job: Job, workdir: Path, runtime: Container) -> Job:
    def absolute(path: str) -> str:
        return absolute_path(path, workdir)

    def absolute_bind(bind: str) -> str:
        source, colon, rest = bind.partition(":")
        # Links stay: `/scratch` shall be there inside under this name, wherever it leads.
        source = os.path.abspath(workdir / source) if source else ""
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
    """Refuse paths that cannot be carried all the way: search paths split at `:`, no scheduler
    takes a control character, and scripts and job.json are UTF-8."""
    for what, path in (("the run directory", run_dir), ("the working directory", workdir)):
        text = str(path)
        if any(
            ord(letter) < 32 or letter in "\x7f:" or "\ud800" <= letter <= "\udfff"
            for letter in text
        ):
            raise ConfigError(
                f"{what} {text!r} has a colon, a control character or a byte that is not UTF-8",
                hint="search paths and mounts cannot carry it; work in another folder",
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
    """What keeps a bind from working, and what to do; empty where nothing does."""
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
    if not os.path.exists(bind.source):
        return f"{bind.source} does not exist", (
            "a missing source stops the container before anything runs"
        )
    return "", ""
