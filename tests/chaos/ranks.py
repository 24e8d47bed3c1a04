"""Runs of real ranks whose mishaps are planned: the tests' side of `chaos.zygote`."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_ports
from support.training import settings
from support.zygote import Zygote

from hpc_amp.config.schema import Job, Launch, Resources, to_plain

PATIENCE_SECONDS = 300.0
"""After so long a rank that should have ended has failed the test. No statement about speed."""


@dataclass
class Attempt:
    """The ranks of one attempt at a run."""

    run: Run
    number: int
    pids: list[int]
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Folder of the attempt."""
        return self.run.path / "attempts" / str(self.number)

    def living(self) -> list[int]:
        """The ranks that have not ended."""
        for rank, pid in enumerate(self.pids):
            if rank not in self.statuses:
                status = self.run.zygote.ask("ended", pid)
                if status is not None:
                    self.statuses[rank] = status
        return [rank for rank in range(len(self.pids)) if rank not in self.statuses]

    def wait(self) -> list[int]:
        """The exit statuses of all ranks, by rank, once they have ended."""
        self.until(lambda: not self.living())
        return [self.statuses[rank] for rank in range(len(self.pids))]

    def until(self, condition: Any) -> None:
        """Wait for a condition; fails with what the ranks said where it does not come."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            # The ranks may have seen to it with their last deed.
            if time.monotonic() > end or (not self.living() and not condition()):
                self.kill()
                pytest.fail(f"this did not come about:\n{self.said()}")
            time.sleep(0.03)

    def kill(self) -> None:
        """SIGKILL to those that live."""
        for rank in self.living():
            os.kill(self.pids[rank], signal.SIGKILL)

    def said(self) -> str:
        """The log of all ranks so far."""
        log = self.run.log_of(self.number)
        return log.read_text() if log.exists() else ""

    @property
    def outcome(self) -> dict[str, Any]:
        """What the launch script would find."""
        content: dict[str, Any] = json.loads((self.path / "outcome.json").read_text())
        return content


@dataclass
class Run:
    """A run directory with a job in it."""

    zygote: Zygote
    path: Path
    train: dict[str, Any]
    timeout: str = "10m"
    log: Path | None = None
    """Where the ranks write; default: a file of each attempt's own in the run directory."""

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        job = Job(
            name="chaos",
            resources=Resources(gpus_per_node=0, cpus_per_gpu=1),
            launch=Launch(timeout=self.timeout),
            train=settings(device="cpu", **self.train),
        )
        (self.path / "job.json").write_text(json.dumps({"job": to_plain(job)}))

    def log_of(self, attempt: int) -> Path:
        """Where the ranks of an attempt write."""
        return self.log or self.path / f"said-{attempt}"

    def start(
        self,
        *mishaps: dict[str, Any],
        attempt: int = 1,
        size: int = 1,
        task: str | None = "Even",
        **environ: object,
    ) -> Attempt:
        """Start the ranks of an attempt. `task` is a class of `chaos.tasks`; None: the built-in."""
        place = {
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_ports(1)[0],
            "HPC_AMP_ATTEMPT": attempt,
            **environ,
        }
        pids = []
        for rank in range(size):
            named = {**place, "RANK": rank, "LOCAL_RANK": rank}
            request = {
                "job": str(self.path / "job.json"),
                "said": str(self.log_of(attempt)),
                "task": task,
                "environ": {name: str(value) for name, value in named.items()},
                "mishaps": mishaps,
            }
            pids.append(self.zygote.ask("start", request))
        return Attempt(self, attempt, pids)

    @property
    def summary(self) -> dict[str, Any]:
        """The facts at the end of the last attempt."""
        content: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return content

    def last_step(self) -> int:
        """The last step that was reported so far."""
        file = self.path / "metrics.jsonl"
        found = re.findall(r'^{"step": (\d+), ', file.read_text() if file.exists() else "", re.M)
        return int(found[-1]) if found else 0

    def checkpoints(self) -> list[int]:
        """The steps of the published checkpoints."""
        return sorted(int(p.name[5:]) for p in (self.path / "checkpoints").glob("step-*"))


def mishap(
    where: str, what: str, value: Any = None, *, at: int | None = None, rank: int | None = 0
) -> dict[str, Any]:
    """See `chaos.mishaps`."""
    return {"rank": rank, "where": where, "at": at, "what": what, "value": value}
