"""A task from outside the package, where the job is submitted: without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.environment import clean_environ
from support.outside import hpc_amp, write_installed, write_job, write_package

from hpc_amp.config.load import load_job
from hpc_amp.config.schema import Train, to_plain
from hpc_amp.errors import ConfigError
from hpc_amp.registry import Registry
from hpc_amp.tasks.build import task_class
from hpc_amp.tasks.registry import TASKS, TaskError, config_class, job_from_plain

NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_package(tmp_path)
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """A search path on which torch cannot be imported, as on a login node."""
    folder = tmp_path / "no_torch"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(NO_TORCH)
    return folder


def test_a_job_with_it_is_valid_where_there_is_no_torch(project: Path, without_torch: Path) -> None:
    result = hpc_amp(project, "validate", "job.yaml", "train.discs.width=6", path=without_torch)
    assert result.returncode == 0, result.stderr


def test_its_keys_are_read_like_all_others(project: Path) -> None:
    train = load_job(Path("job.yaml"), ["train.discs={noise: 0.1}"]).job.train
    assert train.task == "discs.task:Segmentation"
    assert (train.discs.width, train.discs.noise, train.discs.images) == (4, 0.1, 64)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.discs.width=0", "train.discs.width: 0 is too small: it must be at least 1"),
        ("train.discs.wdith=2", "unknown key train.discs.wdith; did you mean train.discs.width?"),
        ("train.model=resnet8", "unknown key train.model; `model` is a key of the task class"),
        ("train.data.root=x", "train.data: discs.task:Segmentation does not use it; remove it"),
        (
            "train.trackers=[csv]",
            "train.trackers: 'csv' is not one of tensorboard, wandb, mlflow; install the",
        ),
        ("train.task=other", "'other' is not one of classification, coco_funit, dcgan, "),
        ("train.task=discs.other:A", "there is no module discs.other in {here}, nor among the ins"),
        ("train.task=other.task:A", "there is no module other.task in {here}, nor among the insta"),
        ("train.task=discs.task:Other", "{here}/discs/task.py has no class Other"),
        ("code=null", "there is no module discs.task among the installed packages; name the fold"),
        ("code=nowhere", "code: there is no folder nowhere; it is looked up in {here}/elsewhere"),
    ],
)
def test_an_error_is_one_line(project: Path, override: str, message: str) -> None:
    elsewhere = project / "elsewhere"  # `python -m` has the working directory on its search path
    elsewhere.mkdir()
    words = ("validate", "../job.yaml", f"code={project}", override)
    result = hpc_amp(elsewhere, *words)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(("hpc-amp: override ", "hpc-amp: ../job.yaml:6: "))
    assert message.format(here=project) in line


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.py", "import torch\n", "discs.config imports torch, which this Python does not"),
        ("__init__.py", "import torch\n", "discs.task imports torch, which this Python does not"),
        ("config.py", "import nowhere\n", "discs.config cannot be imported: No module named 'no"),
        ("config.py", "1 +\n", "discs.config cannot be imported: SyntaxError: invalid syntax"),
        ("task.py", "1 +\n", "discs.task cannot be imported: SyntaxError: invalid syntax"),
        ("config.py", "SegmentationConfig = 3\n", "Config does not extend hpc_amp.config.schema.T"),
        (
            "config.py",
            "from hpc_amp.config.schema import Train\nclass SegmentationConfig(Train):\n  a: int\n",
            "discs.config:SegmentationConfig is not a dataclass; write @dataclass(kw_only=True, ",
        ),
        (
            "config.py",
            "import dataclasses, pathlib\nfrom hpc_amp.config.schema import Train\n"
            "@dataclasses.dataclass(kw_only=True, frozen=True)\n"
            "class SegmentationConfig(Train):\n  a: pathlib.Path = None\n",
            "SegmentationConfig: train.a cannot have the type <class 'pathlib.Path'>",
        ),
    ],
)
def test_a_package_that_cannot_be_used_is_named(
    project: Path, without_torch: Path, file: str, text: str, message: str
) -> None:
    (project / "discs" / file).write_text(text)
    result = hpc_amp(project, "validate", "job.yaml", path=without_torch)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: job.yaml:6: train.task: ")
    assert message in line


def test_a_task_without_keys_needs_no_configuration(project: Path) -> None:
    Path("alone.py").write_text("import torch\nclass Alone: ...\n")
    Path("job.yaml").write_text("name: x\ncode: .\ntrain: {task: alone:Alone, epochs: 2}\n")
    train = load_job(Path("job.yaml")).job.train
    assert type(train) is Train and train.epochs == 2


def test_two_folders_with_a_package_of_one_name_do_not_mix(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_package(other)
    config = other / "discs" / "config.py"
    config.write_text(config.read_text().replace("width: Annotated", "breadth: Annotated"))
    for _ in range(2):
        assert load_job(Path("job.yaml")).job.train.discs.width == 4
        with pytest.raises(ConfigError, match=r"unknown key train\.discs\.width"):
            load_job(Path("job.yaml"), [f"code={other}"])


def test_a_class_that_is_no_task_is_refused_in_the_job(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(project)
    Path("wrong.py").write_text("class Wrong: ...\n")
    with pytest.raises(TaskError, match=r"wrong:Wrong is not a task; write a class that extends"):
        task_class("wrong:Wrong")
    with pytest.raises(TaskError, match=r"there is no module absent"):
        task_class("absent:Wrong")


def test_the_job_comes_back_from_json(project: Path) -> None:
    job = load_job(Path("job.yaml")).job
    assert job_from_plain(to_plain(job), project) == job


def test_its_keys_are_documented_by_the_same_generator(project: Path) -> None:
    words = ("-m", "hpc_amp.config.reference", "--task", "discs.task:Segmentation", ".")
    shown = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=clean_environ(), check=True
    ).stdout
    assert "### `train` of the task `discs.task:Segmentation`" in shown
    assert "It does not use `data`." in shown
    assert (
        "| `width` | whole number, at least 1 | `8` | Channels of the network. [*Fixed*]" in shown
    )


def test_an_installed_package_gives_it_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed"
    write_installed(installed)
    write_job(tmp_path)
    words = ("validate", "job.yaml", "code=null", "train.task=segmentation", "train.trackers=[csv]")
    assert hpc_amp(tmp_path, *words).returncode == 2

    result = hpc_amp(tmp_path, *words, path=installed)
    assert result.returncode == 0, result.stderr
    listed = hpc_amp(tmp_path, "validate", "job.yaml", "train.task=segmentatio", path=installed)
    assert "munit, pix2pixhd, spade, unit, vid2vid, wc_vid2vid, segmentation," in listed.stderr


@pytest.mark.parametrize("name", TASKS.own())
def test_each_task_of_this_package_has_its_configuration(name: str) -> None:
    assert config_class(name)(task=name).task == name
    assert issubclass(task_class(name), object)
    assert task_class(name).best is not None


def test_a_registry_gives_the_place_without_an_import() -> None:
    registry: Registry[object] = Registry("nothing", "builtins:object", {"a": "no.such:Thing"})
    assert registry.place("a") == "no.such:Thing"
    with pytest.raises(KeyError):
        registry.place("b")
