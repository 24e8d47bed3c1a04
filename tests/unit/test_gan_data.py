"""Data of conditional generators: the same samples and random numbers for every division among
ranks, from any step on; common changes of the members of a pair; threads that end."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.gandata import evaluated, write_coordinates, write_image, write_map

from hpc_amp.config.schema import Train
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError
from hpc_amp.gan.data.batches import PairedBatch, condition, edges, normal, sample_seeds
from hpc_amp.gan.data.config import (
    ClassData,
    PairedData,
    SyntheticClasses,
    SyntheticDomains,
    SyntheticSamples,
    UnpairedData,
)
from hpc_amp.gan.data.training import (
    Prepared,
    prepare_classes,
    prepare_paired,
    prepare_unpaired,
)

CPU = torch.device("cpu")
Preparation = Callable[..., Prepared[Any]]


def paired(root: Path, train: Train, world: World) -> Prepared[Any]:
    """Pairs in files: a step of 4 of them is read by two threads."""
    if not (root / "train_img").is_dir():
        for split, count in (("train", 14), ("test", 5)):
            for number in range(count):
                write_coordinates(root / f"{split}_img/{number:02}.png", 40, 24)
                write_map(root / f"{split}_label/{number:02}.png", number % 6, (40, 24))
                write_map(root / f"{split}_inst/{number:02}.png", number, (40, 24))
    data = PairedData(
        name="folder", root=str(root), image_size=[8, 16], load_size=[12, 20], instances=True,
        workers=2,
    )  # fmt: skip
    return prepare_paired(data, train, world, CPU)


def unpaired(root: Path, train: Train, world: World) -> Prepared[Any]:
    """Two domains of different size in memory."""
    data = UnpairedData(
        image_size=[8], load_size=[10], synthetic=SyntheticDomains(train=14, test=5, styles=2)
    )
    return prepare_unpaired(data, train, world, CPU)


def classes(root: Path, train: Train, world: World) -> Prepared[Any]:
    """Classes in memory."""
    config = SyntheticClasses(classes=5, train=7, test=5)
    data = ClassData(image_size=[8], references=2, unseen=2, synthetic=config)
    return prepare_classes(data, train, world, CPU)


KINDS: list[Preparation] = [paired, unpaired, classes]


@pytest.fixture
def prepare(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Prepared[Any]]]:
    """Prepares the data of a kind for a rank, and ends its threads."""
    made = []

    def prepared(rank: int = 0, size: int = 1, **train: Any) -> Prepared[Any]:
        settings = Train(**{"batch_size": 4, "eval_batch_size": 2, "seed": 3, **train})
        # A world of one here: there is no process group. The ranks are told apart afterwards.
        data = request.param(tmp_path, settings, World())
        object.__setattr__(data.training.place, "world", World(rank=rank, size=size))
        made.append(data)
        return data

    yield prepared
    for data in made:
        data.training.close()


def together(batches: list[Any]) -> dict[str, torch.Tensor]:
    """Batches as one, by the names of the tensors."""
    names = [each.name for each in fields(batches[0]) if getattr(batches[0], each.name) is not None]
    return {name: torch.cat([getattr(batch, name) for batch in batches]) for name in names}


def assert_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("prepare", KINDS, indirect=True)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_samples_are_the_same_for_every_division(prepare: Preparation, accumulate: int) -> None:
    whole = list(prepare().training.epoch(1))
    shares = [prepare(rank, 2, accumulate=accumulate).training.epoch(1) for rank in range(2)]

    steps = list(zip(*shares, strict=True))
    assert len(steps) == len(whole) >= 3
    for ranks, step in zip(steps, whole, strict=True):
        assert all(len(share) == accumulate for share in ranks)
        assert_same(together([batch for share in ranks for batch in share]), together(step))


@pytest.mark.parametrize("prepare", KINDS, indirect=True)
def test_any_step_can_be_the_first(prepare: Preparation) -> None:
    data = prepare(1, 2, accumulate=2)
    whole = list(data.training.epoch(4))
    for start in range(len(whole) + 1):
        rest = list(prepare(1, 2, accumulate=2).training.epoch(4, start))
        assert len(rest) == len(whole) - start
        for step, expected in zip(rest, whole[start:], strict=True):
            assert_same(together(step), together(expected))


@pytest.mark.parametrize("prepare", KINDS, indirect=True)
def test_epochs_and_samples_differ(prepare: Preparation) -> None:
    training = prepare().training
    seeds = [batch.seeds for epoch in range(2) for step in training.epoch(epoch) for batch in step]
    assert len(torch.cat(seeds).unique()) == 2 * training.steps_per_epoch * 4

    first, second = (together(next(training.epoch(epoch))) for epoch in range(2))
    assert any(not torch.equal(first[name], second[name]) for name in first if name != "seeds")


@pytest.mark.parametrize("prepare", KINDS, indirect=True)
def test_an_evaluation_is_the_same_for_every_number_of_ranks(prepare: Preparation) -> None:
    one = prepare()
    whole = list(one.evaluation())
    assert all(len(batch) <= 2 for batch in whole)
    samples = sum(map(len, whole))
    assert samples in (5, 10), "5 of each domain, or of each of two held-out classes"
    assert_same(together(list(one.evaluation())), together(whole))

    shares = [list(prepare(rank, 3).evaluation()) for rank in range(3)]
    assert {sum(map(len, share)) for share in shares} <= {
        samples // 3, -(-samples // 3)
    }  # fmt: skip
    assert_same(together([batch for share in shares for batch in share]), together(whole))
    # Rank 0 draws pictures: it has a sample if there is one.
    many = [list(prepare(rank, 1000).evaluation()) for rank in (0, 999)]
    assert many[0]
    assert sum(map(len, many[0])) == 1
    assert not many[1]


def test_random_numbers_of_a_sample_depend_on_its_seed_alone() -> None:
    seeds = sample_seeds(0, 0, range(6))
    numbers = normal(seeds, (3, 2), CPU)
    assert numbers.shape == (6, 3, 2)
    assert torch.equal(normal(seeds[2:4], (3, 2), CPU), numbers[2:4])
    assert not torch.equal(normal(seeds, (3, 2), CPU, "other"), numbers)
    assert len(numbers.unique()) == numbers.numel()
    many = normal(sample_seeds(1, 5, range(4000)), (4,), CPU)
    assert abs(many.mean()) < 0.03 and abs(many.std() - 1) < 0.03


def test_condition_has_a_channel_for_each_label_and_for_edges() -> None:
    data = PairedData(labels=3, ignore_label=255, instances=True)
    labels = torch.tensor([[[0, 1], [2, 3]]])
    batch = PairedBatch(
        images=torch.zeros(1, 3, 2, 2), seeds=torch.zeros(1), labels=labels,
        instances=torch.tensor([[[1, 1], [1, 1]]]),
    )  # fmt: skip

    shown = condition(batch, data)

    assert shown.shape == (1, data.condition_channels, 2, 2)
    assert torch.equal(shown[:, :4].argmax(1), labels) and torch.equal(
        shown[:, :4].sum(1), torch.ones(1, 2, 2)
    )
    assert not shown[:, 4].any()


def test_edges_lie_on_both_sides_of_where_instances_meet() -> None:
    instances = torch.tensor([[[5, 5, 7, 7], [5, 5, 7, 7], [5, 5, 5, 5]]])
    assert edges(instances).int().tolist() == [[[[0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]]]


@pytest.mark.parametrize("load_size", [None, [48], [40, 60]])
def test_members_of_a_pair_show_the_same_part(tmp_path: Path, load_size: list[int] | None) -> None:
    """The image tells where each pixel was, and so do the maps."""
    width, height = 72, 48
    pixels = write_coordinates(tmp_path / "train_img/one.png", width, height)
    for folder, channel in (("label", 0), ("inst", 1)):
        (tmp_path / f"train_{folder}").mkdir()
        Image.fromarray(pixels[..., channel].numpy()).save(tmp_path / f"train_{folder}/one.png")
    for split in ("img", "label", "inst"):
        (tmp_path / f"test_{split}").symlink_to(tmp_path / f"train_{split}")
    data = PairedData(
        name="folder", root=str(tmp_path), image_size=[32, 48], load_size=load_size, labels=width,
        instances=True, workers=0,
    )  # fmt: skip
    prepared = prepare_paired(data, Train(batch_size=1), World(), CPU)

    corners, mirrored = set(), set()
    for epoch in range(12):
        ((batch,),) = prepared.training.epoch(epoch)
        column, row, _ = (batch.images[0] + 1) * 127.5
        # Interpolation lies beside the nearest pixel by less than one step of the sampling.
        assert (column - batch.labels[0]).abs().max() <= width / 40
        assert (row - batch.instances[0]).abs().max() <= width / 40
        corners.add((float(column.min().round()), float(row.min().round())))
        mirrored.add(bool(column[0, 0] > column[0, -1]))
    assert mirrored == {True, False}
    assert len(corners) == 1 if load_size is None else len(corners) > 4

    (batch,) = prepared.evaluation()
    column, row, _ = (batch.images[0] + 1) * 127.5
    assert float(column[0, 0]) < 2 and float(column[0, -1]) > width - 3  # all of it, unmirrored


def test_an_evaluation_that_keeps_the_ratio_shows_the_middle(tmp_path: Path) -> None:
    for domain in "AB":
        for split in ("train", "test"):
            write_coordinates(tmp_path / f"{split}{domain}/one.png", 100, 40)
    data = UnpairedData(
        name="folder", root=str(tmp_path), image_size=[20], load_size=[24], workers=0
    )
    (batch,) = prepare_unpaired(data, Train(batch_size=1), World(), CPU).evaluation()
    column, row, _ = (batch.a[0] + 1) * 127.5
    assert 30 <= float(column.min()) <= 32 and 67 <= float(column.max()) <= 69
    assert float(row.min()) < 2 and float(row.max()) > 37


def test_the_smaller_domain_begins_again_in_another_order(tmp_path: Path) -> None:
    for domain, count in (("A", 7), ("B", 3)):
        for split in ("train", "test"):
            for number in range(count):
                write_image(tmp_path / f"{split}{domain}/{number}.png", (number * 10, 0, 0))
    data = UnpairedData(name="folder", root=str(tmp_path), image_size=[8], workers=0)
    prepared = prepare_unpaired(data, Train(batch_size=1), World(), CPU)
    assert prepared.training.samples == evaluated(prepared) == 7
    for size in (1, 2, 3):
        shares = [prepare_unpaired(data, Train(batch_size=6), World(rank=rank, size=size), CPU)
                  for rank in range(size)]  # fmt: skip
        batches = [batch for share in shares for batch in share.evaluation()]
        for place, count in enumerate((7, 3)):
            images = [(batch.a, batch.b)[place][batch.first[:, place]] for batch in batches]
            red = torch.cat(images)[:, 0, 0, 0]
            assert ((red + 1) * 12.75).round().tolist() == list(range(count)), "each one once"

    orders = set()
    for epoch in range(6):
        batches = [step[0] for step in prepared.training.epoch(epoch)]
        a, b = (
            [round(float(each[0, 0, 0, 0] + 1) * 12.75) for each in images]
            for images in ([batch.a for batch in batches], [batch.b for batch in batches])
        )
        assert sorted(a) == list(range(7))
        assert sorted(b[:3]) == sorted(b[3:6]) == [0, 1, 2]
        orders |= {tuple(b[:3]), tuple(b[3:6])}
    assert len(orders) > 2


def test_style_and_content_are_of_different_classes() -> None:
    config = SyntheticClasses(classes=6, train=8, test=4)
    data = ClassData(image_size=[8], references=3, unseen=2, synthetic=config)
    prepared = prepare_classes(data, Train(batch_size=8), World(), CPU)
    assert (len(prepared.classes), len(prepared.unseen)) == (4, 2)

    batches = together([batch for step in prepared.training.epoch(0) for batch in step])
    assert (batches["content_class"] != batches["style_class"]).all()
    assert set(batches["style_class"].tolist()) == set(range(4))
    assert batches["style"].shape[1:] == (3, 3, 8, 8)
    first, second, third = batches["style"].unbind(1)
    assert not any(
        (one == other).flatten(1).all(1).any()
        for one, other in itertools.combinations((first, second, third), 2)
    )

    shown = together(list(prepared.evaluation()))
    assert shown["style_class"].tolist() == [4] * 4 + [5] * 4
    assert (shown["content_class"] < 4).all()
    assert len(shown["style"][:, 0].flatten(1).unique(dim=0)) == 8  # each image once


# ---- threads -------------------------------------------------------------------------------------


@pytest.fixture
def readers() -> Callable[[], list[threading.Thread]]:
    """The threads that a test has started and that read; those of earlier tests may be left."""
    before = set(threading.enumerate())

    def now() -> list[threading.Thread]:
        new = set(threading.enumerate()) - before
        return [each for each in new if each.name.startswith("hpc-amp-reader")]

    return now


@pytest.mark.parametrize("prepare", [paired], indirect=True)
def test_threads_end(prepare: Preparation, readers: Callable[[], list[threading.Thread]]) -> None:
    data = prepare()
    steps = data.training.epoch(0)
    next(steps)
    assert len(readers()) == 2

    data.training.close()

    assert not readers()


def test_an_error_is_raised_at_the_step_that_needs_the_file(
    tmp_path: Path, readers: Callable[[], list[threading.Thread]]
) -> None:
    for number in range(40):
        for folder in ("trainA", "trainB", "testA", "testB"):
            write_image(tmp_path / f"{folder}/{number:02}.png", (number, 0, 0))
    data = UnpairedData(name="folder", root=str(tmp_path), image_size=[8], workers=2)
    prepared = prepare_unpaired(data, Train(batch_size=2), World(), CPU)
    order = prepared.training.set.order(0, 0)[:, 0].tolist()
    (tmp_path / f"trainA/{order[10]:02}.png").write_bytes(b"no image")
    steps = prepared.training.epoch(0)

    for _ in range(5):
        next(steps)
    with pytest.raises(DataError, match=rf"trainA/{order[10]:02}\.png cannot be read"):
        next(steps)
    prepared.training.close()
    assert not readers()


def test_bad_sizes_are_one_line() -> None:
    def message(data: PairedData, **train: Any) -> str:
        with pytest.raises(InputError) as error:
            prepare_paired(data, Train(**train), World(), CPU)
        return str(error.value)

    small = SyntheticSamples(train=4, test=2)
    assert "batch_size: 8 is more than the 4 training samples" in message(
        PairedData(synthetic=small), batch_size=8
    )
    assert "load_size: [16] is smaller than image_size, [32, 32]" in message(
        PairedData(load_size=[16])
    )
