"""The training loop in one process: resume bit by bit, saving, stopping, evaluation, reports."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from support.training import Regression, curve, engine, fit_until
from torch import Tensor, nn

from hpc_amp.config.schema import Schedule
from hpc_amp.tasks.base import Losses, Networks, TrainingData
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import Superseded, TrainingError
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.schedule import rate_factor
from hpc_amp.train.state import weights_digest
from hpc_amp.train.stopping import StopReason, StopWatch


class Restless(Regression):
    """Draws from every generator in each step, so that a resume has to restore all of them."""

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        for losses in super().losses(phase, batch, networks):
            factor = 1 + 0.1 * random.random() + 0.01 * random.gauss(0, 1)
            yield {name: loss * factor for name, loss in losses.items()}


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
    kept = ("weights_sha256", "loss_scale", "skipped_steps", "steps", "best")
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


class Convolving(Regression):
    """Has weights whose memory order `channels_last` changes."""

    def build_networks(self) -> dict[str, nn.Module]:
        layers = nn.Unflatten(1, (3, 1, 2)), nn.Conv2d(3, 4, (1, 2)), nn.Flatten(), nn.Linear(4, 1)
        return {"model": nn.Sequential(*layers)}


@pytest.mark.parametrize(("optimizer", "mode"), [("sgd", "fp32"), ("adamw", "O2")])
def test_a_resume_may_change_the_memory_order(optimizer: str, mode: str, tmp_path: Path) -> None:
    """Fused optimizers read their state in the order of the weights."""
    common: dict[str, Any] = {"precision": mode, "optimizer": {"name": optimizer, "lr": 0.05}}
    ends = []
    for channels_last in (False, True):
        folder = tmp_path / str(channels_last)
        fit_until(engine(folder, Convolving, channels_last=False, **common), 5)
        made = engine(folder, Convolving, channels_last=channels_last, attempt=2, **common)
        made.fit()
        assert made.updates[0].optimizer.param_groups[0]["fused"]
        ends.append(made.networks["model"].state_dict())
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


class Looking(Regression):
    """Has an embedding with sparse gradients."""

    def build_networks(self) -> dict[str, nn.Module]:
        class Places(nn.Module):
            def forward(self, batch: Tensor) -> Tensor:
                return batch.abs().mul(2).long() % 5

        layers = Places(), nn.Embedding(5, 2, sparse=True), nn.Flatten(), nn.Linear(12, 1)
        return {"model": nn.Sequential(*layers)}


def test_a_resume_has_the_momentum_of_sparse_gradients(tmp_path: Path) -> None:
    common: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.005, "weight_decay": 0.0}}
    whole = engine(tmp_path / "whole", Looking, **common)
    whole.fit()
    fit_until(engine(tmp_path / "stopped", Looking, **common), 5)
    resumed = engine(tmp_path / "stopped", Looking, attempt=2, **common)
    resumed.fit()
    states = resumed.updates[0].optimizer.state.values()
    assert [state["momentum_buffer"].is_sparse for state in states] == [True, False, False]
    assert weights_digest(resumed.networks) == weights_digest(whole.networks)


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


@pytest.fixture
def _exchange_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpc_amp.train.engine._EVALUATING_SECONDS", 0.0)


@pytest.mark.usefixtures("_exchange_after_each_batch")
def test_an_evaluation_is_given_up_for_a_stop_and_done_by_the_next_attempt(tmp_path: Path) -> None:
    made = start(tmp_path)
    evaluated = made.task.evaluate
    seen = []

    def evaluate(batch: Any, networks: Networks) -> dict[str, Tensor]:
        seen.append(made.step)
        return evaluated(batch, networks)

    made.task.evaluate = evaluate  # type: ignore[method-assign]
    made.agreement.watch.look = lambda: StopReason(3 * bool(seen))  # type: ignore
    assert made.fit() is StopReason.ASKED
    assert seen == [5]
    assert (made.step, made.evaluated_step, made.store.newest()) == (5, -1, 5)
    assert all(network.training for network in made.networks.values())
    made.tracker.close()
    assert curve(tmp_path, "eval/error") == []
    start(tmp_path, attempt=2).fit()
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5, 10]


def test_the_first_batch_of_an_evaluation_is_told_from_training(tmp_path: Path) -> None:
    """Where one hangs in it, the reason names what it was doing."""
    made = start(tmp_path)
    phases: list[str] = []
    made.sentry = SimpleNamespace(moved=lambda step, phase: phases.append(phase))  # type: ignore
    evaluated = made.task.evaluate

    def evaluate(batch: Any, networks: Networks) -> dict[str, Tensor]:
        assert phases[-1:] == ["evaluation"]
        return evaluated(batch, networks)

    made.task.evaluate = evaluate  # type: ignore[method-assign]
    made.evaluate()


def test_an_evaluation_that_is_on_no_disk_is_not_told_twice(tmp_path: Path) -> None:
    """An attempt went on from a checkpoint without it, and died before the next one."""
    fit_until(start(tmp_path), 5)
    killed = start(tmp_path, attempt=2)
    killed.evaluate()
    killed.tracker.close()
    start(tmp_path, attempt=3).fit()
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5, 10]
    assert [step for step, _ in curve(tmp_path, "train/loss")] == list(range(1, 11))


def test_an_evaluation_that_is_done_is_not_given_up(tmp_path: Path) -> None:
    """The stop is seen when the last batch is through; the next step's exchange acts on it."""
    made = start(tmp_path)
    made.agreement.due = lambda step: step > 5  # type: ignore[method-assign]
    made.agreement.watch.look = lambda: StopReason(3 * (made.step >= 5))  # type: ignore
    assert made.fit() is StopReason.ASKED
    assert (made.step, made.evaluated_step) == (6, 5)
    assert [step for step, _ in curve(tmp_path, "eval/error")] == [5]


class Rated(Restless):
    """A regression whose accuracies are given."""

    accuracies: ClassVar[dict[int, float]] = {}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        accuracy = list(self.accuracies.values())[len(self.rated)]
        self.rated.append(accuracy)
        return {"error": sums["squares"], "accuracy": accuracy}

    def prepare_data(self) -> TrainingData:
        self.rated: list[float] = []
        return super().prepare_data()


def test_the_best_so_far_is_saved_at_once_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings = {5: 0.5, 10: 0.3, 15: 0.7, 20: 0.7, 25: 0.6, 30: 0.2}
    monkeypatch.setattr(Rated, "accuracies", ratings)
    saved = []
    checkpoint = {"every": "100epochs", "keep": 2, "keep_best": 1}
    made = engine(tmp_path, Rated, epochs=6, checkpoint=checkpoint)
    real = made.save

    def save() -> None:
        saved.append(made.step)
        real()

    made.save = save  # type: ignore[method-assign]
    made.fit()
    assert saved == [5, 15, 30], "better than all before, and the end"
    assert made.store.steps() == [15, 30]
    assert made.best_value == 0.7
    assert made.store.load(15).facts["metric"] == 0.7


def test_without_keep_best_nothing_is_saved_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rated, "accuracies", {5: 0.5, 10: 0.6})
    made = engine(tmp_path, Rated, checkpoint={"every": "100epochs", "keep_best": 0})
    made.fit()
    assert made.store.steps() == [10]


def test_some_checkpoints_stay_for_good(tmp_path: Path) -> None:
    checkpoint = {"every": "3steps", "keep": 2, "keep_every": "1epochs"}
    made = start(tmp_path, epochs=4, checkpoint=checkpoint)
    made.fit()
    assert made.store.steps() == [5, 10, 15, 18, 20]


@pytest.mark.parametrize("when", ["at once", "after the last exchange"])
def test_a_later_attempt_makes_this_one_leave_without_saving(tmp_path: Path, when: str) -> None:
    run = RunDirectory(tmp_path, 1)
    watch = StopWatch(stop_at=None, stop_file=None, successor=run.successor)
    made = engine(tmp_path, Restless, watch=watch)
    made.agreement.due = lambda step: when == "at once"  # type: ignore[method-assign]
    run.successor.mkdir(parents=True)
    with pytest.raises(Superseded, match="a later attempt has taken over this run"):
        made.fit()
    assert made.step == (1 if when == "at once" else 10)
    assert made.store.steps() == []


def test_the_deadline_moves_where_saves_turn_out_to_be_slow(tmp_path: Path) -> None:
    now = time.time()
    watch = StopWatch(stop_at=now + 5000, end_at=now + 5500, stop_file=None)
    made = engine(tmp_path, Restless, watch=watch)
    made.agreement.due = lambda step: True  # type: ignore[method-assign]
    made.saver.seconds = 3000.0
    assert made.fit() is StopReason.DEADLINE
    assert made.step == 1


def test_an_error_of_the_writer_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses does not (tests/chaos/test_disks.py); a defect must not be lost."""

    def fail(checkpoint: object) -> None:
        raise ValueError("a defect in the writer")

    made = start(tmp_path, checkpoint="2steps")
    made.agreement.due = lambda step: True  # type: ignore[method-assign]
    monkeypatch.setattr(made.store, "save", fail)
    with pytest.raises(ValueError, match="a defect in the writer"):
        made.fit()
    assert 2 <= made.step <= 4


# -- losses that are not numbers ------------------------------------------------------------------


class Diverging(Restless):
    """The loss is not a number from step 6 on."""

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        for losses in super().losses(phase, batch, networks):
            bad = self.reached() >= 6
            yield {n: loss * torch.nan if bad else loss for n, loss in losses.items()}

    reached: ClassVar[Any] = None


def diverging(folder: Path, monkeypatch: pytest.MonkeyPatch, attempt: int = 1, **train: Any) -> Any:
    made = engine(folder, Diverging, attempt=attempt, **train)
    monkeypatch.setattr(Diverging, "reached", lambda self: made.step + 1)
    return made


@pytest.mark.parametrize("interval", [1, 4, 10])
def test_the_step_is_named_in_which_the_loss_ceased_to_be_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int
) -> None:
    made = diverging(tmp_path, monkeypatch, log_every=interval)
    with pytest.raises(TrainingError, match="the loss `loss` is nan since step 6: the weights"):
        made.fit()


def test_it_is_named_where_a_resume_lies_between_two_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_until(diverging(tmp_path, monkeypatch, log_every=4), 5)
    made = diverging(tmp_path, monkeypatch, attempt=2, log_every=4)
    assert made.step == 5
    with pytest.raises(TrainingError, match="is nan since step 6"):
        made.fit()


def test_weights_that_are_lost_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = diverging(tmp_path, monkeypatch, log_every=10, checkpoint="1steps")
    with pytest.raises(TrainingError):
        made.fit()
    assert made.store.newest() == 5
    said = capsys.readouterr().out
    for step in (6, 7, 8, 9):
        assert f"WARNING: no checkpoint of step {step}: the loss is not finite" in said


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
