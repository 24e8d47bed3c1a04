"""What the benchmarks have in common: values of rounds, their ratios, facts of the machine, output.

In each round, all contestants are measured one after the other. Machines are shared and change, so
only the ratio of two values of the same round means something; of these ratios, the median is
reported, with an interval.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

Values = dict[str, list[float]]
"""What was measured in each round, by contestant."""
CONFIDENCE = 95
"""Per cent that an interval should have. Fewer than six rounds cannot give it."""


def ratio(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """`ours` over `others`, which are the values of two contestants in the same rounds.

    `ratio` is the median of the rounds, and `low` to `high` its interval: the narrowest from the
    k-th lowest to the k-th highest round that contains the true median in at least 95 per cent of
    all measurements, whatever the distribution; with few rounds, from the lowest to the highest.
    `percent` is in how many it really does.
    """
    found = sorted(our / other for our, other in zip(ours, others, strict=True))
    rounds = len(found)
    k = 1
    while k < (rounds + 1) // 2 and _percent(rounds, k + 1) >= CONFIDENCE:
        k += 1
    return {
        "ratio": statistics.median(found),
        "low": found[k - 1],
        "high": found[-k],
        "percent": _percent(rounds, k),
    }


def _percent(rounds: int, k: int) -> float:
    """How often the median is between the k-th lowest and the k-th highest of so many values: not,
    if fewer than k of them are on one side of it, as if coins were tossed."""
    return 100 * (1 - 2 * sum(math.comb(rounds, below) for below in range(k)) / 2**rounds)


def shown(ratio: Mapping[str, float]) -> str:
    """A ratio for people, as `1.02 (0.98 to 1.10, 96 %)`."""
    values = (number(ratio[key]) for key in ("ratio", "low", "high"))
    return "{} ({} to {}, {:.0f} %)".format(*values, ratio["percent"])


def number(value: float) -> str:
    """A number for people: three digits, or all before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{decimals}f}"


def machine(*packages: str) -> dict[str, Any]:
    """When and on which machine this is measured, its load, and the versions of Python and of these
    packages."""
    facts: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def report(
    facts: Mapping[str, Any],
    values: Mapping[str, Values],
    *,
    beside: str,
    missing: Mapping[str, str],
    as_json: bool,
) -> None:
    """Print what was measured: `values` by what they are ("CPU seconds"), with the ratio of each
    contestant to `beside`, and why others are missing. In JSON, also the values of each round."""
    if as_json:
        print(json.dumps({**facts, "missing": missing, "values": values}, indent=1))
        return
    print("  ".join(f"{name} {value}" for name, value in facts.items()))
    width = max(len(name) for name in (*values, *(n for v in values.values() for n in v)))
    for what, contestants in values.items():
        print(f"\n{what:{width}}  {'median':>9}  times {beside}")
        for name, rounds in contestants.items():
            median = number(statistics.median(rounds))
            times = "" if name == beside else shown(ratio(rounds, contestants[beside]))
            print(f"{name:{width}}  {median:>9}  {times}".rstrip())
    for name, reason in missing.items():
        print(f"missing: {name}, {reason}")
