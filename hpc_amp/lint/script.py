"""A launch script as the schedulers see it: lines, its first line, and who runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass

BOM = "\ufeff"
# Shells whose grammar `shell.py` knows. csh and tcsh are shells too, with another grammar.
_POSIX_SHELLS = {"sh", "bash", "dash", "ksh", "ksh93", "mksh", "zsh", "ash"}


@dataclass(frozen=True)
class LintedScript:
    """`lines` are without their line ends and a byte order mark; `lines[0]` is line 1."""

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
        """The name of the program after `#!`; None without such a line."""
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
        """Without a first line, sh or bash runs it."""
        return self.interpreter is None or self.interpreter in _POSIX_SHELLS


def read_script(data: bytes, name: str) -> LintedScript:
    """Bytes that are no UTF-8 are kept as they are, invisibly to all rules."""
    text = data.decode("utf-8", "surrogateescape")
    has_bom = text.startswith(BOM)
    raw = text.split("\n")
    crlf = next((number for number, line in enumerate(raw, 1) if line.endswith("\r")), None)
    if raw and crlf == len(raw):  # a lone \r at the very end is not a line end
        crlf = None
    lines = tuple(line.removesuffix("\r") for line in text.removeprefix(BOM).split("\n"))
    return LintedScript(name, text, lines, has_bom, crlf)
