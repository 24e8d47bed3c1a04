"""A launch script, for docs/lint.md."""

from pathlib import Path

__all__ = ["path", "text"]

path = Path("train.sh")
text = path.read_text()
