"""Scaling studies on disk, as submitting and running them leaves them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_amp.campaigns import figure
from hpc_amp.campaigns.folder import read_campaign, write_description
from hpc_amp.study.folder import KINDS, Kind, PlannedRun, Study, study_of
from hpc_amp.study.plan import KEYS
from hpc_amp.study.view import SCALE
from support.campaigns import ID, make_campaign
from support.rank_times import rank_file


def make_study(
    parent: Path,
    *,
    name: str = "cifar",
    study_id: str = ID,
    kind: str = "strong",
    nodes: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 3,
    scheduler: str = "local",
) -> Path:
    """`studies/<name>/<id>` below `parent`, with nothing submitted yet. Strong and weak scaling
    share no run."""
    kinds = [one for one in KINDS if kind in (one, "both")]
    batches = {"strong": lambda number: 512, "weak": lambda number: 128 * number}
    values = [(str(number), str(batches[one](number))) for one in kinds for number in nodes]
    settings = {one: range(at * len(nodes), (at + 1) * len(nodes)) for at, one in enumerate(kinds)}
    campaign = make_campaign(
        parent / "studies" / name / study_id, KEYS, values,
        view="scale", name=name, scheduler=scheduler,
        created="2026-11-27 22:34:55 UTC", repeats=repeats,
        submitting="jobs", resumes=False,
        options={
            "kinds": kinds, "nodes": list(nodes),
            "settings": {one: list(numbers) for one, numbers in settings.items()},
        },
    )  # fmt: skip
    campaign.folder.mkdir(parents=True)
    write_description(campaign)
    return campaign.folder


def read_study(folder: Path) -> Study:
    """The study in a folder."""
    return study_of(read_campaign(folder))


def find_study(name: str, parent: Path) -> Study:
    """The newest study of that name, or the one in a folder."""
    return study_of(SCALE.find(name, parent))


def run_dir_of(study: Path, label: str) -> Path:
    """The run directory of `strong-n0004-r02`."""
    kind, nodes, repeat = label.split("-")
    planned = PlannedRun(KINDS[kind == "weak"], int(nodes[1:]), int(repeat[1:]))
    return study / "points" / f"{read_study(study).point(planned):04d}"


def share(study: Path, nodes: int) -> None:
    """Let strong and weak scaling share their runs on so many nodes."""
    path = study / "campaign.json"
    content = json.loads(path.read_text())
    at, settings = content["options"]["nodes"].index(nodes), content["options"]["settings"]
    settings["weak"][at] = settings["strong"][at]
    path.write_text(json.dumps(content))


def submit_run(
    study: Path, kind: Kind, nodes: int, repeat: int, *, state: str = "finished"
) -> Path:
    """The run directory of a run that got as far as `state`, without measurements."""
    index = read_study(study).point(PlannedRun(kind, nodes, repeat))
    run_dir = study / "points" / f"{index:04d}"
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text(json.dumps({"scheduler": "local", "job": {"name": "test"}}))
    event = {"time": 1, "state": state, "reason": "out of memory" if state == "failed" else ""}
    (run_dir / "state.jsonl").write_text(json.dumps(event) + "\n")
    return run_dir


def write_timing(run_dir: Path, ranks: Sequence[dict[str, Any]], *, attempt: int = 1) -> Path:
    """The files of ranks in an attempt's folder, which is returned."""
    timing = run_dir / "attempts" / str(attempt) / "timing"
    timing.mkdir(parents=True)
    for rank in ranks:
        (timing / f"rank-{rank['rank']:05d}.json").write_text(json.dumps(rank))
    return timing


def measure(
    study: Path,
    kind: Kind,
    nodes: int,
    repeat: int,
    seconds: float | Callable[[int], Sequence[float]],
    **changes: Any,
) -> Path:
    """A finished run of a point in which every step takes `seconds`, or what this gives for a rank.
    Weak scaling keeps 128 samples a node. Returns the folder of its timing."""
    run_dir = submit_run(study, kind, nodes, repeat)
    batch = {"batch_size": 128 * nodes} if kind == "weak" else {}
    gpus = changes.get("gpus_per_node", 4)
    ranks = []
    for rank in range(nodes * gpus):
        steps = seconds(rank) if callable(seconds) else [seconds] * 30
        ranks.append(rank_file(rank, nodes, steps, **{**batch, **changes}))
    return write_timing(run_dir, ranks)


@contextlib.contextmanager
def only(*forms: str) -> Iterator[None]:
    """Pictures are drawn in these formats alone: each takes a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "FORMATS", {form: figure.FORMATS[form] for form in forms})
        yield


def use_nodes(study: Path, label: str, nodes: Sequence[str], start: int, end: int) -> None:
    """Let the attempt of a measured run have used these nodes from `start` to `end`."""
    run_dir = run_dir_of(study, label)
    attempt = run_dir / "attempts" / "1"
    (attempt / "owner").write_text(json.dumps({"job_id": "1", "host": nodes[0], "time": start}))
    (attempt / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    event = {"time": end, "state": "finished", "attempt": 1, "reason": ""}
    (run_dir / "state.jsonl").write_text(json.dumps(event) + "\n")
