"""The analysis of a study: everything that its report contains, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from hpc_amp.study.caveats import Caveat, caveats_of
from hpc_amp.study.curve import Curve, make_curve
from hpc_amp.study.folder import KINDS, Study
from hpc_amp.study.points import measure_point
from hpc_amp.study.runs import StudyRun, distinct, read_runs


@dataclass(frozen=True, slots=True)
class Analysis:
    """A study and the results of its runs. `curves` has a curve for each kind with a point."""

    study: Study
    runs: tuple[StudyRun, ...]
    curves: tuple[Curve, ...]
    caveats: tuple[Caveat, ...]

    @property
    def measured(self) -> list[StudyRun]:
        """Runs with measurements of at least one rank."""
        return [run for run in self.runs if run.ranks]

    @property
    def unmeasured(self) -> list[StudyRun]:
        """Runs without measurements of all ranks."""
        return [run for run in self.runs if run.state != "measured"]

    def facts(self, key: str) -> list[str | int]:
        """The different values of a fact that ranks may have written besides their times, such as
        `model`, `parameters` or `environment.cuda`, over all ranks."""
        section, _, name = key.rpartition(".")
        found: set[str | int] = set()
        for run in self.measured:
            for rank in run.ranks:
                facts = rank.facts.get(section) if section else rank.facts
                value = facts.get(name) if isinstance(facts, Mapping) else None
                if isinstance(value, (str, int)):
                    found.add(value)
        return sorted(found, key=str)

    def values(self, key: str) -> list[str]:
        """The different values of `device`, `torch`, `precision` or `data` over all ranks."""
        return distinct(self.measured, key)


def analyse(study: Study) -> Analysis:
    """Read the runs of a study and analyse them. Some runs may still be missing."""
    runs = read_runs(study)
    curves = []
    for kind in KINDS:
        own = [run for run in runs if run.planned.kind == kind]
        by_nodes = groupby(own, key=lambda run: run.planned.nodes)
        points = [measure_point(list(repeats)) for _, repeats in by_nodes]
        measured = [point for point in points if point is not None]
        if measured:
            curves.append(make_curve(measured))
    return Analysis(study, tuple(runs), tuple(curves), tuple(caveats_of(study, runs, curves)))
