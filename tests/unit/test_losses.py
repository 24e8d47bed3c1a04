"""The losses since the last report."""

from __future__ import annotations

import math

import pytest
import torch

from hpc_amp.train.losses import RecentLosses

CPU = torch.device("cpu")


def losses(*values: float, capacity: int = 8) -> RecentLosses:
    made = RecentLosses(capacity, CPU)
    for value in values:
        made.begin()
        made.add(torch.tensor(value))
    return made


def test_each_step_has_the_sum_of_its_parts() -> None:
    made = losses(1.0)
    made.begin()
    made.add(torch.tensor(0.25))
    made.add(torch.tensor(0.5, requires_grad=True))
    assert made.recent().tolist() == [1.0, 0.75]
    assert made.count == 2
    made.clear()
    assert made.recent().tolist() == []
    made.begin()
    assert made.recent().tolist() == [0.0], "nothing is left of what was there before"


def test_a_rehearsed_step_is_none() -> None:
    made = losses(1.0, 2.0)
    made.forget_step()
    assert made.recent().tolist() == [1.0]
    made.begin()
    made.add(torch.tensor(3.0))
    assert made.recent().tolist() == [1.0, 3.0]


def test_where_nobody_takes_them_they_start_anew() -> None:
    assert losses(1.0, 2.0, 3.0, capacity=2).recent().tolist() == [3.0]


def test_what_was_saved_comes_back() -> None:
    made = losses(9.0)
    made.restore(losses(1.0, 2.0, 3.0).recent())
    assert made.recent().tolist() == [1.0, 2.0, 3.0]
    made.restore(torch.tensor([]))
    assert made.count == 0


def test_a_shorter_interval_than_before_takes_over_the_newest() -> None:
    made = losses(capacity=2)
    made.restore(torch.tensor([1.0, 2.0, 3.0]))
    assert made.recent().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ((1.0, 2.0), None),
        ((), None),
        ((1.0, math.nan, math.inf), 1),
        ((math.inf, 1.0), 0),
        ((1.0, 2.0, -math.inf), 2),
    ],
)
def test_the_first_that_is_no_number_is_found(values: tuple[float, ...], first: int | None) -> None:
    assert losses(*values).first_bad() == first
