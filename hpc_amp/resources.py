"""What this machine has: the data files that are installed with the code, and programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hpc_amp.errors import HpcAmpError

Which = Callable[[str], "str | None"]
"""A search for a program by name, such as `which`. It returns a path, or None."""

_PACKAGE = Path(__file__).resolve().parent


def which(program: str) -> str | None:
    """The path of a program in PATH; None if it is not there. It finds what `shutil.which` finds.
    Most commands need nothing else of `shutil`, which loads three libraries for archives."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def resource_folder(name: str) -> Path:
    """The path of the folder `name`: `configs`, `jobs` or `containers`. An installed package has
    it in `_share`; in a checkout it lies beside the package.

    Raises HpcAmpError if neither folder exists.
    """
    # `_share` is tried first: the parent folder of an installed package is site-packages, where
    # another package may have a folder of the same name.
    for folder in (_PACKAGE / "_share" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise HpcAmpError(
        f"this installation of hpc-amp has no folder {name!r}", hint="install it again"
    )
