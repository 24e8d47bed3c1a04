"""What is made of the points of a sweep: scripts and resolved jobs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.campaigns import planned_sweep
from support.environment import working_directory

from hpc_amp.campaigns.plan import CampaignPlan
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render
from hpc_amp.jobs.rundir import resolved
from hpc_amp.jobs.submit import prepare

JOB: dict[str, Any] = {
    "name": "test",
    "site": "slurm",
    "job": {"gpus_per_node": 2, "walltime": "10m"},
    "train": {"batch_size": 24},
}


def planned(folder: Path, *overrides: str, job: dict[str, Any] = JOB) -> CampaignPlan:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    with working_directory(folder):
        return planned_sweep(path, *overrides)


def ordinary(folder: Path, plan: CampaignPlan, index: int) -> Plan:
    """The plan that `submit` would make for a point, in the point's directory."""
    settings = plan.space.points[index].settings(plan.space.keys)
    with working_directory(folder):
        alone, loaded = prepare(folder / "job.yaml", [*plan.space.fixed, *settings])
        made = make_plan(loaded, alone.site, plan.folder / "points" / f"{index:04d}")
    # All that a point has beyond: it sees the folder that it shares.
    bind = [*made.job.container.bind, str(plan.folder)]
    container = dataclasses.replace(made.job.container, bind=bind)
    return dataclasses.replace(made, job=dataclasses.replace(made.job, container=container))


VARIED = [
    "train.optimizer.lr=0.1,0.2",
    "train.precision=fp16,bf16",
    "container.env.WORD=one,it's $HOME",
    "job.nodes=1,2",
    "train.checkpoint={every: 5steps},1epoch",
]


@pytest.mark.parametrize("site", ["slurm", "local", "pbs", "cobalt"])
def test_every_point_gets_the_script_and_the_job_that_submit_would_give_it(
    tmp_path: Path, site: str
) -> None:
    """A script is rendered once for all points that ask for the same, and a job is put together
    from what they have in common: neither may differ from an ordinary run's."""
    image = tmp_path / "image.sif"
    image.write_text("hsqs: the beginning of an image")
    job = {**JOB, "site": site, "container": {"image": str(image)}}

    plan = planned(tmp_path, *VARIED, job=job)

    assert len(plan.jobs) == 32
    assert sum(len(group.points) for group in plan.groups) == 32
    for group in plan.groups:
        template = group.launch_script()
        for index in group.points:
            expected = ordinary(tmp_path, plan, index)
            assert json.loads(plan.jobs[index]) == json.loads(json.dumps(resolved(expected)))
            own = template.replace(
                f"{plan.folder.name}/points/0000", f"{plan.folder.name}/points/{index:04d}"
            )
            assert own == render(expected)


def test_points_that_ask_for_the_same_are_one_group(tmp_path: Path) -> None:
    plan = planned(tmp_path, "train.seed=0,1,2", "job.nodes=1,2", "container.env.A=x,y")

    assert [group.points for group in plan.groups] == [
        (0, 1, 4, 5, 8, 9),
        (2, 3, 6, 7, 10, 11),
    ]
    assert [group.plan.job.resources.nodes for group in plan.groups] == [1, 2]


def test_own_commands_differ_in_job_json_alone(tmp_path: Path) -> None:
    job = {key: value for key, value in JOB.items() if key != "train"}

    plan = planned(tmp_path, "run=[python,a.py],[python,b.py]", job=job)

    assert len(plan.groups) == 1
    commands = [json.loads(line)["job"]["run"] for line in plan.jobs]
    assert commands == [["python", "a.py"], ["python", "b.py"]]


def test_a_job_is_one_line(tmp_path: Path) -> None:
    plan = planned(tmp_path, "train.seed=0,1", 'container.env.A="two\\nlines"')

    assert all("\n" not in line for line in plan.jobs)
    assert json.loads(plan.jobs[1])["job"]["container"]["env"]["A"] == "two\nlines"


def test_nothing_is_written(tmp_path: Path) -> None:
    planned(tmp_path, "train.seed=0,1")

    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.optimizer.lr=0.1,fast"], "override 'train.optimizer.lr=fast'"),
        (["train.optimizer.lr=0.1,fast"], "(point 1: train.optimizer.lr=fast)"),
        (
            ["train.batch_size=24,25", "train.seed=0,1"],
            "(point 2: train.batch_size=25 train.seed=0)",
        ),
        (["train.sed=0,1"], "did you mean train.seed?"),
        (["train.seed=0,1", "train.sed=1"], "did you mean train.seed?"),
    ],
)
def test_an_error_names_the_point(tmp_path: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, *overrides)

    assert said in str(caught.value)


def test_an_error_in_a_table_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    table = tmp_path / "points.csv"
    table.write_text("train.optimizer.lr\n0.1\nfast\n")

    with working_directory(tmp_path), pytest.raises(ConfigError) as caught:
        planned_sweep(Path("job.yaml"), table=table)

    assert f"({table}:3: train.optimizer.lr=fast)" in str(caught.value)
