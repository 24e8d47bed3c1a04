"""A view of campaigns in one file, outside of the package: how much a score depends on the seed.

python -m support.seeds_view start job.yaml COUNT, then status, report, continue or cancel NAME
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import click

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.plan import plan_campaign
from hpc_amp.campaigns.points import Point, Space
from hpc_amp.campaigns.spread import mean_half_width
from hpc_amp.campaigns.status import PointStatus
from hpc_amp.campaigns.submit import describe
from hpc_amp.campaigns.view import View
from hpc_amp.cli.campaigns import Limits, add_verbs, parent_option, start_campaign
from hpc_amp.config.load import read_job


class Seeds(View):
    """The same program with several seeds."""

    name = "seeds"
    noun = "study of seeds"
    parent = "seeds"

    def report(self, campaign: Campaign, statuses: Sequence[PointStatus]) -> str:
        """The mean of the scores, with its 95 % interval."""
        run_dirs = [Path(s.run.run_dir) for s in statuses if s.state == "finished" and s.run]
        lines = [(run_dir / "metrics.jsonl").read_text() for run_dir in run_dirs]
        scores = [float(json.loads(line)["score"]) for line in lines]
        half = mean_half_width(scores)
        interval = "" if half is None else f" ± {half:.2f}"
        return f"{len(scores)} of {len(campaign.points)} seeds: {fmean(scores):.2f}{interval}"


SEEDS = Seeds()


@click.group()
def seeds() -> None:
    """Measure how much a score depends on the seed."""


@seeds.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("count", type=int)
@parent_option("seeds")
def start(config: Path, count: int, parent: Path) -> None:
    """Run CONFIG with the seeds from 1 to COUNT."""
    points = tuple(Point(index, (str(index + 1),)) for index in range(count))
    space = Space(("container.env.SEED",), points, ())
    plan = plan_campaign(read_job(config), space, parent)
    start_campaign(SEEDS, plan, describe(SEEDS, plan), Limits(), as_json=False)


@seeds.command()
@click.argument("target")
@parent_option("seeds")
def report(target: str, parent: Path) -> None:
    """Show the mean of the scores."""
    campaign = SEEDS.find(target, parent)
    click.echo(SEEDS.report(campaign, SEEDS.statuses(campaign)))


add_verbs(seeds, lambda: SEEDS, "study", "seeds")

if __name__ == "__main__":
    seeds()
