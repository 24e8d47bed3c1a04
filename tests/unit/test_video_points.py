"""Points of a scene: files, what a sample shows of them, and places that are seen again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training import CPU, settings
from support.video import write_videos
from torch import Tensor

from hpc_amp.config.schema import from_plain
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.reading import View
from hpc_amp.gan.data.training import prepare_videos
from hpc_amp.gan.video.config import VideoData
from hpc_amp.gan.video.consistency import revisit_sums
from hpc_amp.gan.video.points import read_points, show_points, visible

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


def prepared(**data: Any) -> Any:
    keys = {"image_size": [16], "labels": 4, "points": "known", **data}
    train = settings(batch_size=2)
    return prepare_videos(from_plain(VideoData, keys), train, World(), CPU)


def saved(path: Path, *values: Any, **keywords: Any) -> str:
    np.save(path, np.array(*values, **keywords))
    return str(path)


def test_both_forms_of_a_file(tmp_path: Path) -> None:
    large = 2**62
    dense = saved(tmp_path / "dense.npy", [[5, -7, large], [-1, 5, 0]])
    wanted = [[5, -1, large], [-1, 5, 0]]
    assert read_points(dense, (2, 3)).tolist() == wanted
    lines = [[0, 0, 5], [0, 2, large], [1, 1, 5], [1, 2, 0], [0, 2, 8]]
    sparse = saved(tmp_path / "sparse.npy", lines)
    assert read_points(sparse, (2, 3)).tolist() == wanted
    assert read_points(saved(tmp_path / "none.npy", np.zeros((0, 3), int)), (4, 4)).max() == -1
    # A frame that is 3 pixels wide has a map, and no lines.
    narrow = saved(tmp_path / "narrow.npy", [[1, 2, 3]] * 4, dtype=np.uint8)
    assert read_points(narrow, (4, 3)).tolist() == [[1, 2, 3]] * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0.5, 1]], r"of float64, and points are one array of whole numbers"),
        (
            [[1, 2]] * 5,
            r"has the shape \[5, 2\], and points of a frame of 6 x 4 pixels are \[4, 6\]",
        ),
        (
            [[0, 0, 1], [4, 0, 1]],
            r"line 1: row, column and point are \[4, 0, 1\], and rows are 0 to 3",
        ),
        ([[0, 6, 1]], r"line 0: .*columns 0 to 5"),
        ([[0, 0, -1]], r"points 0 or more"),
    ],
)
def test_a_wrong_file_of_points_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_points(saved(tmp_path / "points.npy", values), (4, 6))


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.npy"
    with pytest.raises(DataError, match="cannot be read"):
        read_points(str(path), (4, 4))
    for content in (b"", b"nothing", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"points\.npy cannot be read"):
            read_points(str(path), (4, 4))
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_points(str(path), (4, 4))
    with path.open("wb") as file:
        np.savez(file, np.zeros((4, 4), int))
    with pytest.raises(DataError, match="several arrays"):
        read_points(str(path), (4, 4))


def test_points_follow_the_view() -> None:
    points = torch.arange(24).view(4, 6) + 2**40
    whole = View(4, 6, (4, 6), 0.0, 0.0, mirror=False)
    assert torch.equal(show_points(points, whole), points)
    mirrored = View(2, 4, (4, 6), 1.0, 0.5, mirror=True)
    assert torch.equal(show_points(points, mirrored), points[2:, 1:5].flip(1))
    half = show_points(points, View(2, 3, (2, 3), 0.0, 0.0, mirror=False))
    assert half.shape == (2, 3) and set(half.flatten().tolist()) <= set(points.flatten().tolist())


def test_visible_points_have_their_first_pixel() -> None:
    numbers, pixels = visible(torch.tensor([[7, -1, 3], [3, 7, 9]]))
    assert numbers.tolist() == [3, 7, 9] and pixels.tolist() == [2, 0, 5]
    assert [len(part) for part in visible(torch.full((2, 2), -1))] == [0, 0]


def test_samples_of_files_and_of_drawn_videos_have_points(tmp_path: Path) -> None:
    drawn = write_videos(tmp_path)["test"]
    of_files = prepared(name="folder", root=str(tmp_path))
    (batch,) = of_files.evaluation()
    wanted = torch.stack([frame.points for frame in drawn.frames]).long()
    assert torch.equal(batch.points.flatten(0, 1), wanted)
    back = batch.there_and_back()
    assert back.points.shape[1] == back.images.shape[1] == 7 and back.flows is None
    assert torch.equal(back.points[:, 4:], batch.points[:, :3].flip(1))
    assert torch.equal(back.labels[:, -1], batch.labels[:, 0])
    # A sample of training is mirrored as a whole: equal points have equal colours.
    synthetic = {"train": 4, "test": 2, "frames": 12, "speed": 3}
    (batch,) = next(prepared(synthetic=synthetic).training.epoch(0))
    sums = revisit_sums(batch.images, batch.images, batch.points)
    for sequence, points in zip(batch.images, batch.points, strict=True):
        colours: dict[int, Tensor] = {}
        for number, colour in zip(
            points.flatten().tolist(), sequence.permute(0, 2, 3, 1).reshape(-1, 3), strict=True
        ):
            assert torch.equal(colours.setdefault(number, colour), colour)
    assert sums["revisit_error"] == 0


def test_missing_files_of_points(tmp_path: Path) -> None:
    write_videos(tmp_path)
    folder: dict[str, Any] = {"name": "folder", "root": str(tmp_path)}
    path = tmp_path / "train_points/scene 1/frame-002.npy"
    np.save(path, np.zeros((8, 8), int))
    with pytest.raises(DataError, match=r"frame-002\.npy has the shape \[8, 8\]"):
        list(prepared(**folder, frames={"first": 4}).training.epoch(0))
    path.unlink()
    with pytest.raises(DataError, match=r"has no points: there is no .*frame-002\.npy"):
        prepared(**folder)
    for each in sorted((tmp_path / "train_points").rglob("*"), reverse=True):
        each.unlink() if each.is_file() else each.rmdir()
    (tmp_path / "train_points").rmdir()
    with pytest.raises(DataError, match=r"no points in .*train_points: set points=none"):
        prepared(**folder)
    assert prepared(**folder, points="none").name


def test_revisits_by_hand() -> None:
    """Of point 1, seen in frames 0, 1, 3 and 4 of 5; point 2 is always seen; 3 is seen once."""
    points = torch.tensor([[1, 2], [1, 2], [3, 2], [1, 2], [2, 1]])[None, :, None]
    made = torch.zeros(1, 5, 3, 1, 2)
    made[0, 0, :, 0, 0] = 9.0  # not the last frame before it goes
    made[0, 1, :, 0, 0] = 0.5
    made[0, 3, :, 0, 0] = 0.25
    made[0, 4, :, 0, 1] = -0.5
    made[0, :, 0, 0, 1] += 7.0  # a point that is always seen does not count; one channel of point 1
    sums = revisit_sums(made, torch.zeros_like(made), points)
    assert float(sums["revisited"]) == 2
    assert float(sums["revisit_error"]) == pytest.approx(0.25 + (2 * 1 + (7.0 - 1.0)) / 3)
    assert float(sums["revisit_error_real"]) == 0
    both = revisit_sums(
        made.repeat(2, 1, 1, 1, 1), made.repeat(2, 1, 1, 1, 1), points.repeat(2, 1, 1, 1)
    )
    assert float(both["revisited"]) == 4 and both["revisit_error"] == both["revisit_error_real"]
    never = revisit_sums(made, made, torch.full_like(points, -1))
    assert float(never["revisited"]) == 0
