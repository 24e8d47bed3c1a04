"""What the terminal can show: its width, colours, bars, and text that is drawn again in place."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36", "dim": "2"}


class Screen:
    """Standard output. Only on a terminal, colours, bars and control codes are written. NO_COLOR
    switches colours off, and TERM=dumb all of them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.has_codes = self.is_terminal and os.environ.get("TERM", "dumb") != "dumb"
        self._has_colours = self.has_codes and not os.environ.get("NO_COLOR")
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        self._is_unicode = encoding == "utf8"
        self._drawn = 0
        self._drawn_size = (0, 0)
        self._text: list[str] | None = None

    @property
    def width(self) -> int:
        """The columns that text may use. The last one stays empty, because terminals differ in what
        they do after it."""
        return max(10, shutil.get_terminal_size().columns - 1)

    def coloured(self, text: str, colour: str) -> str:
        """The text in a colour, if the terminal has colours."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._has_colours and colour else text

    def bar(self, share: float, cells: int) -> str:
        """A bar of so many cells, filled in part; empty without a terminal that can show it."""
        if not self.has_codes:
            return ""
        full = round(max(0.0, min(1.0, share)) * cells)
        done, left = ("█", "░") if self._is_unicode else ("#", "-")
        return done * full + left * (cells - full)

    def cut(self, text: str, cells: int) -> str:
        """The text, or as much of its beginning as fits, with a mark for what is left out."""
        if cells_of(text) <= cells:
            return text
        mark = "…" if self._is_unicode else "~"
        kept = ""
        for character in text:
            if cells_of(kept) + cells_of(character) + 1 > cells:
                break
            kept += character
        return kept + mark

    def draw(self, lines: list[str]) -> None:
        """Show lines in the place of those that were drawn before. Lines that do not fit the height
        of the terminal are left out. Without control codes, lines are only printed if they differ
        from those before."""
        if not self.has_codes:
            if lines != self._text:
                print("\n".join(lines if self._text is None else ["", *lines]), flush=True)
            self._text = lines
            return
        size = shutil.get_terminal_size()
        room = max(2, size.lines - 1)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"({len(lines) - room + 1} more lines)"]
        # After a change of the width, the terminal may have wrapped the lines, or moved them.
        start = "\r" + (f"\x1b[{self._drawn}A" if self._drawn else "")
        if self._drawn and size != self._drawn_size:
            start = "\x1b[H\x1b[2J"
        # One write, and no line is erased before its new text is there: nothing flickers.
        sys.stdout.write(start + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._drawn, self._drawn_size = len(lines), size


def cells_of(text: str) -> int:
    """The columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
