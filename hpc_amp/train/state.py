"""What a checkpoint holds of an engine, and how an engine is restored from it.

The state is complete: a run that is stopped at any step and resumed gives the same weights, bit by
bit, as a run that never stopped. Settings are not part of the state: a resumed run uses those of
the job as it is now, whatever the checkpoint was trained with.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hpc_amp.config.schema import Train, to_plain
from hpc_amp.train import randomness
from hpc_amp.train.checkpoint import Checkpoint
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.machine import environment
from hpc_amp.train.observer import Training

_REPORTED = ("hpc_amp", "torch", "cuda", "python", "device", "decoder")
"""The parts of the environment that may change results. A resume reports those that differ."""


def capture(engine: Training) -> Checkpoint:
    """The present state of an engine. The tensors are not copies: the next step changes them."""
    return Checkpoint(engine.step, _trainer(engine), tensors(engine), _facts(engine))


def tensors(engine: Training) -> dict[str, Any]:
    """The state that is equal on all ranks: networks, their average, optimizers. For each name, the
    file's stem in a checkpoint, nested containers of tensors; they are not copies."""
    state: dict[str, Any] = {
        "networks": {name: network.state_dict() for name, network in engine.networks.items()},
        "optimizers": {u.phase.name: u.optimizer.state_dict() for u in engine.updates},
    }
    if engine.average is not None:
        averaged = engine.average.networks.items()
        state["average"] = {name: network.state_dict() for name, network in averaged}
    return state


def own(engine: Training) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state that each rank has of its own: its random states, and its losses since the last
    report, which go into the next one."""
    losses = {
        name: loss.recent().to("cpu", copy=True)
        for update in engine.updates
        for name, loss in update.losses.items()
    }
    return randomness.own_state(engine.device), losses


def is_finite(losses: list[dict[str, Tensor]]) -> bool:
    """Whether the losses of all ranks, as `own` returns them, are finite."""
    return all(bool(values.isfinite().all()) for own in losses for values in own.values())


def _trainer(engine: Training) -> dict[str, Any]:
    """The content of trainer.json."""
    return {
        "step": engine.step,
        "batch_size": engine.train.batch_size,
        "steps_per_epoch": engine.data.steps_per_epoch,
        "samples": engine.data.samples,
        "total_steps": engine.total_steps,
        "world_size": engine.world.size,
        "scalers": {
            u.phase.name: {name: s.state_dict() for name, s in u.scalers.items()}
            for u in engine.updates
        },
        "skipped_updates": {u.phase.name: u.skipped for u in engine.updates},
        "average_updates": engine.average.updates if engine.average is not None else 0,
        "metrics": engine.metrics,
        "best_value": engine.best_value,
        "evaluated_step": engine.evaluated_step,
        "warnings": engine.warnings,
        "seconds": engine.seconds,
        "data": engine.task.data_name,
    }


def _facts(engine: Training) -> dict[str, Any]:
    """What the manifest says about a checkpoint besides its files."""
    best = engine.task.best
    metric = None
    if best is not None and engine.evaluated_step == engine.step:
        metric = engine.metrics.get(best.metric)
    return {
        "epoch": engine.step // engine.data.steps_per_epoch,
        "samples": engine.step * engine.train.batch_size,
        "world_size": engine.world.size,
        "metric": metric,
        "config_sha256": config_digest(engine.train),
        "train": to_plain(engine.train),
        "environment": _environment(engine),
    }


def _environment(engine: Training) -> dict[str, Any]:
    decoder = {"decoder": engine.data.decoder} if engine.data.decoder else {}
    return {**environment(engine.device), **decoder}


def restore(engine: Training, checkpoint: Checkpoint) -> list[str]:
    """Put an engine into the state of a checkpoint.

    Returns lines for the log: the step, and what has changed since the checkpoint was saved. Raises
    TrainingError if the checkpoint does not fit: other networks, optimizers, data or batch size.
    """
    trainer, saved = checkpoint.trainer, checkpoint.tensors
    _refuse_other_run(engine, trainer)
    try:
        _load_networks(engine.networks, saved["networks"])
        if engine.average is not None:
            # An average that the job did not have before begins with the weights of the checkpoint.
            _load_networks(engine.average.networks, saved.get("average", saved["networks"]))
            engine.average.updates = trainer["average_updates"]
        for update in engine.updates:
            _load_optimizer(update.optimizer, saved["optimizers"][update.phase.name])
            # Empty if the precision of the checkpoint had no loss scaler.
            scalers = trainer["scalers"][update.phase.name]
            if scalers:
                for name, scaler in update.scalers.items():
                    scaler.load_state_dict(scalers[name])
                    scaler.keep_in_bounds()
            # Checkpoints of older versions only count the overflows of single losses.
            overflows = sum(scaler.skipped_steps for scaler in update.scalers.values())
            update.skipped = trainer.get("skipped_updates", {}).get(update.phase.name, overflows)
    except (KeyError, ValueError, RuntimeError) as error:
        raise TrainingError(
            f"the checkpoint of step {checkpoint.step} belongs to another model or optimizer than "
            f"this job's: {' '.join(str(error).split())[:300]}"
        ) from error
    engine.step = trainer["step"]
    engine.metrics = trainer["metrics"]
    engine.best_value = trainer.get("best_value", trainer.get("best_accuracy"))
    engine.evaluated_step = trainer["evaluated_step"]
    engine.warnings = dict(trainer.get("warnings", {}))
    engine.seconds_before = trainer["seconds"]
    line = f"resumed from {engine.store.path(checkpoint.step)} at step {engine.step}"
    if trainer["world_size"] == engine.world.size:
        for update in engine.updates:
            for name, loss in update.losses.items():
                loss.restore(saved["losses"][engine.world.rank][name])
    else:
        line += f" (saved by {trainer['world_size']} ranks)"
    # Last, because the code above may draw random numbers.
    randomness.restore(
        saved["random"], engine.world, engine.device, engine.train.seed + engine.step
    )
    return [
        line,
        *_changes(engine, checkpoint.facts),
        *_new_samples(engine, trainer),
        *_new_length(engine, trainer),
    ]


def _load_networks(networks: dict[str, nn.Module], saved: dict[str, Any]) -> None:
    for name, network in networks.items():
        network.load_state_dict(saved[name])


def _load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the state of an optimizer, but not its settings.

    torch stores the learning rate, the momentum and all other options beside the state, and would
    set them to their old values. They are passed with the state, in their present values, because
    load_state_dict reads `fused` to decide on which device the step counts belong.

    Fused optimizers read the state of a weight in the memory order of the weight, which
    `channels_last` changes. The state of sparse gradients is sparse, and stays as it is.
    """
    now, before = optimizer.state_dict()["param_groups"], saved["param_groups"]
    if [len(group["params"]) for group in now] != [len(group["params"]) for group in before]:
        raise ValueError("the optimizer has other groups of weights")
    groups = []
    for group, then in zip(now, before, strict=True):
        groups.append({**group, "params": then["params"]})
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not torch.is_tensor(value) or value.is_sparse:
                continue
            if value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _refuse_other_run(engine: Training, trainer: Any) -> None:
    """Raise TrainingError if the checkpoint was trained with other data or another batch size."""
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
    now = engine.data.steps_per_epoch
    before = trainer.get("steps_per_epoch", now)  # not in checkpoints of older versions
    if before != now:
        raise TrainingError(
            f"the checkpoint was trained with {before} steps in an epoch, but there are {now} now: "
            "the training data has changed. Restore it, or start a new run"
        )


def _new_samples(engine: Training, trainer: Any) -> list[str]:
    """A line for the log where an epoch has as many steps as before, but other samples."""
    now = engine.data.samples
    before = trainer.get("samples", now)  # not in checkpoints of older versions
    if before == now:
        return []
    return [
        f"WARNING: the training data has {now:,} samples now, and had {before:,}: the order of the "
        "samples is another one than before"
    ]


def _changes(engine: Training, facts: Any) -> list[str]:
    """What differs from the time when the checkpoint was saved, in lines for the log."""
    lines = []
    if "train" in facts:
        now = json.loads(json.dumps(to_plain(engine.train)))
        settings = _differences(facts["train"], now, "train")
        if settings:
            lines.append(f"changed since the checkpoint: {', '.join(settings)}")
    elif facts.get("config_sha256") != config_digest(engine.train):
        lines.append("WARNING: the `train` section is not the one of the checkpoint")
    before, here = facts.get("environment", {}), _environment(engine)
    changed = [
        f"{name} {before[name]} -> {here[name]}"
        for name in _REPORTED
        if name in before and name in here and before[name] != here[name]
    ]
    if changed:
        lines.append(
            f"WARNING: since the checkpoint: {', '.join(changed)}; results may differ in rounding"
        )
    return lines


def _differences(before: Any, now: Any, path: str) -> list[str]:
    """The keys that differ between two sections of a configuration as JSON, each with both values.
    A key that only one section has belongs to another version of hpc-amp and is left out."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return [] if before == now else [f"{path} {json.dumps(before)} -> {json.dumps(now)}"]
    found = []
    for name in now:
        if name in before:
            found += _differences(before[name], now[name], f"{path}.{name}")
    return found


def _new_length(engine: Training, trainer: Any) -> list[str]:
    """A line for the log if the total number of steps has changed: the learning rate depends on the
    position in the whole run, so it changes as well."""
    before = trainer.get("total_steps", engine.total_steps)
    if before == engine.total_steps or engine.step >= engine.total_steps:
        return []
    rate_before = engine.rate(min(engine.step, before - 1), before)
    rate_now = engine.rate(engine.step, engine.total_steps)
    return [
        f"the run now ends at step {engine.total_steps}, not at {before}: the learning rate of the "
        f"next step is {rate_now:.4g} of its peak, and was {rate_before:.4g} before"
    ]


def config_digest(train: Train) -> str:
    """sha256 of the `train` section, as hexadecimal digits."""
    return hashlib.sha256(json.dumps(to_plain(train), sort_keys=True).encode()).hexdigest()


def weights_digest(networks: dict[str, nn.Module]) -> str:
    """sha256 over all parameters of all networks, in order, as hexadecimal digits. Two runs with
    equal digests have bit-equal weights."""
    digest = hashlib.sha256()
    for name, network in networks.items():
        values = network.state_dict()  # at opt level O2 these are the master weights
        for key, _ in network.named_parameters():
            digest.update(f"{name}.{key}".encode())
            digest.update(memoryview(values[key].cpu().contiguous().numpy()).cast("B"))
    return digest.hexdigest()
