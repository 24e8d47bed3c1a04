"""World-consistent vid2vid on two ranks: as on one, exact resume, and generated sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rank_trainings import FP16, PARITY, check_resume, run_on, train_models
from support.training import curve
from support.video import write_videos
from support.warm import Warm
from support.wc_vid2vid import LOSSES, METRICS, plain_train

from hpc_amp.config.schema import Job, to_plain

pytestmark = pytest.mark.ranks

STOP = 4
"""In the middle of the second epoch, whose sequences are longer."""


def test_two_ranks_train_resume_and_generate_as_one(warm: Warm, tmp_path: Path) -> None:
    """The same losses and metrics, also those of places that are seen again; a resume under fp16
    with overflows and accumulation is bit-exact. Then both ranks generate what one does."""
    train_models(
        warm,
        tmp_path,
        {"wc_vid2vid": (plain_train(**PARITY, epochs=2), plain_train(**FP16, epochs=2))},
        STOP,
    )
    folder = tmp_path / "wc_vid2vid"
    one, two = (folder / f"parity-{ranks}" for ranks in (1, 2))
    for kind, names in (("train", LOSSES), ("eval", METRICS)):
        for name in names:
            expected, seen = (curve(run, f"{kind}/{name}") for run in (one, two))
            assert [step for step, _ in seen] == [step for step, _ in expected]
            assert len(seen) == (6 if kind == "train" else 2)
            assert [v for _, v in seen] == pytest.approx(
                [v for _, v in expected], rel=2e-2, abs=2e-3
            )
    curves = [*(f"train/{loss}" for loss in LOSSES), *(f"eval/{metric}" for metric in METRICS)]
    check_resume(folder / "stopped", folder / "whole", STOP, curves)

    write_videos(tmp_path / "data", sequences=3)
    plain = {**to_plain(Job(name="wc_vid2vid")), "train": plain_train(**PARITY)}
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
