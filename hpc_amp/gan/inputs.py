"""What a trained generator is given: the options that its model uses, the files of a folder, and
the names of the generated images.

Standard library only: `hpc-amp generate` checks a request before it submits a job, too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from hpc_amp.config.schema import Train
from hpc_amp.data.names import SUFFIXES, images_in
from hpc_amp.errors import InputError
from hpc_amp.gan.data.folders import CITYSCAPES
from hpc_amp.gan.video.folders import in_sequences

_MISSING = {
    "direction": "a translation needs a direction: --direction a2b or --direction b2a",
    "style": "the model needs images of the class to draw: name one, or their folder, in --style",
    "instances": "the model was trained with instance maps: name their folder in --instances",
    "points": "the model needs the points that the inputs show: name their folder in --points",
}
"""What is said where a model needs an option that was not given."""
OPTIONS = (*_MISSING, "fps", "finetune")
"""The options that only some models use."""


def check_options(train: Train, given: Collection[str]) -> None:
    """Raise InputError where `given`, names of options without `--`, are not those that the task of
    `train` uses, or lack one that it needs."""
    used = train.generation_options()
    if used is None:
        raise InputError(f"the task {train.task} makes no images from files")
    for name in OPTIONS:
        if used.get(name) and name not in given:
            raise InputError(_MISSING[name])
        if name in given and name not in used:
            raise InputError(f"this {train.task} does not use --{name}", hint="leave it out")


def images_below(folder: Path) -> list[Path]:
    """The image files in `folder` and the folders in it, sorted; or the file itself. Raises
    InputError if there is no image."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    found = sorted(folder / name for name in images_in(folder))
    if not found:
        endings = ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise InputError(f"there is no image in {folder}", hint=f"files end with {endings}")
    return found


def find_files(
    inputs: Path,
    output: Path,
    *,
    style: Path | None = None,
    instances: Path | None = None,
    points: Path | None = None,
) -> tuple[list[Path], list[Path]]:
    """The files that images are made from, and the images of `style`. The arguments are options of
    `hpc-amp generate`. Raises InputError where one is missing, or images would replace what is
    read."""
    files, folder = images_below(inputs), folder_of(inputs)
    check_outputs(files, folder, output, [each for each in (style, instances, points) if each])
    for file in files:
        if instances is not None:
            instances_of(file, folder, instances)
        if points is not None:
            points_of(file, folder, points)
    return files, [] if style is None else images_below(style)


def instances_of(file: Path, folder: Path, instances: Path) -> Path:
    """The map of instances of an input, which is below `folder`. Raises InputError."""
    place = instances / file.relative_to(folder)
    found = place, place.with_suffix(".png")  # the input may be a photograph
    stem = CITYSCAPES.sub("", file.stem)
    for path in (*found, place.with_name(f"{stem}_gtFine_instanceIds.png")):
        if path.is_file():
            return path
    raise InputError(f"there is no instance map {found[1]} of {file}")


def points_of(file: Path, folder: Path, points: Path) -> Path:
    """The file of the points that an input shows, which is below `folder`. Raises InputError."""
    path = (points / file.relative_to(folder)).with_suffix(".npy")
    if not path.is_file():
        raise InputError(f"there is no file {path} with the points of {file}")
    return path


def sequences_of(files: Sequence[Path]) -> list[list[Path]]:
    """The sequences that `files` are for a model of video, as in a training. Raises InputError
    where the order of frames is not clear."""
    by_name = {os.path.splitext(file)[0]: file for file in files}
    return [[by_name[name] for name in sequence] for sequence in in_sequences(by_name)]


def folder_of(inputs: Path) -> Path:
    """The folder of inputs that are a folder, or a file in one."""
    return inputs if inputs.is_dir() else inputs.parent


def output_of(file: Path, folder: Path, output: Path) -> Path:
    """Where the image made from `file`, which is below `folder`, is written."""
    return (output / file.relative_to(folder)).with_suffix(".png")


def check_outputs(
    files: Sequence[Path], folder: Path, output: Path, others: Sequence[Path] = ()
) -> None:
    """Raise InputError where images would be written among the inputs, which could replace them and
    change their list while ranks read it, or among the `others` that are read, and where two would
    have one name."""
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output} is a file: name a folder")
    if len(files) > 1 and output.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"--output {output} is in the folder of the inputs, {folder}", hint="name another one"
        )
    for other in others:
        read = other if other.is_dir() else other.parent
        if output.resolve() == read.resolve() or (
            other.is_dir() and output.resolve().is_relative_to(read.resolve())
        ):
            raise InputError(
                f"--output {output} is the folder of {other}, which is read",
                hint="name another one",
            )
    seen: dict[Path, Path] = {}
    inputs = {file.resolve() for file in files} if len(files) > 1 else set()
    for file in files:
        place = output_of(file, folder, output)
        if place.resolve() in inputs:
            raise InputError(f"the image made from {file} would replace the input {place}")
        if place in seen:
            raise InputError(f"{seen[place]} and {file} would both become {place}")
        seen[place] = file
    if len(files) == 1 and output_of(files[0], folder, output).resolve() == files[0].resolve():
        raise InputError(f"the image made from {files[0]} would replace it: name another --output")
