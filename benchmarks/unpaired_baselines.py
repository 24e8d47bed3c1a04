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

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from torch import Tensor

from hpc_amp.config.schema import from_plain
from hpc_amp.distributed.world import World
from hpc_amp.gan.translation import Direction
from hpc_amp.gan.unpaired import DIRECTIONS, UnpairedGan
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.registry import config_class
from hpc_amp.train.randomness import seed_everything

CPU = torch.device("cpu")
Translate = Callable[[Tensor, Direction], Tensor]


def task_of(file: Path) -> UnpairedGan:
    """The task of a job file, in fp32."""
    plain = yaml.safe_load(file.read_text())["train"]
    plain |= {"precision": {"mode": "fp32"}, "device": "cpu"}
    plain["checkpoint"] = {}
    task = build_task(from_plain(config_class(plain["task"]), plain), World(), CPU)
    assert isinstance(task, UnpairedGan)
    return task


@torch.no_grad()
def metrics(task: UnpairedGan, translate: Translate) -> dict[str, float]:
    """Those of an evaluation in which `translate` makes the translations to a domain."""
    several = getattr(task.train.evaluation, "styles", 1)

    def translations(_: object, images: Tensor, direction: Direction, seeds: Tensor) -> Tensor:
        return translate(images, direction)[:, None].expand(-1, several, -1, -1, -1)

    task.translations = translations  # type: ignore[method-assign,assignment]
    return evaluation(task, {"generator": torch.nn.Identity()})


@torch.no_grad()
def evaluation(task: UnpairedGan, networks: dict[str, torch.nn.Module]) -> dict[str, float]:
    """The metrics of an evaluation on one rank."""
    sums: dict[str, float] = {}
    for batch in task.evaluation_batches():
        for name, value in task.evaluate(batch, networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return task.summarize(sums)


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each colour, [3, 1, 1] each."""
    of_colours = images.transpose(0, 1).flatten(1)
    return of_colours.mean(1)[:, None, None], of_colours.std(1)[:, None, None]


def main() -> None:
    """Print a table, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    torch.set_num_threads(1)

    task = task_of(flags.config)
    training = task.prepare_data()
    seed_everything(task.train.seed)
    untrained = {name: network.eval() for name, network in task.build_networks().items()}
    found = {"untrained": evaluation(task, untrained)}

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
    for name, values in found.items():
        print(f"{name:12}", "  ".join(f"{key} {value:.4f}" for key, value in values.items()))
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
