"""The folders of site files and fabric profiles: the user's, the group's and the installation's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from hpc_amp.config.suggest import nearest
from hpc_amp.config.tree import MappingNode
from hpc_amp.errors import ConfigError
from hpc_amp.resources import resource_folder


def named_files(kind: Literal["sites", "fabrics"]) -> dict[str, Path]:
    """The YAML files of a kind by name, without `.yaml`. If two folders have a file of the same
    name, the first folder's counts. Raises ConfigError if `$HPC_AMP_SITES` is not a folder, or if
    one of the folders cannot be read."""
    files: dict[str, Path] = {}
    for folder in _folders(kind):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be read: {error.strerror}", hint="check its permissions"
            ) from None
        for path in sorted(folder / name for name in names if name.endswith(".yaml")):
            files.setdefault(path.stem, path)
    return files


def check_known(name: str, files: Iterable[str], *, key: str, what: str, where: str | None) -> None:
    """Raise ConfigError if `name` is not among `files`. `key` is the key that gave the name,
    `where` its place, and `what` the kind of file, such as "fabric profile"."""
    names = sorted(files)
    if name in names:
        return
    near = nearest(name, names)
    known = f"the {what.rpartition(' ')[2]}s are {', '.join(names)}"
    raise ConfigError(
        f"{key}: there is no {what} {name!r}",
        where=where,
        hint=f"did you mean {near}? {known[0].upper()}{known[1:]}" if near else known,
    )


def check_own_name(name: str, path: Path, tree: MappingNode) -> None:
    """Raise ConfigError if the key `name` of a file differs from the file's name."""
    if name and name != path.stem:
        raise ConfigError(
            f"name: {name!r} is not the file's name",
            where=tree.entries["name"].where,
            hint=f"leave the key out, or rename the file to {name}.yaml",
        )


def own_folder(kind: Literal["sites", "fabrics"]) -> Path:
    """The user's folder, `~/.config/hpc-amp/sites`. It need not exist."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    return config / "hpc-amp" / kind


def _folders(kind: Literal["sites", "fabrics"]) -> list[Path]:
    """The folders in the order of search: `$HPC_AMP_SITES` (for fabric profiles its subfolder),
    `~/.config/hpc-amp`, the installation."""
    folders = [own_folder(kind), resource_folder("configs") / kind]
    own = os.environ.get("HPC_AMP_SITES")
    if not own:
        return folders
    if not os.path.isdir(own):
        raise ConfigError(
            f"there is no folder {own}", where="$HPC_AMP_SITES", hint="correct or unset it"
        )
    return [Path(own) if kind == "sites" else Path(own) / kind, *folders]
