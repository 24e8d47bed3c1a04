"""Where files lie that users, groups and hpc-amp itself can provide: sites and fabric profiles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from hpc_amp.errors import ConfigError
from hpc_amp.resources import resource_folder


def named_files(kind: Literal["sites", "fabrics"]) -> dict[str, Path]:
    """Every YAML file of a kind by its name. A name that is found twice means the first of them."""
    files: dict[str, Path] = {}
    for folder in _folders(kind):
        for path in sorted(folder.glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def _folders(kind: str) -> list[Path]:
    """`$HPC_AMP_SITES` (fabric profiles in a folder of it), `~/.config/hpc-amp`, what ships."""
    own = os.environ.get("HPC_AMP_SITES")
    if own and not Path(own).is_dir():
        raise ConfigError(
            f"there is no folder {own}", where="$HPC_AMP_SITES", hint="correct or unset it"
        )
    config = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    folders = [Path(own) if kind == "sites" else Path(own) / kind] if own else []
    return [*folders, config / "hpc-amp" / kind, resource_folder("configs") / kind]
