"""The files of a set of videos: a folder for each sequence. Only names are looked at here.

Standard library only: the machine that submits looks, too.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpc_amp.gan.data.folders import FolderError, PairedFiles, by_name, check_partners

_TESTS = ("test", "val")
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class VideoFiles:
    """The sequences of a split. Frames are numbered through, from sequence to sequence."""

    frames: PairedFiles
    """The files of all frames, partners at the same position."""
    lengths: tuple[int, ...]
    """How many frames each sequence has."""
    flows: list[str | None] | None = None
    """A file for each frame but the first ones of the sequences."""
    points: list[str] | None = None
    """A file for each frame."""
    poses: list[str] | None = None
    """A file for each frame."""


def length_problem(
    lengths: Sequence[int], frame_name: Callable[[int], str], least: int, reason: str
) -> str | None:
    """What is wrong where one of the sequences with so many frames has fewer than `least`, for this
    `reason`. `frame_name` gives what a frame is called, by its number from sequence to sequence."""
    shortest = min(lengths)
    if shortest >= least:
        return None
    first = frame_name(sum(lengths[: lengths.index(shortest)]))
    frames = "one frame" if shortest == 1 else f"{shortest} frames"
    return f"the sequence of {first} has {frames}, and {reason}"


def check_lengths(files: VideoFiles, least: int, reason: str) -> None:
    """Raise FolderError, with the `reason`, where a sequence has fewer than `least` frames."""
    paths = files.frames.images
    problem = length_problem(files.lengths, paths.__getitem__, least, reason)
    if problem is not None:
        raise FolderError(problem)


def scan_videos(
    root: Path,
    inputs: Literal["labels", "images"],
    *,
    instances: bool,
    reverse: bool,
    flow: bool,
    points: bool = False,
    poses: bool = False,
) -> tuple[VideoFiles, VideoFiles]:
    """The sequences for training and those for evaluation, in the layout of vid2vid: `train_A` has
    what frames are made from, `train_B` the frames, `train_inst` instance maps, `train_flow` flows
    and `train_points` points, each in one folder for a sequence, under the same names. `test_...`
    or `val_...` are the same for evaluation. `train_poses` has key points, which an evaluation does
    not need. Raises FolderError where a folder or a partner is missing."""
    if not root.is_dir():
        raise FolderError(f"there is no folder {root}: name the folder of the data in root")
    held_out = _held_out(root)
    if not (root / "train_A").is_dir() or held_out is None:
        raise FolderError(
            f"no videos in {root}: expected train_A and train_B, and test_A and test_B, with a "
            "folder for each sequence"
        )
    train, test = (
        _scan_split(
            root,
            split,
            inputs,
            instances=instances,
            reverse=reverse,
            flow=flow,
            points=points,
            poses=poses and split == "train",
        )
        for split in ("train", held_out)
    )
    return train, test


def scan_references(
    root: Path, inputs: Literal["labels", "images"], *, instances: bool, reverse: bool
) -> VideoFiles | None:
    """Images that show what the test sequences are to look like, if they have a folder of their
    own: `test_ref_A`, `test_ref_B` and `test_ref_inst` as the folders of `scan_videos`, with the
    same sequences. Raises FolderError where one is missing."""
    held_out = _held_out(root)
    if held_out is None or not (root / f"{held_out}_ref_B").is_dir():
        return None
    found = _scan_split(
        root,
        f"{held_out}_ref",
        inputs,
        instances=instances,
        reverse=reverse,
        flow=False,
        points=False,
        poses=False,
    )
    of_frames, of_references = (
        sorted({os.path.dirname(name) for name in by_name(root / f"{held_out}{part}_B")})
        for part in ("", "_ref")
    )
    if of_frames != of_references:
        (name, *_) = sorted(set(of_frames) ^ set(of_references))
        raise FolderError(
            f"the sequences in {root / f'{held_out}_B'} and {root / f'{held_out}_ref_B'} have to "
            f"be the same, and {name} is in one of them only"
        )
    return found


def _held_out(root: Path) -> str | None:
    """What the names of the folders for evaluation begin with."""
    return next((each for each in _TESTS if (root / f"{each}_A").is_dir()), None)


def _scan_split(
    root: Path,
    split: str,
    inputs: Literal["labels", "images"],
    *,
    instances: bool,
    reverse: bool,
    flow: bool,
    points: bool,
    poses: bool,
) -> VideoFiles:
    shown, made = (root / f"{split}_{part}" for part in ("BA" if reverse else "AB"))
    for folder in (shown, made):
        if not folder.is_dir():
            raise FolderError(f"there is no folder {folder}")
    frames, partners = by_name(made), by_name(shown)
    check_partners(frames, partners, made, shown)
    maps: dict[str, str] | None = None
    if instances:
        folder = root / f"{split}_inst"
        if not folder.is_dir():
            raise FolderError(f"no maps of instances in {folder}: set instances=false")
        maps = by_name(folder)
        check_partners(frames, maps, made, folder)
    if not all(map(os.path.dirname, frames)):
        raise FolderError(f"{made} has frames outside of the folders of sequences")
    sequences = in_sequences(frames)
    names = list(itertools.chain(*sequences))
    paths, shown_paths = [frames[name] for name in names], [partners[name] for name in names]
    files = PairedFiles(
        paths,
        labels=shown_paths if inputs == "labels" else None,
        inputs=shown_paths if inputs == "images" else None,
        instances=None if maps is None else [maps[name] for name in names],
    )
    flows = _flows(root / f"{split}_flow", sequences) if flow else None
    shown_points = _points(root / f"{split}_points", names) if points else None
    shown_poses = _poses(root / f"{split}_poses", names) if poses else None
    return VideoFiles(files, tuple(map(len, sequences)), flows, shown_points, shown_poses)


def in_sequences(frames: Iterable[str]) -> list[list[str]]:
    """The paths of frames, without their suffixes, as sequences: each folder is one, without the
    folders in it, and its frames are in the order of their names. Raises FolderError where the
    numbers in names have another order."""
    ordered = sorted(frames, key=lambda frame: (os.path.dirname(frame), frame))
    sequences = [list(group) for _, group in itertools.groupby(ordered, os.path.dirname)]
    for sequence in sequences:
        before: dict[str, tuple[list[int], str]] = {}
        """The newest of the frames whose names are equal but for their numbers, and its numbers."""
        for frame in sequence:
            name = os.path.basename(frame)
            numbers = [int(digits) for digits in _NUMBER.findall(name)]
            kind = _NUMBER.sub("0", name)
            last, other = before.get(kind, (numbers, frame))
            if numbers < last:
                raise FolderError(
                    f"by their names, {other} is before {frame}, by their numbers after it: give "
                    "all frames numbers with as many digits, such as 002 and 010"
                )
            before[kind] = numbers, frame
    return sequences


def _points(folder: Path, names: Sequence[str]) -> list[str]:
    """The file of the points of each frame. Raises FolderError if one is missing."""
    if not folder.is_dir():
        raise FolderError(f"no points in {folder}: set points=none to do without")
    paths = [folder / f"{name}.npy" for name in names]
    for path in paths:
        if not path.is_file():
            raise FolderError(f"there are no points {path}")
    return [str(path) for path in paths]


def _poses(folder: Path, names: Sequence[str]) -> list[str]:
    """The file of the key points of each frame. Raises FolderError if one is missing."""
    if not folder.is_dir():
        raise FolderError(f"no key points in {folder}: set regions=[] to do without")
    found = []
    for name in names:
        paths = [folder / f"{name}{end}" for end in ("_keypoints.json", ".json", ".txt")]
        path = next((each for each in paths if each.is_file()), None)
        if path is None:
            raise FolderError(f"there are no key points {paths[0]}, nor {name}.json or {name}.txt")
        found.append(str(path))
    return found


def _flows(folder: Path, sequences: Sequence[Sequence[str]]) -> list[str | None]:
    """The file of the flow of each frame. Raises FolderError if one is missing."""
    if not folder.is_dir():
        raise FolderError(f"no flows in {folder}: set flow=none to do without")
    found: list[str | None] = []
    for names in sequences:
        found.append(None)
        for name in names[1:]:
            path = folder / f"{name}.flo"
            if not path.is_file():
                raise FolderError(f"there is no flow {path} from {name} to the frame before it")
            found.append(str(path))
    return found
