"""What the checks of the preflight know about a node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpc_amp.distributed.environment import environment_changes
from hpc_amp.distributed.world import World, resolve


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node, as its ranks will see it from inside the container."""

    resolved: Mapping[str, Any]
    """The contents of job.json."""
    run_dir: Path
    environ: Mapping[str, str]
    """The environment inside the container."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """The variables outside the container that the checks compare."""
    root: Path = Path("/")
    """The folder below which the files of the system and the image are looked up."""

    @property
    def job(self) -> Mapping[str, Any]:
        job: Mapping[str, Any] = self.resolved["job"]
        return job

    @property
    def in_container(self) -> bool:
        """Whether the checks run in a container. If so, the run directory is always bound."""
        return bool(self.resolved.get("binds"))

    @property
    def nodes(self) -> int:
        return int(self.job["job"]["nodes"])

    @property
    def ranks(self) -> int:
        """The number of ranks on this node."""
        request = self.job["job"]
        return int(request["ranks_per_node"] or max(1, request["gpus_per_node"]))

    @property
    def gpus(self) -> int:
        """The number of GPUs that the ranks on this node use."""
        train = self.job.get("train")
        if train and train["device"] == "cpu":
            return 0
        return int(self.job["job"]["gpus_per_node"])

    @cached_property
    def changes(self) -> dict[str, str | None]:
        return environment_changes(self.environ, self.resolved, self.run_dir)

    @cached_property
    def program(self) -> dict[str, str]:
        """The environment that the program will have."""
        changed: dict[str, str | None] = {**self.environ, **self.changes}
        return {name: value for name, value in changed.items() if value is not None}

    @property
    def master(self) -> tuple[str, int]:
        """MASTER_ADDR and MASTER_PORT of the ranks: `("", 0)` if they are not set."""
        address, port = (
            self.environ.get(f"HPC_AMP_{name}") or self.environ.get(name) or ""
            for name in ("MASTER_ADDR", "MASTER_PORT")
        )
        return address, int(port or 0)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def world(self) -> World:
        """The rank of this task among the tasks of all nodes, one on each node.

        Raises WorldError if the launcher's variables are missing or contradict the script.
        """
        one_a_node = {"HPC_AMP_WORLD_SIZE": str(self.nodes), "HPC_AMP_PPN": "1"}
        return resolve({**self.environ, "HPC_AMP_NNODES": str(self.nodes), **one_a_node})


def some(names: Iterable[str]) -> str:
    """The first six names as text, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - 6} more" if len(listed) > 6 else ""
    return ", ".join(listed[:6]) + more


def listed(folder: Path) -> list[str]:
    """The sorted names in a folder, or an empty list if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
