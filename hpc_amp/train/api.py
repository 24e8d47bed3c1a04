"""Training in a program or a notebook: the same engine as in a job, but no job file.

    from hpc_amp.config.schema import Data, Train
    from hpc_amp.train import fit

    fitted = fit(Train(data=Data(name="synthetic"), epochs=2), "results/first")
    fitted.metrics["accuracy"], fitted.networks["model"]

The program may run as one process, under torchrun, srun or mpirun, or as the `run` of a job.
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
    """The result of `fit`.

    `outcome`: `finished`, or `checkpointed` if it was stopped early; the same call then goes on.
    `step`: the number of completed steps.
    `metrics`: those of the newest evaluation.
    `summary`: the content of summary.json.
    `networks`: the trained networks by name.
    """

    outcome: str
    step: int
    metrics: dict[str, float]
    summary: dict[str, Any]
    networks: dict[str, nn.Module]

    @property
    def exit_status(self) -> int:
        """The exit status for a program: 0 finished, 75 stopped at a checkpoint, 1 not saved."""
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
    """Train a task in the run directory `out`. A collective call: every rank makes it.

    If `out` has checkpoints, training goes on from the newest one. Another process that is working
    on `out` stops then. Training stops early, at a checkpoint, on SIGTERM, SIGINT, SIGUSR1 or
    SIGUSR2, and in a job when the job has to stop.

    `train`: the settings, the same as the `train` section of a job file.
    `task`: your own class (see `hpc_amp.tasks.base`), or a function that makes a task. It replaces
    the task that `train.task` names.
    `observers`: are called during training (`hpc_amp.train.observer`).
    `rate(step, steps)`: a learning rate schedule of your own, relative to the peak rate.
    `timeout`: seconds that ranks wait for each other.

    Raises SettingError, TaskError, DataError, ModelError, PrecisionError, DeviceError, WorldError
    or TrainingError, each with a message of one line for the user. `run_program` prints
    them in this form.
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
    """The metrics on the test data of the newest checkpoint in `out`, or of the untrained networks
    if there is none. Arguments and errors are those of `fit`. A collective call."""
    with standalone(train, out, task, (), None, timeout, attempt=0) as (engine, _, _):
        if engine.evaluated_step != engine.step:
            engine.evaluate()
        return engine.metrics
