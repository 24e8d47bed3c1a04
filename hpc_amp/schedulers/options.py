"""Tables of a command's options: their spellings, and which of them take a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


def spellings(text: str, *, dash: str = "--") -> dict[str, str]:
    """Map the spellings of options to the options' names.

    `text` has one entry for each option, separated by blanks. `N/nodes` is the option `nodes`,
    spelled `--nodes` or `-N`. `x` is the option `-x` without a long name.
    `tasks-per-node=ntasks-per-node` is another spelling of `ntasks-per-node`. `dash` is put before
    names of more than one letter.
    """
    names: dict[str, str] = {}
    for entry in text.split():
        spelling, _, meaning = entry.partition("=")
        letter, _, name = spelling.rpartition("/")
        names[f"{dash}{name}" if len(name) > 1 else f"-{name}"] = meaning or name
        if letter:
            names[f"-{letter}"] = meaning or name
    return names


class OptionTable(NamedTuple):
    """The options of one command. Both tables map spellings to names. `flags` take no value, or
    only one after `=`."""

    with_value: Mapping[str, str] = {}
    flags: Mapping[str, str] = {}

    def canonical(self, spelling: str) -> str | None:
        """The name of an option. A `--long` spelling may be shortened if it stays unambiguous.
        Returns None for an unknown option."""
        known = self.with_value.get(spelling) or self.flags.get(spelling)
        if known is not None:
            return known
        if not spelling.startswith("--"):
            return None
        longer = [name for name in self.all_long if name.startswith(spelling)]
        exact = {self.with_value.get(name) or self.flags.get(name) for name in longer}
        return exact.pop() if len(exact) == 1 else None

    def takes_value(self, spelling: str) -> bool | None:
        """Whether an option takes a value. Returns None for an unknown option."""
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
        """The long option that a misspelled one probably means. It differs by underscores, by one
        letter, or by a swap of two neighbouring letters. None if there is no such option."""
        known = self.all_long
        dashed = spelling
        if not any("_" in name for name in known):
            dashed = spelling.replace("_", "-")
        if dashed != spelling and self.canonical(dashed) is not None:
            return dashed
        return next((name for name in sorted(set(known)) if one_edit_apart(dashed, name)), None)


def one_edit_apart(one: str, other: str) -> bool:
    """Whether two words differ by exactly one inserted, removed or replaced letter, or by one swap
    of two neighbouring letters."""
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
