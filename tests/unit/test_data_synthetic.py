"""The synthetic set: the same everywhere, balanced, and with no test image among the others."""

import itertools

import pytest
import torch

from hpc_amp.config.schema import Synthetic
from hpc_amp.data.synthetic import GRID, _smooth, synthetic_set


def test_shapes_and_classes_are_as_configured() -> None:
    sizes = Synthetic(train=70, test=30, classes=7, image_size=28, channels=1)
    images = synthetic_set(sizes)
    assert images.train.pixels.shape == (70, 1, 28, 28)
    assert images.test.pixels.shape == (30, 1, 28, 28)
    assert images.train.pixels.dtype is torch.uint8
    counts = torch.bincount(images.test.labels, minlength=7)
    assert counts.max() - counts.min() <= 1


def test_equal_arguments_give_equal_images_with_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        two = synthetic_set(Synthetic(train=64, test=16))
    finally:
        torch.set_num_threads(1)
        one = synthetic_set(Synthetic(train=64, test=16))
        torch.set_num_threads(threads)
    assert torch.equal(one.train.pixels, two.train.pixels)
    assert not torch.equal(
        one.train.pixels, synthetic_set(Synthetic(train=64, test=16), seed=1).train.pixels
    )


def test_training_and_test_images_are_separate_draws() -> None:
    images = synthetic_set(Synthetic(train=64, test=64))
    rows = {bytes(image.flatten().tolist()) for image in images.train.pixels}
    assert not any(bytes(image.flatten().tolist()) in rows for image in images.test.pixels)


def test_images_use_the_range_of_pixels() -> None:
    pixels = synthetic_set(Synthetic(train=64, test=1)).train.pixels.float()
    assert 110 < pixels.mean() < 146
    assert 25 < pixels.std() < 80


@pytest.mark.parametrize("side", [8, 31, 1001])  # the last one is too large for float32
def test_patterns_are_interpolated_in_whole_numbers(side: int) -> None:
    cells = torch.randint(-127, 128, (3, 1, GRID, GRID))
    cells[0], cells[1] = -127, 127
    patterns = _smooth(cells, side)
    for row, column in itertools.product(range(0, side, side // 8), range(0, side, side // 8)):
        (top, down), (left, right) = divmod(row * GRID, side), divmod(column * GRID, side)
        below, beside = (top + 1) % GRID, (left + 1) % GRID
        upper = cells[:, 0, top, left] * (side - right) + cells[:, 0, top, beside] * right
        lower = cells[:, 0, below, left] * (side - right) + cells[:, 0, below, beside] * right
        exact = (upper * (side - down) + lower * down) // side**2
        assert torch.equal(patterns[:, 0, row, column].long(), exact)
