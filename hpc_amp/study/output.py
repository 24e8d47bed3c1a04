"""Write the files of a report: text, CSV, JSON, pictures and HTML, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpc_amp.campaigns.output import Written, why_no_pictures, write_file
from hpc_amp.study.analysis import Analysis
from hpc_amp.study.export import to_csv, to_json
from hpc_amp.study.folder import KINDS
from hpc_amp.study.page import to_html
from hpc_amp.study.picture import draw
from hpc_amp.study.text import to_text


def write_report(analyses: Sequence[Analysis], folder: Path) -> Written:
    """Write the report of one study, or of two studies, into `folder`, which is created.

    The files are `report.txt`, `report.csv`, `report.json` and `report.html`. If matplotlib is
    installed, the pictures `strong` and `weak` are written too, each as `.png`, `.svg` and `.pdf`,
    for kinds with a measured point. Files of an older report are replaced. Raises UsageError if a
    file cannot be written.
    """
    files = {
        "report.txt": (to_text(analyses) + "\n").encode(),
        "report.csv": to_csv(analyses).encode(),
        "report.json": to_json(analyses).encode(),
    }
    # Before pictures are drawn: it takes a second, and the folder may be no place to write to.
    for name, content in files.items():
        write_file(folder / name, content)
    remark = why_no_pictures()
    drawn = {} if remark else {kind: draw(kind, analyses) for kind in KINDS}
    inlined = {kind: pictures["svg"] for kind, pictures in drawn.items() if pictures}
    shown = {"report.html": to_html(analyses, inlined, remark).encode()}
    for kind, pictures in drawn.items():
        shown |= {f"{kind}.{suffix}": content for suffix, content in pictures.items()}
    for name, content in shown.items():
        write_file(folder / name, content)
    return Written(folder, (*files, *shown), remark)
