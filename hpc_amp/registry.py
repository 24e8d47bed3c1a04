"""Registries: classes of one kind by name, such as schedulers, container runtimes and tasks.

A class is added by one line in a registry of this package, or by an entry point of another
package. A class is imported at its first use. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpc_amp.errors import HpcAmpError

T = TypeVar("T")


class RegistryError(HpcAmpError):
    """A registered class cannot be imported, does not extend the base class, or lacks attributes
    or methods. The message names the class and its group of entry points."""

    exit_code = 2


class Registry(Generic[T]):
    """Classes of one kind, by name.

    `own` maps the names of this package's classes to `package.module:Class`. Each entry point of
    `group` adds a class under the entry point's name. It cannot replace a class of `own`. `base` is
    `package.module:Class` of the base class that all of them extend. `attributes` are the class
    attributes without a default, which each class has to set. If `name` is one of them, it has to
    be equal to the name of the entry point.
    """

    def __init__(
        self, group: str, base: str, own: Mapping[str, str], *, attributes: tuple[str, ...] = ()
    ) -> None:
        self.group = group
        self._attributes = attributes
        self._base = base
        self._own = dict(own)
        self._loaded: dict[tuple[str, str], type[T]] = {}

    def names(self) -> tuple[str, ...]:
        """All names: this package's in their order, then those of entry points, sorted."""
        return (*self._own, *self.others())

    def own(self) -> tuple[str, ...]:
        """The names of this package's classes."""
        return tuple(self._own)

    def others(self) -> tuple[str, ...]:
        """The names that entry points add, sorted."""
        return tuple(sorted(set(self._foreign()) - set(self._own)))

    def __contains__(self, name: str) -> bool:
        return name in self._own or name in self._foreign()

    def __iter__(self) -> Iterator[type[T]]:
        """The classes of `names`. Entry points are searched when the others are used up."""
        yield from map(self.get, self._own)
        yield from map(self.get, self.others())

    def get(self, name: str) -> type[T]:
        """Import and return the class of a name. Raises KeyError if the name is unknown, and
        RegistryError if its class cannot be used."""
        place = self.place(name)
        if (name, place) not in self._loaded:
            self._loaded[name, place] = self._load(name, place)
        return self._loaded[name, place]

    def place(self, name: str) -> str:
        """`package.module:Class` of a name. Imports nothing. Raises KeyError if the name is
        unknown."""
        return self._own[name] if name in self._own else self._foreign()[name]

    def _foreign(self) -> dict[str, str]:
        # importlib.metadata is slow, and needed only if an installed package has entry points of
        # this group.
        if not _has_entry_points(self.group):
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
                "the two have to be equal"
            )
        return found


def _has_entry_points(group: str) -> bool:
    """Whether an installed package has entry points of a group. Also True if `sys.path` contains
    an archive, which is not searched."""
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
            file = os.path.join(folder, name, "entry_points.txt")
            # Without a buffer: there may be hundreds, of few lines each.
            with contextlib.suppress(OSError), open(file, "rb", buffering=0) as opened:
                if heading in opened.read():
                    return True
    return False


def load(place: str) -> Any:
    """Import and return the object at `package.module:NAME`. Raises ImportError if the module
    cannot be imported, and AttributeError if it has no such name."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def code_beside(thing: object, name: str) -> str:
    """The text of the file `name` that lies in the same folder as the module of `thing`'s class.
    If there is none, the folders of its base classes are searched, nearest first. Returns an empty
    string if no folder has the file."""
    for cls in type(thing).__mro__:
        module = getattr(sys.modules.get(cls.__module__), "__file__", None)
        path = Path(module or "").parent / name
        if module is not None and path.is_file():
            return path.read_text()
    return ""
