"""The one place where text becomes part of a shell script.

Templates may only insert `ShellText` and numbers (see `templates`): whatever comes from a
configuration has to pass `quote`, and shell that a user wrote on purpose has to say `verbatim`.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpc_amp.resources import resource_folder

if TYPE_CHECKING:
    import jinja2

# Of a command, without what stands in front of it.
_WIDTH = 80


class ShellText(str):
    """Text that is safe to stand in a bash script as it is."""

    __slots__ = ()


def quote(value: str) -> ShellText:
    """`value` as one bash word that expands to exactly `value`. Raises ValueError for a NUL, which
    no argument can carry."""
    if "\0" in value:
        raise ValueError("a NUL character cannot stand in a command line")
    return ShellText(shlex.quote(value))


def words(values: Iterable[str]) -> ShellText:
    """Several words, each quoted."""
    return ShellText(" ".join(quote(value) for value in values))


def command_line(values: Iterable[str]) -> ShellText:
    """Words that are shell already, as one command over as many lines as it needs."""
    lines, line = [], ""
    for value in values:
        if line and len(line) + len(value) > _WIDTH:
            lines.append(line)
            line = ""
        line += f" {value}" if line else value
    return ShellText(" \\\n    ".join([*lines, line]))


def verbatim(text: str) -> ShellText:
    """Shell source that is meant as such: our own, or a user's `setup` lines."""
    return ShellText(text)


def comment(text: str) -> ShellText:
    """Text for the rest of a comment line: control characters would end it."""
    return ShellText("".join(letter if letter.isprintable() else "?" for letter in text))


@functools.cache
def templates(folder: str) -> jinja2.Environment:
    """The templates of a resource folder: of launch scripts, of definition files."""
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
    """Let a template insert nothing but numbers and text that went through this module."""
    if isinstance(value, (ShellText, int)):
        return value
    raise TypeError(f"{value!r} would reach a shell without being quoted")
