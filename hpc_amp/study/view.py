"""Scaling studies as a view of campaigns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.measuring import MeasuringView
from hpc_amp.campaigns.overlap import overlaps
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.words import joined
from hpc_amp.study.folder import study_of


class ScaleView(MeasuringView):
    """Compares numbers of nodes by their samples per second."""

    name = "scale"
    noun = "study"
    parent = "studies"
    ask_above = 100.0

    def refine(self, campaign: Campaign, statuses: Sequence[PointStatus]) -> list[PointStatus]:
        """A measured run that shared a node with another run of the study is `overlapped`."""
        shared = overlaps(campaign)
        refined = []
        for status in super().refine(campaign, statuses):
            name = Path(status.run.run_dir).name if status.run is not None else ""
            if status.state == self.done and name in shared:
                other = shared[name]
                reason = f"run {other.run_name} used {other.node} at the same time"
                status = replace(status, state="overlapped", reason=reason, timing=None)
            refined.append(status)
        return refined

    def labels(self, campaign: Campaign) -> dict[str, dict[int, str]]:
        """The kinds of scaling that each run belongs to."""
        study = study_of(campaign)
        kinds: dict[int, list[str]] = {}
        for planned in study.planned_runs():
            kinds.setdefault(study.point(planned), []).append(planned.kind)
        return {"scaling": {point: joined(names) for point, names in kinds.items()}}


SCALE = ScaleView()
