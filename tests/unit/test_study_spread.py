"""Medians, quartiles and intervals, against values from tables and from sampling."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_amp.campaigns.spread import median_half_width, quartiles, student_quantile
from hpc_amp.campaigns.words import milliseconds, on_nodes, percent, percent_between, significant


def test_quartiles_by_hand() -> None:
    assert quartiles([1, 2, 3, 4, 5]) == (2, 4)
    assert quartiles([4, 1, 3, 2]) == (1.75, 3.25)
    assert quartiles([7]) == (7, 7)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_quartiles_hold_the_median_whatever_the_order(
    values: list[float], rng: random.Random
) -> None:
    low, high = quartiles(values)
    assert low <= median(values) <= high
    rng.shuffle(values)
    assert quartiles(values) == (low, high)


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.706), (2, 4.303), (10, 2.228), (11, 2.201), (15, 2.131), (30, 2.042), (100, 1.984)],
)
def test_student_quantiles_of_printed_tables(freedom: int, value: float) -> None:
    assert student_quantile(freedom) == pytest.approx(value, abs=6e-4)


def test_half_widths_by_hand() -> None:
    """Two repeats: 12.706 s / sqrt(2), with s = 0.1 sqrt(2). Three: 4.303 sqrt(pi / 2) s / sqrt(3),
    with s = 0.1."""
    assert median_half_width([1.0, 1.2]) == pytest.approx(1.2706)
    assert median_half_width([1.0, 1.1, 1.2]) == pytest.approx(4.303 * 1.2533141 * 0.1 / 3**0.5)
    assert median_half_width([2.0, 2.0, 2.0]) == 0
    assert median_half_width([1.0]) is None


@pytest.mark.parametrize("repeats", [2, 3, 5, 8])
def test_intervals_hold_the_truth_as_often_as_they_say(repeats: int) -> None:
    rng = random.Random(repeats)
    hits = 0
    for _ in range(2000):
        values = [rng.gauss(1, 0.05) for _ in range(repeats)]
        half = median_half_width(values)
        assert half is not None
        hits += abs(median(values) - 1) <= half
    # 95 % of 2000 with a standard error of 0.5 %; the factor for a median makes it a little wide.
    assert 0.935 < hits / 2000 < 0.99


def test_numbers_as_people_read_them() -> None:
    assert [significant(x) for x in (0, 0.01234, 0.5, 1.234, 12.34, 123.4, 1234.5)] == [
        "0.00", "0.0123", "0.500", "1.23", "12.3", "123", "1,234",
    ]  # fmt: skip
    assert milliseconds(0.0299) == "29.9"
    assert (percent(0.873), percent(-0.001), percent(None)) == ("87 %", "0 %", "-")
    assert percent_between(0.8734, 0.0123) == "87.3 ± 1.2 %"
    assert percent_between(0.8734, None) == "87.3 %"
    assert (on_nodes([1]), on_nodes([2]), on_nodes([4, 1])) == (
        "on 1 node", "on 2 nodes", "on 1 and 4 nodes",
    )  # fmt: skip
