"""vid2vid on two ranks: as on one, exact resume, and generated sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rank_trainings import PARITY, run_on, train_all
from support.training import curve
from support.vid2vid import LOSSES, METRICS, plain_train
from support.video import write_faces, write_videos
from support.video_checks import FRAMES, PAIRS, SEQUENCES, check_ranks
from support.warm import Warm

from hpc_amp.config.schema import Job, to_plain

pytestmark = pytest.mark.ranks


def test_two_ranks_train_resume_and_generate_as_one(warm: Warm, tmp_path: Path) -> None:
    """The same sequences in each step, the same losses and metrics, also where sequences grow; a
    resume under fp16 with overflows and accumulation is bit-exact. Then both ranks generate what
    one does, each its share of the sequences."""
    images = {"frames": FRAMES, "synthetic": SEQUENCES}
    short = {"images": images, "vid2vid": PAIRS}
    one = check_ranks(
        warm, tmp_path, plain_train, LOSSES, METRICS, short=short, metrics_differ=1e-3
    )

    write_videos(tmp_path / "data", sequences=3)
    plain = {**to_plain(Job(name="vid2vid")), "train": plain_train(**PARITY, **short)}
    (one / "job.json").write_text(json.dumps({"job": plain}))
    words = ["-m", "hpc_amp.train.generate", one, "--input", tmp_path / "data/test_A"]
    words += ["--instances", tmp_path / "data/test_inst", "--device", "cpu"]
    made = {}
    for ranks in (1, 2):
        output = tmp_path / f"out {ranks}"
        said = run_on(warm, ranks, *words, "--output", output)
        files = sorted(path for path in output.rglob("*.png"))
        made[ranks] = {str(file.relative_to(output)): file.read_bytes() for file in files}
    assert "rank 0: 8 images in" in said and "rank 1: 4 images in" in said
    assert len(made[1]) == 12 and made[2] == made[1]
    assert "scene 2/frame-003.png" in made[1]


def test_two_ranks_judge_the_faces_of_all_frames_as_one(warm: Warm, tmp_path: Path) -> None:
    """Where the parts of a batch have different numbers of them."""
    write_videos(tmp_path / "data", sequences=4)
    write_faces(tmp_path / "data")
    for frame in (0, 2, 3):
        path = tmp_path / f"data/train_poses/scene 0/frame-00{frame}_keypoints.json"
        path.write_text('{"people": []}')
    frames = {"first": 3, "most": 3, "evaluation": 3}
    images = {"name": "folder", "root": str(tmp_path / "data"), "regions": ["face"]}
    images["frames"] = frames
    plain = plain_train(images=images, vid2vid={"regions": {"labels": []}}, **PARITY, epochs=2)
    runs = {ranks: tmp_path / f"run-{ranks}" for ranks in (1, 2)}
    train_all(warm, tmp_path, {ranks: [(run, plain, 0)] for ranks, run in runs.items()})
    for loss in ("region_d", "region_gan", "region_features"):
        one, two = (curve(run, f"train/{loss}") for run in runs.values())
        assert [step for step, _ in two] == [step for step, _ in one] == [1, 2]
        assert [value for _, value in two] == pytest.approx([v for _, v in one], rel=1e-3)
        assert all(value > 0 for _, value in one)
