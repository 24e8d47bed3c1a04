"""`examples/dcgan/main_amp.py`, and the job files of DCGANs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.environment import REPOSITORY
from support.training import CPU

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import load_job
from hpc_amp.distributed.world import World
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.base import DataError
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.dcgan.config import DcganConfig
from hpc_amp.train.settings import SettingError, check_settings

EXAMPLE = REPOSITORY / "examples" / "dcgan"


def main_amp(monkeypatch: pytest.MonkeyPatch, *flags: str) -> DcganConfig:
    """The settings that it makes of flags."""
    monkeypatch.setattr("sys.argv", ["main_amp.py", *flags])
    spec = importlib.util.spec_from_file_location("main_amp", EXAMPLE / "main_amp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.settings(module.parse())


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plain = main_amp(monkeypatch, "--device", "cpu")
    assert (plain.task, plain.data.name, plain.seed) == ("dcgan", "synthetic", 2809)
    assert (plain.batch_size, plain.epochs, plain.max_steps) == (64, 25, None)
    assert (plain.gan.image_size, plain.gan.latent, plain.gan.lr) == (64, 100, 2e-4)
    assert plain.gan.betas == (0.5, 0.999)
    assert plain.precision.mode == "O0", "no fp16 on a CPU without being asked"
    flags = "--dataset cifar10 --dataroot d --workers 3 --batchSize 8 --imageSize 32 --nz 7 --ngf 5"
    flags += " --ndf 6 --niter 2 --lr 0.1 --beta1 0.25 --netG g.pt --netD d.pt --manualSeed 4"
    flags += " --opt_level O1 --device cpu --dry-run"
    made = main_amp(monkeypatch, *flags.split())
    assert (made.data.name, made.data.root, made.data.workers) == ("cifar10", "d", 3)
    assert (made.batch_size, made.epochs, made.max_steps, made.seed) == (8, 2, 1, 4)
    gan = made.gan
    assert (gan.image_size, gan.latent, gan.lr, gan.betas) == (32, 7, 0.1, (0.25, 0.999))
    assert (gan.generator_width, gan.discriminator_width) == (5, 6)
    assert (gan.generator_weights, gan.discriminator_weights) == ("g.pt", "d.pt")
    assert made.precision.mode == "O1"
    assert main_amp(monkeypatch, "--precision", "bf16").precision.mode == "bf16"
    assert main_amp(monkeypatch, "--opt_level", "O2").precision.mode == "O2"
    assert main_amp(monkeypatch, "--opt_level", "O2").gan.eps == 1e-8
    assert main_amp(monkeypatch, "--opt_level", "O3").gan.eps == 1e-4
    check_settings(plain, World())
    check_settings(made, World())


@pytest.mark.parametrize(
    ("dataset", "samples"), [("lsun", 3), ("folder", 6), ("lfw", 6), ("imagenet", 3)]
)
def test_the_example_reads_folders(
    dataset: str, samples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LSUN's division into training and test images, ImageNet's, and classes alone."""
    names = {"imagenet": ("train/a", "val/a")}.get(dataset, ("tower_train", "tower_val"))
    for name in names:
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for shade in range(3):
            Image.new("RGB", (20, 24), (60 * shade,) * 3).save(folder / f"{shade}.png")
    flags = ["--dataset", dataset, "--classes", "tower", "--dataroot", str(tmp_path / "images")]
    for _ in ("at first", "on a resume"):
        train = main_amp(
            monkeypatch, *flags, "--imageSize", "16", "--batchSize", "3", "--workers", "0",
            "--outf", str(tmp_path / "out"),
        )  # fmt: skip
        task = build_task(train, World(), CPU)
        assert task.prepare_data().samples == samples
        real = [images for kind, images in task.evaluation_batches() if kind == "real"]
        assert torch.cat(real).shape == (samples, 3, 16, 16)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--imageSize", "48", "--dry-run"], "image_size: 48 is not a power of two"),
        (["--dataset", "lfw", "--dataroot", "nowhere"], "--dataroot: there is no folder"),
    ],
)
def test_wrong_settings_are_one_line(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SettingError, DataError), match=message):
        check_settings(main_amp(monkeypatch, *flags), World())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ngpu", "2"], "start it with torchrun --nproc-per-node 2"),
        (["--opt_level", "01"], "argument --opt_level: invalid choice: '01'"),
        (["--lr", "fast"], "invalid float value: 'fast'"),
        (["--outf", "."], "has checkpoints: add --resume, or name another --outf"),
    ],
)
def test_wrong_flags_are_one_line(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(SystemExit) as caught:
        main_amp(monkeypatch, *flags)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("main_amp.py: ")
    assert message in line


# -- job files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["configs/dcgan.yaml", "examples/dcgan/job.yaml"])
def test_the_job_files_are_valid(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    check_job(load_job(Path(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "task: dcgan\n  model: resnet8",
            "unknown key train.model; `model` is a key of the task",
        ),
        ("task: dcgan\n  optimizer: {lr: 1}", "train.optimizer: dcgan does not use it"),
        (
            "task: dcgan\n  label_smoothing: 0.1",
            "unknown key train.label_smoothing; `label_smoothing` is a",
        ),
        ("gan: {lr: 1}", "unknown key train.gan; `gan` is a key of the task dcgan"),
        ("task: dcgan\n  gan: {image_size: 40}", "40 is not a power of two from 16 on"),
        ("task: dcgan\n  batch_size: 9\njob: {gpus_per_node: 2}", "9 does not divide by world"),
    ],
)
def test_settings_of_another_task_are_refused(text: str, message: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\ntrain:\n  {text}\n")
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_job(load_job(job))
