"""What holds for every model of video: for the tests of the models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hpc_amp.gan.generation import Request
from hpc_amp.train.engine import Engine
from support.gan_checks import check_resume
from support.rank_trainings import FP16, PARITY, train_models
from support.rank_trainings import check_resume as check_resume_on_ranks
from support.training import curve
from support.warm import Warm

SAVED = 3
"""In the middle of the second epoch, whose sequences are longer."""
FRAMES = {"first": 2, "double_every": 1, "most": 3, "evaluation": 3}
"""Of trainings on several ranks: sequences have 2 frames in the first epoch, then 3."""
SEQUENCES = {"train": 8, "test": 2, "frames": 4}
"""For them, one sequence of an evaluation for each rank."""
PAIRS: dict[str, Any] = {"temporal": {"width": 4, "layers": 1, "scales": 2, "frames": 2}}
"""For them, a temporal discriminator of pairs. Its second scale needs 3 frames."""


def forward_passes(made: Engine) -> list[str]:
    """The networks that a step calls, in the order of their names."""
    calls: list[str] = []
    for name, network in made.networks.items():
        network.register_forward_hook(lambda *_, name=name: calls.append(name))
    made.train_step(next(made.data.epoch(1)))
    return sorted(calls)


def curves_of(losses: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The names of all curves."""
    return [*(f"train/{loss}" for loss in losses), *(f"eval/{metric}" for metric in metrics)]


def check_resume_where_sequences_grow(
    model: Callable[..., Engine], folder: Path, losses: Sequence[str], metrics: Sequence[str]
) -> None:
    """In the middle of an epoch of short and of one of longer sequences, under fp16 with
    overflows. `model` makes an engine of a folder."""

    def make(run: Path, attempt: int) -> Engine:
        return model(
            run,
            attempt=attempt,
            precision={"mode": "fp16", "init_scale": 2.0**14, "growth_interval": 2},
            ema=0.9,
            log_every=2,
            epochs=2,
        )

    check_resume(make, folder, (1, 3), curves_of(losses, metrics))


def check_generated(
    made: Engine, request: Request, sequences: int
) -> tuple[dict[Path, Tensor], list[dict[Path, Tensor]]]:
    """The frames of `sequences` sequences of 4 frames are as the evaluation makes them, and equal
    on two ranks. Returns them, and the share of each rank."""
    for network in made.networks.values():
        network.eval()
    task: Any = made.task
    with torch.no_grad():
        frames = dict(task.generate(request, made.networks))
        batches = list(task.evaluation_batches())
        wanted = torch.cat([task.render(batch, made.networks)[0] for batch in batches])
        torch.testing.assert_close(
            torch.stack(list(frames.values())).unflatten(0, (sequences, 4)),
            wanted,
            atol=1e-5,
            rtol=0,
        )
        parts = [dataclasses.replace(request, rank=rank, ranks=2) for rank in range(2)]
        shares = [dict(task.generate(part, made.networks)) for part in parts]
    assert {**shares[0], **shares[1]}.keys() == frames.keys()
    for file, frame in {**shares[0], **shares[1]}.items():
        assert torch.equal(frame, frames[file])
    return frames, shares


def check_ranks(
    warm: Warm,
    folder: Path,
    plain_train: Callable[..., dict[str, Any]],
    losses: Sequence[str],
    metrics: Sequence[str],
    *,
    short: Mapping[str, Any],
    parity: Mapping[str, Any] = PARITY,
    metrics_differ: float = 2e-3,
) -> Path:
    """Two ranks train as one, also where sequences grow, and a resume on two ranks is bit-exact
    under fp16 with overflows and accumulation. `short`: keys of `train` for short sequences.
    Returns the run of one rank."""
    plain = plain_train(**parity, **short, epochs=2, max_steps=3)
    fp16 = plain_train(**FP16, **short, epochs=2)
    train_models(warm, folder, {plain["task"]: (plain, fp16)}, SAVED)
    runs = folder / plain["task"]
    one, two = (runs / f"parity-{ranks}" for ranks in (1, 2))
    for loss in losses:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert [step for step, _ in seen] == [step for step, _ in expected]
        assert len(expected) == len(seen) == 3
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=2e-2, abs=2e-3)
    for metric in metrics:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [step for step, _ in expected] == [2, 3]
        assert [v for _, v in seen] == pytest.approx(
            [v for _, v in expected], rel=2e-2, abs=metrics_differ
        )
    check_resume_on_ranks(runs / "resumed", runs / "whole", SAVED, curves_of(losses, metrics))
    return one
