"""The job that makes images with the trained generator of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_amp.config.paths import literal
from hpc_amp.errors import UsageError
from hpc_amp.gan.inputs import check_options, find_files, sequences_of
from hpc_amp.gan.video.config import VideoTrain
from hpc_amp.jobs import rundir

Options = Mapping[str, Path | str | None]
"""Options of `hpc_amp.train.generate` by name, without `--`. None: it is not given. Paths are
absolute."""


def check_request(run_dir: Path, options: Options) -> None:
    """Check what can be checked before a job starts: that the run has a generator that uses these
    options, that there is such a checkpoint, that each input has its maps of instances and points,
    that images can be written to `output`, and that the order of frames is clear. Raises UsageError
    and InputError."""
    train = rundir.job_of(run_dir, rundir.read_resolved(run_dir)).train
    if train is None:
        raise UsageError(f"{run_dir} trains no task of hpc-amp: it has no generator")
    check_options(train, {name for name, value in options.items() if value is not None})
    _check_checkpoint(run_dir, str(options["checkpoint"]))
    others = {name: options.get(name) for name in ("style", "instances", "points")}
    files, _ = find_files(
        Path(str(options["input"])),
        Path(str(options["output"])),
        **{name: Path(place) for name, place in others.items() if place is not None},
    )
    if isinstance(train, VideoTrain):
        sequences_of(files)


def _check_checkpoint(run_dir: Path, wanted: str) -> None:
    names = (path.name for path in (run_dir / "checkpoints").glob("step-*"))
    steps = sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))
    if not steps:
        raise UsageError(
            f"{run_dir} has no checkpoint yet", hint="see hpc-amp status, or wait for the first one"
        )
    if wanted in ("newest", "best"):
        return
    if not wanted.isdecimal():
        raise UsageError(f"--checkpoint {wanted}: it is newest, best or a step")
    if int(wanted) not in steps:
        known = ", ".join(map(str, steps))
        raise UsageError(
            f"{run_dir} has no checkpoint of step {wanted}", hint=f"it has those of {known}"
        )


def write_job_file(run_dir: Path, options: Options) -> Path:
    """Write a job file below `run_dir` that runs `hpc_amp.train.generate` with `options`, and
    return its path. The folders of paths are bound into the container.

    The job has the site, the container and the resources of one node of the run. Raises UsageError
    where the folder of the run cannot be written.
    """
    import yaml

    resolved = rundir.read_resolved(run_dir)
    job, submitted_from = resolved["job"], Path(resolved.get("submitted_from", ""))
    run_dir = run_dir.resolve()
    given = {name: value for name, value in options.items() if value is not None}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    made: dict[str, Any] = {
        "name": f"{job['name'][:55]}-generate",
        "site": _from(submitted_from, job["site"]),
        # A copy of a run may lie anywhere.
        "runs_dir": str(
            run_dir.parents[1] if run_dir.parent.name == job["name"] else run_dir / "generate"
        ),
        "job": {**_set(job["job"]), "nodes": 1, "chain": 0},
        "container": _set(job["container"]),
        "launch": _set(job["launch"]),
        "run": ["python", "-m", "hpc_amp.train.generate", str(run_dir), *words],
    }
    if made["container"].get("image"):
        made["container"]["image"] = _from(submitted_from, job["container"]["image"])
        paths = [value for value in given.values() if isinstance(value, Path)]
        folders = [path.parent if path.is_file() else path for path in paths]
        made["container"]["bind"] = sorted(
            {*made["container"].get("bind", []), str(run_dir), *map(str, folders)}
        )
    if job.get("code") is not None:
        made["code"] = str(run_dir / "code")
    container = made["container"]
    keys = [(made, name) for name in ("site", "runs_dir", "code")]
    for section, name in (*keys, (container, "image"), (container, "python")):
        if section.get(name):
            section[name] = literal(section[name])
    container["bind"] = [*map(literal, container.get("bind", []))]
    file = run_dir / "generate" / f"{rundir.new_run_id()}.yaml"
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(made, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    return file


def _set(section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section that have a value."""
    return {name: value for name, value in section.items() if value is not None}


def _from(folder: Path, name: str) -> str:
    """The path of a file of the job, which is relative to `folder`; any other name as it is."""
    path = folder / name
    return str(path) if path.is_file() else name
