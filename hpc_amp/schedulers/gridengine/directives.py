"""How Grid Engine's qsub reads directives, and what can be written in one.

Tried on Son of Grid Engine 8.1.9; tests/unit/test_gridengine.py has the verdicts. qsub reads every
line of the script that begins with `#$`, whatever stands before it, a here document included. `#`
ends a line, also inside quotes. Quotes are taken off, and from the first one on blanks do not part
words any more, up to the end of the line: `-N "a" -j y` names a job `a -j y`. A backslash is an
ordinary character. Of an option that is repeated the last counts, but resources (`-l`) and
variables (`-v`) add up, name by name.
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
_BLANKS = " \t\r"


def words_of(text: str, line: int = 1) -> Split:
    """The words of a directive, which is the text behind the marker."""
    text, mark, comment = text.partition("#")
    quote = re.search("[\"']", text)
    is_open = quote is not None and text.count(quote[0]) % 2 == 1
    cut = mark != "" and (is_open or text[-1:] not in ("", *_BLANKS))
    # The word that the first quote stands in goes on to the end of the line.
    before = text if quote is None else re.sub(rf"[^{_BLANKS}]*$", "", text[: quote.start()])
    words = [Word(word, line) for word in re.findall(rf"[^{_BLANKS}]+", before)]
    if quote is not None:
        words.append(
            Word(re.sub("[\"']", "", text[len(before) :]).rstrip(_BLANKS), line, quoted=True)
        )
    return Split(tuple(words), comment=mark + comment if mark else None, cut=cut)


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
