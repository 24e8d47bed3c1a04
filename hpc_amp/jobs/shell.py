"""Convert text to parts of a shell script. No other module does this.

Scripts get only `ShellText` and numbers (`fill`). Text from a configuration therefore has to pass
`quote`, and shell code of the user has to be marked with `verbatim`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from hpc_amp.resources import resource_folder

# The width of a command's lines, without the text in front of it.
_WIDTH = 80
_FIELD = r"\{\{ (\w+) \}\}"

Values = Mapping[str, "ShellText | int | list[ShellText]"]
"""The values of a script's fields by name."""


class ShellText(str):
    """Text that may be inserted into a bash script unchanged."""

    __slots__ = ()


def quote(value: str) -> ShellText:
    """Quote `value` as one bash word that expands to exactly `value`. Raises ValueError if it
    contains a NUL character, which no argument can contain."""
    if "\0" in value:
        raise ValueError("a command line cannot contain a NUL character")
    return ShellText(shlex.quote(value))


def words(values: Iterable[str]) -> ShellText:
    """Quote several words, and join them with spaces."""
    return ShellText(" ".join(quote(value) for value in values))


def command_line(values: Iterable[str]) -> ShellText:
    """Join words that are shell code already to one command, with line breaks if it is long."""
    lines, line = [], ""
    for value in values:
        if line and len(line) + len(value) > _WIDTH:
            lines.append(line)
            line = ""
        line += f" {value}" if line else value
    return ShellText(" \\\n    ".join([*lines, line]))


def verbatim(text: str) -> ShellText:
    """Mark text as shell code: hpc-amp's own, or a user's `setup` lines."""
    return ShellText(text)


def comment(text: str) -> ShellText:
    """Convert text for use in a comment line. Control characters, which would end the comment, are
    replaced by `?`."""
    return ShellText("".join(letter if letter.isprintable() else "?" for letter in text))


def fill(name: str, values: Values) -> ShellText:
    """A file of the folder `jobs` with its fields, `{{ name }}`, replaced by values. A line with
    the field of a list is repeated for each item; it is left out if the list is empty. Raises
    KeyError for a field without a value, and TypeError for text that was not quoted."""
    filled: list[str] = []
    for line in (resource_folder("jobs") / name).read_text().splitlines(keepends=True):
        versions = [values]
        for field in re.findall(_FIELD, line):
            value = values[field]
            if isinstance(value, list):
                versions = [{**values, field: item} for item in value]
        filled += [_with_values(line, version) for version in versions]
    return ShellText("".join(filled))


def _with_values(line: str, values: Values) -> str:
    return re.sub(_FIELD, lambda field: only_shell(values[field[1]]), line)


def only_shell(value: object) -> str:
    """The text of a number or of ShellText. Raises TypeError for any other value."""
    if isinstance(value, (ShellText, int)):
        return str(value)
    raise TypeError(f"{value!r} would reach a shell without being quoted")
