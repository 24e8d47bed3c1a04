"""A DCGAN small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.dcgan.config import DcganConfig
from hpc_amp.tasks.dcgan.task import Dcgan
from hpc_amp.train.engine import Engine
from support.training import engine

GAN: dict[str, Any] = {
    "image_size": 16,
    "latent": 6,
    "generator_width": 4,
    "discriminator_width": 4,
    "lr": 0.002,
    "pictures": 9,
    "evaluation_images": 50,
}
TRAIN: dict[str, Any] = {
    "task": "dcgan",
    "data": {
        "name": "synthetic",
        "synthetic": {"train": 64, "test": 37, "image_size": 14, "classes": 4},
    },
    "batch_size": 16,
    "schedule": {"name": "constant", "warmup": 0.0},
}


def dcgan(folder: Path, *, gan: dict[str, Any] | None = None, **train: Any) -> Engine:
    """An engine on one rank, with four steps an epoch."""
    plain = {**TRAIN, **train}
    name = plain.pop("task")
    made: Engine = engine(folder, Dcgan, gan={**GAN, **(gan or {})}, **plain)
    assert name == Dcgan.name and isinstance(made.train, DcganConfig)
    return made
