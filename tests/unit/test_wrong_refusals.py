"""Jobs that a scheduler accepts, and that are not refused before: limits that do not hold for
them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support.environment import working_directory

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.measuring import Measuring
from hpc_amp.campaigns.record import read_dropped
from hpc_amp.config.command import launcher_in, program_in
from hpc_amp.config.sites import load_for_site
from hpc_amp.jobs.events import record_event
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.base import Client
from hpc_amp.study.plan import StudyOptions, plan_study

Say = Callable[[str, str], None]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Makes a command of a scheduler, as the body of a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return make


def found(folder: Path, site: dict[str, Any], **job: Any) -> list[str]:
    (folder / "own.yaml").write_text(yaml.safe_dump(site))
    config = {"name": "test", "site": str(folder / "own.yaml"), "run": ["true"], "job": job}
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    with working_directory(folder):
        loaded, chosen = load_for_site(folder / "job.yaml")
    scheduler = get_scheduler(chosen.scheduler)
    findings = scheduler.check_limits(loaded.job, chosen, Client(60))
    return [f"{one.severity}: {one.what}" for one in findings]


# ---- Slurm ---------------------------------------------------------------------------------------

SMALL = "echo 'small*|up|1:00:00|1-infinite|2|gpu:a100:4'"


@pytest.mark.parametrize(
    ("site", "job"),
    [
        ({"skip_directives": ["--time"]}, {"walltime": "5h"}),
        ({}, {"walltime": "5h", "skip_directives": ["--time"]}),
        ({}, {"nodes": 9, "skip_directives": ["--nodes"]}),
        ({}, {"queue": "other", "skip_directives": ["--partition"]}),
        ({}, {"gpus_per_node": 8, "skip_directives": ["--gpus-per-node"]}),
        ({}, {"gpus_per_node": 8, "directives": ["--gres=gpu:4"]}),
        ({"directives": ["--gpus-per-task=1"]}, {"gpus_per_node": 8}),
    ],
)
def test_what_slurm_is_not_asked_for(
    say: Say, tmp_path: Path, site: dict[str, Any], job: dict[str, Any]
) -> None:
    say("sinfo", SMALL)
    say("scontrol", "exit 1")
    site = {"scheduler": "slurm", **site}
    assert found(tmp_path, site, **{"gpus_per_node": 1, "walltime": "30m", **job}) == []


def test_nodes_of_a_cloud_that_are_switched_off(say: Say, tmp_path: Path) -> None:
    say("sinfo", "echo 'cloud*|up|infinite|1-infinite|0|(null)'")
    say("scontrol", "exit 1")
    job = {"nodes": 4, "gpus_per_node": 1}
    assert found(tmp_path, {"scheduler": "slurm"}, **job) == []

    say("sinfo", "echo 'cloud*|up|infinite|1-infinite|2|gpu:2'")
    assert found(tmp_path, {"scheduler": "slurm"}, **job) != []
    say("scontrol", "echo PartitionName=cloud TotalCPUs=64 TotalNodes=8")
    assert found(tmp_path, {"scheduler": "slurm"}, **job) == []
    too_many = found(tmp_path, {"scheduler": "slurm"}, nodes=9)
    assert too_many == ["error: job.nodes is 9, and cloud has 8"]


def test_several_clusters_have_limits_of_their_own(say: Say, tmp_path: Path) -> None:
    say("sinfo", f"echo 'CLUSTER: a'; {SMALL}; echo 'CLUSTER: b'; echo 'big|up|infinite|1-9|9|x'")
    assert found(tmp_path, {"scheduler": "slurm"}, nodes=5) == []


def test_another_type_of_gpus_is_named(say: Say, tmp_path: Path) -> None:
    say("sinfo", SMALL)
    say("scontrol", "exit 1")
    (text,) = found(tmp_path, {"scheduler": "slurm", "gpu_type": "h100"}, gpus_per_node=4)
    assert text.endswith("(gpu_type): they are a100")


@pytest.mark.parametrize(("plugins", "severity"), [("lua", "warning"), ("(null)", "error")])
def test_a_plugin_may_choose_another_partition(
    say: Say, tmp_path: Path, plugins: str, severity: str
) -> None:
    say("sinfo", SMALL)
    say("scontrol", f"echo 'JobSubmitPlugins = {plugins}'")
    (text,) = found(tmp_path, {"scheduler": "slurm"}, nodes=5)
    assert text.startswith(severity)
    (text,) = found(tmp_path, {"scheduler": "slurm"}, nodes=5, queue="small")
    assert text.startswith("error")


def test_one_job_for_all_runs_requests_the_most_nodes(say: Say, tmp_path: Path) -> None:
    say("sinfo", "echo 'large*|up|infinite|4-infinite|9|(null)'")
    say("scontrol", "exit 1")
    config = {"name": "x", "site": "slurm", "run": ["true"], "job": {"gpus_per_node": 0}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    options = StudyOptions(
        kinds=("weak",),
        nodes=(1, 2, 4),
        repeats=1,
        measuring=Measuring(warmup=1, steps=None),
        in_allocation=True,
    )
    with working_directory(tmp_path):
        plan = plan_study(Path("job.yaml"), [], Path("studies"), options, Client(60))
    assert plan.nodes == (1, 2, 4)


# ---- PBS -----------------------------------------------------------------------------------------

ROUTE = """
case $1 in
-Bf) printf 'Server: own\\n    default_queue = work\\n' ;;
*) printf 'Queue: work\\n    queue_type = Route\\n    route_destinations = small@own,big@other\\n'
   printf 'Queue: small\\n    queue_type = Execution\\n    resources_max.nodect = 2\\n' ;;
esac
"""


def test_a_queue_that_passes_jobs_to_another_server(say: Say, tmp_path: Path) -> None:
    say("qstat", ROUTE)
    assert found(tmp_path, {"scheduler": "pbs"}, nodes=5) == []
    say("qstat", ROUTE.replace(",big@other", ""))
    assert found(tmp_path, {"scheduler": "pbs"}, nodes=5) != []


@pytest.mark.parametrize(
    "job",
    [
        {"skip_directives": ["-q"], "queue": "none"},
        {"skip_directives": ["-l select"], "nodes": 5, "queue": "small"},
        {"directives": ["-l select=1:ncpus=4"], "nodes": 5, "queue": "small"},
    ],
)
def test_what_pbs_is_not_asked_for(say: Say, tmp_path: Path, job: dict[str, Any]) -> None:
    say("qstat", ROUTE)
    assert found(tmp_path, {"scheduler": "pbs"}, **job) == []


# ---- Grid Engine ---------------------------------------------------------------------------------

QCONF = """
case $1 in
-sql) echo all.q ;;
-sq) echo 'h_rt 1:00:00' ;;
-spl) echo smp ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("site", "job", "errors"),
    [
        ({}, {"queue": "none"}, 1),
        ({}, {"queue": "none", "directives": ["-q all.q"]}, 0),
        ({}, {"queue": "none", "skip_directives": ["-q"]}, 0),
        ({}, {"queue": "all.q", "walltime": "2h"}, 1),
        ({}, {"queue": "all.q", "walltime": "2h", "directives": ["-l gpu=1,h_rt=600"]}, 0),
        ({"skip_directives": ["-l h_rt"]}, {"queue": "all.q", "walltime": "2h"}, 0),
        ({}, {"nodes": 2}, 1),
        ({"directives": ["-pe smp 8"]}, {"nodes": 2}, 0),
        ({"skip_directives": ["-pe"]}, {"nodes": 2}, 0),
        ({"options": {"parallel_environment": "smp"}}, {"nodes": 2}, 0),  # -sp fails
    ],
)
def test_what_grid_engine_is_not_asked_for(
    say: Say, tmp_path: Path, site: dict[str, Any], job: dict[str, Any], errors: int
) -> None:
    say("qconf", QCONF)
    job = {"walltime": "30m", "gpus_per_node": 0, "ranks_per_node": 1, "cpus_per_gpu": 1, **job}
    assert len(found(tmp_path, {"scheduler": "gridengine", **site}, **job)) == errors


def test_no_list_of_parallel_environments(say: Say, tmp_path: Path) -> None:
    say("qconf", QCONF.replace("-spl) echo smp ;;", ""))
    assert found(tmp_path, {"scheduler": "gridengine"}, nodes=2, gpus_per_node=0) == []


# ---- commands and points -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("bash -euo pipefail run.sh", "run.sh"),
        ("bash -eo pipefail -c ./x.sh", None),
        ("bash +eO extglob run.sh", "run.sh"),
        ("python -uX dev train.py", "train.py"),
        ("python -uW ignore train.py", "train.py"),
        ("python -Wignore train.py", "train.py"),
    ],
)
def test_options_in_one_word_with_a_value(line: str, program: str | None) -> None:
    assert program_in(line.split()) == program


def test_a_launcher_behind_options_in_one_word() -> None:
    assert launcher_in(["bash", "-euo", "pipefail", "-c", "torchrun x.py"]) is not None
    assert launcher_in(["python", "-uX", "dev", "-m", "torch.distributed.run", "x.py"]) is not None


@pytest.mark.parametrize("text", ["3-1", "", "2,9-8", "3-", "0-99999999999"])
def test_no_numbers_from_a_range_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"before it begins|invalid literal|too many"):
        ranges.from_text(text)


def test_a_campaign_from_which_nothing_was_dropped_can_be_read(tmp_path: Path) -> None:
    """Older versions recorded the points of `drop NAME 3-1` as an empty text."""
    record_event(tmp_path, "dropped", points="", reason="by hpc-amp scale drop")
    record_event(tmp_path, "dropped", points="2", reason="by hpc-amp scale drop")
    campaign: Any = SimpleNamespace(folder=tmp_path)
    assert list(read_dropped(campaign)) == [2]
