"""One rank from start to end: join the others, train, write outcome and summary."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from hpc_amp.amp.precision import PrecisionError
from hpc_amp.amp.scaler import ScaleFloorError
from hpc_amp.config.schema import Job
from hpc_amp.config.units import parse_duration
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import World, WorldError, resolve
from hpc_amp.tasks.base import DataError, ModelError
from hpc_amp.tasks.registry import build_task
from hpc_amp.train.engine import Engine, TrainingError
from hpc_amp.train.rundir import RunDirectory, read_job, write_json
from hpc_amp.train.stopping import StopReason, StopWatch

# Errors whose message is for the user; anything else is a defect and shows its traceback.
_BAD_INPUT = (DataError, ModelError, PrecisionError, setup.DeviceError)
_EXPLAINED = (*_BAD_INPUT, ScaleFloorError, TrainingError, WorldError)
# MPI's launchers take any status but 0 for a crash: they kill the other ranks and say so at length.
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PALS_RANKID", "PMI_RANK")


def run_rank(run: RunDirectory, watch: StopWatch) -> int:
    """Train the job's task on this rank. Returns the exit status (see `hpc_amp.train.__main__`)."""
    job = read_job(run.job_file)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    world = World()
    try:
        world = resolve(os.environ)
        engine = _start(job, run, world, watch)
        reason = engine.fit()
    except _EXPLAINED as error:
        print(f"hpc-amp: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        if world.is_main:
            _write_outcome(run, "failed", str(error), {})
        return 2 if isinstance(error, _BAD_INPUT) else 1
    finished = reason is StopReason.NONE
    outcome = "finished" if finished else "checkpointed"
    if world.is_main:
        facts = engine.summary()
        write_json(run.path / "summary.json", {"outcome": outcome, "name": job.name, **facts})
        words = reason.text if reason else "all steps done"
        _write_outcome(run, outcome, words, facts, cause=reason.name)
        engine.tracker.progress(step=engine.step, total_steps=engine.total_steps)
        engine.tracker.say(f"{outcome} at step {engine.step} of {engine.total_steps}")
    engine.tracker.close()
    setup.leave()
    return 0 if finished or any(name in os.environ for name in _STARTED_BY_MPI) else 75


def _start(job: Job, run: RunDirectory, world: World, watch: StopWatch) -> Engine:
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
    setup.join(world, device, parse_duration(job.launch.timeout))
    task = build_task(train, world, device)
    engine = Engine(task, train, world, device, run, watch)
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


def _write_outcome(
    run: RunDirectory, outcome: str, reason: str, facts: dict[str, Any], cause: str = "NONE"
) -> None:
    """The file by which the launch script decides how to go on. It looks for `outcome` and `cause`,
    each on a line of its own."""
    content = {
        "outcome": outcome,
        "cause": cause,
        "reason": reason,
        "step": facts.get("steps"),
        "time": time.time(),
    }
    write_json(run.attempt_path / "outcome.json", content)
