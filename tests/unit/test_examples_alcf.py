"""examples/alcf: what each flag means, and none of the faults of the script that it follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.examples import modules_of, run_example, train_example
from support.training import curve
from support.warm import Warm

from hpc_amp.config.schema import Data, Synthetic
from hpc_amp.distributed.world import World
from hpc_amp.models import build_model
from hpc_amp.tasks.classification.config import ClassificationConfig
from hpc_amp.train.schedule import rate_factor
from hpc_amp.train.settings import check_settings

STEPS_PER_EPOCH = 391
FEW = Data(name="synthetic", synthetic=Synthetic(train=128, test=16))
"""One step an epoch."""


@pytest.fixture(scope="module")
def alcf() -> Iterator[Any]:
    with modules_of("alcf"):
        import main  # type: ignore[import-not-found]

        yield main


def configured(alcf: Any, *words: str) -> ClassificationConfig:
    train: ClassificationConfig = alcf.configuration(alcf.parse([*words]))
    check_settings(train, World())
    return train


def refused(alcf: Any, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        alcf.parse([*words])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


# -- flags ---------------------------------------------------------------------------------------


def test_without_flags_it_is_the_walkthroughs_fp32_training(alcf: Any) -> None:
    train = configured(alcf)
    assert (train.model.name, train.epochs, train.batch_size) == ("resnet50", 200, 128)
    assert (train.data.name, train.data.augment.crop, train.data.augment.flip) == (
        "cifar10", 4, True,
    )  # fmt: skip
    optimizer = train.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.nesterov, optimizer.weight_decay) == (False, 5e-4)
    assert train.precision.mode == "fp32"
    assert train.device == "auto"


def test_short_and_long_flags_are_the_same(alcf: Any) -> None:
    short = configured(alcf, "-n", "7", "-p", "-m", "vgg16", "--fp16", "-s", "--lr", "0.2")
    long = configured(
        alcf, "--steps=7", "--gpu", "--model=vgg16", "--fp16", "--loss_scaling", "--lr=0.2"
    )
    assert short == long
    assert (short.epochs, short.device, short.model.name) == (7, "cuda", "small_vgg16")
    assert short.optimizer.lr == 0.2


def test_fp16_is_autocast_and_loss_scaling_is_dynamic(alcf: Any) -> None:
    scaled = configured(alcf, "--fp16", "-s").precision
    assert (scaled.mode, scaled.static_scale) == ("fp16", None)
    unscaled = configured(alcf, "--fp16").precision
    assert (unscaled.mode, unscaled.static_scale) == ("fp16", 1.0)


def test_every_network_of_the_workshop_is_there_or_said_not_to_be(
    alcf: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in alcf.MODELS:
        model = configured(alcf, "-m", name).model
        network = build_model(model, classes=10, channels=3, image_size=32)
        with torch.no_grad():
            assert network.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    for name in alcf.NOT_HERE:
        said = refused(alcf, capsys, "-m", name)
        assert f"{name} exists neither in hpc-amp nor in torchvision; there are densenet121" in said
    assert "there is no network 'resnet5'; there are" in refused(alcf, capsys, "-m", "resnet5")


# -- faults that it does not have ------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [20, 200])
def test_the_warm_up_takes_five_epochs_whatever_the_length_of_the_run(
    alcf: Any, epochs: int
) -> None:
    """It took its step from the number of all epochs: 4e-6 for 200 of them, 0.4 for 20."""
    train = configured(alcf, "-n", str(epochs))
    steps = epochs * STEPS_PER_EPOCH
    rates = [0.1 * rate_factor(train.schedule, step, steps) for step in range(steps)]
    assert rates[5 * STEPS_PER_EPOCH] == pytest.approx(0.1)
    assert rates[5 * STEPS_PER_EPOCH // 2] == pytest.approx(0.05, rel=0.01)
    assert max(rates) == pytest.approx(0.1)


def test_the_rate_falls_at_the_workshops_epochs_and_only_there(alcf: Any) -> None:
    """The schedule was made anew in every epoch."""
    train = configured(alcf)
    steps = 200 * STEPS_PER_EPOCH

    def at(epoch: int, shift: int = 0) -> float:
        return 0.1 * rate_factor(train.schedule, epoch * STEPS_PER_EPOCH + shift, steps)

    for number, epoch in enumerate((80, 120, 160, 180), 1):
        assert at(epoch, -1) == pytest.approx(0.1**number)
        assert at(epoch) == pytest.approx(0.1 ** (number + 1))


def test_a_scale_without_fp16_is_refused(alcf: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It multiplied the loss by 128 and never divided the gradients."""
    assert "--loss_scaling is for --fp16" in refused(alcf, capsys, "-s")


def test_the_loss_that_it_reports_is_not_scaled(
    alcf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed 128 times the loss."""
    monkeypatch.chdir(tmp_path)
    made = configured(alcf, "-m", "lenet", "--fp16", "-s")
    short = dataclasses.replace(made, data=FEW, max_steps=1, log_every=1)
    monkeypatch.setattr(alcf, "configuration", lambda flags: short)
    monkeypatch.setattr("sys.argv", ["main.py", "-m", "lenet", "--fp16", "-s"])
    assert alcf.main() == 0
    ((_, loss),) = curve(tmp_path / "weights" / "lenet_fp16" / "run_scaled", "train/loss")
    assert loss == pytest.approx(2.3, abs=0.3)  # ln 10: it knows nothing yet


def test_with_a_scale_and_without_are_two_trainings(
    alcf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there to be compared: the second one must not go on with the end of the first."""
    monkeypatch.chdir(tmp_path)
    configuration = alcf.configuration
    short = {"data": FEW, "max_steps": 1, "log_every": 1}
    monkeypatch.setattr(
        alcf, "configuration", lambda flags: dataclasses.replace(configuration(flags), **short)
    )
    for words, folder in (["--fp16"], "run"), (["--fp16", "-s"], "run_scaled"):
        monkeypatch.setattr("sys.argv", ["main.py", "-m", "lenet", *words])
        assert alcf.main() == 0
        run = tmp_path / "weights" / "lenet_fp16" / folder
        assert [step for step, _ in curve(run, "train/loss")] == [1]
        (scale,) = {scale for _, scale in curve(run, "train/loss_scale")}
        assert (scale > 1) == (folder == "run_scaled")


def test_an_epoch_as_good_as_the_best_is_not_kept(
    alcf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = alcf.configuration
    monkeypatch.setattr(
        alcf, "configuration", lambda flags: dataclasses.replace(configuration(flags), data=FEW)
    )
    monkeypatch.setattr("sys.argv", ["main.py", "-m", "lenet", "-n", "3", "--lr", "0"])
    assert alcf.main() == 0
    assert len(curve(tmp_path / "weights" / "lenet" / "run", "eval/accuracy")) == 3
    assert len(list(tmp_path.glob("weights/lenet/weights.*.pt"))) == 1


def test_importing_it_imports_no_torch_and_downloads_nothing(tmp_path: Path) -> None:
    ended = run_example("alcf", ["--help"], tmp_path, PYTHONPATH=str(broken_torch(tmp_path)))
    assert ended.returncode == 0, ended.stderr
    assert "--loss_scaling" in ended.stdout
    assert not (tmp_path / "data").exists()


def broken_torch(folder: Path) -> Path:
    """A search path with a torch that cannot be imported."""
    from support.environment import REPOSITORY

    (folder / "broken").mkdir()
    (folder / "broken" / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return Path(f"{folder / 'broken'}:{REPOSITORY}")


def test_it_runs_without_a_terminal_and_keeps_weights_that_load_anywhere(
    warm: Warm, tmp_path: Path
) -> None:
    """It asked the terminal for its size, which ends every batch job; and its checkpoints had names
    with `module.` in front, and were looked for in another place than they were written."""
    words = ["-n", "2", "-m", "lenet", "--synthetic", "--lr", "0.02"]
    ended = train_example(warm, "alcf", words, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    folder = tmp_path / "weights" / "lenet"
    kept = sorted(folder.glob("weights.*.pt"))
    assert kept, "the first epoch is better than none"
    state = torch.load(kept[-1], weights_only=True)
    assert set(state) == {"net", "acc", "epoch"}
    assert kept[-1].name == f"weights.{state['epoch']:03d}.{100 * state['acc']:.2f}.pt"
    from hpc_amp.tasks.classification.config import Model

    network = build_model(Model(name="lenet5"), classes=10, channels=3, image_size=32)
    network.load_state_dict(state["net"])

    again = train_example(warm, "alcf", [*words[:1], "3", *words[2:]], tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resumed from" in again.stdout
    assert "at step 64" in again.stdout
    epochs = [step for step, _ in curve(folder / "run", "eval/accuracy")]
    assert epochs == [32, 64, 96]
