"""The runs of a study in one job: on which nodes, in which order, and what when something ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.environment import REPOSITORY, require_program, working_directory
from support.stubs import Ended, StubHost, wait
from support.studies import find_study
from support.waiting import wait_for_file, wait_until

from hpc_amp.campaigns.measuring import Measuring
from hpc_amp.campaigns.submit import describe, parts_of, write, write_script
from hpc_amp.jobs.events import read_events
from hpc_amp.lint.linter import lint
from hpc_amp.study.folder import Study
from hpc_amp.study.plan import StudyOptions, plan_study
from hpc_amp.study.view import SCALE

JOB: dict[str, Any] = {
    "name": "cifar",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "ranks_per_node": 2, "walltime": "30m"},
    "launch": {"preflight": False},
    "train": {"batch_size": 512, "data": "synthetic"},
}

# Takes the place of a rank's Python: notes where it runs, and measures what it is told.
_RANK = """#!{python} -IS
import json, os, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
from support.rank_times import rank_file
sys.argv[2] == "--job" or sys.exit("unexpected: " + str(sys.argv))
run_dir = Path(sys.argv[3]).parent
nodes = int(os.environ["HPC_AMP_NNODES"])
rank = int(os.environ.get("SLURM_PROCID", os.environ.get("RANK", 0)))
noted = {{name: os.environ.get(name) for name in (
    "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE",
    "MASTER_ADDR", "HPC_AMP_WORLD_SIZE")}}
(run_dir / f"rank-{{rank}}").write_text(json.dumps(noted))
act = Path({act!r})
if (act / f"fail-{{nodes}}").exists():
    sys.exit(3)
while (act / f"wait-{{nodes}}").exists():
    time.sleep(0.05)
attempt = Path(os.environ["HPC_AMP_OUTCOME_FILE"]).parent
(attempt / "timing").mkdir(exist_ok=True)
measured = rank_file(rank, nodes, [0.1] * 30, gpus_per_node=int(os.environ["HPC_AMP_PPN"]))
(attempt / "timing" / f"rank-{{rank:05d}}.json").write_text(json.dumps(measured))
if rank == 0:
    Path(os.environ["HPC_AMP_OUTCOME_FILE"]).write_text('{{"outcome": "finished"}}')
"""


@pytest.fixture
def ranks(host: StubHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which files tell the ranks of a stub host what to do."""
    monkeypatch.setenv("PATH", str(host.bin), prepend=":")
    act = host.folder / "act"
    act.mkdir()
    program = host.folder / "rank"
    tests = str(REPOSITORY / "tests")
    program.write_text(_RANK.format(python=sys.executable, tests=tests, act=str(act)))
    program.chmod(0o755)
    host.write_job({**JOB, "container": {"python": str(program)}})
    return act


def submit(host: StubHost, *words: str) -> Study:
    result = host.hpc_amp("scale", "job.yaml", "--in-allocation", *words)
    assert result.returncode == 0, result.stderr
    return find_study("cifar", host.work / "studies")


def begin(host: StubHost, study: Study, number: int = 1, nodes: int = 4) -> subprocess.Popen[str]:
    """The script as Slurm starts it, on nodes of eight cores."""
    names = ",".join(f"n{node}" for node in range(1, nodes + 1))
    batch = {
        "SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": names, "SLURM_NTASKS": "1",
        "SLURM_JOB_CPUS_PER_NODE": f"8(x{nodes})", "SLURM_NNODES": str(nodes),
    }  # fmt: skip
    return subprocess.Popen(
        ["bash", study.folder / f"array-{number}.sh"],
        cwd=study.folder,
        env=host.environ(**batch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(host: StubHost, study: Study, number: int = 1, nodes: int = 4) -> Ended:
    return wait(begin(host, study, number, nodes), timeout=300)


def run_dirs(study: Study) -> dict[str, Path]:
    return {run.label: study.campaign.point_dir(study.point(run)) for run in study.planned_runs()}


def states(study: Study) -> dict[str, str]:
    statuses = SCALE.statuses(study.campaign)
    return {run.label: statuses[study.point(run)].state for run in study.planned_runs()}


def noted(run_dir: Path, rank: int = 0) -> dict[str, str]:
    return json.loads((run_dir / f"rank-{rank}").read_text())


def test_a_signal_in_the_instant_in_which_a_run_starts_reaches_it(tmp_path: Path) -> None:
    """It comes when the run's process is there, and its number is not noted yet."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "launch.sh").write_text(
        'trap "touch heard; exit 75" TERM\ntouch there\nfor i in {1..200}; do sleep 0.05; done\n'
    )
    host = REPOSITORY / "hpc_amp" / "host"
    script = (
        f"source {host}/child.sh\nsource {host}/in_turn.sh\nset -T\n"
        "strike() { trap - DEBUG; until [ -e there ]; do sleep 0.02; done; kill -TERM $$; }\n"
        """trap '[[ $BASH_COMMAND != "read -r"* ]] || strike' DEBUG\n"""
        'launch "$PWD"; echo "$? $stop_signal"'
    )

    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, text=True, capture_output=True, timeout=300
    )

    assert (ended.stdout, (tmp_path / "heard").exists()) == ("75 TERM\n", True), ended.stderr


# ---- Slurm ---------------------------------------------------------------------------------------


def test_each_run_has_the_first_nodes_for_itself(host: StubHost, ranks: Path) -> None:
    study = submit(host, "--nodes=1,2,4", "--repeats=1")
    assert [call[-1] for call in host.calls("sbatch")] == [str(study.folder / "array-1.sh")]
    script = (study.folder / "array-1.sh").read_text()
    assert "#SBATCH --nodes=4\n" in script

    ended = run(host, study)

    assert ended.status == 0, ended.output
    hosts = {"n0001": "n1", "n0002": "n1,n2", "n0004": "n1,n2,n3,n4"}
    for name, run_dir in run_dirs(study).items():
        nodes = int(name.split("-")[1][1:])
        assert noted(run_dir) == noted(run_dir, 2 * nodes - 1) | {
            "SLURM_JOB_NODELIST": hosts[name.split("-")[1]],
            "SLURM_NNODES": str(nodes),
            "SLURM_TASKS_PER_NODE": f"2(x{nodes})",
            "SLURM_JOB_CPUS_PER_NODE": f"8(x{nodes})",
            "MASTER_ADDR": "n1",
            "HPC_AMP_WORLD_SIZE": str(2 * nodes),
        }
    lines = [line.partition(":")[0] for line in ended.output.splitlines()]
    assert lines == [f"nodes={nodes} batch_size=512" for nodes in (1, 2, 4)]
    assert set(states(study).values()) == {"measured"}
    assert all("finished" in (d / "logs" / "job.log").read_text() for d in run_dirs(study).values())


def test_a_run_that_waits_for_its_turn(host: StubHost, ranks: Path) -> None:
    (ranks / "wait-2").touch()
    study = submit(host, "--nodes=1,2,4", "--repeats=1", "--kind=weak")
    assert set(states(study).values()) == {"pending"}
    queue = host.state / "queue"
    queue.write_text(queue.read_text().replace("PENDING", "RUNNING"))

    process = begin(host, study)
    wait_for_file(run_dirs(study)["weak-n0002-r01"] / "rank-0")
    now = states(study)
    (ranks / "wait-2").unlink()
    assert wait(process, timeout=300).status == 0

    assert now == {
        "weak-n0001-r01": "measured",
        "weak-n0002-r01": "running",
        "weak-n0004-r01": "pending",
    }


def test_repeats_of_a_point_that_failed_are_not_tried(host: StubHost, ranks: Path) -> None:
    (ranks / "fail-2").touch()
    study = submit(host, "--nodes=1,2,4", "--repeats=2")

    ended = run(host, study)

    assert ended.status == 1
    assert "nodes=2 batch_size=512 failed (status 3)" in ended.output
    assert states(study) == {
        "strong-n0001-r01": "measured",
        "strong-n0001-r02": "measured",
        "strong-n0002-r01": "failed",
        "strong-n0002-r02": "failed",
        "strong-n0004-r01": "measured",
        "strong-n0004-r02": "measured",
    }
    second = run_dirs(study)["strong-n0002-r02"]
    assert (
        read_events(second)[-1]["reason"] == "not tried: a run with the same settings failed before"
    )
    assert not (second / "rank-0").exists()

    (ranks / "fail-2").unlink()
    result = host.hpc_amp("scale", "continue", "cifar")
    assert "2 runs: 1.00 node-hours at most (one job of 00:30:00)" in result.stdout
    assert "#SBATCH --nodes=2\n" in (study.folder / "array-2.sh").read_text()
    assert run(host, study, 2, nodes=2).status == 0
    assert set(states(study).values()) == {"measured"}


def test_a_job_that_is_started_again_does_the_rest(host: StubHost, ranks: Path) -> None:
    (ranks / "fail-2").touch()
    study = submit(host, "--nodes=1,2", "--repeats=1")
    run(host, study)
    (ranks / "fail-2").unlink()
    first, second = (run_dirs(study)[f"strong-n000{nodes}-r01"] for nodes in (1, 2))
    for run_dir in (first, second):
        (run_dir / "rank-0").unlink()

    # `continue` makes a failed run again; a restart of the job does not.
    assert run(host, study).status == 1
    assert not (second / "rank-0").exists()

    # A run that ended with its node is made again.
    lines = (second / "state.jsonl").read_text().splitlines(keepends=True)
    assert '"state": "failed"' in lines[-1]
    (second / "state.jsonl").write_text("".join(lines[:-1]))
    assert run(host, study).status == 0

    assert not (first / "rank-0").exists()
    assert set(states(study).values()) == {"measured"}


def test_a_job_that_is_ended_begins_no_other_run(host: StubHost, ranks: Path) -> None:
    (ranks / "wait-2").touch()
    study = submit(host, "--nodes=1,2,4", "--repeats=1")
    process = begin(host, study)
    wait_for_file(run_dirs(study)["strong-n0002-r01"] / "rank-0")

    process.send_signal(signal.SIGTERM)
    (ranks / "wait-2").unlink()
    ended = wait(process, timeout=300)

    assert ended.status == 75
    assert not run_dirs(study)["strong-n0004-r01"].exists()
    assert "nodes=4" not in ended.output


def test_no_run_begins_that_cannot_end_in_time(host: StubHost, ranks: Path) -> None:
    (ranks / "wait-1").touch()
    study = submit(host, "--nodes=1,2", "--repeats=1", "job.walltime=8s", "job.stop_margin=1s")
    process = begin(host, study)
    wait_for_file(run_dirs(study)["strong-n0001-r01"] / "rank-0")
    time.sleep(4.5)  # of seven seconds
    (ranks / "wait-1").unlink()
    ended = wait(process, timeout=300)

    assert (ended.status, states(study)["strong-n0001-r01"]) == (0, "measured")
    reason = read_events(run_dirs(study)["strong-n0002-r01"])[-1]["reason"]
    assert reason.startswith("not tried: ") and "s of the job were left" in reason


def test_one_job_for_all_is_cancelled_once(host: StubHost, ranks: Path) -> None:
    study = submit(host, "--nodes=1,2", "--repeats=2")

    result = host.hpc_amp("scale", "cancel", "cifar")

    assert result.stdout == f"cancelled 4 runs of {study.folder}\n"
    assert host.calls("scancel") == [["4242"]]
    assert set(states(study).values()) == {"cancelled"}


def test_a_refused_job_leaves_no_runs_behind(host: StubHost, ranks: Path) -> None:
    host.fail("sbatch", "Invalid account")

    result = host.hpc_amp("scale", "job.yaml", "--in-allocation", "--nodes=1", "--repeats=2")

    assert result.returncode == 1
    assert result.stderr == "hpc-amp: sbatch refused the job: sbatch: error: Invalid account\n"
    assert list((host.work / "studies").iterdir()) == []


# ---- other schedulers ----------------------------------------------------------------------------

_MPIRUN = """#!/bin/bash
# Stub of Open MPI's mpirun: its first rank alone, which is enough to see where it would run.
while [ "$1" != env ]; do
  [ "$1" != --hostfile ] || cp "$2" {act}/hosts-$HPC_AMP_NNODES
  shift
done
OMPI_COMM_WORLD_RANK=0 "$@"
"""


@pytest.mark.parametrize(
    ("site", "variables"),
    [
        ("pbs", {"PBS_JOBID": "490.head"}),
        ("cobalt", {"COBALT_JOBID": "490"}),
    ],
)
def test_a_node_file_with_the_first_nodes(
    host: StubHost, ranks: Path, site: str, variables: dict[str, str]
) -> None:
    for name in ("qsub", "qstat"):
        (host.bin / name).write_text(
            "#!/bin/sh\n" + ("echo 490.head" if site == "pbs" else "echo 490") + "\n"
        )
        (host.bin / name).chmod(0o755)
    (host.bin / "mpirun").write_text(_MPIRUN.format(act=ranks))
    (host.bin / "mpirun").chmod(0o755)
    # A node stands there once a process in PBS, once in Cobalt.
    times = 2 if site == "pbs" else 1
    node_file = host.folder / "nodes"
    node_file.write_text("".join(f"n{node}\n" * times for node in range(1, 5)))
    study = submit(host, f"site={site}", "--nodes=1,2,4", "--repeats=1", "launch=mpirun")

    process = subprocess.Popen(
        ["bash", study.folder / "array-1.sh"],
        env=host.environ(**variables, **{f"{site.upper()}_NODEFILE": str(node_file)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ended = wait(process, timeout=300)

    assert ended.status == 0, ended.output
    for nodes in (1, 2, 4):
        hosts = (ranks / f"hosts-{nodes}").read_text().splitlines()
        assert hosts[:nodes] == [f"n{node} slots=2" for node in range(1, nodes + 1)]
        assert {line.split()[0] for line in hosts} == {f"n{n}" for n in range(1, nodes + 1)}


def test_on_this_machine_the_runs_follow_one_another(host: StubHost, ranks: Path) -> None:
    words = ("job.yaml", "site=local", "job.ranks_per_node=1", "--nodes=1", "--repeats=2")
    result = host.hpc_amp("scale", *words)

    assert result.returncode == 0, result.stderr
    study = find_study("cifar", host.work / "studies")
    wait_until(lambda: set(states(study).values()) == {"measured"}, "the end of all runs")
    assert "submitted 2 runs as 1 job (local)" in result.stdout
    assert not host.calls("sbatch")


@pytest.mark.parametrize("site", ["slurm", "pbs", "cobalt", "local"])
def test_the_script_passes_our_linter_and_shellcheck(tmp_path: Path, site: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**JOB, "site": site}))
    with working_directory(tmp_path):
        measuring = Measuring(warmup=1, steps=9)
        options = StudyOptions(kinds=("weak",), nodes=(1, 2), repeats=2, measuring=measuring)
        study = plan_study(Path("job.yaml"), [], Path("studies"), options)
        campaign = describe(SCALE, study.plan, submitting="one job", options=study.facts())
        write(campaign, study.plan)
        (part,) = parts_of(campaign, range(4), None)
        script = write_script(campaign, part).read_text()

    assert [str(finding) for finding in lint(script.encode(), "launch.sh")] == []
    require_program("shellcheck")
    result = subprocess.run(
        ["shellcheck", "-"], input=script, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stdout
