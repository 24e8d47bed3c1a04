#!/usr/bin/env python3
"""What trivial generators get in the evaluation of a task of pairs, such as `spade`.

    python benchmarks/paired_baselines.py configs/spade_small.yaml [--json FILE]

- mean image: the mean of the training images, always the same.
- mean colours: each pixel the mean colour of the training pixels with its label.
- nearest: the training image whose label map agrees with the given one in most pixels.
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
from hpc_amp.gan.data.batches import PairedBatch
from hpc_amp.gan.paired import PairedGan
from hpc_amp.tasks.base import Networks
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.registry import config_class

Render = Callable[[PairedBatch, Networks], Tensor]


def baselines(images: Tensor, labels: Tensor) -> dict[str, Render]:
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


@torch.no_grad()
def evaluate(task: PairedGan, networks: Networks) -> dict[str, float]:
    """The metrics of an evaluation."""
    sums: dict[str, float] = {}
    for batch in task.evaluation_batches():
        for name, value in task.evaluate(batch, networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return task.summarize(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    train = yaml.safe_load(arguments.config.read_text())["train"]
    # Not needed for an evaluation, and not in the long form that `from_plain` reads.
    for key in ("precision", "schedule", "checkpoint"):
        train.pop(key, None)
    config = from_plain(config_class(train["task"]), train)
    task = build_task(config, World(), torch.device("cpu"))
    assert isinstance(task, PairedGan)
    data = task.prepare_data()
    batches = [batch for (batch,) in data.epoch(0)]
    images = torch.cat([batch.images for batch in batches])
    labels = torch.cat([batch.labels for batch in batches if batch.labels is not None])
    torch.manual_seed(0)
    networks = task.build_networks()
    for network in networks.values():
        network.eval()
    found = {"untrained": evaluate(task, networks)}
    for name, render in baselines(images, labels).items():
        task.render = render  # type: ignore[method-assign]
        found[name] = evaluate(task, networks)
    names = list(found["untrained"])
    print(f"{'':16}" + "".join(f"{name:>17}" for name in names))
    for generator, metrics in found.items():
        print(f"{generator:16}" + "".join(f"{metrics[name]:17.4f}" for name in names))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
