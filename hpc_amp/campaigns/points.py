"""The points of a campaign: which keys vary, and the values that each point gives them.

The key of an override with several values, `train.optimizer.lr=0.1,0.2`, varies. An override with a
single value holds for all points. A comma inside brackets or quotes does not separate values.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.tree import shown
from hpc_amp.errors import ConfigError, UsageError

MOST_POINTS = 10_000
# Keys that all points share: the folder, the scheduler and the copy of the code depend on them.
_SAME_FOR_ALL = ("name", "site", "runs_dir", "code")
_CLOSING = {"[": "]", "{": "}"}
SEED = "train.seed"
"""Points that only differ in this key are repeats of one setting."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point. `values` are texts as in an override, in the order of the campaign's keys. None
    means the value of the job file."""

    index: int
    values: tuple[str | None, ...]
    where: str | None = None
    """Its place in a CSV file: `FILE:LINE`."""
    repeat: int = 1
    """The number of this run of its setting, from 1."""

    def settings(self, keys: Sequence[str]) -> list[str]:
        """Its overrides, for the `keys` of the campaign."""
        pairs = zip(keys, self.values, strict=True)
        return [f"{key}={value}" for key, value in pairs if value is not None]


@dataclass(frozen=True, slots=True)
class Space:
    """All points of a campaign, and the overrides that hold for all of them."""

    keys: tuple[str, ...]
    points: tuple[Point, ...]
    fixed: tuple[str, ...]


def read_space(
    overrides: Sequence[str],
    *,
    zipped: bool = False,
    table: Path | None = None,
    must_vary: bool = True,
) -> Space:
    """The points that the command line and a CSV file describe.

    Keys with several values make a grid. If `zipped`, the first values of all keys make the first
    point, the second values the second, and so on. Each row of `table`, a CSV file whose titles are
    keys, is combined with each of these points. Raises UsageError if the overrides are wrong, or if
    nothing varies and `must_vary` is set, and ConfigError for an error in the table.
    """
    _refuse_repeated(overrides)
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        values = split_values(text)
        if not equals or len(values) < 2:
            fixed.append(override)
            continue
        _check_axis(key, values)
        axes[key] = values
    columns, rows = _read_table(table) if table is not None else ((), [(None, ())])
    given = {override.partition("=")[0] for override in overrides}
    for key in columns:
        _check_key(key)
        if key in given:
            raise UsageError(f"{key} is in {table} too", hint="give it only once")
    if must_vary and not axes and table is None:
        raise UsageError(
            "nothing varies",
            hint="give a key several values: train.optimizer.lr=0.1,0.2, or an argument of a "
            "program: -- --lr=0.1,0.2 (one job: hpc-amp submit)",
        )
    combinations = _zip(axes) if zipped else _grid(axes, len(rows))
    settings = [
        (where, (*row, *values)) for (where, row), values in itertools.product(rows, combinations)
    ]
    if not 0 < len(settings) <= MOST_POINTS:
        raise _too_many(len(settings))
    points = [Point(index, values, where) for index, (where, values) in enumerate(settings)]
    _refuse_equal(points)
    return Space((*columns, *axes), tuple(points), tuple(fixed))


def with_seeds(space: Space, seeds: Sequence[int]) -> Space:
    """Each setting with each of `seeds`. All settings come once before the first one is repeated.
    Raises UsageError if the seed varies already."""
    if SEED in space.keys:
        raise UsageError(f"--repeats sets {SEED}, which varies already", hint="leave one out")
    count = len(space.points) * len(seeds)
    if count > MOST_POINTS:
        raise _too_many(count)
    settings = [
        (point.where, (*point.values, str(seed))) for seed in seeds for point in space.points
    ]
    points = [Point(index, values, where) for index, (where, values) in enumerate(settings)]
    fixed = [override for override in space.fixed if override.partition("=")[0] != SEED]
    return Space((*space.keys, SEED), tuple(points), tuple(fixed))


def short_names(keys: Sequence[str]) -> list[str]:
    """The shortest ends of the keys that are still different: `lr` for `train.optimizer.lr`."""
    return [_short_name(key, keys) for key in keys]


def _short_name(key: str, keys: Sequence[str]) -> str:
    parts = key.split(".")
    for length in range(1, len(parts)):
        end = ".".join(parts[-length:])
        if not any(f".{other}".endswith(f".{end}") for other in keys if other != key):
            return end
    return key


def setting_in_words(keys: Sequence[str], point: Point) -> str:
    """The values of a point as text: `lr=0.1 mode=fp16`, or `as given` if it sets nothing."""
    pairs = zip(short_names(keys), point.values, strict=True)
    return " ".join(f"{name}={value}" for name, value in pairs if value is not None) or "as given"


def split_values(text: str) -> list[str]:
    """Split the values of an override at its commas."""
    values = [""]
    closing: list[str] = []
    quote = ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and (closing or not values[-1].strip()):
            quote = letter
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        elif letter == "," and not closing:
            values.append("")
            continue
        values[-1] += letter
    return [value.strip() for value in values] if len(values) > 1 else [text]


def _refuse_repeated(overrides: Sequence[str]) -> None:
    """Raise UsageError if a key is given twice. For one job the last one would count, but here both
    are probably meant as values."""
    given: dict[str, list[str]] = {}
    for override in overrides:
        key, _, text = override.partition("=")
        if key in given:
            _check_key(key)
            values = ",".join(dict.fromkeys([*given[key], *split_values(text)]))
            raise UsageError(f"{key} is given twice", hint=f"give it once: {key}={values}")
        given[key] = split_values(text)


def _check_axis(key: str, values: list[str]) -> None:
    _check_key(key)
    if "" in values:
        raise UsageError(
            f"{key}: there is an empty value between the commas",
            hint=f"write the values without spaces: {key}=a,b",
        )
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise UsageError(f"{key}: the value {shown(twice)} is given twice", hint="remove one")


def _check_key(key: str) -> None:
    if key in _SAME_FOR_ALL:
        raise UsageError(
            f"{key} is the same for all points", hint="give the command once for each value"
        )


def _grid(axes: dict[str, list[str]], rows: int) -> Iterator[tuple[str, ...]]:
    count = rows * math.prod(map(len, axes.values()))
    if count > MOST_POINTS:
        raise _too_many(count)
    return itertools.product(*axes.values())


def _zip(axes: dict[str, list[str]]) -> list[tuple[str, ...]]:
    lengths = {key: len(values) for key, values in axes.items()}
    if len(set(lengths.values())) > 1:
        numbers = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise UsageError(f"--zip needs the same number of values for each key, but {numbers}")
    return list(zip(*axes.values(), strict=True)) or [()]


def _too_many(count: int) -> UsageError:
    if count == 0:
        return UsageError("there are no points", hint="the CSV file has no line after the titles")
    return UsageError(
        f"these are {count:,} points; at most {MOST_POINTS:,} are allowed",
        hint="list the points that you need in a CSV file: --points FILE",
    )


def _refuse_equal(points: Sequence[Point]) -> None:
    seen: dict[tuple[str | None, ...], Point] = {}
    for point in points:
        first = seen.setdefault(point.values, point)
        if first is not point:
            place = point.where or f"point {point.index}"
            raise UsageError(
                f"{place}: this point is equal to point {first.index}",
                hint="remove it; --repeats repeats all points",
            )


def _read_table(
    path: Path,
) -> tuple[tuple[str, ...], list[tuple[str | None, tuple[str | None, ...]]]]:
    """The titles and the rows of a CSV file. Each row has its place, `FILE:LINE`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            reader = csv.reader(source, strict=True)
            lines = [(f"{path}:{reader.line_num}", row) for row in reader if any(row)]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not lines:
        raise UsageError(f"{path} is empty", hint="the first line must name the keys")
    where, titles = lines[0]
    keys = [title.strip() for title in titles]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(f"the key {shown(twice)} is given twice", where=where)
    if "" in keys:
        raise ConfigError(
            "a column has no title", where=where, hint="the first line must name the keys"
        )
    if len(keys) == 1 and (";" in keys[0] or "\t" in keys[0]):
        raise ConfigError(
            "the titles are not separated by commas",
            where=where,
            hint="write commas between the columns, not semicolons or tabs",
        )
    rows: list[tuple[str | None, tuple[str | None, ...]]] = []
    for where, row in lines[1:]:
        if len(row) != len(keys):
            raise ConfigError(f"{len(row)} values for {len(keys)} keys", where=where)
        rows.append((where, tuple(cell.strip() or None for cell in row)))
    return tuple(keys), rows
