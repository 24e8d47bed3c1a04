"""Runs of a campaign that used a node at the same time as another run of the same campaign.

The times of such a run depend on the other run, so they are no measurement of the job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.jobs.attempts import read_attempts
from hpc_amp.jobs.events import read_events

# Seconds. Recorded times are whole seconds, the clocks of two nodes may differ a little, and the
# first and last seconds of an attempt are not measured.
_TOLERANCE = 2


@dataclass(frozen=True, slots=True)
class Overlap:
    """A node that a run shared with the run in the directory `run_name`."""

    node: str
    run_name: str


@dataclass(frozen=True, slots=True)
class _Use:
    """The nodes that an attempt of a run used, from `start` to `end` in seconds since the epoch."""

    run_name: str
    nodes: frozenset[str]
    start: int
    end: int
    finished: bool

    def shared_with(self, other: _Use) -> frozenset[str]:
        """The nodes that both used at the same time."""
        seconds = min(self.end, other.end) - max(self.start, other.start)
        return self.nodes & other.nodes if seconds > _TOLERANCE else frozenset()


def overlaps(campaign: Campaign) -> Mapping[str, Overlap]:
    """For each run directory whose finished attempt shared a node with an attempt of another run:
    one such node and run. Attempts of every state count as the other: a run that failed also used
    its nodes. Without a list of nodes, as in runs of older versions, an attempt is not compared."""
    uses = _uses(campaign.folder / "points")
    found: dict[str, Overlap] = {}
    for use, other in permutations(uses, 2):
        shared = use.shared_with(other) if use.finished and use.run_name != other.run_name else None
        if shared:
            found.setdefault(use.run_name, Overlap(min(shared), other.run_name))
    return found


def _uses(points: Path) -> list[_Use]:
    uses = []
    for name in sorted(os.listdir(points)) if points.is_dir() else ():
        run_dir = points / name
        # The end of an attempt that runs, or was killed, is the time of its last sign of life.
        for attempt in read_attempts(run_dir, read_events(run_dir), at_work=False):
            nodes = _nodes(run_dir / "attempts" / str(attempt.number) / "nodes")
            if nodes and attempt.start is not None and attempt.end is not None:
                finished = attempt.state == "finished"
                uses.append(_Use(name, nodes, attempt.start, attempt.end, finished))
    return uses


def _nodes(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split())
    except (OSError, UnicodeDecodeError):
        return frozenset()
