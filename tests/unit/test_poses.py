"""Poses and landmarks as maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.training import CPU, settings
from support.video import write_videos

from hpc_amp.config.schema import from_plain
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.training import prepare_videos
from hpc_amp.gan.video.config import VideoData
from hpc_amp.gan.video.poses import _LINES, Figure, draw_poses, main, read_poses


def pose(*found: tuple[int, float, float], points: int = 25, **parts: Any) -> dict[str, Any]:
    """What OpenPose writes of a person: the number, x and y of the points that it has found."""
    values = [0.0] * (3 * points)
    for number, x, y in found:
        values[3 * number : 3 * number + 3] = [x, y, 0.9]
    return {"pose_keypoints_2d": values, **parts}


def write(path: Path, *people: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1.3, "people": people}))
    return path


def test_an_arm_is_a_line_from_shoulder_to_elbow(tmp_path: Path) -> None:
    """Points that were not found have no lines, nor those that are alone."""
    path = write(tmp_path / "1.json", pose((2, 3, 4), (3, 12, 4), (20, 1, 12)), pose((5, 2, 9)))
    image = draw_poses(read_poses(path), 16, 14)
    drawn = {(x, y) for x in range(16) for y in range(14) if image.getpixel((x, y)) != (0, 0, 0)}
    assert drawn == {(x, 4) for x in range(3, 13)}
    colours = {image.getpixel(place) for place in drawn}
    whole = pose(*((number, number % 5, number) for number in range(25)))
    moved = draw_poses(read_poses(write(path, whole)), 16, 26)
    (colour,) = colours
    assert colour in {moved.getpixel((x, y)) for x in range(16) for y in range(26)}


@pytest.mark.parametrize("points", sorted(_LINES))
def test_every_point_of_a_figure_is_drawn(points: int) -> None:
    """On a circle, each point is the end of a line, but for the pupils of a face."""
    lines = _LINES[points]
    assert {number for line in lines for number in line} == set(
        range(68 if points == 70 else points)
    )
    assert len({frozenset(line) for line in lines}) == len(lines)
    figure = [(float(number), 0.0) for number in range(points)]
    colours = set()
    for number, (first, last) in enumerate(lines):
        alone = [point if place in (first, last) else None for place, point in enumerate(figure)]
        image = draw_poses([Figure("pose", alone)], points, 1)
        assert image.getpixel((first, 0)) == image.getpixel((last, 0)) != (0, 0, 0), number
        colours.add(image.getpixel((first, 0)))
    assert len(colours) == len(lines)


def test_faces_and_hands_of_openpose_and_landmarks_of_dlib(tmp_path: Path) -> None:
    hand = [value for number in range(21) for value in (number, 2.0, 1.0)]
    path = write(tmp_path / "a.json", pose(hand_left_keypoints_2d=hand, face_keypoints_2d=[]))
    body, left = read_poses(path)
    assert body == ("pose", [None] * 25)
    assert left.part == "hand_left" and left.points[20] == (20.0, 2.0)
    for separator in (",", " "):
        (tmp_path / "b.txt").write_text("".join(f"{n}{separator}{n + 0.5}\n" for n in range(68)))
        (face,) = read_poses(tmp_path / "b.txt")
        assert face.part == "face" and len(face.points) == 68 and face.points[67] == (67.0, 67.5)
    assert read_poses(write(path)) == []


def test_a_folder_of_poses_becomes_inputs_of_a_model_of_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_videos(tmp_path, size=(16, 24))
    for split in ("train", "test"):
        for frame in (tmp_path / f"{split}_B").rglob("*.png"):
            name = frame.relative_to(tmp_path / f"{split}_B").with_name(
                f"{frame.stem}_keypoints.json"
            )
            write(tmp_path / f"{split}_poses" / name, pose((2, 1, 1), (3, 20, 12)))
        shown = tmp_path / f"{split}_A"
        for old in shown.rglob("*.png"):
            old.unlink()
        words = ["points", tmp_path / f"{split}_poses", shown, "--like", tmp_path / f"{split}_B"]
        monkeypatch.setattr("sys.argv", [*map(str, words)])
        assert main() == 0
        assert capsys.readouterr().out == f"8 maps in {shown}\n"
    with Image.open(tmp_path / "train_A/scene 1/frame-002.png") as image:
        assert image.size == (24, 16) and image.getbbox() == (1, 1, 21, 13)
    data = from_plain(
        VideoData,
        {"name": "folder", "root": str(tmp_path), "image_size": [16], "inputs": "images"},
    )
    prepared = prepare_videos(data, settings(batch_size=2), World(), CPU)
    (batch,) = prepared.evaluation()
    assert batch.inputs is not None and batch.inputs.shape == (2, 4, 3, 16, 16)
    assert batch.inputs.max() > 0.5


def test_what_is_wrong_with_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "poses/1.json"
    with pytest.raises(DataError, match="has a figure of 9 points; known are 18, 21, 25, 68, 70"):
        read_poses(write(path, pose(points=9)))
    for text in ("[]", "{", '{"people": [{"pose_keypoints_2d": [1, 2]}]}', '{"people": [3]}'):
        path.write_text(text)
        with pytest.raises(DataError, match="has no points in a known form"):
            read_poses(path)
    (tmp_path / "few.txt").write_text("1 2 3\n")
    with pytest.raises(DataError, match="has no points in a known form"):
        read_poses(tmp_path / "few.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_poses(tmp_path / "none.txt")
    words = ["points", str(path.parent), str(tmp_path / "out"), "--like", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 2
    assert "there is no frame" in capsys.readouterr().err
