"""Checks of values, marks of keys, and the annotated types of the schema that carry them.

A check is a function of one value that raises ValueError with a message for the user if the value
is not allowed. Standard library only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from hpc_amp.config.units import parse_duration, parse_interval, parse_size, parse_step_interval
from hpc_amp.registry import Registry, load


class Fixed(NamedTuple):
    """Marks a key, or a section with all its keys, that `resume` cannot change. `reason` completes
    "it stays as it is: ...". A change from one of the values in `free` to another is allowed."""

    reason: str
    free: tuple[str, ...] = ()


if TYPE_CHECKING:
    from dataclasses import dataclass as section
else:

    def section(*, frozen: Literal[True], **options: bool) -> Callable[[type], type]:
        """`dataclass` without the methods that a class has from `Section`. A module with many
        sections does not import `annotations` from `__future__`: each annotation would be a text,
        to be compiled on its own when the keys are read."""

        def decorate(cls: type) -> type:
            above = [vars(base).get("__dataclass_params__") for base in cls.__mro__]
            family = [params for params in above if params is not None]
            # `dataclass` refuses to extend frozen classes by others, and the other way round.
            for params in family:
                params.frozen = False
            made = dataclasses.dataclass(**options, init=False, eq=False, repr=False)(cls)
            for params in (*family, made.__dataclass_params__):
                params.frozen = frozen
            return made

        return decorate


class Section:
    """The base of all sections of keys, which are frozen dataclasses. A command makes dozens of
    them, and `dataclass` would generate and compile the methods here for each one anew, half of the
    time. A section that has its own, as one by `dataclass` has, works as well."""

    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        known: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self)  # type: ignore[arg-type]
        for each in known:
            if each.name in values:
                value = values.pop(each.name)
            elif each.default is not dataclasses.MISSING:
                value = each.default
            elif each.default_factory is not dataclasses.MISSING:
                value = each.default_factory()
            else:
                raise TypeError(f"{type(self).__name__} needs a value for {each.name}")
            object.__setattr__(self, each.name, value)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return dict(self._values())

    def __setstate__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._values())})"

    def _values(self) -> list[tuple[str, Any]]:
        return [(each.name, getattr(self, each.name)) for each in dataclasses.fields(self)]  # type: ignore[arg-type]


class PathMark:
    """Marks a key that holds paths. Variables of the submitting shell in them are replaced
    (`config.paths`). The paths of a task are made absolute, and their folders are bound into the
    container."""


class FirstWeights(PathMark):
    """Marks a path of a file that is read only at the beginning of a run. The file has to exist
    when the job is submitted. A resumed run does not need it. `or_folder`: it may be a folder."""

    def __init__(self, *, or_folder: bool = False) -> None:
        self.or_folder = or_folder


class Registered(NamedTuple):
    """Marks a key whose value is one of the words `more`, or a name of the registry at `place`
    (`package.module:NAME`)."""

    place: str
    more: tuple[str, ...] = ()

    @property
    def registry(self) -> Registry[Any]:
        """The registry. It is imported here, at its first use."""
        found: Registry[Any] = load(self.place)
        return found

    def allows(self, value: str) -> bool:
        """Whether a value is allowed. Entry points of other packages, which take time to find, are
        looked up only if no registered name of this package matches."""
        return value in self.more or value in self.registry

    @property
    def choices(self) -> list[str]:
        """All allowed values, in the order in which they are shown."""
        return [*self.more, *(name for name in self.registry.names() if name not in self.more)]

    @property
    def own_choices(self) -> list[str]:
        """The allowed values without those that other packages add."""
        return [*self.more, *(name for name in self.registry.own() if name not in self.more)]


def at_least(minimum: float) -> Callable[[float], None]:
    """A check that a number is not below `minimum`."""

    def check(value: float) -> None:
        if value < minimum:
            raise ValueError(f"{value} is too small: it must be at least {minimum}")

    check.__doc__ = f"at least {minimum}"
    return check


def above(bound: float) -> Callable[[float], None]:
    """A check that a number is larger than `bound`."""

    def check(value: float) -> None:
        if value <= bound:
            raise ValueError(f"{value} is too small: it must be above {bound}")

    check.__doc__ = f"above {bound}"
    return check


def between(low: float, high: float) -> Callable[[float], None]:
    """A check that a number lies in `[low, high]`."""

    def check(value: float) -> None:
        if not low <= value <= high:
            raise ValueError(f"{value} is outside {low} to {high}")

    check.__doc__ = f"{low} to {high}"
    return check


def averaging(value: tuple[float, ...]) -> None:
    """A check that the coefficients of moving averages are each at least 0 and below 1."""
    if not all(0 <= coefficient < 1 for coefficient in value):
        raise ValueError(f"{list(value)} must each be at least 0 and below 1")


def image_side(value: int) -> None:
    """A check that a side in pixels can be halved down to 4 pixels."""
    if value < 16 or value & (value - 1):
        raise ValueError(f"{value} is not a power of two from 16 on")


def step_range(value: tuple[int, int]) -> None:
    """A check that the first of two steps is at least 1 and the last one not before it."""
    if not 1 <= value[0] <= value[1]:
        raise ValueError(f"{list(value)} is not a first and a last step, such as [20, 25]")


def rank_numbers(value: list[int]) -> None:
    """A check that a list has at least one rank, and no rank below 0."""
    if not value or min(value) < 0:
        raise ValueError(f"{value} is not a list of ranks, such as [0]")


def printable(value: str) -> None:
    """A check that text has no control character: no scheduler or mount option can carry one."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise ValueError(f"{value!r} has a newline or another control character")


def renaming(value: dict[str, str]) -> None:
    """A check that keys are regular expressions, and values their replacements."""
    for pattern, replacement in value.items():
        try:
            re.sub(pattern, replacement, "")
        except (re.error, IndexError) as error:
            raise EntryError(
                pattern,
                f"{replacement!r} cannot replace it: {error}",
                r"write a regular expression and a replacement, such as '^net_(\d)': '\1'",
            ) from None


def run_name(value: str) -> None:
    """A check that a name can be a folder, a scheduler's job name and a word in a command line."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError(
            f"{value!r} cannot name a run: use 1 to 64 letters, digits, '.', '_' and '-', "
            "starting with a letter or a digit"
        )


class EntryError(ValueError):
    """One entry of a mapping is wrong. `name` is its key; `hint` says what to do."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.name = name
        self.hint = hint


OWN_VARIABLES = {
    "RANK": "it differs from rank to rank",
    "LOCAL_RANK": "it differs from rank to rank",
    "GROUP_RANK": "it is the number of the rank's node",
    "WORLD_SIZE": "it is job.nodes x job.ranks_per_node",
    "LOCAL_WORLD_SIZE": "it is job.ranks_per_node",
    "MASTER_ADDR": "it is the name of the first node; `address` of a site file gives that name "
    "another form, such as ic-{host}",
    "MASTER_PORT": "it is another one for each job and attempt",
}
"""Environment variables that hpc-amp sets for every rank or launcher, with their meanings. A job
file and a site file cannot set them. The same holds for names that begin with `HPC_AMP_` and for
the variables of a scheduler (`Scheduler.own_variables`)."""


def own_variable(name: str) -> str | None:
    """The meaning of a variable that hpc-amp sets; None for any other variable."""
    if name.startswith("HPC_AMP_"):
        return "the parts of hpc-amp use it to exchange data"
    return OWN_VARIABLES.get(name)


def value_names(value: dict[str, str]) -> None:
    """A check that every key is a name, and that no value contains a NUL character."""
    for name, content in value.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is not a name of letters, digits and _")
        if "\0" in content:
            raise ValueError(f"the value of {name} holds a NUL character")


def environment_names(value: dict[str, str]) -> None:
    """A check that every key is the name of an environment variable that hpc-amp does not set
    itself, and that no value contains a NUL character."""
    for name, content in value.items():
        meaning = own_variable(name)
        if meaning is not None:
            raise EntryError(name, "hpc-amp sets it itself", f"leave it out: {meaning}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        if "\0" in content:
            raise ValueError(f"the value of {name} holds a NUL character")


def no_nul(value: list[str]) -> None:
    """A check that a command has a first word and no NUL character."""
    if not value or not value[0]:
        raise ValueError("it is empty: write the command and its arguments as a list")
    if any("\0" in word for word in value):
        raise ValueError("an argument holds a NUL character, which no program can receive")


def all_printable(value: list[str]) -> None:
    """A check that no item has a control character."""
    for item in value:
        printable(item)


Duration = Annotated[str, parse_duration]
Interval = Annotated[str, parse_interval]
StepInterval = Annotated[str, parse_step_interval]
Size = Annotated[str, parse_size]
Count = Annotated[int, at_least(1)]
Natural = Annotated[int, at_least(0)]
NonNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]
Fraction = Annotated[float, between(0, 1)]
Word = Annotated[str, printable]
Words = Annotated[list[str], all_printable]
Path = Annotated[str, printable, PathMark()]
Binds = Annotated[list[str], all_printable, PathMark()]
READ_AT_BEGIN = Fixed("first weights are read when a run begins")
NETWORK = Fixed("the weights in the checkpoints are those of this network")
WeightsFile = Annotated[str, printable, FirstWeights(), READ_AT_BEGIN]
WeightsSource = Annotated[str, printable, FirstWeights(or_folder=True), READ_AT_BEGIN]
