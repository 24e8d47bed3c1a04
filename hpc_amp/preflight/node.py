"""One node as its ranks will find it, and what a check says of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_amp.distributed.environment import environment_changes
from hpc_amp.distributed.world import World, resolve


@dataclass(frozen=True)
class CheckResult:
    """What one check says. The ids are those of docs/doctor.md."""

    id: str
    status: str
    """good, warning, error or unknown: it cannot be checked here."""
    what: str
    why: str = ""
    fix: str = ""
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node as the ranks on it will find it."""

    resolved: Mapping[str, Any]
    """job.json."""
    run_dir: Path
    environ: Mapping[str, str]
    """What the container made of the launcher's environment."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """What matters of the environment outside the container."""
    root: Path = Path("/")
    """Where the files of system and image are looked up."""

    @property
    def job(self) -> Mapping[str, Any]:
        job: Mapping[str, Any] = self.resolved["job"]
        return job

    @property
    def in_container(self) -> bool:
        """Whether it is looked at from inside a container, which always has the run directory
        bound."""
        return bool(self.resolved.get("binds"))

    @property
    def nodes(self) -> int:
        return int(self.job["job"]["nodes"])

    @property
    def ranks(self) -> int:
        """Ranks of this node."""
        request = self.job["job"]
        return int(request["ranks_per_node"] or max(1, request["gpus_per_node"]))

    @property
    def gpus(self) -> int:
        """GPUs that its ranks shall compute on."""
        train = self.job.get("train")
        if train and train["device"] == "cpu":
            return 0
        return int(self.job["job"]["gpus_per_node"])

    @cached_property
    def changes(self) -> dict[str, str | None]:
        return environment_changes(self.environ, self.resolved, self.run_dir)

    @cached_property
    def program(self) -> dict[str, str]:
        """The environment of the program."""
        changed: dict[str, str | None] = {**self.environ, **self.changes}
        return {name: value for name, value in changed.items() if value is not None}

    @property
    def master(self) -> tuple[str, int]:
        """Where the ranks meet."""
        address, port = (
            self.environ.get(f"HPC_AMP_{name}") or self.environ.get(name) or ""
            for name in ("MASTER_ADDR", "MASTER_PORT")
        )
        return address, int(port or 0)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def world(self) -> World:
        """Place of this task among those of all nodes. Raises WorldError."""
        one_a_node = {"HPC_AMP_WORLD_SIZE": str(self.nodes), "HPC_AMP_PPN": "1"}
        return resolve({**self.environ, "HPC_AMP_NNODES": str(self.nodes), **one_a_node})


Findings = Iterator[CheckResult]


def some(names: Iterable[str]) -> str:
    """A few names, however many there are."""
    listed = sorted(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return ", ".join(listed[:6]) + more


def listed(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
