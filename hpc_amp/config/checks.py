"""Checks that need more than one key: keys of a job against each other, against the site, and
against files. `doctor` makes the checks that depend on the state of a machine.

Relative paths are relative to the current working directory, as everywhere in a job file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpc_amp.config.bind import Bind, parse_bind
from hpc_amp.config.fabric import RESERVED, find_fabric
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.paths import missing_path, paths_in
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.site import SYSTEM_LIBRARIES, HostMpi, Site
from hpc_amp.config.tree import MappingNode
from hpc_amp.config.units import parse_duration, parse_step_interval
from hpc_amp.containers import CONTAINERS, container_of
from hpc_amp.errors import ConfigError, InputError, KeyProblem, UsageError
from hpc_amp.jobs.places import follow_latest
from hpc_amp.launchers import get_launcher, launchers_of
from hpc_amp.schedulers import get_scheduler
from hpc_amp.trackers.registry import TRACKERS

_PLAIN = r"[\w./:=+@%-]+|\.\.\."
# Programs of an image load their libraries from these folders. A bind of the host's folder hides
# the image's, and no container runtime refuses such a bind.
_LOADED_FROM = {
    *("/", "/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64"),
}
_SITE_KEYS = ("gpu_type", "chunk")
"""Keys of a site that only some schedulers use (`Scheduler.site_keys`)."""


def check_site(site: Site, tree: MappingNode) -> None:
    """Check the keys of a site against each other and against what its scheduler supports.

    `tree` is the tree that the site was built from; errors take the line of a key from it. Raises
    ConfigError for the first problem.
    """

    def error(key: str, message: str, hint: str) -> ConfigError:
        return ConfigError(f"{key}: {message}", where=tree.place(key), hint=hint)

    scheduler = get_scheduler(site.scheduler)
    requests = ("auto", *scheduler.gpu_requests, "none")
    if site.gpu_request not in requests:
        raise error(
            "gpu_request",
            f"{scheduler.title} does not know {site.gpu_request}",
            f"use one of: {', '.join(requests)}",
        )
    for key in _SITE_KEYS:
        if getattr(site, key) and key not in scheduler.site_keys:
            instead = scheduler.instead_of_key.get(key, "use directives")
            raise error(key, f"{scheduler.title} does not use it", instead)
    for name, value in site.options.items():
        if name not in scheduler.site_options:
            known = ", ".join(scheduler.site_options)
            instead = f"known are: {known}" if known else "leave it out: it has none"
            raise error("options", f"{scheduler.title} has no option {name}", instead)
        try:
            scheduler.site_options[name](value)
        except ValueError as problem:
            raise error("options", f"{name}: {problem}", "see docs/sites.md") from None
    if site.launcher != "auto" and not scheduler.works_with(get_launcher(site.launcher)):
        raise error(
            "launcher",
            f"{site.launcher} does not work with {scheduler.title}",
            f"use one of: auto, {', '.join(launchers_of(scheduler))}",
        )
    for name in site.env:
        if name in scheduler.own_variables:
            meaning = scheduler.own_variables[name]
            raise error(f"env.{name}", "hpc-amp sets it itself", f"leave it out: {meaning}")
    if site.fabric not in (None, "none"):
        find_fabric(site.fabric, where=tree.place("fabric"))
    for key, binds in (("bind", site.bind), ("host_mpi.bind", site.host_mpi.bind)):
        for bind in binds:
            hidden = _hides(bind)
            if hidden:
                raise error(key, *hidden)
            source, inside = _ends(bind)
            if source in SYSTEM_LIBRARIES and inside in site.host_mpi.libraries:
                raise error(
                    "host_mpi.libraries",
                    f"{inside} is the host's {source}, with its C library, which the image's "
                    "programs would load",
                    "bind only the libraries that are missing, into a folder of their own",
                )


def check_job(loaded: LoadedJob, site: Site | None = None) -> None:
    """Check the keys of a job against each other, the files that they name, and, if `site` is
    given, whether the site supports the job. Raises ConfigError for the first problem."""
    _check_launch(loaded, loaded.job)
    _check_run(loaded, loaded.job)
    if site is not None:
        _check_on_site(loaded, loaded.job, site)
    _check_container(loaded, loaded.job, site)
    _check_code(loaded, loaded.job)
    if loaded.job.train:
        _check_task(loaded, loaded.job.train)
        _check_trackers(loaded, loaded.job.train)
        _check_batch(loaded, loaded.job, loaded.job.train)
        _check_training(loaded, loaded.job, loaded.job.train)
        _check_weights(loaded, loaded.job.train)


def _check_launch(loaded: LoadedJob, job: Job) -> None:
    margin, walltime = job.resources.stop_margin, job.resources.walltime
    if parse_duration(margin) >= parse_duration(walltime):
        if loaded.tree.has("job.stop_margin"):
            raise loaded.error(
                "job.stop_margin",
                f"{margin} leaves nothing of the walltime {walltime}",
                "make it smaller, or the walltime longer",
            )
        raise loaded.error(
            "job.walltime",
            f"nothing of {walltime} is left: job.stop_margin is {margin}",
            "make it longer, or job.stop_margin smaller",
        )
    if job.launch.method == "single" and job.world_size > 1:
        raise loaded.error(
            "launch.method",
            f"single starts one process, but the job has {job.world_size} ranks "
            f"({job.resources.nodes} nodes x {job.ranks_per_node})",
            "use auto, or set job.nodes=1 and job.ranks_per_node=1",
        )
    fabric = job.launch.fabric
    if fabric not in RESERVED:
        find_fabric(fabric, where=loaded.where("launch.fabric"), key="launch.fabric")


def _check_run(loaded: LoadedJob, job: Job) -> None:
    """Refuse a launcher in `run`: it would start further ranks in each rank of the job."""
    if job.run is None or job.world_size == 1:
        return
    from hpc_amp.config.command import launcher_in  # only for own programs

    launcher = launcher_in(job.run)
    if launcher is None:
        return
    program = launcher.program or ["python", "train.py", "..."]
    shown = [word if re.fullmatch(_PLAIN, word) else json.dumps(word) for word in program]
    if len(shown) > 6:
        shown = [*shown[:5], "..."]
    hint = f"write the program alone, run: [{', '.join(shown)}], which hpc-amp starts on every rank"
    if launcher.is_mpi:
        hint += " (with launch.mpi where it uses MPI)"
    if job.resources.nodes == 1:
        hint += f"; or set job.ranks_per_node: 1, so that {launcher.name} alone starts ranks"
    raise loaded.error(
        "run",
        f"{launcher.name} starts ranks itself, and the job would start it {job.world_size} times: "
        f"{job.world_size} separate worlds",
        hint,
    )


def _check_on_site(loaded: LoadedJob, job: Job, site: Site) -> None:
    if job.launch.mpi == "bind" and site.host_mpi == HostMpi():
        raise loaded.error(
            "launch.mpi",
            f"the site {site.name} does not say where the host's MPI is",
            "write host_mpi into a site file of your own, or use hybrid",
        )
    scheduler = get_scheduler(site.scheduler)
    for name in job.container.env:
        if name in scheduler.own_variables:
            raise loaded.error(
                f"container.env.{name}",
                "hpc-amp sets it itself",
                f"leave it out: {scheduler.own_variables[name]}",
            )
    can_be_exclusive = scheduler.whole_nodes or scheduler.exclusive_directive(site)
    if job.resources.exclusive and not can_be_exclusive:
        raise loaded.error(
            "job.exclusive",
            f"it is not known how {scheduler.title} requests whole nodes on the site {site.name}",
            "leave it out, use job.directives, or see docs/sites.md for options of the site",
        )
    if job.resources.chain and not scheduler.chains:
        raise loaded.error(
            "job.chain",
            f"under {scheduler.title} a run goes on in the same job",
            "leave it out: only job.max_restarts applies",
        )


def _check_container(loaded: LoadedJob, job: Job, site: Site | None) -> None:
    for bind in job.container.bind:
        hidden = _hides(bind)
        if hidden:
            raise loaded.error("container.bind", *hidden)
    name, image = container_of(job, site), job.container.image
    if image is None and job.container.runtime == "auto":
        return
    container = CONTAINERS.get(name)()
    if image is not None:
        try:
            container.check_image(image)
        except UsageError as error:
            raise loaded.error("container.image", error.message, error.hint) from None
    elif container.uses_image:
        raise loaded.error(
            "container.runtime",
            f"{name} needs an image, and container.image is null",
            f"set container.image to {container.image_forms}, or use runtime: none",
        )


def _hides(bind: str) -> tuple[str, str] | None:
    """Message and hint for a bind that hides a folder of the image's own libraries; None for any
    other bind."""
    source, inside = _ends(bind)
    if inside not in _LOADED_FROM and not re.fullmatch(r"(/usr)?/lib/\w+-linux-gnu", inside):
        return None
    name = f"/host{os.path.basename(inside)}"
    return (
        f"{bind} hides the image's own {inside}, which its programs are loaded from",
        f"bind it under another name: {source}:{name}",
    )


def _ends(bind: str) -> tuple[str, str]:
    """The normalized source and destination of a bind."""
    found = parse_bind(bind) or Bind(bind, bind)
    source, inside = map(os.path.normpath, (found.source, found.destination))
    return source, inside.replace("//", "/")


def _check_code(loaded: LoadedJob, job: Job) -> None:
    if job.code is None or follow_latest(Path(job.code)).is_dir():
        return
    if os.path.exists(job.code):
        raise loaded.error(
            "code", f"{job.code} is not a folder", "name the folder that holds your code"
        )
    raise loaded.error("code", *missing_path(job.code, "folder"))


def _check_task(loaded: LoadedJob, train: Train) -> None:
    """Refuse keys that the task does not use, which would have no effect, and those that do not fit
    together."""
    for key in train.UNUSED:
        if loaded.tree.has(f"train.{key}"):
            raise loaded.error(f"train.{key}", f"{train.task} does not use it", "remove it")
    try:
        train.check_keys()
    except KeyProblem as error:
        raise loaded.error(f"train.{error.key}", error.problem, error.hint) from None


def _check_trackers(loaded: LoadedJob, train: Train) -> None:
    for name in train.trackers:
        if name not in TRACKERS:
            raise loaded.error(
                "train.trackers",
                f"{name!r} is not one of {', '.join(TRACKERS.names())}",
                "install the package that adds it, here and in the image of the job",
            )


def _check_batch(loaded: LoadedJob, job: Job, train: Train) -> None:
    step = job.world_size * train.accumulate
    below = train.batch_size // step * step
    if below == train.batch_size:
        return
    parts = f"world size {job.world_size}"
    if train.accumulate > 1:
        parts += f" x accumulate {train.accumulate} = {step}"
    sizes = f"{below} or {below + step}" if below else f"{step}"
    raise loaded.error(
        "train.batch_size", f"{train.batch_size} does not divide by {parts}", f"use {sizes}"
    )


def _check_decay(loaded: LoadedJob, train: Train) -> None:
    schedule = train.schedule
    if schedule.decay_after is None:
        return
    where = "train.schedule.decay_after"
    if schedule.name not in ("cosine", "linear"):
        raise loaded.error(
            where, f"the schedule {schedule.name} has no decay", "write name: cosine or linear"
        )
    interval = parse_step_interval(schedule.decay_after)
    if interval.unit == "epochs" and interval.count >= train.epochs:
        raise loaded.error(
            where,
            f"the run ends after {train.epochs} epochs, before the rate falls",
            "write fewer epochs, or name: constant",
        )


def _check_training(loaded: LoadedJob, job: Job, train: Train) -> None:
    scale = train.precision
    if not scale.min_scale <= scale.init_scale <= scale.max_scale:
        raise loaded.error(
            "train.precision.init_scale",
            f"{scale.init_scale:g} is outside min_scale {scale.min_scale:g} to max_scale "
            f"{scale.max_scale:g}",
            "make min_scale <= init_scale <= max_scale",
        )
    milestones = train.schedule.milestones
    inside = all(0 <= milestone <= 1 for milestone in milestones)
    if not inside or sorted(set(milestones)) != milestones:
        raise loaded.error(
            "train.schedule.milestones",
            f"{milestones} are not ascending parts of the run",
            "write numbers from 0 to 1, such as [0.5, 0.75]",
        )
    _check_decay(loaded, train)
    optimizer = train.optimizer
    if optimizer.name == "sgd" and optimizer.nesterov and optimizer.momentum == 0:
        raise loaded.error(
            "train.optimizer.momentum",
            "Nesterov momentum needs a momentum above 0",
            "add nesterov: false",
        )
    if train.device == "cuda" and job.resources.gpus_per_node == 0:
        raise loaded.error(
            "train.device",
            "cuda needs GPUs, but job.gpus_per_node is 0",
            "use auto or cpu, or ask for GPUs",
        )
    _check_profile(loaded, job, train)


def _check_weights(loaded: LoadedJob, train: Train) -> None:
    for place, key, file in paths_in(train, "train"):
        if not key.is_first_weights:
            continue
        path = follow_latest(Path(file).expanduser())
        if not (os.path.isfile(path) or (key.may_be_folder and os.path.isdir(path))):
            kind = "file or folder" if key.may_be_folder else "file"
            raise loaded.error(place, *missing_path(str(path), kind))


def _check_profile(loaded: LoadedJob, job: Job, train: Train) -> None:
    ranks = train.profile.ranks if train.profile is not None else []
    missing = [rank for rank in ranks if rank >= job.world_size]
    if missing:
        raise loaded.error(
            "train.profile.ranks",
            f"there is no rank {missing[0]}: the job has {job.world_size}, counted from 0",
            "leave it out, or ask for more nodes",
        )


class DataFound(NamedTuple):
    """What a section of a task finds on this machine."""

    key: str
    """The section, such as `train.images`."""
    text: str
    usable: bool


def find_data(train: Train | None) -> Iterator[DataFound]:
    """What the sections of a task that have a method `examine` find on this machine, which may not
    be where the job runs."""
    for key, section in _sections(train, "train"):
        examine = getattr(section, "examine", None)
        if examine is not None:
            try:
                text = examine(train)
            except (InputError, ValueError, OSError) as error:
                yield DataFound(key, str(error), usable=False)
            else:
                if text is not None:
                    yield DataFound(key, text, usable=True)


def _sections(section: object, path: str) -> Iterator[tuple[str, object]]:
    if not dataclasses.is_dataclass(section):
        return
    yield path, section
    for field in dataclasses.fields(section):
        yield from _sections(getattr(section, field.name), f"{path}.{field.name}")
