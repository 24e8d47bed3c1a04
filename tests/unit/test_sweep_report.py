"""Which points are best, and how that is shown."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import make_campaign

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.overview import points_table, status_table
from hpc_amp.campaigns.points import SEED, Point, short_names
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.tables import as_text
from hpc_amp.errors import UsageError
from hpc_amp.jobs.status import RunStatus
from hpc_amp.sweep.picture import axis_numbers, draw, spans_decades
from hpc_amp.sweep.ranking import Ranking, rank
from hpc_amp.sweep.report import to_csv, to_json, to_text, write_report

KEYS = ("train.optimizer.lr", "train.precision.mode")
POINTS = [("0.001", "fp16"), ("0.01", "fp16"), ("0.1", "bf16"), ("1", None)]


def sweep_in(folder: Path) -> Campaign:
    return make_campaign(
        folder, KEYS, POINTS, site="slurm", scheduler="slurm", fixed=("train.epochs=3",)
    )


def ended(sweep: Campaign, index: int, state: str = "finished", **summary: Any) -> PointStatus:
    """A point with a run that has ended, and what it wrote."""
    run_dir = sweep.point_dir(index)
    run_dir.mkdir(parents=True)
    (run_dir / "summary.json").write_text(json.dumps({"outcome": state, **summary}))
    run = RunStatus(str(run_dir), "test", f"41_{index}", "slurm", state, "", 1, 8, 8, state)
    return PointStatus(sweep.points[index], state, "", f"41_{index}", run)


def missing(sweep: Campaign, index: int) -> PointStatus:
    return PointStatus(sweep.points[index], "missing", "it was not submitted", None, None)


def ranking_in(folder: Path, **changes: Any) -> Ranking:
    sweep = sweep_in(folder)
    statuses = [
        ended(sweep, 0, accuracy=0.5, synthetic=True),
        ended(sweep, 1, accuracy=0.75, **changes),
        ended(sweep, 2, "failed"),
        missing(sweep, 3),
    ]
    return rank(sweep, statuses)


def seeded(folder: Path, values: dict[tuple[str, ...], float | None], *keys: str) -> Ranking:
    """A sweep whose points have finished with these accuracies; None: they were not begun."""
    sweep = make_campaign(folder, (*keys, SEED), values)
    statuses = [
        missing(sweep, index) if value is None else ended(sweep, index, accuracy=value)
        for index, value in enumerate(values.values())
    ]
    return rank(sweep, statuses)


def test_points_that_differ_in_their_seed_are_one_setting_with_an_interval(tmp_path: Path) -> None:
    values = {
        ("0.1", "0"): 0.70, ("0.2", "0"): 0.80, ("0.3", "0"): 0.10,
        ("0.1", "1"): 0.74, ("0.2", "1"): 0.72, ("0.3", "1"): 0.12,
        ("0.1", "2"): 0.72, ("0.2", "2"): None, ("0.3", "2"): 0.11,
    }  # fmt: skip
    ranking = seeded(tmp_path, values, "train.optimizer.lr")

    best, second, worst = ranking.settings()
    assert (best.values, best.mean, len(best.points), best.planned) == (("0.2",), 0.76, 2, 3)
    # t(1) = 12.706 and t(2) = 4.303, times s / sqrt(n).
    assert best.half_width == pytest.approx(12.706 * 0.04, rel=1e-4)
    assert second.half_width == pytest.approx(4.303 * 0.02 / 3**0.5, rel=1e-4)
    assert worst.values == ("0.3",)
    lines = to_text(ranking).splitlines()
    assert "accuracy over train.seed, highest mean first" in lines
    assert [line.split() for line in lines[3:6]] == [
        ["rank", "mean", "accuracy", "95", "%", "seeds", "lr", "points"],
        ["1", "0.76", "±", "0.51", "2/3", "0.2", "1,4"],
        ["2", "0.72", "±", "0.05", "3/3", "0.1", "0,3,6"],
    ]
    assert any(line.startswith("the 95 % interval of rank 2 overlaps that of") for line in lines)
    (first, *_) = json.loads(to_json(ranking))["settings"]
    assert first["values"] == {"train.optimizer.lr": "0.2"}
    assert first["points"] == [1, 4]
    assert len(list(csv.reader(io.StringIO(to_csv(ranking))))) == 10
    assert draw(ranking)


def test_a_sweep_over_seeds_alone_is_one_setting(tmp_path: Path) -> None:
    ranking = seeded(tmp_path, {("7",): 0.5, ("8",): 0.6})
    (setting,) = ranking.settings()
    assert (setting.values, setting.mean) == ((), pytest.approx(0.55))
    assert "± 0.64" in to_text(ranking)
    assert draw(ranking)


def test_one_seed_of_a_setting_has_no_interval(tmp_path: Path) -> None:
    ranking = seeded(tmp_path, {("0.1", "0"): 0.5, ("0.1", "1"): None}, "train.optimizer.lr")
    assert ranking.settings()[0].half_width is None
    assert "rank 1: one seed only" in to_text(ranking)


def test_finished_points_are_ranked_and_the_others_listed(tmp_path: Path) -> None:
    ranking = ranking_in(tmp_path)

    assert [(one.status.index, one.value) for one in ranking.ranked] == [(1, 0.75), (0, 0.5)]
    assert [(one.index, one.state) for one in ranking.others] == [(2, "failed"), (3, "missing")]


@pytest.mark.parametrize(
    ("metric", "asked", "order"),
    [
        ("accuracy", None, [1, 0]),
        ("accuracy", False, [0, 1]),
        ("train/loss", None, [0, 1]),
        ("loss", None, [0, 1]),
        ("loss", True, [1, 0]),
        ("seconds", None, [0, 1]),
        ("truth_l1_b", None, [0, 1]),
        ("confidence", None, [1, 0]),
    ],
)
def test_what_is_better(tmp_path: Path, metric: str, asked: bool | None, order: list[int]) -> None:
    sweep = sweep_in(tmp_path)
    statuses = [
        ended(sweep, 0, accuracy=0.1, seconds=1, truth_l1_b=0.3, confidence=0.5),
        ended(sweep, 1, accuracy=0.2, seconds=2, truth_l1_b=0.4, confidence=0.6),
    ]
    for index, loss in enumerate((3.0, 5.0)):
        lines = [{"step": 1, "train/loss": 9.0}, {"step": 2, "train/loss": loss}, {"step": 2}]
        text = "".join(json.dumps(line) + "\n" for line in lines) + '{"torn'
        (sweep.point_dir(index) / "metrics.jsonl").write_text(text)

    ranking = rank(sweep, statuses, metric, asked)

    assert [one.status.index for one in ranking.ranked] == order


def test_a_value_that_is_no_number_is_not_ranked(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    statuses = [ended(sweep, 0, accuracy=float("nan")), ended(sweep, 1, accuracy=0.2)]

    ranking = rank(sweep, statuses)

    assert [one.status.index for one in ranking.ranked] == [1]
    assert ranking.others[0].reason == "it has no metric accuracy, or its value is not a number"


def test_a_run_that_diverged_is_not_ranked_by_what_it_reported_before(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    statuses = [ended(sweep, 0), ended(sweep, 1)]
    for index, last in enumerate((math.nan, 0.8)):
        lines = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": last}, {"step": 3, "lr": 0.1}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (sweep.point_dir(index) / "metrics.jsonl").write_text(text)

    ranking = rank(sweep, statuses, "loss")

    assert [one.status.index for one in ranking.ranked] == [1]
    assert ranking.others[0].reason == "it has no metric loss, or its value is not a number"


@pytest.mark.parametrize("metric", ["Loss", "RMSE", "eval_mae", "val/WER", "FID"])
def test_less_of_these_is_better(tmp_path: Path, metric: str) -> None:
    sweep = sweep_in(tmp_path)
    statuses = [ended(sweep, 0, **{metric: 0.5}), ended(sweep, 1, **{metric: 0.2})]
    assert [one.status.index for one in rank(sweep, statuses, metric).ranked] == [1, 0]


def test_a_metric_that_nobody_wrote(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    statuses = [ended(sweep, 0, accuracy=0.1, steps=8, synthetic=True), missing(sweep, 1)]

    with pytest.raises(UsageError) as caught:
        rank(sweep, statuses, "accurracy")

    assert str(caught.value).endswith("--metric NAME ranks by one of accuracy, steps")


def test_nothing_has_finished_yet(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)

    ranking = rank(sweep, [missing(sweep, 0), missing(sweep, 1)])

    assert "2 points: 2 missing" in to_text(ranking)
    assert draw(ranking) == {}


def test_the_text(tmp_path: Path) -> None:
    lines = to_text(ranking_in(tmp_path)).splitlines()

    assert lines == [
        f"test  {tmp_path.name}  4 points: 2 finished, 1 failed, 1 missing",
        "",
        "SYNTHETIC data: the metrics are not those of real data",
        "",
        "accuracy, highest first",
        "  rank  accuracy  lr     mode  point",
        "     1      0.75  0.01   fp16      1",
        "     2       0.5  0.001  fp16      0",
        "",
        f"best: point 1, {tmp_path}/points/0001",
        "",
        "not ranked",
        "  point  lr   mode  state    step  job   reason",
        "      2  0.1  bf16  failed    8/8  41_2  -",
        "      3  1    -     missing     -  -     it was not submitted",
    ]


def test_only_the_best_are_shown_on_request(tmp_path: Path) -> None:
    text = to_text(ranking_in(tmp_path), top=1)

    assert "accuracy, highest first: the first 1 of 2" in text
    assert "0.001" not in text


def test_real_data_is_not_called_synthetic(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)

    assert "SYNTHETIC" not in to_text(rank(sweep, [ended(sweep, 0, accuracy=1, synthetic=False)]))


def test_csv_has_a_line_a_point(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(ranking_in(tmp_path)))))

    assert [row["rank"] for row in rows] == ["1", "2", "", ""]
    assert rows[0] == {
        "rank": "1",
        "point": "1",
        "train.optimizer.lr": "0.01",
        "train.precision.mode": "fp16",
        "accuracy": "0.75",
        "state": "finished",
        "reason": "",
        "run_dir": str(tmp_path / "points" / "0001"),
    }
    assert rows[3]["train.precision.mode"] == ""


def test_json_is_complete(tmp_path: Path) -> None:
    plain = json.loads(to_json(ranking_in(tmp_path)))

    assert [(one["rank"], one["point"], one["value"]) for one in plain["ranked"]] == [
        (1, 1, 0.75),
        (2, 0, 0.5),
    ]
    assert [one["state"] for one in plain["others"]] == ["failed", "missing"]
    assert plain["synthetic"] is True
    assert plain["metric"] == "accuracy"
    assert plain["fixed"] == ["train.epochs=3"]


def test_files_of_a_report(tmp_path: Path) -> None:
    written = write_report(ranking_in(tmp_path), tmp_path / "report")

    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(written.names)
    assert set(written.names) == {
        *("report.txt", "report.csv", "report.json", "sweep.png", "sweep.svg", "sweep.pdf")
    }


def test_the_picture_is_the_same_for_the_same_sweep(tmp_path: Path) -> None:
    ranking = ranking_in(tmp_path)

    first, second = draw(ranking), draw(ranking)

    assert first == second
    assert first["png"].startswith(b"\x89PNG")
    assert first["svg"].startswith(b"<?xml")


def test_between_whole_numbers_nothing_is_marked(tmp_path: Path) -> None:
    """There is no seed 1.2."""
    points = tuple(Point(index, (str(index + 1),)) for index in range(2))
    sweep = replace(sweep_in(tmp_path), keys=("train.seed",), points=points)
    statuses = [ended(sweep, index, accuracy=0.5 + index / 10) for index in range(2)]

    picture = draw(rank(sweep, statuses))["svg"]

    assert picture.count(b'id="xtick_') == 2


def test_no_more_words_stand_beneath_an_axis_than_there_is_room_for(tmp_path: Path) -> None:
    points = tuple(Point(index, (f"word {index}",)) for index in range(100))
    sweep = replace(sweep_in(tmp_path), keys=("container.env.A",), points=points)
    statuses = [ended(sweep, index, accuracy=0.5) for index in range(2)]

    assert draw(rank(sweep, statuses))["svg"].count(b'id="xtick_') == 12


def test_a_parameter_of_numbers_has_an_axis_of_numbers() -> None:
    assert axis_numbers(["0.1", "1e-3", "5"]) == [0.1, 0.001, 5.0]
    assert axis_numbers(["0.1", "fp16"]) is None
    assert axis_numbers(["0.1", "nan"]) is None


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ([0.001, 0.01, 0.1], True),
        ([1, 2, 4], False),
        ([0, 0.001, 1], False),
        ([-1, 100], False),
        ([0.5], False),
    ],
)
def test_an_axis_is_logarithmic_where_values_span_decades(
    values: list[float], logarithmic: bool
) -> None:
    assert spans_decades(values) is logarithmic


def test_values_and_reasons_cannot_move_a_cursor(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    hostile = "one\n\x1b[2Jtwo"
    point = replace(sweep.points[0], values=(hostile, *sweep.points[0].values[1:]))
    failed = PointStatus(point, "failed", hostile, None, None)

    for table in (points_table(sweep.keys, [point]), status_table(sweep.keys, [failed])):
        lines = as_text(table)
        assert len(lines) == 2
        assert all(map(str.isprintable, lines))
        assert "one [2Jtwo" in lines[1]


def test_short_names_are_told_apart() -> None:
    assert short_names(["train.optimizer.lr", "train.seed"]) == ["lr", "seed"]
    assert short_names(["train.model.name", "train.optimizer.name"]) == [
        "model.name",
        "optimizer.name",
    ]
    assert short_names(["name.name", "name"]) == ["name.name", "name"]


def test_points_before_anything_has_run(tmp_path: Path) -> None:
    assert as_text(points_table(KEYS, sweep_in(tmp_path).points)) == [
        "point  lr     mode",
        "    0  0.001  fp16",
        "    1  0.01   fp16",
        "    2  0.1    bf16",
        "    3  1      -",
    ]
