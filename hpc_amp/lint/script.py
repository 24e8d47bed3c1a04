"""Read a launch script: its lines, and the interpreter that runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass

BOM = "\ufeff"
# Shells that `shell.py` can read. csh and tcsh have another grammar.
_POSIX_SHELLS = {"sh", "bash", "dash", "ksh", "ksh93", "mksh", "zsh", "ash"}


@dataclass(frozen=True)
class LintedScript:
    """A script. `lines` have no line ends and no byte order mark; `lines[0]` is line 1."""

    name: str
    text: str
    lines: tuple[str, ...]
    has_bom: bool
    first_crlf: int | None

    @property
    def has_shebang(self) -> bool:
        return not self.has_bom and self.text.startswith("#!")

    @property
    def interpreter(self) -> str | None:
        """The name of the program after `#!`, or None if there is no such line."""
        match = re.match(r"\ufeff?\s*#\s?!\s*(\S+)([^\n]*)", self.text)
        if match is None:
            return None
        words: list[str] = [match[1], *match[2].split()]
        names = [word.rpartition("/")[2] for word in words]
        if names[0] != "env":
            return names[0]
        rest = (name for name in names[1:] if not name.startswith("-") and "=" not in name)
        return next(rest, None)

    @property
    def is_posix_shell(self) -> bool:
        """Whether sh or a similar shell runs it. A script without `#!` is run by sh or bash."""
        return self.interpreter is None or self.interpreter in _POSIX_SHELLS


def read_script(data: bytes, name: str) -> LintedScript:
    """Make a script from the bytes of a file. Bytes that are not UTF-8 become surrogates."""
    text = data.decode("utf-8", "surrogateescape")
    has_bom = text.startswith(BOM)
    raw = text.split("\n")
    crlf = next((number for number, line in enumerate(raw, 1) if line.endswith("\r")), None)
    if raw and crlf == len(raw):  # a lone \r at the very end is not a line end
        crlf = None
    lines = tuple(line.removesuffix("\r") for line in text.removeprefix(BOM).split("\n"))
    return LintedScript(name, text, lines, has_bom, crlf)
