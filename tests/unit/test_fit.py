"""`hpc_amp.train.fit`: training from a program or a notebook."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.environment import clean_environ
from support.training import Regression, curve
from support.training import settings as any_device
from support.warm import Warm

from hpc_amp.config.schema import Data, Optimizer, Precision, Schedule
from hpc_amp.distributed.world import World
from hpc_amp.tasks.classification.config import ClassificationConfig, Model
from hpc_amp.tasks.dcgan.config import DcganConfig, Gan
from hpc_amp.train import Observer, evaluate, fit
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.settings import SettingError, check_settings
from hpc_amp.train.state import weights_digest


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, and nothing of it left behind."""
    environ = clean_environ()
    for name in {*os.environ} - {*environ}:
        monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.setenv(name, "0" if name.endswith("RANK") else "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")


def settings(**train: Any) -> ClassificationConfig:
    """A small configuration, for the CPU on every machine."""
    return any_device(device="cpu", **train)


class Stops(Observer):
    """Sends this process a signal after a report at `step`."""

    def __init__(self, step: int) -> None:
        self.step = step

    def reported(self, engine: Any, values: Mapping[str, float]) -> None:
        engine.agreement.due = lambda step: True
        if engine.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("task", ["classification", "dcgan"])
def test_no_loader_is_left_of_it(tmp_path: Path, task: str) -> None:
    """In a notebook, where the next training begins in the same process."""
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(4):
                Image.new("RGB", (8, 8), (number, 0, 0)).save(
                    tmp_path / split / label / f"{number}.png"
                )
    data = Data(name="imagefolder", root=str(tmp_path), image_size=8, in_memory=False, workers=1)
    model, gan = Model(name="resnet8", width=8), Gan(image_size=16, evaluation_images=8)
    configs = {
        "classification": ClassificationConfig(data=data, model=model),
        "dcgan": DcganConfig(data=data, gan=gan),
    }
    train = replace(configs[task], device="cpu", batch_size=4, max_steps=1)
    descriptors = len(os.listdir("/proc/self/fd"))
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = own.read_text()
    gc.disable()
    try:
        fitted = fit(train, tmp_path / "run")
        children = own.read_text()
    finally:
        gc.enable()
    assert (fitted.step, children) == (1, before)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_it_trains_and_says_what_came_out(tmp_path: Path) -> None:
    fitted = fit(settings(), tmp_path / "run", task=Regression)
    assert (fitted.outcome, fitted.step, fitted.exit_status) == ("finished", 10, 0)
    assert fitted.metrics["accuracy"] > 0
    assert weights_digest(fitted.networks) == fitted.summary["weights_sha256"]
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["outcome"] == "finished"
    assert stored["weights_sha256"] == fitted.summary["weights_sha256"]
    assert json.loads((tmp_path / "run" / "train.json").read_text())["batch_size"] == 8
    assert [step for step, _ in curve(tmp_path / "run", "eval/error")] == [5, 10]


def test_a_signal_stops_it_and_the_same_call_goes_on(tmp_path: Path) -> None:
    whole = fit(settings(), tmp_path / "whole", task=Regression)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    first = fit(settings(), tmp_path / "parts", task=Regression, observers=[Stops(3)])
    assert (first.outcome, first.step, first.exit_status) == ("checkpointed", 3, 75)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    second = fit(settings(), tmp_path / "parts", task=Regression)
    assert second.outcome == "finished"
    assert second.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert sorted(os.listdir(tmp_path / "parts" / "attempts")) == ["1", "2"]


def test_a_job_asks_it_to_stop_by_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = tmp_path / "job" / "attempts" / "1"
    attempt.mkdir(parents=True)
    monkeypatch.setenv("HPC_AMP_OUTCOME_FILE", str(attempt / "outcome.json"))
    (attempt / "stop").touch()
    assert fit(settings(), tmp_path / "run", task=Regression).outcome == "checkpointed"


def test_a_later_call_takes_the_run_over(tmp_path: Path) -> None:
    class Overtaken(Observer):
        def reported(self, engine: Any, values: Mapping[str, float]) -> None:
            engine.agreement.due = lambda step: True
            (tmp_path / "attempts" / "2").mkdir(exist_ok=True)

    with pytest.raises(RuntimeError, match="a later attempt has taken over this run"):
        fit(settings(), tmp_path, task=Regression, observers=[Overtaken()])


def test_functions_of_torch_are_as_before_whatever_was_done_at_o1(tmp_path: Path) -> None:
    before = torch.exp
    at_o1 = settings(precision={"mode": "O1"})
    fit(at_o1, tmp_path, task=Regression)
    assert torch.exp is before
    evaluate(at_o1, tmp_path, task=Regression)
    assert torch.exp is before
    with pytest.raises(TrainingError, match="batch_size 8, not 4"):
        fit(replace(at_o1, batch_size=4), tmp_path, task=Regression)
    assert torch.exp is before


def test_observers_hear_of_everything_in_order(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Listener(Observer):
        def begin(self, engine: Any) -> None:
            heard.append(("begin", engine.step))

        def reported(self, engine: Any, values: Mapping[str, float]) -> None:
            heard.append(("reported", engine.step, values["train/loss"]))

        def evaluated(self, engine: Any) -> None:
            heard.append(("evaluated", engine.step, engine.metrics["error"]))

        def end(self, engine: Any) -> None:
            heard.append(("end", engine.step))

    fit(settings(log_every=5), tmp_path, task=Regression, observers=[Listener()])
    losses, errors = curve(tmp_path, "train/loss"), curve(tmp_path, "eval/error")
    expected: list[Any] = [("begin", 0)]
    for loss, error in zip(losses, errors, strict=True):
        expected += [("reported", *loss), ("evaluated", *error)]
    assert heard == [*expected, ("end", 10)]


def test_a_rate_of_ones_own_replaces_the_schedule(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def rate(step: int, steps: int) -> float:
        asked.append((step, steps))
        return 1 / (1 + step)

    train = settings(optimizer={"lr": 0.3}, schedule="cosine")
    fit(train, tmp_path, task=Regression, rate=rate)
    assert asked == [(step, 10) for step in range(10)]
    assert curve(tmp_path, "train/lr") == [(s, pytest.approx(0.3 / s)) for s in range(1, 11)]


def test_evaluate_is_of_the_newest_checkpoint_and_disturbs_no_training(tmp_path: Path) -> None:
    fitted = fit(settings(), tmp_path / "run", task=Regression)
    assert evaluate(settings(), tmp_path / "run", task=Regression) == fitted.metrics
    assert not (tmp_path / "run" / "attempts" / "2").exists()
    fresh = evaluate(settings(), tmp_path / "none", task=Regression)
    assert fresh["error"] != fitted.metrics["error"]


def test_evaluate_leaves_the_curves_of_a_training_alone(tmp_path: Path) -> None:
    """They go beyond the newest checkpoint, and the training must keep the file it writes to. What
    is found is not recorded: the next attempt will evaluate, too, and it would stand twice."""
    fit(settings(epochs=1, evaluate_every=0), tmp_path, task=Regression)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for step in (6, 7):
            file.write(json.dumps({"step": step, "train/loss": 1.0}) + "\n")
        file.flush()
        before = {path: path.read_bytes() for path in reports(tmp_path)}
        evaluate(settings(epochs=1), tmp_path, task=Regression)
        assert {path: path.read_bytes() for path in reports(tmp_path)} == before
        assert os.path.samestat(os.fstat(file.fileno()), (tmp_path / "metrics.jsonl").stat())


def reports(folder: Path) -> list[Path]:
    return [folder / "metrics.jsonl", *folder.glob("tensorboard/*"), *folder.glob("samples/*")]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            ClassificationConfig(precision=Precision(mode="fp61")),
            "train.precision.mode: 'fp61' is not one of fp32",
        ),  # type: ignore[arg-type]
        (
            ClassificationConfig(batch_size=0),
            "train.batch_size: 0 is too small: it must be at least 1",
        ),
        (
            ClassificationConfig(optimizer=Optimizer(lr="0.1")),
            "train.optimizer.lr: '0.1' is not of the type float",
        ),  # type: ignore[arg-type]
        (
            ClassificationConfig(schedule=Schedule(warmup=2.0)),
            "train.schedule.warmup: 2.0 is outside 0 to 1",
        ),
        (ClassificationConfig(epochs=True), "train.epochs: True is not of the type int"),
        (ClassificationConfig(seed=None), "train.seed: None is not of the type int"),  # type: ignore[arg-type]
    ],
)
def test_values_that_no_key_can_have_are_refused(train: ClassificationConfig, message: str) -> None:
    """Nothing else would see them: a precision without autocast, for one, trains in fp32."""
    with pytest.raises(SettingError, match=f"^{message}"):
        check_settings(train, World())


def test_whole_numbers_may_stand_for_numbers_and_none_where_it_is_a_value() -> None:
    check_settings(ClassificationConfig(optimizer=Optimizer(lr=1), clip_norm=None, ema=0), World())


def test_a_batch_has_to_divide_among_the_ranks() -> None:
    train = replace(ClassificationConfig(), batch_size=100, accumulate=2)
    with pytest.raises(SettingError, match="100 is not divisible by 3 ranks x 2 parts; 96 or 102"):
        check_settings(train, World(size=3, local_size=3))


PROGRAM = """
import sys
from pathlib import Path
from hpc_amp.train import run_program

def main():
    what = sys.argv[1]
    if what == "status":
        return 75
    if what == "exit":
        sys.exit("no such flag")
    if what == "setting":
        from hpc_amp.config.schema import Train
        from hpc_amp.train import fit
        fit(Train(epochs=0), Path(sys.argv[2]))
    raise KeyError("a defect")

run_program(main)
"""


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("status", 75, ""),
        ("exit", 1, "no such flag\n"),
        ("setting", 2, "hpc-amp: train.epochs: 0 is too small: it must be at least 1\n"),
    ],
)
def test_a_program_ends_with_a_status_and_a_line(
    warm: Warm, tmp_path: Path, what: str, status: int, said: str
) -> None:
    ended = run_program(warm, tmp_path, what)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", said)
    assert not (tmp_path / "out").exists()


def test_a_defect_keeps_its_traceback_and_a_job_hears_of_it(warm: Warm, tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    ended = run_program(
        warm, tmp_path, "defect", HPC_AMP_OUTCOME_FILE=str(attempt / "outcome.json")
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'a defect'\n")
    outcome = json.loads((attempt / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["reason"]) == ("failed", "KeyError: 'a defect'")


def run_program(
    warm: Warm, folder: Path, what: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return warm.run("program.py", what, "out", cwd=folder, environ=environ)


def test_the_package_does_not_import_torch_by_itself() -> None:
    """A job listens to signals before it imports torch, which takes seconds."""
    code = "import sys, hpc_amp.train; print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=clean_environ(), text=True, capture_output=True
    )
    assert ended.stdout == "False\n"
