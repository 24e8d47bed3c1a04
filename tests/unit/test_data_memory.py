"""Batches from memory: independent of the ranks, resumable at any step, exact in evaluation."""

import pytest
import torch

from hpc_amp.config import schema
from hpc_amp.data.augment import EpochAugmentation
from hpc_amp.data.images import Images, Normalization
from hpc_amp.data.memory import MemoryTraining, memory_evaluation
from hpc_amp.distributed.world import World

SAMPLES = 50
PIXELS = torch.randint(0, 256, (SAMPLES, 3, 12, 10), dtype=torch.uint8)
IMAGES = Images(PIXELS, torch.arange(SAMPLES))  # the label of an image is its number
SCALE = Normalization.measure(PIXELS)


def training(rank: int = 0, size: int = 1, **train: object) -> MemoryTraining:
    settings = {"batch_size": 8, "seed": 7, "data": {"augment": {"crop": 2, "cutout": 3}}}
    config = schema.from_plain(schema.Train, {**settings, **train})
    return MemoryTraining(IMAGES, SCALE, config, World(rank=rank, size=size))


def joined(step: list) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*step, strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_images_are_the_same_for_every_division(size: int, accumulate: int) -> None:
    whole = [joined(step) for step in training().epoch(3)]
    ranks = [training(rank, size, accumulate=accumulate).epoch(3) for rank in range(size)]
    steps = list(zip(*ranks, strict=True))
    assert len(steps) == len(whole) == 6
    for shares, (images, labels) in zip(steps, whole, strict=True):
        assert all(len(share) == accumulate for share in shares)
        together = [joined(share) for share in shares]
        assert torch.equal(torch.cat([share[0] for share in together]), images)
        assert torch.equal(torch.cat([share[1] for share in together]), labels)


def test_any_step_can_be_the_first() -> None:
    data = training(1, 2, accumulate=2)
    whole = list(data.epoch(4))
    for start in range(len(whole) + 1):
        rest = list(data.epoch(4, start))
        assert len(rest) == len(whole) - start
        for step, expected in zip(rest, whole[start:], strict=True):
            for mine, theirs in zip(joined(step), joined(expected), strict=True):
                assert torch.equal(mine, theirs)


def test_a_resume_walks_through_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It prepares the batches from there on and no other."""
    prepared: list[int] = []
    move = EpochAugmentation.move

    def counted(self: EpochAugmentation, images: torch.Tensor, samples: torch.Tensor) -> object:
        prepared.append(len(images))
        return move(self, images, samples)

    monkeypatch.setattr(EpochAugmentation, "move", counted)
    for start in range(7):
        prepared.clear()
        list(training().epoch(4, start))
        assert sum(prepared) == 8 * (6 - start)


def test_epochs_differ_in_order_and_in_augmentation() -> None:
    by_label = []
    for epoch in (0, 1):
        steps = [joined(step) for step in training().epoch(epoch)]
        images, labels = (torch.cat(part) for part in zip(*steps, strict=True))
        by_label.append({int(label): image for label, image in zip(labels, images, strict=True)})
    both = by_label[0].keys() & by_label[1].keys()
    same = sum(torch.equal(by_label[0][label], by_label[1][label]) for label in both)
    assert same < len(both) / 4


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    list(training().epoch(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_are_float_in_the_order_asked_for(channels_last: bool) -> None:
    ((images, labels),) = next(training(channels_last=channels_last).epoch(0))
    assert images.dtype is torch.float32
    assert labels.dtype is torch.int64
    order = torch.channels_last if channels_last else torch.contiguous_format
    assert images.is_contiguous(memory_format=order)


def test_without_augmentation_images_are_only_normalised() -> None:
    data = training(data={"augment": {"crop": 0, "flip": False}})
    ((images, labels),) = next(data.epoch(0))
    assert torch.equal(images, SCALE(PIXELS[labels]))


def test_a_crop_is_a_window_of_the_padded_image_and_half_are_mirrored() -> None:
    config = schema.Augment(crop=2, flip=True)
    samples = torch.arange(SAMPLES)
    augmentation = EpochAugmentation(
        config, samples=SAMPLES, side=(12, 10), seed=0, epoch=0, device=torch.device("cpu")
    )
    moved = augmentation.move(PIXELS.permute(0, 2, 3, 1).contiguous(), samples)
    moved = moved.permute(0, 3, 1, 2)
    padded = torch.nn.functional.pad(PIXELS, (2, 2, 2, 2))
    windows = padded.unfold(2, 12, 1).unfold(3, 10, 1).flatten(2, 3)  # [N, C, 25, 12, 10]

    def same_as_a_window(images: torch.Tensor) -> torch.Tensor:
        equal = (windows == images[:, :, None]).transpose(1, 2).flatten(2)
        return equal.all(2).any(1)

    straight = same_as_a_window(moved)
    mirrored = same_as_a_window(moved.flip(3))
    assert (straight ^ mirrored).all()
    assert 0.25 < mirrored.float().mean() < 0.75


def test_cutout_blanks_a_square_that_may_hang_over() -> None:
    config = schema.Augment(crop=0, flip=False, cutout=4)
    samples = torch.arange(SAMPLES)
    augmentation = EpochAugmentation(
        config, samples=SAMPLES, side=(12, 10), seed=0, epoch=0, device=torch.device("cpu")
    )
    blank = augmentation.blank(torch.ones(SAMPLES, 3, 12, 10), samples) == 0
    area = blank[:, 0].sum((1, 2))
    assert area.max() == 16
    assert 4 <= area.min() < 16
    assert torch.equal(blank[:, 0], blank[:, 2])


def test_statistics_are_those_of_the_pixels() -> None:
    floats = PIXELS.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(SCALE.mean.double(), floats.mean(1), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(
        SCALE.std.double(), floats.std(1, unbiased=False), rtol=1e-6, atol=1e-5
    )


@pytest.mark.parametrize("size", [1, 3, 4, 60])
def test_every_test_image_is_evaluated_once(size: int) -> None:
    seen = []
    for rank in range(size):
        batches = memory_evaluation(
            IMAGES, SCALE, World(rank=rank, size=size), batch_size=4, channels_last=True
        )
        for images, labels in batches:
            assert 1 <= len(labels) <= 4
            assert torch.equal(images, SCALE(PIXELS[labels]))
            seen += labels.tolist()
    assert seen == list(range(SAMPLES))
