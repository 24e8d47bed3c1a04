"""`python -m hpc_amp.gan.video.poses POINTS OUTPUT --like FRAMES`: files of poses or landmarks to
maps, as images that a model of video makes frames from (`images.inputs: images`).

A file is
- .json: what OpenPose writes for a frame. For each person a body of 25 points (BODY_25) or 18
  (COCO), and, where they were looked for, a face of 70 and two hands of 21. A point with a
  confidence below 0.1 is not there.
- .txt: the 68 landmarks of a face (iBUG's, which dlib gives), a line `x y` or `x,y` for each.
Coordinates are pixels of the frame, x to the right and y down.
"""

from __future__ import annotations

import argparse
import colorsys
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw

from hpc_amp.data.errors import DataError
from hpc_amp.data.names import SUFFIXES, names_in
from hpc_amp.data.pictures import upright_size
from hpc_amp.errors import HpcAmpError, InputError
from hpc_amp.files import replacing

LEAST_CONFIDENCE = 0.1
"""Of a point that is drawn."""
Point = tuple[float, float] | None
"""x and y in pixels; None where it was not found."""


class Figure(NamedTuple):
    """What was found of a person in one piece."""

    part: str
    """`pose` (the body), `face`, `hand_left` or `hand_right`."""
    points: Sequence[Point]


PoseSource = Callable[[int], Sequence[Figure]]
"""The figures of a frame, by its number."""
Line = tuple[int, int]
"""The numbers of the points that it joins."""


def _chain(first: int, last: int, *, closed: bool = False) -> list[Line]:
    """The lines from each point to the next one, and back to the first."""
    return [*itertools.pairwise(range(first, last + 1)), *([(last, first)] if closed else [])]


_ARMS = [(1, 2), (2, 3), (3, 4), (1, 5), (5, 6), (6, 7)]
_BODY_25 = [
    *[(0, 1), (1, 8), *_ARMS, (8, 9), (9, 10), (10, 11), (8, 12), (12, 13), (13, 14)],
    *[(0, 15), (15, 17), (0, 16), (16, 18)],
    *[(14, 19), (19, 20), (14, 21), (11, 22), (22, 23), (11, 24)],
]
_COCO = [
    *[(0, 1), *_ARMS, (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13)],
    *[(0, 14), (14, 16), (0, 15), (15, 17)],
]
_HAND = [line for finger in range(1, 21, 4) for line in [(0, finger), *_chain(finger, finger + 3)]]
# Jaw, brows, nose, eyes, lips.
_FACE = [
    *[*_chain(0, 16), *_chain(17, 21), *_chain(22, 26), *_chain(27, 30), *_chain(31, 35)],
    *[*_chain(36, 41, closed=True), *_chain(42, 47, closed=True)],
    *[*_chain(48, 59, closed=True), *_chain(60, 67, closed=True)],
]
_LINES = {25: _BODY_25, 18: _COCO, 21: _HAND, 70: _FACE, 68: _FACE}
"""The lines of a figure of so many points."""
_PARTS = ("pose", "face", "hand_left", "hand_right")
"""What OpenPose finds of a person."""


def read_poses(path: Path) -> list[Figure]:
    """The figures in a file: bodies, faces and hands. Raises DataError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the points {path} cannot be read: {error}") from None
    try:
        figures = _of_openpose(json.loads(text)) if path.suffix == ".json" else [_of_lines(text)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} has no points in a known form: {error!r}") from None
    for figure in figures:
        if len(figure.points) not in _LINES:
            known = ", ".join(map(str, sorted(_LINES)))
            raise DataError(
                f"{path} has a figure of {len(figure.points)} points; known are {known}"
            )
    return figures


def _of_openpose(content: Any) -> list[Figure]:
    figures = []
    for person in content["people"]:
        for part in _PARTS:
            values = [float(value) for value in person.get(f"{part}_keypoints_2d", ())]
            if len(values) % 3:
                raise ValueError(f"{len(values)} numbers are not x, y and confidence")
            points = zip(values[::3], values[1::3], values[2::3], strict=True)
            found = [(x, y) if sure >= LEAST_CONFIDENCE else None for x, y, sure in points]
            if found:
                figures.append(Figure(part, found))
    return figures


def _of_lines(text: str) -> Figure:
    points: list[Point] = []
    for line in filter(str.strip, text.splitlines()):
        x, y = map(float, line.replace(",", " ").split())
        points.append((x, y))
    return Figure("face", points)


def draw_poses(figures: Sequence[Figure], width: int, height: int) -> Image.Image:
    """A map of `figures` as lines on black. Each line of a figure has a colour of its own, which is
    the same in all maps."""
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    thickness = max(1, round(min(width, height) / 128))
    for _, points in figures:
        lines = _LINES[len(points)]
        for number, (first, last) in enumerate(lines):
            one, other = points[first], points[last]
            if one is not None and other is not None:
                colour = colorsys.hsv_to_rgb(number / len(lines), 1, 1)
                draw.line([one, other], tuple(round(255 * part) for part in colour), thickness)
    return image


def draw_folder(points: Path, output: Path, like: Path) -> int:
    """Write a map for each file of points in a folder and those below, as PNG under the same name
    without OpenPose's `_keypoints`, in the size of the frame of that name in the folder `like`.
    Returns how many. Raises DataError and InputError."""
    found = [points / name for name in names_in(points) if name.endswith((".json", ".txt"))]
    if not found:
        raise InputError(f"there is no file of points in {points}", hint="they end with json, txt")
    for path in found:
        name = path.relative_to(points).with_name(path.stem.removesuffix("_keypoints"))
        # Not `with_suffix`: a name may have points.
        frames = [like / f"{name}{suffix}" for suffix in sorted(SUFFIXES)]
        frame = next((each for each in frames if each.is_file()), None)
        if frame is None:
            raise InputError(f"there is no frame {like / name} for {path}")
        drawn = draw_poses(read_poses(path), *upright_size(str(frame)))
        place = output / f"{name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as new:
            drawn.save(new, "PNG")
    return len(found)


def main() -> int:
    """Run the program."""
    description = (__doc__ or "").partition(": ")[2]
    parser = argparse.ArgumentParser(
        prog="python -m hpc_amp.gan.video.poses",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("points", type=Path, help="folder of files of points")
    parser.add_argument("output", type=Path, help="folder for the maps")
    parser.add_argument("--like", type=Path, required=True, help="folder of the frames")
    arguments = parser.parse_args()
    try:
        drawn = draw_folder(arguments.points, arguments.output, arguments.like)
    except HpcAmpError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{drawn:,} maps in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
