"""What a user can count on, the same on every scheduler: the real Slurm (srun, and mpirun in its
allocation), the real Grid Engine, the stand-ins of Cobalt and PBS with the real Open MPI across the
cluster's nodes, and this machine. One configuration; only `site` differs."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands, standins
from support.cluster import Cluster, gridengine_environ, one_real_rank, site_parameters
from support.environment import REPOSITORY
from support.standins import CobaltStandIn, PbsStandIn, StandIn
from support.stubs import REPORT, Report, read_reports
from support.waiting import size_of, wait_for_news, wait_until
from support.warm_python import WarmPython

from hpc_amp.schedulers import get_scheduler

pytestmark = pytest.mark.cluster

ACTOR = REPOSITORY / "tests" / "support" / "actor.py"
CONFIG = str(REPOSITORY / "configs" / "cifar_resnet.yaml")
RANKS = 4

# How Open MPI reaches the cluster's nodes. The slots of a node are for hpc-amp to say.
OPEN_MPI = {
    name: value
    for name, value in standins.OPEN_MPI.items()
    if name != "OMPI_MCA_rmaps_base_oversubscribe"
}
SITES = {
    "slurm_srun": {"scheduler": "slurm"},
    "slurm_mpirun": {"scheduler": "slurm", "launcher": "mpirun", "env": OPEN_MPI},
    "cobalt_stand_in": {"scheduler": "cobalt", "env": OPEN_MPI},
    "pbs_stand_in": {"scheduler": "pbs", "gpu_request": "none", "env": OPEN_MPI},
    "gridengine": {
        "scheduler": "gridengine",
        "options": {"slots_per_node": "8"},
        # mpirun asks Grid Engine for its processes on other nodes.
        "env": {name: value for name, value in OPEN_MPI.items() if "ROOT" in name},
    },
    "local": {"scheduler": "local"},
}
STAND_INS = ["cobalt_stand_in", "pbs_stand_in"]
CHAINS = [*STAND_INS, "gridengine"]
NODES = ("n1", "n2", "n3", "n4")


@dataclass
class System:
    """One scheduler as a user sees it."""

    site: str
    cluster: Cluster
    work: Path
    environ: dict[str, str]
    server: StandIn | None
    python: Path
    """What runs jobs on this machine."""

    @property
    def name(self) -> str:
        """What status calls it."""
        return SITES[self.site]["scheduler"]

    @property
    def chains(self) -> bool:
        """Whether a run goes on in another job."""
        return get_scheduler(self.name).chains

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """The scheduler does not answer."""
        if self.server is None:
            port, self.environ["SGE_QMASTER_PORT"] = self.environ["SGE_QMASTER_PORT"], "6999"
            yield
            self.environ["SGE_QMASTER_PORT"] = port
        else:
            self.server.config(down=True)
            yield
            self.server.config(down=False)

    @contextlib.contextmanager
    def nodes_cannot_submit(self) -> Iterator[None]:
        """Jobs are taken from the login node alone."""
        if self.server is None:
            self._qconf("-ds", ",".join(NODES))
            yield
            self._qconf("-as", ",".join(NODES))
        else:
            self.server.config(may_submit_from_nodes=False)
            yield
            self.server.config(may_submit_from_nodes=True)

    def _qconf(self, *options: str) -> None:
        Cluster(self.cluster.image, self.cluster.binds, self.environ).run(
            "qconf", *options, cwd=self.work
        )

    def hpc_amp(self, *args: str, check: bool = True) -> str:
        cluster = Cluster(self.cluster.image, self.cluster.binds, self.environ)
        return cluster.hpc_amp(*args, cwd=self.work, check=check).stdout

    @property
    def overrides(self) -> list[str]:
        """The site, and what runs this Python inside the image."""
        inside = [f"container.python={self.python}"]
        if self.site != "local":
            inside = self.cluster.overrides[1:]
        return [f"site={self.site}", *inside]

    def submit(self, config: str, *overrides: str) -> Path:
        shown = json.loads(self.hpc_amp("submit", config, "--json", *self.overrides, *overrides))
        assert shown["scheduler"] == self.name
        return Path(shown["run_dir"])

    def act(self, name: str, *actions: str, small: bool = False, **job: Any) -> Path:
        """Submit a user's own program with an action for each attempt. A `small` job, for tests in
        which all ranks do the same, has one on each node and no preflight: that is half of what a
        job costs, and other tests have it on every scheduler."""
        restarts = job.pop("restarts", 0)
        if small:
            job["ranks_per_node"] = 1
        return self.submit(
            self.write(name, ["python", "-I", "-S", "actor.py", f"out-{name}", *actions], job),
            f"restarts={restarts}",
            f"launch.preflight={json.dumps(not small)}",
        )

    def write(self, name: str, run: list[str], job: dict[str, Any], **more: Any) -> str:
        resources = {"nodes": 2, "ranks_per_node": 2, "gpus_per_node": 0, "walltime": "5m"}
        resources |= {"stop_margin": "10s", **job}
        config = {"name": name, "run": run, "job": resources, **more}
        (self.work / f"{name}.yaml").write_text(yaml.safe_dump(config))
        return f"{name}.yaml"

    def places(self, name: str, attempt: int) -> list[dict[str, Any]]:
        """Where the ranks of an attempt are or were, by rank; those that have begun."""
        files = (self.work / f"out-{name}" / f"{attempt}-{rank}" for rank in range(RANKS))
        return [ast.literal_eval(file.read_text()) for file in files if file.exists()]

    def status(self, run_dir: Path) -> dict[str, Any]:
        (entry,) = json.loads(self.hpc_amp("status", str(run_dir), "--json"))
        return entry

    def wait_for(self, run_dir: Path, *states: str, seconds: float = 600) -> dict[str, Any]:
        """Until the run is in one of `states`. The limit only ends what would hang."""
        deadline = time.monotonic() + seconds
        while True:
            known = size_of(run_dir / "state.jsonl")
            entry = self.status(run_dir)
            if entry["state"] in states:
                return entry
            if time.monotonic() > deadline or entry["state"] in ("failed", "lost", "finished"):
                pytest.fail(f"{entry}\n{events(run_dir)}\n{log(run_dir)}")
            wait_for_news(run_dir / "state.jsonl", known)

    def wait_until_running(self, name: str, ranks: int = RANKS) -> None:
        wait_until(lambda: len(self.places(name, 1)) == ranks, f"all ranks of {name}")

    def queue(self, run_dir: Path) -> dict[str, Any]:
        """What the scheduler still knows of the run's jobs, waiting ones included."""
        script = (
            "import sys, json; from hpc_amp.schedulers import get_scheduler\n"
            "answer = get_scheduler(sys.argv[1]).query(sys.argv[2:])\n"
            "print(json.dumps({k: v.state for k, v in answer.items() if v.state != 'ended'}))"
        )
        words = ("-c", script, self.name, *sorted(jobs_of(run_dir)))
        shown = commands.python(*words, cwd=self.work, environ=self.environ)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)

    def wait_until_gone(self, run_dir: Path) -> None:
        """Until the scheduler knows of no job of the run. Its server is asked first, if it is a
        stand-in: it answers without a process."""
        server, ids = self.server, jobs_of(run_dir)
        if server is not None:
            wait_until(lambda: not ids & server.jobs().keys(), "the jobs to end", pause=0.1)
        wait_until(lambda: not self.queue(run_dir), "the run's jobs to leave the queue", pause=0.5)


def jobs_of(run_dir: Path) -> set[str]:
    """The ids of all jobs of a run."""
    ids = {event["job_id"] for event in events(run_dir) if event.get("job_id")}
    with contextlib.suppress(OSError):
        ids |= set((run_dir / "chain").read_text().split())
    return ids


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "state.jsonl").read_text().splitlines()]


def states(run_dir: Path) -> list[str]:
    return [event["state"] for event in events(run_dir) if event["state"] != "queued"]


def log(run_dir: Path) -> str:
    path = run_dir / "logs" / "job.log"
    return path.read_text() if path.exists() else ""


def gone(places: list[dict[str, Any]]) -> bool:
    """Whether the ranks' processes have ended; the nodes share this machine's."""

    def runs(place: dict[str, Any]) -> bool:
        try:
            stat = Path(f"/proc/{place['pid']}/stat").read_text()
        except OSError:
            return False
        state, *rest = stat.rpartition(")")[2].split()
        return state not in "ZX" and rest[18] == place["started"]

    return not any(map(runs, places))


def start(cluster: Cluster, site: str, folder: Path, python: Path) -> System:
    """A scheduler, for the stand-ins a server of its own."""
    sites = folder / "sites"
    sites.mkdir()
    (sites / f"{site}.yaml").write_text(yaml.safe_dump(SITES[site]))
    work, environ, server = folder / "work", dict(cluster.environ), None
    if site in STAND_INS:
        kind = CobaltStandIn if site == "cobalt_stand_in" else PbsStandIn
        programs = str(Path(cluster.environ["PATH"].split(":")[0]))
        server = kind(folder / "server", local_nodes=False)
        server.serve()
        # A login shell's profile, which knows the scheduler's commands and the runtime.
        (server.home / ".profile").write_text(f'PATH="{server.bin}:{programs}:$PATH"\n')
        environ |= server.environ(PATH=f"{server.bin}:{cluster.environ['PATH']}")
        work = server.work
    elif site == "gridengine":
        environ |= gridengine_environ(cluster)
        work.mkdir()
    else:
        work.mkdir()
    environ["HPC_AMP_SITES"] = str(sites)
    (work / "actor.py").write_text(ACTOR.read_text())
    (work / "report.py").write_text(REPORT.read_text())
    return System(site, cluster, work, environ, server, python)


@pytest.fixture(scope="module", params=site_parameters(SITES))
def system(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    local = request.param == "local"
    python = request.getfixturevalue("warm_python") if local else Path(sys.executable)
    made = start(cluster, request.param, tmp_path_factory.mktemp(request.param), python)
    yield made
    if made.server is not None:
        made.server.stop()


def only(*sites: str) -> pytest.MarkDecorator:
    """A test of what only these schedulers have."""
    return pytest.mark.parametrize("system", site_parameters(SITES, sites), indirect=True)


# ---- submit, state, logs -------------------------------------------------------------------------


def test_a_job_of_ones_own(system: System) -> None:
    run_dir = system.act("plain", "wait")
    system.wait_until_running("plain")

    running = system.status(run_dir)
    assert (running["state"], running["attempt"]) == ("running", 1)
    assert set(system.queue(run_dir).values()) == {"running"}
    assert "rank 3 of attempt 1" in system.hpc_amp("logs", str(run_dir))
    assert "plain" in system.hpc_amp("status") and running["job_id"] in system.hpc_amp("status")
    if system.chains:
        with system.silence():
            assert system.status(run_dir)["state"] == "unknown"

    (system.work / "out-plain" / "go").touch()
    ended = system.wait_for(run_dir, "finished")
    assert states(run_dir) == ["submitted", "started", "finished"]
    assert ended["job_id"] == running["job_id"]
    shown = system.hpc_amp("logs", str(run_dir))
    assert all(f"[rank{rank}]: rank {rank} of attempt 1 is on " in shown for rank in range(RANKS))
    places = system.places("plain", 1)
    assert [place["variables"]["RANK"] for place in places] == ["0", "1", "2", "3"]
    assert {place["variables"]["WORLD_SIZE"] for place in places} == {"4"}
    hosts = [place["host"] for place in places]
    if system.site == "local":
        assert [place["variables"]["LOCAL_RANK"] for place in places] == ["0", "1", "2", "3"]
    else:
        assert [place["variables"]["LOCAL_RANK"] for place in places] == ["0", "1", "0", "1"]
        assert hosts[0] == hosts[1] == places[0]["variables"]["MASTER_ADDR"]
        assert hosts[2] == hosts[3] != hosts[0]
    system.wait_until_gone(run_dir)
    assert gone(places)


def test_a_rendered_script_is_submitted_by_hand(system: System) -> None:
    """With the scheduler's own command, after an edit, from another folder than the job file's.
    Hostile text reaches every rank."""
    texts = [
        "", " ", "a b", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "$HOME ${HOME} $$",
        "back\\slash", "ends\\", "a,b=c,d", "# no comment", "%j %% %s", "a;b&c|d>e<f", "a:b=c",
        "line\nbreak\n", "tab\tand\rreturn", "-x", "--help", "*", "~", "!!", "ünï💥", "\x01\x7f",
    ]  # fmt: skip
    variables = {f"VALUE_{index}": text for index, text in enumerate(texts)}
    program = ["python", "-I", "-S", "report.py", "out-byhand", *texts]
    config = system.write("byhand", program, {}, container={"env": variables})
    script = system.work / "elsewhere" / "x.sh"
    script.parent.mkdir()
    script.write_text(system.hpc_amp("render", config, "--create", *system.overrides) + "# edited")
    script.chmod(0o755)
    (run_dir,) = (system.work / "runs" / "byhand").glob("2*")
    assert system.status(run_dir)["reason"].endswith("its script has not started")

    command = get_scheduler(system.name).command or "bash"
    cluster = Cluster(system.cluster.image, system.cluster.binds, system.environ)
    cluster.run(command, str(script), cwd=script.parent)

    system.wait_for(run_dir, "finished")
    assert states(run_dir) == ["created", "started", "finished"]
    reports: list[Report] = read_reports(system.work / "out-byhand")
    assert [report.argv for report in reports] == [texts] * RANKS
    for report in reports:
        assert {name: report.environ.get(name) for name in variables} == variables
    assert not list(system.work.rglob("pwned"))


# ---- how attempts end ----------------------------------------------------------------------------


def test_a_failure(system: System) -> None:
    run_dir = system.act("failure", "exit:3", small=True)

    ended = _wait_for_failure(system, run_dir)
    # srun ends with the largest status: of the rank that failed, or of one that it killed then.
    expected = ("3", "143", "137") if system.site == "slurm_srun" else ("3",)
    assert ended["reason"] in [f"exit status {status}" for status in expected]
    assert states(run_dir) == ["submitted", "started", "failed"]
    system.wait_until_gone(run_dir)

    system.hpc_amp("resume", str(run_dir), check=True)
    _wait_for_failure(system, run_dir, attempt=2)
    assert states(run_dir) == ["submitted", "started", "failed"] * 2


def _wait_for_failure(system: System, run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    what = f"attempt {attempt} to fail"
    wait_until(lambda: states(run_dir).count("failed") == attempt, what)
    entry: dict[str, Any] = {}

    def failed() -> bool:
        entry.update(system.status(run_dir))
        return entry["state"] == "failed"

    wait_until(failed, what, pause=1)
    assert entry["attempt"] == attempt
    return entry


@only("gridengine")
def test_a_status_that_is_an_order_to_the_scheduler(system: System) -> None:
    """Grid Engine keeps a job that ends with 100 in the queue."""
    run_dir = system.act("order", "exit:100", small=True)

    assert _wait_for_failure(system, run_dir)["reason"] == "exit status 100"
    wait_until(lambda: not system.queue(run_dir), "the queue to be empty")


def test_a_failure_is_retried_and_a_stop_at_a_checkpoint_goes_on_until_the_bound(
    system: System,
) -> None:
    """Where another job is what goes on, the second attempt is stopped by the deadline alone: no
    signal reaches the ranks, they look at the clock, and the script submits the next job."""
    stop, margin = ("deadline", "299s") if system.chains else ("exit:75", "10s")
    bounds = {"restarts": 1, "max_restarts": 1, "stop_margin": margin}
    run_dir = system.act("again", "exit:3", stop, "exit:75", "ok", small=True, **bounds)

    stopped = system.wait_for(run_dir, "checkpointed")
    assert (stopped["attempt"], stopped["reason"]) == (3, "job.max_restarts reached")
    if system.chains:
        assert cause(run_dir, 2) == "DEADLINE"
    assert_another_job_where_there_is_no_requeue(system, run_dir)
    system.wait_until_gone(run_dir)

    system.hpc_amp("resume", str(run_dir))
    assert system.wait_for(run_dir, "finished")["attempt"] == 4
    # In the first one, the launcher may end a rank before it has said anything.
    assert all(len(system.places("again", attempt)) == 2 for attempt in (2, 3, 4))
    assert states(run_dir) == [
        *("submitted", "started", "retried", "started", "continued", "started", "checkpointed"),
        *("submitted", "started", "finished"),
    ]


def assert_another_job_where_there_is_no_requeue(system: System, run_dir: Path) -> None:
    started = [event["job_id"] for event in events(run_dir) if event["state"] == "started"]
    if system.chains:
        assert len(set(started)) == len(started)
        queued = [event["job_id"] for event in events(run_dir) if event["state"] == "queued"]
        assert queued == started
    elif system.site != "local":
        assert len(set(started)) == 1


def test_cancel(system: System) -> None:
    # A local job that is deaf is given its full grace, 30 s.
    action = "wait" if system.site == "local" else "hang"
    run_dir = system.act("cancelled", action, "ok", small=True, restarts=5)
    system.wait_until_running("cancelled", ranks=2)
    places = system.places("cancelled", 1)

    system.hpc_amp("cancel", str(run_dir))

    assert system.status(run_dir)["state"] == "cancelled"
    system.wait_until_gone(run_dir)
    wait_until(lambda: gone(places), "the ranks to end")
    assert states(run_dir)[:3] == ["submitted", "started", "cancelled"]
    assert "started" not in states(run_dir)[3:]
    assert system.status(run_dir)["state"] == "cancelled"
    assert not system.places("cancelled", 2)


# ---- chains --------------------------------------------------------------------------------------


@only(*CHAINS)
def test_a_chain_goes_on_where_nodes_cannot_submit(system: System) -> None:
    with system.nodes_cannot_submit():
        run_dir = system.act("chain", "exit:75", "ok", small=True, chain=3)
        chain = (run_dir / "chain").read_text().split()
        assert system.wait_for(run_dir, "finished")["attempt"] == 2

    assert len(chain) == 4
    assert states(run_dir) == ["submitted", "started", "continued", "started", "finished"]
    started = [event["job_id"] for event in events(run_dir) if event["state"] == "started"]
    assert started == chain[:2]
    system.wait_until_gone(run_dir)
    assert system.status(run_dir)["state"] == "finished"


@only(*CHAINS)
def test_without_a_chain_the_run_waits_to_be_resumed(system: System) -> None:
    with system.nodes_cannot_submit():
        run_dir = system.act("alone", "exit:75", "ok", small=True)
        stopped = system.wait_for(run_dir, "checkpointed")

    assert "could not submit the next job" in stopped["reason"]
    system.wait_until_gone(run_dir)
    system.hpc_amp("resume", str(run_dir))
    assert system.wait_for(run_dir, "finished")["attempt"] == 2


@only(*CHAINS)
def test_cancelling_ends_a_whole_chain(system: System) -> None:
    run_dir = system.act("chained", "hang", small=True, chain=2)
    system.wait_until_running("chained", ranks=2)

    assert len(system.queue(run_dir)) == 3
    system.hpc_amp("cancel", str(run_dir))

    system.wait_until_gone(run_dir)
    assert states(run_dir) == ["submitted", "started", "cancelled"]


@only(*CHAINS)
def test_a_failure_ends_a_whole_chain(system: System) -> None:
    run_dir = system.act("broken", "exit:3", small=True, chain=2)

    _wait_for_failure(system, run_dir)
    system.wait_until_gone(run_dir)
    assert states(run_dir) == ["submitted", "started", "failed"]


# ---- time limits ---------------------------------------------------------------------------------


@only(*CHAINS)
def test_a_job_that_overruns_its_limit_can_be_resumed(system: System) -> None:
    """Killed without a warning, and perhaps without a signal. If ranks of another node are killed
    first, the launcher fails, and the script may have the time to note it."""
    if system.site == "cobalt_stand_in":
        assert system.server is not None
        system.server.config(minute=1.0)
        walltime = "5m"
    else:
        walltime = "15s"  # the second attempt makes sure that the first is silent
    try:
        limits = {"walltime": walltime, "stop_margin": "1s"}
        run_dir = system.act("overrun", "hang", "ok", small=True, **limits)
        ended = system.wait_for(run_dir, "lost", "failed")
    finally:
        if system.site == "cobalt_stand_in":
            assert system.server is not None
            system.server.config(minute=60.0)
    wait_until(lambda: gone(system.places("overrun", 1)), "the ranks to end")
    if system.site in ("cobalt_stand_in", "gridengine"):
        assert "time limit" in ended["reason"]
    system.wait_until_gone(run_dir)  # a failed job may still be ending
    system.hpc_amp("resume", str(run_dir))
    assert system.wait_for(run_dir, "finished")["attempt"] == 2


@only("gridengine")
def test_a_training_goes_on_in_another_job(system: System, warm_cluster: Cluster) -> None:
    run_dir = system.submit(
        *(CONFIG, *TRAINING, "job.ranks_per_node=1", "job.walltime=5m", "job.stop_margin=299s"),
        *("train.max_steps=2", "train.checkpoint=1h", "launch.preflight=false"),
        *warm_cluster.overrides[1:],
    )

    assert system.wait_for(run_dir, "finished")["attempt"] == 2
    assert cause(run_dir, 1) == "DEADLINE"
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2]
    assert_another_job_where_there_is_no_requeue(system, run_dir)


def cause(run_dir: Path, attempt: int) -> str:
    """Why the ranks of an attempt stopped."""
    return json.loads((run_dir / "attempts" / str(attempt) / "outcome.json").read_text())["cause"]


# ---- the main job --------------------------------------------------------------------------------

TRAINING = [
    "job.nodes=2",
    "job.gpus_per_node=0",
    "train.precision=fp32",
    "train.device=cpu",
    "train.data.download=false",
    "train.data.synthetic={train: 64, test: 32, image_size: 16}",
    "train.batch_size=16",
    "train.model=resnet8",
    "train.epochs=2",
    "train.log_every=1",
]
digests: dict[str, str] = {}
"""sha256 of the weights after the main job, by site."""


def test_the_main_job(system: System, warm_cluster: Cluster, warm_pythons: WarmPython) -> None:
    """The same numbers everywhere, to the last bit. Rank 0 imports torch itself on this machine,
    and once under srun and under mpirun."""
    inside = warm_cluster.overrides[1:] if system.site != "local" else []
    if system.site not in (*STAND_INS, "slurm_mpirun"):
        inside.append(f"container.python={one_real_rank(warm_pythons)}")
    run_dir = system.submit(CONFIG, *TRAINING, "job.ranks_per_node=1", "job.walltime=10m", *inside)

    system.wait_for(run_dir, "finished")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["outcome"], summary["world_size"]) == ("finished", 2)
    assert summary["nodes"] == (1 if system.site == "local" else 2)
    assert len(list((run_dir / "tensorboard").glob("events*"))) == 1
    digests[system.site] = summary["weights_sha256"]
    assert len(set(digests.values())) == 1, digests


def test_no_job_is_left_behind(system: System) -> None:
    """Runs last on each scheduler."""
    for run_dir in system.work.glob("runs/*/[0-9]*"):
        # A job's last line is there before its scheduler knows that it has ended.
        system.wait_until_gone(run_dir)
        for attempt in range(1, 5):
            assert gone(system.places(run_dir.parent.name, attempt))
    assert os.path.isdir(system.work)
