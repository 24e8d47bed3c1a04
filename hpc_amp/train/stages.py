"""How a training begins and ends, both in a job and in a program of the user."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from hpc_amp.config.schema import Train
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import World
from hpc_amp.errors import JobError
from hpc_amp.files import write_json
from hpc_amp.tasks.base import Task
from hpc_amp.tasks.build import build_task
from hpc_amp.train.engine import Engine
from hpc_amp.train.heartbeat import dead_ranks
from hpc_amp.train.observer import Observer
from hpc_amp.train.outcome import AFTERMATH_SECONDS, is_aftermath, write_outcome
from hpc_amp.train.profile import profilers
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.schedule import RateFactor
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stopping import StopReason, StopWatch

# Seconds by which the timeout of collective calls exceeds that of the sentry.
_SENTRY_FIRST = 30.0

TaskFactory = Callable[[Train, World, torch.device], Task]
"""A class of tasks, or a function that makes a task."""


def prepare_device(train: Train, world: World) -> torch.device:
    """Choose this rank's device and set torch up for it: determinism and cuDNN's autotuning.

    Raises DeviceError if `train.device` is not there.
    """
    device = setup.choose_device(train.device, world)
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not train.deterministic
    return device


def begin(
    train: Train,
    world: World,
    device: torch.device,
    run: RunDirectory,
    watch: StopWatch,
    sentry: Sentry | None,
    *,
    timeout: float,
    task: TaskFactory | None = None,
    observers: Sequence[Observer] = (),
    rate: RateFactor | None = None,
) -> Engine:
    """Join the process group, if the caller has not, and make the engine.

    `timeout`: seconds that ranks wait for each other.
    `task`: makes the task; without it, `train.task` names the task.
    The other arguments are those of `Engine`, and so are the errors, besides TaskError.
    """
    if not dist.is_initialized():
        # Later than the sentry, which explains more about a rank that hangs.
        setup.join(world, device, timeout + _SENTRY_FIRST)
    make_task = task or build_task
    observers = (*observers, *profilers(train, world, run))
    return Engine(
        make_task(train, world, device), train, world, device, run, watch, sentry,
        observers=observers, rate=rate,
    )  # fmt: skip


def announce(name: str, engine: Engine) -> None:
    """Log what is about to run: `name`, the name of the job, and the task, the data, the ranks, the
    precision and the number of steps."""
    train, world, say = engine.train, engine.world, engine.tracker.say
    ranks = f"{world.size} rank{'s' * (world.size > 1)}"
    nodes = f"{world.nodes} node{'s' * (world.nodes > 1)}"
    parameters = sum(p.numel() for n in engine.networks.values() for p in n.parameters())
    decoder = f" (decoded by {engine.data.decoder})" if engine.data.decoder else ""
    say(
        f"{name}: {engine.task.title} ({parameters:,} parameters) on {engine.task.data_name}"
        f"{decoder}, "
        f"{ranks} on {nodes} ({engine.device.type}), precision {engine.policy.mode}, "
        f"torch {torch.__version__}"
    )
    say(
        f"{engine.total_steps} steps of {train.batch_size} samples, "
        f"{engine.data.steps_per_epoch} an epoch"
    )


def conclude(name: str, run: RunDirectory, engine: Engine, reason: StopReason) -> str:
    """Write the summary and the outcome of an attempt, and log them. Called by rank 0.

    `reason` is what `Engine.fit` returned. Returns the outcome: `finished`, `checkpointed`, or
    `failed` if all steps are done but no disk holds the last one.
    """
    outcome = "checkpointed" if reason else "finished"
    words = reason.text if reason else "all steps done"
    if engine.saver.saved_step != engine.step:
        if not reason:
            outcome = "failed"
        words += f", but step {engine.step} could not be saved: see the warnings in the log"
    facts = engine.report.summary()
    try:
        write_json(run.path / "summary.json", {"outcome": outcome, "name": name, **facts})
        write_outcome(run, outcome, words, engine.step, reason)
    except OSError as error:
        engine.tracker.say(f"WARNING: the outcome of the run cannot be written: {error}")
    engine.tracker.progress(
        step=engine.step,
        total_steps=engine.total_steps,
        steps_per_epoch=engine.data.steps_per_epoch,
    )
    engine.tracker.end(outcome)
    engine.tracker.say(f"{outcome} at step {engine.step} of {engine.total_steps}: {words}")
    return outcome


def explain(error: BaseException, world: World, heartbeats: Path | None = None) -> tuple[str, bool]:
    """Describe why this rank failed. Returns the reason in one line, and whether the line is enough
    for a user; if not, the error is a defect and the caller shows its traceback.

    A rank that only lost contact to another one waits here for AFTERMATH_SECONDS, so that the other
    rank reports the cause first. `heartbeats` is the folder of the attempt's heartbeats; with it,
    the reason names ranks that were killed, since those report nothing themselves.
    """
    explained = isinstance(error, JobError)
    reason = f"rank {world.rank}: " if world.size > 1 else ""
    reason += str(error) if explained else f"{type(error).__name__}: {error}"
    if not explained and is_aftermath(error):
        time.sleep(AFTERMATH_SECONDS)
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = f"rank {world.rank} lost contact to another rank: {first_line}"
        dead = dead_ranks(heartbeats) if heartbeats is not None else []
        if dead:
            reason = f"{', '.join(dead)}; {reason}"
        explained = True
    return " ".join(reason.split()), explained


def failure_status(error: BaseException) -> int:
    """The exit status for an error: 2 if the input is wrong, otherwise 1."""
    return error.exit_code if isinstance(error, JobError) else 1
