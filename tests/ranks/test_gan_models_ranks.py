"""SPADE, pix2pixHD, UNIT and MUNIT on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import paired, unpaired
from support.rank_trainings import COMMON, FP16, PARITY, check_resume, train_all, train_models
from support.training import curve
from support.warm import Warm

pytestmark = pytest.mark.ranks

STOP = 3
"""In the middle of the second epoch."""
EPOCHS = {"pix2pixhd": 3}
"""Of more than two: pix2pixHD updates other networks in the third. Each has two steps."""
SCALES = {"spade": 2.0**13, "pix2pixhd": 2.0**14, "unit": 2.0**16, "munit": 2.0**16}
"""First loss scales, of which some overflow and some do not."""
TOLERANCES = {"spade": (5e-2, 1e-2)}
"""Relative and absolute, of losses. After five steps, those of SPADE differ by percents."""
METRIC_TOLERANCES = {"spade": (2e-2, 5e-3)}
"""The same of metrics."""
SSIM_OF_PIX2PIXHD = 1e-1
"""Relative: it is small, and rounding is large after nine steps of Adam."""
UNPAIRED = unpaired.NAMES
NAMES = (*UNPAIRED, *paired.MODELS)
LOSSES = {
    **{name: ("d", "r1", *unpaired.LOSSES[name]) for name in UNPAIRED},
    **paired.LOSSES,
}
METRICS = {**unpaired.METRICS, **dict.fromkeys(paired.MODELS, paired.METRICS)}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `NAMES`."""
    of = unpaired if name in UNPAIRED else paired
    few = {"synthetic": {**of.TRAIN["images"]["synthetic"], "train": 16, "test": 8}}
    return of.plain_train(name, **train, images=few, epochs=EPOCHS.get(name, 2))


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was stopped."""
    made = tmp_path_factory.mktemp("gan models")
    models = {}
    for name in NAMES:
        precision = {**FP16["precision"], "init_scale": SCALES[name]}
        fp16 = plain_train(name, **{**FP16, "precision": precision})
        models[name] = plain_train(name, **PARITY), fp16
    train_models(warm, made, models, STOP)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(name: str, folder: Path) -> None:
    """The same samples, noise and styles in each step, the same losses, the same metrics, in all
    phases."""
    one, two = (folder / name / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES[name]:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert len(expected) == (4 if loss in ("d", "r1") or name != "pix2pixhd" else 2)
        relative, absolute = TOLERANCES.get(name, (1e-2, 1e-3))
        assert [v for _, v in seen] == pytest.approx(
            [v for _, v in expected], rel=relative, abs=absolute
        )
    if name in UNPAIRED:
        first, *_, last = curve(one, "train/image_recon")
        assert last[1] < first[1] - 0.02, "it trains"
    for metric in METRICS[name]:
        expected, seen = (curve(run, f"eval/{metric}") for run in (one, two))
        assert [step for step, _ in seen] == [step for step, _ in expected]
        relative, absolute = METRIC_TOLERANCES.get(name, (2e-2, 0.0))
        if (name, metric) == ("pix2pixhd", "ssim"):
            relative = SSIM_OF_PIX2PIXHD
        assert [v for _, v in seen] == pytest.approx(
            [v for _, v in expected], rel=relative, abs=absolute
        )


def test_clusters_of_instance_features_are_those_of_one_rank(warm: Warm, tmp_path: Path) -> None:
    """Of networks that are not changed: the evaluation alone finds them."""
    still = {"generator_lr": 0.0, "discriminator_lr": 0.0}
    train = paired.plain_train(
        "pix2pixhd", **COMMON, precision={"mode": "fp32"}, adversarial=still, epochs=1
    )
    runs = {ranks: tmp_path / str(ranks) for ranks in (1, 2)}
    train_all(warm, tmp_path, {ranks: [(run, train, 0)] for ranks, run in runs.items()})
    one, two = (
        torch.load(run / "checkpoints/step-00000003/networks.pt", weights_only=True)["encoder"]
        for run in runs.values()
    )
    assert torch.equal(two["found"], one["found"]) and one["found"].max() > 3
    torch.testing.assert_close(two["centres"], one["centres"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_on_two_ranks_is_bit_exact(name: str, folder: Path) -> None:
    """In the middle of an epoch, under fp16 with overflows, with accumulation and an EMA."""
    curves = [*(f"train/{loss}" for loss in LOSSES[name]), *(f"eval/{m}" for m in METRICS[name])]
    check_resume(folder / name / "stopped", folder / name / "whole", STOP, curves)
