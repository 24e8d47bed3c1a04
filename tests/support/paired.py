"""SPADE and pix2pixHD small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.build import task_class
from hpc_amp.train.engine import Engine
from support.gan_checks import merged
from support.training import engine

JUDGES = {"width": 8, "layers": 1, "scales": 2}
MODELS: dict[str, dict[str, Any]] = {
    "spade": {
        "task": "spade",
        "spade": {
            "width": 8,
            "stages": 2,
            "hidden": 8,
            "norm": "instance",
            "style_encoder": True,
            "style": 4,
            "encoder_width": 8,
            "discriminator": JUDGES,
        },
    },
    "pix2pixhd": {
        "task": "pix2pixhd",
        "pix2pixhd": {
            "width": 8,
            "downsamplings": 1,
            "blocks": 1,
            "discriminator": JUDGES,
            "enhancer": {"blocks": 1, "coarse_epochs": 1, "fine_epochs": 1},
            "instance_features": {"width": 8, "downsamplings": 1},
        },
    },
}
"""By name; pix2pixHD has other phases in each of its first three epochs."""
LOSSES: dict[str, tuple[str, ...]] = {
    "spade": ("d", "r1", "gan", "features", "perceptual", "kl"),
    "pix2pixhd": (
        *("coarse_d", "coarse_r1", "coarse_gan", "coarse_features", "coarse_perceptual"),
        *("d", "r1", "fine_gan", "fine_features", "fine_perceptual"),
        *("gan", "features", "perceptual"),
    ),
}
METRICS = ("frechet_random", "l1", "psnr", "ssim", "label_agreement")
TRAIN: dict[str, Any] = {
    "images": {
        "name": "synthetic",
        "image_size": [16],
        "labels": 4,
        "instances": True,
        "synthetic": {"train": 24, "test": 10},
    },
    "adversarial": {"generator_lr": 0.002, "discriminator_lr": 0.002, "eps": 1e-4, "r1": 1.0},
    "evaluation": {"pictures": 3},
    "batch_size": 8,
    "schedule": {"name": "constant", "warmup": 0.0},
}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `MODELS`: three steps an epoch."""
    plain = {**MODELS[name], **TRAIN}
    return merged(plain, train)


def paired(folder: Path, name: str, *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class(name), attempt=attempt, **plain_train(name, **train))
