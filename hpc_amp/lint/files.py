"""Read the scripts that `hpc-amp lint` checks, and summarise the findings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.lint.linter import Checked, check

STDIN = "-"


def check_files(paths: Sequence[str]) -> list[Checked]:
    """Check each file; `-` is the standard input.

    All files are read before the first one is checked. Raises UsageError if a file cannot be read
    or is not text.
    """
    texts = [(("<stdin>" if path == STDIN else path), _read(path)) for path in paths]
    return [check(text, name) for name, text in texts]


def _read(path: str) -> bytes:
    try:
        text = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if b"\0" in text:
        raise UsageError(f"{path} is a binary file, not a script")
    return text


def summary(checked: Sequence[Checked]) -> str:
    """The numbers of errors, warnings and scripts, in one line."""
    findings = [finding for one in checked for finding in one.findings]
    errors = sum(finding.severity == "error" for finding in findings)
    parts = [_count(errors, "error"), _count(len(findings) - errors, "warning")]
    return f"{', '.join(parts)} in {_count(len(checked), 'script')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
