"""Options of a command: their spellings, and which of them take a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def spellings(text: str, *, dash: str = "--") -> dict[str, str]:
    """The spellings of options, each with the option's name.

    `text` has entries with blanks between: `N/nodes` is the option `nodes`, spelled `--nodes` or
    `-N`; `x` has a letter only; `tasks-per-node=ntasks-per-node` is another spelling of
    `ntasks-per-node`. `dash` stands before names of more than one letter.
    """
    names: dict[str, str] = {}
    for entry in text.split():
        spelling, _, meaning = entry.partition("=")
        letter, _, name = spelling.rpartition("/")
        names[f"{dash}{name}" if len(name) > 1 else f"-{name}"] = meaning or name
        if letter:
            names[f"-{letter}"] = meaning or name
    return names


@dataclass(frozen=True)
class OptionTable:
    """The options of one command, each spelling with the option's name. `flags` take no value, or
    only one behind `=`."""

    with_value: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, spelling: str) -> str | None:
        """The name of an option, also of an unambiguous beginning of a `--long` one; None where
        there is no such option."""
        known = self.with_value.get(spelling) or self.flags.get(spelling)
        if known is not None:
            return known
        if not spelling.startswith("--"):
            return None
        longer = [name for name in self.all_long if name.startswith(spelling)]
        exact = {self.with_value.get(name) or self.flags.get(name) for name in longer}
        return exact.pop() if len(exact) == 1 else None

    def takes_value(self, spelling: str) -> bool | None:
        """None for an option that is not known."""
        if spelling in self.with_value:
            return True
        if spelling in self.flags:
            return False
        name = self.canonical(spelling)
        if name is None:
            return None
        return name in self.with_value.values()

    @property
    def all_long(self) -> list[str]:
        """All `--long` spellings."""
        return [name for name in (*self.with_value, *self.flags) if name.startswith("--")]

    def likely_meant(self, spelling: str) -> str | None:
        """The long option that a misspelt one stands for: it differs by an underscore, a letter or
        a swap of two. None if there is none so near."""
        known = self.all_long
        dashed = spelling
        if not any("_" in name for name in known):
            dashed = spelling.replace("_", "-")
        if dashed != spelling and self.canonical(dashed) is not None:
            return dashed
        return next((name for name in sorted(set(known)) if one_edit_apart(dashed, name)), None)


def one_edit_apart(one: str, other: str) -> bool:
    """Whether one letter more, less or other, or a swap of neighbours, makes one the other."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    left, right = one[start:], other[start:]
    if len(left) == len(right):
        swapped = left[1:2] + left[0:1] + left[2:]
        return left[1:] == right[1:] or swapped == right
    return left[1:] == right or right[1:] == left
