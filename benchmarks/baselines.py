"""What the baseline scripts share: a task without a run, its evaluation, and the table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from hpc_amp.config.load import load_job
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Networks, Task
from hpc_amp.tasks.build import build_task

Metrics = dict[str, dict[str, float]]
"""The metrics of each generator, by its name."""


def read_arguments(description: str | None) -> argparse.Namespace:
    """The arguments of a script: `config` and `json`. `description` is its docstring."""
    return arguments_parser(description).parse_args()


def arguments_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of `read_arguments`, for a script with more options."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("config", type=Path, metavar="JOB_FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the metrics to FILE")
    return parser


def task_of(config: Path) -> Task:
    """The task of a job file, in fp32 on one CPU."""
    train = load_job(config, ["train.precision=fp32", "train.device=cpu"]).job.train
    assert train is not None
    return build_task(train, World(), torch.device("cpu"))


@torch.no_grad()
def evaluate(task: Task, networks: Networks) -> dict[str, float]:
    """The metrics of an evaluation on one rank."""
    for network in networks.values():
        network.eval()
    sums: dict[str, float] = {}
    for batch in task.evaluation_batches():
        for name, value in task.evaluate(batch, networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return task.summarize(sums)


def show(found: Metrics, file: Path | None) -> None:
    """Print a line for each generator, and write all to `file` as JSON if it is given."""
    width = max(map(len, found))
    for name, metrics in found.items():
        print(f"{name:{width}}  " + "  ".join(f"{key} {x:.4f}" for key, x in metrics.items()))
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")
