"""What a checkpoint holds of an engine, and how an engine goes on from one.

All state that matters is here: a run that is stopped anywhere and resumed gives the same weights as
one that never stopped.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import hpc_amp
from hpc_amp.config.schema import Train, to_plain
from hpc_amp.train import randomness
from hpc_amp.train.checkpoint import Checkpoint
from hpc_amp.train.errors import TrainingError

if TYPE_CHECKING:
    from hpc_amp.train.engine import Engine

_TOLD = ("hpc_amp", "torch", "cuda", "python", "device")
"""What of the environment may change results, and is told when it does."""


def capture(engine: Engine) -> Checkpoint:
    """The present state. Its tensors are the live ones, which the next step changes."""
    return Checkpoint(engine.step, _trainer(engine), tensors(engine), _facts(engine))


def tensors(engine: Engine) -> dict[str, Any]:
    """Networks, their average and optimizers: what all ranks have alike."""
    state: dict[str, Any] = {
        "networks": {name: network.state_dict() for name, network in engine.networks.items()},
        "optimizers": {u.phase.name: u.optimizer.state_dict() for u in engine.updates},
    }
    if engine.average is not None:
        averaged = engine.average.networks.items()
        state["average"] = {name: network.state_dict() for name, network in averaged}
    return state


def own(engine: Engine) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What each rank has of its own: its random states, and its losses since the last report, so
    that the next mean is what it would have been."""
    losses = {
        name: loss.recent().to("cpu", copy=True)
        for update in engine.updates
        for name, loss in update.losses.items()
    }
    return randomness.own_state(engine.device), losses


def is_finite(losses: list[dict[str, Tensor]]) -> bool:
    """Whether the losses of all ranks are numbers."""
    return all(bool(values.isfinite().all()) for own in losses for values in own.values())


def _trainer(engine: Engine) -> dict[str, Any]:
    return {
        "step": engine.step,
        "batch_size": engine.train.batch_size,
        "world_size": engine.world.size,
        "scalers": {
            u.phase.name: {name: s.state_dict() for name, s in u.scalers.items()}
            for u in engine.updates
        },
        "skipped_updates": {u.phase.name: u.skipped for u in engine.updates},
        "average_updates": engine.average.updates if engine.average is not None else 0,
        "metrics": engine.metrics,
        "best_accuracy": engine.best_accuracy,
        "evaluated_step": engine.evaluated_step,
        "seconds": engine.seconds,
        "data": engine.task.data_name,
    }


def _facts(engine: Engine) -> dict[str, Any]:
    evaluated = engine.evaluated_step == engine.step
    return {
        "epoch": engine.step // engine.data.steps_per_epoch,
        "samples": engine.step * engine.train.batch_size,
        "world_size": engine.world.size,
        "metric": engine.metrics.get("accuracy") if evaluated else None,
        "config_sha256": config_digest(engine.train),
        "environment": environment(engine.device),
    }


def restore(engine: Engine, checkpoint: Checkpoint) -> list[str]:
    """Put the engine into the state of a checkpoint. Returns what to tell the user: where it goes
    on, and what has changed since. Raises TrainingError where it is the state of another run."""
    trainer, saved = checkpoint.trainer, checkpoint.tensors
    _refuse_other_run(engine, trainer)
    try:
        _load_networks(engine.networks, saved["networks"])
        if engine.average is not None:
            _load_networks(engine.average.networks, saved["average"])
            engine.average.updates = trainer["average_updates"]
        for update in engine.updates:
            update.optimizer.load_state_dict(saved["optimizers"][update.phase.name])
            for name, scaler in update.scalers.items():
                scaler.load_state_dict(trainer["scalers"][update.phase.name][name])
            # Older checkpoints have the overflows of single losses alone.
            overflows = sum(scaler.skipped_steps for scaler in update.scalers.values())
            update.skipped = trainer.get("skipped_updates", {}).get(update.phase.name, overflows)
    except (KeyError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} is of another model or optimizer than this "
            f"job's: {' '.join(str(error).split())[:300]}"
        ) from error
    engine.step = trainer["step"]
    engine.metrics = trainer["metrics"]
    engine.best_accuracy = trainer["best_accuracy"]
    engine.evaluated_step = trainer["evaluated_step"]
    engine.seconds_before = trainer["seconds"]
    line = f"resumed from {engine.store.path(checkpoint.step)} at step {engine.step}"
    if trainer["world_size"] == engine.world.size:
        for update in engine.updates:
            for name, loss in update.losses.items():
                loss.restore(saved["losses"][engine.world.rank][name])
    else:
        line += f" (saved by {trainer['world_size']} ranks)"
    # Last, since everything above may draw random numbers.
    randomness.restore(
        saved["random"], engine.world, engine.device, engine.train.seed + engine.step
    )
    return [line, *_changes(engine, checkpoint.facts)]


def _load_networks(networks: dict[str, nn.Module], saved: dict[str, Any]) -> None:
    for name, network in networks.items():
        network.load_state_dict(saved[name])


def _refuse_other_run(engine: Engine, trainer: Any) -> None:
    train = engine.train
    if trainer["batch_size"] != train.batch_size:
        raise TrainingError(
            f"the checkpoint was trained with batch_size {trainer['batch_size']}, not "
            f"{train.batch_size}: steps and sample order would not fit. Set it back, or start a "
            "new run"
        )
    if trainer["data"] != engine.task.data_name:
        raise TrainingError(
            f"the checkpoint was trained on {trainer['data']}, but now there is "
            f"{engine.task.data_name}: restore the data, or start a new run"
        )


def _changes(engine: Engine, facts: Any) -> list[str]:
    """What is no longer as it was when the checkpoint was saved, a line each."""
    lines = []
    if facts.get("config_sha256") != config_digest(engine.train):
        lines.append("WARNING: the `train` section is not the one of the checkpoint")
    before, now = facts.get("environment", {}), environment(engine.device)
    changed = [
        f"{name} {before[name]} -> {now[name]}"
        for name in _TOLD
        if name in before and before[name] != now[name]
    ]
    if changed:
        lines.append(
            f"WARNING: since the checkpoint: {', '.join(changed)}; results may differ in rounding"
        )
    return lines


def environment(device: torch.device) -> dict[str, Any]:
    """What the training runs on: versions, device, host."""
    return {
        "hpc_amp": hpc_amp.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "host": socket.gethostname(),
        "platform": platform.platform(),
    }


def config_digest(train: Train) -> str:
    """sha256 of the training configuration."""
    return hashlib.sha256(json.dumps(to_plain(train), sort_keys=True).encode()).hexdigest()


def weights_digest(networks: dict[str, nn.Module]) -> str:
    """sha256 over all parameters of all networks, in order: equal means bit-equal weights."""
    digest = hashlib.sha256()
    for name, network in networks.items():
        values = network.state_dict()  # at O2, those of the master weights
        for key, _ in network.named_parameters():
            digest.update(f"{name}.{key}".encode())
            digest.update(memoryview(values[key].cpu().contiguous().numpy()).cast("B"))
    return digest.hexdigest()
