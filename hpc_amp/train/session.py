"""One rank from start to end: join the others, train, write outcome and summary."""

from __future__ import annotations

import os
import sys
import time
import traceback

import torch

from hpc_amp.amp.precision import PrecisionError
from hpc_amp.config.schema import Job
from hpc_amp.config.units import parse_duration
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError, ModelError
from hpc_amp.tasks.registry import build_task
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import Superseded, TrainingError
from hpc_amp.train.outcome import (
    AFTERMATH_SECONDS,
    is_aftermath,
    write_first_outcome,
    write_outcome,
)
from hpc_amp.train.rundir import RunDirectory, read_job, write_json
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stopping import StopReason, StopWatch

# Errors whose message is for the user; anything else is a defect and shows its traceback.
_BAD_INPUT = (DataError, ModelError, PrecisionError, setup.DeviceError)
_EXPLAINED = (*_BAD_INPUT, TrainingError, Superseded)
# MPI's launchers take any status but 0 for a crash: they kill the other ranks and say so at length.
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "PMI_RANK")
_SENTRY_FIRST = 30.0


def run_rank(run: RunDirectory, world: World, watch: StopWatch, sentry: Sentry) -> int:
    """Train the job's task on this rank. Returns the exit status (see `hpc_amp.train.__main__`)."""
    job = read_job(run.job_file)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    try:
        engine = _start(job, run, world, watch, sentry)
        sentry.limit(parse_duration(job.launch.timeout))
        reason = engine.fit()
    except Superseded as error:
        print(f"hpc-amp: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        return _end_failed(error, run, world, sentry)
    sentry.unlimit()
    outcome = _tell_end(job, run, engine, reason) if world.is_main else None
    engine.tracker.close()
    setup.leave()
    sentry.close()
    if outcome == "failed":
        return 1
    by_mpi = any(name in os.environ for name in _STARTED_BY_MPI)
    return 75 if reason and not by_mpi else 0


def _tell_end(job: Job, run: RunDirectory, engine: Engine, reason: StopReason) -> str:
    """Write summary and outcome, say it, and return the outcome. A run whose last step is on no
    disk has not finished."""
    outcome = "checkpointed" if reason else "finished"
    words = reason.text if reason else "all steps done"
    if engine.saver.saved_step != engine.step:
        outcome = outcome if reason else "failed"
        words += f", but step {engine.step} could not be saved: see the warnings in the log"
    facts = engine.report.summary()
    try:
        write_json(run.path / "summary.json", {"outcome": outcome, "name": job.name, **facts})
        write_outcome(run, outcome, words, engine.step, reason)
    except OSError as error:
        engine.tracker.say(f"WARNING: how the run ended cannot be written: {error}")
    engine.tracker.progress(step=engine.step, total_steps=engine.total_steps)
    engine.tracker.say(f"{outcome} at step {engine.step} of {engine.total_steps}: {words}")
    return outcome


def _end_failed(error: Exception, run: RunDirectory, world: World, sentry: Sentry) -> int:
    """Say why this rank failed. A rank that only lost another one leaves the first word to that,
    and gives it the time."""
    sentry.unlimit()
    explained = isinstance(error, _EXPLAINED)
    reason = f"rank {world.rank}: " if world.size > 1 else ""
    reason += str(error) if explained else f"{type(error).__name__}: {error}"
    if is_aftermath(error):
        time.sleep(AFTERMATH_SECONDS)
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = f"rank {world.rank} lost contact to another rank: {first_line}"
        explained = True
    write_first_outcome(run, "failed", " ".join(reason.split()), sentry.step, StopReason.NONE)
    if explained:
        print(f"hpc-amp: {reason}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
        sys.stderr.flush()
    return 2 if isinstance(error, _BAD_INPUT) else 1


def _start(job: Job, run: RunDirectory, world: World, watch: StopWatch, sentry: Sentry) -> Engine:
    if job.train is None:
        raise TrainingError("the job has no `train` section")
    train = job.train
    device = setup.choose_device(train.device, world)
    if device.type == "cpu":
        torch.set_num_threads(job.job.cpus_per_gpu)
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not train.deterministic
    # Later than the sentry, which has more to say about a rank that hangs.
    setup.join(world, device, parse_duration(job.launch.timeout) + _SENTRY_FIRST)
    task = build_task(train, world, device)
    engine = Engine(task, train, world, device, run, watch, sentry)
    _announce(job, engine, world)
    return engine


def _announce(job: Job, engine: Engine, world: World) -> None:
    """Say what is about to run, and loudly what a user might not expect."""
    train, say = engine.train, engine.tracker.say
    on = f"{world.size} rank{'s' * (world.size > 1)} on {world.nodes} node{'s' * (world.nodes > 1)}"
    parameters = sum(p.numel() for n in engine.networks.values() for p in n.parameters())
    say(
        f"{job.name}: {train.model.name} ({parameters:,} parameters) on {engine.task.data_name}, "
        f"{on} ({engine.device.type}), precision {engine.policy.mode}, torch {torch.__version__}"
    )
    if engine.device.type == "cpu" and job.job.gpus_per_node > 0:
        say("WARNING: the job asked for GPUs, but this node has none: training on the CPU")
    say(
        f"{engine.total_steps} steps of {train.batch_size} samples, "
        f"{engine.data.steps_per_epoch} an epoch"
    )
