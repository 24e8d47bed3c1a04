"""FUNIT and COCO-FUNIT small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.build import task_class
from hpc_amp.train.engine import Engine
from support.gan_checks import merged
from support.training import engine

NAMES = ("funit", "coco_funit")
NETWORKS: dict[str, Any] = {
    "width": 4,
    "content_halvings": 2,
    "style_halvings": 2,
    "residual_blocks": 1,
    "style_size": 4,
    "mlp_width": 8,
    "discriminator_width": 4,
    "discriminator_halvings": 2,
}
TRAIN: dict[str, Any] = {
    "images": {
        "name": "synthetic",
        "image_size": [16],
        "references": 2,
        "unseen": 3,
        "synthetic": {"classes": 7, "train": 8, "test": 4},
    },
    "adversarial": {"generator_lr": 0.002, "discriminator_lr": 0.002, "eps": 1e-4},
    "evaluation": {"pictures": 3},
    "batch_size": 8,
    "schedule": {"name": "constant", "warmup": 0.0},
}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `NAMES`: four steps an epoch."""
    networks = {**NETWORKS, **({"bias_size": 5} if name == "coco_funit" else {})}
    plain = {"task": name, name: networks, **TRAIN}
    return merged(plain, train)


def few_shot(folder: Path, name: str = "funit", *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class(name), attempt=attempt, **plain_train(name, **train))
