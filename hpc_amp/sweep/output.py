"""The files of a sweep's report: table, CSV, JSON and picture, in one folder."""

from __future__ import annotations

from pathlib import Path

from hpc_amp.campaigns.output import Written, why_no_pictures, write_file
from hpc_amp.sweep.picture import draw
from hpc_amp.sweep.ranking import Ranking
from hpc_amp.sweep.report import to_csv, to_json, to_text


def write_report(ranking: Ranking, folder: Path) -> Written:
    """Write `report.txt`, `report.csv`, `report.json`, and where matplotlib is installed and points
    are ranked `sweep.png` and `sweep.svg`, into `folder`, which is made. Raises UsageError."""
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
