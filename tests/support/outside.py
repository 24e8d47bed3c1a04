"""The package of docs/extending-task.md, as a newcomer would have it: outside of hpc-amp."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support import commands
from support.environment import REPOSITORY, clean_environ

PAGE = REPOSITORY / "docs" / "extending-task.md"
ENTRY_POINTS = """\
[hpc_amp.tasks]
segmentation = discs.task:Segmentation
[hpc_amp.trackers]
csv = curves:Csv
"""


def write_package(folder: Path) -> None:
    """The package `discs` of the page."""
    (folder / "discs").mkdir(parents=True)
    for name in ("discs/config.py", "discs/task.py"):
        (folder / name).write_text(_file(name))


def write_job(folder: Path) -> None:
    """The job file of the page."""
    (folder / "job.yaml").write_text(_file("job.yaml"))


def write_installed(folder: Path) -> None:
    """A folder for the search path in which the package and the tracker are installed, with entry
    points."""
    write_package(folder)
    tracker = re.search(r"```python\n((?:(?!```).)*class Csv.*?)```", PAGE.read_text(), re.DOTALL)
    assert tracker is not None
    (folder / "curves.py").write_text(tracker[1])
    facts = folder / "discs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: discs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)


def hpc_amp(
    folder: Path, *words: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `hpc-amp` in a folder, with one more folder in front of Python's search path."""
    search = f"{path}:{REPOSITORY}" if path is not None else str(REPOSITORY)
    environ = clean_environ(PYTHONPATH=search)
    return commands.hpc_amp(*words, cwd=folder, environ=environ, timeout=600)


def _file(name: str) -> str:
    """The code block that follows the name of a file."""
    pattern = rf"^`{re.escape(name)}`[^\n]*:\n\n(?:<!--[^\n]*\n)?```\w+\n(.*?)^```"
    found = re.search(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{PAGE} has no {name}"
    return found[1]
