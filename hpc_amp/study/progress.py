"""How far a study is: which of its runs are measured, under way, or still to be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_amp.campaigns.ending import is_under_way
from hpc_amp.study.folder import Study
from hpc_amp.study.recipe import Measurement, measurements
from hpc_amp.study.runs import StudyRun, read_runs


@dataclass(frozen=True, slots=True)
class Progress:
    """A measurement, and the run that makes it as it stands."""

    measurement: Measurement
    run: StudyRun

    @property
    def is_complete(self) -> bool:
        """Whether it has measured all its steps on all ranks."""
        return self.run.state == "measured"

    @property
    def is_under_way(self) -> bool:
        """Whether it may still measure something."""
        return self.run.status is not None and is_under_way(self.run.status)

    @property
    def job_id(self) -> str | None:
        """The job of its run, if that was submitted."""
        return self.run.status.job_id if self.run.status is not None else None

    @property
    def state(self) -> str:
        """That of its run, in one word."""
        return self.run.state


def progress(study: Study) -> list[Progress]:
    """All measurements in the order of their submission. The scheduler is asked once."""
    runs = {run.planned: run for run in read_runs(study)}
    return [Progress(one, runs[one.first]) for one in measurements(study)]


def to_be_made(items: Sequence[Progress]) -> list[Measurement]:
    """What is neither complete nor under way: missing, failed, or ended too early."""
    return [one.measurement for one in items if not one.is_complete and not one.is_under_way]
