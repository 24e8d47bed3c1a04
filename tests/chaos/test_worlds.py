"""The number of ranks may change between two attempts, the batch may not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.training import curve

from chaos.ranks import Run, Zygote, mishap

pytestmark = pytest.mark.ranks

STEPS = 16
# Normalisation by groups makes the loss of a batch independent of how it is divided.
TRAIN: dict[str, Any] = {
    "model": {"name": "resnet8", "norm": "group", "width": 8},
    "data": {
        "name": "synthetic",
        "synthetic": {"train": 64, "test": 24, "image_size": 12, "classes": 4},
        "augment": {"crop": 1},
    },
    "batch_size": 8,
    "optimizer": {"lr": 0.05},
}


@pytest.fixture(scope="module")
def alone(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of one rank that nothing stops."""
    run = Run(zygote, tmp_path_factory.mktemp("alone") / "run", TRAIN)
    assert run.start(task=None).wait() == [0]
    return run


@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 4), (4, 1), (1, 2, 4, 2)])
def test_the_samples_are_the_same_for_any_number_of_ranks(
    alone: Run, new_run: Any, sizes: tuple[int, ...]
) -> None:
    """Another order of sums, but the same samples, random changes, rates and steps."""
    run = new_run(**TRAIN)
    stops = [5, 9, 12][: len(sizes) - 1]
    for number, (size, step) in enumerate(zip(sizes, stops, strict=False), 1):
        stop = mishap("step", "signal", "SIGTERM", at=step, rank=size - 1)
        stopped = run.start(
            mishap("start", "exchange", rank=None), stop, attempt=number, size=size, task=None
        )
        assert stopped.wait() == [75] * size, stopped.said()
        assert stopped.outcome["step"] == step
    last = run.start(attempt=len(sizes), size=sizes[-1], task=None)
    assert last.wait() == [0] * sizes[-1], last.said()
    assert f"at step {stops[-1]} (saved by {sizes[-2]} ranks)" in last.said()
    assert run.summary["world_size"] == sizes[-1]
    for name in ("train/loss", "train/lr", "eval/loss"):
        seen, expected = curve(run.path, name), curve(alone.path, name)
        assert [step for step, _ in seen] == [step for step, _ in expected]
        assert [y for _, y in seen] == pytest.approx([y for _, y in expected], abs=1e-5)
    losses = [loss for _, loss in curve(alone.path, "train/loss")]
    # The control: batches differ by far more than sums in another order.
    assert len(losses) == STEPS
    assert min(abs(a - b) for a, b in itertools.pairwise(losses)) > 1e-3


def test_another_batch_size_is_refused_with_an_explanation(new_run: Any) -> None:
    run = new_run(**TRAIN)
    stop = mishap("step", "signal", "SIGTERM", at=3)
    assert run.start(mishap("start", "exchange"), stop, task=None).wait() == [75]
    changed = new_run(**{**TRAIN, "batch_size": 16})
    attempt = changed.start(attempt=2, size=2, task=None)
    assert attempt.wait() == [1, 1]
    reason = attempt.outcome["reason"]
    assert "trained with batch_size 8, not 16" in reason
    assert "Set it back, or start a new run" in reason
    assert "Traceback" not in attempt.said()
    assert run.checkpoints() == [3], "nothing was touched"
