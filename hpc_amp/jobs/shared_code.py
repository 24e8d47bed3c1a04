"""One copy of the package for all runs in a folder of runs, instead of a hundred files in each.

    <runs>/.hpc_amp/src/<hash>/     what `jobs.code.copy_package` copies
    <runs>/<name>/<id>/src          a link to it

<hash> is that of all files in the copy, so that different versions, and different parts of a job
with host code of their own, have copies of their own. A copy never changes: it is written under
another name and renamed when it is complete, so a command that is killed leaves no half of one.

Nothing is locked. A submission links the copy first and then checks that it is still there. `prune`
renames a copy that nothing links, looks for links once more, and renames it back if there are any.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.jobs.code import NEVER_COPIED, package_files, write_package

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan

SHARED = ".hpc_amp"
_ABANDONED = 86400
"""Seconds after which a copy that is not complete is not written any more."""
_TRIES = 3


def link_package(folder: Path, plan: Plan) -> None:
    """Make `src` in `folder` a link to the copy of the package for the run of `plan`; the copy is
    made if there is none. If the plan shares no code, or the copy was changed, `src` is a copy of
    its own. Raises OSError."""
    files = package_files(plan)
    shared = plan.shared_code / _hash(files.items())
    link = folder / "src"
    if not plan.shares_code:
        write_package(link, files)
        return
    for _ in range(_TRIES):
        # `prune` may remove it at this moment, and not every file system has links.
        with contextlib.suppress(OSError):
            if not shared.is_dir():
                _write(shared, files)
            os.utime(shared)  # it leaves it alone for a while
            link.symlink_to(shared)
            if _is_as_written(link, files) or _hash(_content(link)) == shared.name:
                return
        link.unlink(missing_ok=True)
    plan.shared_code.mkdir(parents=True, exist_ok=True)  # the script mounts it
    write_package(link, files)


def _write(shared: Path, files: dict[str, bytes]) -> None:
    """Write a copy. Another command may write the same one; the first that is complete counts."""
    shared.parent.mkdir(parents=True, exist_ok=True)
    stage = shared.with_name(f".{shared.name}-{os.urandom(4).hex()}")
    try:
        write_package(stage, files)
        now = time.time_ns()
        for name in files:
            os.utime(f"{stage}/{name}", ns=(now, now))  # see `_is_as_written`
        try:
            os.rename(stage, shared)
        except OSError:
            if not shared.is_dir():
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _hash(files: Iterable[tuple[str, bytes]]) -> str:
    import hashlib  # it loads OpenSSL

    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:20]


def _is_as_written(copy: Path, files: dict[str, bytes]) -> bool:
    """Whether a copy certainly has these files, unchanged. All its files got the same time when it
    was written, so a stat of each shows it: on a shared file system, to read them takes long."""
    sizes, times = {}, set()
    for name, entry in _entries(str(copy)):
        status = entry.stat()
        sizes[name] = status.st_size
        times.add(status.st_mtime_ns)
    return len(times) == 1 and sizes == {name: len(content) for name, content in files.items()}


def _content(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name, _ in _entries(str(folder)):
        yield name, (folder / name).read_bytes()


def _entries(folder: str, inside: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """The files of a copy by their paths in it, without what Python adds to it."""
    with os.scandir(f"{folder}/{inside}") as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield f"{inside}{entry.name}", entry
            elif entry.name not in NEVER_COPIED:
                yield from _entries(folder, f"{inside}{entry.name}/")


def remove_unused(folders: Iterable[Path], *, older_than: float = _ABANDONED) -> int:
    """Remove the copies that nothing links, and what is left of copies that were not completed, in
    the folders of runs `folders`. Copies that were used within `older_than` seconds stay, because a
    submission may be about to link them. Returns how many were removed."""
    removed = 0
    for runs in {folder.resolve() for folder in folders}:
        shared = runs / SHARED / "src"
        for copy in _aged(shared.glob(".*"), _ABANDONED):
            shutil.rmtree(copy, ignore_errors=True)
        for copy in _aged(shared.glob("[!.]*"), older_than):
            if not _is_linked(runs, copy):
                removed += _remove(runs, copy)
        if not any(path.name != SHARED for path in _folders_in(runs) or [runs]):
            for empty in (shared, shared.parent):  # there are no runs any more that mount it
                with contextlib.suppress(OSError):
                    empty.rmdir()
    return removed


def _aged(folders: Iterable[Path], seconds: float) -> list[Path]:
    """The folders that were last changed so long ago."""
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # removed at this moment
            if time.time() - folder.stat().st_mtime >= seconds:
                found.append(folder)
    return found


def _remove(runs: Path, copy: Path) -> bool:
    """Remove a copy. Returns False if a run was linked to it meanwhile."""
    doomed = copy.with_name(f".removed-{copy.name}-{os.urandom(4).hex()}")
    try:
        os.rename(copy, doomed)
        os.utime(doomed)  # another `prune` leaves it alone for a while
    except OSError:
        return False
    if _is_linked(runs, copy):
        with contextlib.suppress(OSError):  # another command has already written it again
            os.rename(doomed, copy)
            return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def _is_linked(runs: Path, copy: Path) -> bool:
    """Whether the `src` of a run is a link to a copy, or was before a change of the run. Also True
    if a folder cannot be looked at, such as another user's."""
    for name in _folders_in(runs) or []:
        found = _folders_in(name)
        if found is None:
            return True
        for run in found:
            inside = _folders_in(run)
            if inside is None:
                return True
            changes = [folder for folder in inside if folder.name.startswith(".change-")]
            changes += _folders_in(run / "history") or []
            for link in (run / "src", *(folder / "src" for folder in changes)):
                with contextlib.suppress(OSError):  # there is none, or it is a folder
                    if os.path.basename(os.readlink(link)) == copy.name:
                        return True
    return False


def _folders_in(folder: Path) -> list[Path] | None:
    """The folders in a folder, links to folders included. None if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return None
