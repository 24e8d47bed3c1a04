"""Files that are safely on the disk when a function returns, with their size and digest."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_durably(path: Path, write: Callable[[Any], Any]) -> dict[str, Any]:
    """Let `write` fill a new file, and fsync it.

    `write` gets an object with `write` and `flush`. Returns `bytes` and `sha256` of what was passed
    to it, which may differ from what a broken disk holds. Raises OSError if the disk refuses.
    """
    with path.open("wb") as out:
        hashing = _HashingWriter(out)
        try:
            write(hashing)
        except RuntimeError:
            # torch.save replaces the error of a full disk by a RuntimeError about a file position.
            if hashing.error is not None:
                raise hashing.error from None
            raise
        out.flush()
        os.fsync(out.fileno())
    return hashing.description()


class _HashingWriter:
    """A file that hashes what is written to it. Hashing and writing of large blocks both release
    the GIL."""

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
    """sha256 of the content of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that the names in it are durable. Some file systems do not support that
    and answer EINVAL, which is ignored."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
