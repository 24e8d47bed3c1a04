"""A tar file with the code of a campaign: the package as `src`, and the user's `code`. `jobs.code`
copies the same files for a single run. The first point that starts unpacks the file."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hpc_amp.jobs.code import JOB_SIDE, PACKAGE, is_left_out, refuse_large, texts
from hpc_amp.jobs.plan import Plan

NAME = "snapshot.tar"


def write_snapshot(folder: Path, plans: Sequence[Plan]) -> None:
    """Write the code that the jobs of `plans` need into the folder of their campaign. All plans
    have the same `code`. Raises ConfigError if that is so large that it must be a mistake."""
    parent = folder.parents[1]
    # The older format of GNU tar is written in half the time of the default.
    with tarfile.open(folder / NAME, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in JOB_SIDE:
            copy = f"src/hpc_amp/{name}"
            archive.add(PACKAGE / name, copy, filter=_only_code(copy, PACKAGE / name, None))
        for name, text in texts(plans).items():
            entry = tarfile.TarInfo(f"src/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
        if plans[0].job.code is not None:
            code = Path(plans[0].job.code)
            refuse_large(code, parent)
            archive.add(code, "code", filter=_only_code("code", code, parent))


def _only_code(
    name: str, source: Path, parent: Path | None
) -> Callable[[tarfile.TarInfo], tarfile.TarInfo | None]:
    """A filter for tar files that leaves out caches and similar files, and other campaigns."""

    def keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = source / Path(entry.name).relative_to(name)
        if path == parent or (path != source and is_left_out(str(path))):
            return None
        entry.uid = entry.gid = 0  # the user who unpacks it owns it
        entry.uname = entry.gname = ""
        return entry

    return keep
