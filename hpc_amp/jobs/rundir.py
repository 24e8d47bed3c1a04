"""Create and find run directories.

runs/<name>/<UTC time>-<4 letters>/   and   runs/<name>/latest, a file with the newest id
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_amp import __version__
from hpc_amp.config.schema import SCHEMA_VERSION, Job, to_plain
from hpc_amp.errors import FULL_DISK, UsageError, to_type
from hpc_amp.jobs.clusters import refuse_other_cluster
from hpc_amp.jobs.places import (
    all_runs,
    find_run,
    is_copy,
    newest_run,
    origin,
    same_folder,
    write_latest,
)
from hpc_amp.jobs.plan import Plan
from hpc_amp.tasks.registry import TaskError, job_from_plain

__all__ = ["all_runs", "find_run", "is_copy", "newest_run", "origin", "same_folder", "write_latest"]


def new_run_id() -> str:
    """A new run id: the time in UTC and four random letters, such as `20261127-223455-kqzf`. Run
    ids sort by time."""
    letters = "".join(chr(ord("a") + byte % 26) for byte in os.urandom(4))
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{letters}"


def check_run_id(run_id: str) -> str:
    """Return a run id that the user chose. Raises UsageError if it does not have the form of
    `new_run_id`."""
    if not re.fullmatch(r"\d{8}-\d{6}-[a-z]{4}", run_id):
        raise UsageError(f"{run_id!r} is not a run id", hint="use the form 20261127-223455-kqzf")
    return run_id


def create(plan: Plan, script: str, config_text: str) -> None:
    """Create the run directory of `plan` with everything that the job needs: the configuration,
    the script, and a copy of the code. `config_text` is the job file as given. Raises UsageError if
    the directory exists or cannot be written; what was written is removed then."""
    run_dir = plan.run_dir
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
    except FileExistsError:
        raise UsageError(
            f"{run_dir} exists already", hint="every run has a directory of its own"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the run directory {run_dir} cannot be created: {why_not_written(error)}",
            hint="name a folder that you can write: runs_dir=FOLDER",
        ) from None
    try:
        _fill(plan, script, config_text)
    except BaseException as error:
        discard(run_dir)
        if isinstance(error, OSError):
            why = why_not_written(error)
            full = any(os.strerror(number) in why for number in FULL_DISK)
            raise UsageError(
                f"the run directory {run_dir} cannot be written: {why}",
                hint="free some space, or name another folder: runs_dir=FOLDER" if full else None,
            ) from None
        raise


def discard(run_dir: Path) -> None:
    """Remove a run that was not submitted, and the folder above it if that is then empty."""
    import shutil  # only after a failure

    shutil.rmtree(run_dir, ignore_errors=True)
    write_latest(run_dir.parent)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()


def why_not_written(error: OSError) -> str:
    """The text of an error, without its number. `shutil.copytree` collects its errors in one, as
    tuples of source, destination and reason; of these, the first reason."""
    import shutil  # only after a failure

    first = error.args[0] if isinstance(error, shutil.Error) else None
    text = str(first[0][2] if isinstance(first, list) else error)
    return re.sub(r"^\[Errno \d+\] ", "", text)


def _fill(plan: Plan, script: str, config_text: str) -> None:
    from hpc_amp.jobs.code import copy_code
    from hpc_amp.jobs.git import record_code_state
    from hpc_amp.jobs.shared_code import link_package

    run_dir = plan.run_dir
    for folder in ("logs", "attempts"):
        (run_dir / folder).mkdir()
    (run_dir / "config.yaml").write_text(config_text)
    write_resolved(plan, run_dir)
    launch = run_dir / "launch.sh"
    launch.write_text(script)
    launch.chmod(0o755)
    link_package(run_dir, plan)
    if plan.job.code is not None:
        copy_code(Path(plan.job.code), run_dir, run_dir.parents[1])
    record_code_state(plan, run_dir, run_dir.parents[1])


def write_resolved(plan: Plan, folder: Path) -> None:
    """Write `job.json`, from which the job side reads its settings. Raises OSError."""
    (folder / "job.json").write_text(json.dumps(resolved(plan), indent=1) + "\n")


def resolved(plan: Plan) -> dict[str, Any]:
    """The content of `job.json`: the job with all defaults, and the paths of the run. The
    environment of fabric and site is merged beneath the job's `container.env`, because in the
    container it has to override the image's."""
    job = to_plain(plan.job)
    for key in plan.job.train.UNUSED if plan.job.train is not None else ():
        del job["train"][key]
    job["container"]["env"] = {**plan.fabric_env, **plan.site.env, **job["container"]["env"]}
    return {
        "schema": SCHEMA_VERSION,
        "hpc_amp": __version__,
        "scheduler": plan.scheduler.name,
        "launcher": plan.launcher.name,
        "site": plan.site.name,
        "run_dir": str(plan.run_dir),
        "overrides": list(plan.overrides),
        "origins": dict(plan.origins),
        "submitted_from": str(plan.submitted_from),
        "workdir": str(plan.workdir),
        "python": plan.python,
        "host_mpi": to_plain(plan.site.host_mpi),
        "gpu_order": plan.site.gpu_order,
        "whole_nodes": plan.whole_nodes,
        "binds": plan.binds if plan.container.uses_image else [],
        "job": job,
    }


def read_resolved(run_dir: Path) -> dict[str, Any]:
    """Read `job.json` of a run. Raises UsageError if it is missing or damaged."""
    path = run_dir / "job.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("job"), dict):
        raise UsageError(f"{path} is not the description of a run")
    return content


def job_of(run_dir: Path, resolved: Mapping[str, Any]) -> Job:
    """The job in the `job.json` of a run. Keys that are newer than the file get their defaults.
    Raises UsageError if the file has keys that this version, or the task in the run's `code`, does
    not have."""
    plain = resolved["job"]
    code = run_dir / "code" if plain.get("code") is not None else None
    try:
        return job_from_plain(plain, code)
    except TypeError as error:
        raise UsageError(f"{run_dir}/job.json is not of this version: {error}") from None
    except TaskError as error:
        raise UsageError(f"{run_dir}: {error.message}", hint=error.hint) from None


@contextlib.contextmanager
def working_in(folder: str, what: str) -> Iterator[None]:
    """Change the working directory for the duration of the block, to the folder from which the
    relative paths of a job are resolved. `what` says what was done there, such as `the run was
    submitted`, for errors. Raises UsageError if the folder does not exist any more."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"{what} in {folder}: {error.strerror}",
            hint="the relative paths in its job start from there",
        ) from None
    try:
        yield
    finally:
        os.chdir(before)


def refuse_elsewhere(run_dir: Path) -> None:
    """Raise UsageError if a run is not in the folder in which it was submitted, because a command
    on it would affect that folder, or if its job belongs to another cluster."""
    refuse_copy(run_dir, origin(run_dir, read_resolved(run_dir)), can_adopt=True)
    refuse_other_cluster(run_dir)


def refuse_copy(folder: Path, recorded: Path | None, *, can_adopt: bool = False) -> None:
    """Raise UsageError if `recorded` is not None. It is the `origin` of the run or campaign in
    `folder`. `can_adopt`: `hpc-amp resume --here` can continue it in `folder`."""
    if recorded is None:
        return
    here = f"{to_type('resume', '--here', folder)} continues it in this folder"
    if is_copy(recorded):
        ways = f"; {here}, and hpc-amp submit starts it anew" if can_adopt else ", or start anew"
        raise UsageError(
            f"{folder} is a copy of {recorded}, and its scripts and jobs are those of the original",
            hint=f"name the original{ways}",
        )
    ways = f"{here}; or" if can_adopt else "move it back, or"
    raise UsageError(
        f"{folder} was {recorded} when it was submitted, and its scripts would look for everything "
        "there",
        hint=f"{ways} let the old path lead to it: {_link(folder, recorded)}",
    )


def refuse_without_links(run_dir: Path) -> None:
    """Raise UsageError for a copy of a campaign's point in which the link to the campaign's job
    file leads nowhere."""
    path = run_dir / "config.yaml"
    if path.is_symlink() and not path.exists():
        raise UsageError(
            f"{path} is a link that leads nowhere: only a part of the run was copied",
            hint="copy the original once more, with cp -aL",
        )


def _link(folder: Path, recorded: Path) -> str:
    """The command that lets the path `recorded` lead to `folder`. If a folder above them was
    renamed, this is the one that is linked."""
    while recorded.name == folder.name and not recorded.parent.exists():
        folder, recorded = folder.parent, recorded.parent
    link = f"ln -s {shlex.quote(str(folder))} {shlex.quote(str(recorded))}"
    if recorded.parent.exists():
        return link
    return f"mkdir -p {shlex.quote(str(recorded.parent))} && {link}"


def submission_folder(run_dir: Path, resolved: Mapping[str, Any]) -> str:
    """The folder from which the relative paths of a run's job are resolved. If it does not exist
    any more because it was renamed with the run in it, its present path."""
    recorded, before = Path(resolved["submitted_from"]), Path(resolved["run_dir"])
    if recorded.exists() or not before.is_relative_to(recorded):
        return str(recorded)
    inside = before.relative_to(recorded)
    above = run_dir.resolve().parents[len(inside.parts) - 1]
    return str(above if above / inside == run_dir.resolve() else recorded)
