"""The folders of runs and campaigns that were used before, so that commands work from any folder.

They are kept in the user's state folder, $XDG_STATE_HOME/hpc-amp or ~/.local/state/hpc-amp:

folders/<hash>    the path of one folder; its time of change is when the folder was last used

There is one file for each folder, written by a rename: commands at the same time, also on other
machines and clusters with the same home directory, do not disturb each other, and no locks are
needed. The runs themselves are not recorded. They are listed from their folders, so that a run that
was removed by hand is gone. If the state folder is lost, each folder is recorded again when it is
used. If it cannot be written, commands work as before, in their own folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from hpc_amp.files import write_atomically

_FRESH = 86400
"""Seconds for which a folder is not recorded again."""
_FORGOTTEN = 180 * 86400
"""Seconds after the last use after which a folder that does not exist is forgotten. It may be on a
file system that is not mounted, or belong to another cluster with the same home directory."""


def state_folder() -> Path | None:
    """The user's state folder for hpc-amp. None if the user has no home directory."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore relative paths
        base = os.path.expanduser("~/.local/state")
    return Path(base, "hpc-amp") if os.path.isabs(base) else None


def hash_of(what: Path | str) -> str:
    """A name for a file that belongs to a folder, or to what a text says."""
    import hashlib  # it loads OpenSSL

    return hashlib.sha256(os.fsencode(what)).hexdigest()[:20]


def remember(folder: Path) -> None:
    """Record a folder of runs or campaigns. Does nothing if the state folder cannot be written: the
    home directory may be full or read-only."""
    state = state_folder()
    if state is None:
        return
    folder = Path(os.path.realpath(folder))
    path = state / "folders" / hash_of(folder)
    with contextlib.suppress(OSError, UnicodeError):
        try:
            if time.time() - path.stat().st_mtime < _FRESH:
                return
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{folder}\n")


def known_folders() -> list[Path]:
    """The recorded folders that exist on this machine at present, the most recently used first."""
    return [folder for folder in _recorded() if folder.is_dir()]


def absent_folders() -> list[Path]:
    """The recorded folders that cannot be reached: not even the folder that contains them exists.
    Their file system may not be mounted."""
    return [folder for folder in _recorded() if not folder.parent.is_dir()]


def _recorded() -> list[Path]:
    state = state_folder()
    if state is None:
        return []
    found: list[tuple[float, Path]] = []
    try:
        names = os.listdir(state / "folders")
    except OSError:
        return []
    for name in names:
        path = state / "folders" / name
        try:
            folder = Path(path.read_text().rstrip("\n"))
            used = path.stat().st_mtime
        except (OSError, UnicodeError):
            continue  # removed at this moment, or damaged
        if name != hash_of(folder):
            continue  # a temporary file of another command, or not ours
        if time.time() - used > _FORGOTTEN and not folder.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        found.append((used, folder))
    return [folder for _, folder in sorted(found, reverse=True)]
