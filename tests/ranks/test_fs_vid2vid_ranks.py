"""Few-shot vid2vid on two ranks: as on one, and exact resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fs_vid2vid import LOSSES, METRICS, plain_train
from support.rank_trainings import FP16, PARITY, check_resume, train_models
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

STOP = 4
"""In the middle of the second epoch, whose sequences are longer."""


def test_two_ranks_train_and_resume_as_one(warm: Warm, tmp_path: Path) -> None:
    """The same sequences and references in each step, the same losses and metrics, also where
    sequences grow; a resume under fp16 with overflows and accumulation is bit-exact."""
    # The generator's hinge loss is a mean of logits around 0: nothing is near to it in relation.
    parity = {**PARITY, "adversarial": {**PARITY["adversarial"], "loss": "lsgan"}}
    train_models(
        warm,
        tmp_path,
        {"fs_vid2vid": (plain_train(**parity, epochs=2), plain_train(**FP16, epochs=2))},
        STOP,
    )
    folder = tmp_path / "fs_vid2vid"
    one, two = (folder / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert len(expected) == len(seen) == 6
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=2e-2, abs=2e-3)
    for metric in METRICS:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [step for step, _ in expected] == [3, 6]
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=2e-2, abs=5e-3)
    curves = [*(f"train/{loss}" for loss in LOSSES), *(f"eval/{metric}" for metric in METRICS)]
    check_resume(folder / "stopped", folder / "whole", STOP, curves)
