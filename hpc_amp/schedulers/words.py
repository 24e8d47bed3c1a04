"""How schedulers split a directive into words."""

from __future__ import annotations

import re
from dataclasses import dataclass

# C's isspace(), which is not Python's: a no-break space is a letter to all schedulers.
BLANKS = " \t\v\f\r\n"


@dataclass(frozen=True)
class OptionWord:
    """A word as the scheduler gets it. `quoted` says that quotes were taken off it; `lost` are the
    characters whose backslash vanished inside quotes, where a shell would have kept it;
    `before_comma` is what stood before a quoted piece that holds a comma."""

    text: str
    line: int
    quoted: bool = False
    lost: str = ""
    before_comma: str | None = None


@dataclass(frozen=True)
class Split:
    """A directive split into words, and what went wrong with it."""

    words: tuple[OptionWord, ...]
    unmatched: str | None = None  # the quote that does not end
    comment: str | None = None  # what `#` took away, where it starts a comment
    cut: bool = False  # ... in the middle of a word


def plain_words(text: str, line: int) -> Split:
    """Split at white space, and no more."""
    return Split(tuple(OptionWord(word, line) for word in re.findall(f"[^{BLANKS}]+", text)))


def quoted_words(text: str, line: int, *, escapes_in_quotes: bool, has_comments: bool) -> Split:
    """Split like a shell: either kind of quotes groups, and a backslash escapes outside of quotes.

    `escapes_in_quotes`: a backslash escapes inside either kind of quotes too. `has_comments`: an
    unquoted `#` starts a comment, even in the middle of a word; otherwise it is an ordinary
    character.
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
