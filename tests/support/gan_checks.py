"""What holds for every conditional GAN: for the tests of the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpc_amp.tasks.base import Losses
from hpc_amp.train.engine import Engine
from hpc_amp.train.state import weights_digest
from support.training import curve, fit_until


def merged(plain: Mapping[str, Any], train: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of `train` with others on top; sections are merged."""
    found = dict(plain)
    for key, value in train.items():
        section = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **value} if section else value
    return found


def digests(made: Engine, *, buffers: bool = True) -> dict[str, str]:
    """Of the weights of each network, with its buffers or without."""
    return {
        name: weights_digest({name: network if buffers else nn.ParameterList(network.parameters())})
        for name, network in made.networks.items()
    }


def check_phases(made: Engine, *, buffers: bool = True) -> None:
    """Each phase changes all of its networks, and nothing else: DDP waits for each parameter.
    Without `buffers`, those may change in other phases too."""
    batch = next(made.data.epoch(0))
    for update in made.updates:
        before = digests(made, buffers=buffers)
        assert update.run(batch, lambda: None)
        after = digests(made, buffers=buffers)
        changed = {each for each in before if before[each] != after[each]}
        assert changed == set(update.phase.networks)
        for network in update.phase.networks:
            for parameter, value in made.networks[network].named_parameters():
                assert value.grad is not None, f"{network}.{parameter}"


def check_number_formats(made: Engine, mode: str) -> Losses:
    """Convolutions and linear layers give the type of `mode`, in training and in an evaluation;
    losses are fp32. Returns the losses of the last phase."""
    formats: set[torch.dtype] = set()
    for network in made.networks.values():
        for module in network.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.register_forward_hook(lambda *seen: formats.add(seen[2].dtype))
    (batch,) = next(made.data.epoch(0))
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(mode, torch.float16)
    losses: Losses = {}
    for update in made.updates:
        with update._policy.autocast():
            (losses,) = made.task.losses(update.phase.name, batch, made.networks)
        for value in losses.values():
            assert value.dtype == torch.float32 and value.isfinite()
    assert formats == {expected}
    formats.clear()
    made.evaluate()
    assert formats == {expected}
    return losses


def check_resume(
    make: Callable[[Path, int], Engine], folder: Path, stops: Sequence[int], curves: Sequence[str]
) -> None:
    """A run that is stopped at `stops` ends as one that is not, bit by bit: weights, their average,
    loss scales, curves and pictures. `make` makes the engine of a run directory and an attempt; its
    gradients overflow now and then."""
    whole = make(folder / "whole", 1)
    whole.fit()
    assert all(update.optimizer.state for update in whole.updates), "not all were skipped"
    for attempt, stop in enumerate(stops, 1):
        fit_until(make(folder / "parts", attempt), stop)
    last = make(folder / "parts", len(stops) + 1)
    assert last.step == stops[-1]
    first = [update for update in last.updates if update.phase.runs_in(0)]
    assert all(update.optimizer.state for update in first), "some were made before the last stop"
    before = digests(last, buffers=False)
    last.fit()
    after = digests(last, buffers=False)
    ending = [update for update in last.updates if update.phase.runs_in(last.train.epochs - 1)]
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {name for update in ending for name in update.phase.networks}, "and after it"
    assert last.report.skipped_steps() > 0
    assert _scales(last) == _scales(whole)
    assert weights_digest(last.networks) == weights_digest(whole.networks)
    assert last.average is not None and whole.average is not None
    assert weights_digest(last.average.networks) == weights_digest(whole.average.networks)
    for each in curves:
        assert curve(folder / "parts", each) == curve(folder / "whole", each)
        assert curve(folder / "whole", each), each
    pictures = [sorted((folder / run / "samples").iterdir()) for run in ("whole", "parts")]
    assert [p.read_bytes() for p in pictures[1]] == [p.read_bytes() for p in pictures[0]]


def _scales(made: Engine) -> dict[str, dict[str, Any]]:
    return {n: s.state_dict() for update in made.updates for n, s in update.scalers.items()}
