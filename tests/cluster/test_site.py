"""`hpc-amp site draft` on the test cluster: the drafted site passes `doctor`, and runs jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import commands
from support.cluster import Cluster, gridengine_environ

pytestmark = pytest.mark.cluster

PROGRAM = "import os, socket\nprint('rank', os.environ['RANK'], socket.gethostname(), flush=True)\n"
AS_ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"


@pytest.mark.parametrize("scheduler", ["slurm", "gridengine"])
def test_a_drafted_site_runs_a_job(cluster: Cluster, scheduler: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    environ = {**cluster.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    if scheduler == "gridengine":
        environ |= gridengine_environ(cluster)

    def call(*words: str) -> str:
        result = commands.hpc_amp(*words, cwd=work, environ=environ)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    call("site", "draft", "mine", "--scheduler", scheduler, "--on-node")
    text = (tmp_path / "hpc-amp/sites/mine.yaml").read_text()
    assert "runtime: apptainer" in text and "(--on-node): apptainer: /" in text
    assert not list(work.iterdir())  # the job's run directory is removed
    checked = json.loads(call("doctor", "site=mine", "--json"))
    assert not [one for one in checked if one["severity"] == "error"]

    (work / "p.py").write_text(PROGRAM)
    given = ["site=mine", "-N", "2", "-t", "5m", "launch.preflight=false", f"job.setup='{AS_ROOT}'"]
    log = call("submit", "p.py", *given, "--follow")
    ranks = dict(re.findall(r"\brank (\d+) (\S+)$", log, re.MULTILINE))
    assert sorted(map(int, ranks)) == list(range(8))
    assert len(set(ranks.values())) == 2
