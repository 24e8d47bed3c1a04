#!/usr/bin/env python3
"""Does the number format change what a task reaches? One job in several formats, with equal seeds.

    OMP_NUM_THREADS=1 python benchmarks/gan_quality.py configs/spade_small.yaml \\
        site=local job.ranks_per_node=1 train.epochs=4 --json out.json --picture out.png

The runs are a sweep (`hpc-amp sweep`, docs/sweeps.md) over `train.seed` and `train.precision.mode`.
The same command continues a sweep that was interrupted, and only reports on one that has finished:
so `--metric` can show another metric without new runs. Equal seeds have equal initial weights and
samples in all formats.

Two tests compare each format with the first one, both with Student's t at 95 %. "Between seeds"
compares the difference of the means with the standard deviations over the seeds; "of pairs" uses
the differences of runs with equal seeds. A format differs where either of them is significant.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.folder import DESCRIPTION, Campaign, read_campaign
from hpc_amp.campaigns.points import SEED, Space, read_space
from hpc_amp.campaigns.spread import student_quantile
from hpc_amp.campaigns.tables import Table, as_text
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.jobs.summary import read_summary
from hpc_amp.sweep.ranking import Ranked, rank
from hpc_amp.sweep.view import SWEEP

MODE = "train.precision.mode"
TITLE = 14
"""Height in pixels of the name of a format in a picture."""
Values = Mapping[str, Mapping[int, float]]
"""The metric of the finished runs, by format and seed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a format is from the first one, over the seeds that both have."""

    seeds: int
    mean: float
    t_between_seeds: float
    t_of_pairs: float

    @property
    def bounds(self) -> tuple[float, float]:
        """What the two t must exceed to be significant at 95 %."""
        return student_quantile(2 * self.seeds - 2), student_quantile(self.seeds - 1)

    @property
    def significant(self) -> bool:
        """Whether either test says that the formats differ."""
        between, pairs = self.bounds
        return abs(self.t_between_seeds) > between or abs(self.t_of_pairs) > pairs


def difference(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """The difference of two formats by seed. None where they have less than two seeds in common."""
    seeds = sorted(values.keys() & base.keys())
    if len(seeds) < 2:
        return None
    ours, theirs = [values[seed] for seed in seeds], [base[seed] for seed in seeds]
    pairs = [one - other for one, other in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(pairs)
    spread = math.sqrt(statistics.variance(ours) + statistics.variance(theirs))
    root = math.sqrt(len(seeds))
    return Difference(
        len(seeds), mean, _ratio(mean * root, spread), _ratio(mean * root, statistics.stdev(pairs))
    )


def _ratio(value: float, spread: float) -> float:
    """`value / spread`, where there may be no spread at all."""
    if spread > 0:
        return value / spread
    return math.copysign(math.inf, value) if value else 0.0


def find_sweep(parent: Path, job_file: bytes, space: Space) -> Campaign | None:
    """The newest sweep of a job file with this content, and with the same settings and points."""
    points = [point.values for point in space.points]
    for description in sorted(parent.glob(f"*/[0-9]*/{DESCRIPTION}"), reverse=True):
        found = read_campaign(description.parent.resolve())
        if (
            (found.view, found.fixed, found.keys) == (SWEEP.name, space.fixed, space.keys)
            and [point.values for point in found.points] == points
            and (found.folder / "config.yaml").read_bytes() == job_file
        ):
            return found
    return None


def train(flags: argparse.Namespace) -> Campaign:
    """Start the sweep, or continue it. Returns it when this machine has run its points, or when
    a scheduler has taken them."""
    seeds, modes = (",".join(map(str, each)) for each in (range(flags.seeds), flags.modes))
    settings = [*flags.settings, f"{SEED}={seeds}", f"{MODE}={modes}"]
    space = read_space(settings)
    if set(space.keys) != {SEED, MODE}:
        raise UsageError("only the seed and the format may have several values")
    try:
        job_file = flags.config.read_bytes()
    except OSError as error:
        raise UsageError(f"{flags.config} cannot be read: {error.strerror}") from None
    found = find_sweep(flags.sweeps_dir, job_file, space)
    if found is None:
        command = ["start", str(flags.config), *settings]
    else:
        command = ["continue", str(found.folder)]
    options = ["--sweeps-dir", str(flags.sweeps_dir), "--max-parallel", str(flags.max_parallel)]
    status = subprocess.run(
        [sys.executable, "-m", "hpc_amp", "sweep", *command, *options], check=False
    ).returncode
    found = found or find_sweep(flags.sweeps_dir, job_file, space)
    # 1: a run has failed, which the report says.
    if status not in (0, 1) or found is None:
        sys.exit(status or 1)
    return found


def facts_of(campaign: Campaign, one: Ranked) -> dict[str, Any]:
    """What a run has reached, and its loss scales."""
    values = dict(zip(campaign.keys, one.status.point.values, strict=True))
    summary = read_summary(one.run_dir)
    checkpoint = sorted(one.run_dir.glob("checkpoints/step-*/trainer.json"))[-1]
    trainer = json.loads(checkpoint.read_text())
    scalers = {name: s for phase in trainer["scalers"].values() for name, s in phase.items()}
    return {
        "mode": values[MODE],
        "seed": int(values[SEED] or 0),
        "value": one.value,
        "metrics": summary["metrics"],
        "steps": summary["steps"],
        "seconds": summary["seconds"],
        "skipped_updates": trainer["skipped_updates"],
        "loss_scales": {
            name: {"scale": state["scale"], "overflows": state["skipped_steps"]}
            for name, state in scalers.items()
        },
    }


def values_table(values: Values, seeds: Sequence[int]) -> Table:
    """The metric of each run, and mean and standard deviation of each format."""
    rows = []
    for seed in seeds:
        cells = (f"{of[seed]:.5f}" if seed in of else "-" for of in values.values())
        rows.append((f"seed {seed}", *cells))
    rows.append(("mean", *(_shown(of, statistics.fmean, 1) for of in values.values())))
    rows.append(
        ("standard deviation", *(_shown(of, statistics.stdev, 2) for of in values.values()))
    )
    return Table(("", *values), tuple(rows), words=frozenset([""]))


def _shown(values: Mapping[int, float], statistic: Any, least: int) -> str:
    return f"{statistic(values.values()):.5f}" if len(values) >= least else "-"


def differences_table(found: Mapping[str, Difference | None], base: str) -> Table:
    """What the tests say of each format but the first one."""
    rows = []
    for mode, one in found.items():
        if one is None:
            rows.append((mode, "-", "-", "-", "too few runs"))
            continue
        between, pairs = one.bounds
        rows.append(
            (
                mode,
                f"{one.mean:+.5f}",
                f"{one.t_between_seeds:+.2f} (±{between:.2f})",
                f"{one.t_of_pairs:+.2f} (±{pairs:.2f})",
                "differs" if one.significant else "no significant difference",
            )
        )
    titles = ("", f"minus {base}", "t between seeds", "t of pairs", "verdict")
    return Table(titles, tuple(rows), words=frozenset(["", "verdict"]))


def scales_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """The scale of each loss at the end of each run, and how often its gradients overflowed."""
    names = list(dict.fromkeys(name for run in runs for name in run["loss_scales"]))
    rows = []
    for run in runs:
        scales = run["loss_scales"]
        cells = (f"{scales[name]['scale']:g} ({scales[name]['overflows']})" for name in names)
        skipped = str(sum(run["skipped_updates"].values()))
        rows.append((run["mode"], str(run["seed"]), *cells, skipped))
    titles = ("", "seed", *names, "skipped updates")
    return Table(titles, tuple(rows), words=frozenset([""]))


def save_picture(file: Path, folders: Mapping[str, Path]) -> None:
    """Write the newest picture of one run of each format, one below the other; small ones are
    enlarged."""
    from PIL import Image, ImageDraw

    found = {mode: sorted(path.glob("samples/*.png")) for mode, path in folders.items()}
    panels = {mode: Image.open(paths[-1]).convert("RGB") for mode, paths in found.items() if paths}
    if not panels:
        raise UsageError("--picture: no run has pictures in samples/")
    width, height = next(iter(panels.values())).size
    times = max(1, 1000 // width)
    width, height = times * width, times * height
    whole = Image.new("RGB", (width, (height + TITLE) * len(panels)), "white")
    draw = ImageDraw.Draw(whole)
    for place, (mode, panel) in enumerate(panels.items()):
        top = place * (height + TITLE)
        draw.text((0, top + 1), mode, fill="black")
        large = panel.resize((width, height), Image.Resampling.NEAREST)
        whole.paste(large, (0, top + TITLE))
    whole.save(file, optimize=True)


def report(campaign: Campaign, flags: argparse.Namespace) -> bool:
    """Print what the finished runs have reached, and write the files that were asked for. Returns
    whether all runs have finished."""
    ranking = rank(campaign, SWEEP.statuses(campaign), flags.metric)
    in_order = sorted(ranking.ranked, key=lambda one: one.status.index)
    runs = [facts_of(campaign, one) for one in in_order]
    values = {
        mode: {run["seed"]: run["value"] for run in runs if run["mode"] == mode}
        for mode in flags.modes
    }
    base, *others = flags.modes
    found = {mode: difference(values[mode], values[base]) for mode in others}
    sections = {ranking.metric: values_table(values, range(flags.seeds))}
    if others:
        sections["differences of formats (in parentheses: the bounds of significance at 95 %)"] = (
            differences_table(found, base)
        )
    scaled = [run for run in runs if run["loss_scales"]]
    if scaled:
        sections["loss scales at the end (in parentheses: overflows)"] = scales_table(scaled)
    for title, table in sections.items():
        print(f"\n{title}")
        print("\n".join(f"  {line}" for line in as_text(table)))
    seconds = {mode: [run["seconds"] for run in runs if run["mode"] == mode] for mode in values}
    means = (f"{mode} {statistics.fmean(each):.0f}" for mode, each in seconds.items() if each)
    print(f"\nmean seconds of a run: {', '.join(means)}")
    for status in ranking.others:
        setting = " ".join(campaign.overrides_of(status.index))
        print(f"without a result: {setting}: {status.state}: {status.reason}")
    if flags.json:
        facts = {
            "date": date.today().isoformat(),
            "torch": version("torch"),
            "machine": platform.machine(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "config": str(flags.config),
            "settings": flags.settings,
            "metric": ranking.metric,
            "synthetic": ranking.synthetic,
            "runs": runs,
            "differences": {
                mode: one
                and {
                    "mean": one.mean,
                    "t_between_seeds": one.t_between_seeds,
                    "t_of_pairs": one.t_of_pairs,
                    "bounds": one.bounds,
                    "significant": one.significant,
                }
                for mode, one in found.items()
            },
        }
        flags.json.write_text(json.dumps(facts, indent=1) + "\n")
    if flags.picture:
        pairs = zip(runs, in_order, strict=True)
        save_picture(flags.picture, {r["mode"]: one.run_dir for r, one in pairs if r["seed"] == 0})
    return not ranking.others


def main() -> None:
    """Train in all formats, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="a job file of any task")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="replaces a value of it")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="train with N seeds")
    parser.add_argument("--modes", nargs="+", default=["fp32", "bf16", "fp16"], metavar="FORMAT")
    parser.add_argument("--metric", help="default: the one that the task names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="pictures of all formats")
    parser.add_argument("--sweeps-dir", type=Path, default=Path("sweeps"), metavar="FOLDER")
    parser.add_argument("--max-parallel", type=int, default=1, metavar="N", help="runs at once")
    flags = parser.parse_intermixed_args()
    if flags.seeds < 2 or len(set(flags.modes)) < 2:
        parser.error("there must be at least two seeds and two formats")
    try:
        finished = report(train(flags), flags)
    except HpcAmpError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if not finished:
        print("\nthe same command trains what is missing")
        sys.exit(1)


if __name__ == "__main__":
    main()
