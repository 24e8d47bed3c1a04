"""Every command on a scheduler that another package brings, in one file: the example of
docs/extending-scheduler.md."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands, foreign
from support.environment import REPOSITORY, clean_environ
from support.waiting import wait_until

from hpc_amp.jobs.events import read_events

JOB: dict[str, Any] = {
    "name": "test",
    "job": {"gpus_per_node": 0, "walltime": "10m"},
    "launch": {"preflight": False},
}
TRAINING: dict[str, Any] = {
    **JOB,
    "train": {"batch_size": 512, "data": "synthetic"},
}
# Takes the place of a rank's Python: notes which nodes the launcher got, and reports times.
_RANK = """#!{python} -IS
import json, os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from support.rank_times import rank_file
attempt = Path(os.environ["HPC_AMP_OUTCOME_FILE"]).parent
nodes = int(os.environ["HPC_AMP_NNODES"])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
(attempt / "timing").mkdir(exist_ok=True)
hosts = attempt / "hosts"
(attempt / f"rank-{{rank}}").write_text(hosts.read_text() if hosts.exists() else "alone")
measured = rank_file(rank, nodes, [0.1] * 30, gpus_per_node=int(os.environ["HPC_AMP_PPN"]))
(attempt / "timing" / f"rank-{{rank:05d}}.json").write_text(json.dumps(measured))
if rank == 0:
    Path(os.environ["HPC_AMP_OUTCOME_FILE"]).write_text('{{"outcome": "finished"}}')
"""


class SpoolHost:
    """A machine with hpc-amp, the other package, and an empty queue."""

    def __init__(self, folder: Path) -> None:
        self.queue, self.work = folder / "queue", folder / "work"
        self.packages, self.bin = folder / "packages", folder / "bin"
        self.work.mkdir()
        self.queue.mkdir()
        foreign.install(self.packages)
        foreign.write_mpirun(self.bin)
        for name in ("spool", "spool-arrays"):
            (self.work / f"{name}.yaml").write_text(f"scheduler: {name}\n")

    def hpc_amp(self, *words: str, status: int = 0) -> str:
        """What a command prints; it has to end with this status."""
        environ = clean_environ(SPOOL=str(self.queue))
        environ["PYTHONPATH"] = f"{REPOSITORY}:{self.packages}"
        environ["PATH"] = f"{self.bin}:{environ['PATH']}"
        ended = commands.hpc_amp(*words, cwd=self.work, environ=environ)
        assert ended.returncode == status, f"{words}:\n{ended.stdout}{ended.stderr}"
        return ended.stdout if status == 0 else ended.stderr

    def write_job(self, config: dict[str, Any], site: str = "spool") -> None:
        """`job.yaml`."""
        config = {**config, "site": f"./{site}.yaml"}
        (self.work / "job.yaml").write_text(yaml.safe_dump(config))

    def submit(self, *command: str) -> Path:
        """The run directory of a new run."""
        self.write_job({**JOB, "run": list(command)})
        return Path(json.loads(self.hpc_amp("submit", "job.yaml", "--json"))["run_dir"])

    def state(self, run_dir: Path) -> str:
        """Of a run, as `status` shows it."""
        (status,) = json.loads(self.hpc_amp("status", str(run_dir), "--json"))
        return str(status["state"])

    def wait_for(self, run_dir: Path, state: str) -> None:
        """Until a run is in that state. A command is asked once its job may be."""
        if state == "running":
            wait_until(lambda: has_started(run_dir), f"{run_dir} to start")
        else:
            self.wait_for_jobs()
        wait_until(lambda: self.state(run_dir) == state, f"{run_dir} to be {state}", pause=0.2)

    def wait_for_jobs(self) -> None:
        """Until all jobs have ended."""
        for job in self.queue.iterdir():
            wait_until((job / "status").exists, f"the end of job {job.name}")


def has_started(run_dir: Path) -> bool:
    """Whether the script of a run has begun its first attempt."""
    return any(event["state"] == "started" for event in read_events(run_dir))


@pytest.fixture
def spool(disk: Path) -> Iterator[SpoolHost]:
    """On a disk: doctor warns of what is in memory."""
    made = SpoolHost(disk)
    yield made
    for pid in made.queue.glob("*/pid"):
        if not (pid.parent / "status").exists():
            os.killpg(int(pid.read_text()), signal.SIGKILL)


def write_rank(spool: SpoolHost, site: str = "spool") -> None:
    """A job file whose ranks are `_RANK`."""
    program = spool.work / "rank"
    program.write_text(_RANK.format(python=sys.executable, tests=str(REPOSITORY / "tests")))
    program.chmod(0o755)
    spool.write_job({**TRAINING, "container": {"python": str(program)}}, site)


def test_a_run_is_submitted_shown_and_has_a_log(spool: SpoolHost) -> None:
    run_dir = spool.submit("echo", "hello from a rank")

    spool.wait_for(run_dir, "finished")

    assert "hello from a rank" in spool.hpc_amp("logs", str(run_dir))
    assert (spool.queue / "1" / "status").read_text() == "0\n"
    script = (run_dir / "launch.sh").read_text()
    assert script.splitlines()[1:3] == ["#SPOOL nodes=1", f"#SPOOL log={run_dir}/logs/job.log"]


def test_a_run_is_found_by_the_id_of_its_job(spool: SpoolHost) -> None:
    run_dir = spool.submit("true")
    spool.wait_for(run_dir, "finished")

    (status,) = json.loads(spool.hpc_amp("status", "1", "--json"))

    assert (status["run_dir"], status["scheduler"]) == (str(run_dir), "spool")


def test_a_run_is_cancelled(spool: SpoolHost) -> None:
    run_dir = spool.submit("sleep", "600")
    spool.wait_for(run_dir, "running")

    spool.hpc_amp("cancel", str(run_dir))

    wait_until((spool.queue / "1" / "status").exists, "the end of the job")
    assert spool.state(run_dir) == "cancelled"


def test_a_run_that_failed_is_resumed(spool: SpoolHost) -> None:
    run_dir = spool.submit("test", "-e", str(spool.work / "mended"))
    spool.wait_for(run_dir, "failed")
    (spool.work / "mended").touch()

    spool.hpc_amp("resume", str(run_dir))

    spool.wait_for(run_dir, "finished")
    assert sorted(path.name for path in (run_dir / "attempts").glob("[0-9]")) == ["1", "2"]


def test_a_job_whose_id_was_lost_is_found_in_the_queue(spool: SpoolHost) -> None:
    """As where the command that submitted it was killed before it recorded the id."""
    run_dir = spool.submit("sleep", "600")
    spool.wait_for(run_dir, "running")
    state = run_dir / "state.jsonl"
    first = state.read_text().splitlines()[0]
    assert '"submitted"' in first
    state.write_text(f"{first}\n")

    (status,) = json.loads(spool.hpc_amp("status", str(run_dir), "--json"))

    assert status["job_id"] == "1"


@pytest.mark.parametrize(
    ("site", "jobs"),
    [("spool", ["1", "2", "3"]), ("spool-arrays", ["1.0", "1.1", "1.2"])],
)
def test_a_sweep(spool: SpoolHost, site: str, jobs: list[str]) -> None:
    spool.write_job({**JOB, "run": ["sh", "-c", 'echo "word $WORD"']}, site)
    words = ("sweep", "job.yaml", "container.env.WORD=one,two,three", "--json")

    facts = json.loads(spool.hpc_amp(*words))

    folder = Path(facts["folder"])
    assert sorted(path.name for path in spool.queue.iterdir()) == jobs
    spool.wait_for_jobs()
    wait_until(lambda: sweep_states(spool, folder) == ["finished"] * 3, "the end of the sweep")
    for number, word in enumerate(("one", "two", "three")):
        log = (folder / "points" / f"{number:04d}" / "logs" / "job.log").read_text()
        assert f"word {word}\n" in log
    status = json.loads(spool.hpc_amp("sweep", "status", str(folder), "--json"))
    assert [point["job_id"] for point in status["points"]] == jobs


@pytest.mark.parametrize("site", ["spool", "spool-arrays"])
def test_a_sweep_is_cancelled_and_goes_on(spool: SpoolHost, site: str) -> None:
    go = spool.work / "go"
    spool.write_job({**JOB, "run": ["sh", "-c", f"test -e {go} || sleep 600"]}, site)
    words = ("sweep", "job.yaml", "container.env.WORD=one,two", "--json")
    folder = Path(json.loads(spool.hpc_amp(*words))["folder"])
    for number in range(2):
        point = folder / "points" / f"{number:04}"
        wait_until(lambda point=point: has_started(point), f"{point} to start")
    wait_until(lambda: sweep_states(spool, folder) == ["running"] * 2, "both points to run")

    spool.hpc_amp("sweep", "cancel", str(folder))

    spool.wait_for_jobs()
    assert sweep_states(spool, folder) == ["cancelled"] * 2
    go.touch()
    spool.hpc_amp("sweep", "continue", str(folder))
    spool.wait_for_jobs()
    wait_until(lambda: sweep_states(spool, folder) == ["finished"] * 2, "the end of the sweep")


def sweep_states(spool: SpoolHost, folder: Path) -> list[str]:
    status = json.loads(spool.hpc_amp("sweep", "status", str(folder), "--json"))
    return [point["state"] for point in status["points"]]


def scale_states(spool: SpoolHost) -> set[str]:
    status = json.loads(spool.hpc_amp("scale", "status", "test", "--json"))
    return {run["state"] for run in status["points"]}


@pytest.mark.parametrize("more", [["--max-queued=1"], ["--in-allocation"]])
def test_a_scaling_study(spool: SpoolHost, more: list[str]) -> None:
    """Its nodes are this machine, so two jobs at a time would be on the same node."""
    write_rank(spool)
    words = ("scale", "job.yaml", "--nodes=1,2", "--repeats=1", "--kind=strong", *more)

    spool.hpc_amp(*words, "launch=mpirun", "--yes")

    spool.wait_for_jobs()
    wait_until(lambda: scale_states(spool) == {"measured"}, "the end of all runs")
    assert len(list(spool.queue.iterdir())) == (1 if more == ["--in-allocation"] else 2)
    hosts = [
        path.read_text() for path in spool.work.glob("studies/test/2*/points/*/attempts/1/rank-0")
    ]
    assert sorted(hosts) == ["localhost slots=1\n", "localhost slots=1\n" * 2]
    assert "2 nodes" in spool.hpc_amp("scale", "report", "test")


def test_a_benchmark(spool: SpoolHost) -> None:
    write_rank(spool)

    said = spool.hpc_amp(
        "bench", "job.yaml", "--precisions=fp32,bf16", "--repeats=1", "--submit", "--json"
    )

    folder = json.loads(said)["folder"]
    wait_until((spool.queue / "1" / "status").exists, "the end of the job")
    assert (spool.queue / "1" / "status").read_text() == "0\n"
    assert list(Path(folder).glob("points/*/attempts/1/rank-0"))


def test_what_cannot_narrow_a_job_is_refused_before_anything_is_submitted(
    spool: SpoolHost,
) -> None:
    """A scheduler that starts processes on the nodes by itself reads no list of nodes of ours."""
    module = spool.packages / "spool.py"
    module.write_text(
        module.read_text().replace('title = "Spool"', 'title = step_launcher = "Spool"')
    )
    write_rank(spool)

    said = spool.hpc_amp(
        "scale", "job.yaml", "launch=mpirun", "--nodes=1,2", "--in-allocation", "--yes", status=2
    )

    assert said.startswith("hpc-amp: Spool cannot give a run a part of a job's nodes")
    assert said.count("\n") == 1
    assert not list(spool.queue.iterdir())


def test_the_line_to_copy_for_a_shell(spool: SpoolHost) -> None:
    """A session runs on this machine, so no command that gets a node stands before it."""
    spool.write_job({**JOB, "run": ["true"]})

    (line,) = spool.hpc_amp("shell", "job.yaml", "--print").splitlines()

    assert line.startswith("env ") and line.endswith(" bash --norc")


def test_a_site_needs_no_file(spool: SpoolHost) -> None:
    spool.write_job({**JOB, "run": ["true"]})

    assert "site spool, spool, " in spool.hpc_amp("validate", "job.yaml", "site=spool")


def test_doctor_asks_for_a_job_with_an_id_of_the_scheduler(spool: SpoolHost) -> None:
    """Some do not answer a question about `0`, if ids have another form."""
    module = spool.packages / "spool.py"
    asked = '        found = {}\n        assert list(job_ids) == ["s-0"], job_ids\n'
    text = module.read_text().replace("        found = {}\n", asked)
    module.write_text(
        text.replace("    ask_seconds =", '    absent_job = "s-0"\n    ask_seconds =')
    )
    assert module.read_text().count("s-0") == 2
    spool.write_job({**JOB, "run": ["true"]})

    found = json.loads(spool.hpc_amp("doctor", "job.yaml", "--json"))

    assert "Spool answers" in json.dumps(found)


def test_a_site_of_an_unknown_scheduler_is_one_line(spool: SpoolHost) -> None:
    (spool.work / "spool.yaml").write_text("scheduler: spoool\n")
    spool.write_job({**JOB, "run": ["true"]})

    said = spool.hpc_amp("submit", "job.yaml", status=2)

    assert "did you mean spool" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("taken", "instead", "said"),
    [
        ("go_on() {", "goes_on() {", "the host code of the scheduler spool does not define the "),
        ("def cancel(", "def cancels(", "is spool:Spool, which lacks: cancel"),
        ("    title = ", "    titel = ", "is spool:Spool, which lacks: title"),
        ('name = "spool"', 'name = "spol"', "is spool:Spool, whose `name` is 'spol': the two have"),
    ],
)
def test_what_lacks_a_part_is_one_line(
    spool: SpoolHost, taken: str, instead: str, said: str
) -> None:
    """Not a traceback, nor a job that ends without a word."""
    module = spool.packages / "spool.py"
    text = module.read_text()
    assert text.count(taken) == 1
    module.write_text(text.replace(taken, instead))
    spool.write_job({**JOB, "run": ["true"]})

    refused = spool.hpc_amp("validate", "job.yaml", status=2)

    assert said in refused and refused.count("\n") == 1


def test_the_reference_has_no_names_of_other_packages(spool: SpoolHost) -> None:
    """Its pages are the same, whatever is installed where they are made."""
    program = (
        "from hpc_amp.config.values import Registered\n"
        "found = Registered('hpc_amp.schedulers:SCHEDULERS')\n"
        "print('spool' in found.choices, 'spool' in found.own_choices)"
    )
    environ = clean_environ(PYTHONPATH=f"{REPOSITORY}:{spool.packages}")

    said = subprocess.run([sys.executable, "-c", program], env=environ, stdout=-1, text=True)

    assert said.stdout.split() == ["True", "False"]
