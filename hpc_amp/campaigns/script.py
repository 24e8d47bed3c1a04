"""The script of one job that makes several runs, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.shell import comment, quote, templates, verbatim


@dataclass(frozen=True, slots=True)
class RunInTurn:
    """One of the runs. Its run directory has to exist when the job starts."""

    group: str
    """Where a run fails, no other of its group is made."""
    run_dir: Path
    nodes: int | None = None
    """It gets so many of the job's nodes, the first ones; None for all of them."""


def render_campaign(
    plan: Plan,
    folder: Path,
    runs: Sequence[RunInTurn],
    *,
    what: str,
    group: str,
    limited: bool = False,
    keep_checkpoints: bool = True,
) -> str:
    """The script, which lies in `folder`, for the resources of `plan`. `what` says what it is, and
    `group` what the runs of a group have in common. `limited`: a run that seems to be too long for
    the time that is left is not started."""
    plan = dataclasses.replace(plan, run_dir=folder)
    has_limit = limited and plan.scheduler.limits
    context = {
        "marker": verbatim(plan.scheduler.marker),
        "directives": [verbatim(line) for line in plan.scheduler.directives(plan)],
        "name_comment": comment(plan.job.name),
        "what": comment(what),
        "version": verbatim(plan.version),
        "folder": quote(str(folder)),
        "run_dir": quote(str(runs[0].run_dir)),
        "scheduler": verbatim(plan.scheduler.name),
        "tasks_per_node": plan.tasks_per_node,
        "limit": plan.walltime - plan.stop_margin if has_limit else verbatim("none"),
        "group": quote(group),
        "checkpoints": verbatim("keep" if keep_checkpoints else "drop"),
        "runs": [
            (quote(run.group), run.nodes or verbatim("all"), quote(str(run.run_dir)))
            for run in runs
        ],
    }
    return templates("jobs").get_template("campaign.sh.j2").render(context)
