"""Writing a sweep, and handing it to the scheduler."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Collection, Sequence
from pathlib import Path

from hpc_amp.errors import HpcAmpError, SchedulerError, UnclearError, UsageError
from hpc_amp.jobs import rundir
from hpc_amp.schedulers import get_scheduler
from hpc_amp.signals import INTERRUPTING, uninterrupted
from hpc_amp.sweep.cut import ArrayPart, cut
from hpc_amp.sweep.folder import Sweep, write_description
from hpc_amp.sweep.plan import SweepPlan
from hpc_amp.sweep.record import read_submitted, record_queued, record_submitted
from hpc_amp.sweep.script import render_array
from hpc_amp.sweep.snapshot import write_snapshot


def describe(plan: SweepPlan, at_once: int | None) -> Sweep:
    """The sweep that `write` would write. Raises UsageError where its scheduler cannot bound how
    many points run at once."""
    check_bound(plan.plan.scheduler.name, at_once)
    groups = [group.described(_script_name(index)) for index, group in enumerate(plan.groups)]
    return Sweep(
        folder=plan.folder,
        name=plan.name,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        site=plan.plan.site.name,
        scheduler=plan.plan.scheduler.name,
        fixed=plan.space.fixed,
        keys=plan.space.keys,
        points=plan.space.points,
        groups=tuple(groups),
        at_once=at_once,
        own_code=plan.plan.job.code is not None,
    )


def check_bound(scheduler: str, at_once: int | None) -> None:
    """Raises UsageError where `at_once` is given and the scheduler takes no such bound."""
    if at_once is not None and not get_scheduler(scheduler).arrays().bounds:
        raise UsageError(
            f"--max-parallel: {scheduler} has no arrays to bound",
            hint="leave it out: the queue has a limit of its own",
        )


def _script_name(index: int) -> str:
    return "launch.sh" if index == 0 else f"launch-{index + 1}.sh"


def write(sweep: Sweep, plan: SweepPlan) -> None:
    """Make the sweep's folder with everything that its points need. Raises UsageError where it
    cannot be written; nothing stays behind then."""
    scripts = [group.launch_script() for group in plan.groups]
    try:
        sweep.folder.mkdir(parents=True)
        try:
            (sweep.folder / "logs").mkdir()
            (sweep.folder / "config.yaml").write_text(plan.config_text)
            (sweep.folder / "jobs.jsonl").write_text("".join(f"{job}\n" for job in plan.jobs))
            for group, script in zip(sweep.groups, scripts, strict=True):
                (sweep.folder / group.script).write_text(script)
            write_snapshot(sweep.folder, [group.plan for group in plan.groups])
            write_description(sweep)
        except BaseException:
            rundir.discard(sweep.folder)
            raise
    except OSError as error:
        raise UsageError(f"the sweep's folder cannot be written: {error}") from None


def parts_of(sweep: Sweep, wanted: Collection[int], at_once: int | None) -> list[ArrayPart]:
    """The arrays that a submission of the `wanted` points becomes."""
    arrays = get_scheduler(sweep.scheduler).arrays()
    numbers = [submitted.number for submitted in read_submitted(sweep)]
    return cut(
        sweep.groups,
        wanted,
        largest=arrays.largest(),
        first_number=max(numbers, default=0) + 1,
        at_once=at_once,
    )


def write_script(sweep: Sweep, part: ArrayPart) -> Path:
    """The script of a part, in the sweep's folder. Raises UsageError where it cannot be written."""
    script = sweep.folder / part.script_name
    try:
        script.write_text(render_array(sweep, part))
        script.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{script} cannot be written: {error.strerror}") from None
    return script


def submit(sweep: Sweep, parts: Sequence[ArrayPart]) -> list[str]:
    """Hand in the parts of a sweep; the ids of their jobs. Raises SchedulerError where one is
    refused; what was taken before goes on, and the sweep's record has it."""
    arrays = get_scheduler(sweep.scheduler).arrays()
    taken: list[str] = []
    for part in parts:
        script = write_script(sweep, part)
        job_ids: list[str] = []
        try:
            # A signal waits until what the scheduler has taken is on record: `continue` would
            # submit it once more.
            with uninterrupted():
                # Before there is a job: whatever ends this command, the sweep's name finds it.
                record_submitted(sweep, part)
                before = rundir.point_latest(sweep.folder)
                unclear = False
                try:
                    for job_id in arrays.submit(script, len(part.points)):
                        job_ids.append(job_id)
                        if signal.sigpending() & INTERRUPTING:
                            break  # where each point is a job of its own, the others may wait
                except UnclearError:
                    unclear = True  # without an end on record `unsettled.settle` looks for jobs
                    raise
                finally:
                    if not unclear:
                        record_queued(sweep, part, job_ids)
                    if not (job_ids or unclear):
                        rundir.restore_latest(sweep.folder, before)
        except UnclearError as error:
            raise UnclearError(
                f"{error.message}; whether the job is in the queue is not known",
                hint=f"hpc-amp sweep continue {sweep.folder} looks for it",
            ) from None
        except HpcAmpError as error:
            if not taken and not job_ids:
                raise
            raise SchedulerError(
                f"{error}; {len(taken) + len(job_ids)} jobs were submitted before",
                hint=f"hpc-amp sweep continue {sweep.folder} submits the rest",
            ) from None
        taken += job_ids
    return taken
