"""`python rank_worker.py PLAN_JSON`: one rank that goes through several runs, one after the other.

Importing torch takes seconds, so many attempts share a process; attempts that have to prove a
resume are in different plans and therefore in different processes. The rank is told by the standard
variables. An entry of the plan is {job, attempt, port, stop}; a stop is {rank, step, by}: once that
rank has made that step it sends itself SIGTERM or creates the stop file. `by: deadline` is a
deadline in the past for all. Ranks then exchange after every step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hpc_amp.train import agreement, engine
from hpc_amp.train.session import run_rank
from hpc_amp.train.stopping import StopWatch

RANK = int(os.environ["RANK"])


class RecordingAgreement(agreement.Agreement):
    """Remembers after which steps it exchanged, and sees to the stop that was planned."""

    planned: dict[str, Any] | None
    steps: list[int]

    def due(self, step: int) -> bool:
        if self.planned is None:
            return super().due(step)
        if step == self.planned.get("step") and self.planned.get("rank") == RANK:
            if self.planned["by"] == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                assert self.watch.stop_file is not None
                self.watch.stop_file.touch()
        return True

    def exchange(self, step: int, *, save: bool) -> Any:
        self.steps.append(step)
        return super().exchange(step, save=save)


def attempt(entry: dict[str, Any]) -> None:
    job = Path(entry["job"])
    folder = job.parent / "attempts" / str(entry["attempt"])
    stop = entry["stop"]
    RecordingAgreement.planned, RecordingAgreement.steps = stop, []
    os.environ["MASTER_PORT"] = str(entry["port"])
    late = stop is not None and stop["by"] == "deadline"
    watch = StopWatch(stop_at=1.0 if late else None, stop_file=folder / "stop")
    watch.install_handlers()
    status = run_rank(job, entry["attempt"], watch)
    facts = {"status": status, "exchanges": RecordingAgreement.steps}
    (folder / f"rank{RANK}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    engine.Agreement = RecordingAgreement  # type: ignore[misc]
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        attempt(entry)
