"""The names of files of a data set. Standard library only: the machine that submits looks, too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_amp.data.errors import DataError

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of images, in small letters."""


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder and those below: their paths from there, sorted. Each
    folder is read once. Links are followed, but not back to a folder that they are in.

    What has a name that begins with a dot is no data, nor is what a folder of such a name holds.
    Raises DataError where a folder cannot be read, or where an image is a link that leads nowhere.
    """
    names: list[str] = []

    def add(place: str, above: Sequence[os.stat_result]) -> None:
        """Add the names in a folder, which is in the folders `above`."""
        here = os.stat(folder / place)
        if any(os.path.samestat(here, other) for other in above):
            return
        for entry in _entries(folder / place):
            name = place + entry.name
            if entry.is_dir():
                add(f"{name}/", (*above, here))
            elif entry.is_file():
                names.append(name)
            elif entry.is_symlink() and suffix_of(name) in SUFFIXES:
                goal = os.readlink(entry)
                raise DataError(f"{entry.path} is a link to {goal}, which does not exist")

    with readable(folder):
        add("", ())
    return sorted(names)


def images_in(folder: Path) -> list[str]:
    """Those of `names_in` that are images."""
    return [name for name in names_in(folder) if suffix_of(name) in SUFFIXES]


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without hidden ones. Raises DataError."""
    with readable(folder):
        return sorted(entry.name for entry in _entries(folder) if entry.is_dir())


def test_folder(root: Path) -> Path | None:
    """The folder of the test images in classes, `test` or `val`, or None. The `test` of many public
    sets has no classes, because they are secret: then it is `val`. Folders are read only if there
    are both. Raises DataError."""
    found = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if len(found) < 2:  # each rank asks
        return found[0] if found else None
    return next(filter(folders_in, found), found[0])


def suffix_of(name: str) -> str:
    """What a name ends with after its last point, and the point, in small letters."""
    return os.path.splitext(name)[1].lower()


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raises DataError where something in a folder cannot be read."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or folder} cannot be read: {error.strerror}") from None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not is_hidden(entry.name)]


def is_hidden(name: str) -> bool:
    """Whether what has this name is no data."""
    return name[0] == "." or name == "__MACOSX"  # the hidden files of a zip file from macOS
