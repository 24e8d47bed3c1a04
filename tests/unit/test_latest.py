"""`<name>/latest`, the folder of a name, and what names the shell's completion offers."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import click
import pytest
from support.campaigns import begin_task
from support.environment import working_directory
from support.stubs import StubHost

from hpc_amp.campaigns.found import runs_of
from hpc_amp.campaigns.snapshot import write_snapshot
from hpc_amp.cli.options import complete_runs
from hpc_amp.jobs.code import copy_code
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.places import newest_in

JOB = {"name": "a", "site": "slurm", "run": ["true"], "job": {"gpus_per_node": 0}}
OLD, NEW = "20260101-000000-aaaa", "20260102-000000-aaaa"


def submitted(host: StubHost, run_id: str, **config: object) -> Path:
    host.write_job({**JOB, **config})
    result = host.hpc_amp("submit", "job.yaml", f"--run-id={run_id}", "--json")
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


@pytest.fixture
def newest(host: StubHost) -> Path:
    """The newest of two runs of the name `a`."""
    submitted(host, OLD)
    return submitted(host, NEW)


def test_explain_and_shell_take_it(host: StubHost, newest: Path) -> None:
    (newest / "logs" / "job.log").write_text(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB\n"
    )
    record_event(newest, "failed", reason="exit status 1")
    explained = host.hpc_amp("explain", "runs/a/latest")
    assert explained.returncode == 0, explained.stdout + explained.stderr
    assert host.hpc_amp("explain", "runs/a/latest/logs/job.log").returncode == 0
    shell = host.hpc_amp("shell", "--print", "runs/a/latest")
    assert shell.returncode == 0, shell.stderr
    assert str(newest) in shell.stdout


def test_the_folder_of_a_name_is_its_newest_run(host: StubHost, newest: Path) -> None:
    for target in ("runs/a", "runs/a/", str(newest.parent)):
        shown = host.hpc_amp("status", target, "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)[0]["run_dir"] == str(newest)


@pytest.mark.parametrize("target", ["sweeps/a", "sweeps/a/latest", "a"])
def test_export_finds_a_sweep(host: StubHost, target: str) -> None:
    host.write_job(JOB)
    made = host.hpc_amp("sweep", "job.yaml", "job.walltime=10m,20m", "--json")
    assert made.returncode == 0, made.stderr
    (campaign,) = (host.work / "sweeps" / "a").glob("2*")
    point = begin_task(next(campaign.glob("array-*.sh")), "4242")
    with working_directory(host.work):
        assert runs_of(target, Path("runs")) == [point]


def test_a_run_of_a_sweep_is_found_through_it_and_the_sweep_is_no_run(host: StubHost) -> None:
    host.write_job(JOB)
    assert host.hpc_amp("sweep", "job.yaml", "job.walltime=10m,20m").returncode == 0
    (campaign,) = (host.work / "sweeps" / "a").glob("2*")
    (campaign / "logs").mkdir(exist_ok=True)
    point = begin_task(next(campaign.glob("array-*.sh")), "4242")
    (point / "logs").mkdir()
    (point / "logs" / "job.log").write_text("said\n")
    assert host.hpc_amp("logs", f"sweeps/a/latest/points/{point.name}").stdout == "said\n"
    for target in ("a", "sweeps/a/latest"):
        refused = host.hpc_amp("cancel", target)
        assert refused.returncode == 2
        message = f"hpc-amp: {target} is a campaign (hpc-amp sweep), and no run; name one of its"
        assert refused.stderr.startswith(message), refused.stderr


def test_paths_of_a_job_may_lead_through_it(host: StubHost, newest: Path) -> None:
    (newest / "code").mkdir()
    (newest / "code" / "program.py").write_text("")
    made = submitted(host, "20260103-000000-aaaa", name="b", code="runs/a/latest/code")
    assert (made / "code" / "program.py").is_file()
    bind = "runs/a/latest:/before"
    plan = host.plan({"container": {"image": str(host.image), "bind": [bind]}, "run": ["true"]})
    assert plan.job.container.bind == [f"{newest}:/before"]
    assert not any("is not on this machine" in remark for remark in plan.remarks)
    step = newest / "checkpoints" / "step-00000004"
    step.mkdir(parents=True)
    text = "runs/a/latest/checkpoints/step-00000004"
    train = {"task": "classification", "model": "resnet20"}
    plan = host.plan({"train": {**train, "start_from": {"path": text}}})
    assert plan.job.train is not None and plan.job.train.start_from is not None
    assert plan.job.train.start_from.path == str(step)


def test_only_names_of_runs_are_offered(tmp_path: Path) -> None:
    for name in (".hpc_amp", "a", "b"):
        (tmp_path / name).mkdir()
    context = click.Context(click.Command("status"))
    context.params["runs_dir"] = tmp_path
    assert complete_runs(context, click.Argument(["run"]), "") == ["a", "b"]


def test_benchmarks_are_no_code(tmp_path: Path) -> None:
    (tmp_path / "code" / "benches" / "a").mkdir(parents=True)
    copy_code(tmp_path / "code", tmp_path / "run", tmp_path / "runs")
    assert list((tmp_path / "run" / "code").iterdir()) == []


def test_a_package_may_have_the_name_of_a_folder_of_results(host: StubHost, tmp_path: Path) -> None:
    code, files = tmp_path / "functions", ["functions/__init__.py", "pkg/runs/a.py", "runs.txt"]
    for name in (*files, "runs/a/1/job.json", "pkg/sweeps/a/1/job.json", "pkg/__pycache__/a.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    os.mkfifo(code / "pipe")

    copy_code(code, tmp_path / "run", tmp_path / "elsewhere")
    plan = host.plan({"run": ["true"], "code": str(code), "job": {"gpus_per_node": 0}})
    folder = tmp_path / "elsewhere" / "a" / "1"
    folder.mkdir(parents=True)
    write_snapshot(folder, [plan])

    copied = (tmp_path / "run" / "code").rglob("*")
    names = [path.relative_to(tmp_path / "run" / "code") for path in copied if path.is_file()]
    assert sorted(map(str, names)) == files
    with tarfile.open(folder / "snapshot.tar") as archive:
        packed = [each.name for each in archive if each.isfile() and each.name.startswith("code/")]
    assert sorted(packed) == [f"code/{name}" for name in files]


def test_of_two_runs_of_the_same_second_the_later_one_is_the_newest(host: StubHost) -> None:
    submitted(host, "20260101-000000-zzzz")
    later = submitted(host, "20260101-000000-aaaa")

    assert (later.parent / "latest").read_text() == f"{later.name}\n"
    assert newest_in(later.parent) == later
