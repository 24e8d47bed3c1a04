"""Synthetic sets of conditional generators: the truth that is known about them, and equal bits in
every process."""

import dataclasses
import hashlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from support.environment import clean_environ
from torch import Tensor

from hpc_amp.config.build import build
from hpc_amp.config.schema import Train
from hpc_amp.config.source import parse
from hpc_amp.distributed.world import World
from hpc_amp.errors import ConfigError, KeyProblem
from hpc_amp.gan.data.batches import condition
from hpc_amp.gan.data.config import (
    ClassData,
    PairedData,
    SyntheticClasses,
    SyntheticDomains,
    SyntheticSamples,
    UnpairedData,
)
from hpc_amp.gan.data.synthetic import (
    CLASSES,
    NOISE,
    DrawnClasses,
    DrawnDomains,
    DrawnPairs,
    chunk_size,
    draw_pairs,
)
from hpc_amp.gan.data.training import prepare_classes, prepare_paired, prepare_unpaired

CPU = torch.device("cpu")
LARGEST = 2 * NOISE / 255 + 1e-6
"""What noise changes in images from -1 to 1."""


def batches(data: Any) -> list[Any]:
    return list(data.evaluation())


@pytest.mark.parametrize("labels", [2, 6, 8])
def test_labels_are_known_from_images(labels: int) -> None:
    data = PairedData(labels=labels, synthetic=SyntheticSamples(train=64, test=64))
    prepared = prepare_paired(data, Train(batch_size=64), World(), CPU)
    (batch,) = batches(prepared)

    assert prepared.synthetic and prepared.name.startswith("SYNTHETIC")
    assert torch.equal(prepared.labels_of(batch.images), batch.labels)
    assert set(batch.labels.unique().tolist()) == set(range(labels))
    grey = torch.full_like(batch.images, 0.0)
    assert (prepared.labels_of(grey) == batch.labels).float().mean() < 0.7


def test_an_image_follows_from_its_condition() -> None:
    """But for the noise: pixels with the same surroundings differ by no more."""
    data = PairedData(instances=True, synthetic=SyntheticSamples(train=256, test=8))
    (batch,) = next(prepare_paired(data, Train(batch_size=256), World(), CPU).training.epoch(0))
    shown = condition(batch, data)
    rows, columns = torch.meshgrid(torch.arange(32) % 4, torch.arange(32) % 4, indexing="ij")
    place = (rows * 4 + columns).expand(256, 32, 32)
    key = (shown.argmax(1) * 2 + shown[:, -1].long()) * 16 + place
    seen = 0
    for value in key.unique().tolist():
        colours = batch.images.permute(0, 2, 3, 1)[key == value]
        assert (colours.amax(0) - colours.amin(0)).max() <= 2 * LARGEST
        seen += len(colours) > 100
    assert seen > 100


def test_pairs_of_images_and_ids_of_files() -> None:
    size = SyntheticSamples(train=8, test=8)
    labelled = PairedData(synthetic=size)
    pictured = PairedData(synthetic=size, inputs="images")
    shifted = PairedData(synthetic=size, ignore_label=0)
    a, b, c = (
        batches(prepare_paired(data, Train(batch_size=8), World(), CPU))[0]
        for data in (labelled, pictured, shifted)
    )
    assert torch.equal(a.images, b.images) and b.labels is None
    for label in range(6):
        assert len(b.inputs[:, 0][a.labels == label].unique()) == 1
    assert torch.equal(a.labels, c.labels)
    assert condition(c, shifted).shape[1] == 7


def test_an_image_of_a_domain_shows_the_truth_of_the_other_one() -> None:
    config = SyntheticDomains(train=30, test=30, styles=3)
    data = UnpairedData(synthetic=config)
    (batch,) = batches(prepare_unpaired(data, Train(batch_size=30), World(), CPU))

    assert batch.a_in_b.shape == (30, 3, 3, 32, 32) and batch.b_in_a.shape == (30, 1, 3, 32, 32)
    # Each image has exactly one colour and texture for each part of its truth, and back.
    for images, truth in ((batch.a, batch.a_in_b[:, 0]), (batch.b[::3], batch.b_in_a[::3, 0])):
        clean = {}
        for place in range(16):
            at = (slice(None), slice(None), slice(place // 4, None, 4), slice(place % 4, None, 4))
            seen = torch.cat((images[at], truth[at]), 1).permute(0, 2, 3, 1).flatten(0, 2)
            for wanted in seen[:, 3:].unique(dim=0):
                colours = seen[(seen[:, 3:] == wanted).all(1), :3]
                assert (colours.amax(0) - colours.amin(0)).max() <= 2 * LARGEST
                clean[place, tuple(wanted.tolist())] = colours
        assert len(clean) > 20
    # Styles of B occur equally often, and are far from each other.
    styles = batch.a_in_b.flatten(2)
    assert (styles[:, 0] - styles[:, 1]).abs().mean(1).min() > 0.3
    # Identity is far from the truth.
    assert (batch.a[:, None] - batch.a_in_b).abs().flatten(1).mean() > 0.5


def test_domains_do_not_share_their_contents() -> None:
    drawn = DrawnDomains((16, 16), SyntheticDomains(), 40, "train")
    other = DrawnDomains((16, 16), SyntheticDomains(), 40, "test")
    assert not torch.equal(torch.stack([*drawn.a]), torch.stack([*other.a]))
    b_in_a = torch.cat([drawn.b_in_a(number) for number in range(40)])
    differences = (b_in_a.int() - torch.stack([*drawn.a]).permute(0, 3, 1, 2).int()).abs()
    assert (differences.flatten(1).amax(1) > 2 * NOISE).sum() >= 39


def test_the_truth_of_classes() -> None:
    data = ClassData(references=2, synthetic=SyntheticClasses(train=8, test=8))
    prepared = prepare_classes(data, Train(batch_size=32), World(), CPU)
    (batch,) = batches(prepared)
    assert len(batch) == 32 and set(batch.style_class.tolist()) == {20, 21, 22, 23}

    for number in range(32):
        truth, content, style = batch.truth[number], batch.content[number], batch.style[number]
        # The colours of the truth are those of its references.
        known = style[0].flatten(1).T
        distances = torch.cdist(truth.flatten(1).T, known).min(1).values
        assert distances.max() <= 2 * LARGEST
        # Its shapes are those of the content: where that has one colour, it has one too.
        mask = nearest_of_two(truth)
        assert torch.equal(mask, nearest_of_two(content)) or torch.equal(
            mask, ~nearest_of_two(content)
        )
    assert (batch.truth - batch.content).abs().mean() > 0.3


def nearest_of_two(image: Tensor) -> Tensor:
    """Which of the two main colours of an image [3, H, W] each pixel has, from the signs of its
    channels, which textures do not change."""
    signs = (image > 0).int()
    code = signs[0] * 4 + signs[1] * 2 + signs[2]
    assert len(code.unique()) == 2
    return code == code.unique()[0]


def test_classes_are_different_combinations() -> None:
    drawn = DrawnClasses((16, 16), SyntheticClasses(classes=CLASSES, train=1, test=1), 20)
    combinations = torch.stack((drawn.background, drawn.foreground, drawn.texture), 1)
    assert len(combinations.unique(dim=0)) == CLASSES
    assert (drawn.background != drawn.foreground).all()
    assert combinations.amax(0).tolist() == [7, 7, 3] and combinations.amin() == 0


def digest() -> str:
    pairs = draw_pairs(20, 6, (24, 32), 1, "train")
    domains = DrawnDomains((16, 16), SyntheticDomains(styles=2), 20, "train")
    classes = ClassData(synthetic=SyntheticClasses(train=4, test=4))
    batch = batches(prepare_classes(classes, Train(batch_size=16), World(), CPU))[0]
    a, b = torch.stack([*domains.a]), torch.stack([*domains.b])
    tensors = (pairs.images, pairs.labels, a, b, batch.content, batch.truth)
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def test_every_process_draws_the_same_bits() -> None:
    """With another number of threads and another seed of hashes, too."""
    program = (
        "import runpy, torch; torch.set_num_threads(torch.get_num_threads() + 1)\n"
        f"print(hash('seed'), runpy.run_path({__file__!r})['digest']())"
    )
    # Not a fork, which would have the seed of hashes of this process.
    ended = subprocess.run(
        [sys.executable, "-c", program], env=clean_environ(PYTHONPATH=":".join(sys.path)),
        text=True, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seed, drawn = ended.stdout.split()
    assert seed != str(hash("seed"))
    assert drawn == digest()


def test_sizes_that_do_not_fit_are_one_line() -> None:
    def message(**keys: Any) -> str:
        with pytest.raises(KeyProblem) as error:
            prepare_classes(ClassData(**keys), Train(batch_size=1), World(), CPU)
        return str(error.value)

    keys: Any = parse("synthetic: {classes: 300}", lambda line: "a file")
    with pytest.raises(ConfigError, match=r"synthetic\.classes.* 300 is outside 3 to 224"):
        build(ClassData, keys)
    assert message(unseen=23).startswith(
        "train.images.unseen: of 24 synthetic classes, 23 held out leave less"
    )
    assert message(references=40) == (
        "train.images.references: 40 is more than the images of a class"
    )


KNOWN: list[tuple[Any, str]] = [
    (
        PairedData(
            instances=True,
            image_size=[24, 32],
            synthetic=SyntheticSamples(train=10, test=5, seed=3),
        ),
        "f92c511bf2f5d80b",
    ),
    (
        PairedData(inputs="images", image_size=[16], synthetic=SyntheticSamples(train=10, test=5)),
        "10c36fa5bdc5a7f0",
    ),
    # So large that two pairs follow each other in the stream of shapes, and then their noise.
    (
        PairedData(
            labels=8,
            ignore_label=2,
            image_size=[512, 1024],
            synthetic=SyntheticSamples(train=5, test=3),
        ),
        "c3ec4308916d8d78",
    ),
    (
        UnpairedData(
            image_size=[16, 24], synthetic=SyntheticDomains(train=9, test=7, styles=3, seed=1)
        ),
        "26f472844ad38929",
    ),
    (
        ClassData(
            image_size=[24, 16],
            references=2,
            unseen=3,
            synthetic=SyntheticClasses(classes=9, train=5, test=4, seed=2),
        ),
        "f07408f89788eb1f",
    ),
]
"""Sets with the digests of their batches in version 0.1, which drew whole sets at once."""


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_sets_are_those_of_earlier_versions(data: Any, expected: str) -> None:
    """Published results are about them."""
    prepare = {
        PairedData: prepare_paired,
        UnpairedData: prepare_unpaired,
        ClassData: prepare_classes,
    }[type(data)]
    prepared = prepare(data, Train(batch_size=4, channels_last=False), World(), CPU)
    training = (batch for step in prepared.training.epoch(1) for batch in step)
    found = hashlib.sha256()
    for batch in (*training, *prepared.evaluation()):
        for field in dataclasses.fields(batch):
            value = getattr(batch, field.name)
            if value is not None and field.name != "first":  # which there was not yet
                found.update(f"{field.name}{tuple(value.shape)}".encode())
                found.update(value.contiguous().numpy().tobytes())
    assert found.hexdigest()[:16] == expected


def test_images_are_drawn_when_they_are_asked_for_in_any_order() -> None:
    size = (512, 1024)
    assert chunk_size(size) == 2
    pairs = DrawnPairs(5, 6, size, 0, "train")
    last = pairs[4].image
    assert list(pairs._kept) == [4]
    whole = draw_pairs(5, 6, size, 0, "train")
    assert torch.equal(last, whole.images[4]) and torch.equal(pairs[0].image, whole.images[0])
    domains, again = (DrawnDomains((16, 16), SyntheticDomains(), 4, "train") for _ in range(2))
    backwards = [domains.b[number] for number in (3, 2, 1, 0)]
    assert not domains.a._kept
    assert torch.equal(torch.stack(backwards[::-1]), torch.stack([*again.b]))
