"""Few-shot vid2vid small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.build import task_class
from hpc_amp.train.engine import Engine
from support.gan_checks import merged
from support.training import engine

LOSSES = (
    *("d", "temporal_d", "r1", "gan", "features", "perceptual"),
    *("temporal_gan", "temporal_features", "flow", "warp", "mask"),
    *("reference_flow", "reference_warp", "reference_mask"),
)
METRICS = (
    *("frechet_random", "l1", "psnr", "ssim", "flow_error", "warping_error", "warping_error_real"),
    "identity_agreement",
)
FLOW = {"width": 4, "halvings": 1, "blocks": 1, "scale": 4.0}
TRAIN: dict[str, Any] = {
    "task": "fs_vid2vid",
    "fs_vid2vid": {
        "width": 4,
        "stages": 2,
        "hidden": 4,
        "warped_stages": 1,
        "references": {"width": 4, "halvings": 1, "code": 6, "rank": 2, "blocks": 2},
        "flow": FLOW,
        "reference_flow": FLOW,
        "discriminator": {"width": 4, "layers": 1, "scales": 2},
        "temporal": {"width": 4, "layers": 1, "scales": 2},
        "losses": {"mask": 1.0, "reference_mask": 1.0},
    },
    "images": {
        "name": "synthetic",
        "image_size": [16],
        "labels": 4,
        "instances": True,
        "references": 2,
        "frames": {"first": 3, "double_every": 1, "most": 4, "evaluation": 4},
        "synthetic": {"train": 8, "test": 4, "frames": 6, "identities": 4},
    },
    "adversarial": {"generator_lr": 0.002, "discriminator_lr": 0.002, "eps": 1e-4, "r1": 1.0},
    "evaluation": {"pictures": 2},
    "batch_size": 4,
    "schedule": {"name": "constant", "warmup": 0.0},
}
"""Two steps an epoch; sequences have 3 frames in the first epoch, then 4."""
ONE: dict[str, Any] = {
    "batch_size": 1,
    "images": {"synthetic": {"train": 1, "test": 1, "frames": 4}},
}
"""Keys of `train` for one sequence in training, and one in an evaluation."""
TWO: dict[str, Any] = {
    "batch_size": 2,
    "images": {"synthetic": {"train": 4, "test": 2, "frames": 4, "identities": 2}},
}
"""The same for two sequences in a step, two steps an epoch, and two in an evaluation."""


def plain_train(**train: Any) -> dict[str, Any]:
    """The keys of `train`."""
    own = train.pop("fs_vid2vid", {})
    found = merged(TRAIN, train)
    found["fs_vid2vid"] = merged(TRAIN["fs_vid2vid"], own)
    return found


def fs_vid2vid(folder: Path, *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class("fs_vid2vid"), attempt=attempt, **plain_train(**train))
