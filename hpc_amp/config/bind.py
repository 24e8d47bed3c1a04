"""Binds: host paths that are mounted into a container, in the form of job files and site files."""

from __future__ import annotations

from typing import NamedTuple


class Bind(NamedTuple):
    """A bind, written as `source`, `source:destination` or `source:destination:options`."""

    source: str
    destination: str
    """The path in the container. Default: `source`."""
    options: str = ""
    """`ro` for a read-only mount."""

    @property
    def read_only(self) -> bool:
        """Whether the mount is read-only."""
        return "ro" in self.options.split(",")


def parse_bind(text: str) -> Bind | None:
    """Parse the text of a bind. Returns None if the text does not have this form."""
    source, *rest = text.split(":")
    destination = rest[0] if rest and rest[0] else source
    if not source or len(rest) > 2:
        return None
    return Bind(source, destination, rest[1] if len(rest) > 1 else "")
