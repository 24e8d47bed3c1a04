"""Where the files that ship beside the code lie: `configs`, `jobs` and `containers`."""

from __future__ import annotations

from pathlib import Path

from hpc_amp.errors import HpcAmpError

_PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """The folder `configs`, `jobs` or `containers`: in the package of an install (the wheel puts
    them into `_share`), beside the package in a checkout.

    Raises HpcAmpError where neither exists.
    """
    # The install comes first: beside an installed package lie other packages, which may well have
    # a folder of the same name.
    for folder in (_PACKAGE / "_share" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise HpcAmpError(
        f"this installation of hpc-amp has no folder {name!r}", hint="install it again"
    )
