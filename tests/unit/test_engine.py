"""The training loop in one process: resume bit by bit, saving, stopping, evaluation, reports."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import Regression, curve, engine, fit_until
from torch import Tensor

from hpc_amp.config.schema import Schedule
from hpc_amp.tasks.base import Networks
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.schedule import rate_factor
from hpc_amp.train.state import weights_digest
from hpc_amp.train.stopping import StopReason, StopWatch


class Restless(Regression):
    """Draws from every generator in each step, so that a resume has to restore all of them."""

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[tuple[str, Tensor]]:
        for name, loss in super().losses(phase, batch, networks):
            yield name, loss * (1 + 0.1 * random.random() + 0.01 * random.gauss(0, 1))


# The scale overflows at once, and again each time that it has grown back.
EVERYTHING: dict[str, Any] = {
    "precision": {"mode": "fp16", "init_scale": 2.0**22, "growth_interval": 2},
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "ema": 0.9,
    "accumulate": 2,
    "clip_norm": 1.0,
    "log_every": 3,
    "epochs": 3,
}


def start(folder: Path, **train: Any) -> Engine:
    return engine(folder, Restless, **train)


def ending(made: Engine) -> dict[str, Any]:
    facts = made.report.summary()
    assert made.average is None or made.average.updates > 0
    averaged = [] if made.average is None else list(made.average.networks["model"].parameters())
    kept = ("weights_sha256", "loss_scale", "skipped_steps", "steps", "best_accuracy")
    return {
        **{name: facts[name] for name in kept},
        "metrics": made.metrics,
        "average": [p.tolist() for p in averaged],
    }


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    names = ("train/loss", "train/lr", "train/loss_scale", "train/skipped_steps", "eval/error")
    return {name: curve(folder, name) for name in names}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    made = start(folder, **EVERYTHING)
    assert made.fit() is StopReason.NONE
    made.tracker.close()
    return folder, ending(made)


# -- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [(1,), (7,), (10,), (5, 6, 7, 8), (14,)])
def test_a_resume_is_bit_exact(
    stops: tuple[int, ...], uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """In the middle of an epoch, of a logging interval, at the end of an epoch, and three times in
    one epoch."""
    skipped = []
    for attempt, step in enumerate(stops, 1):
        part = start(tmp_path, attempt=attempt, **EVERYTHING)
        fit_until(part, step)
        skipped.append(part.report.skipped_steps())
    last = start(tmp_path, attempt=9, **EVERYTHING)
    assert last.step == stops[-1]
    assert last.fit() is StopReason.NONE
    folder, expected = uninterrupted
    assert ending(last) == expected
    assert curves(tmp_path) == curves(folder)
    if stops == (7,):
        assert 0 < skipped[0] < last.report.skipped_steps(), "overflows before and after the stop"


def test_without_any_one_part_of_the_state_it_would_not_be(
    uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for the test above: generators that are not restored change the end."""
    fit_until(start(tmp_path, **EVERYTHING), 7)
    monkeypatch.setattr("hpc_amp.train.randomness.restore", lambda *args: True)
    last = start(tmp_path, attempt=2, **EVERYTHING)
    last.fit()
    assert ending(last)["weights_sha256"] != uninterrupted[1]["weights_sha256"]


def test_a_damaged_newest_checkpoint_costs_steps_but_not_the_result(
    uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit_until(start(tmp_path, **EVERYTHING, checkpoint="3steps"), 8)
    networks = tmp_path / "checkpoints" / "step-00000008" / "networks.pt"
    networks.write_bytes(networks.read_bytes()[:-100])
    last = start(tmp_path, attempt=2, **EVERYTHING)
    assert last.step == 6
    assert "step-00000008 is not used: networks.pt" in capsys.readouterr().out
    last.fit()
    assert ending(last) == uninterrupted[1]
    assert curves(tmp_path) == curves(uninterrupted[0])


def test_a_run_that_is_done_stays_as_it_is(tmp_path: Path) -> None:
    first = start(tmp_path)
    first.fit()
    first.tracker.close()
    before = (tmp_path / "metrics.jsonl").read_text()
    again = start(tmp_path, attempt=2)
    assert again.fit() is StopReason.NONE
    assert ending(again) == ending(first)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_crash_after_an_evaluation_does_not_report_it_twice(tmp_path: Path) -> None:
    """The checkpoint of the end of an epoch is saved after the evaluation, not before."""

    class Crash(RuntimeError):
        pass

    made = start(tmp_path, checkpoint="1epochs")
    made.agreement.due = lambda step: _raise(Crash) if step == 6 else True  # type: ignore
    with pytest.raises(Crash):
        made.fit()
    made.tracker.close()
    start(tmp_path, attempt=2).fit()
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5, 10]
    assert [step for step, _ in curve(tmp_path, "train/loss")] == list(range(1, 11))


def _raise(kind: type[Exception]) -> bool:
    raise kind


def test_another_batch_size_or_other_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_until(start(tmp_path), 2)
    with pytest.raises(TrainingError, match="batch_size 8, not 16"):
        start(tmp_path, batch_size=16)
    monkeypatch.setattr(Restless, "data_name", "SYNTHETIC")
    with pytest.raises(TrainingError, match="trained on vectors, but now there is SYNTHETIC"):
        start(tmp_path)


# -- saving and stopping -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "saved"),
    [("4steps", [4, 8, 12, 15]), ("1epoch", [5, 10, 15]), ("2epochs", [10, 15]), ("1h", [15])],
)
def test_checkpoints_are_saved_as_often_as_asked(
    every: str, saved: list[int], tmp_path: Path
) -> None:
    made = start(tmp_path, epochs=3, checkpoint={"every": every, "keep": 9})
    made.fit()
    assert made.store.steps() == saved


def test_checkpoints_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = start(tmp_path, checkpoint={"every": "60s", "keep": 9})
    made.agreement.due = lambda step: True  # type: ignore[method-assign]
    begin = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + 25 * made.step)
    made.fit()
    assert made.store.steps() == [3, 6, 9, 10]


def test_signals_deadline_and_stop_file_end_in_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    late = StopWatch(stop_at=time.time() - 1, stop_file=None)
    asked = StopWatch(stop_at=None, stop_file=tmp_path / "stop")
    signalled = StopWatch(stop_at=None, stop_file=None)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signalled._on_signal)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)
    reasons = []
    for attempt, watch in enumerate((late, asked, signalled), 1):
        made = engine(tmp_path, attempt=attempt, watch=watch)
        reasons.append(made.fit())
        assert made.store.newest() == made.step == attempt, "at the first agreement"
    assert reasons == [StopReason.DEADLINE, StopReason.ASKED, StopReason.TERMINATED]


def test_a_stop_after_the_last_step_is_an_end(tmp_path: Path) -> None:
    made = start(tmp_path)
    made.agreement.due = lambda step: True  # type: ignore[method-assign]
    made.agreement.watch.look = lambda: StopReason(4 * (made.step == 10))  # type: ignore
    assert made.fit() is StopReason.NONE
    assert made.evaluated_step == 10


def test_a_stop_at_the_end_of_an_epoch_leaves_the_evaluation_to_the_next_attempt(
    tmp_path: Path,
) -> None:
    made = start(tmp_path)
    fit_until(made, 5)
    assert made.evaluated_step == -1
    start(tmp_path, attempt=2).fit()
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5, 10]


# -- the shape of a run --------------------------------------------------------------------------


def test_logging_follows_its_interval_and_the_schedule(tmp_path: Path) -> None:
    made = start(tmp_path, epochs=3, log_every=4, optimizer={"lr": 0.2})
    made.fit()
    assert [step for step, _ in curve(tmp_path, "train/loss")] == [4, 8, 12, 15]
    rates = [(step, 0.2 * rate_factor(Schedule(), step - 1, 15)) for step in (4, 8, 12, 15)]
    assert curve(tmp_path, "train/lr") == rates
    made.tracker.close()
    progress = json.loads((tmp_path / "attempts" / "1" / "progress.json").read_text())
    assert (progress["step"], progress["total_steps"], progress["epoch"]) == (15, 15, 3)


def test_a_mean_between_two_reports_is_the_mean_of_the_steps(tmp_path: Path) -> None:
    each = start(tmp_path / "each", log_every=1)
    each.fit()
    some = start(tmp_path / "some", log_every=5)
    some.fit()
    losses = [loss for _, loss in curve(tmp_path / "each", "train/loss")]
    expected = [(5, sum(losses[:5]) / 5), (10, sum(losses[5:]) / 5)]
    seen = curve(tmp_path / "some", "train/loss")
    assert seen == [(step, pytest.approx(value, rel=1e-5)) for step, value in expected]


def test_max_steps_ends_within_an_epoch_with_an_evaluation(tmp_path: Path) -> None:
    made = start(tmp_path, epochs=100, max_steps=7)
    made.fit()
    assert made.step == made.total_steps == made.evaluated_step == 7
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5, 7]


def test_evaluation_changes_nothing_in_the_training(tmp_path: Path) -> None:
    often = start(tmp_path / "often", evaluate_every=1)
    often.fit()
    never = start(tmp_path / "never", evaluate_every=100)
    never.fit()
    assert weights_digest(often.networks) == weights_digest(never.networks)
    assert [step for step, _ in curve(tmp_path / "never", "eval/error")] == [10]
    assert all(network.training for network in often.networks.values())


def test_the_digest_sees_every_bit_of_every_parameter(tmp_path: Path) -> None:
    made = start(tmp_path)
    seen = {weights_digest(made.networks)}
    for parameter in made.networks["model"].parameters():
        flat = parameter.detach().view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(9.0))
        seen.add(weights_digest(made.networks))
    assert len(seen) == 5


def test_sync_batchnorm_on_cpus_is_refused(tmp_path: Path) -> None:
    from hpc_amp.distributed.world import World

    made = start(tmp_path, sync_batchnorm=True)
    made.world = World(size=2, local_size=2)
    with pytest.raises(TrainingError, match="GPUs only"):
        made._place(made.networks["model"])
