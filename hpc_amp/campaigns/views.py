"""The views of campaigns, by the name of their command."""

from __future__ import annotations

from hpc_amp.campaigns.view import View
from hpc_amp.registry import Registry

VIEWS: Registry[View] = Registry(
    "hpc_amp.views",
    "hpc_amp.campaigns.view:View",
    {
        "sweep": "hpc_amp.sweep.view:SweepView",
        "scale": "hpc_amp.study.view:ScaleView",
        "bench": "hpc_amp.bench.view:BenchView",
    },
    attributes=("name", "noun", "parent"),
)


def view_of(name: str) -> View:
    """The view with a name. For a name that is unknown here, a view without own states."""
    return VIEWS.get(name)() if name in VIEWS else View()
