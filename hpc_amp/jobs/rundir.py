"""Run directories on the submit side: making one, finding one again.

runs/<name>/<UTC time>-<4 letters>/   and   runs/<name>/latest -> the newest
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import shlex
import shutil
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_amp import __version__
from hpc_amp.config.schema import SCHEMA_VERSION, Job, to_plain
from hpc_amp.errors import UsageError
from hpc_amp.jobs.attempts import read_json
from hpc_amp.jobs.code import copy_code, copy_package
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.plan import Plan
from hpc_amp.tasks.registry import TaskError, job_from_plain


def new_run_id() -> str:
    """A name for a run that sorts by time: `20261127-223455-kqzf` (UTC)."""
    now = datetime.datetime.now(datetime.timezone.utc)
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    return f"{now:%Y%m%d-%H%M%S}-{letters}"


def check_run_id(run_id: str) -> str:
    """A run id that somebody chose. Raises UsageError unless it has the form of ours."""
    if not re.fullmatch(r"\d{8}-\d{6}-[a-z]{4}", run_id):
        raise UsageError(f"{run_id!r} is not a run id", hint="use the form 20261127-223455-kqzf")
    return run_id


def create(plan: Plan, script: str, config_text: str) -> None:
    """Make the run directory of `plan` with everything that the job needs: the frozen
    configuration, the script, and a copy of the code. Raises UsageError where it exists or cannot
    be written; nothing stays behind then."""
    run_dir = plan.run_dir
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
    except FileExistsError:
        raise UsageError(
            f"{run_dir} exists already", hint="every run has a directory of its own"
        ) from None
    except OSError as error:
        raise UsageError(f"the run directory cannot be made: {error}") from None
    try:
        _fill(plan, script, config_text)
    except BaseException as error:
        discard(run_dir)
        if isinstance(error, OSError):
            raise UsageError(f"the run directory cannot be filled: {_told(error)}") from None
        raise


def discard(run_dir: Path) -> None:
    """Remove a run that did not come about, and the folder of its name if it was the first."""
    shutil.rmtree(run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()


def _told(error: OSError) -> str:
    """An error as one line. Copying a tree collects its errors: (source, destination, reason)."""
    first = error.args[0] if isinstance(error, shutil.Error) else None
    return str(first[0][2]) if isinstance(first, list) else str(error)


def _fill(plan: Plan, script: str, config_text: str) -> None:
    run_dir = plan.run_dir
    for folder in ("logs", "attempts"):
        (run_dir / folder).mkdir()
    (run_dir / "config.yaml").write_text(config_text)
    write_resolved(plan, run_dir)
    launch = run_dir / "launch.sh"
    launch.write_text(script)
    launch.chmod(0o755)
    copy_package(run_dir, plan)
    if plan.job.code is not None:
        copy_code(Path(plan.job.code), run_dir, run_dir.parents[1])


def write_resolved(plan: Plan, folder: Path) -> None:
    """`job.json`, from which the job side has its settings."""
    (folder / "job.json").write_text(json.dumps(resolved(plan), indent=1) + "\n")


def resolved(plan: Plan) -> dict[str, Any]:
    """The content of `job.json`: the job with all defaults, and where things are. The
    environment of network and site is added beneath the job's: inside the container it has to win
    over the image's."""
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
    """`job.json` of a run. Raises UsageError where it is damaged."""
    path = run_dir / "job.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("job"), dict):
        raise UsageError(f"{path} is not the description of a run")
    return content


def job_of(run_dir: Path, resolved: Mapping[str, Any]) -> Job:
    """The job of the `job.json` of a run, with the defaults of keys that are newer than it. Raises
    UsageError where this version, or the task in the run's `code`, has not all its keys."""
    plain = resolved["job"]
    code = run_dir / "code" if plain.get("code") is not None else None
    try:
        return job_from_plain(plain, code)
    except TypeError as error:
        raise UsageError(f"{run_dir}/job.json is not of this version: {error}") from None
    except TaskError as error:
        raise UsageError(f"{run_dir}: {error.message}", hint=error.hint) from None


def origin(folder: Path, resolved: Mapping[str, Any]) -> Path | None:
    """Where a run was submitted, if that is another folder than this one: its script and its job
    are of that folder, whether this is a copy of it or the folder itself, moved. None where both
    are one, by whatever path. `resolved` is the folder's `job.json`."""
    recorded = resolved.get("run_dir")
    if not isinstance(recorded, str):
        return None
    return None if same_folder(folder, Path(recorded)) else Path(recorded)


@contextlib.contextmanager
def working_in(folder: str, what: str) -> Iterator[None]:
    """Be in the folder that paths in a job count from. `what` was done there, such as `the run was
    submitted`. Raises UsageError where it is gone."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"{what} in {folder}: {error.strerror}", hint="paths in its job count from there"
        ) from None
    try:
        yield
    finally:
        os.chdir(before)


def same_folder(one: Path, other: Path) -> bool:
    """Whether two paths are one folder: symbolic links and bind mounts lead to the same inode."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False  # one is gone, or this machine does not see it


def refuse_elsewhere(run_dir: Path) -> None:
    """Raises UsageError where a run is not in the folder that it was submitted in: what is done to
    it would happen there."""
    refuse_copy(run_dir, origin(run_dir, read_resolved(run_dir)))


def refuse_copy(folder: Path, recorded: Path | None) -> None:
    """Raises UsageError where a run, a study or a sweep has another `origin` than its folder."""
    if recorded is None:
        return
    if recorded.exists():
        raise UsageError(
            f"{folder} is a copy of {recorded}, and its scripts and jobs are those of the original",
            hint="name the original, or submit a new run (its first weights can be those of a "
            "checkpoint: see docs/reliability.md)",
        )
    link = f"ln -s {shlex.quote(str(folder))} {shlex.quote(str(recorded))}"
    raise UsageError(
        f"{folder} was {recorded} when it was submitted, and its scripts would look for everything "
        "there",
        hint=f"move it back, or let the old path lead to it: {link}",
    )


def point_latest(run_dir: Path) -> str | None:
    """Let `latest` point to a run. Where that is not possible it stays as it is: no job shall fail
    for it. Returns where it pointed."""
    try:
        before = os.readlink(run_dir.parent / "latest")
    except OSError:
        before = None
    _link_latest(run_dir, run_dir.name)
    return before


def restore_latest(run_dir: Path, before: str | None) -> None:
    """Let `latest` point where it did before a run that does not come about."""
    latest = run_dir.parent / "latest"
    with contextlib.suppress(OSError):
        if os.readlink(latest) != run_dir.name:
            return  # another run has come since then
        if before is None:
            latest.unlink()
        else:
            _link_latest(run_dir, before)


def _link_latest(run_dir: Path, target: str) -> None:
    """`latest` always points somewhere: the new link replaces the old one in one step."""
    temporary = run_dir.parent / f".latest-{run_dir.name}"
    with contextlib.suppress(OSError):
        temporary.symlink_to(target)
        os.replace(temporary, run_dir.parent / "latest")


def find_run(target: str, runs_dir: Path) -> Path:
    """The run directory that `target` means: a run directory, a run's name (its newest run), or a
    job id. Raises UsageError where there is none."""
    for folder in (Path(target), runs_dir / target / "latest", runs_dir / target):
        if os.path.isfile(folder / "job.json"):  # False, too, for names that no file can have
            return folder.resolve()
    copies = []
    for folder in all_runs(runs_dir):
        if any(event.get("job_id") == target for event in read_events(folder)):
            if origin(folder, read_json(folder / "job.json")) is None:
                return folder
            copies.append(folder)  # it has the original's events, but the job is the original's
    if copies:
        return copies[0]
    raise UsageError(
        f"there is no run {target!r}: neither a run directory, nor a name or job id in {runs_dir}",
        hint="`hpc-amp status` lists the runs; --runs-dir looks elsewhere",
    )


def all_runs(runs_dir: Path) -> list[Path]:
    """Every run directory below `runs_dir`, oldest first."""
    found = [path.parent.resolve() for path in runs_dir.glob("*/[0-9]*/job.json")]
    return sorted(found, key=lambda path: (path.name, path.parent.name))
