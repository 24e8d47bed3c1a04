"""Checks of one key against another, and against the files here, that need no fact of a machine.

Relative paths are relative to the current working directory, as everywhere in a job file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.units import parse_duration

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)


def check_job(loaded: LoadedJob) -> None:
    """Raises ConfigError for keys of a job that contradict each other or name missing files."""
    _check_launch(loaded, loaded.job)
    _check_container(loaded, loaded.job)
    _check_code(loaded, loaded.job)
    if loaded.job.train:
        _check_batch(loaded, loaded.job, loaded.job.train)
        _check_training(loaded, loaded.job, loaded.job.train)


def _check_launch(loaded: LoadedJob, job: Job) -> None:
    margin, walltime = parse_duration(job.job.stop_margin), parse_duration(job.job.walltime)
    if margin >= walltime:
        raise loaded.error(
            "job.stop_margin",
            f"{job.job.stop_margin} leaves nothing of the walltime {job.job.walltime}",
            "make it smaller, or the walltime longer",
        )
    if job.launch.method == "single" and job.world_size > 1:
        raise loaded.error(
            "launch.method",
            f"single starts one process, but the job has {job.world_size} ranks "
            f"({job.job.nodes} nodes x {job.ranks_per_node})",
            "use auto, or set job.nodes=1 and job.ranks_per_node=1",
        )


def _check_container(loaded: LoadedJob, job: Job) -> None:
    runtime, image = job.container.runtime, job.container.image
    if image is None:
        if runtime in ("apptainer", "singularity"):
            raise loaded.error(
                "container.runtime",
                f"{runtime} needs an image, and container.image is null",
                "name a .sif file, or use runtime: none",
            )
        return
    if _URI.fullmatch(image):
        file = re.sub(r"[^A-Za-z0-9._-]+", "-", image.rstrip("/").rpartition("/")[2]) or "image"
        tool = runtime if runtime in ("apptainer", "singularity") else "apptainer"
        raise loaded.error(
            "container.image",
            f"{image} is a URI, which every node would download again",
            f"pull it once with `{tool} pull {file}.sif {image}` and write image: {file}.sif",
        )
    if runtime == "none":
        return  # a quick way to try a job without its container
    if not os.path.exists(image):
        raise loaded.error("container.image", *_missing(image, "file or folder"))
    if not os.access(image, os.R_OK):
        raise loaded.error(
            "container.image", f"{image} cannot be read", "check its permissions with ls -l"
        )


def _check_code(loaded: LoadedJob, job: Job) -> None:
    if job.code is None or os.path.isdir(job.code):
        return
    if os.path.exists(job.code):
        raise loaded.error(
            "code", f"{job.code} is not a folder", "name the folder that holds your code"
        )
    raise loaded.error("code", *_missing(job.code, "folder"))


def _missing(path: str, kind: str) -> tuple[str, str]:
    """Message and hint for a path that does not exist."""
    if path.startswith("~"):
        return f"{path}: ~ is not expanded", f"write {os.path.expanduser(path)}"
    if "$" in path:
        return f"{path}: variables are not expanded", "write the path out"
    hint = "check the path" if os.path.isabs(path) else f"it is looked up in {Path.cwd()}"
    return f"there is no {kind} {path}", hint


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
    optimizer = train.optimizer
    if optimizer.name == "sgd" and optimizer.nesterov and optimizer.momentum == 0:
        raise loaded.error(
            "train.optimizer.momentum",
            "0 leaves Nesterov's form nothing to work on",
            "add nesterov: false",
        )
    if train.device == "cuda" and job.job.gpus_per_node == 0:
        raise loaded.error(
            "train.device",
            "cuda needs GPUs, but job.gpus_per_node is 0",
            "use auto or cpu, or ask for GPUs",
        )
