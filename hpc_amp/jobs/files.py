"""Read and write small files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Returns an empty dictionary if the file is missing, damaged
    or no object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def replace_text(path: Path, text: str) -> None:
    """Write a file by a rename, so that no reader sees a part of it. Raises OSError; nothing is
    left behind then."""
    temporary = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
