"""Reads a script from a file and writes it back. The bytes of unchanged code are kept."""

from __future__ import annotations

import ast
import io
import shutil
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.errors import UsageError
from hpc_amp.files import replacing


@dataclass(frozen=True)
class Source:
    """A Python file: its text, and the encoding to write it with."""

    path: Path
    text: str
    encoding: str

    def write(self, text: str) -> None:
        """Replace the text of the file atomically, with the same permissions.

        If the path is a symbolic link, its target is replaced. Raises UsageError if that fails.
        """
        path = self.path.resolve()
        try:
            with replacing(path) as new:
                new.write_bytes(text.encode(self.encoding))
                shutil.copymode(path, new)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises UsageError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def read(path: Path) -> Source:
    """Read a Python file with its declared encoding, or UTF-8.

    Raises UsageError if the file cannot be read or is not valid Python.
    """
    data = read_bytes(path)
    check_syntax(data, str(path))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:
        encoding = "utf-8"  # the first two lines are not valid; the error is reported below
    try:
        return Source(path, data.decode(encoding), encoding)
    except UnicodeDecodeError as error:
        # The parser skips comments, so it does not detect invalid bytes in them.
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: not valid Python 3: byte 0x{data[error.start]:02x} is not {encoding}, "
            "and no other encoding is declared"
        ) from None


def check_syntax(source: bytes | str, name: str) -> None:
    """Raise UsageError if a source is not valid Python. `name` is its name for messages.

    Raises RecursionError if it is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except MemoryError:
        # The parser raises this if its stack is full.
        raise RecursionError from None
    except SyntaxError as error:
        place = f"{name}:{error.lineno}:{error.offset}" if error.lineno else name
        raise UsageError(f"{place}: not valid Python 3: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"{name}: not valid Python 3: {error}") from None
