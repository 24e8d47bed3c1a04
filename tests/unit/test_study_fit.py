"""Amdahl's and Gustafson's laws: exact data give back what made them, noisy data do so within the
uncertainty that is stated, and too few data say so."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_amp.study.fit import Fit, fit_amdahl, fit_gustafson
from hpc_amp.study.sentences import fit_sentence

NODES = (1, 2, 4, 8, 16)
Law = Callable[[float, int], float]
Fitter = Callable[[list[int], list[float]], Fit | None]


def amdahl(serial: float, nodes: int) -> float:
    """Speedup over one node."""
    return 1 / (serial + (1 - serial) / nodes)


def gustafson(serial: float, nodes: int) -> float:
    """Speedup over one node of a problem that grows with the nodes."""
    return serial + (1 - serial) * nodes


LAWS = pytest.mark.parametrize(
    ("law", "fit"), [(amdahl, fit_amdahl), (gustafson, fit_gustafson)], ids=["amdahl", "gustafson"]
)


def test_amdahl_by_hand() -> None:
    """One and two nodes take 1 s and 0.6 s: a + b = 1, a + b / 2 = 0.6, so a = 0.2."""
    fit = fit_amdahl([1, 2], [1 / 1.0, 1 / 0.6])
    assert fit is not None
    assert fit.serial_fraction == pytest.approx(0.2)
    assert (fit.half_width, fit.verifiable) == (None, False)


def test_gustafson_by_hand() -> None:
    """One and two nodes do 100 and 190 images a second: a + b = 100, a + 2 b = 190, so a = 10."""
    fit = fit_gustafson([1, 2], [100, 190])
    assert fit is not None
    assert fit.serial_fraction == pytest.approx(0.1)


def test_it_is_the_line_with_the_least_relative_squares() -> None:
    """Times 10, 6 and 5 on 1, 2 and 4 nodes lie on no line."""
    fit = fit_amdahl([1, 2, 4], [1 / 10, 1 / 6, 1 / 5])
    assert fit is not None
    lines = [fit.intercept + fit.slope / n for n in (1, 2, 4)]
    relative = [(y - line) / line for y, line in zip((10, 6, 5), lines, strict=True)]
    # At the solution the deviations, weighted by 1 / line^2, are orthogonal to 1 and to x.
    weighted = [r / line for r, line in zip(relative, lines, strict=True)]
    assert sum(weighted) == pytest.approx(0, abs=1e-6)
    assert sum(w / n for w, n in zip(weighted, (1, 2, 4), strict=True)) == pytest.approx(
        0, abs=1e-6
    )
    assert fit.largest_deviation == pytest.approx(max(map(abs, relative)))


@LAWS
@given(
    serial=st.floats(0, 0.9),
    one=st.floats(1e-2, 1e6),
    nodes=st.lists(st.integers(1, 512), min_size=2, max_size=8, unique=True),
)
def test_exact_data_give_back_the_serial_fraction(
    law: Law, fit: Fitter, serial: float, one: float, nodes: list[int]
) -> None:
    found = fit(nodes, [one * law(serial, n) for n in nodes])
    assert found is not None
    # It is a share of the smallest point, which need not be one node.
    smallest = min(nodes)
    wanted = serial * (law(serial, smallest) if law is amdahl else 1 / law(serial, smallest))
    assert found.serial_fraction == pytest.approx(wanted, abs=1e-6)
    assert found.largest_deviation == pytest.approx(0, abs=1e-6)
    assert found.samples_per_second(smallest) == pytest.approx(one * law(serial, smallest))


@LAWS
@pytest.mark.parametrize(("repeats", "serial"), [(1, 0.05), (3, 0.02), (3, 0.3)])
def test_noise_is_covered_by_the_uncertainty(
    law: Law, fit: Fitter, repeats: int, serial: float
) -> None:
    rng = random.Random(17)
    nodes = [n for n in NODES for _ in range(repeats)]
    hits, above = 0, 0
    for _ in range(1000):
        found = fit(nodes, [law(serial, n) * rng.gauss(1, 0.02) for n in nodes])
        assert found is not None and found.half_width is not None
        hits += abs(found.serial_fraction - serial) <= found.half_width
        above += found.serial_fraction > serial
    # 950 of 1000 are wanted, with a standard error of 7; and no side is preferred.
    assert 925 <= hits <= 975
    assert 430 <= above <= 570


@LAWS
def test_the_order_of_runs_does_not_matter(law: Law, fit: Fitter) -> None:
    rng = random.Random(5)
    runs = [(n, law(0.1, n) * rng.gauss(1, 0.03)) for n in NODES for _ in range(3)]
    first = fit(*map(list, zip(*runs, strict=True)))
    rng.shuffle(runs)
    second = fit(*map(list, zip(*runs, strict=True)))
    assert first is not None and second is not None
    assert second.serial_fraction == pytest.approx(first.serial_fraction)
    assert second.half_width == pytest.approx(first.half_width)


@LAWS
def test_what_cannot_be_fitted_is_not(law: Law, fit: Fitter) -> None:
    assert fit([], []) is None
    assert fit([4, 4, 4], [1.0, 1.1, 0.9]) is None


def test_more_data_make_the_fraction_surer() -> None:
    rng = random.Random(1)

    def half_width(repeats: int) -> float:
        nodes = [n for n in NODES for _ in range(repeats)]
        fit = fit_amdahl(nodes, [amdahl(0.1, n) * rng.gauss(1, 0.02) for n in nodes])
        assert fit is not None and fit.half_width is not None
        return fit.half_width

    assert half_width(100) < half_width(3) / 2


def test_a_law_that_does_not_hold_deviates() -> None:
    """Communication that grows with the nodes: time 1 / n + 0.05 n."""
    fit = fit_amdahl(list(NODES), [1 / (1 / n + 0.05 * n) for n in NODES])
    assert fit is None or fit.largest_deviation > 0.3


def test_faster_than_ideal_is_a_negative_fraction() -> None:
    fit = fit_amdahl([1, 2, 4], [amdahl(-0.05, n) for n in (1, 2, 4)])
    assert fit is not None
    assert fit.serial_fraction == pytest.approx(-0.05)
    assert fit.contradiction == "more nodes gain more than is ideal"
    assert not fit.holds


@pytest.mark.parametrize(
    ("fitter", "throughputs"), [(fit_amdahl, [1000, 921]), (fit_gustafson, [1000, 950])]
)
def test_nodes_that_slow_down_are_no_law(fitter: Fitter, throughputs: list[float]) -> None:
    """A line goes through any two points; that its speedup stays below 0.9 would be nonsense."""
    fit = fitter([1, 2], throughputs)
    assert fit is not None
    assert fit.describes and fit.serial_fraction > 1.01
    assert fit.contradiction == "more nodes are slower"
    said = fit_sentence(fit)
    assert said.endswith("which the law does not allow: more nodes are slower.")
    assert "stays" not in said


@pytest.mark.parametrize("serial", [0.0, 1.0])
def test_the_ends_of_the_law_are_no_contradiction(serial: float) -> None:
    fit = fit_amdahl(list(NODES), [amdahl(serial, n) for n in NODES])
    assert fit is not None and fit.holds
    assert f"{'nothing' if serial else 'all'} of the work scales" in fit_sentence(fit)
