"""The name of a scenario, and the paths of its files."""

from __future__ import annotations

import argparse
import datetime
import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scenario:
    """One training. `name` describes it, and `time` distinguishes it from others."""

    time: str
    name: str
    data: str
    arch: str

    def folder(self, *parts: str) -> Path:
        """history/PARTS/DATA/ARCH."""
        return Path("history", parts[0], self.data, self.arch, *parts[1:])

    @property
    def checkpoints(self) -> Path:
        """The run directory, which `--resume` names."""
        return self.folder("checkpoints", self.time)

    @property
    def log(self) -> Path:
        """The log, with all output of rank 0."""
        return self.folder("logs") / f"{self.time}_{self.name}.txt"

    @property
    def tensorboard(self) -> Path:
        """The folder of the curves."""
        return Path("runs", self.data, self.arch, self.time)

    def variable(self, name: str) -> Path:
        """The file of one curve as an array."""
        return self.folder("variables", self.time) / f"{name}_{self.name}.npy"

    def saved(self, when: str, prefix: str) -> Path:
        """A file of weights."""
        return self.folder("saved", when, self.time) / f"{prefix}_{self.name}.pth.tar"


def describe(flags: argparse.Namespace, world_size: int) -> str:
    """The name of a scenario: its main flags."""
    return (
        f"data_{flags.dataname}_arch_{flags.arch}_init_{flags.dense_init_policy}"
        f"_GPUs_{world_size}_minib_{flags.batch_size}_opt_{flags.optimizer}_lr_{flags.lr}"
        f"_lrpolicy_{flags.lr_policy}_ep_{flags.epochs}"
    )


def begun(resumed: str | None) -> str:
    """The time of a scenario: that of the resumed one; in a job, that of the run, so that all of
    its attempts are one scenario; otherwise the present time."""
    if resumed is not None:
        return Path(resumed).resolve().name
    run = re.search(
        r"/(\d{8}-\d{6})-[a-z]{4}/attempts/", os.environ.get("HPC_AMP_OUTCOME_FILE", "")
    )
    now = datetime.datetime.now()
    moment = datetime.datetime.strptime(run[1], "%Y%m%d-%H%M%S") if run else now
    parts = (moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second)
    return "_".join(map(str, parts))
