#!/usr/bin/env python3
"""What simple generators get in the evaluation of a task of video, such as `vid2vid`.

    python benchmarks/video_baselines.py configs/vid2vid_small.yaml [--run RUN] [--spade RUN]

- untrained: the networks before the first step.
- copy: the true first frame, then each frame is the one before, warped by the reference flow.
- still: the true first frame, again and again.
With `--run`, the directory of a trained run of the job file:
- trained: its generator.
- own copy: as `copy`, but from the generator's own first frame.
- frame by frame: each frame made by the generator's network of first frames, which sees no other.
With `--spade`, the directory of a run of `spade` that was trained on the frames (`--export FOLDER`
writes them in the layout that it reads):
- spade: each frame made by that generator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from baselines import arguments_parser, evaluate, show, task_of
from PIL import Image
from torch import Tensor

from hpc_amp.gan.data.synthetic import COLOURS
from hpc_amp.gan.data.training import drawn_videos
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.base import Networks
from hpc_amp.train.generate import load_generator

Made = tuple[Tensor, Tensor]
"""Frames [B, T, 3, H, W] and flows [B, T - 1, 2, H, W]."""


def chain(first: Tensor, batch: VideoBatch, *, moves: bool) -> Made:
    """Frames that follow from the first one [B, 3, H, W]."""
    assert batch.flows is not None
    frames = [first]
    for flow in batch.flows.unbind(1):
        frames.append(warp(frames[-1], flow) if moves else first)
    return torch.stack(frames, 1), batch.flows if moves else torch.zeros_like(batch.flows)


def one_by_one(make: Callable[[VideoBatch], Tensor], batch: VideoBatch) -> Made:
    """Each frame as a sequence of its own; the flow is 0."""
    length, parts = batch.images.shape[1], ("images", "labels", "instances", "inputs", "points")
    frames = {
        name: value.flatten(0, 1)[:, None]
        for name in parts
        if (value := getattr(batch, name)) is not None
    }
    seeds = batch.seeds.repeat_interleave(length)
    made = make(dataclasses.replace(batch, **frames, seeds=seeds, flows=None, known=None))
    flows = torch.zeros_like(batch.images[:, 1:, :2])
    return made[:, 0].unflatten(0, (-1, length)), flows


def export(task: Any, folder: Path) -> None:
    """Write the frames of a synthetic set as pairs of image and label map."""
    data = task.train.images
    for split in ("train", "test"):
        of = drawn_videos(data, min(data.labels, len(COLOURS)), split)
        for number in range(sum(of.lengths)):
            parts = of.pairs.parts
            for part, source in (("img", parts.images), ("label", parts.labels)):
                assert source is not None
                path = folder / f"{split}_{part}" / f"{number:05d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image: Image.Image = source.open(number)
                image.save(path)


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--run", type=Path, help="directory of a trained run")
    parser.add_argument("--spade", type=Path, help="directory of a run of spade on the frames")
    parser.add_argument("--export", type=Path, help="only write the frames to this folder")
    arguments = parser.parse_args()
    task: Any = task_of(arguments.config)
    task.prepare_data()
    if arguments.export is not None:
        export(task, arguments.export)
        return
    data, usual, train = task.train.images, task.render, task.train
    torch.manual_seed(0)
    networks: Networks = task.build_networks()
    found = {"untrained": evaluate(task, networks)}

    def measure(
        name: str, render: Callable[[VideoBatch, Networks], Made], *, given: bool = False
    ) -> None:
        """`given`: the true first frame and the flows are given, of which a way back has none."""
        evaluation = train.evaluation
        if given:
            evaluation = dataclasses.replace(evaluation, round_trip=False)
        task.train = dataclasses.replace(train, evaluation=evaluation)
        task.render = render
        found[name] = evaluate(task, networks)

    for name, moves in (("still", False), ("copy", True)):
        measure(
            name,
            lambda batch, of, moves=moves: chain(batch.images[:, 0], batch, moves=moves),
            given=True,
        )
    if arguments.run is not None:
        networks = load_generator(arguments.run).networks
        measure("trained", usual)
        measure(
            "own copy",
            lambda batch, of: chain(usual(batch, of)[0][:, 0], batch, moves=True),
            given=True,
        )
        measure("frame by frame", lambda batch, of: one_by_one(lambda b: usual(b, of)[0], batch))
    if arguments.spade is not None:
        networks = load_generator(arguments.spade).networks
        spade = networks["generator"]
        measure(
            "spade",
            lambda batch, of: one_by_one(
                lambda single: spade(conditions(single, data)[:, 0])[0][:, None], batch
            ),
        )
    show(found, arguments.json)


if __name__ == "__main__":
    main()
