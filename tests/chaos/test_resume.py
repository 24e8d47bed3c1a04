"""Runs that are stopped anywhere end with the very weights of the run that was not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.training import curve

from chaos.ranks import Run, Zygote, mishap

pytestmark = pytest.mark.ranks

STEPS_PER_EPOCH, STEPS = 4, 8
CURVES = ("train/loss", "train/lr", "train/loss_scale", "train/skipped_steps", "eval/loss")

# Overflows at once, and again each time that the scale has grown back.
PRECISIONS: dict[str, Any] = {
    "fp32": {"mode": "fp32"},
    "fp16": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
}

Ending = dict[str, Any]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files to stream: 32 training and 6 test images in two classes."""
    root = tmp_path_factory.mktemp("images")
    for split, count in (("train", 16), ("test", 3)):
        for label in (0, 1):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for number in range(count):
                colour = (12 * number, 200 * label, 100)
                Image.new("RGB", (14, 12), colour).save(folder / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def train(
    images: Path, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Run]:
    """Makes runs: train(precision, workers)."""

    def make(precision: str, workers: int) -> Run:
        config = {
            "model": {"name": "resnet8", "width": 4},
            "data": {
                "name": "imagefolder",
                "root": str(images),
                "in_memory": False,
                "image_size": 12,
                "workers": workers,
            },
            "epochs": STEPS // STEPS_PER_EPOCH,
            "precision": PRECISIONS[precision],
            "ema": 0.9,
            "ema_batch_norm": 1,
            "accumulate": 2,
            "log_every": 3,  # some stops are between two reports
        }
        return Run(zygote, tmp_path_factory.mktemp("runs"), config)

    return make


@pytest.fixture(scope="module")
def uninterrupted(train: Callable[..., Run]) -> Callable[..., Ending]:
    """How the run ends that nothing stops."""

    @functools.cache
    def ending_of(size: int, precision: str, workers: int) -> Ending:
        run = train(precision, workers)
        assert run.start(size=size, task=None).wait() == [0] * size
        return ending(run)

    return ending_of


def ending(run: Run) -> Ending:
    """All that a resume could change."""
    names = ("outcome", "weights_sha256", "loss_scale", "skipped_steps", "steps", "metrics")
    facts = {name: run.summary[name] for name in names}
    return {**facts, **{name: curve(run.path, name) for name in CURVES}}


def stop_after(step: int, rank: int) -> tuple[dict[str, Any], ...]:
    """One rank is told to terminate after this step, and the ranks hear of it at once."""
    return (
        mishap("start", "exchange", rank=None),
        mishap("step", "signal", "SIGTERM", at=step, rank=rank),
    )


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(range(1, STEPS), id="each-step-in-turn"),
        pytest.param((5, 6, 7), id="three-in-one-epoch", marks=pytest.mark.chaos),
        *(pytest.param((n,), id=f"step-{n}", marks=pytest.mark.chaos) for n in range(1, STEPS)),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1, 2])
def test_a_stop_at_any_step_changes_nothing(
    train: Callable[..., Run],
    uninterrupted: Callable[..., Ending],
    size: int,
    precision: str,
    workers: int,
    stops: tuple[int, ...],
) -> None:
    run = train(precision, workers)
    skipped = []
    for number, step in enumerate(stops, 1):
        mishaps = stop_after(step, rank=number % size)
        stopped = run.start(*mishaps, attempt=number, size=size, task=None)
        assert stopped.wait() == [75] * size, stopped.said()
        assert (stopped.outcome["outcome"], stopped.outcome["step"]) == ("checkpointed", step)
        skipped.append(run.summary["skipped_steps"])
    last = run.start(attempt=len(stops) + 1, size=size, task=None)
    assert last.wait() == [0] * size, last.said()
    assert ending(run) == uninterrupted(size, precision, workers)
    if precision == "fp16" and len(stops) == STEPS - 1:
        assert 0 < skipped[0] < skipped[-1], "overflows before and after the stops"


def test_a_digest_tells_apart_what_must_be_apart(uninterrupted: Callable[..., Ending]) -> None:
    """The control: reading threads change nothing, ranks and precision do change the rounding."""
    digests = {
        (size, precision, workers): uninterrupted(size, precision, workers)["weights_sha256"]
        for size in (1, 2)
        for precision in PRECISIONS
        for workers in (0, 2)
    }
    assert len(set(digests.values())) == 4
    for size, precision, workers in digests:
        assert digests[size, precision, workers] == digests[size, precision, 0]
