"""What is known of runs that have ended, so that `hpc-amp status` does not read their files again.

The file cache/<hash> in the user's state folder has the entries of one folder of runs or campaigns.
An entry counts only while the files from which it was made are the same ones, by their inode,
size and time of change. The cache may be lost or damaged at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_amp import __version__
from hpc_amp.files import read_json, write_atomically
from hpc_amp.jobs.known import hash_of, state_folder

_FORMAT = 1
Signature = list[int]


def signature(files: Sequence[str]) -> Signature:
    """Inode, size and time of change of files; zeros for one that is missing."""
    found: Signature = []
    for path in files:
        try:
            stat = os.stat(path)
        except OSError:
            found += (0, 0, 0)
            continue
        found += (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


class Ended:
    """The entries of one folder, by the name of a run's folder in it."""

    def __init__(self, folder: Path) -> None:
        state = state_folder()
        self._folder = folder
        self._path = None if state is None else state / "cache" / hash_of(folder)
        content = {} if self._path is None else read_json(self._path)
        is_ours = (content.get("format"), content.get("hpc_amp")) == (_FORMAT, __version__)
        entries = content.get("entries") if is_ours else None
        self._entries: dict[str, Any] = entries if isinstance(entries, dict) else {}
        self._changed = False

    def get(self, name: str, files: Sequence[str]) -> dict[str, Any] | None:
        """The entry of a name, if it was made from these files as they are now."""
        entry = self._entries.get(name)
        if not isinstance(entry, list) or len(entry) != 2 or entry[0] != signature(files):
            return None
        return entry[1] if isinstance(entry[1], dict) else None

    def last(self, name: str) -> dict[str, Any]:
        """The entry of a name, whether it still counts or not: it says which files to look at."""
        entry = self._entries.get(name)
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], dict):
            return {}
        return entry[1]

    def put(self, name: str, before: Signature, content: dict[str, Any]) -> None:
        """Add an entry. `before` is the signature of its files before they were read."""
        self._entries[name] = [before, content]
        self._changed = True

    def save(self) -> None:
        """Write the cache, if it has new entries. Does nothing if the state folder cannot be
        written."""
        if not self._changed or self._path is None:
            return
        content = {"format": _FORMAT, "hpc_amp": __version__, "entries": self._present()}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(content, separators=(",", ":")))

    def _present(self) -> dict[str, Any]:
        """The entries without those of runs that were removed."""
        return {
            name: entry
            for name, entry in self._entries.items()
            if os.path.isdir(os.path.join(self._folder, name))
        }
