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

UNPAIRED = unpaired.NAMES
SAVED = 3
"""In the middle of the second epoch."""
EPOCHS = {"pix2pixhd": 3}
"""Of more than two: pix2pixHD updates other networks in the third. Each has two steps."""
NARROW = {
    "unit": {"width": 4, "discriminator_width": 4},
    "munit": {"width": 4, "discriminator_width": 4},
    "spade": {"width": 4, "hidden": 4, "encoder_width": 4},
    "pix2pixhd": {"width": 4},
}
"""Channels, since convolutions in fp16 take most of the time."""
SCALES = {"spade": 2.0**13, "pix2pixhd": 2.0**13, "unit": 2.0**16, "munit": 2.0**16}
"""First loss scales, of which some overflow and some do not."""
TOLERANCES = {"spade": (5e-2, 1e-2)}
"""Relative and absolute, of losses. After some steps, those of SPADE differ by percents."""
METRIC_TOLERANCES = {"spade": (2e-2, 5e-3)}
"""The same of metrics."""
SSIM_OF_PIX2PIXHD = 1e-1
"""Relative: it is small, and rounding is large after some steps of Adam."""
NAMES = (*UNPAIRED, *paired.MODELS)
LOSSES = {
    **{name: ("d", "r1", *unpaired.LOSSES[name]) for name in UNPAIRED},
    **paired.LOSSES,
}
METRICS = {**unpaired.METRICS, **dict.fromkeys(paired.MODELS, paired.METRICS)}


def plain_train(name: str, **train: Any) -> dict[str, Any]:
    """The keys of `train` of one of `NAMES`."""
    of = unpaired if name in UNPAIRED else paired
    few = {"synthetic": {**of.TRAIN["images"]["synthetic"], "train": 8, "test": 8}}
    small = {"images": few, "batch_size": 4, name: NARROW[name]}
    return of.plain_train(name, **train, **small, epochs=EPOCHS.get(name, 2))


def steps_of(name: str, loss: str) -> int:
    """In how many steps of the first training a loss is computed."""
    if name != "pix2pixhd" or loss in ("d", "r1"):
        return 3
    return 2 if loss.startswith(("coarse", "fine")) else 1


@pytest.fixture(scope="module")
def folder(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of trainings on one and two ranks, one of which was resumed."""
    made = tmp_path_factory.mktemp("gan models")
    models = {}
    for name in NAMES:
        precision = {**FP16["precision"], "init_scale": SCALES[name]}
        fp16 = plain_train(name, **{**FP16, "precision": precision})
        # The last epoch has one step: enough to see its samples, and what it changes.
        steps = 2 * EPOCHS.get(name, 2) - 1
        models[name] = plain_train(name, **PARITY, max_steps=steps), fp16
    train_models(warm, made, models, SAVED)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one(name: str, folder: Path) -> None:
    """The same samples, noise and styles in each step, the same losses, the same metrics, in all
    phases."""
    one, two = (folder / name / f"parity-{ranks}" for ranks in (1, 2))
    for loss in LOSSES[name]:
        expected, seen = (curve(run, f"train/{loss}") for run in (one, two))
        assert len(expected) == steps_of(name, loss)
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
    check_resume(folder / name / "resumed", folder / name / "whole", SAVED, curves)
