"""World-consistent vid2vid on two ranks: as on one, exact resume, and generated sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rank_trainings import PARITY, run_on
from support.video import write_videos
from support.video_checks import FRAMES, check_ranks
from support.warm import Warm
from support.wc_vid2vid import LOSSES, METRICS, plain_train

from hpc_amp.config.schema import Job, to_plain

pytestmark = pytest.mark.ranks


def test_two_ranks_train_resume_and_generate_as_one(warm: Warm, tmp_path: Path) -> None:
    """The same losses and metrics, also those of places that are seen again; a resume under fp16
    with overflows and accumulation is bit-exact. Then both ranks generate what one does."""
    # The camera comes back within the frames of an evaluation.
    short = {"images": {"frames": {**FRAMES, "evaluation": 5}}}
    one = check_ranks(warm, tmp_path, plain_train, LOSSES, METRICS, short=short)

    write_videos(tmp_path / "data", sequences=3)
    plain = {**to_plain(Job(name="wc_vid2vid")), "train": plain_train(**PARITY, **short)}
    (one / "job.json").write_text(json.dumps({"job": plain}))
    words = ["-m", "hpc_amp.train.generate", one, "--input", tmp_path / "data/test_A"]
    words += ["--instances", tmp_path / "data/test_inst", "--device", "cpu"]
    words += ["--points", tmp_path / "data/test_points"]
    made = {}
    for ranks in (1, 2):
        output = tmp_path / f"out {ranks}"
        run_on(warm, ranks, *words, "--output", output)
        files = sorted(path for path in output.rglob("*.png"))
        made[ranks] = {str(file.relative_to(output)): file.read_bytes() for file in files}
    assert len(made[1]) == 12 and made[2] == made[1]
