"""A warning about the figures of a study."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_amp.study.points import Point
from hpc_amp.study.words import count


@dataclass(frozen=True, slots=True)
class Caveat:
    """One warning. `topic` is a word for scripts, `text` a sentence for people."""

    topic: str
    text: str


def place(point: Point) -> str:
    """How a point is called in a warning: `strong, 4 nodes`."""
    return f"{point.kind}, {count(point.nodes, 'node')}"
