"""Waiting for the points of a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpc_amp.bench.folder import Bench
from hpc_amp.bench.results import Result, read_results

_POLL_SECONDS = 1.0


def follow(bench: Bench, tell: Callable[[Result], object]) -> list[Result]:
    """Wait until every point has ended, and tell of each one that has. Returns all of them."""
    told: set[str] = set()
    while True:
        results = read_results(bench)
        ended = [result for result in results if result.has_ended]
        for result in ended:
            if result.point.folder_name not in told:
                told.add(result.point.folder_name)
                tell(result)
        if len(ended) == len(results):
            return results
        time.sleep(_POLL_SECONDS)
