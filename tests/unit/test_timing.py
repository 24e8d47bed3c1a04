"""The times of single steps: which are taken, what belongs to them, and the file that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import STEPS_PER_EPOCH, engine, fit_until

from hpc_amp.campaigns.timing import read_rank
from hpc_amp.train import timing
from hpc_amp.train.clock import HostClock, clock_of
from hpc_amp.train.engine import Engine


class Counter:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Counter:
    clock = Counter()
    monkeypatch.setattr(timing, "clock_of", lambda device: clock)
    return clock


def timed(folder: Path, clock: Counter, **train: Any) -> Engine:
    """An engine whose step takes 1 s, its next batch 2 s, and an evaluation 100 s."""
    made = engine(folder, timing={"warmup": 2, "steps": 5}, **train)
    epoch, step, evaluate = made.data.epoch, made.train_step, made.evaluate

    def slow_epoch(number: int, start: int = 0) -> Any:
        for batch in epoch(number, start):
            clock.now += 2
            yield batch

    def slow_step(batch: Any) -> None:
        step(batch)
        clock.now += 1

    def slow_evaluation() -> Any:
        clock.now += 100
        return evaluate()

    made.data.epoch = slow_epoch  # type: ignore[method-assign]
    made.train_step = slow_step  # type: ignore[method-assign]
    made.evaluate = slow_evaluation  # type: ignore[method-assign]
    return made


def written(folder: Path, attempt: int = 1) -> dict[str, Any]:
    path = folder / "attempts" / str(attempt) / "timing" / "rank-00000.json"
    return dict(json.loads(path.read_text()))


def test_warmup_is_left_out_and_waiting_is_told_apart(tmp_path: Path, clock: Counter) -> None:
    timed(tmp_path, clock).fit()
    facts = written(tmp_path)
    assert facts["warmup_steps"] == 2
    assert facts["steps"] == [3.0] * 5
    assert facts["data_wait"] == [2.0] * 5
    assert facts["communication"] == [0] * 5


def test_evaluations_and_checkpoints_belong_to_no_step(tmp_path: Path, clock: Counter) -> None:
    """Step 5 ends an epoch: step 6 begins after the evaluation and the save."""
    assert STEPS_PER_EPOCH == 5
    made = timed(tmp_path, clock, checkpoint={"every": "1steps", "keep": 3})
    save = made.save

    def slow_save() -> None:
        clock.now += 1000
        save()

    made.save = slow_save  # type: ignore[method-assign]
    made.fit()
    assert written(tmp_path)["steps"] == [3.0] * 5
    assert clock.now > 10_000


def test_what_lies_between_two_steps_belongs_to_the_second(tmp_path: Path, clock: Counter) -> None:
    made = timed(tmp_path, clock, log_every=1)
    log = made.report.log

    def slow_log() -> None:
        clock.now += 10
        log()

    made.report.log = slow_log  # type: ignore[method-assign]
    made.fit()
    # Step 6 comes after an evaluation, which is no part of it, nor is what was before that.
    assert written(tmp_path)["steps"] == [13.0, 13.0, 13.0, 3.0, 13.0]


def test_the_file_is_what_studies_read(tmp_path: Path) -> None:
    made = engine(tmp_path, timing={"warmup": 0, "steps": 4})
    made.fit()
    rank = read_rank(tmp_path / "attempts" / "1" / "timing" / "rank-00000.json")
    assert (rank.rank, rank.world_size, rank.nodes, rank.gpus_per_node) == (0, 1, 1, 0)
    assert (rank.precision, rank.data, rank.batch_size) == ("fp32", "vectors", 8)
    assert rank.gradient_bytes == 4 * sum(p.numel() for p in made.networks["model"].parameters())
    assert rank.torch == torch.__version__
    assert len(rank.steps) == 4 and min(rank.steps) > 0
    assert all(wait < step for wait, step in zip(rank.data_wait, rank.steps, strict=True))
    facts = written(tmp_path)
    assert facts["device_type"] == "cpu"
    assert facts["tf32"] is None
    assert facts["channels_last"] is True
    assert facts["peak_memory_bytes"] > 2**20
    assert facts["environment"]["torch"] == torch.__version__


def test_memory_is_that_of_the_steps(
    tmp_path: Path, clock: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the evaluation behind the last one."""
    made = timed(tmp_path, clock)
    peak = [100]
    monkeypatch.setattr(timing.machine, "peak_memory", lambda device: peak[0])
    evaluate = made.evaluate

    def large_evaluation() -> Any:
        if made.step > 7:  # two to warm up, five that are measured
            peak[0] = 1000
        return evaluate()

    made.evaluate = large_evaluation  # type: ignore[method-assign]
    made.fit()
    assert peak == [1000]
    assert written(tmp_path)["peak_memory_bytes"] == 100


def test_a_run_that_is_stopped_writes_what_it_has(tmp_path: Path, clock: Counter) -> None:
    fit_until(timed(tmp_path, clock), 4)
    assert written(tmp_path)["steps"] == [3.0, 3.0]
    timed(tmp_path, clock, attempt=2).fit()
    assert written(tmp_path, 2)["steps"] == [3.0] * 4, "it warms up again: steps 7 to 10"


def test_a_run_without_a_measured_step_writes_nothing(tmp_path: Path, clock: Counter) -> None:
    fit_until(timed(tmp_path, clock), 2)
    assert not (tmp_path / "attempts" / "1" / "timing").exists()


def test_without_timing_nothing_is_measured(tmp_path: Path) -> None:
    made = engine(tmp_path)
    made.fit()
    assert made.timer is None
    assert not (tmp_path / "attempts" / "1" / "timing").exists()


def test_a_file_that_cannot_be_written_costs_the_file(
    tmp_path: Path, clock: Counter, capsys: pytest.CaptureFixture[str]
) -> None:
    made = timed(tmp_path, clock)
    (tmp_path / "attempts" / "1" / "timing").write_text("in the way")
    made.fit()
    assert made.store.newest() == 10
    assert "rank-00000.json cannot be written" in capsys.readouterr().out


def test_the_clock_of_a_cpu_is_the_hosts() -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    begin = clock.mark()
    assert clock.seconds(begin, begin + 0.5) == pytest.approx(0.5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_clock_of_a_gpu_sees_work_that_is_queued() -> None:
    """The host is done with queueing long before the device is with the work."""
    device = torch.device("cuda")
    clock = clock_of(device)
    large = torch.randn(4096, 4096, device=device)
    large @ large  # libraries and clocks warm up
    torch.cuda.synchronize()
    begin = clock.mark()
    for _ in range(50):
        large = large @ large * 1e-3
    end = clock.mark()
    assert not end.query(), "nothing has waited for the device"
    assert clock.seconds(begin, end) > 50 * 2 * 4096**3 / 2e15, "not faster than any GPU"
