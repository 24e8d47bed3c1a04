"""How the runs of a study are made from its job: what `study.json` holds besides the plan.

version         of hpc-amp
workdir         folder that paths in the job count from
overrides       keys of the job that the command line set, and the site
warmup          steps of a run before the first one measured
steps           steps measured, or null where `seconds` says for how long
seconds         null, or about how long is measured
evaluate        whether runs evaluate as the job says; they do not at all otherwise
checkpoints     whether runs save as the job says; only at their end otherwise
in_allocation   whether the runs share one job, one after the other
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hpc_amp import __version__
from hpc_amp.campaigns.output import write_file
from hpc_amp.config.schema import Job, Train
from hpc_amp.study.folder import KINDS, PlannedRun, Study, read_description

_MANY = 999_999_999
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("version", "workdir"), (str,)),
    "overrides": (list,),
    **dict.fromkeys(("evaluate", "checkpoints", "in_allocation"), (bool,)),
    "warmup": (int,),
    "steps": (int, type(None)),
    "seconds": (int, float, type(None)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The fields are those of the file."""

    version: str = __version__
    workdir: str
    overrides: tuple[str, ...]
    warmup: int
    steps: int | None
    seconds: float | None
    evaluate: bool
    checkpoints: bool
    in_allocation: bool

    def settings(self, run: PlannedRun, job: Job, train: Train) -> list[str]:
        """What a run changes of the study's job, as overrides."""
        total = self.warmup + self.steps if self.steps is not None else _MANY
        measured = f"steps={self.steps}" if self.steps is not None else f"seconds={self.seconds}"
        settings = [
            f"job.nodes={run.nodes}",
            f"train.batch_size={batch_size(run, job, train)}",
            f"train.timing.warmup={self.warmup}",
            f"train.timing.{measured}",
            f"train.max_steps={total}",
            f"train.epochs={total}",
            f"train.log_every={min(total, 1000)}",
            # A run that ends early is made again as a whole.
            "job.max_restarts=0",
            "job.chain=0",
            "restarts.on_failure=0",
        ]
        if train.schedule.decay_after is not None:
            settings.append("train.schedule.decay_after=null")  # it may lie behind the last step
        if not self.evaluate:
            settings.append("train.evaluate_every=0")
        if not self.checkpoints:
            settings += [
                f"train.checkpoint.every={_MANY}steps",
                "train.checkpoint.keep_best=0",
                "train.checkpoint.keep_every=null",
                "train.checkpoint.background=false",
            ]
        if self.in_allocation and run.repeat > 1:
            settings.append("launch.preflight=false")  # the nodes are the same ones
        return settings


def batch_size(run: PlannedRun, job: Job, train: Train) -> int:
    """Global batch of a run: the job's, or where it is weak scaling, as many samples a rank."""
    if run.kind == "strong":
        return train.batch_size
    return train.batch_size // job.world_size * job.ranks_per_node * run.nodes


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run that is to be made. It counts for one planned run, or for a strong and a weak one."""

    counts_for: tuple[PlannedRun, ...]

    @property
    def first(self) -> PlannedRun:
        """The planned run that says how it is made."""
        return self.counts_for[0]


def measurements(study: Study) -> list[Measurement]:
    """All of them in the order in which they are submitted: first each point once, the small ones
    first; then each once more. So a curve is there early, and what changes with time meets all
    points alike."""
    found = []
    for repeat in range(1, study.repeats + 1):
        for nodes in study.nodes:
            runs = tuple(PlannedRun(kind, nodes, repeat) for kind in KINDS if kind in study.kinds)
            same = groupby(runs, key=study.made_as)
            found += [Measurement(tuple(shared)) for _, shared in same]
    return found


def write_description(study: Study, recipe: Recipe) -> None:
    """Write `study.json`, in one step: it makes the folder a study. Raises UsageError."""
    content = {
        "name": study.name,
        "kind": "both" if len(study.kinds) > 1 else study.kinds[0],
        "nodes": study.nodes,
        "repeats": study.repeats,
        "created": study.created,
        "shared": study.shared,
        **dataclasses.asdict(recipe),
    }
    write_file(study.folder / "study.json", f"{json.dumps(content, indent=1)}\n".encode())


def read_recipe(study: Study) -> Recipe:
    """How the runs of a study are made. Raises UsageError where `study.json` does not say it."""
    return read_description(study.folder, _recipe)


def _recipe(content: dict[str, Any]) -> Recipe:
    values = {name: content[name] for name in _TYPES}
    for name, types in _TYPES.items():
        if type(values[name]) not in types:
            raise TypeError(f"{name} is of a wrong type")
    overrides = values["overrides"]
    if not all(type(override) is str for override in overrides):
        raise TypeError("overrides is not a list of texts")
    return Recipe(**{**values, "overrides": tuple(overrides)})
