#!/usr/bin/env python3
"""What trivial generators get in the evaluation of a few-shot task, such as `funit`.

    python benchmarks/few_shot_baselines.py configs/funit_small.yaml [--json FILE]

- identity: the content image as it is.
- reference: the first reference image, whatever the content.
- mean image: the mean of the training images, always the same.
- colours: the content image with the mean and the deviation of each colour of the first reference.
- nearest class: the content image with the mean and the deviation of each colour of the training
  class whose mean colours are nearest to the reference's.
- untrained: the networks before the first step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from hpc_amp.config.schema import from_plain
from hpc_amp.distributed.world import World
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.funit.task import Funit
from hpc_amp.tasks.registry import config_class

CPU = torch.device("cpu")
Translate = Callable[[Tensor, Tensor], Tensor]


class Trivial(nn.Module):
    """A generator without weights."""

    def __init__(self, translate: Translate) -> None:
        super().__init__()
        self.translate = translate

    def forward(self, content: Tensor, style: Tensor, reconstruct: bool) -> dict[str, Tensor]:
        return {"translation": self.translate(content, style[:, 0])}


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each colour, [B, 3, 1, 1] each."""
    return images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True)


def recolour(content: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    mean, deviation = statistics(content)
    made = (content - mean) / deviation.clamp(min=1e-3) * wanted[1] + wanted[0]
    return made.clamp(-1, 1)


def baselines(task: Funit, training: Tensor, classes: Tensor) -> dict[str, Translate]:
    """`training` are images of `classes`."""
    mean_image = training.mean(0)
    centres, deviations = (
        torch.stack([each[classes == number].mean(0) for number in range(len(task.data.classes))])
        for each in statistics(training)
    )

    def nearest(content: Tensor, style: Tensor) -> Tensor:
        mean, _ = statistics(style)
        found = torch.cdist(mean.flatten(1), centres.flatten(1)).argmin(1)
        return recolour(content, (centres[found], deviations[found]))

    return {
        "identity": lambda content, style: content,
        "reference": lambda content, style: style,
        "mean image": lambda content, style: mean_image.expand_as(content),
        "colours": lambda content, style: recolour(content, statistics(style)),
        "nearest class": nearest,
    }


def evaluate(task: Funit, generator: nn.Module) -> dict[str, float]:
    """The metrics of an evaluation."""
    sums: dict[str, float] = {}
    for batch in task.evaluation_batches():
        for name, value in task.evaluate(batch, {"generator": generator}).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return task.summarize(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    plain = yaml.safe_load(arguments.job.read_text())["train"]
    plain["precision"] = {"mode": "fp32"}
    task = build_task(from_plain(config_class(plain["task"]), plain), World(), CPU)
    assert isinstance(task, Funit)
    data = task.prepare_data()
    batches = [batch for (batch,) in data.epoch(0)]
    images, classes = (
        torch.cat([getattr(batch, name) for batch in batches])
        for name in ("content", "content_class")
    )
    torch.manual_seed(0)
    generators = {name: Trivial(each) for name, each in baselines(task, images, classes).items()}
    found = {}
    with torch.no_grad():
        for name, network in {
            **generators,
            "untrained": task.build_networks()["generator"],
        }.items():
            found[name] = evaluate(task, network)
            print(f"{name:14}", "  ".join(f"{k} {v:.4f}" for k, v in found[name].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
