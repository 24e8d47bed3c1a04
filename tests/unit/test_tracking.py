"""metrics.jsonl, TensorBoard and the progress file, over several attempts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from support.environment import file_size_limit
from support.training import curve

from hpc_amp.distributed.world import World
from hpc_amp.trackers.base import Tracker
from hpc_amp.trackers.registry import TRACKERS
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.tracking import Tracking, picture_of


def track(folder: Path, steps: range, *, attempt: int = 1, rank: int = 0) -> Tracking:
    run = RunDirectory(folder, attempt)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    tracker = Tracking(
        run, World(rank=rank, size=2), start_step=steps.start - 1, trackers=["tensorboard"]
    )
    for step in steps:
        tracker.scalars(step, {"train/loss": step + attempt / 10})
    tracker.close()
    return tracker


@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (2, 1, 4, 4), (5, 3, 4, 6), (16, 1, 8, 8)])
def test_a_picture_is_the_grid_that_torchvision_makes(
    tmp_path: Path, shape: tuple[int, int, int, int]
) -> None:
    utils = pytest.importorskip("torchvision.utils")
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 1.2 - 0.1
    columns = math.ceil(math.sqrt(len(images)))
    expected = utils.make_grid(images, nrow=columns)
    utils.save_image(expected, tmp_path / "expected.png")
    tracker = track(tmp_path / "run", range(1, 2))

    tracker.pictures(1, images, "inputs")

    assert torch.equal(picture_of(images), expected)
    written = tmp_path / "run" / "inputs" / "step-00000001.png"
    assert written.read_bytes() == (tmp_path / "expected.png").read_bytes()


def events(folder: Path) -> Iterator[Path]:
    return (folder / "tensorboard").rglob("events.out.tfevents.*")


def shown(folder: Path) -> list[tuple[int, float]]:
    """The curve as TensorBoard shows it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(point.step, point.value) for point in board.Scalars("train/loss")]


def test_a_resume_continues_the_curves_without_duplicates(tmp_path: Path) -> None:
    track(tmp_path, range(1, 9))
    assert len(list(events(tmp_path))) == 1
    track(tmp_path, range(5, 8), attempt=2)
    track(tmp_path, range(7, 11), attempt=3)
    expected = [(1, 1.1), (2, 2.1), (3, 3.1), (4, 4.1), (5, 5.2), (6, 6.2)]
    expected += [(7, 7.3), (8, 8.3), (9, 9.3), (10, 10.3)]
    assert curve(tmp_path, "train/loss") == expected
    assert len(list(events(tmp_path))) == 3
    assert shown(tmp_path) == [(step, pytest.approx(value)) for step, value in expected]


def test_a_run_that_begins_anew_leaves_no_points_of_the_attempt_before(tmp_path: Path) -> None:
    """That died before its first checkpoint."""
    track(tmp_path, range(1, 9))
    track(tmp_path, range(1, 4), attempt=2)
    expected = [(1, 1.2), (2, 2.2), (3, 3.2)]
    assert curve(tmp_path, "train/loss") == expected
    assert shown(tmp_path) == [(step, pytest.approx(value)) for step, value in expected]


def test_an_evaluation_that_is_not_in_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    """It will be done again. The loss of the same step stays."""
    run = RunDirectory(tmp_path, 1)
    run.attempt_path.mkdir(parents=True)
    tracker = Tracking(run, World(), start_step=0, trackers=["tensorboard"])
    for step in (1, 2, 3):
        tracker.scalars(step, {"train/loss": 0.5})
    tracker.scalars(3, {"eval/error": 0.25})
    tracker.close()
    Tracking(run, World(), start_step=3, evaluated=False, trackers=["tensorboard"]).close()
    assert curve(tmp_path, "train/loss") == shown(tmp_path) == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert curve(tmp_path, "eval/error") == []


@pytest.mark.parametrize(
    "torn",
    [b'{"step": 3, "train/lo', b"{", b"\x00\x00\x00", b"\xff\xfe", b"7", b"null", b"{}", b"\n"],
)
def test_a_torn_line_is_dropped(torn: bytes, tmp_path: Path) -> None:
    track(tmp_path, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("ab") as out:
        out.write(torn)
    track(tmp_path, range(3, 5), attempt=2)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


def test_a_line_that_lost_only_its_end_stays(tmp_path: Path) -> None:
    track(tmp_path, range(1, 3))
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    track(tmp_path, range(3, 5), attempt=2)
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2, 3, 4]


def test_only_rank_0_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = track(tmp_path, range(1, 3), rank=1)
    tracker.say("hello")
    tracker.progress(step=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert capsys.readouterr().out == ""


def test_lines_reach_the_file_at_once(tmp_path: Path) -> None:
    """A run that is killed keeps what it has reported."""
    run = RunDirectory(tmp_path, 1)
    run.attempt_path.mkdir(parents=True)
    tracker = Tracking(run, World(), start_step=0, trackers=["tensorboard"])
    tracker.scalars(1, {"train/loss": 0.5})
    tracker.progress(step=1)
    assert curve(tmp_path, "train/loss") == [(1, 0.5)]
    assert json.loads((run.attempt_path / "progress.json").read_text())["step"] == 1
    assert [path.name for path in run.attempt_path.iterdir()] == ["progress.json"]
    tracker.progress(step=2)
    tracker.close()
    assert json.loads((run.attempt_path / "progress.json").read_text())["step"] == 2


def hide_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delitem(sys.modules, "hpc_amp.trackers.tensorboard", raising=False)
    monkeypatch.setattr(TRACKERS, "_loaded", {})


def test_without_tensorboard_there_is_a_warning_and_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_tensorboard(monkeypatch)
    track(tmp_path, range(1, 3))
    assert "WARNING: the tracker tensorboard is not used: " in capsys.readouterr().out
    assert len(curve(tmp_path, "train/loss")) == 2


def test_a_tracker_that_fails_at_the_end_costs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = []

    class Failing(Tracker):
        def scalars(self, step: int, values: Mapping[str, float]) -> None:
            return

        def close(self) -> None:
            closed.append(self)
            raise RuntimeError("the server is gone")

    monkeypatch.setattr(TRACKERS, "get", lambda name: Failing)
    run = RunDirectory(tmp_path, 1)
    run.attempt_path.mkdir(parents=True)

    Tracking(run, World(), start_step=0, trackers=["one", "two"]).close()

    assert len(closed) == 2
    assert capsys.readouterr().out.count("RuntimeError: the server is gone") == 2


def test_a_full_disk_costs_reports_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # TensorBoard's writer would fail in a thread of its own, which pytest reports anywhere.
    hide_tensorboard(monkeypatch)
    run = RunDirectory(tmp_path, 1)
    run.attempt_path.mkdir(parents=True)
    tracker = Tracking(run, World(), start_step=0, trackers=["tensorboard"])
    tracker.scalars(1, {"train/loss": 0.5})
    with file_size_limit(len((tmp_path / "metrics.jsonl").read_bytes()) + 5):
        for step in (2, 3):
            tracker.scalars(step, {"train/loss": 0.5})
            tracker.progress(step=step, why="x" * 200)
    assert capsys.readouterr().out.count("WARNING: reports are incomplete") == 1
    tracker.scalars(4, {"train/loss": 0.5})
    tracker.close()
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [1, 2, 3, 4]


def test_a_disk_that_is_full_at_the_start_costs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines beyond the checkpoint cannot be cut then. Nothing of the attempt to do so stays."""
    hide_tensorboard(monkeypatch)
    track(tmp_path, range(1, 9))
    run = RunDirectory(tmp_path, 2)
    run.attempt_path.mkdir()
    with file_size_limit(100):
        tracker = Tracking(run, World(), start_step=6, trackers=["tensorboard"])
        tracker.scalars(7, {"train/loss": 0.5})
    assert "WARNING: reports are incomplete" in capsys.readouterr().out
    tracker.close()
    assert [step for step, _ in curve(tmp_path, "train/loss")][:8] == list(range(1, 9))
    assert {path.name for path in tmp_path.iterdir()} == {"attempts", "metrics.jsonl"}
