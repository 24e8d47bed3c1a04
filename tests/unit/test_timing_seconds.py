"""`train.timing.seconds`: as many steps as fit; and a training that never evaluates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.training import CPU, Regression, engine, settings

from hpc_amp.distributed.world import World
from hpc_amp.train import machine
from hpc_amp.train.profile import Profiler
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stages import begin
from hpc_amp.train.stopping import StopWatch


def test_it_measures_for_about_so_long_and_ends_the_training(tmp_path: Path) -> None:
    made = engine(tmp_path, epochs=10**6, timing={"warmup": 2, "seconds": 0.3})

    assert not made.fit()

    rank = json.loads((tmp_path / "attempts" / "1" / "timing" / "rank-00000.json").read_text())
    assert rank["warmup_steps"] == 2
    assert made.step == made.total_steps == 2 + len(rank["steps"])
    assert made.saver.saved_step == made.step
    # By the pace of the first ten, but those at least.
    pace = sum(rank["steps"][:10]) / 10
    assert len(rank["steps"]) == max(10, round(0.3 / pace))


def test_at_least_ten_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(tmp_path, epochs=10**6, timing={"warmup": 0, "seconds": 1e-9})
    evaluate, peak = made.evaluate, [100]

    def large_evaluation() -> Any:
        if made.step == 10:
            peak[0] = 1000
        return evaluate()

    monkeypatch.setattr(machine, "peak_memory", lambda device: peak[0])
    monkeypatch.setattr(made, "evaluate", large_evaluation)
    made.fit()
    assert made.step == 10
    rank = json.loads((tmp_path / "attempts" / "1" / "timing" / "rank-00000.json").read_text())
    assert (rank["peak_memory_bytes"], peak) == (100, [1000])


def test_a_training_without_any_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = engine(tmp_path, evaluate_every=0)
    made.fit()
    assert (made.step, made.metrics) == (10, {})
    assert "evaluation" not in capsys.readouterr().out
    assert made.saver.saved_step == 10


def test_a_job_file_asks_for_a_profile(tmp_path: Path) -> None:
    """`train.profile` reaches the engine."""
    run = RunDirectory(tmp_path, 1)
    run.attempt_path.mkdir(parents=True)
    watch = StopWatch(stop_at=None, stop_file=run.stop_file)
    made = begin(
        settings(profile={"steps": (2, 3)}), World(), CPU, run, watch, None,
        timeout=60, task=Regression,
    )  # fmt: skip
    try:
        assert [type(observer) for observer in made.observers] == [Profiler]
    finally:
        made.tracker.close()
