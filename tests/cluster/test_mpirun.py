"""Debian's Open MPI across the nodes of the test cluster: from the head by its rsh agent, and in a
Slurm job by srun. From jobs of the stand-ins: see tests/unit/test_standin_*.py."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.cluster import SCRIPTS, Cluster
from support.standins import OPEN_MPI
from support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

REPORT = 'echo "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $(hostname) <$GIVEN> <$KEPT>"'


def hostfile(folder: Path) -> Path:
    path = folder / "hosts"
    path.write_text("n1 slots=2\nn2 slots=2\n")
    return path


def test_mpirun_from_the_head(cluster: Cluster, tmp_path: Path) -> None:
    environ = {**cluster.environ, **OPEN_MPI, "GIVEN": "yes", "KEPT": "yes"}
    command = ["mpirun", "-n", "4", "--hostfile", hostfile(tmp_path), "-x", "GIVEN"]
    shown = subprocess.run(
        [*command, "sh", "-c", REPORT], env=environ, text=True, capture_output=True, timeout=300
    )
    # Only what -x names reaches other nodes, as with ssh.
    expected = ["0 0 n1", "1 1 n1", "2 0 n2", "3 1 n2"]
    assert sorted(shown.stdout.splitlines()) == [f"{line} <yes> <>" for line in expected], shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_mpirun_that_is_ended_leaves_nothing(
    cluster: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    body = f"echo $PPID $$ >{tmp_path}/part.$OMPI_COMM_WORLD_RANK && cd {tmp_path} && "
    body += "mv part.$OMPI_COMM_WORLD_RANK pids.$OMPI_COMM_WORLD_RANK; exec sleep 1000"
    command = ["mpirun", "-n", "4", "--hostfile", hostfile(tmp_path), "sh", "-c", body]
    with subprocess.Popen(command, env={**cluster.environ, **OPEN_MPI}) as mpirun:
        wait_until(lambda: len(list(tmp_path.glob("pids.*"))) == 4, "four ranks")
        mpirun.send_signal(number)
    pids = {int(pid) for path in tmp_path.glob("pids.*") for pid in path.read_text().split()}
    assert len(pids) == 6  # four ranks, and an orted on each node
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "ranks and orted")


def test_mpirun_in_a_slurm_job_needs_no_agent(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    allow = [f"{name}=1" for name in OPEN_MPI if "ROOT" in name]
    script.write_text(
        "#!/bin/bash\n"
        f"export {' '.join(allow)} OMPI_MCA_plm_rsh_agent=/bin/false\n"
        f"mpirun -n 4 sh -c '{REPORT}'\n"
    )
    options = ["--wait", "-N2", "--ntasks-per-node=2", "--time=2", f"--output={tmp_path}/out"]
    cluster.run("sbatch", *options, str(script), cwd=tmp_path)
    lines = [line for line in (tmp_path / "out").read_text().splitlines() if "<>" in line]
    ranks, locals_, hosts, *_ = zip(*sorted(line.split() for line in lines), strict=True)
    assert (ranks, locals_) == (("0", "1", "2", "3"), ("0", "1", "0", "1"))
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_rsh_agent_knows_its_nodes_only(cluster: Cluster) -> None:
    def agent(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPTS / "rsh-agent", *words], text=True, capture_output=True, timeout=300
        )

    assert agent("user@n2", "hostname;", "exit", "3").stdout == "n2\n"
    assert agent("n2", "hostname; exit 3").returncode == 3
    unknown = agent("n9", "hostname")
    assert unknown.returncode == 255 and "Could not resolve hostname n9" in unknown.stderr
