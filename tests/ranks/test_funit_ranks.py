"""FUNIT and COCO-FUNIT on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.funit import NAMES, plain_train
from support.rank_trainings import COMMON, FP16, check_resume, train_models
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

LOSSES = ("d", "r1", "gan", "features", "reconstruction")
METRICS = ("frechet_random", "nearest_class", "truth_l1")
# Larger steps enlarge the differences of rounding, as in any GAN.
PARITY: dict[str, Any] = {
    **COMMON,
    "images": {"synthetic": {"classes": 7, "train": 4, "test": 4}},  # four steps an epoch
    "batch_size": 4,
    "epochs": 2,
    "max_steps": 8,
    "precision": {"mode": "fp32"},
    "adversarial": {"generator_lr": 2e-4, "discriminator_lr": 2e-4},
}
SMALL_FP16: dict[str, Any] = {
    **FP16,
    "images": {"synthetic": {"classes": 7, "train": 2, "test": 4}},  # two steps an epoch
    "batch_size": 4,
    "epochs": 2,
}
SCALES = {"funit": 2.0**16, "coco_funit": 2.0**14}
"""First loss scales, of which some overflow and some do not."""
SAVED = 3
"""In the middle of the second epoch."""


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was resumed."""
    made = tmp_path_factory.mktemp("funit")
    models = {}
    for name in NAMES:
        precision = {"mode": "fp16", "init_scale": SCALES[name], "growth_interval": 3}
        fp16 = plain_train(name, **{**SMALL_FP16, "precision": precision})
        models[name] = plain_train(name, **PARITY), fp16
    train_models(warm, made, models, SAVED)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(name: str, folder: Path) -> None:
    """The same samples in each step, the same losses, the same metrics."""
    one, two = (folder / name / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert len(expected) == 8
        assert [v for _, v in seen] == pytest.approx([v for _, v in expected], rel=1e-3, abs=1e-4)
    first, *_, last = curve(one, "train/features")
    assert last[1] < 0.9 * first[1], "it trains"
    for metric in METRICS:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [4, 8]
        # An image at the border between two classes may change sides.
        tolerance = 0.1 if metric == "nearest_class" else 0.0
        assert [v for _, v in seen] == pytest.approx(
            [v for _, v in expected], rel=1e-2, abs=tolerance
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_on_two_ranks_is_bit_exact(name: str, folder: Path) -> None:
    """In the middle of an epoch, under fp16 with overflows, with accumulation and an EMA."""
    curves = [*(f"train/{loss}" for loss in LOSSES), *(f"eval/{metric}" for metric in METRICS)]
    check_resume(folder / name / "resumed", folder / name / "whole", SAVED, curves)
