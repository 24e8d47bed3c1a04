"""A host path that is to be seen inside a container, as job files and site files write it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bind:
    """`source`, `source:destination` or `source:destination:options`."""

    source: str
    destination: str
    """Inside the container. Default: the same path as outside."""
    options: str = ""
    """`ro` for a read-only mount."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written through it."""
        return "ro" in self.options.split(",")


def parse_bind(text: str) -> Bind | None:
    """The bind that `text` writes, or None where it has not this form."""
    source, *rest = text.split(":")
    destination = rest[0] if rest and rest[0] else source
    if not source or len(rest) > 2:
        return None
    return Bind(source, destination, rest[1] if len(rest) > 1 else "")
