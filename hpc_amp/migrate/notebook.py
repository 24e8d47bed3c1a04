"""Jupyter notebooks: their code cells as one script."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.migrate.source import check_syntax, read_bytes

# IPython's own: `!pip install`, `%matplotlib inline`, `x = !ls`, `model?`.
_IPYTHON = re.compile(
    r"^([ \t]*)(?:[!%?]|[\w.]+[ \t]*=[ \t]*[!%]|[\w.]+\?+[ \t]*$).*$", re.MULTILINE
)


@dataclass(frozen=True)
class Notebook:
    """The code of a notebook. `starts` are the lines of `text` at which its code cells begin."""

    text: str
    starts: tuple[int, ...]

    def place(self, line: int) -> tuple[int, int]:
        """The number of the code cell, and the line in it, both from 1."""
        cell = sum(start <= line for start in self.starts)
        return cell, line - self.starts[cell - 1] + 1


def read_notebook(path: Path) -> Notebook:
    """Read the code cells; lines for IPython are left out. Raises UsageError."""
    try:
        document = json.loads(read_bytes(path))
        cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no notebook of version 4") from None
    starts: list[int] = []
    text = ""
    for number, source in enumerate(sources, 1):
        starts.append(text.count("\n") + 1)
        python = _IPYTHON.sub(r"\1pass", source)
        if source.startswith("%%"):
            # The whole cell is in another language, or measured.
            python = "\n" * source.count("\n")
        check_syntax(python, f"{path}:cell {number}")
        text += python.rstrip("\n") + "\n"
    return Notebook(text, tuple(starts))
