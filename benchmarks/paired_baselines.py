#!/usr/bin/env python3
"""What trivial generators get in the evaluation of a task of pairs, such as `spade`.

    python benchmarks/paired_baselines.py configs/spade_small.yaml [--json FILE]

- mean image: the mean of the training images, always the same.
- mean colours: each pixel the mean colour of the training pixels with its label.
- nearest: the training image whose label map agrees with the given one in most pixels.
- untrained: the networks before the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from baselines import evaluate, read_arguments, show, task_of
from torch import Tensor

from hpc_amp.gan.data.batches import PairedBatch
from hpc_amp.gan.paired import PairedGan
from hpc_amp.tasks.base import Networks

Render = Callable[[PairedBatch, Networks], Tensor]


def renderers(images: Tensor, labels: Tensor) -> dict[str, Render]:
    """Generators without weights, from training images [N, 3, H, W] and labels [N, H, W]."""
    mean = images.mean(0)
    pixels = images.permute(0, 2, 3, 1)
    colours = torch.stack([pixels[labels == label].mean(0) for label in range(labels.max() + 1)])

    def nearest(batch: PairedBatch, networks: Networks) -> Tensor:
        assert batch.labels is not None
        agree = [(labels == given).flatten(1).sum(1).argmax() for given in batch.labels]
        return images[torch.stack(agree)]

    return {
        "mean image": lambda batch, networks: mean.expand_as(batch.images),
        "mean colours": lambda batch, networks: colours[batch.labels].permute(0, 3, 1, 2),
        "nearest": nearest,
    }


def main() -> None:
    arguments = read_arguments(__doc__)
    task = task_of(arguments.config)
    assert isinstance(task, PairedGan)
    data = task.prepare_data()
    batches = [batch for (batch,) in data.epoch(0)]
    images = torch.cat([batch.images for batch in batches])
    labels = torch.cat([batch.labels for batch in batches if batch.labels is not None])
    torch.manual_seed(0)
    networks = task.build_networks()
    found = {"untrained": evaluate(task, networks)}
    for name, render in renderers(images, labels).items():
        task.render = render  # type: ignore[method-assign]
        found[name] = evaluate(task, networks)
    show(found, arguments.json)


if __name__ == "__main__":
    main()
