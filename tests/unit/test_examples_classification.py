"""examples/classification: what each flag means, and none of the faults of the trainer that it
follows."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.examples import EXAMPLES, modules_of, run_example, train_example
from support.training import curve
from support.warm import Warm
from torch import nn

from hpc_amp.config.schema import Data, Synthetic
from hpc_amp.distributed.world import World
from hpc_amp.models import build_model
from hpc_amp.tasks.classification.config import ClassificationConfig
from hpc_amp.train import fit
from hpc_amp.train.settings import check_settings

ARRAYS = ("TrainingLoss", "TrainingTop1", "TrainingTop5", "GradNorm", "Learning_Rate")
TEST_ARRAYS = ("TestLoss", "TestTop1", "TestTop5")


@pytest.fixture(scope="module")
def trainer() -> Iterator[SimpleNamespace]:
    with modules_of("classification"):
        import arguments  # type: ignore[import-not-found]
        import classifier  # type: ignore[import-not-found]
        import curves  # type: ignore[import-not-found]
        import main  # type: ignore[import-not-found]
        import rates  # type: ignore[import-not-found]
        import scenario  # type: ignore[import-not-found]

        yield SimpleNamespace(
            parse=arguments.parse, main=main, rates=rates, scenario=scenario,
            classifier=classifier, curves=curves,
        )  # fmt: skip


def parsed(trainer: Any, *words: str) -> argparse.Namespace:
    flags: argparse.Namespace = trainer.parse([*words])
    return flags


def configured(
    trainer: Any, *words: str, world_size: int = 1, on_gpu: bool = False
) -> ClassificationConfig:
    train: ClassificationConfig = trainer.main.configuration(
        parsed(trainer, *words), world_size, on_gpu
    )
    check_settings(train, World())
    return train


def refused(trainer: Any, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        trainer.parse([*words])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


# -- flags and YAML --------------------------------------------------------------------------------


def test_without_flags_it_is_resnet50_on_imagenet(trainer: Any) -> None:
    train = configured(trainer)
    assert (train.model.name, train.data.name, train.epochs) == ("resnet50", "imagefolder", 90)
    assert (train.batch_size, train.data.workers) == (200, 20)
    optimizer = train.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.256, 0.9)
    assert (optimizer.nesterov, optimizer.weight_decay) == (False, 1e-4)


def test_flags_become_settings(trainer: Any) -> None:
    train = configured(
        trainer, "-a", "vgg16", "--dataname", "cifar100", "--datapath", "/d", "-w", "3", "-b", "50",
        "--channels-last", "-o", "SGD+M", "--momentum", "0.8", "--nesterov", "--epochs", "4",
        "--label-smoothing", "0.1", "--lr", "0.3", "--wd", "0.01", "--print-freq-tr", "7",
        world_size=4,
    )  # fmt: skip
    assert train.model.name == "small_vgg16"
    assert (train.data.name, train.data.root, train.data.workers) == ("cifar100", "/d", 3)
    assert train.batch_size == 200, "-b is of each rank"
    assert train.channels_last
    assert (train.optimizer.momentum, train.optimizer.nesterov) == (0.8, True)
    assert (train.optimizer.lr, train.optimizer.weight_decay) == (0.3, 0.01)
    assert (train.epochs, train.label_smoothing, train.log_every) == (4, 0.1, 7)


def test_optimizers(trainer: Any) -> None:
    assert configured(trainer, "-o", "SGD").optimizer.momentum == 0
    assert configured(trainer, "-o", "SGD+M").optimizer.momentum == 0.9
    adam = configured(trainer, "-o", "Adam", "--wd", "0").optimizer
    assert (adam.name, adam.weight_decay) == ("adam", 0)


def test_precision_is_fp16_where_there_is_a_gpu(trainer: Any) -> None:
    assert configured(trainer, on_gpu=True).precision.mode == "fp16"
    assert configured(trainer, on_gpu=False).precision.mode == "fp32"
    assert configured(trainer, "--precision", "bf16", on_gpu=True).precision.mode == "bf16"


def test_digits_are_neither_mirrored_nor_cropped(trainer: Any) -> None:
    digits = configured(trainer, "--dataname", "fashionmnist").data
    assert (digits.name, digits.augment.crop, digits.augment.flip) == ("fashion_mnist", 0, False)
    assert configured(trainer, "--dataname", "cifar10").data.augment.crop == 4


def test_the_command_line_wins_over_yaml_in_every_form(trainer: Any, tmp_path: Path) -> None:
    """Short flags and `--k=v` did not."""
    file = tmp_path / "mine.yaml"
    file.write_text("arch: conv4\nbatch_size: 60\nlr: 2e-3\nepochs: 3\nlr_steps: [5, 7]\n")
    given = parsed(trainer, "--config", str(file))
    assert (given.arch, given.batch_size, given.lr, given.epochs) == ("conv4", 60, 0.002, 3)
    assert given.lr_steps == [5, 7]
    over = parsed(trainer, "--config", str(file), "-b", "8", "--lr=0.5", "-a", "conv2")
    assert (over.arch, over.batch_size, over.lr, over.epochs) == ("conv2", 8, 0.5, 3)
    assert over.weight_decay == 1e-4, "and what neither says is the default"


def test_a_default_on_the_command_line_counts_as_given(trainer: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 3\nnesterov: true\n")
    over = parsed(trainer, "--config", str(file), "--epochs", "90", "--nesterov", "false")
    assert (over.epochs, over.nesterov) == (90, False)


@pytest.mark.parametrize(
    ("text", "value"), [("", True), ("True", True), ("true", True), ("False", False)]
)
def test_switches_know_true_from_false(trainer: Any, text: str, value: bool) -> None:
    """`--channels-last False` switched it on."""
    words = ["--channels-last", *([text] if text else []), "--lr", "1"]
    assert parsed(trainer, *words).channels_last is value


def test_older_names_of_the_first_weights_work(trainer: Any, tmp_path: Path) -> None:
    """The code read other names than those that the command line and the YAML files wrote."""
    file = tmp_path / "old.yaml"
    file.write_text(
        "init_policy: xavieru\ninit_kaiming_mode: fan_out\ninit_kaiming_nonlinearity: tanh\n"
        "init_bias: default\ngpu_idx: '0'\nlocal_rank: 0\nlr_steps: 0\n"
    )
    flags = parsed(trainer, "--config", str(file))
    assert (flags.dense_init_policy, flags.kaiming_mode) == ("xavieru", "fan_out")
    assert (flags.kaiming_nonlinearity, flags.dense_bias_init) == ("tanh", "default")
    assert (flags.gpu_ids, flags.local_rank, flags.lr_steps) == (["0"], None, [])


def test_an_empty_list_in_a_yaml_file_is_the_default(trainer: Any, tmp_path: Path) -> None:
    """`lr_steps: []` is what a file with all values has."""
    file = tmp_path / "all.yaml"
    file.write_text("lr_steps: []\ngpu_ids: []\nepochs: 3\n")
    flags = parsed(trainer, "--config", str(file))
    assert (flags.lr_steps, flags.gpu_ids, flags.epochs) == ([], None, 3)


def test_a_config_is_found_by_its_name(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed(trainer, "--config", "cifar10_conv2_train").arch == "conv2"
    own = tmp_path / "configs" / "cifar10" / "conv2"
    own.mkdir(parents=True)
    (own / "cifar10_conv2_train.yaml").write_text("epochs: 77\n")
    words = ("--config", "cifar10_conv2_train", "-a", "conv2", "--dataname", "cifar10")
    assert parsed(trainer, *words).epochs == 77, "the one of the working directory comes first"
    assert "no such file" in refused(trainer, capsys, "--config", "cifar11")


def test_every_config_that_is_shipped_is_right(trainer: Any) -> None:
    files = sorted((EXAMPLES / "classification" / "configs").glob("*/*/*.yaml"))
    assert len(files) >= 5
    for file in files:
        flags = parsed(trainer, "--config", str(file))
        assert (flags.dataname, flags.arch) == (file.parts[-3], file.parts[-2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batchsize: 3\n", "there is no flag --batchsize"),
        ("lr: much\n", "argument --lr/--learning-rate: invalid float value: 'much'"),
        ("nesterov: perhaps\n", "'perhaps' is neither true nor false"),
        ("- 1\n", "does not say key: value"),
        ("a: [\n", "cannot be read"),
    ],
)
def test_what_is_wrong_in_a_yaml_file_is_said_in_one_line(
    trainer: Any, capsys: Any, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    line = refused(trainer, capsys, "--config", str(file))
    assert said in line
    assert "wrong.yaml" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr-policy", "multistep_lr"], "multistep_lr needs --lr-steps"),
        (["--initial-epoch", "3"], "--initial-epoch needs --resume"),
        (["--resume", "/nowhere"], "--resume /nowhere: there are no checkpoints"),
        (["--epochs", "0"], "--epochs: 0 is too small"),
        (["--scale-coslr", "0"], "--scale-coslr: it must be above 0"),
        (["-o", "SGDM"], "invalid choice: 'SGDM'"),
        (["--batch", "3"], "unrecognized arguments: --batch 3"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    trainer: Any, capsys: Any, words: list[str], said: str
) -> None:
    assert said in refused(trainer, capsys, *words)


# -- the course of the learning rate ---------------------------------------------------------------


def course(trainer: Any, *words: str, per_epoch: int = 10) -> list[float]:
    """The rate of every step of 20 epochs."""
    flags = parsed(trainer, "--epochs", "20", *words)
    rate = trainer.rates.rate_of(flags)
    return [rate(step, 20 * per_epoch) for step in range(20 * per_epoch)]


def test_every_policy_warms_up_in_epochs(trainer: Any) -> None:
    for policy in ("constant_lr", "cosine_lr", "normal_lr"):
        rates = course(trainer, "--lr-policy", policy, "--warmup-length", "4")
        assert rates[:40] == [pytest.approx((step + 1) / 40) for step in range(40)]
        assert rates[40] == 1.0
    assert course(trainer, "--warmup-length", "0")[0] == 1.0


def test_constant_is_constant(trainer: Any) -> None:
    assert set(course(trainer, "--warmup-length", "0")) == {1.0}


def test_cosine_falls_from_the_peak_to_zero(trainer: Any) -> None:
    """The precedence of its operators was wrong."""
    rates = course(trainer, "--lr-policy", "cosine_lr", "--warmup-length", "10")
    assert rates[150] == pytest.approx(0.5)
    assert rates[125] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert 0 < rates[199] < 0.001
    assert rates[100:] == sorted(rates[100:], reverse=True)
    half = course(
        trainer, "--lr-policy", "cosine_lr", "--warmup-length", "10", "--scale-coslr", "2"
    )
    assert half[199] == pytest.approx(0.5, abs=0.01), "half a period takes two such runs"


def test_normal_falls_as_a_gaussian(trainer: Any) -> None:
    words = ("--lr-policy", "normal_lr", "--warmup-length", "5", "--scale-gausslr", "25")
    rates = course(trainer, *words)
    assert rates[100] == pytest.approx(math.exp(-1))
    assert rates[150] == pytest.approx(math.exp(-4))


def test_multistep_decays(trainer: Any) -> None:
    """It did not."""
    rates = course(
        trainer, "--lr-policy", "multistep_lr", "--lr-steps", "12", "8", "--lr-gamma", "0.5",
        "--warmup-length", "2",
    )  # fmt: skip
    assert (rates[79], rates[80], rates[119], rates[120]) == (1.0, 0.5, 0.5, 0.25)


# -- first weights ---------------------------------------------------------------------------------


def first_weights(trainer: Any, *words: str) -> nn.Module:
    torch.manual_seed(0)
    network = build_model(
        configured(trainer, "-a", "conv4").model, classes=10, channels=3, image_size=32
    )
    trainer.classifier.initialize(network, parsed(trainer, *words))
    return network


def dense(network: nn.Module) -> nn.Linear:
    return next(module for module in network.modules() if isinstance(module, nn.Linear))


@pytest.mark.parametrize(
    ("policy", "uniform", "variance"),
    [
        ("kaimingn", False, lambda i, o: 2 / i),
        ("kaimingu", True, lambda i, o: 2 / i),
        ("xaviern", False, lambda i, o: 2 / (i + o)),
        ("xavieru", True, lambda i, o: 2 / (i + o)),
    ],
)
def test_policies_draw_what_their_names_say(
    trainer: Any, policy: str, uniform: bool, variance: Any
) -> None:
    """There was no branch for kaimingu: such a network kept torch's weights."""
    layer = dense(first_weights(trainer, "--dense-init-policy", policy))
    expected = variance(layer.in_features, layer.out_features)
    weights = layer.weight.detach()
    assert float(weights.var()) == pytest.approx(expected, rel=0.02)
    edge = math.sqrt(3 * expected)
    assert (float(weights.abs().max()) <= edge * 1.001) is uniform


def test_mode_and_nonlinearity_count(trainer: Any) -> None:
    layer = dense(first_weights(trainer, "--kaiming-mode", "fan_out"))
    assert float(layer.weight.detach().var()) == pytest.approx(2 / layer.out_features, rel=0.02)
    layer = dense(first_weights(trainer, "--kaiming-nonlinearity", "linear"))
    assert float(layer.weight.detach().var()) == pytest.approx(1 / layer.in_features, rel=0.02)


def test_default_leaves_torchs_weights_and_biases(trainer: Any) -> None:
    words = ("--dense-init-policy", "default", "--dense-bias-init", "default")
    torch.manual_seed(0)
    config = configured(trainer, "-a", "conv4").model
    untouched = build_model(config, classes=10, channels=3, image_size=32)
    for ours, theirs in zip(
        first_weights(trainer, *words).parameters(), untouched.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert not dense(first_weights(trainer)).bias.any(), "zero, unless that is asked for"


def test_a_resnet_has_as_many_outputs_as_there_are_classes(trainer: Any, tmp_path: Path) -> None:
    """On CIFAR it kept ImageNet's thousand."""
    flags = parsed(trainer, "-a", "resnet18", "--dataname", "synthetic", "-b", "4", "-w", "0")
    train = trainer.main.configuration(flags, 1, False)
    task = trainer.classifier.Classifier(
        train, World(), torch.device("cpu"), flags=flags, record=lambda *_: None
    )
    task.prepare_data()
    assert task.build_networks()["model"].fc.out_features == 10


# -- scenarios -------------------------------------------------------------------------------------


def test_a_scenario_is_named_after_what_matters(trainer: Any) -> None:
    flags = parsed(
        trainer, "-a", "conv2", "--dataname", "cifar10", "-b", "60", "-o", "Adam", "--lr", "0.0002",
        "--epochs", "20",
    )  # fmt: skip
    name = trainer.scenario.describe(flags, 2)
    assert name == (
        "data_cifar10_arch_conv2_init_kaimingn_GPUs_2_minib_60_opt_Adam_lr_0.0002"
        "_lrpolicy_constant_lr_ep_20"
    )
    scenario = trainer.scenario.Scenario("2026_1_2_3_4_5", name, "cifar10", "conv2")
    assert str(scenario.tensorboard) == "runs/cifar10/conv2/2026_1_2_3_4_5"
    assert str(scenario.variable("GradNorm")) == (
        f"history/variables/cifar10/conv2/2026_1_2_3_4_5/GradNorm_{name}.npy"
    )


def test_all_attempts_of_a_job_are_one_scenario(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in (1, 2):
        outcome = f"/x/runs/mine/20261127-093405-kqzf/attempts/{attempt}/outcome.json"
        monkeypatch.setenv("HPC_AMP_OUTCOME_FILE", outcome)
        assert trainer.scenario.begun(None) == "2026_11_27_9_34_5"
    monkeypatch.delenv("HPC_AMP_OUTCOME_FILE")
    assert re.fullmatch(r"\d{4}(_\d{1,2}){5}", trainer.scenario.begun(None))
    resumed = "history/checkpoints/cifar10/conv2/2025_1_1_1_1_1"
    assert trainer.scenario.begun(resumed) == "2025_1_1_1_1_1"


# -- what is recorded ------------------------------------------------------------------------------


def recorded(
    trainer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **train: Any
) -> tuple[Any, Any]:
    """The curves of a small training, and what came out of it."""
    monkeypatch.chdir(folder)
    flags = parsed(
        trainer, "-a", "fc", "--dataname", "synthetic", "-b", "32", "-w", "0", "--epochs", "2",
        "--lr", "0.01", "--warmup-length", "0", "--print-freq-tr", "5", *words,
    )  # fmt: skip
    small = Synthetic(train=256, test=64, image_size=8, channels=1)
    made = trainer.main.configuration(flags, 1, False)
    data = Data(name="synthetic", synthetic=small)
    made = dataclasses.replace(made, data=data, device="cpu", **train)
    scenario = trainer.scenario.Scenario("2026_1_1_1_1_1", "it", "synthetic", "fc")
    curves = trainer.curves.Curves(flags, scenario)

    def task(*arguments: Any) -> Any:
        return trainer.classifier.Classifier(*arguments, flags=flags, record=curves.record)

    rate = trainer.rates.rate_of(flags)
    fitted = fit(made, scenario.checkpoints, task=task, observers=[curves], rate=rate)
    return scenario, fitted


def array(scenario: Any, name: str) -> Any:
    return np.load(scenario.variable(name))


def test_every_step_and_every_epoch_is_recorded(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averages over an epoch counted its last batch alone, and test losses were not all there."""
    scenario, fitted = recorded(trainer, tmp_path, monkeypatch)
    assert fitted.step == 16
    for name in ARRAYS:
        assert array(scenario, name).shape == (16,), name
        assert np.isfinite(array(scenario, name)).all(), name
    for name in TEST_ARRAYS:
        assert array(scenario, name).shape == (2,), name
    reported = curve(scenario.checkpoints, "train/loss")
    losses = array(scenario, "TrainingLoss")
    assert reported[0] == (5, pytest.approx(losses[:5].mean(), rel=1e-5))
    assert reported[-1] == (16, pytest.approx(losses[15], rel=1e-5))
    assert array(scenario, "TestTop1")[-1] == pytest.approx(100 * fitted.metrics["accuracy"])
    assert array(scenario, "TestTop5")[-1] == pytest.approx(100 * fitted.metrics["top5"])
    assert array(scenario, "TestLoss")[-1] == pytest.approx(fitted.metrics["loss"])
    assert (array(scenario, "TrainingTop5") >= array(scenario, "TrainingTop1")).all()
    assert (array(scenario, "Learning_Rate") == 0.01).all()


def test_tensorboard_has_the_same_under_its_tags(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    scenario, _ = recorded(trainer, tmp_path, monkeypatch)
    board = accumulator.EventAccumulator(str(scenario.tensorboard))
    board.Reload()
    tags = {
        "Loss/Training": "TrainingLoss", "Top1/Training": "TrainingTop1",
        "Top5/Training": "TrainingTop5", "Optim/Gradient_Norm": "GradNorm",
        "Optim/lr": "Learning_Rate", "Loss/Test": "TestLoss", "Top1/Test": "TestTop1",
        "Top5/Test": "TestTop5",
    }  # fmt: skip
    assert set(board.Tags()["scalars"]) == set(tags)
    for tag, name in tags.items():
        points = board.Scalars(tag)
        assert [point.step for point in points] == list(range(1, len(points) + 1))
        assert [p.value for p in points] == pytest.approx(array(scenario, name).tolist(), rel=1e-5)


def test_gradient_norms_are_those_of_unscaled_gradients(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were 65536 times as large. A step that overflows has none."""
    from hpc_amp.config.schema import Precision

    (tmp_path / "fp32").mkdir()
    (tmp_path / "fp16").mkdir()
    plain, _ = recorded(trainer, tmp_path / "fp32", monkeypatch)
    expected = np.load(tmp_path / "fp32" / plain.variable("GradNorm"))
    scaled = Precision(mode="fp16", init_scale=2.0**24, growth_interval=100)
    scenario, fitted = recorded(trainer, tmp_path / "fp16", monkeypatch, precision=scaled)
    norms = array(scenario, "GradNorm")
    skipped = fitted.summary["skipped_steps"]
    assert 0 < skipped < 16
    assert np.isnan(norms[:skipped]).all()
    assert np.isfinite(norms[skipped:]).all()
    assert norms[skipped] == pytest.approx(expected[0], rel=0.5), "the weights are the first ones"


def test_a_stopped_scenario_goes_on_with_all_of_its_state(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints lacked optimizer and scaler, and --resume was not looked at."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, fitted = recorded(trainer, tmp_path / "whole", monkeypatch)
    expected = {n: np.load(tmp_path / "whole" / whole.variable(n)) for n in (*ARRAYS, *TEST_ARRAYS)}
    recorded(trainer, tmp_path / "parts", monkeypatch, max_steps=7)
    out = tmp_path / "parts" / whole.checkpoints
    assert parsed(trainer, "--resume", str(out)).resume == str(out)
    # The end of a run that was cut short is tested, too: that point belongs to no epoch's end.
    for name in TEST_ARRAYS:
        (tmp_path / "parts" / whole.variable(name)).unlink()
    scenario, again = recorded(trainer, tmp_path / "parts", monkeypatch)
    assert again.summary["weights_sha256"] == fitted.summary["weights_sha256"]
    for name, values in expected.items():
        assert array(scenario, name).tolist() == values.tolist(), name


def test_initial_epoch_has_to_be_that_of_the_checkpoint(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, _ = recorded(trainer, tmp_path, monkeypatch, max_steps=8)
    more = ("--resume", str(scenario.checkpoints), "--initial-epoch")
    with pytest.raises(RuntimeError, match="--initial-epoch 2: the checkpoint is of epoch 1"):
        recorded(trainer, tmp_path, monkeypatch, *more, "2")
    _, fitted = recorded(trainer, tmp_path, monkeypatch, *more, "1")
    assert fitted.step == 16


def test_weights_are_saved_at_the_beginning_at_the_end_and_after_epochs(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, fitted = recorded(trainer, tmp_path, monkeypatch, "--save-epochs")

    def saved(when: str, prefix: str) -> Any:
        return torch.load(scenario.saved(when, prefix), weights_only=True)

    last = fitted.networks["model"].state_dict()
    first = saved("saved_initialization", "initialization")
    assert first.keys() == last.keys()
    assert not torch.equal(first["1.weight"], last["1.weight"])
    end = saved("saved_end_of_training", "end_of_training")
    assert torch.equal(end["1.weight"], last["1.weight"])
    assert torch.equal(saved("saved_epochs", "epoch_002")["1.weight"], last["1.weight"])
    assert not torch.equal(saved("saved_epochs", "epoch_001")["1.weight"], last["1.weight"])


# -- as a program ----------------------------------------------------------------------------------


def test_the_program_trains_to_the_end_and_evaluates(warm: Warm, tmp_path: Path) -> None:
    """There was an `exit()` before the training."""
    words = ["-a", "fc", "--dataname", "synthetic", "-b", "256", "--epochs", "1", "-w", "0",
             "--lr", "0.01", "--print-freq-ts", "2"]  # fmt: skip
    ended = train_example(warm, "classification", words, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (log,) = (tmp_path / "history" / "logs" / "synthetic" / "fc").glob("*.txt")
    assert ended.stdout == f"log: {log.relative_to(tmp_path)}\n", "the rest is for --logterminal"
    text = log.read_text()
    assert "_data_synthetic_arch_fc_init_kaimingn_GPUs_1_minib_256_opt_SGD+M_lr_0.01" in text
    assert "test: batch 2\ntest: batch 4\n" in text
    assert "finished at step 16 of 16" in text
    (out,) = (tmp_path / "history" / "checkpoints" / "synthetic" / "fc").iterdir()
    words += ["-e", "--resume", str(out), "--logterminal"]
    again = train_example(warm, "classification", words, tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    accuracy = curve(out, "eval/accuracy")[-1][1]
    assert f"accuracy {accuracy:.4f}" in again.stdout


def test_gpus_are_chosen_before_torch_is_imported(tmp_path: Path) -> None:
    """They were chosen after it."""
    from support.environment import REPOSITORY

    (tmp_path / "torch.py").write_text(
        "import os\nraise SystemExit('GPUs ' + os.environ.get('CUDA_VISIBLE_DEVICES', 'all') + "
        "', local rank ' + os.environ.get('LOCAL_RANK', 'none'))\n"
    )
    path = f"{tmp_path}:{REPOSITORY}"
    words = ["--gpu-ids", "2", "3", "--local_rank", "1"]
    ended = run_example("classification", words, tmp_path, PYTHONPATH=path)
    assert (ended.returncode, ended.stderr) == (1, "GPUs 2,3, local rank 1\n")
