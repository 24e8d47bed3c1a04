"""How Grid Engine's qsub reads directives, and what can be written in one.

Tried on Son of Grid Engine 8.1.9; tests/unit/test_gridengine.py has the verdicts. qsub reads every
line of the script that begins with `#$`, whatever stands before it, a here document included. `#`
ends a line, also inside quotes. Either kind of quotes groups words and is taken off, also inside
the other kind; a backslash is an ordinary character. Of an option that is repeated the last counts,
but resources (`-l`) and variables (`-v`) add up, name by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpc_amp.errors import ConfigError
from hpc_amp.lint.directives import Split, Word

MARKER = "#$"
VALUES = {
    **dict.fromkeys(("-clear", "-cwd", "-h", "-hard", "-notify", "-soft", "-V"), 0),
    **dict.fromkeys(("-terse", "-verify", "-help"), 0),
    **dict.fromkeys(("-@", "-a", "-ac", "-A", "-ar", "-b", "-binding", "-c", "-C", "-ckpt"), 1),
    **dict.fromkeys(("-dc", "-display", "-dl", "-e", "-hold_jid", "-hold_jid_ad", "-i", "-j"), 1),
    **dict.fromkeys(("-js", "-jsv", "-l", "-m", "-M", "-masterq", "-N", "-now", "-o", "-p"), 1),
    **dict.fromkeys(("-P", "-pty", "-q", "-R", "-r", "-S", "-sc", "-shell", "-sync", "-t"), 1),
    **dict.fromkeys(("-tc", "-v", "-w", "-wd"), 1),
    "-pe": 2,
}
"""Options of qsub, and how many words each takes."""
_BLANKS = " \t"
_QUOTES = "\"'"


def words_of(text: str, line: int = 1) -> Split:
    """The words of a directive, which is the text behind the marker."""
    text, mark, comment = text.partition("#")
    words: list[Word] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at >= len(text):
            cut = bool(mark) and text[-1:] not in ("", *_BLANKS)
            return Split(tuple(words), comment=mark + comment if mark else None, cut=cut)
        letters: list[str] = []
        quote, quoted = "", False
        while at < len(text) and (quote or text[at] not in _BLANKS):
            letter = text[at]
            if letter in _QUOTES and quote in ("", letter):
                quote, quoted = letter if not quote else "", True
            elif letter not in _QUOTES:
                letters.append(letter)
            at += 1
        words.append(Word("".join(letters), line, quoted))
        if quote:
            return Split(tuple(words), unmatched=quote)


def options_of(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The options of a directive with their values. What is not an option has an empty name."""
    rest = iter(words)
    for word in rest:
        if word in VALUES:
            yield word, [value for _, value in zip(range(VALUES[word]), rest, strict=False)]
        elif word.startswith("-"):
            yield word, []
        else:
            yield "", [word]


def names_of(words: Sequence[str]) -> set[str]:
    """What a directive sets: its options. A resource counts as one of its own (`-l h_rt`), and so
    does a variable (`-v NAME`)."""
    names = set()
    for name, values in options_of(words):
        if name in ("-l", "-v"):
            items = ",".join(values).split(",")
            names |= {f"{name} {item.partition('=')[0]}" for item in items}
        else:
            names.add(name)
    return names


def written(value: str) -> str:
    """A value as a directive carries it. Raises ConfigError where none can."""
    found = re.search(r"[\"'#\x00-\x1f\x7f]", value)
    if found is not None:
        raise ConfigError(
            f"Grid Engine cannot carry {value!r}: in a directive {found[0]!r} is not part of a "
            "value, whether it is quoted or not"
        )
    return f'"{value}"' if value == "" or re.search(r"[ \t]", value) else value
