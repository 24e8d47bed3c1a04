"""Things of one kind that can be added: by one line of a registry here, or by an entry point of
another package. A class is imported when it is asked for, not before. Standard library only."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RegistryError(Exception):
    """A registered class that cannot be imported, is none of its kind, or lacks methods. The
    message says which package it belongs to."""


class Registry(Generic[T]):
    """Classes of one kind, by name.

    `own` maps names to `package.module:Class`. An entry point of `group` adds one under its own
    name; it cannot replace one of `own`. `base` is `package.module:Class` of the class that all of
    them extend, and `attributes` are those of its attributes that have no default. A `name` among
    them is the one under which an entry point adds the class.
    """

    def __init__(
        self, group: str, base: str, own: Mapping[str, str], *, attributes: tuple[str, ...] = ()
    ) -> None:
        self.group = group
        self._attributes = attributes
        self._base = base
        self._own = dict(own)

    def names(self) -> tuple[str, ...]:
        """All names, those of this package first."""
        return (*self._own, *sorted(set(self._foreign()) - set(self._own)))

    def own(self) -> tuple[str, ...]:
        """The names of this package."""
        return tuple(self._own)

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._foreign()

    def __iter__(self) -> Iterator[type[T]]:
        return map(self.get, self.names())

    def get(self, name: str) -> type[T]:
        """The class of that name. Raises KeyError where nothing has it, and RegistryError where
        what has it cannot be used."""
        return self._load(name, self.place(name))

    def place(self, name: str) -> str:
        """`package.module:Class` of that name, without importing it. Raises KeyError where nothing
        has the name."""
        return self._own[name] if name in self._own else self._foreign()[name]

    def _foreign(self) -> dict[str, str]:
        # importlib.metadata is slow to import: `lint` and `--help` do without where they can.
        if "importlib.metadata" not in sys.modules and not _has_entry_points(self.group):
            return {}
        import importlib.metadata

        points = importlib.metadata.entry_points(group=self.group)
        return {point.name: point.value for point in points}

    def _load(self, name: str, place: str) -> type[T]:
        try:
            found: type[T] = load(place)
        except (ImportError, AttributeError) as error:
            raise RegistryError(
                f"{name!r} of the group {self.group} is {place}, which cannot be imported: {error}"
            ) from error
        base = load(self._base)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise RegistryError(
                f"{name!r} of the group {self.group} is {place}, which does not extend "
                f"{self._base.replace(':', '.')}"
            )
        lacking = [one for one in self._attributes if not hasattr(found, one)]
        lacking += sorted(getattr(found, "__abstractmethods__", ()))
        if lacking:
            raise RegistryError(
                f"{name!r} of the group {self.group} is {place}, which lacks: {', '.join(lacking)}"
            )
        own_name = getattr(found, "name", name) if "name" in self._attributes else name
        if own_name != name and name not in self._own:
            raise RegistryError(
                f"{name!r} of the group {self.group} is {place}, whose `name` is {own_name!r}: "
                "the two have to be the same"
            )
        return found


def _has_entry_points(group: str) -> bool:
    """Whether an installed package has entry points of a group, or may have: of an archive in
    sys.path it is not known."""
    heading = f"[{group}]".encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            file = Path(folder, name, "entry_points.txt")
            if file.is_file() and heading in file.read_bytes():
                return True
    return False


def load(place: str) -> Any:
    """What is at `package.module:NAME`. Raises ImportError or AttributeError."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def code_beside(thing: object, name: str) -> str:
    """The text of the file `name` in the folder of the module of an object's class, or of the
    nearest class that this one extends; empty where no folder has such a file."""
    for cls in type(thing).__mro__:
        module = getattr(sys.modules.get(cls.__module__), "__file__", None)
        path = Path(module or "").parent / name
        if module is not None and path.is_file():
            return path.read_text()
    return ""
