"""`generate --finetune`: a copy of few-shot vid2vid learns from the references of a sequence."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fs_vid2vid import fs_vid2vid, plain_train
from support.gan_checks import merged
from support.paired import plain_train as plain_paired
from support.training import CPU, settings
from support.vid2vid import plain_train as plain_video
from support.video import write_videos

from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.config.schema import Job, Precision, to_plain
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError
from hpc_amp.gan.data.batches import PairedBatch
from hpc_amp.gan.inputs import check_options
from hpc_amp.tasks.build import build_task
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.finetuning import FineTuning
from hpc_amp.train.generate import load_generator, make_request, write_images
from hpc_amp.train.state import weights_digest

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, sequences of 4 frames; `run`, which was trained on them for an epoch;
    and `style`, two references of each sequence."""
    folder = tmp_path_factory.mktemp("finetuning")
    write_videos(folder / "data", sequences=3)
    for part in ("A", "B", "inst"):
        for scene in range(3):
            target = folder / "style" / part / f"scene {scene}"
            target.mkdir(parents=True)
            for name in ("frame-001.png", "frame-003.png"):
                shutil.copy(folder / "data" / f"test_{part}" / f"scene {scene}" / name, target)
    keys: dict[str, Any] = {
        "images": {"name": "folder", "root": str(folder / "data")},
        "fs_vid2vid": {"losses": {"reference_flow": 0.0, "reference_mask": 0.0}},
        "epochs": 1,
        "batch_size": 3,
    }
    made = fs_vid2vid(folder / "run", **keys)
    made.fit()
    made.tracker.close()
    plain = {**to_plain(Job(name="few")), "train": plain_train(**keys)}
    (folder / "run" / "job.json").write_text(json.dumps({"job": plain, "site": "local"}))
    return folder


def files_below(folder: Path) -> Files:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.png")}


def make(trained: Path, output: Path, **options: Any) -> Files:
    """What `generate` writes; with the references of each sequence, if no others are named."""
    data = trained / "data"
    inputs = options.pop("inputs", data / "test_A")
    given = {"style": trained / "style", "instances": data / "test_inst", **options}
    load_generator(trained / "run").make(inputs, output, **given)
    return files_below(output)


def of(scene: int, files: Files) -> Files:
    return {name: pixels for name, pixels in files.items() if name.startswith(f"scene {scene}/")}


@pytest.fixture
def tunings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The random keys of all fine-tunings."""
    seen: list[Any] = []
    run = FineTuning.run

    def noted(self: Any, references: Any, steps: int, *key: Any) -> Any:
        seen.append(key)
        return run(self, references, steps, *key)

    monkeypatch.setattr(FineTuning, "run", noted)
    return seen


def test_frames_change_and_the_loaded_weights_do_not(trained: Path, tmp_path: Path) -> None:
    data = trained / "data"
    loaded = load_generator(trained / "run")
    before = weights_digest(loaded.networks)

    def frames(name: str, **options: Any) -> Files:
        loaded.make(
            data / "test_A",
            tmp_path / name,
            style=trained / "style",
            instances=data / "test_inst",
            **options,
        )
        return files_below(tmp_path / name)

    usual, tuned = frames("usual"), frames("tuned", finetune=2)
    assert weights_digest(loaded.networks) == before
    assert not any(p.requires_grad for p in loaded.networks["generator"].parameters())
    assert len(tuned) == 12 and all(tuned[name] != usual[name] for name in usual)
    assert frames("usual again") == usual
    assert frames("tuned again", finetune=2) == tuned
    assert frames("other steps", finetune=1) != tuned
    assert frames("other seed", finetune=2, seed=1) != tuned


def test_a_sequence_is_the_same_alone_and_after_others(trained: Path, tmp_path: Path) -> None:
    together = make(trained, tmp_path / "together", finetune=2)
    shutil.copytree(trained / "data" / "test_A" / "scene 2", tmp_path / "maps" / "scene 2")
    alone = make(trained, tmp_path / "alone", inputs=tmp_path / "maps", finetune=2)
    assert alone == of(2, together) and len(alone) == 4


def test_two_ranks_make_what_one_makes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tunings: list[Any]
) -> None:
    """Also where sequences on both ranks have the same references."""
    data, style = trained / "data", tmp_path / "style"
    for part in ("A", "B", "inst"):
        shutil.copytree(trained / "style" / part / "scene 1", style / part / "scene 1")
        for file in (trained / "style" / part / "scene 0").iterdir():
            shutil.copy(file, style / part)
    one = make(trained, tmp_path / "one", style=style, finetune=2)
    assert len(one) == 12
    assert tunings == [(0, "B"), (0, "scene 1")], "sequences with the same references share a copy"
    assert of(0, one) == of(0, make(trained, tmp_path / "b", style=style, finetune=2))
    tunings.clear()
    monkeypatch.setattr("hpc_amp.data.together.from_main", lambda world, find: find())
    loaded = load_generator(trained / "run")
    for rank in range(2):
        request = make_request(
            World(rank=rank, size=2), data / "test_A", tmp_path / "two", style,
            data / "test_inst", None, None, 0, 8, None, 2,
        )  # fmt: skip
        write_images(loaded, request, tmp_path / "two", lambda made: None)
    assert tunings == [(0, "B"), (0, "scene 1")], "scenes 0 and 2, and scene 1"
    assert files_below(tmp_path / "two") == one


# -- a step ----------------------------------------------------------------------------------------


def task_and_references(count: int = 2, size: int = 16, **train: Any) -> tuple[Any, PairedBatch]:
    """References with a colour for each label."""
    plain = merged(plain_train(**train), {"images": {"image_size": [size]}})
    task = build_task(settings(**plain), World(), CPU)
    labels = torch.randint(4, (count, size, size), generator=torch.Generator().manual_seed(5))
    return task, PairedBatch(
        colours_of(labels),
        torch.arange(count),
        labels=labels,
        instances=(labels > 1).long(),
    )


def places_of(labels: torch.Tensor) -> dict[bytes, set[tuple[int, bool, int, int]]]:
    """Of all maps that a move of up to three pixels makes of label maps [N, H, W]: the numbers of
    the label maps, whether they are mirrored, and how far they are moved down and to the right."""
    places: dict[bytes, set[tuple[int, bool, int, int]]] = {}
    for number, mirrored in itertools.product(range(len(labels)), (False, True)):
        shown = labels[number].flip(-1) if mirrored else labels[number]
        for down, right in itertools.product(range(-3, 4), repeat=2):
            moved = shown.roll((down, right), (-2, -1)).numpy().tobytes()
            places.setdefault(moved, set()).add((number, mirrored, down, right))
    return places


def colours_of(labels: torch.Tensor) -> torch.Tensor:
    """Labels [..., H, W] as images [..., 3, H, W]."""
    return torch.stack((labels / 2 - 1, 1 - labels / 4, labels / 3 - 0.5), -3)


@pytest.mark.parametrize("flip", [True, False])
def test_a_step_shows_a_reference_that_was_moved(flip: bool) -> None:
    """With its label map, and all references as they are."""
    task, references = task_and_references(images={"flip": flip})
    stream = torch.Generator().manual_seed(0)
    assert references.labels is not None
    places = places_of(references.labels)
    seen = set()
    for _ in range(100):
        batch = task.finetuning_batch(references, stream)
        labels = batch.labels[0, 0]
        assert torch.equal(batch.images[0, 0], colours_of(labels))
        assert torch.equal(batch.instances[0, 0], (labels > 1).long())
        assert torch.equal(batch.references[0], references.images)
        assert torch.equal(batch.reference_labels[0], references.labels)
        seen |= places[labels.numpy().tobytes()]
    numbers, mirrors, downs, rights = (set(parts) for parts in zip(*seen, strict=True))
    assert numbers == {0, 1} and mirrors == ({False, True} if flip else {False})
    assert downs == rights == {-2, -1, 0, 1, 2}


def test_one_reference_is_its_own() -> None:
    task, references = task_and_references(count=1)
    batch = task.finetuning_batch(references, torch.Generator().manual_seed(0))
    assert batch.references.shape == (1, 1, 3, 16, 16) and batch.images.shape == (1, 1, 3, 16, 16)


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O1", "O2"])
def test_the_loss_falls(mode: str) -> None:
    """In fp16, steps that overflow do not count."""
    precision = {"mode": mode, **({"init_scale": 2.0**22} if mode in ("fp16", "O1") else {})}
    task, references = task_and_references(size=12, precision=precision)
    networks = task.generation_networks()
    before = weights_digest(networks)
    policy = PrecisionPolicy.create(task.train.precision, CPU)
    tuning = FineTuning(task, networks, policy)
    found = tuning.run(references, 16, 0, "scene")
    assert set(found) == {"perceptual"}
    losses = found["perceptual"]
    assert losses.shape == (16,) and losses.isfinite().all()
    assert losses[-4:].mean() < 0.9 * losses[:4].mean()
    assert weights_digest(networks) == before != weights_digest(tuning.networks)
    generator = tuning.networks["generator"]
    assert not generator.training
    assert all(p.dtype == torch.float32 and p.grad is None for p in generator.parameters())
    again = tuning.run(references, 2, 0, "scene")
    assert torch.equal(again["perceptual"], losses[:2]), "it begins with the weights of the run"


def test_what_draws_learns_at_the_rate_of_the_generator() -> None:
    """Attention and flows stay as they are; without a perceptual loss, l1 takes its place."""
    task, references = task_and_references(fs_vid2vid={"losses": {"perceptual": 0.0}})
    networks = task.generation_networks()
    tuning = FineTuning(task, networks, PrecisionPolicy.create(Precision(mode="fp32"), CPU))
    assert set(tuning.run(references, 1, 0)) == {"l1"}
    assert task.finetuning().optimizer.lr == task.train.adversarial.generator_lr == 0.002
    before, after = (
        dict(each["generator"].named_parameters()) for each in (networks, tuning.networks)
    )
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"code", "head", "up", "last"}


def test_losses_that_are_not_finite_end_it() -> None:
    for mode, message in (
        ("fp32", "the loss perceptual is not finite in step 1"),
        ("fp16", "floor"),
    ):
        task, references = task_and_references(precision=mode)
        lost = dataclasses.replace(references, images=references.images * torch.nan)
        policy = PrecisionPolicy.create(task.train.precision, CPU)
        with pytest.raises(TrainingError, match=message):
            FineTuning(task, task.generation_networks(), policy).run(lost, 2, 0)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "given", "message"),
    [
        (plain_train(), {"finetune", "instances"}, "images of the class to draw: .* in --style"),
        (plain_video(), {"finetune", "instances"}, "this vid2vid does not use --finetune"),
        (plain_paired("spade"), {"finetune", "instances"}, "this spade does not use --finetune"),
    ],
)
def test_models_without_references_are_refused(
    train: dict[str, Any], given: set[str], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        check_options(settings(**train), given)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)


def test_what_cannot_be_tuned_is_said_before_a_frame_is_made(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 steps of fine-tuning are too few"):
        make(trained, tmp_path / "out", finetune=0)
    style = tmp_path / "style"
    shutil.copytree(trained / "style", style)
    shutil.rmtree(style / "B" / "scene 2")
    with pytest.raises(InputError, match=r"there are no references for .*scene 2"):
        make(trained, tmp_path / "out", style=style, finetune=1)
    assert not (tmp_path / "out").exists()
