"""World-consistent vid2vid small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_amp.tasks.build import task_class
from hpc_amp.train.engine import Engine
from support.gan_checks import merged
from support.training import engine
from support.vid2vid import TRAIN as VID2VID

LOSSES = ("d", "r1", "gan", "features", "perceptual", "flow", "warp", "guidance")
METRICS = (
    *("frechet_random", "l1", "psnr", "ssim", "label_agreement"),
    *("flow_error", "warping_error", "warping_error_real"),
    *("revisit_error", "revisit_error_real", "round_trip"),
)
NETWORKS: dict[str, Any] = {
    key: value
    for key, value in VID2VID["vid2vid"].items()
    if key not in ("temporal", "regions", "losses")
}
TRAIN: dict[str, Any] = {
    **{key: value for key, value in VID2VID.items() if key != "vid2vid"},
    "task": "wc_vid2vid",
    "wc_vid2vid": NETWORKS,
    "evaluation": {"pictures": 2, "round_trip": True},
    # The camera comes back within the frames of an evaluation.
    "images": merged(
        VID2VID["images"],
        {
            "frames": {"first": 3, "double_every": 1, "most": 4, "evaluation": 5},
            "synthetic": {"train": 8, "test": 2, "frames": 5, "speed": 8},
        },
    ),
}
"""Two steps an epoch; sequences have 3 frames in the first epoch, then 4."""
ONE: dict[str, Any] = {
    "batch_size": 1,
    "images": {"synthetic": {"train": 1, "test": 1, "frames": 5, "speed": 8}},
}
"""Keys of `train` for one sequence in training, and one in an evaluation."""
TWO: dict[str, Any] = {
    "batch_size": 2,
    "images": {"synthetic": {"train": 4, "test": 2, "frames": 5, "speed": 8}},
}
"""The same for two sequences in a step, two steps an epoch, and two in an evaluation."""


def plain_train(**train: Any) -> dict[str, Any]:
    """The keys of `train`."""
    found = merged(TRAIN, {name: value for name, value in train.items() if name != "wc_vid2vid"})
    found["wc_vid2vid"] = merged(NETWORKS, train.get("wc_vid2vid", {}))
    return found


def wc_vid2vid(folder: Path, *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class("wc_vid2vid"), attempt=attempt, **plain_train(**train))
