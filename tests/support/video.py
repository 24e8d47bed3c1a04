"""Folders of video in the layout of vid2vid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from hpc_amp.gan.video.config import SyntheticVideos
from hpc_amp.gan.video.flows import write_flow
from hpc_amp.gan.video.synthetic import DrawnVideos


def write_videos(
    root: Path, *, size: tuple[int, int] = (16, 16), labels: int = 4, sequences: int = 2
) -> dict[str, DrawnVideos]:
    """Synthetic sequences of 4 frames as files, for training and as a test; by split."""
    drawn = {}
    for split in ("train", "test"):
        config = SyntheticVideos(frames=4)
        videos = drawn[split] = DrawnVideos(sequences, labels, size, config, split)
        for number, frame in enumerate(videos.frames):
            name = f"scene {number // 4}/frame-{number % 4:03d}"
            for part, pixels in (
                ("A", frame.labels),
                ("B", frame.image),
                ("inst", frame.instances),
            ):
                path = root / f"{split}_{part}" / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.numpy()).save(path)
            path = root / f"{split}_points" / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, frame.points.numpy())
            if number % 4:
                path = root / f"{split}_flow" / f"{name}.flo"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_flow(path, frame.flow, frame.known)
    return drawn


def write_faces(root: Path) -> None:
    """Key points as OpenPose writes them, for the training frames that `write_videos` has written:
    a face of 6 x 4 pixels, which moves down. The second frames of sequences have nobody."""
    for frame in sorted((root / "train_B").rglob("*.png")):
        number = int(frame.stem.removeprefix("frame-"))
        parts = [place / 69 for place in range(70)]
        points = [value for part in parts for value in (4 + 6 * part, 4 + number + 4 * part, 0.9)]
        people = [{"face_keypoints_2d": points}] if number != 1 else []
        path = root / "train_poses" / frame.parent.name / f"{frame.stem}_keypoints.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"people": people}))
