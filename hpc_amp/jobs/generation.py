"""The job that makes images with the trained generator of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir


def write_job_file(run_dir: Path, options: Mapping[str, Path | str | None]) -> Path:
    """Write a job file below `run_dir` that runs `hpc_amp.train.generate` with `options`, and
    return its path. Options that are None are left out; paths are absolute, and their folders are
    bound into the container.

    The job has the site, the container and the resources of one node of the run. Raises UsageError
    where the run is not one of a task.
    """
    import yaml

    job = rundir.read_resolved(run_dir)["job"]
    if job.get("train") is None:
        raise UsageError(f"{run_dir} trains no task of hpc-amp: it has no generator")
    run_dir = run_dir.resolve()
    given = {name: value for name, value in options.items() if value is not None}
    words = [word for name, value in given.items() for word in (name, str(value))]
    made: dict[str, Any] = {
        "name": f"{job['name'][:55]}-generate",
        "site": job["site"],
        "runs_dir": str(run_dir.parents[1]),
        "job": {**_set(job["job"]), "nodes": 1, "chain": 0},
        "container": _set(job["container"]),
        "launch": _set(job["launch"]),
        "run": ["python", "-m", "hpc_amp.train.generate", str(run_dir), *words],
    }
    if made["container"].get("image"):
        folders = [_folder(value) for value in given.values() if isinstance(value, Path)]
        made["container"]["bind"] = sorted(
            {*made["container"].get("bind", []), str(run_dir), *map(str, folders)}
        )
    if job.get("code") is not None:
        made["code"] = str(run_dir / "code")
    file = run_dir / "generate" / f"{rundir.new_run_id()}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(made, sort_keys=False, allow_unicode=True))
    return file


def _set(section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a section that have a value."""
    return {name: value for name, value in section.items() if value is not None}


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path
