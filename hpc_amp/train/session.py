"""One rank of a job from start to end: join the others, train, write outcome and summary."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch

from hpc_amp.config.schema import Job
from hpc_amp.config.units import parse_duration
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import World
from hpc_amp.tasks.registry import job_from_plain
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import Superseded, TrainingError
from hpc_amp.train.outcome import write_first_outcome
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stages import (
    announce,
    begin,
    conclude,
    explain,
    failure_status,
    prepare_device,
)
from hpc_amp.train.stopping import StopReason, StopWatch

# How long trackers may take at the end for what they have not written yet: after the last step, and
# after a stop, when the job has little time left.
_TRACKER_SECONDS = 60.0
_HURRY_SECONDS = 10.0

# MPI's launchers treat any exit status but 0 as a crash: they kill the other ranks and report it.
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "PMI_RANK")


def run_rank(run: RunDirectory, world: World, watch: StopWatch, sentry: Sentry) -> int:
    """Train the job's task on this rank. Returns the exit status (see `hpc_amp.train.__main__`).

    `sentry` is listening already; it is closed here.
    """
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    engine = None
    try:
        job = _job_of(run)
        engine = _start(job, run, world, watch, sentry)
        sentry.limit(parse_duration(job.launch.timeout))
        reason = engine.fit()
    except Superseded as error:
        print(f"hpc-amp: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        status = _end_failed(error, run, world, sentry)
        if engine is not None:
            engine.tracker.end("failed")
            engine.tracker.close(_HURRY_SECONDS)
        return status
    sentry.unlimit()
    outcome = conclude(job.name, run, engine, reason) if world.is_main else None
    engine.tracker.close(_HURRY_SECONDS if reason else _TRACKER_SECONDS)
    setup.leave()
    sentry.close()
    if outcome == "failed":
        return 1
    by_mpi = any(name in os.environ for name in _STARTED_BY_MPI)
    return 75 if reason and not by_mpi else 0


def _job_of(run: RunDirectory) -> Job:
    """The job of `job.json`. A task of the user's own is imported from the copy of the code in the
    run directory. Raises TaskError."""
    resolved = json.loads(run.job_file.read_text())
    code = None
    if resolved["job"].get("code") is not None:
        code = Path(resolved["workdir"])
        sys.path.insert(0, str(code))
    return job_from_plain(resolved["job"], code)


def _end_failed(error: Exception, run: RunDirectory, world: World, sentry: Sentry) -> int:
    """Report why this rank failed. Returns the exit status."""
    sentry.unlimit()
    reason, explained = explain(error, world, run.heartbeats)
    write_first_outcome(run, "failed", reason, sentry.step, StopReason.NONE)
    if explained:
        print(f"hpc-amp: {reason}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
        sys.stderr.flush()
    return failure_status(error)


def _start(job: Job, run: RunDirectory, world: World, watch: StopWatch, sentry: Sentry) -> Engine:
    """Make the engine of a job, and log what it is about to run."""
    if job.train is None:
        raise TrainingError("the job has no `train` section")
    device = prepare_device(job.train, world)
    if device.type == "cpu":
        torch.set_num_threads(job.resources.cpus_per_gpu)
    timeout = parse_duration(job.launch.timeout)
    engine = begin(job.train, world, device, run, watch, sentry, timeout=timeout)
    announce(job.name, engine)
    if device.type == "cpu" and job.resources.gpus_per_node > 0:
        engine.tracker.say(
            "WARNING: the job asked for GPUs, but this node has none: training on the CPU"
        )
    return engine
