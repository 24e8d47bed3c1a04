"""Change the settings of a run before it is resumed: `hpc-amp resume RUN KEY=VALUE...`.

The job is built again from the run's job file, the overrides of its submission, and the new
overrides. Then `job.json` and `launch.sh` are replaced, and `src` too if it differs from this
hpc-amp's. The previous files are kept in

    history/N/job.json, launch.sh    as they were before change N
    history/N/src                    `src` before the change, if it was replaced
    history/N/change.json            time, command, and the old and new values

This folder is created first, by one rename. The job is submitted last, and its event `submitted`
has the number of the change. A change without such an event is incomplete and is reverted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp import __version__
from hpc_amp.config.checks import check_job
from hpc_amp.config.keys import keys_of
from hpc_amp.config.load import LoadedJob
from hpc_amp.config.paths import with_paths
from hpc_amp.config.schema import Job, Train, job_class, to_plain
from hpc_amp.config.sites import load_for_site
from hpc_amp.config.values import Fixed
from hpc_amp.errors import UsageError
from hpc_amp.files import read_json, replacing
from hpc_amp.jobs import rundir
from hpc_amp.jobs.events import read_events
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.shared_code import link_package

_FACTS = ("hpc_amp", "site", "scheduler", "launcher", "python")
"""Entries of `job.json` besides the job whose changes are reported."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A key with its values before and after the change, as JSON values."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.key.startswith("container.env."):
            return f"{self.key} changed"  # the value may be a password
        return f"{self.key} {_shown(self.before)} -> {_shown(self.after)}"


def _shown(value: Any) -> str:
    plain = isinstance(value, str) and value.isprintable() and value not in ("", "null")
    return value if plain else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was checked, but not made yet."""

    plan: Plan
    script: str
    changed: tuple[Changed, ...]

    @property
    def keeps_job(self) -> bool:
        """Whether the change affects entries of `_FACTS` only, and no key of the job."""
        return all(one.key in _FACTS for one in self.changed)

    @property
    def only_moves(self) -> bool:
        """Whether the change affects, besides these entries, only the run's folder."""
        return all(one.key in (*_FACTS, "run_dir") for one in self.changed)


# ---- planning a change ---------------------------------------------------------------------------


def plan_change(run_dir: Path, overrides: Sequence[str], *, here: bool = False) -> Change:
    """Compute the change that `overrides` make to a run. Nothing on disk is changed. `here`: the
    run was copied or moved, and continues in its present folder.

    Raises ConfigError if a value is wrong or a key cannot change, and UsageError if the run does
    not record how it was submitted, is on another site, or is already past its new end.
    """
    resolved = rundir.read_resolved(run_dir)
    rundir.refuse_without_links(run_dir)
    before = rundir.job_of(run_dir, resolved)
    given = given_at_submission(run_dir, resolved)
    folder = rundir.submission_folder(run_dir, resolved)
    before = _with_folder(before, resolved["submitted_from"], folder)
    with rundir.working_in(folder, "the run was submitted"):
        code = run_dir / "code" if before.code is not None else None
        loaded, site = load_for_site(run_dir / "config.yaml", [*given, *overrides], code=code)
        if site.name != resolved["site"] and not any(o.startswith("site=") for o in overrides):
            raise UsageError(
                f"{run_dir} was submitted for the site {resolved['site']}, but this machine is one "
                f"of the site {site.name}",
                hint=f"add site={resolved['site']}, or site={site.name} to continue there",
            )
        check_job(loaded._replace(job=_without_what_was_read(loaded.job)), site)
        # The path of the submission: nodes may not have another path to the same folder.
        is_point = (run_dir.parents[1] / "campaign.json").exists()  # not in a folder of runs
        place = run_dir if here else Path(resolved["run_dir"])
        plan = make_plan(loaded, site, place, shares_code=not is_point)
    after = json.loads(json.dumps(rundir.resolved(plan)))
    changed = _changed_keys(before, loaded.job, after["job"])
    _refuse_fixed(changed, loaded)
    keys = (*_FACTS, "run_dir") if here else _FACTS
    facts = [Changed(key, resolved.get(key), after[key]) for key in keys]
    facts = [fact for fact in facts if fact.before != fact.after]
    _check_length(run_dir, plan.job.train)
    return Change(plan, render(plan), tuple([one for one, _ in changed] + facts))


def _with_folder(job: Job, old: str, new: str) -> Job:
    """The job after the folder of its submission was renamed: its paths in `old` are in `new`."""

    def renamed(path: str) -> str:
        return new + path.removeprefix(old) if path == old or path.startswith(f"{old}/") else path

    if old == new:
        return job
    container, train = job.container, job.train
    image = None if container.image is None else renamed(container.image)
    container = dataclasses.replace(container, image=image, bind=[*map(renamed, container.bind)])
    if train is not None:
        train = with_paths(train, lambda key, path: renamed(path))
    code = None if job.code is None else renamed(job.code)
    return dataclasses.replace(job, container=container, train=train, code=code)


def _without_what_was_read(job: Job) -> Job:
    """The job without the files that only the beginning of a run reads: they may not exist any
    more."""
    train = job.train
    if train is not None:
        train = with_paths(train, lambda key, path: None if key.is_first_weights else path)
    return dataclasses.replace(job, code=None, train=train)


def _changed_keys(
    before: Job, loaded: Job, after: Mapping[str, Any]
) -> list[tuple[Changed, Fixed | None]]:
    """The keys that differ, each with the reason why it cannot change, or None. If the task
    differs, only the key `train.task`."""
    plain: dict[str, Any] = json.loads(json.dumps(to_plain(before)))
    if before.train is not None and loaded.train is not None:
        if before.train.task != loaded.train.task:
            fixed = keys_of(Train)["task"].fixed
            return [(Changed("train.task", before.train.task, loaded.train.task), fixed)]
        schema = job_class(type(loaded.train))
    else:
        schema = Job
    return list(_differences(schema, plain, after, "", None))


def differences(
    run_dir: Path, plan: Plan, loaded: LoadedJob, overrides: Sequence[str]
) -> list[Changed]:
    """What differs between a run and the `plan` of its job as a new run, except for what
    `overrides` set. Empty if the run cannot be read."""
    try:
        resolved = rundir.read_resolved(run_dir)
        before = rundir.job_of(run_dir, resolved)
    except UsageError:
        return []
    before = _with_folder(before, resolved["submitted_from"], str(plan.submitted_from))
    after = json.loads(json.dumps(rundir.resolved(plan)))
    given = {override.partition("=")[0] for override in overrides}
    # The code is the run's copy, and a run of a campaign has a bind for the campaign's folder.
    given |= {"code", "container.bind"}
    facts = _FACTS if "site" not in given else ("hpc_amp",)
    changed = [Changed(key, resolved.get(key), after[key]) for key in facts]
    changed = [one for one in changed if one.before != one.after]
    changed += [one for one, _ in _changed_keys(before, loaded.job, after["job"])]
    return [one for one in changed if not any(f"{one.key}.".startswith(f"{k}.") for k in given)]


def given_at_submission(run_dir: Path, resolved: Mapping[str, Any]) -> list[str]:
    """The overrides with which a run was submitted. Raises UsageError if they are not recorded."""
    given = resolved.get("overrides")
    if not isinstance(given, list) or not isinstance(resolved.get("submitted_from"), str):
        raise UsageError(
            f"{run_dir} was submitted by an hpc-amp that did not record the overrides of its "
            "command line",
            hint="resume it without changes, or submit its job file again",
        )
    return given


def _differences(
    section: type, before: Mapping[str, Any], after: Mapping[str, Any], path: str, why: Fixed | None
) -> Iterator[tuple[Changed, Fixed | None]]:
    """Yield the differences between two sections, down to single keys and environment variables,
    each with the reason why it cannot change, or None. `why` is the reason of the section itself,
    which holds for all its keys."""
    for name, key in keys_of(section).items():
        if name not in after:
            continue  # the task does not use it
        one, other = before[name], after[name]
        where = f"{path}{name}"
        fixed = key.fixed or why
        if one == other:
            continue
        if key.is_section and one is not None and other is not None:
            yield from _differences(key.type, one, other, f"{where}.", fixed)
        elif isinstance(one, dict) and isinstance(other, dict) and not key.is_section:
            for entry in sorted({*one, *other}):
                if one.get(entry) != other.get(entry):
                    yield Changed(f"{where}.{entry}", one.get(entry), other.get(entry)), fixed
        else:
            yield Changed(where, one, other), fixed


def _refuse_fixed(changed: Sequence[tuple[Changed, Fixed | None]], loaded: LoadedJob) -> None:
    for one, fixed in changed:
        if one.key in ("train", "run") and None in (one.before, one.after):
            raise loaded.error(
                one.key,
                "a run cannot change between a built-in task and a program of your own",
                "submit a new run",
            )
        if fixed is None or (one.before in fixed.free and one.after in fixed.free):
            continue
        raise loaded.error(
            one.key,
            f"it stays {_shown(one.before)} and cannot become {_shown(one.after)}: {fixed.reason}",
            "submit a new run",
        )


def _check_length(run_dir: Path, train: Train | None) -> None:
    """Raise UsageError if the run has already made more steps than its new length."""
    done, total = steps_done(run_dir), total_steps(run_dir, train)
    if total is not None and done > total:
        raise UsageError(
            f"{run_dir} has made {done} steps already, and would end at step {total}",
            hint="train.epochs and train.max_steps count from the beginning of the run",
        )


def steps_done(run_dir: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    names = [path.name for path in (run_dir / "checkpoints").glob("step-*")]
    return max((int(name[5:]) for name in names if name[5:].isdecimal()), default=0)


def total_steps(run_dir: Path, train: Train | None) -> int | None:
    """The number of steps of the whole training. None if it is unknown: no attempt has recorded the
    steps of an epoch yet, or the run is a program of the user's own."""
    recorded = [
        read_json(path).get("steps_per_epoch")
        for path in (run_dir / "attempts").glob("*/progress.json")
    ]
    in_epoch = next((number for number in recorded if isinstance(number, int)), None)
    if train is None or in_epoch is None:
        return None
    steps = train.epochs * in_epoch
    return steps if train.max_steps is None else min(steps, train.max_steps)


# ---- making a change -----------------------------------------------------------------------------


def apply(run_dir: Path, change: Change, command: str) -> int:
    """Make a change on disk. Returns its number. `command` is the user's command line, for the
    history. The caller has to submit the job next, or to revert the change with `take_back`. Raises
    UsageError if a file cannot be written; the run is unchanged then."""
    stage = run_dir / f".change-{os.getpid()}"
    kept: Path | None = None
    try:
        stage.mkdir()
        rundir.write_resolved(change.plan, stage)
        (stage / "launch.sh").write_text(change.script)
        (stage / "launch.sh").chmod(0o755)
        link_package(stage, change.plan)
        kept = _keep(run_dir, stage, change, command)
        _replace(run_dir, stage, kept)
        _log(run_dir, f"{command}: {', '.join(map(str, change.changed))}; before: {kept}")
    except OSError as error:
        if kept is not None:
            _put_back(run_dir, kept)
        raise UsageError(f"{run_dir} cannot be changed: {rundir.why_not_written(error)}") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return int(kept.name)


def _keep(run_dir: Path, stage: Path, change: Change, command: str) -> Path:
    """Create the history folder of a change with copies of the present files. Raises OSError."""
    history = run_dir / "history"
    history.mkdir(exist_ok=True)
    aside = stage / "before"
    aside.mkdir()
    for name in ("job.json", "launch.sh"):
        shutil.copy2(run_dir / name, aside / name)
    facts = {
        "time": int(time.time()),
        "command": command,
        "hpc_amp": __version__,
        "changed": {one.key: [one.before, one.after] for one in change.changed},
    }
    (aside / "change.json").write_text(json.dumps(facts, indent=1) + "\n")
    kept = history / str(max(_numbers(run_dir), default=0) + 1)
    os.rename(aside, kept)
    return kept


def _replace(run_dir: Path, stage: Path, kept: Path) -> None:
    """Put the new files in place. Raises OSError."""
    source = run_dir / "src"
    # In a point of a sweep, `src` is a link to the sweep's folder, which this job's container does
    # not mount. Another link leads to the shared copy of the package.
    is_same = rundir.same_folder if source.is_symlink() else _same_code
    if not is_same(source, stage / "src"):
        if os.path.lexists(source):
            os.rename(source, kept / "src")
        os.rename(stage / "src", source)
    for name in ("launch.sh", "job.json"):
        os.replace(stage / name, run_dir / name)


def _same_code(one: Path, other: Path) -> bool:
    """Whether two folders contain the same files, except for `__pycache__`."""
    names = [_files(folder) for folder in (one, other)]
    if names[0] != names[1]:
        return False
    _, different, unread = filecmp.cmpfiles(one, other, names[0], shallow=False)
    return not different and not unread


def _files(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if "__pycache__" not in path.parts)


def take_back(run_dir: Path, number: int, reason: str) -> None:
    """Revert change `number`, whose job was not submitted. `reason` is written to the run's log.
    Raises UsageError if the files cannot be restored."""
    try:
        _put_back(run_dir, run_dir / "history" / str(number))
    except OSError as error:
        raise UsageError(
            f"change {number} of {run_dir} cannot be reverted: {error}",
            hint="the next `hpc-amp resume` tries again",
        ) from None
    with contextlib.suppress(OSError):  # the disk of the log may be full
        _log(run_dir, f"the change was reverted: {reason}")


def _put_back(run_dir: Path, kept: Path) -> None:
    """Revert a change, even if it was made or reverted only in part. Raises OSError."""
    if os.path.lexists(kept / "src"):
        source = run_dir / "src"
        if os.path.lexists(source):
            os.rename(source, kept / f"src-{os.getpid()}")
        os.rename(kept / "src", source)
    for name in ("launch.sh", "job.json"):
        with replacing(run_dir / name) as new:
            shutil.copy2(kept / name, new)
    # The folder is renamed before its removal: a folder that is removed in part could not be used
    # for another try.
    doomed = run_dir / f".change-{os.getpid()}-undone"
    os.rename(kept, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def mend(run_dir: Path) -> None:
    """Revert a change whose command was killed before it submitted the job. The run must not be
    pending or running. Raises UsageError if the files cannot be restored."""
    submitted = {
        event.get("change") for event in read_events(run_dir) if event["state"] == "submitted"
    }
    newest = max(_numbers(run_dir), default=0)
    if newest and newest not in submitted:
        take_back(run_dir, newest, "its command was killed before it submitted the job")


def _numbers(run_dir: Path) -> list[int]:
    folders = (run_dir / "history").glob("[0-9]*")
    return [int(folder.name) for folder in folders if folder.name.isdecimal()]


def _log(run_dir: Path, text: str) -> None:
    with (run_dir / "logs" / "job.log").open("a") as log:
        log.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")


# ---- reading the history -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Past:
    """A change that was made in the past."""

    number: int
    time: int
    """In seconds since the epoch."""
    command: str
    changed: tuple[Changed, ...]

    def to_plain(self) -> dict[str, Any]:
        """The change as a dictionary of JSON values."""
        return dataclasses.asdict(self)


def read_history(run_dir: Path) -> list[Past]:
    """The changes of a run, oldest first. Changes that cannot be read are left out."""
    found = []
    for number in sorted(_numbers(run_dir)):
        facts = read_json(run_dir / "history" / str(number) / "change.json")
        try:
            changed = tuple(Changed(key, *values) for key, values in facts["changed"].items())
            found.append(Past(number, int(facts["time"]), str(facts["command"]), changed))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found
