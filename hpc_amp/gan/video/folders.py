"""The files of a set of videos: a folder for each sequence. Only names are looked at here.

Standard library only: the machine that submits looks, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpc_amp.data.errors import DataError
from hpc_amp.gan.data.folders import HELD_OUT, DataFolder, PairedFiles, Scan

_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFiles(PairedFiles):
    """The sequences of a split: the paths of all frames, from sequence to sequence."""

    lengths: tuple[int, ...]
    """How many frames each sequence has."""
    flows: list[str] | None = None
    """A file for each frame, empty for the first ones of the sequences."""
    points: list[str] | None = None
    """A file for each frame."""
    poses: list[str] | None = None
    """A file for each frame."""
    references: VideoFiles | None = None
    """Images that show what these sequences are to look like, if they have folders of their own."""


def check_lengths(files: VideoFiles, least: int, reason: str) -> None:
    """Raise DataError, with the `reason`, where a sequence has fewer than `least` frames."""
    shortest = min(files.lengths)
    if shortest < least:
        first = files.images[sum(files.lengths[: files.lengths.index(shortest)])]
        frames = "one frame" if shortest == 1 else f"{shortest} frames"
        raise DataError(f"the sequence of {first} has {frames}, and {reason}")


def scan_videos(
    root: Path,
    inputs: Literal["labels", "images"],
    *,
    instances: bool,
    reverse: bool,
    flow: bool,
    points: bool = False,
    poses: bool = False,
    references: bool = False,
) -> Scan[VideoFiles]:
    """The sequences for training and those for evaluation, in the layout of vid2vid: `train_A` has
    what frames are made from, `train_B` the frames, `train_inst` instance maps, `train_flow` flows
    and `train_points` points, each in one folder for a sequence, under the same names. `test_...`
    or `val_...` are the same for evaluation. `train_poses` has key points, which an evaluation does
    not need. `test_ref_A`, `test_ref_B` and `test_ref_inst` may have `references` for the test
    sequences. Raises DataError where a folder or a partner is missing."""
    folder = DataFolder(root)
    held_out = next(
        (each for each in HELD_OUT if folder.has(f"{each}_A") and folder.has(f"{each}_B")), None
    )
    if not folder.has("train_A") or held_out is None:
        raise DataError(
            f"no videos in {root}: expected train_A and train_B, and test_A and test_B, with a "
            "folder for each sequence"
        )

    def files(split: str, **truth: bool) -> VideoFiles:
        return _scan_split(folder, split, inputs, instances, reverse, **truth)

    train = files("train", flow=flow, points=points, poses=poses)
    test = files(held_out, flow=flow, points=points)
    if references and folder.has(f"{held_out}_ref_B"):
        test = dataclasses.replace(test, references=files(f"{held_out}_ref"))
        _check_same_sequences(folder, f"{held_out}_B", f"{held_out}_ref_B")
    found = (
        f"{len(train.lengths):,} sequences of {len(train.images):,} frames for training, "
        f"{len(test.lengths):,} of {len(test.images):,} for evaluation"
    )
    return Scan(train, test, len(train.lengths), folder.text(found))


def _check_same_sequences(folder: DataFolder, *places: str) -> None:
    one, other = ({os.path.dirname(name) for name in folder.by_name(place)} for place in places)
    if one != other:
        here, there = (folder.root / place for place in places)
        raise DataError(
            f"the sequences in {here} and {there} have to be the same, and {min(one ^ other)} is "
            "in one of them only"
        )


def _scan_split(
    folder: DataFolder,
    split: str,
    inputs: Literal["labels", "images"],
    instances: bool,
    reverse: bool,
    *,
    flow: bool = False,
    points: bool = False,
    poses: bool = False,
) -> VideoFiles:
    shown, made = (f"{split}_{part}" for part in ("BA" if reverse else "AB"))
    frames = folder.by_name(made)
    outside = [path for name, path in frames.items() if "/" not in name]
    if outside:
        raise DataError(f"{outside[0]} is a frame outside of the folders of sequences")
    sequences = in_sequences(frames)
    names = [name for sequence in sequences for name in sequence]
    frames = {name: frames[name] for name in names}
    partners = folder.partners(frames, made, shown)

    def beside(part: str, kind: str, of: Sequence[str], key: str, *endings: str) -> list[str]:
        """The files of a `kind`, each with the name of a frame and one of the `endings`, for all
        frames, empty for those that are not in `of`. `key` says how to do without."""
        place = f"{split}_{part}"
        if not folder.has(place):
            raise DataError(f"no {kind} in {folder.root / place}: set {key} to do without")
        there, files = set(folder.names(place)), {}
        for frame in of:
            expected = [f"{frame}{ending}" for ending in endings]
            file = next((each for each in expected if each in there), None)
            if file is None:
                missing = folder.path(place, " or ".join(expected))
                raise DataError(f"the frame {frame} has no {kind}: there is no {missing}")
            files[frame] = folder.path(place, file)
        return [files.get(name, "") for name in names]

    later = [name for sequence in sequences for name in sequence[1:]]
    key_points = "_keypoints.json", ".json", ".txt"
    return VideoFiles(
        images=list(frames.values()),
        labels=partners if inputs == "labels" else None,
        inputs=partners if inputs == "images" else None,
        instances=folder.instances(frames, made, f"{split}_inst") if instances else None,
        lengths=tuple(map(len, sequences)),
        flows=beside("flow", "flow", later, "flow=none", ".flo") if flow else None,
        points=beside("points", "points", names, "points=none", ".npy") if points else None,
        poses=beside("poses", "key points", names, "regions=[]", *key_points) if poses else None,
    )


def in_sequences(frames: Iterable[str]) -> list[list[str]]:
    """The paths of frames, without their suffixes, as sequences: each folder is one, without the
    folders in it, and its frames are in the order of their names. Raises DataError where the
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
                raise DataError(
                    f"by their names, {other} is before {frame}, by their numbers after it: give "
                    "all frames numbers with as many digits, such as 002 and 010"
                )
            before[kind] = numbers, frame
    return sequences
