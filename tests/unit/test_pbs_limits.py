"""The limits of PBS's queues, as `qstat -Qf` shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.environment import working_directory

from hpc_amp.config.sites import load_for_site
from hpc_amp.finding import Finding
from hpc_amp.schedulers.base import Client
from hpc_amp.schedulers.pbs.scheduler import Pbs

QUEUES = """\
Queue: debug
    queue_type = Execution
    total_jobs = 0
    resources_max.nodect = 2
    resources_max.walltime = 01:00:00
    enabled = True
    started = True

Queue: prod
    queue_type = Route
    route_destinations = small,
\tmedium@pbs
    enabled = True
    started = True

Queue: small
    queue_type = Execution
    resources_max.nodect = 24
    resources_max.walltime = 03:00:00
    resources_min.nodect = 10
    enabled = True
    started = True

Queue: medium
    queue_type = Execution
    resources_max.nodect = 99
    resources_max.walltime = 06:00:00
    resources_min.nodect = 25
    enabled = True
    started = False

"""
SERVER = "Server: pbs\n    server_state = Active\n    default_queue = debug\n\n"


@pytest.fixture
def qstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `qstat` that prints two files."""
    (tmp_path / "-Qf").write_text(QUEUES)
    (tmp_path / "-Bf").write_text(SERVER)
    program = tmp_path / "qstat"
    program.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


def check(folder: Path, **job: Any) -> list[Finding]:
    (folder / "own.yaml").write_text("scheduler: pbs")
    config = {"name": "test", "site": str(folder / "own.yaml"), "run": ["true"], "job": job}
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    with working_directory(folder):
        loaded, chosen = load_for_site(folder / "job.yaml")
    return list(Pbs().check_limits(loaded.job, chosen, Client(60)))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, []),
        ({"nodes": 3}, ["error: job.nodes is 3, and debug allows at most 2 for a job"]),
        ({"walltime": "2h"}, ["error: job.walltime 02:00:00 is more than debug allows (01:00:00)"]),
        ({"walltime": "2h", "directives": ["-l walltime=00:30:00"]}, []),
        ({"queue": "prod", "nodes": 30}, []),
        ({"queue": "prod", "nodes": 10, "walltime": "3h"}, []),
        (
            {"queue": "prod", "nodes": 5},
            ["error: job.nodes is 5, and small needs at least 10 for a job"],
        ),
        ({"directives": ["-q small"], "nodes": 10}, []),
        ({"queue": "medium", "nodes": 30}, ["warning: the queue medium is stopped"]),
        ({"queue": "none"}, ["error: there is no queue none"]),
        ({"queue": "none@other", "nodes": 500}, []),
    ],
)
def test_a_queue_of_pbs(
    qstat: Path, tmp_path: Path, job: dict[str, Any], expected: list[str]
) -> None:
    assert [f"{one.severity}: {one.what}" for one in check(tmp_path, **job)] == expected


def test_the_fix_names_queues_that_take_the_job(qstat: Path, tmp_path: Path) -> None:
    (tmp_path / "-Qf").write_text(QUEUES.replace("started = False", "started = True"))
    (found,) = check(tmp_path, nodes=30)
    assert found.fix == "request fewer, or set job.queue: medium"


def test_without_an_answer_there_is_no_finding(qstat: Path, tmp_path: Path) -> None:
    qstat.write_text("#!/bin/sh\necho cannot connect >&2\nexit 1\n")
    assert check(tmp_path, nodes=500) == []
