"""Fabric profiles: named sets of environment variables that a network between nodes needs.

The string under a field is its documentation: `docs/sites.md` is generated from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hpc_amp.config.build import build
from hpc_amp.config.folders import check_known, check_own_name, named_files
from hpc_amp.config.source import read_file
from hpc_amp.config.values import Section, environment_names, printable, section
from hpc_amp.errors import ConfigError

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site

RESERVED = ("auto", "none")


def variables(value: dict[str, str]) -> None:
    """Check that every entry can be written as a line `export NAME=value` of the script."""
    environment_names(value)
    for name, content in value.items():
        try:
            printable(content)
        except ValueError:
            raise ValueError(f"the value of {name} has a control character") from None


@section(kw_only=True, slots=True, frozen=True)
class Fabric(Section):
    """The settings that a network between nodes needs."""

    name: Annotated[str, printable] = ""
    """The name for `fabric:` in a site file and `launch.fabric` in a job file. It is the file's
    name without `.yaml`, and may be left out."""
    description: Annotated[str, printable]
    """One line for the launch script: which network, and which library drives it."""
    source: Annotated[str, printable]
    """The documentation of these settings. The launch script quotes it."""
    env: Annotated[dict[str, str], variables] = field(default_factory=dict)
    """Environment of every job."""
    multi_node_env: Annotated[dict[str, str], variables] = field(default_factory=dict)
    """Environment of jobs on several nodes only, such as settings that stop a job without a
    network."""
    notes: Annotated[str, printable] = ""
    """What to try when it does not work, as one line. The launch script quotes it."""

    def settings(self, nodes: int) -> dict[str, str]:
        """The environment of a job on `nodes` nodes."""
        return {**self.env, **self.multi_node_env} if nodes > 1 else dict(self.env)

    def comments(self) -> list[str]:
        """The comment lines that the launch script has above the settings."""
        lines = [
            f"{self.name}: {self.description}",
            f"From {self.source}.",
            self.notes,
        ]
        return [line for line in lines if line]


def load_fabric(path: Path) -> Fabric:
    """Read a fabric profile from a file. Raises ConfigError if the file cannot be read or is
    wrong."""
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
    """The files of all profiles by name, from `$HPC_AMP_SITES/fabrics`,
    `~/.config/hpc-amp/fabrics` and the installation, in this order. If two files have the same
    name, the first one counts."""
    return named_files("fabrics")


def find_fabric(name: str, where: str | None = None, key: str = "fabric") -> Fabric:
    """Read the profile of a name. `key` is the key that gave the name, and `where` its place, both
    for errors.

    Raises ConfigError if the name is unknown or the profile is wrong.
    """
    files = fabric_files()
    check_known(name, files, key=key, what="fabric profile", where=where)
    return load_fabric(files[name])


def fabric_of(job: Job, site: Site) -> Fabric | None:
    """The fabric profile of a job on a site: the job's, else the site's, or None. `load_site` and
    `check_job` have checked both names before, so errors here need no place."""
    if job.launch.fabric != "auto":
        return None if job.launch.fabric == "none" else find_fabric(job.launch.fabric)
    return None if site.fabric in (None, "none") else find_fabric(site.fabric)
