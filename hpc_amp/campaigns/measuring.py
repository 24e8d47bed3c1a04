"""The common part of the views that measure the time of steps: `scale` and `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.reported import read_reported
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.timing import read_run
from hpc_amp.campaigns.view import View
from hpc_amp.campaigns.words import count
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.site import Site
from hpc_amp.schedulers import get_scheduler

USUAL_STEPS = 100
"""The number of steps that a run of a task measures by default."""
_MANY = 999_999_999
# An interrupted run is made again from the start.
NO_RESTARTS = ("job.max_restarts=0", "job.chain=0", "restarts.on_failure=0")


class MeasuringView(View):
    """A view whose runs measure the time of their steps. A run is done when it has finished and all
    ranks have written their times. An interrupted run is made again from the start."""

    runs = "run"
    resumes = False
    done = "measured"

    def refine(self, campaign: Campaign, statuses: Sequence[PointStatus]) -> list[PointStatus]:
        """A finished run is `measured` if all ranks have written their times, `partial` if only
        some have, and `silent` if none has."""
        return [_with_timing(status, campaign.options) for status in statuses]


def _with_timing(status: PointStatus, options: Mapping[str, Any]) -> PointStatus:
    if status.state != "finished" or status.run is None:
        return status
    run_dir = Path(status.run.run_dir)
    if options.get("own_program"):
        timing, reason = read_reported(run_dir, options)
        return replace(
            status, state="silent" if reason else "measured", reason=reason, timing=timing
        )
    timing = read_run(run_dir)
    if timing.complete:
        return replace(status, state="measured", reason="", timing=timing)
    if timing.ranks:
        reason = f"{len(timing.ranks)} of {timing.world_size} ranks wrote their times"
        return replace(status, state="partial", reason=reason, timing=timing)
    reason = "; ".join(["it wrote no measurements", *timing.damaged[:1]])
    return replace(status, state="silent", reason=reason, timing=timing)


def whole_nodes(job: Job, site: Site) -> list[str]:
    """The override that requests whole nodes for a measurement, which other jobs would disturb.
    None if the job says itself whether it wants them, or the scheduler has no such request."""
    wanted = job.resources.exclusive is None
    if wanted and get_scheduler(site.scheduler).exclusive_directive(site):
        return ["job.exclusive=true"]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How each run measures. Either `steps` (how many) or `seconds` (for how long) is given, not
    both. They count after `warmup` steps. Runs of the user's own program may have neither: they end
    when the program ends, and all its steps count."""

    warmup: int
    steps: int | None
    seconds: float | None = None
    evaluate: Literal["never", "at the end", "as given"] = "never"
    checkpoints: bool = False
    """Whether a run saves checkpoints as the job says. If not, it saves only at its end."""

    def describe(self, *, own_program: bool) -> str:
        """The warm-up and the measured steps, as text."""
        warmup = f"{count(self.warmup, 'step')} of warm-up"
        if self.steps is not None:
            measured = count(self.steps, "step")
        elif self.seconds is not None:
            measured = f"about {self.seconds:g} s"
        else:
            measured = "all steps"
        if own_program:
            return f"{warmup}, then {measured} measured, as the program reports them"
        evaluates = "no evaluation" if self.evaluate == "never" else "evaluations"
        saves = "checkpoints as the job says" if self.checkpoints else "no checkpoint"
        return f"{warmup}, then {measured} measured, with {evaluates} and {saves}"

    def overrides(self, train: Train) -> list[str]:
        """The overrides that make a run of a job with this training a measurement."""
        total = _MANY if self.steps is None else self.warmup + self.steps
        seconds = "null" if self.seconds is None else self.seconds
        changes = [
            f"train.timing.warmup={self.warmup}",
            f"train.timing.seconds={seconds}",
            "train.profile=null",
            f"train.max_steps={total}",
            f"train.epochs={total}",
            f"train.log_every={min(total, 1000)}",
            *NO_RESTARTS,
        ]
        if self.steps is not None:
            changes.append(f"train.timing.steps={self.steps}")
        if train.schedule.decay_after is not None:
            changes.append("train.schedule.decay_after=null")  # it may be after the last step
        if self.evaluate == "never":
            changes.append("train.evaluate_every=0")
        elif self.evaluate == "at the end":
            changes.append(f"train.evaluate_every={total + 1}")
        if not self.checkpoints:
            changes += [
                f"train.checkpoint.every={_MANY}steps",
                "train.checkpoint.keep_best=0",
                "train.checkpoint.keep_every=null",
                "train.checkpoint.background=false",
            ]
        return changes
