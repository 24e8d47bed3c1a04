"""From what ranks measured to step times, shares, speedup and efficiency: known answers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rank_times import rank_file
from support.studies import make_study, measure, read_study, submit_run, write_timing

from hpc_amp.study.analysis import Analysis, analyse
from hpc_amp.study.curve import Curve, make_curve
from hpc_amp.study.points import measure_point


def analysed(study: Path) -> Analysis:
    return analyse(read_study(study))


def only_curve(study: Path) -> Curve:
    (curve,) = analysed(study).curves
    return curve


def test_strong_scaling_by_hand(tmp_path: Path) -> None:
    """512 images in 100, 60 and 40 ms."""
    study = make_study(tmp_path, nodes=(1, 2, 4), repeats=1)
    for nodes, seconds in ((1, 0.1), (2, 0.06), (4, 0.04)):
        measure(study, "strong", nodes, 1, seconds)
    curve = only_curve(study)
    assert [s.point.samples_per_second for s in curve.points] == pytest.approx(
        [5120, 8533.333, 12800]
    )
    assert [s.speedup for s in curve.points] == pytest.approx([1, 1.666667, 2.5])
    assert [s.efficiency for s in curve.points] == pytest.approx([1, 0.833333, 0.625])
    assert [s.point.world_size for s in curve.points] == [4, 8, 16]
    # From 5/6 on 2 nodes to 5/8 on 4: 0.75 is 0.4 of the way, 2 * 2 ** 0.4.
    assert curve.crossing is not None
    assert (curve.crossing.last_nodes, curve.crossing.first_nodes) == (2, 4)
    assert curve.crossing.nodes == pytest.approx(2.639016)
    # 20 ms + 80 ms / n goes through all three.
    assert curve.fit is not None
    assert curve.fit.serial_fraction == pytest.approx(0.2)
    assert curve.fit.largest_deviation == pytest.approx(0, abs=1e-9)


def test_weak_scaling_by_hand(tmp_path: Path) -> None:
    """128 images a node in 100, 105 and 125 ms: throughput a node falls to 100/105 and 4/5."""
    study = make_study(tmp_path, kind="weak", nodes=(1, 2, 4), repeats=1)
    for nodes, seconds in ((1, 0.1), (2, 0.105), (4, 0.125)):
        measure(study, "weak", nodes, 1, seconds)
    curve = only_curve(study)
    assert [s.point.samples_per_second for s in curve.points] == pytest.approx(
        [1280, 2438.0952, 4096]
    )
    assert [s.efficiency for s in curve.points] == pytest.approx([1, 0.952381, 0.8])
    assert [s.speedup for s in curve.points] == pytest.approx([1, 1.904762, 3.2])
    assert curve.crossing is None
    assert curve.fit is not None
    assert curve.fit.law == "Gustafson"


def test_the_smallest_point_measured_is_the_reference(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4, 8), repeats=1)
    measure(study, "strong", 4, 1, 0.05)
    measure(study, "strong", 8, 1, 0.03)
    curve = only_curve(study)
    assert [s.ideal_speedup for s in curve.points] == [1, 2]
    assert [s.efficiency for s in curve.points] == pytest.approx([1, 0.833333])


def test_medians_and_spread_over_ranks_and_runs(tmp_path: Path) -> None:
    """Runs of medians 2, 3 and 10: the middle one counts, whatever their mean. All steps together
    are 1 2 3, 2 3 4 and 9 10 11, on each of four ranks."""
    study = make_study(tmp_path, nodes=(1,), repeats=3)
    for repeat, steps in enumerate(([1, 2, 3], [4, 2, 3], [10, 9, 11]), start=1):
        measure(study, "strong", 1, repeat, lambda _, steps=steps: steps)
    point = only_curve(study).reference
    assert point.run_seconds == (2, 3, 10)
    assert point.step_seconds == 3
    assert point.step_spread == (2, 9)
    assert point.mean_seconds == pytest.approx(5)
    # s = 4.3589 of (2, 3, 10): 4.303 * sqrt(pi / 2) * s / sqrt(3) / 3
    assert point.half_width == pytest.approx(4.5238, rel=1e-3)


def test_uncertainty_of_efficiency_by_hand(tmp_path: Path) -> None:
    """Two runs each, 1 % apart: 12.706 * s / sqrt(2) is 12.706 / 2 times their distance; both
    points have that relative error, so the ratio has sqrt(2) times it."""
    study = make_study(tmp_path, nodes=(1, 2), repeats=2)
    for nodes, base in ((1, 1.0), (2, 0.5)):
        measure(study, "strong", nodes, 1, 0.995 * base)
        measure(study, "strong", nodes, 2, 1.005 * base)
    first, second = only_curve(study).points
    assert first.half_width == 0
    assert second.efficiency == pytest.approx(1)
    assert second.half_width == pytest.approx(0.06353 * 2**0.5, rel=1e-3)


def test_shares_by_hand(tmp_path: Path) -> None:
    """Two steps of 1 s and 3 s with 0.4 s of data wait together; communication was measured in the
    second only, 0.6 s."""
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    run_dir = submit_run(study, "strong", 1, 1)
    rank = rank_file(0, 1, [1, 3], gpus_per_node=1, data_wait=[0.1, 0.3], communication=[None, 0.6])
    write_timing(run_dir, [rank])
    shares = only_curve(study).reference.shares
    assert shares.data_wait == pytest.approx(0.1)
    assert shares.communication == pytest.approx(0.2)
    assert shares.compute == pytest.approx(0.7)


def test_communication_that_nobody_measured_is_not_zero(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    measure(study, "strong", 1, 1, 0.1, communication=None)
    point = only_curve(study).reference
    assert point.shares.communication is None
    assert point.shares.compute == pytest.approx(0.98)
    assert point.slowest is None


def test_the_slowest_rank_is_the_one_that_waits_least(tmp_path: Path) -> None:
    """All ranks take 1 s a step; rank 6 spends 0.1 s of it in communication, the others 0.28 s."""
    study = make_study(tmp_path, nodes=(2,), repeats=1)
    run_dir = submit_run(study, "strong", 2, 1)
    ranks = [
        rank_file(rank, 2, [1.0] * 30, communication=[0.1 if rank == 6 else 0.28] * 30)
        for rank in range(8)
    ]
    write_timing(run_dir, ranks)
    slowest = only_curve(study).reference.slowest
    assert slowest is not None
    assert (slowest.rank, slowest.host, slowest.repeat) == (6, "n2", 1)
    assert slowest.excess == pytest.approx(0.25)


def test_all_reduce_by_hand(tmp_path: Path) -> None:
    """1 GB over 4 ranks in 0.5 s: each sends 2 * 3/4 of it, 3 GB/s."""
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    timing = measure(study, "strong", 1, 1, 1.0)
    written = {"bytes": 10**9, "seconds": [0.4, 0.5, 0.7], "world_size": 4, "nodes": 1}
    (timing / "allreduce.json").write_text(json.dumps(written))
    measured = only_curve(study).reference.allreduce
    assert measured is not None
    assert (measured.seconds, measured.spread) == (0.5, (0.45, 0.6))
    assert measured.bus_bandwidth == pytest.approx(3e9)


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(["strong", "weak"]),
    nodes=st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    seconds=st.floats(1e-4, 1e3),
)
def test_ideal_data_have_an_efficiency_of_one(
    tmp_path_factory: pytest.TempPathFactory, kind: str, nodes: list[int], seconds: float
) -> None:
    study = make_study(tmp_path_factory.mktemp("ideal"), kind=kind, nodes=nodes, repeats=2)
    for n in nodes:
        for repeat in (1, 2):
            step = seconds / n if kind == "strong" else seconds
            measure(study, kind, n, repeat, step, gpus_per_node=1)
    analysis = analysed(study)
    (curve,) = analysis.curves
    assert [s.efficiency for s in curve.points] == pytest.approx([1] * len(nodes))
    assert [s.speedup for s in curve.points] == pytest.approx(
        [n / min(nodes) for n in sorted(nodes)]
    )
    assert curve.crossing is None
    if len(nodes) > 1:
        assert curve.fit is not None
        assert curve.fit.serial_fraction == pytest.approx(0, abs=1e-6)
    assert analysis.caveats == ()


@settings(
    deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_repeats_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    steps = {n: [rng.uniform(0.9, 1.1) / n for _ in range(3)] for n in (1, 2, 4)}
    results = []
    for name in ("first", "second"):
        study = make_study(tmp_path_factory.mktemp(name), nodes=(1, 2, 4))
        for n, repeats in steps.items():
            rng.shuffle(repeats)
            for repeat, seconds in enumerate(repeats, start=1):
                measure(study, "strong", n, repeat, seconds, gpus_per_node=1)
        curve = only_curve(study)
        assert curve.fit is not None and curve.fit.half_width is not None
        results.append(
            [
                *(value for s in curve.points for value in (s.efficiency, s.half_width or 0)),
                *(value for s in curve.points for value in s.point.step_spread),
                curve.fit.serial_fraction,
                curve.fit.half_width,
            ]
        )
    assert results[0] == pytest.approx(results[1])


def test_intervals_of_efficiency_hold_the_truth(tmp_path: Path) -> None:
    """Of 200 studies with three runs a point and 2 % between runs, at least 90 % have the true
    efficiency within what is stated, and not all of them by being useless."""
    study = make_study(tmp_path, nodes=(1, 4), repeats=1)
    rng = random.Random(11)
    measure(study, "strong", 1, 1, 0.1, gpus_per_node=1)
    measure(study, "strong", 4, 1, 0.03, gpus_per_node=1)
    small, large = analysed(study).runs
    hits, widths = 0, []
    for _ in range(200):
        points = []
        for run, seconds in ((small, 0.1), (large, 0.03)):
            repeats = [
                replace(
                    run, ranks=(replace(run.ranks[0], steps=(seconds * rng.gauss(1, 0.02),) * 30),)
                )
                for _ in range(3)
            ]
            points.append(measure_point(repeats))
        curve = make_curve([point for point in points if point is not None])
        scaled = curve.points[1]
        assert scaled.half_width is not None
        hits += abs(scaled.efficiency - 0.1 / 0.03 / 4) <= scaled.half_width
        widths.append(scaled.half_width)
    assert hits >= 180
    assert sum(widths) / len(widths) < 0.12
