"""Waiting for the points of a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from hpc_amp.bench.folder import Bench, PrecisionRun
from hpc_amp.bench.results import Result, read_results

_POLL_SECONDS = 1.0


def follow(
    bench: Bench, points: Collection[PrecisionRun], tell: Callable[[Result], object]
) -> list[Result]:
    """Wait until these points have ended, and tell of each one that has. Returns them."""
    told: set[str] = set()
    while True:
        results = [result for result in read_results(bench) if result.point in points]
        ended = [result for result in results if result.has_ended]
        for result in ended:
            if result.point.folder_name not in told:
                told.add(result.point.folder_name)
                tell(result)
        if len(ended) == len(results):
            return results
        time.sleep(_POLL_SECONDS)
