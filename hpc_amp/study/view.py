"""Scaling studies as a view of campaigns."""

from __future__ import annotations

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.measuring import MeasuringView
from hpc_amp.campaigns.words import joined
from hpc_amp.study.folder import study_of


class ScaleView(MeasuringView):
    """Compares numbers of nodes by their samples per second."""

    name = "scale"
    noun = "study"
    parent = "studies"
    ask_above = 100.0

    def labels(self, campaign: Campaign) -> dict[str, dict[int, str]]:
        """The kinds of scaling that each run belongs to."""
        study = study_of(campaign)
        kinds: dict[int, list[str]] = {}
        for planned in study.planned_runs():
            kinds.setdefault(study.point(planned), []).append(planned.kind)
        return {"scaling": {point: joined(names) for point, names in kinds.items()}}


SCALE = ScaleView()
