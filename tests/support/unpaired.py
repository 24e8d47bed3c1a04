"""UNIT and MUNIT small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.build import task_class
from hpc_amp.train.engine import Engine
from support.gan_checks import merged
from support.training import engine

NAMES = ("unit", "munit")
NETWORKS: dict[str, Any] = {
    "width": 8,
    "downs": 1,
    "blocks": 1,
    "discriminator_width": 8,
    "discriminator_layers": 2,
    "discriminator_scales": 1,
}
OWN: dict[str, dict[str, Any]] = {
    "unit": {},
    "munit": {"style": 2, "style_downs": 2, "hidden": 8, "cycle": 1.0},
}
LOSSES: dict[str, tuple[str, ...]] = {
    "unit": ("gan", "image_recon", "cycle", "kl", "kl_cycle"),
    "munit": ("gan", "image_recon", "style_recon", "content_recon", "cycle"),
}
METRICS: dict[str, tuple[str, ...]] = {
    "unit": ("frechet_random", "frechet_random_a", "truth_l1_b"),
    "munit": ("frechet_random", "truth_l1_b", "diversity_b", "styles_b"),
}
TRAIN: dict[str, Any] = {
    "images": {
        "name": "synthetic",
        "image_size": [16],
        "synthetic": {"train": 24, "test": 10, "styles": 2},
    },
    "adversarial": {"generator_lr": 0.002, "discriminator_lr": 0.002, "eps": 1e-4, "r1": 1.0},
    "evaluation": {"pictures": 3},
    "batch_size": 8,
    "schedule": {"name": "constant", "warmup": 0.0},
}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `NAMES`: three steps an epoch."""
    plain = {"task": name, name: NETWORKS | OWN[name], **TRAIN}
    return merged(plain, train)


def unpaired(folder: Path, name: str, *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class(name), attempt=attempt, **plain_train(name, **train))
