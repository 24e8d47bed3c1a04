"""The report of a sweep: text, CSV, JSON and files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.output import Written, why_no_pictures, write_file
from hpc_amp.campaigns.overview import cells, in_words, status_table
from hpc_amp.campaigns.points import SEED, short_names
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.campaigns.words import NOT_KNOWN, joined, one_line
from hpc_amp.sweep.picture import draw
from hpc_amp.sweep.ranking import Ranking, Setting

SCHEMA = 1


def to_text(ranking: Ranking, top: int | None = None) -> str:
    """The report as text for a terminal, with at most the `top` best points."""
    sweep = ranking.sweep
    statuses = [point.status for point in ranking.ranked] + list(ranking.others)
    order = "highest" if ranking.highest_first else "lowest"
    parts = [f"{sweep.name}  {sweep.id}  {in_words(statuses)}"]
    if ranking.synthetic:
        parts.append("SYNTHETIC data: the metrics are not those of real data")
    if ranking.ranked and ranking.has_repeats:
        parts += _settings_in_words(ranking, top)
    elif ranking.ranked:
        shown = ranking.ranked[:top]
        names = short_names(sweep.keys)
        rows = [
            (str(place), f"{point.value:.6g}", *cells(point.status.point),
             str(point.status.index))
            for place, point in enumerate(shown, start=1)
        ]  # fmt: skip
        table = Table(
            ("rank", ranking.metric, *names, "point"), tuple(rows), words=frozenset(names)
        )
        title = f"{ranking.metric}, {order} first"
        if len(shown) < len(ranking.ranked):
            title += f": the first {len(shown)} of {len(ranking.ranked)}"
        parts.append(_section(title, as_text(table)))
        best = ranking.ranked[0].status
        parts.append(f"best: point {best.index}, {ranking.ranked[0].run_dir}")
    if ranking.others:
        table = status_table(sweep.keys, ranking.others)
        parts.append(_section("not ranked", as_text(table)))
    return "\n\n".join(parts)


def _settings_in_words(ranking: Ranking, top: int | None) -> list[str]:
    """A table of the settings by their means over seeds, and remarks on their intervals."""
    settings = ranking.settings()
    names = short_names([key for key in ranking.sweep.keys if key != SEED])
    rows = []
    for place, setting in enumerate(settings[:top], start=1):
        half = setting.half_width
        rows.append(
            (
                str(place),
                f"{setting.mean:.6g}",
                NOT_KNOWN if half is None else f"± {half:.2g}",
                f"{len(setting.points)}/{setting.planned}",
                *(NOT_KNOWN if value is None else one_line(value) for value in setting.values),
                ",".join(str(index) for index in sorted(p.status.index for p in setting.points)),
            )
        )
    words = frozenset((*names, "points"))
    columns = (f"mean {ranking.metric}", "95 %", "seeds", *names, "points")
    table = Table(("rank", *columns), tuple(rows), words=words)
    order = "highest" if ranking.highest_first else "lowest"
    title = f"{ranking.metric} over {SEED}, {order} mean first"
    if len(rows) < len(settings):
        title += f": the first {len(rows)} of {len(settings)}"
    parts = [_section(title, as_text(table))]
    best = settings[0]
    close = [str(place) for place, one in enumerate(settings[1:], 2) if _overlap(one, best)]
    if close:
        interval = "intervals" if len(close) > 1 else "interval"
        verb = "overlap" if len(close) > 1 else "overlaps"
        parts.append(
            f"the 95 % {interval} of rank {joined(close)} {verb} that of rank 1; more repeats "
            "would narrow them"
        )
    alone = [str(place) for place, one in enumerate(settings, 1) if one.half_width is None]
    if alone:
        parts.append(f"rank {joined(alone)}: one seed only, so there is no interval")
    return parts


def _overlap(one: Setting, best: Setting) -> bool:
    """Whether the intervals of two settings overlap. A setting with a single run has no
    interval."""
    if one.half_width is None or best.half_width is None:
        return False
    return abs(one.mean - best.mean) <= one.half_width + best.half_width


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def to_plain(ranking: Ranking) -> dict[str, Any]:
    """The report as JSON values."""
    sweep = ranking.sweep
    return {
        "schema": SCHEMA,
        "name": sweep.name,
        "id": sweep.id,
        "folder": str(sweep.folder),
        "created": sweep.created,
        "metric": ranking.metric,
        "highest_first": ranking.highest_first,
        "synthetic": ranking.synthetic,
        "fixed": list(sweep.fixed),
        "ranked": [
            {"rank": place, "value": point.value, **point.status.to_plain(sweep.keys)}
            for place, point in enumerate(ranking.ranked, start=1)
        ],
        "others": [status.to_plain(sweep.keys) for status in ranking.others],
        **({"settings": _plain_settings(ranking)} if ranking.has_repeats else {}),
    }


def _plain_settings(ranking: Ranking) -> list[dict[str, Any]]:
    keys = [key for key in ranking.sweep.keys if key != SEED]
    return [
        {
            "rank": place,
            "values": dict(zip(keys, setting.values, strict=True)),
            "mean": setting.mean,
            "half_width_95": setting.half_width,
            "points": [point.status.index for point in setting.points],
            "planned": setting.planned,
        }
        for place, setting in enumerate(ranking.settings(), start=1)
    ]


def to_json(ranking: Ranking) -> str:
    """`to_plain` as text."""
    return json.dumps(to_plain(ranking), indent=1, allow_nan=False) + "\n"


def to_csv(ranking: Ranking) -> str:
    """CSV with a line for each point, ranked points first."""
    keys = ranking.sweep.keys
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "point", *keys, ranking.metric, "state", "reason", "run_dir"])
    for place, point in enumerate(ranking.ranked, start=1):
        writer.writerow(_csv_row(str(place), point.status, repr(point.value)))
    for status in ranking.others:
        writer.writerow(_csv_row("", status, ""))
    return out.getvalue()


def _csv_row(place: str, status: PointStatus, value: str) -> list[str]:
    run_dir = status.run.run_dir if status.run is not None else ""
    given = [text or "" for text in status.point.values]
    return [place, str(status.index), *given, value, status.state, status.reason, run_dir]


def write_report(ranking: Ranking, folder: Path) -> Written:
    """Write `report.txt`, `report.csv` and `report.json` into `folder`, which is created. If
    matplotlib is installed and a point is ranked, also write `sweep.png` and `sweep.svg`. Raises
    UsageError if a file cannot be written."""
    remark = why_no_pictures()
    pictures = {} if remark else draw(ranking)
    files = {
        "report.txt": (to_text(ranking) + "\n").encode(),
        "report.csv": to_csv(ranking).encode(),
        "report.json": to_json(ranking).encode(),
        **{f"sweep.{suffix}": content for suffix, content in pictures.items()},
    }
    for name, content in files.items():
        write_file(folder / name, content)
    return Written(folder, tuple(files), remark)
