"""Sweeps as a view of campaigns."""

from __future__ import annotations

from hpc_amp.campaigns.view import View


class SweepView(View):
    """Ranks points by a metric of their runs."""

    name = "sweep"
    noun = "sweep"
    parent = "sweeps"


SWEEP = SweepView()
