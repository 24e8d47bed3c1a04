"""Small files: reading JSON, and atomic writes. Whoever reads a file sees its old content or its
new content, never a part of it.

The new content is written to a temporary file in the same folder, which is then renamed. The
permissions are those that the user's umask gives. The files are not fsynced: after a crash of the
machine the old content may be there, or an empty file. Checkpoints need more (`train.durable`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new path in the folder of `path`. The block creates it as a file or a link. At the
    end of the block it is renamed to `path`.

    If the block or the renaming fails, the new file is removed, and `path` stays as it was. Raises
    OSError if it cannot be renamed. Two writers of the same path do not disturb each other, also on
    different machines: the last one wins.
    """
    # Part of a long name is enough: the temporary name must not exceed the limit of 255 bytes.
    new = path.with_name(f".{path.name[:40]}.{os.urandom(4).hex()}")
    try:
        yield new
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically. Text is encoded as UTF-8. Raises OSError."""
    with replacing(path) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically. Raises OSError."""
    write_atomically(path, json_text(content))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Returns an empty dictionary if the file is missing, damaged
    or no object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def without_surrogates(text: str) -> str:
    """Text in which lone surrogates, which cannot be written, are replaced: bytes of a file name
    that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def json_text(content: Mapping[str, Any]) -> str:
    """JSON with each key on its own line, as the host's bash code reads it."""
    return json.dumps(content, indent=1) + "\n"


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def through_latest(path: Path) -> Path:
    """A path in which `runs/<name>/latest`, a file with the id of the newest run, is replaced by
    the directory of this run. Other paths are returned as they are."""
    for link in (path, *path.parents):
        if link.name == "latest" and link.is_file():
            return link.parent / link.read_text().strip() / path.relative_to(link)
    return path
