"""Reads the code cells of a Jupyter notebook as one script."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.migrate.source import check_syntax, read_bytes

# The beginning of IPython syntax: `!pip install`, `%matplotlib inline`, `x = !ls`, `model?`,
# `?model`.
_IPYTHON = re.compile(r"[!%?]|[\w., \t]+=[ \t]*[!%]|[\w.]+\?+[ \t]*$")
# Magics that run Python code: `%time x = f()`, `%%timeit -n 10`, `x = %time f()`.
_RUNS = r"(?:time|timeit|prun|memit|mprun|lprun|capture|snakeviz|heat|debug)"
_RUNS_LINE = re.compile(rf"(?P<target>[\w., \t]+=[ \t]*)?%{_RUNS}[ \t]")
_RUNS_CELL = re.compile(rf"%%{_RUNS}\b")
# The parts of Python syntax that decide where a statement ends.
_PIECE = re.compile(
    r"""
    (?P<skipped> [rbuf]*(?:'{3}(?:[^\\]|\\.)*?'{3} | "{3}(?:[^\\]|\\.)*?"{3}
               | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*") | \#[^\n]* | \\\n )
    | (?P<opens> [(\[{]) | (?P<closes> [)\]}]) | (?P<ends> \n) | .
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Notebook:
    """The code of a notebook.

    `starts` are the lines of `text` at which the code cells begin. `shifts` has, for some lines,
    the number of characters that were removed at their beginning. `refused` has messages about
    cells that are not valid Python, which are empty in `text`.
    """

    text: str
    starts: tuple[int, ...]
    shifts: Mapping[int, int] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def place(self, line: int, column: int) -> tuple[int, int, int]:
        """Return the number of the code cell, and the line and column in it, all counted from 1."""
        cell = sum(start <= line for start in self.starts)
        return cell, line - self.starts[cell - 1] + 1, column + self.shifts.get(line, 0)


def read_notebook(path: Path) -> Notebook:
    """Read the code cells of a notebook.

    IPython syntax is removed. A notebook in another language gives an empty text. Raises UsageError
    if the file cannot be read or is not a notebook.
    """
    try:
        document = json.loads(read_bytes(path))
        cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
        kernel = (document.get("metadata") or {}).get("kernelspec") or {}
        language = kernel.get("language") or "python"
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not a notebook of version 4") from None
    starts: list[int] = []
    shifts: dict[int, int] = {}
    refused: list[str] = []
    text = ""
    if str(language).lower() not in ("python", "python3"):
        sources = []
    for number, source in enumerate(sources, 1):
        first = text.count("\n") + 1
        starts.append(first)
        python, moved = _python(source)
        try:
            check_syntax(python, f"{path}:cell {number}")
        except UsageError as error:
            # Go on with the other cells: a notebook may contain cells that were never run.
            refused.append(str(error))
            python = "\n" * python.count("\n")
        shifts |= {first + line: shift for line, shift in moved.items()}
        text += python.rstrip("\n") + "\n"
    return Notebook(text, tuple(starts), shifts, tuple(refused))


def _python(source: str) -> tuple[str, dict[int, int]]:
    """Remove IPython syntax from a cell; the lines keep their numbers.

    Also returns the number of characters that were removed at the beginning of lines.
    """
    blank = len(source) - len(source.lstrip("\n"))
    head, newline, rest = source[blank:].partition("\n")
    if head.startswith("%%"):
        if not _RUNS_CELL.match(head):
            return "\n" * source.count("\n"), {}  # in another language, or written to a file
        python, moved = _python(rest)
        return "\n" * blank + newline + python, {line + blank + 1: by for line, by in moved.items()}
    if _is_python(source):
        return source, {}
    kept: list[str] = []
    moved = {}
    line = 0
    for statement in _statements(source):
        code = statement.lstrip(" \t")
        indent = statement[: len(statement) - len(code)]
        plain = _without_magic(code)
        if plain != code:
            moved[line] = len(code) - len(plain)
        elif _IPYTHON.match(code.partition("\n")[0]):
            plain = "pass" + "\n" * code.count("\n")
        kept.append(indent + plain)
        line += statement.count("\n")
    return "".join(kept), moved


def _without_magic(statement: str) -> str:
    """The Python code that `%time -n 3 x = f()` runs. Other statements are returned unchanged.

    It is the longest end of the statement that is valid Python and not an option of the magic.
    """
    magic = _RUNS_LINE.match(statement)
    if magic is None:
        return statement
    target = magic["target"] or ""
    for gap in re.compile(r"[ \t]+(?=[^\s-])").finditer(statement, magic.end() - 1):
        if _is_python(statement[gap.end() :]):
            return target + statement[gap.end() :]
    return statement


def _is_python(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError, MemoryError):
        return False
    return True


def _statements(source: str) -> Iterator[str]:
    """The logical lines of a cell, with their line ends.

    IPython syntax ends at the end of its line, or of the lines joined by backslashes. Brackets and
    quotes do not continue it.
    """
    start = 0
    while start < len(source):
        line = re.compile(r"(?:[^\n]*\\[ \t]*\n)*[^\n]*(?:\n|$)").match(source, start)
        assert line is not None
        end = line.end()
        code = line[0].lstrip(" \t")
        if not _IPYTHON.match(code.partition("\n")[0]) or _RUNS_LINE.match(code):
            end = _end_of_python(source, start)
        yield source[start:end]
        start = end


def _end_of_python(source: str, start: int) -> int:
    """The index of the end of the logical line that begins at `start`."""
    depth = 0
    for piece in _PIECE.finditer(source, start):
        if piece["opens"]:
            depth += 1
        elif piece["closes"]:
            depth -= 1
        elif piece["ends"] and depth <= 0:
            return piece.end()
    return len(source)
