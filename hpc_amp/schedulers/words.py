"""Split a directive into words as schedulers do."""

from __future__ import annotations

import re
from typing import NamedTuple

# The blanks of C's isspace(). Python's str.isspace() also includes the no-break space, which no
# scheduler treats as a blank.
BLANKS = " \t\v\f\r\n"


class OptionWord(NamedTuple):
    """A word of a directive. `quoted`: quotes were removed from it. `lost`: characters inside
    quotes whose backslash was removed, although a shell would have kept it. `before_comma`: the
    text before a quoted part that contains a comma."""

    text: str
    line: int
    quoted: bool = False
    lost: str = ""
    before_comma: str | None = None


class Split(NamedTuple):
    """A directive that was split into words, and the problems found in it."""

    words: tuple[OptionWord, ...]
    unmatched: str | None = None
    """The quote that has no end."""
    comment: str | None = None
    """The text from an unquoted `#` on, which is a comment."""
    cut: bool = False
    """Whether this comment began in the middle of a word."""


def plain_words(text: str, line: int) -> Split:
    """Split at blanks only. `line` is the line number for the words."""
    return Split(tuple(OptionWord(word, line) for word in re.findall(f"[^{BLANKS}]+", text)))


def quoted_words(text: str, line: int, *, escapes_in_quotes: bool, has_comments: bool) -> Split:
    """Split at blanks outside of quotes. Single and double quotes have the same meaning, and a
    backslash outside of quotes escapes the next character.

    `line` is the line number for the words. `escapes_in_quotes`: a backslash escapes inside quotes
    too. `has_comments`: an unquoted `#` starts a comment, even in the middle of a word; otherwise
    it is an ordinary character.
    """
    words: list[OptionWord] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in BLANKS:
            at += 1
        if at >= end:
            return Split(tuple(words))
        if has_comments and text[at] == "#":
            return Split(tuple(words), comment=text[at:])
        letters: list[str] = []
        quote, quoted, lost = "", False, ""
        before, comma = "", None
        while at < end and (quote or text[at] not in BLANKS):
            letter = text[at]
            if letter == "\\" and (escapes_in_quotes or not quote):
                at += 1
                escaped = text[at : at + 1]
                if not escaped:  # the end of the line
                    break
                letters.append(escaped)
                if quote and escaped not in "$`'\"\\":
                    lost += escaped
            elif letter == quote:
                quote = ""
            elif quote:
                letters.append(letter)
                comma = before if letter == "," else comma
            elif letter in "'\"":
                quote, quoted = letter, True
                before = "".join(letters)
            elif has_comments and letter == "#":
                words.append(OptionWord("".join(letters), line, quoted, lost, comma))
                return Split(tuple(words), comment=text[at:], cut=True)
            else:
                letters.append(letter)
            at += 1
        if quote:
            return Split(tuple(words), unmatched=quote)
        if letters or quoted:
            words.append(OptionWord("".join(letters), line, quoted, lost, comma))
