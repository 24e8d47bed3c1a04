"""Files that are on the disk, and known by their digest, when a function returns."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_durably(path: Path, write: Callable[[Any], Any]) -> dict[str, Any]:
    """Let `write` fill a new file and fsync it. Returns its `bytes` and `sha256`, those of what was
    meant to be written. Raises OSError where the disk does not take it."""
    with path.open("wb") as out:
        hashing = _HashingWriter(out)
        try:
            write(hashing)
        except RuntimeError:
            # torch.save turns a full disk into a RuntimeError about a position.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        out.flush()
        os.fsync(out.fileno())
    return hashing.description()


class _HashingWriter:
    """A file that hashes what passes. Both let other threads run, where a block is large."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        try:
            return self._out.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._out.flush()

    def description(self) -> dict[str, Any]:
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}


def digest_of(path: Path) -> str:
    """sha256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. A file system that does not know of such a thing says
    EINVAL, and has done what it can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
