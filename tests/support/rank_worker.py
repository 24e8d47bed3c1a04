"""`python rank_worker.py PLAN_JSON RANK`: one rank that goes through several attempts.

Importing torch takes seconds, so it happens once, and each attempt is a fork that starts training
as `python -m hpc_amp.train` does. An entry of the plan is {job, attempt, size, port, task, stop};
ranks beyond `size` pass, and `task: gan:NAME` stands for a class of `support.gan`. A stop is {rank,
step, by}: after that step that rank sends itself SIGTERM or creates the stop file; `by: deadline`
is a deadline in the past for all. With a stop, the ranks exchange after every step.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# Every attempt would import these anew, torch._dynamo when it makes an optimizer.
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401

from hpc_amp.config.schema import to_plain
from hpc_amp.tasks import registry
from hpc_amp.tasks.classification import task  # noqa: F401
from hpc_amp.train import agreement, engine, session  # noqa: F401
from hpc_amp.train.__main__ import main

RANK = int(sys.argv[2])


class PlannedAgreement(agreement.Agreement):
    """Notes after which steps it exchanged, and sees to the stop that was planned."""

    stop: dict[str, Any] | None
    steps: list[int]
    stop_file: Path

    def due(self, step: int) -> bool:
        if self.stop is None:
            return super().due(step)
        if (self.stop.get("step"), self.stop.get("rank")) == (step, RANK):
            if self.stop["by"] == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self.stop_file.touch()
        return True

    def exchange(self, step: int, *, save: bool) -> Any:
        self.steps.append(step)
        return super().exchange(step, save=save)


def attempt(entry: dict[str, Any]) -> None:
    place = {"RANK": RANK, "LOCAL_RANK": RANK, "WORLD_SIZE": entry["size"]}
    place |= {"LOCAL_WORLD_SIZE": entry["size"], "MASTER_PORT": entry["port"]}
    place |= {"MASTER_ADDR": "127.0.0.1", "HPC_AMP_ATTEMPT": entry["attempt"]}
    if entry["stop"] and entry["stop"]["by"] == "deadline":
        place["HPC_AMP_STOP_AT"] = 1
    os.environ.update({name: str(value) for name, value in place.items()})
    folder = Path(entry["job"]).parent / "attempts" / str(entry["attempt"])
    PlannedAgreement.stop, PlannedAgreement.steps = entry["stop"], []
    PlannedAgreement.stop_file = folder / "stop"
    engine.Agreement = PlannedAgreement  # type: ignore[misc]
    if entry["task"].startswith("gan:"):
        registry.TASKS._own["classification"] = f"support.{entry['task']}"
    status = main([entry["job"]])
    noted = {"status": status, "pid": os.getpid(), "exchanges": PlannedAgreement.steps}
    (folder / f"rank{RANK}.json").write_text(json.dumps(noted))


def wait_for_the_attempt_before(entry: dict[str, Any]) -> None:
    """An attempt stops where it sees that a later one has begun."""
    before = Path(entry["job"]).parent / "attempts" / str(entry["attempt"] - 1)
    while entry["attempt"] > 1 and not (before / "outcome.json").exists():
        time.sleep(0.05)


def in_a_fork(entry: dict[str, Any]) -> bool:
    """Whether the attempt came to an end of any kind that is not a defect."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            attempt(entry)
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    whole = registry.job_from_plain({"name": "rehearsal", "train": {}})
    registry.job_from_plain(to_plain(whole))  # once with all keys, for their types are kept
    gc.freeze()  # a collection in a fork would copy what it looks at
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        wait_for_the_attempt_before(entry)
        if entry["size"] > RANK and not in_a_fork(entry):
            sys.exit(1)
