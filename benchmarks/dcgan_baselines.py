#!/usr/bin/env python3
"""What images of known quality get in the evaluation of `dcgan`: real ones, worse ones, noise.

    python benchmarks/dcgan_baselines.py benchmarks/dcgan_fashion_mnist.yaml [KEY=VALUE ...]

The distances are `frechet_random` from the test images, of 10,000 images of each kind.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from hpc_amp.config.load import load_job
from hpc_amp.distributed.world import World
from hpc_amp.gan.frechet import FeatureNetwork, frechet_distance, moments
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.dcgan.task import REAL, Dcgan

IMAGES = 10_000


def kinds_of_images(task: Dcgan) -> dict[str, Tensor]:
    """Images [N, C, S, S] from -1 to 1, by what they are. The task's data is prepared."""
    data = task.prepare_data()
    parts = (images for micro_batches in data.epoch(0) for images, _ in micro_batches)
    batches = itertools.islice(parts, IMAGES // task.train.batch_size + 1)
    real = torch.cat(list(batches))[:IMAGES]
    stream = torch.Generator().manual_seed(0)
    noise = torch.rand(real.shape, generator=stream) * 2 - 1
    torch.manual_seed(0)
    untrained = task.build_networks()["generator"]
    with torch.no_grad():
        first = untrained(torch.randn(IMAGES, task.train.gan.latent, generator=stream))
    return {
        "training images": real,
        "training images, 10 % noise": real.lerp(noise, 0.1),
        "100 training images again and again": real[:100].repeat(IMAGES // 100, 1, 1, 1),
        "training images, blurred over 3x3 pixels": F.avg_pool2d(real, 3, 1, 1),
        "training images, moved by 2 pixels": real.roll(2, 3),
        "noise": noise,
        "images of an untrained generator": first,
    }


def main() -> None:
    """Print the distances."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    train = load_job(arguments.config, arguments.settings).job.train
    task = build_task(train, World(), torch.device("cpu"))
    assert isinstance(task, Dcgan)
    kinds = kinds_of_images(task)
    features = FeatureNetwork(task.data.channels)
    test = features.no_moments()
    for kind, batch in task.evaluation_batches():
        if kind == REAL:
            test += moments(features(batch))
    for name, images in kinds.items():
        made = features.no_moments()
        for part in images.split(500):
            made += moments(features(part))
        print(f"{frechet_distance(test, made):9.5f}  {name}")


if __name__ == "__main__":
    main()
