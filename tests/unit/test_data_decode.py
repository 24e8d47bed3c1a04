"""Image files as squares: what a training sees, and what an evaluation sees."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from hpc_amp.data import decode as module
from hpc_amp.data.decode import centre_view, decode_all, resize, to_pixels, training_view

RANDOM = {"crop": True, "flip": True}


def noise(width: int, height: int) -> Image.Image:
    """Little noise on a slope, as in a photograph."""
    stream = torch.Generator().manual_seed(width)
    values = torch.randint(0, 40, (height, width, 3), generator=stream)
    values += (torch.arange(width) * 200 // width)[:, None]
    return Image.fromarray(values.byte().numpy())


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "image.jpg")
    noise(500, 375).save(path, quality=90)
    return path


def difference(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one.int() - other.int()).abs()


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 2), (30, 20)])
def test_images_smaller_than_what_is_needed(tmp_path: Path, size: tuple[int, int]) -> None:
    colour = torch.tensor([200, 100, 50])[:, None, None]
    for name in ("image.png", "image.jpg"):
        path = str(tmp_path / name)
        Image.new("RGB", size, (200, 100, 50)).save(path, quality=100, subsampling=0)
        views = [training_view(path, str(seed), 32, **RANDOM) for seed in range(20)]
        for view in (*views, centre_view(path, 32)):
            assert view.shape == (3, 32, 32)
            assert difference(view, colour).max() <= 2


def test_views_depend_on_their_seed_alone(path: str) -> None:
    seen = {seed: training_view(path, seed, 64, **RANDOM) for seed in "abcdef"}
    assert len({view.numpy().tobytes() for view in seen.values()}) == 6
    mirrored = 0
    for seed, view in seen.items():
        assert torch.equal(training_view(path, seed, 64, **RANDOM), view)
        straight = training_view(path, seed, 64, crop=True, flip=False)
        if not torch.equal(straight, view):
            assert difference(straight.flip(2), view).max() <= 1
            mirrored += 1
    assert 0 < mirrored < 6


def test_an_evaluation_sees_what_torchvision_would(path: str) -> None:
    usual = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    with Image.open(path) as image:
        expected = usual(to_pixels(image))
    # Resizing before or after the crop puts pixels up to half a pixel apart.
    assert difference(centre_view(path, 224), expected).float().mean() < 4


def test_an_evaluation_never_decodes_at_a_reduced_size(tmp_path: Path) -> None:
    path = str(tmp_path / "large.jpg")
    noise(1200, 900).save(path)
    with Image.open(path) as image:
        expected = resize(image.crop((206, 56, 994, 844)), 64)
    assert torch.equal(centre_view(path, 64), expected)


@pytest.mark.parametrize("size", [(300, 280), (224, 224), (90, 70), (500, 20)])
def test_both_ways_to_resize_agree(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    image = noise(*size)
    ours = resize(image, 64)
    monkeypatch.setattr(module, "_TORCH_RESIZES_FAST", not module._TORCH_RESIZES_FAST)
    theirs = resize(image, 64)
    assert difference(ours, theirs).max() <= 1
    # The channels of a pixel are neighbours: a batch is made by copying whole images.
    assert ours.stride() == theirs.stride() == (1, 3 * 64, 3)


@pytest.mark.skipif(not module._TORCH_RESIZES_FAST, reason="torch has no fast kernel here")
def test_reading_threads_start_no_threads(path: str) -> None:
    """Each would start as many as torch may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(os.getpid).result()
            count = len(os.listdir("/proc/self/task"))
            threads.submit(training_view, path, "a", 224, **RANDOM).result()
            assert len(os.listdir("/proc/self/task")) == count
    finally:
        torch.set_num_threads(before)


def test_all_images_at_once(tmp_path: Path) -> None:
    paths = []
    for number in range(70):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.new("RGB", (9, 6), (number, 0, 0)).save(paths[-1])
    whole = decode_all(paths, 6, 9, scale=False)
    squares = decode_all(paths, 4, 4, scale=True)
    assert (whole.shape, squares.shape) == ((70, 3, 6, 9), (70, 3, 4, 4))
    for pixels in (whole, squares):
        assert pixels[:, 0, 2, 3].tolist() == list(range(70))
