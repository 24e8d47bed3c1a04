"""Training from a program or a notebook: the engine of a job, without a job file.

    from hpc_amp.config.schema import Data, Train
    from hpc_amp.train import fit

    fitted = fit(Train(data=Data(name="synthetic"), epochs=2), "results/first")
    fitted.metrics["accuracy"], fitted.networks["model"]

The same program runs on one process, under torchrun, srun or mpirun, and as the `run` of a job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hpc_amp.config.schema import Train
from hpc_amp.data.together import from_main
from hpc_amp.train.observer import Observer
from hpc_amp.train.schedule import RateFactor
from hpc_amp.train.sentry import EXIT_CHECKPOINTED
from hpc_amp.train.stages import TaskFactory, announce, conclude
from hpc_amp.train.standalone import standalone


@dataclass(frozen=True, slots=True)
class Fitted:
    """What came out of a training. `outcome` is finished, or checkpointed where it was told to stop
    early: the same call goes on from there. `metrics` are those of the newest evaluation,
    `networks` the trained ones by name, `summary` is the content of summary.json."""

    outcome: str
    step: int
    metrics: dict[str, float]
    summary: dict[str, Any]
    networks: dict[str, nn.Module]

    @property
    def exit_status(self) -> int:
        """What a program says with its exit status: 0 finished, 75 go on later, 1 not saved."""
        return {"finished": 0, "checkpointed": EXIT_CHECKPOINTED}.get(self.outcome, 1)


def fit(
    train: Train,
    out: str | os.PathLike[str],
    *,
    task: TaskFactory | None = None,
    observers: Sequence[Observer] = (),
    rate: RateFactor | None = None,
    timeout: float = 600.0,
) -> Fitted:
    """Train as `train` says, in the run directory `out`; every rank calls this.

    Where `out` has checkpoints, it goes on from the newest; one that works on it meanwhile gives
    way. It stops early at a checkpoint on SIGTERM, SIGINT, SIGUSR1 or SIGUSR2, and in a job when
    that is to stop. `task` is a class of your own (see `hpc_amp.tasks.base`), or a function that
    makes a task, in place of the one that `train.task` names; `rate(step, steps)` is a learning
    rate schedule of your own, as a part of the peak rate. `timeout` (seconds) is how long ranks
    wait for each other.

    Raises SettingError, DataError, LoaderError, ModelError, PrecisionError, DeviceError, WorldError
    or TrainingError, each with one line for the user; `run_program` shows them so.
    """
    with standalone(train, out, task, observers, rate, timeout) as (engine, run, name):
        announce(name, engine)
        reason = engine.fit()
        outcome = "checkpointed" if reason else "finished"
        outcome = from_main(engine.world, lambda: conclude(name, run, engine, reason)) or outcome
        return Fitted(
            outcome, engine.step, engine.metrics, engine.report.summary(), engine.networks
        )


def evaluate(
    train: Train,
    out: str | os.PathLike[str],
    *,
    task: TaskFactory | None = None,
    timeout: float = 600.0,
) -> dict[str, float]:
    """The metrics of the newest checkpoint in `out` on the test data, or, where there is none, of
    the networks as they are built. Errors are those of `fit`."""
    with standalone(train, out, task, (), None, timeout, attempt=0) as (engine, _, _):
        if engine.evaluated_step != engine.step:
            engine.evaluate()
        return engine.metrics
