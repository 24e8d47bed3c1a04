"""Convert text to parts of a shell script. No other module does this.

Templates insert only `ShellText` and numbers (see `templates`). Text from a configuration therefore
has to pass `quote`, and shell code of the user has to be marked with `verbatim`.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpc_amp.resources import resource_folder

if TYPE_CHECKING:
    import jinja2

# The width of a command's lines, without the text in front of it.
_WIDTH = 80


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


@functools.cache
def templates(folder: str) -> jinja2.Environment:
    """The Jinja environment for the templates of a resource folder. Its templates raise TypeError
    for a value that is neither ShellText nor a number."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_folder(folder)),
        undefined=jinja2.StrictUndefined,
        finalize=_only_shell,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _only_shell(value: Any) -> Any:
    """Refuse any value of a template that is neither a number nor ShellText."""
    if isinstance(value, (ShellText, int)):
        return value
    raise TypeError(f"{value!r} would reach a shell without being quoted")
