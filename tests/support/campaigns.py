"""Campaigns on disk, as starting and running them leaves them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_amp.campaigns.folder import Campaign, Group, repeated
from hpc_amp.campaigns.plan import CampaignPlan, plan_campaign
from hpc_amp.campaigns.points import Point, read_space
from hpc_amp.config.load import read_job
from hpc_amp.jobs.events import record_event
from hpc_amp.sweep.view import SWEEP

ID = "20261127-223455-kqzf"


def planned_sweep(
    config: Path, *overrides: str, table: Path | None = None, parent: Path = Path("sweeps")
) -> CampaignPlan:
    """The plan of a sweep, in the working directory."""
    space = read_space(overrides, table=table)
    return plan_campaign(read_job(config, space.fixed), space, parent)


def find_sweep(name: str, parent: Path) -> Campaign:
    """The newest sweep of that name, or the one in a folder."""
    return SWEEP.find(name, parent)


def group(*points: int, **changes: Any) -> Group:
    """Points that share the launch script `launch.sh`, on one node without GPUs."""
    values: dict[str, Any] = {
        "script": "launch.sh", "directives": (), "points": points, "nodes": 1, "gpus": 0,
        "cores": 1, "tasks_per_node": 1, "walltime": 600, "stop_margin": 60,
    }  # fmt: skip
    return Group(**{**values, **changes})


def points_of(script: Path) -> list[str]:
    """The names of the run directories that a script of an array or of a job makes."""
    text = script.read_text()
    runs = re.findall(r"^run .* (\d{4}\S*) launch\S*$", text, re.MULTILINE)
    if runs:
        return list(runs)
    (line,) = re.findall(r"^points=\(.*?\)", text, re.MULTILINE)
    command = ["bash", "-c", f'{line}; echo "${{points[@]}}"']
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.split()


def begin_task(script: Path, job_id: str, task: int = 0) -> Path:
    """What the script of a task does first: its run directory, with the events of a submission."""
    name = points_of(script)[task]
    folder = script.parent
    job = (folder / "jobs.jsonl").read_text().splitlines()[int(name[:4])]
    run_dir = folder / "points" / name
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text(job.replace(f"points/{name[:4]}", f"points/{name}"))
    scheduler = json.loads(job)["scheduler"]
    number = int(script.stem.partition("-")[2])
    record_event(run_dir, "submitted", array=number, scheduler=scheduler)
    record_event(run_dir, "queued", job_id=job_id)
    return run_dir


def make_campaign(
    folder: Path, keys: Sequence[str], values: Sequence[Sequence[str | None]], **changes: Any
) -> Campaign:
    """A campaign in `folder` whose points have these values, each once unless `repeats` says more
    often; nothing of it is on disk."""
    settings = [Point(index, tuple(one)) for index, one in enumerate(values)]
    repeats = changes.pop("repeats", 1)
    points = repeated(settings, repeats)
    fields: dict[str, Any] = {
        "view": "sweep", "name": "test", "created": "2026-11-27T22:34:55+00:00", "site": "local",
        "scheduler": "local", "fixed": (), "groups": (group(*range(len(points))),),
        "submitting": "arrays", "resumes": True, "at_once": None, "own_code": False, "options": {},
    }  # fmt: skip
    return Campaign(
        **{**fields, **changes}, folder=folder, keys=tuple(keys), points=points, repeats=repeats
    )
