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

from collections.abc import Callable

import torch
from baselines import evaluate, read_arguments, show, task_of
from torch import Tensor, nn

from hpc_amp.tasks.funit.task import Funit

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


def translations(task: Funit, training: Tensor, classes: Tensor) -> dict[str, Translate]:
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


def main() -> None:
    arguments = read_arguments(__doc__)
    task = task_of(arguments.config)
    assert isinstance(task, Funit)
    data = task.prepare_data()
    batches = [batch for (batch,) in data.epoch(0)]
    images = torch.cat([batch.content for batch in batches])
    classes = torch.cat([batch.content_class for batch in batches])
    torch.manual_seed(0)
    found = {
        name: evaluate(task, {"generator": Trivial(translate)})
        for name, translate in translations(task, images, classes).items()
    }
    found["untrained"] = evaluate(task, task.build_networks())
    show(found, arguments.json)


if __name__ == "__main__":
    main()
