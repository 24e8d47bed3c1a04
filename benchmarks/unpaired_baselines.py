#!/usr/bin/env python3
"""What trivial translations get in the evaluation of `unit` or `munit`.

    python benchmarks/unpaired_baselines.py configs/unit_small.yaml [--json FILE]

- identity: the image as it is.
- mean image: the mean of the training images of the other domain, always the same.
- colours: the image with the mean and the deviation that each colour has in the training images of
  the other domain.
- untrained: the networks before the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from baselines import evaluate, read_arguments, show, task_of
from torch import Tensor

from hpc_amp.gan.translation import Direction
from hpc_amp.gan.unpaired import DIRECTIONS, UnpairedGan
from hpc_amp.train.randomness import seed_everything

Translate = Callable[[Tensor, Direction], Tensor]


def metrics(task: UnpairedGan, translate: Translate) -> dict[str, float]:
    """Those of an evaluation in which `translate` makes the translations to a domain."""
    several = getattr(task.train.evaluation, "styles", 1)

    def translations(_: object, images: Tensor, direction: Direction, seeds: Tensor) -> Tensor:
        return translate(images, direction)[:, None].expand(-1, several, -1, -1, -1)

    task.translations = translations  # type: ignore[method-assign,assignment]
    return evaluate(task, {"generator": torch.nn.Identity()})


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each colour, [3, 1, 1] each."""
    of_colours = images.transpose(0, 1).flatten(1)
    return of_colours.mean(1)[:, None, None], of_colours.std(1)[:, None, None]


def main() -> None:
    arguments = read_arguments(__doc__)
    torch.set_num_threads(1)

    task = task_of(arguments.config)
    assert isinstance(task, UnpairedGan)
    training = task.prepare_data()
    seed_everything(task.train.seed)
    found = {"untrained": evaluate(task, task.build_networks())}

    seen = [batch for (batch,) in training.epoch(0)]
    real = {
        direction: torch.cat([getattr(batch, direction[-1]) for batch in seen])
        for direction in DIRECTIONS
    }

    def colours(images: Tensor, direction: Direction) -> Tensor:
        mean, deviation = statistics(real["b2a" if direction == "a2b" else "a2b"])
        other_mean, other_deviation = statistics(real[direction])
        return ((images - mean) / deviation * other_deviation + other_mean).clamp(-1, 1)

    found["identity"] = metrics(task, lambda images, _: images)
    found["mean image"] = metrics(
        task, lambda images, direction: real[direction].mean(0).expand_as(images)
    )
    found["colours"] = metrics(task, colours)
    show(found, arguments.json)


if __name__ == "__main__":
    main()
