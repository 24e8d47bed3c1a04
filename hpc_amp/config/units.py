"""Convert text with units to numbers: durations, sizes and intervals.

Standard library only, because both halves of the package read configurations.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# At most nine digits: more are a mistake, and a float overflows at 309 digits.
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_DURATION_PART = re.compile(rf"{_NUMBER}(s|m|h|d)")
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):([0-5]?\d):([0-5]?\d)")
_SIZE = re.compile(rf"{_NUMBER}\s*(KiB|MiB|GiB|TiB|KB|MB|GB|TB|B)")
_SIZE_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_COUNT = re.compile(r"(\d{1,9})\s*(steps?|epochs?)")


@functools.lru_cache
def parse_duration(text: str) -> int:
    """Convert a duration to seconds: `"HH:MM:SS"`, `"D-HH:MM:SS"`, `"90m"`, `"1h30m"`, `"45s"`,
    `"2d"`.

    Raises ValueError for any other text, and for less than a second.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        total = float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    else:
        compact = text.replace(" ", "")
        if not re.fullmatch(rf"(?:{_DURATION_PART.pattern})+", compact):
            raise ValueError(
                f"{text!r} is not a duration: write it with a unit, "
                'such as "01:30:00", 90m or 1h30m'
            )
        parts = _DURATION_PART.findall(compact)
        total = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    if total < 1:
        raise ValueError(f"{text!r} is less than a second")
    return round(total)


def format_duration(seconds: float) -> str:
    """Format seconds as `HH:MM:SS`, from one day on as `D-HH:MM:SS`. Slurm and PBS read both."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_size(text: str) -> int:
    """Convert a size such as `"64GiB"` or `"500MB"` to bytes.

    Raises ValueError if the unit is missing or unknown, and for less than a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write it with a unit, such as 64GiB or 500MB")
    size = int(float(match[1]) * _SIZE_UNITS[match[2]])
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte")
    return size


@dataclass(frozen=True, slots=True)
class Interval:
    """How often something happens: every `count` steps, epochs or seconds."""

    count: int
    unit: Literal["seconds", "steps", "epochs"]


def parse_interval(text: str) -> Interval:
    """Parse an interval: `5m` or another duration (of wall-clock time), `200steps` or `1epoch`.
    Raises ValueError for any other text."""
    match = _COUNT.fullmatch(text.strip())
    if match:
        count = int(match[1])
        if count < 1:
            raise ValueError(f"{text!r} must be at least one")
        return Interval(count, "steps" if match[2].startswith("step") else "epochs")
    try:
        return Interval(parse_duration(text), "seconds")
    except ValueError:
        raise ValueError(
            f"{text!r} is not an interval: write 5m, 01:00:00, 200steps or 1epoch"
        ) from None


def parse_step_interval(text: str) -> Interval:
    """Parse an interval in steps or epochs: `200steps`, `10epochs`. Raises ValueError for any other
    text."""
    interval = parse_interval(text)
    if interval.unit == "seconds":
        raise ValueError(f"{text!r} is a time: write steps or epochs, such as 200steps or 10epochs")
    return interval
