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
            "frames": {"first": 3, "double_every": 1, "most": 5, "evaluation": 10},
            "synthetic": {"train": 12, "test": 4, "frames": 10, "speed": 8},
        },
    ),
}
"""Three steps an epoch; sequences have 3 frames in the first epoch, then 5."""


def plain_train(**train: Any) -> dict[str, Any]:
    """The keys of `train`."""
    found = merged(TRAIN, {name: value for name, value in train.items() if name != "wc_vid2vid"})
    found["wc_vid2vid"] = merged(NETWORKS, train.get("wc_vid2vid", {}))
    return found


def wc_vid2vid(folder: Path, *, attempt: int = 1, **train: Any) -> Engine:
    """An engine on one rank."""
    return engine(folder, task_class("wc_vid2vid"), attempt=attempt, **plain_train(**train))
