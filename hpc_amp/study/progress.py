"""How far a study is: which of its runs are measured, under way, or still to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_amp.study.folder import Study
from hpc_amp.study.recipe import Measurement, Recipe, measurements
from hpc_amp.study.runs import StudyRun, read_runs


@dataclass(frozen=True, slots=True)
class Progress:
    """A measurement, and the run that makes it as it stands."""

    measurement: Measurement
    run: StudyRun

    @property
    def is_complete(self) -> bool:
        """Whether it has measured all its steps on all ranks: one that was ended early has left
        what it had."""
        return self.run.state == "measured" and self._status == "finished"

    @property
    def is_under_way(self) -> bool:
        """Whether it may still measure something, as far as is known. Without a job it cannot, once
        `unsettled.settle` has looked for one."""
        if self._status == "unknown":
            return self.job_id is not None
        return self._status in ("pending", "running")

    @property
    def _status(self) -> str:
        return self.run.status.state if self.run.status is not None else ""

    @property
    def job_id(self) -> str | None:
        """The job of its run, if that was submitted."""
        return self.run.status.job_id if self.run.status is not None else None

    @property
    def state(self) -> str:
        """One word for people. A run that shares a job may wait there for its turn."""
        if self.is_complete:
            return "measured"
        if self._status == "running" and self.run.status is not None:
            return "running" if self.run.status.attempt else "waiting"
        # One that has measured a part, and ended.
        return self.run.state if self.run.state != "measured" else self._status


def progress(study: Study, recipe: Recipe) -> list[Progress]:
    """All measurements in the order of their submission. The scheduler is asked once."""
    runs = {run.planned: run for run in read_runs(study, with_measured=True)}
    return [Progress(one, runs[one.first]) for one in measurements(study, recipe)]


def to_be_made(items: Sequence[Progress]) -> list[Measurement]:
    """What is neither complete nor under way: missing, failed, or ended too early."""
    return [one.measurement for one in items if not one.is_complete and not one.is_under_way]
