"""The host library of jobs that make several runs, sourced as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.environment import REPOSITORY

from hpc_amp.schedulers import get_scheduler

SETTINGS = "[tasks_per_node]=2 [limit]=none [checkpoints]=keep"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A campaign with three runs, and the host code of a scheduler that has nothing but what is
    required. A launch script notes that it ran, and fails where a file `fail` lies beside it."""
    host = tmp_path / "snapshot" / "src" / "hpc_amp" / "host"
    host.mkdir(parents=True)
    for file in (REPOSITORY / "hpc_amp" / "host").glob("*.sh"):
        (host / file.name).symlink_to(file)
    (host / "schedulers").mkdir()
    (host / "schedulers" / "own.sh").write_text("scheduler_begins() { job_id=1; }\n")
    for name in ("0000", "0001", "0002"):
        folder = tmp_path / "points" / name
        folder.mkdir(parents=True)
        (folder / "src").symlink_to("../../snapshot/src")
        (folder / "launch.sh").write_text(
            f'echo "{name} $HPC_AMP_FIRST_NODES" >>{tmp_path}/ran\n'
            f"[ ! -e {folder}/fail ] || exit 3\n"
            f"""echo '{{"state": "finished"}}' >>{folder}/state.jsonl\n"""
        )
    return tmp_path


def campaign(
    folder: Path, lines: str, settings: str = SETTINGS, scheduler: str = "own", **environ: str
) -> subprocess.CompletedProcess[str]:
    """A script with these lines between the beginning and the end of every such script."""
    host = REPOSITORY / "hpc_amp" / "host"
    script = (
        f"campaign_dir={folder}\n"
        f"declare -A campaign=([array]=1 [scheduler]={scheduler} [own_code]=no)\n"
        f"declare -A job=({settings})\n"
        'fail() { echo "hpc-amp: $1" >&2; exit 2; }\n'
        f"l=launch.sh\nsource {host}/point.sh\nsource {host}/campaign.sh\n{lines}\nend_runs\n"
    )
    return subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], **environ},
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []


def use_host_code(folder: Path, scheduler: str) -> None:
    """The host code of a scheduler of ours in the snapshot."""
    path = folder / "snapshot" / "src" / "hpc_amp" / "host" / "schedulers" / f"{scheduler}.sh"
    path.write_text(get_scheduler(scheduler).host_code())


def test_each_run_is_told_how_many_nodes_it_has(runs: Path) -> None:
    ended = campaign(runs, "run one 1 0000 $l\nrun two 2 0001 $l\nrun all all 0002 $l")

    assert (ended.returncode, ended.stderr) == (0, "")
    # `all` changes nothing: it is for jobs whose runs have all of the nodes.
    assert ran(runs) == ["0000 1", "0001 2", "0002 2"]


def test_a_run_that_has_finished_is_not_made_again(runs: Path) -> None:
    (runs / "points" / "0000" / "state.jsonl").write_text('{"state": "finished"}\n')

    assert campaign(runs, "run one 1 0000 $l\nrun two 2 0001 $l").returncode == 0

    assert ran(runs) == ["0001 2"]


def test_after_a_failure_no_other_run_of_its_group_is_made(runs: Path) -> None:
    (runs / "points" / "0000" / "fail").touch()

    ended = campaign(runs, "run one 1 0000 $l\nrun one 1 0001 $l\nrun two 2 0002 $l")

    assert ended.returncode == 1
    assert ran(runs) == ["0000 1", "0002 2"]
    assert (
        "not tried: a run with the same settings failed before"
        in (runs / "points" / "0001" / "state.jsonl").read_text()
    )


def failed(run_dir: Path, array: int, reason: str = "exit status 3") -> None:
    """What the scripts record of a run that fails in this job."""
    submitted = f'{{"time": 1, "state": "submitted", "array": {array}, "scheduler": "own"}}'
    queued = '{"time": 1, "state": "queued", "job_id": "1"}'
    end = f'{{"time": 2, "state": "failed", "attempt": 1, "job_id": "1", "reason": "{reason}"}}'
    with (run_dir / "state.jsonl").open("a") as out:
        out.write(f"{submitted}\n{queued}\n{end}\n")


def test_a_job_that_is_started_again_repeats_no_failed_run(runs: Path) -> None:
    failed(runs / "points" / "0000", array=1)
    failed(runs / "points" / "0002", array=1, reason="not tried: 9 s of the job were left")

    ended = campaign(runs, "run one 1 0000 $l\nrun one 1 0001 $l\nrun two 2 0002 $l")

    assert ended.returncode == 1
    assert ran(runs) == ["0002 2"]
    # Nor is another run with the settings of the failed one made.
    assert "not tried" in (runs / "points" / "0001" / "state.jsonl").read_text()


def test_a_run_that_failed_in_an_earlier_job_is_made_again(runs: Path) -> None:
    failed(runs / "points" / "0000", array=12)

    assert campaign(runs, "run one 1 0000 $l").returncode == 0

    assert ran(runs) == ["0000 1"]


def test_no_run_begins_where_less_time_is_left_than_the_longest_took(runs: Path) -> None:
    """SECONDS may be set: it goes on from there."""
    settings = SETTINGS.replace("limit]=none", "limit]=1000")

    ended = campaign(
        runs,
        "run one 1 0000 $l\nlongest=300; SECONDS=800\nrun two 2 0001 $l",
        settings,
    )

    assert ended.returncode == 0
    assert ran(runs) == ["0000 1"]
    assert (
        "the longest run before took 300 s"
        in (runs / "points" / "0001" / "state.jsonl").read_text()
    )


def test_checkpoints_are_dropped_where_nobody_resumes(runs: Path) -> None:
    for name in ("0000", "0001"):
        (runs / "points" / name / "checkpoints").mkdir()

    campaign(runs, "run one 1 0000 $l", SETTINGS.replace("=keep", "=drop"))
    campaign(runs, "run two 2 0001 $l")

    assert not (runs / "points" / "0000" / "checkpoints").exists()
    assert (runs / "points" / "0001" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("scheduler", "variable"), [("pbs", "PBS_NODEFILE"), ("cobalt", "COBALT_NODEFILE")]
)
def test_a_node_file_is_cut(runs: Path, scheduler: str, variable: str) -> None:
    use_host_code(runs, scheduler)
    nodes = runs / "nodes"
    nodes.write_text("n1\nn1\nn2\nn2\nn3\nn3\n")
    lines = "\n".join(
        f'use_first_nodes {n}; cat "${variable}" | tr "\\n" " "; echo' for n in (1, 3, 2)
    )

    ended = campaign(runs, lines, scheduler=scheduler, **{variable: str(nodes)})

    assert ended.stdout.splitlines() == ["n1 n1 ", "n1 n1 n2 n2 n3 n3 ", "n1 n1 n2 n2 "]
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_logs_of_the_runs_have_the_users_permissions(runs: Path) -> None:
    """Grid Engine gives jobs the umask of its daemon."""
    campaign(runs, "run one 1 0000 $l", HPC_AMP_UMASK="007")

    assert (runs / "points" / "0000" / "logs" / "job.log").stat().st_mode & 0o777 == 0o660


def test_a_job_of_one_slot_has_no_node_file(runs: Path) -> None:
    """Grid Engine gives one to jobs with a parallel environment only."""
    use_host_code(runs, "gridengine")
    batch = {"JOB_ID": "41", "SGE_TASK_ID": "undefined", "SGE_JOB_SPOOL_DIR": "/x"}

    ended = campaign(runs, "run one 1 0000 $l", scheduler="gridengine", **batch)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ran(runs) == ["0000 "]


def test_a_node_file_that_is_not_there_is_named(runs: Path) -> None:
    use_host_code(runs, "pbs")

    ended = campaign(runs, "use_first_nodes 1", scheduler="pbs", PBS_NODEFILE="/nowhere/nodes")

    assert ended.returncode == 2
    assert ended.stderr.endswith(
        "hpc-amp: the nodes of the job cannot be read from /nowhere/nodes\n"
    )


def test_slurms_variables_become_those_of_a_smaller_job(runs: Path) -> None:
    use_host_code(runs, "slurm")
    (runs / "scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")
    (runs / "scontrol").chmod(0o755)
    lines = 'use_first_nodes 2; echo "$SLURM_JOB_NODELIST $SLURM_NNODES $SLURM_NTASKS"\n'
    lines += 'use_first_nodes 3; echo "$SLURM_JOB_NODELIST $SLURM_JOB_CPUS_PER_NODE"'

    ended = campaign(
        runs, lines, scheduler="slurm", PATH=f"{runs}:{os.environ['PATH']}",
        SLURM_JOB_NODELIST="n[1-3]", SLURM_JOB_CPUS_PER_NODE="8(x3)",
    )  # fmt: skip

    assert ended.stdout.splitlines() == ["n1,n2 2 4", "n1,n2,n3 8(x3)"]
