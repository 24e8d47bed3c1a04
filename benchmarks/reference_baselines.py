#!/usr/bin/env python3
"""What simple generators get in the evaluation of a task of video with references, such as
`fs_vid2vid`.

    python benchmarks/reference_baselines.py configs/fs_vid2vid_small.yaml
        [--run RUN [--finetune STEPS]]

- untrained: the networks before the first step.
- mean colours: each pixel has the mean colour of its label in all training frames. No better can be
  known without references.
- reference: the first reference, again and again.
- warped: each pixel from the first reference that shows its point, by the known flow; where none
  does, as `mean colours`.
- label colours: each pixel has the mean colour that its label has in the references; where none
  shows the label, as `mean colours`.
With `--run`, the directory of a trained run of the job file:
- trained: its generator.
- other references: the same with the references of another sequence.
With `--finetune`, also:
- fine-tuned: the generator after so many steps on the references of each sequence, as
  `hpc-amp generate --finetune` makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from baselines import arguments_parser, evaluate, show, task_of
from torch import Tensor

from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.base import Networks
from hpc_amp.train.finetuning import FineTuning
from hpc_amp.train.generate import load_generator

Made = tuple[Tensor, Tensor]
"""Frames [B, T, 3, H, W] and flows [B, T - 1, 2, H, W]."""


def colours_of(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The sums over pixels of the colours of each label in images [N, 3, H, W] with labels
    [N, H, W]: float64 [count, 3], and the numbers of pixels [count]."""
    found = torch.zeros(count, 3, dtype=torch.float64)
    found.index_add_(0, labels.flatten(), images.permute(0, 2, 3, 1).reshape(-1, 3).double())
    return found, labels.flatten().bincount(minlength=count).double()


def mean_colours(task: Any) -> Tensor:
    """Those of the labels in the training frames: [labels, 3]."""
    count = task.train.images.labels
    sums, pixels = torch.zeros(count, 3, dtype=torch.float64), torch.zeros(count).double()
    for batch in task.data.training.unchanged(task.data.training.samples):
        found = colours_of(batch.images.flatten(0, 1), batch.labels.flatten(0, 1), count)
        sums, pixels = sums + found[0], pixels + found[1]
    return sums / pixels.clamp(min=1)[:, None]


def paint(labels: Tensor, colours: Tensor) -> Tensor:
    """Labels [T, H, W] in colours [labels, 3]: [T, 3, H, W]."""
    return colours.float()[labels].permute(0, 3, 1, 2)


def still(batch: Any, frames: Tensor) -> Made:
    return frames, torch.zeros_like(batch.flows)


def paint_batch(batch: Any, mean: Tensor) -> Tensor:
    return torch.stack([paint(labels, mean) for labels in batch.labels])


def from_label_colours(batch: Any, mean: Tensor) -> Tensor:
    made = []
    for number, labels in enumerate(batch.labels):
        sums, pixels = colours_of(
            batch.references[number], batch.reference_labels[number], len(mean)
        )
        own = torch.where(pixels[:, None] > 0, sums / pixels.clamp(min=1)[:, None], mean)
        made.append(paint(labels, own))
    return torch.stack(made)


def from_known_flow(batch: Any, mean: Tensor) -> Tensor:
    made = paint_batch(batch, mean)
    length = made.shape[1]
    for number in reversed(range(batch.references.shape[1])):
        reference = batch.references[:, number, None].expand(-1, length, -1, -1, -1)
        flows = batch.reference_flows[:, :, number]
        warped = warp(reference.flatten(0, 1), flows.flatten(0, 1)).view_as(made)
        made = torch.where(batch.reference_known[:, :, number, None], warped, made)
    return made


def of_another(batch: Any) -> Any:
    """The batch with the references of another sequence."""
    names = ("references", "reference_labels", "reference_instances", "reference_inputs")
    values = {name: getattr(batch, name) for name in names}
    return dataclasses.replace(
        batch, **{name: value.roll(1, 0) for name, value in values.items() if value is not None}
    )


def sequence_of(batch: Any, number: int) -> Any:
    """One sequence of a batch."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dataclasses.replace(
        batch,
        **{name: value[[number]] for name, value in values.items() if value is not None},
    )


def fine_tuned(task: Any, networks: Networks, steps: int) -> Callable[[Any, Networks], Made]:
    """Makes each sequence of a batch by `task.render` with a generator of its own."""
    tuning = FineTuning(task, networks, PrecisionPolicy.create(task.train.precision, task.device))
    render = task.render

    def make(batch: Any, of: Networks) -> Made:
        made = []
        for number, seed in enumerate(batch.seeds.tolist()):
            sequence = sequence_of(batch, number)
            tuning.run(sequence.reference_frames.frames, steps, seed)
            made.append(render(sequence, tuning.networks))
        frames, flows = zip(*made, strict=True)
        return torch.cat(frames), torch.cat(flows)

    return make


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--run", type=Path, help="directory of a trained run")
    parser.add_argument(
        "--finetune", type=int, metavar="STEPS", help="also fine-tune the generator of the run"
    )
    arguments = parser.parse_args()
    task: Any = task_of(arguments.config)
    task.prepare_data()
    usual = task.render
    torch.manual_seed(0)
    networks: Networks = task.build_networks()
    found = {"untrained": evaluate(task, networks)}
    mean = mean_colours(task)

    def measure(name: str, render: Callable[[Any, Networks], Made]) -> None:
        task.render = render
        found[name] = evaluate(task, networks)

    measure("mean colours", lambda batch, of: still(batch, paint_batch(batch, mean)))
    measure(
        "reference",
        lambda batch, of: still(batch, batch.references[:, :1].expand_as(batch.images)),
    )
    measure("warped", lambda batch, of: still(batch, from_known_flow(batch, mean)))
    measure("label colours", lambda batch, of: still(batch, from_label_colours(batch, mean)))
    if arguments.run is not None:
        networks = load_generator(arguments.run).networks
        measure("trained", usual)
        measure("other references", lambda batch, of: usual(of_another(batch), of))
        if arguments.finetune is not None:
            task.render = usual
            measure("fine-tuned", fine_tuned(task, networks, arguments.finetune))
    show(found, arguments.json)


if __name__ == "__main__":
    main()
