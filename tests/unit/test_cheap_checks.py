"""What is checked before a job is submitted: the limits of the queue, and the user's program."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost
from support.studies import find_study
from support.terminal import Terminal

from hpc_amp.campaigns.record import read_submitted
from hpc_amp.config.command import program_in
from hpc_amp.errors import SchedulerError
from hpc_amp.schedulers.base import Client
from hpc_amp.study.folder import Study
from hpc_amp.tasks.classification.names import OWN, TORCHVISION

PARTITIONS = """\
batch*|up|1-00:00:00|1-infinite|4|gpu:4
debug|up|30:00|1-2|4|gpu:4
large|up|2-00:00:00|1-infinite|64|gpu:4
drained|inactive|infinite|1-infinite|4|gpu:4
"""
JOB: dict[str, Any] = {
    "name": "cifar",
    "site": "slurm",
    "job": {"gpus_per_node": 4, "walltime": "1h"},
    "train": {"batch_size": 512, "data": "synthetic"},
}


@pytest.fixture
def host(host: StubHost) -> StubHost:
    """Its Slurm has four partitions."""
    (host.state / "partitions").write_text(PARTITIONS)
    host.write_job(JOB)
    return host


def newest(host: StubHost) -> Study:
    return find_study("cifar", host.work / "studies")


# ---- submit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["job.nodes=8"],
            "hpc-amp: job.nodes is 8, and batch has 4; request fewer, or set job.queue: large "
            "(--no-check submits the job all the same)\n",
        ),
        (["-q", "debug", "-N4", "-t10m"], "job.nodes is 4, and debug allows at most 2 for a job"),
        (
            ["-q", "debug"],
            "job.walltime 01:00:00 is more than debug allows (00:30:00); make it",
        ),
        (["-q", "short"], "there is no partition short; the partitions are batch, debug, drained"),
        (["--gpus", "8"], "job.gpus_per_node is 8, and the nodes of batch have 4; request fewer"),
    ],
)
def test_what_the_partition_does_not_allow_is_not_submitted(
    host: StubHost, words: list[str], said: str
) -> None:
    result = host.hpc_amp("submit", "job.yaml", *words)

    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert host.calls("sbatch") == []
    assert not (host.work / "runs").exists()


def test_the_check_can_be_left_out(host: StubHost) -> None:
    result = host.hpc_amp("submit", "job.yaml", "job.nodes=5", "--no-check", "train.batch_size=20")
    assert result.returncode == 0, result.stderr
    assert host.calls("sinfo") == []


def test_a_partition_that_is_not_open_is_a_note(host: StubHost) -> None:
    result = host.hpc_amp("submit", "job.yaml", "-q", "drained")
    assert result.returncode == 0
    assert "note: the partition drained is inactive: it starts no job" in result.stderr


def test_a_scheduler_that_does_not_answer_does_not_stop_a_submission(host: StubHost) -> None:
    (host.state / "partitions").unlink()
    result = host.hpc_amp("submit", "job.yaml", "job.nodes=500", "train.batch_size=2000")
    assert result.returncode == 0, result.stderr
    assert len(host.calls("sbatch")) == 1


def test_a_client_is_asked_once_and_waited_for_once(tmp_path: Path) -> None:
    script = tmp_path / "slow"
    script.write_text(f"#!/bin/sh\necho called >>{tmp_path}/calls\n[ -z $1 ] || sleep 600\n")
    script.chmod(0o755)
    client = Client(0.5)
    assert client.output(str(script)) == client.output(str(script)) == ""
    begin = time.monotonic()
    for _ in range(2):
        with pytest.raises(SchedulerError, match="answer within"):
            client.output(str(script), "slow")
    assert time.monotonic() - begin < 300
    assert (tmp_path / "calls").read_text().splitlines() == ["called", "called"]


# ---- the program ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "train.py", "--lr", "1"], "train.py"),
        (["/usr/bin/python3.11", "-u", "-W", "ignore", "a/b.py"], "a/b.py"),
        (["python", "-m", "train"], None),
        (["python", "-uc", "print()"], None),
        (["python"], None),
        (["bash", "-e", "run.sh"], "run.sh"),
        (["bash", "-c", "./run.sh"], None),
        (["./train", "x"], "./train"),
        (["train"], None),
        ([], None),
    ],
)
def test_the_program_of_a_command(words: list[str], program: str | None) -> None:
    assert program_in(words) == program


def test_a_program_that_does_not_exist(host: StubHost) -> None:
    job = {**JOB, "run": ["python", "trian.py"]}
    del job["train"]
    host.write_job(job)
    result = host.hpc_amp("submit", "job.yaml")
    assert result.returncode == 2
    assert f"run: trian.py does not exist in {host.work}; check the path" in result.stderr
    assert host.calls("sbatch") == []
    (host.work / "trian.py").touch()
    assert host.hpc_amp("submit", "job.yaml").returncode == 0


def test_a_program_is_looked_for_in_the_code(host: StubHost) -> None:
    job = {**JOB, "run": ["python", "train.py"], "code": "mine"}
    del job["train"]
    host.write_job(job)
    (host.work / "mine").mkdir()
    assert f"does not exist in {host.work}/mine" in host.hpc_amp("submit", "job.yaml").stderr
    (host.work / "mine" / "train.py").touch()
    assert host.hpc_amp("submit", "job.yaml").returncode == 0


def test_a_program_in_a_folder_of_the_image_is_not_looked_for(host: StubHost) -> None:
    job = {**JOB, "run": ["python", "train.py"]}
    del job["train"]
    container = {"image": str(host.image), "args": ["--pwd", "/opt/app"]}
    host.write_job({**job, "container": container})
    assert host.hpc_amp("submit", "job.yaml").returncode == 0


def test_a_program_that_the_setup_may_make_is_a_note(host: StubHost) -> None:
    job = {**JOB, "run": ["python", "train.py"], "job": {**JOB["job"], "setup": "cd src"}}
    del job["train"]
    host.write_job(job)
    result = host.hpc_amp("submit", "job.yaml")
    assert result.returncode == 0
    assert "note: run: train.py does not exist" in result.stderr


# ---- names of networks ---------------------------------------------------------------------------


def test_a_network_that_nobody_knows(host: StubHost) -> None:
    result = host.hpc_amp("submit", "job.yaml", "train.model=resnet18x")
    assert result.returncode == 2
    assert "train.model.name: there is no model 'resnet18x'; did you mean resnet18" in result.stderr
    assert host.calls("sbatch") == []
    assert host.hpc_amp("submit", "job.yaml", "train.model=new", "--no-check").returncode == 0


def test_the_names_are_those_of_the_networks_that_are_built() -> None:
    import torchvision

    from hpc_amp.models.plain import PLAIN
    from hpc_amp.models.resnet import FAMILY

    assert {*FAMILY, *PLAIN} == OWN
    if torchvision.__version__.startswith("0.29."):  # another one may have more or fewer
        assert set(torchvision.models.list_models(module=torchvision.models)) == TORCHVISION


# ---- campaigns -----------------------------------------------------------------------------------


def test_a_sweep_is_checked_with_one_question(host: StubHost) -> None:
    result = host.hpc_amp("sweep", "job.yaml", "job.nodes=1,2,5", "train.batch_size=320")
    assert result.returncode == 2
    assert "job.nodes is 5, and batch has 4 (point 2: nodes=5); request fewer" in result.stderr
    assert len(host.calls("sinfo")) == 1
    assert host.calls("sbatch") == []
    assert not (host.work / "sweeps").exists()


def test_scale_plans_no_point_that_the_partition_does_not_allow(host: StubHost) -> None:
    result = host.hpc_amp("scale", "job.yaml", "--yes", "--repeats=1")
    assert result.returncode == 0, result.stderr
    assert newest(host).nodes == (1, 2, 4)
    assert "  8 nodes left out: job.nodes is 8, and batch has 4\n" in result.stdout
    assert len(host.calls("sinfo")) == 1


def test_numbers_of_nodes_that_were_given_are_not_left_out(host: StubHost) -> None:
    result = host.hpc_amp("scale", "job.yaml", "--nodes", "1,2,8,16", "train.batch_size=5120")
    assert result.returncode == 2
    assert result.stderr == (
        "hpc-amp: job.nodes is 8, and batch has 4; use --nodes 1,2 (--no-check submits the runs "
        "all the same)\n"
    )
    assert not (host.work / "studies").exists()


def test_a_walltime_that_no_point_may_have(host: StubHost) -> None:
    result = host.hpc_amp("scale", "job.yaml", "job.queue=debug")
    assert result.returncode == 2
    assert "walltime 01:00:00 is more than debug allows (00:30:00); make it" in result.stderr


def test_without_nodes_and_without_a_terminal_scale_needs_yes(host: StubHost) -> None:
    result = host.hpc_amp("scale", "job.yaml")
    assert result.returncode == 2
    assert result.stderr == (
        "hpc-amp: without --nodes, the runs have to be confirmed, and there is no terminal to ask; "
        "give --nodes 1,2,4, or confirm with --yes\n"
    )
    assert host.calls("sbatch") == []
    assert not (host.work / "studies").exists()


@pytest.mark.parametrize(("answer", "status", "jobs"), [("n", 1, 0), ("y", 0, 9)])
def test_without_nodes_scale_asks(host: StubHost, answer: str, status: int, jobs: int) -> None:
    command = [sys.executable, "-m", "hpc_amp", "scale", "job.yaml"]
    with Terminal(command, cwd=host.work, environ=host.environ()) as terminal:
        terminal.wait_for(r"9 runs: 21\.0 node-hours at most")
        terminal.wait_for(r"Submit\?")
        terminal.type(answer)
        assert terminal.end() == status
    assert len(host.calls("sbatch")) == jobs


# ---- points that are refused ---------------------------------------------------------------------

_REFUSES = """\
grep -q -- '--nodes=2' "$2" && { echo "sbatch: error: QOSMaxNodePerJobLimit" >&2; exit 1; }
"""


def test_a_refused_point_does_not_hold_up_the_others_and_can_be_dropped(host: StubHost) -> None:
    host.before("sbatch", _REFUSES)
    words = ["scale", "job.yaml", "--nodes=1,2,4", "--repeats=2"]
    result = host.hpc_amp(*words)

    study = newest(host)
    assert result.returncode == 1
    assert "QOSMaxNodePerJobLimit; 4 jobs were submitted; " in result.stderr
    told = f"to leave it out: hpc-amp scale drop {study.folder} 1,4\n"
    assert result.stderr.endswith(told)
    accepted = [one.points for one in read_submitted(study.campaign) if one.job_ids]
    assert accepted == [(0,), (2,), (3,), (5,)]

    dropped = host.hpc_amp("scale", "drop", "cifar", "1,4")
    assert (dropped.returncode, dropped.stderr) == (0, "")
    assert dropped.stdout == f"dropped 2 runs of {study.folder}\n"
    states = json.loads(host.hpc_amp("scale", "status", "cifar", "--json").stdout)
    assert states["counts"] == {"pending": 4, "dropped": 2}
    (host.state / "queue").write_text("")
    assert host.hpc_amp("scale", "continue", "cifar").returncode == 0
    retried = [one.points for one in read_submitted(study.campaign) if one.job_ids]
    assert retried[4:] == [(0,), (2,), (3,), (5,)]
    report = host.hpc_amp("scale", "report", "cifar").stdout
    assert "strong-n0002-r01  dropped  by hpc-amp scale drop" in report
    assert "incomplete: strong, 2 nodes: 0 of 2 runs measured (2 dropped)" in report


def test_a_point_that_waits_is_ended_when_it_is_dropped(host: StubHost) -> None:
    host.hpc_amp("scale", "job.yaml", "--nodes=1,2", "--repeats=1")
    assert host.hpc_amp("scale", "drop", "cifar", "1").returncode == 0
    assert host.calls("scancel") == [["4243"]]


@pytest.mark.parametrize(
    ("points", "said"),
    [("7", "there is no point 7; they are 0 to 1"), ("x", "'x' is not a list of points")],
)
def test_points_that_do_not_exist(host: StubHost, points: str, said: str) -> None:
    host.hpc_amp("scale", "job.yaml", "--nodes=1,2", "--repeats=1")
    result = host.hpc_amp("scale", "drop", "cifar", points)
    assert result.returncode == 2
    assert said in result.stderr


# ---- whole nodes ---------------------------------------------------------------------------------


def test_a_study_requests_whole_nodes_unless_the_job_says_otherwise(host: StubHost) -> None:
    host.hpc_amp("scale", "job.yaml", "--nodes=1", "--repeats=1")
    script = newest(host).folder / "array-1.sh"
    assert "\n#SBATCH --exclusive\n" in script.read_text()
    host.hpc_amp("scale", "job.yaml", "--nodes=1", "--repeats=1", "job.exclusive=false")
    assert "--exclusive" not in (newest(host).folder / "array-1.sh").read_text()
    host.hpc_amp("submit", "job.yaml")
    (run,) = (host.work / "runs" / "cifar").glob("2*")
    assert "--exclusive" not in (run / "launch.sh").read_text()
    command = json.loads((newest(host).folder / "campaign.json").read_text())["options"]["command"]
    assert command.endswith("scale job.yaml --nodes=1 --repeats=1 job.exclusive=false")
