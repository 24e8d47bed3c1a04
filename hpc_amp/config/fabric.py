"""Fabric profiles: the settings that a network between nodes needs, as named, documented blocks.

The string under a field is its documentation: `docs/sites.md` is generated from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hpc_amp.config.build import build
from hpc_amp.config.folders import check_known, check_own_name, named_files
from hpc_amp.config.source import read_file
from hpc_amp.config.values import environment_names, printable
from hpc_amp.errors import ConfigError

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site

RESERVED = ("auto", "none")


def variables(value: dict[str, str]) -> None:
    """A check that every entry can be a line `export NAME=value` of the script."""
    environment_names(value)
    for name, content in value.items():
        try:
            printable(content)
        except ValueError:
            raise ValueError(f"the value of {name} has a control character") from None


@dataclass(kw_only=True, slots=True, frozen=True)
class Fabric:
    """What a network between nodes needs."""

    name: Annotated[str, printable] = ""
    """The name for `fabric:` in a site file and `launch.fabric` in a job file. It is the file's
    name without `.yaml`, and may be left out."""
    description: Annotated[str, printable]
    """One line for the launch script: which network, and which library drives it."""
    source: Annotated[str, printable]
    """Who documents these settings. The launch script quotes it."""
    env: Annotated[dict[str, str], variables] = field(default_factory=dict)
    """Environment of every job."""
    multi_node_env: Annotated[dict[str, str], variables] = field(default_factory=dict)
    """Environment of jobs on several nodes only: what stops a job that needs no network."""
    notes: Annotated[str, printable] = ""
    """What to try when it does not work, as one line. The launch script quotes it."""

    def settings(self, nodes: int) -> dict[str, str]:
        """The environment of a job on so many nodes."""
        return {**self.env, **self.multi_node_env} if nodes > 1 else dict(self.env)

    def comments(self) -> list[str]:
        """What the launch script says above the settings, a line each."""
        lines = [
            f"{self.name}: {self.description}",
            f"From {self.source}.",
            self.notes,
        ]
        return [line for line in lines if line]


def load_fabric(path: Path) -> Fabric:
    """The profile that a file describes. Raises ConfigError like a site file does."""
    _, tree = read_file(path, "fabric profile")
    fabric = build(Fabric, tree)
    if path.stem in RESERVED:
        raise ConfigError(
            f"a fabric profile cannot be called {path.stem!r}",
            where=str(path),
            hint="launch.fabric gives the word a meaning of its own; rename the file",
        )
    check_own_name(fabric.name, path, tree)
    return dataclasses.replace(fabric, name=path.stem)


def fabric_files() -> dict[str, Path]:
    """Every profile by name: `$HPC_AMP_SITES/fabrics`, `~/.config/hpc-amp/fabrics`, then what ships
    with hpc-amp. A name that is found twice means the first of them."""
    return named_files("fabrics")


def find_fabric(name: str, where: str | None = None, key: str = "fabric") -> Fabric:
    """The profile of a name, which the key `key` at the place `where` gave.

    Raises ConfigError for an unknown name and for a profile with an error.
    """
    files = fabric_files()
    check_known(name, files, key=key, what="fabric profile", where=where)
    return load_fabric(files[name])


def fabric_of(job: Job, site: Site) -> Fabric | None:
    """The profile of a job on a site, or None. Both names were looked up before, with the places
    that gave them: by `load_site` and `check_job`."""
    if job.launch.fabric != "auto":
        return None if job.launch.fabric == "none" else find_fabric(job.launch.fabric)
    return None if site.fabric in (None, "none") else find_fabric(site.fabric)
