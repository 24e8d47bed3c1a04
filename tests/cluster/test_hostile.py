"""Hostile names and texts, with the real sbatch, srun, torchrun and Apptainer: what
tests/unit/test_hostile_text.py shows with stubs.

Six jobs of two nodes with two ranks each, submitted at once from a folder whose name tries to break
every parser on the way.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import Cluster, one_real_rank
from support.stubs import REPORT, Report, read_reports
from support.warm_python import WarmPython

from hpc_amp.config.paths import literal

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

WORK = "-a b'c\"d\\e$(touch pwned)`touch pwned`#f%j%%;&|<>*~{x}!é💥"
RUNS = "run s'\"\\ #%x$(touch pwned)"
TEXTS = [
    "", " ", "a b", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "$HOME ${HOME} $$",
    "back\\slash", "ends\\", "a,b=c,d", "# no comment", "%j %% %s %n", "a;b&c|d>e<f",
    "line\nbreak\n", "\n", "tab\tand\rreturn", "-rf", "--help", "--", "*", "~", "{a,b}", "!!",
    "ünï💥\u202e", "\x01\x7f\u0085\u2028", "x" * 5000,
]  # fmt: skip
ENV = {f"VALUE_{index}": text for index, text in enumerate(TEXTS)}
CASES = list(itertools.product(["srun", "torchrun"], ["apptainer", "singularity", "none"]))


@pytest.fixture(scope="module")
def work(cluster: Cluster) -> Iterator[Path]:
    """A folder with a nasty name, where Apptainer mounts nothing by itself: not in /tmp."""
    with tempfile.TemporaryDirectory(dir="/srv", prefix="hpc-amp-test-") as folder:
        work = Path(folder) / WORK
        work.mkdir()
        shutil.copy(REPORT, work / "report.py")
        yield work


@pytest.fixture(scope="module")
def runs(
    warm_cluster: Cluster, warm_pythons: WarmPython, work: Path
) -> dict[tuple[str, str], dict[str, Any]]:
    """The status of one ended run for each case. torchrun imports torch in one of them, on one of
    the nodes."""
    cluster = dataclasses.replace(warm_cluster, python=str(one_real_rank(warm_pythons)))
    folders: dict[str, tuple[str, str]] = {}
    for launcher, runtime in CASES:
        name = f"{launcher}-{runtime}"
        config = {
            "name": name,
            "runs_dir": literal(f"./{RUNS}"),
            "run": ["python", "-I", "-S", "report.py", f"out-{name}", *TEXTS],
            "job": {"nodes": 2, "gpus_per_node": 0, "ranks_per_node": 2, "walltime": "5m"},
            "launch": {"method": launcher, "args": ["--comment=$(touch pwned) 'x'"]}
            if launcher == "srun"
            else launcher,
            "container": {"env": ENV},
        }
        (work / f"{name}.yaml").write_text(yaml.safe_dump(config))
        within = warm_cluster if launcher == "torchrun" and runtime != "apptainer" else cluster
        inside = within.overrides
        if runtime == "none":
            inside = ["site=slurm", f"container.python={within.python}"]
        result = cluster.hpc_amp(
            "submit", f"{name}.yaml", *inside, f"container.runtime={runtime}", "--json", cwd=work
        )
        folders[json.loads(result.stdout)["run_dir"]] = (launcher, runtime)

    deadline = time.monotonic() + 300
    while True:
        shown = cluster.hpc_amp("status", "--json", "--runs-dir", RUNS, cwd=work).stdout
        statuses = {folders[entry["run_dir"]]: entry for entry in json.loads(shown)}
        if not {"pending", "running", "unknown"} & {one["state"] for one in statuses.values()}:
            return statuses
        assert time.monotonic() < deadline, statuses
        time.sleep(1)


def log_of(run: dict[str, Any]) -> str:
    return (Path(run["run_dir"]) / "logs" / "job.log").read_text()


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A launcher and a container runtime."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def reports(
    case: tuple[str, str], runs: dict[tuple[str, str], dict[str, Any]], work: Path
) -> list[Report]:
    """What the four ranks of a case really got."""
    assert runs[case]["state"] == "finished", log_of(runs[case])
    reports = read_reports(work / "out-{}-{}".format(*case))
    assert len(reports) == 4
    return reports


def test_the_run_directory_and_its_log(
    case: tuple[str, str], runs: dict[tuple[str, str], dict[str, Any]], work: Path
) -> None:
    """`--chdir` and `--output` were read as they were meant: no `%` expanded, nothing cut off."""
    run_dir = Path(runs[case]["run_dir"])

    assert run_dir.parent == work / RUNS / "-".join(case)
    assert log_of(runs[case]).splitlines()[-1] == "attempt 1 ended: finished (status 0)"
    assert [path.name for path in (run_dir / "logs").iterdir()] == ["job.log"]


def test_arguments_arrive_unchanged(reports: list[Report]) -> None:
    for report in reports:
        assert report.argv == TEXTS


def test_environment_arrives_unchanged(reports: list[Report]) -> None:
    for report in reports:
        assert {name: report.environ.get(name) for name in ENV} == ENV


def test_the_working_directory_is_the_one_of_submit(reports: list[Report], work: Path) -> None:
    assert {report.cwd for report in reports} == {str(work)}


def test_every_rank_has_its_place(reports: list[Report]) -> None:
    places = [
        tuple(report.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"))
        for report in reports
    ]
    assert places == [("0", "4", "0", "0"), ("1", "4", "1", "0"), ("2", "4", "0", "1"),
                      ("3", "4", "1", "1")]  # fmt: skip
    nodes = [report.environ["SLURMD_NODENAME"] for report in reports]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert {report.environ["MASTER_ADDR"] for report in reports} == {nodes[0]}


def test_it_was_inside_the_container(case: tuple[str, str], reports: list[Report]) -> None:
    inside = ["APPTAINER_CONTAINER" in report.environ for report in reports]
    assert inside == [case[1] != "none"] * 4


def test_nothing_was_evaluated(runs: dict[tuple[str, str], dict[str, Any]], work: Path) -> None:
    assert runs
    assert list(work.parent.rglob("pwned")) == []


@pytest.mark.parametrize("name", ["a,b", "a^b", "blank ", "back\\", "a:b"])
def test_a_folder_that_no_mount_can_carry_is_refused(
    cluster: Cluster, work: Path, name: str
) -> None:
    cwd = work / name
    cwd.mkdir()
    (cwd / "job.yaml").write_text("name: test\nrun: ['true']\njob: {gpus_per_node: 0}\n")

    result = cluster.hpc_amp("submit", "job.yaml", *cluster.overrides, cwd=cwd, check=False)

    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: ")
    assert line.endswith("; work in another folder")
    assert [path.name for path in cwd.iterdir()] == ["job.yaml"]
