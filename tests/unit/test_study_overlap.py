"""Runs of a study that used a node at the same time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.studies import make_study, measure, read_study, submit_run, use_nodes

from hpc_amp.study.analysis import analyse
from hpc_amp.study.text import to_text
from hpc_amp.study.view import SCALE


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Three measured runs, one after the other on the same nodes: 0000, 0002 and 0001."""
    study = make_study(tmp_path, nodes=(1, 2), repeats=2, scheduler="slurm")
    measure(study, "strong", 1, 1, 0.1)
    measure(study, "strong", 1, 2, 0.1)
    measure(study, "strong", 2, 1, 0.05)
    use_nodes(study, "strong-n0001-r01", ["n1"], 1000, 1100)
    use_nodes(study, "strong-n0001-r02", ["n1"], 1100, 1200)
    use_nodes(study, "strong-n0002-r01", ["n1", "n2"], 1201, 1300)
    return study


def states(study: Path) -> dict[int, str]:
    return {status.index: status.state for status in SCALE.statuses(read_study(study).campaign)}


def test_runs_that_follow_one_another_are_measured(study: Path) -> None:
    assert states(study) == {0: "measured", 1: "measured", 2: "measured", 3: "missing"}


def test_runs_on_other_nodes_at_the_same_time_are_measured(study: Path) -> None:
    use_nodes(study, "strong-n0001-r02", ["n3"], 1000, 1200)
    assert states(study) == {0: "measured", 1: "measured", 2: "measured", 3: "missing"}


def test_both_runs_are_left_out(study: Path) -> None:
    use_nodes(study, "strong-n0002-r01", ["n2", "n1"], 1150, 1300)
    assert states(study) == {0: "measured", 1: "overlapped", 2: "overlapped", 3: "missing"}
    analysis = analyse(read_study(study))
    (curve,) = analysis.curves
    assert [(one.point.nodes, len(one.point.runs)) for one in curve.points] == [(1, 1)]
    text = to_text([analysis])
    assert "run 0002 used n1 at the same time" in text
    assert "run 0001 used n1 at the same time" in text
    assert (
        "overlap: 2 runs used a node at the same time as another run of the study, and the figures "
        "leave them out; to make them again, one at a time: hpc-amp scale continue --max-queued 1"
    ) in text
    campaign = read_study(study).campaign
    assert SCALE.unfinished(SCALE.statuses(campaign)) == [1, 2, 3]


def test_a_run_that_failed_disturbs_too(study: Path) -> None:
    failed = submit_run(study, "strong", 2, 2, state="failed")
    (failed / "attempts" / "1").mkdir(parents=True)
    use_nodes(study, "strong-n0002-r02", ["n1", "n2"], 1050, 1090)
    event = {"time": 1090, "state": "failed", "attempt": 1, "reason": "out of memory"}
    (failed / "state.jsonl").write_text(json.dumps(event) + "\n")
    assert states(study) == {0: "overlapped", 1: "measured", 2: "measured", 3: "failed"}


def test_a_run_without_an_end_lasts_until_its_last_sign_of_life(study: Path) -> None:
    lost = submit_run(study, "strong", 2, 2, state="started")
    (lost / "attempts" / "1").mkdir(parents=True)
    use_nodes(study, "strong-n0002-r02", ["n2"], 1150, 0)
    (lost / "state.jsonl").write_text("")
    alive = lost / "attempts" / "1" / "alive"
    alive.touch()
    os.utime(alive, (1190, 1190))
    assert states(study)[1] == "measured"
    os.utime(alive, (1250, 1250))
    assert states(study)[1] == "overlapped"


def test_an_earlier_run_of_the_same_point_counts(study: Path) -> None:
    """Run 0001 was made again as 0001-2, and its first run disturbed run 0002."""
    points = study / "points"
    shutil.copytree(points / "0001", points / "0001-2")
    assert states(study) == {0: "measured", 1: "overlapped", 2: "measured", 3: "missing"}
    use_nodes(study, "strong-n0002-r01", ["n1", "n2"], 1150, 1190)
    assert states(study) == {0: "measured", 1: "measured", 2: "overlapped", 3: "missing"}
