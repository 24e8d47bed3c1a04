"""What the generators of pages in `docs/` share: each writes its page, or with `--check` says that
it is out of date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
"""The pages of a checkout."""


def with_part(document: str, begin: str, end: str, part: str) -> str:
    """Replace the text between two marks of a document. Raises ValueError without marks."""
    before, found_begin, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"it needs the lines {begin} and {end}")
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def write_or_check(path: Path, new: str, arguments: Sequence[str], module: str) -> int:
    """Write a page, or with `--check` compare it. `module` is the one that generates it. Returns
    the exit status."""
    if path.exists() and path.read_text() == new:
        return 0
    if "--check" in arguments:
        print(f"{path} is out of date: python -m {module}", file=sys.stderr)
        return 1
    path.write_text(new)
    return 0
