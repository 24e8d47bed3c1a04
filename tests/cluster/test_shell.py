"""`hpc-amp shell` as somebody at a terminal uses it: on the real Slurm and the real Grid Engine
with the real Apptainer, with the stand-ins of PBS and Cobalt, whose jobs run on the same nodes, and
on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands
from support.cluster import Cluster, gridengine_environ, site_parameters
from support.environment import REPOSITORY
from support.standins import CobaltStandIn, PbsStandIn, StandIn
from support.stubs import REPORT, Report, read_reports
from support.terminal import CommandTerminal, Terminal
from support.waiting import wait_until

pytestmark = pytest.mark.cluster

SITES: dict[str, dict[str, Any]] = {
    "slurm": {"scheduler": "slurm", "gpu_order": "reversed"},
    "pbs": {"scheduler": "pbs", "gpu_request": "none"},
    "cobalt": {"scheduler": "cobalt"},
    "gridengine": {"scheduler": "gridengine", "gpu_request": "none"},
    "here": {"scheduler": "local"},
}
QUEUES = ["slurm", "pbs", "cobalt", "gridengine"]
STAND_INS = {"pbs": PbsStandIn, "cobalt": CobaltStandIn}
NODES = ("n1", "n2", "n3", "n4")
PROMPT = r"\(demo\) \S+:\S+[#$] "


@dataclass
class Place:
    """A user's folder on a login node."""

    site: str
    work: Path
    environ: dict[str, str]
    server: StandIn | None

    def terminal(self, *words: str, rows: int = 24, columns: int = 80) -> CommandTerminal:
        """`hpc-amp shell WORDS` on a new terminal."""
        command = [sys.executable, "-m", "hpc_amp", "shell", *words]
        size = {"rows": rows, "columns": columns}
        return CommandTerminal(command, cwd=self.work, environ=self.environ, **size)

    def run(self, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Any command without a terminal."""
        if "input" not in more:
            more["stdin"] = subprocess.DEVNULL
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.environ,
            text=True,
            capture_output=True,
            timeout=300,
            **more,
        )

    def hpc_amp(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`hpc-amp WORDS` without a terminal."""
        return commands.hpc_amp(*words, cwd=self.work, environ=self.environ)

    def queue(self) -> set[str]:
        """The names of the jobs that this test has in the queue."""
        if self.server is not None:
            return {job["name"] for job in self.server.jobs().values() if job["state"] not in "FC"}
        if self.site == "here":
            return set()
        if self.site == "gridengine":
            return self.queue_of_gridengine()
        shown = self.run("squeue", "-h", "-t", "PD,R,S,CF", "-o", "%Z %j").stdout
        rows = (line.split(" ") for line in shown.splitlines())
        return {name for folder, name in rows if Path(folder).is_relative_to(self.work)}

    def queue_of_gridengine(self) -> set[str]:
        shown = self.run("qstat", "-j", "*", errors="replace").stdout.split("=" * 60)
        facts = [
            dict(line.partition(":")[::2] for line in job.splitlines() if ":" in line)
            for job in shown
        ]
        return {
            job["job_name"].strip()
            for job in facts
            if Path(job.get("cwd", "/").strip()).is_relative_to(self.work)
        }

    def folders(self) -> list[Path]:
        """What sessions have left behind."""
        return list(self.work.glob("runs/*/shell-*"))


@pytest.fixture(params=site_parameters(SITES))
def place(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[Place]:
    site = request.param
    sites = tmp_path / "sites"
    sites.mkdir()
    described = {**SITES[site], "env": {"OF_SITE": "a 'b'"}, "setup": "export FROM_SETUP=yes\n"}
    (sites / "tested.yaml").write_text(yaml.safe_dump(described))
    work, environ, server = tmp_path / "work", dict(cluster.environ), None
    with contextlib.ExitStack() as stack:
        if site in STAND_INS:
            server = stack.enter_context(STAND_INS[site](tmp_path / "server", local_nodes=False))
            programs = cluster.environ["PATH"].split(":")[0]
            profile = f'PATH="$PATH:{server.bin}:{programs}"\n'
            (server.home / ".profile").write_text(profile)
            server.serve()
            environ |= server.environ(PATH=f"{server.bin}:{cluster.environ['PATH']}")
            work = server.work
        else:
            work.mkdir()
            if site == "gridengine":
                environ |= gridengine_environ(cluster)
        environ["HPC_AMP_SITES"] = str(sites)
        gpus = 2 if site == "slurm" else 0
        job = {
            "name": "demo",
            "site": "tested",
            "run": ["python", "-I", "-S", str(REPORT), "batch"],
            "job": {"gpus_per_node": gpus, "ranks_per_node": 1, "walltime": "5m"},
            "launch": {"preflight": False},
            "container": {
                "image": cluster.image,
                "bind": [*cluster.binds, str(REPOSITORY)],
                "python": sys.executable,
                "env": {"TEXT": "$HOME 'q' `id`", "LC_ALL": "C.UTF-8"},
            },
        }
        (work / "job.yaml").write_text(yaml.safe_dump(job))
        yield Place(site, work, environ, server)


def only(*sites: str) -> pytest.MarkDecorator:
    """A test of what only these have."""
    return pytest.mark.parametrize("place", site_parameters(SITES, sites), indirect=True)


def left_nothing(place: Place) -> None:
    wait_until(lambda: not place.queue(), "an empty queue")
    left = [list(folder.iterdir()) for folder in place.folders()]
    assert left == []


def full(place: Place) -> list[str]:
    """Make the queue wait. Returns what a session needs to wait in it, too."""
    if place.site == "slurm":
        return ["job.directives=[--begin=now+1hour]"]
    if place.site == "gridengine":
        return ["job.directives=[-l gpu=1000]"]
    assert place.server is not None
    place.server.script("#!/bin/sh\nsleep 1000\n", "occupy.sh")
    options = {
        "pbs": "-N occupy -l select=4:ncpus=8 -l place=scatter:excl -l walltime=1:00:00",
        "cobalt": "--jobname occupy -n 4 -t 60",
    }
    done = place.server.run("qsub", *options[place.site].split(), "occupy.sh")
    assert done.returncode == 0, done.stderr
    running = {"pbs": "R", "cobalt": "running"}[place.site]
    server = place.server
    wait_until(
        lambda: [j["state"] for j in server.jobs().values() if j["name"] == "occupy"] == [running],
        "the nodes to be taken",
    )
    return []


WAITS = {
    "slurm": r"srun: job \d+ queued and waiting for resources",
    "pbs": r"qsub: waiting for job \S+ to start",
    "cobalt": r"Wait for job \d+ to start",
    "gridengine": "",  # qrsh waits and says nothing
}


# ---- a shell -------------------------------------------------------------------------------------


def test_a_shell(place: Place) -> None:
    with place.terminal(rows=33, columns=99) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("stty size; hostname; echo rank=$RANK; tty")
        terminal.wait_for(r"\n33 99\n")
        host = terminal.wait_for(r"(\S+)\n")[1]
        assert (host in NODES) == (place.site != "here")
        terminal.wait_for(r"rank=0\n/dev/\S+\n")

        # The image's own files, the job's interpreter, the working directory.
        terminal.wait_for(PROMPT)
        terminal.type("echo $APPTAINER_CONTAINER; which python; pwd")
        terminal.wait_for(r"\n/\S+\.sif\n")
        terminal.wait_for(re.escape(sys.executable.rpartition("/")[0]) + r"/python\n")
        terminal.wait_for(re.escape(str(place.work)) + r"\n")

        # Ctrl-C is for the command alone. It says itself that it runs: between two commands, and
        # while it starts one, bash loses the key.
        terminal.wait_for(PROMPT)
        terminal.type("sh -c 'echo go; exec sleep 1000'; echo slept=$?")
        terminal.wait_for(r"\ngo\n")
        terminal.interrupt()
        terminal.wait_for(PROMPT)
        terminal.type("echo status=$?")
        terminal.wait_for(r"\nstatus=130\n")
        assert "slept=" not in terminal.seen.replace("slept=$", "")

        terminal.wait_for(PROMPT)
        terminal.type("exit 7")
        assert terminal.end() == 7
    left_nothing(place)


@only(
    "slurm", "cobalt", "gridengine", "here"
)  # qsub of PBS tells the node the size at the start only
def test_the_window_may_change_its_size(place: Place) -> None:
    with place.terminal(rows=33, columns=99) as terminal:
        terminal.wait_for(PROMPT)
        # Once as a signal to what runs, once as what the shell finds afterwards.
        wait = 'trap "echo changed; exit" WINCH; echo on; while :; do sleep 0.1; done'
        terminal.type(f"sh -c '{wait}'; stty size")
        terminal.wait_for(r"\non\n")
        terminal.resize(40, 120)
        terminal.wait_for(r"changed\n40 120\n")
        terminal.wait_for(PROMPT)
        terminal.type("exit")
        terminal.end()


def test_end_of_input_ends_the_shell_and_the_terminal_is_as_it_was(place: Place) -> None:
    with place.terminal() as terminal:
        before = terminal.settings()
        terminal.wait_for(PROMPT)
        terminal.type("stty -echo; (exit 4)")
        terminal.wait_for(PROMPT)
        terminal.send(b"\x04")
        assert terminal.end() == 4
        assert terminal.settings() == before
    left_nothing(place)


def test_a_shell_that_is_killed_gives_the_terminal_back(place: Place) -> None:
    command = shlex.join([sys.executable, "-m", "hpc_amp", "shell"])
    line = f"{command}; echo ended=$?; stty -a | grep -o ' icanon'; read -r text; echo got=$text"
    environ = {**place.environ, "PS1": "outside> "}
    with Terminal(["bash", "--norc", "-ic", line], cwd=place.work, environ=environ) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("kill -9 $$")
        terminal.wait_for(r"ended=137\n icanon\n")
        terminal.type("typed")
        terminal.wait_for("got=typed")
        assert terminal.end() == 0
    left_nothing(place)


@only("pbs", "cobalt")
def test_what_was_typed_too_early_is_not_lost(place: Place) -> None:
    with place.terminal() as terminal:
        terminal.wait_for(WAITS[place.site])
        terminal.type("echo early; exit 6")
        assert terminal.end() == 6
        assert "\nearly\n" in terminal.seen


# ---- a command -----------------------------------------------------------------------------------


WORDS = ["", "a b", "it's", '"', "$(touch pwned)", "`id`", "--", "-x", "line\nbreak", "ünï💥", "\\"]


def test_a_command(place: Place) -> None:
    program = "import json, os, sys; print(json.dumps(sys.argv[1:])); sys.exit(5)"

    with place.terminal("--", "python", "-c", program, *WORDS, columns=1000) as terminal:
        assert terminal.end() == 5
    shown = next(line for line in terminal.seen.splitlines() if line.startswith("["))
    assert json.loads(shown) == WORDS
    assert not list(place.work.rglob("pwned"))
    left_nothing(place)


def test_ctrl_c_reaches_a_command(place: Place) -> None:
    program = (
        "import time\ntry: print('go', flush=True); time.sleep(1000)\n"
        "except KeyboardInterrupt: print('saved'); raise SystemExit(9)"
    )
    with place.terminal("--", "python", "-c", program) as terminal:
        terminal.wait_for(r"go\n")
        terminal.interrupt()
        assert terminal.end() == 9, terminal.seen
        assert "saved" in terminal.seen
    left_nothing(place)


@only("slurm", "gridengine", "here")
def test_pipes(place: Place) -> None:
    program = "import sys; print(sys.stdin.read().upper(), end=''); sys.exit(5)"

    words = [sys.executable, "-m", "hpc_amp", "shell", "--", "python", "-c", program]
    result = place.run(*words, input="one\ntwo\n")

    assert (result.returncode, result.stdout) == (5, "ONE\nTWO\n")
    left_nothing(place)


@only("slurm", "gridengine", "here")
def test_ctrl_c_in_a_pipe(place: Place) -> None:
    program = "import time; print('go', flush=True); time.sleep(1000)"
    words = [sys.executable, "-m", "hpc_amp", "shell", "--", "python", "-c", program]

    with Terminal(
        ["bash", "-c", f"{shlex.join(words)} | cat"], cwd=place.work, environ=place.environ
    ) as terminal:
        terminal.wait_for(r"go\n")
        terminal.interrupt()
        terminal.end()
    left_nothing(place)


@only("pbs", "cobalt")
def test_a_missing_terminal_is_told(place: Place) -> None:
    result = place.hpc_amp("shell", "--", "true")

    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: an interactive job of ") and "needs a terminal" in line
    left_nothing(place)


# ---- waiting, and ends from outside --------------------------------------------------------------


@only(*QUEUES)
def test_ctrl_c_takes_a_request_back(place: Place) -> None:
    needed = full(place)
    with place.terminal(*needed) as terminal:
        terminal.wait_for(WAITS[place.site])
        wait_until(lambda: "demo" in place.queue(), "the request to be in the queue")
        terminal.interrupt()
        assert terminal.end() == 130
    wait_until(lambda: "demo" not in place.queue(), "the request to be gone")
    left = [list(folder.iterdir()) for folder in place.folders()]
    assert left == []


@only(*QUEUES)
def test_closing_the_window_takes_a_request_back(place: Place) -> None:
    needed = full(place)
    with place.terminal(*needed) as terminal:
        terminal.wait_for(WAITS[place.site])
        wait_until(lambda: "demo" in place.queue(), "the request to be in the queue")
        os.killpg(terminal.pid, signal.SIGHUP)
        assert terminal.end() != 0
    wait_until(lambda: "demo" not in place.queue(), "the request to be gone")
    left = [list(folder.iterdir()) for folder in place.folders()]
    assert left == []


@only(*QUEUES)
def test_closing_the_window_ends_the_job(place: Place) -> None:
    with place.terminal() as terminal:
        terminal.wait_for(PROMPT)
        assert "demo" in place.queue()
        os.killpg(terminal.pid, signal.SIGHUP)
        assert terminal.end() != 0
    left_nothing(place)


@only("slurm", "pbs", "gridengine")
def test_a_job_that_is_ended_from_outside(place: Place) -> None:
    with place.terminal() as terminal:
        terminal.wait_for(PROMPT)
        if place.server is not None:
            (job_id,) = place.server.jobs()
            place.server.run("qdel", job_id)
        elif place.site == "gridengine":
            place.run("qdel", "demo")
        else:
            place.run("scancel", "--name=demo", "--state=RUNNING")
        assert terminal.end() != 0
        if place.server is not None:
            assert (
                "hpc-amp: the session was ended by its time limit or by the scheduler"
                in terminal.seen
            )
    left_nothing(place)


@only(*QUEUES)
def test_a_request_that_is_refused(place: Place) -> None:
    refused = {
        "slurm": "job.queue=nosuchqueue",
        "pbs": "job.queue=nosuchqueue",
        "cobalt": "job.directives=[--attrs a=b=c]",
        "gridengine": "job.queue=nosuchqueue",
    }
    said = {
        "slurm": "nosuchqueue|nvalid partition",
        "pbs": "Unknown queue",
        "cobalt": "Improperly",
        "gridengine": "unknown queue",
    }

    with place.terminal(refused[place.site]) as terminal:
        assert terminal.end() != 0
        assert re.search(said[place.site], terminal.seen), terminal.seen
    left_nothing(place)


# ---- what a rank has -----------------------------------------------------------------------------

# What is this process's, this job's or this folder's alone.
OWN = re.compile(
    r"SLURM_.*|SLURMD_.*|PBS_.*|COBALT_.*|SRUN_.*|HPC_AMP_.*|_|SHLVL|PWD|OLDPWD|TERM|COLUMNS|LINES"
    r"|MASTER_PORT|TRITON_CACHE_DIR|TORCHINDUCTOR_CACHE_DIR|PYTHONPATH|SSH_TTY|ENVIRONMENT"
    r"|SGE_.*|QRSH_.*|JOB_.*|REQ.*|PE_HOSTFILE|TMP|HOSTNAME|QUEUE|ARC|NHOSTS|NQUEUES|NSLOTS|RESTARTED"
    r"|APPTAINER_.*|SINGULARITY_.*|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK|GPU_DEVICE_ORDINAL|COLORTERM"
)


def comparable(report: Report) -> dict[str, str]:
    """What a rank and a session have in common. A batch job of Grid Engine adds the folder of its
    commands to PATH where a login shell does not know them."""
    commands = f":{report.environ.get('SGE_BINARY_PATH', '')}"
    values = {name: value for name, value in report.environ.items() if not OWN.fullmatch(name)}
    if len(commands) > 1 and "USER_PATH" in values:
        values["USER_PATH"] = values["USER_PATH"].replace(commands, "")
    return values


@only(*QUEUES)
def test_a_command_has_what_a_rank_of_the_batch_job_has(place: Place) -> None:
    submitted = json.loads(place.hpc_amp("submit", "job.yaml", "--json").stdout)
    run_dir = Path(submitted["run_dir"])
    wait_until(
        lambda: "finished" in (run_dir / "state.jsonl").read_text(), "the batch job to finish"
    )
    wait_until(lambda: not place.queue(), "its GPUs to be free")
    with place.terminal("--", "python", "-I", "-S", str(REPORT), "shell") as terminal:
        assert terminal.end() == 0, terminal.seen

    (batch,), (shell,) = read_reports(place.work / "batch"), read_reports(place.work / "shell")
    assert comparable(shell) == {**comparable(batch), "MASTER_ADDR": shell.environ["MASTER_ADDR"]}
    assert shell.cwd == batch.cwd
    assert shell.environ["MASTER_ADDR"] in NODES and batch.environ["MASTER_ADDR"] in NODES
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TEXT", "OF_SITE", "FROM_SETUP", "LC_ALL"):
        assert name in comparable(batch), name
    if place.site == "slurm":
        assert shell.environ["CUDA_VISIBLE_DEVICES"] == "1,0"
    for report in (batch, shell):
        assert report.environ["PYTHONPATH"].startswith(f"{place.work}/runs/demo/")
        assert 61000 <= int(report.environ["MASTER_PORT"]) < 65536
    # Both stop in time; the session's job, like the run's, may take five minutes.
    assert abs(float(shell.environ["HPC_AMP_STOP_AT"]) - time.time()) < 300


@only("slurm")
def test_a_training_and_going_on_with_it(place: Place, warm_cluster: Cluster) -> None:
    small = {"data": "synthetic", "model": "resnet8", "batch_size": 32, "max_steps": 2}
    job = yaml.safe_load((place.work / "job.yaml").read_text())
    job |= {"run": None, "train": small}
    job["container"] |= {"python": warm_cluster.python, "bind": warm_cluster.binds}
    (place.work / "job.yaml").write_text(yaml.safe_dump(job))
    command = ["--", "python", "-m", "hpc_amp.train"]

    first = place.hpc_amp("shell", *command)

    assert first.returncode == 0, first.stdout + first.stderr
    assert "finished at step 2 of 2" in first.stdout
    (kept,) = place.folders()
    assert f"kept {kept}: the session wrote attempts, checkpoints" in first.stderr
    again = place.hpc_amp("shell", str(kept), *command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "step-00000002" in again.stdout or "step 2" in again.stdout
    assert not list(kept.glob("shell-*"))


# ---- inside an allocation ------------------------------------------------------------------------


@only("slurm")
def test_inside_salloc_it_goes_to_the_node(place: Place) -> None:
    shell = [sys.executable, "-m", "hpc_amp", "shell"]
    show = ["--", "sh", "-c", "hostname; echo $SLURM_JOB_ID; exit 3"]

    result = place.run("salloc", "-N1", "-n1", "--gres=gpu:1", "--job-name=demo", *shell, *show)

    host, job_id = result.stdout.split()
    assert host in NODES and f"allocation {job_id}" in result.stderr
    assert result.returncode == 3


@only("slurm")
def test_on_a_node_it_stays_there(place: Place) -> None:
    show = "hostname; echo $SLURM_JOB_ID $SLURM_STEP_ID"
    words = [sys.executable, "-m", "hpc_amp", "shell", "--", "sh", "-c", f"{show}; exit 3"]

    line = f"{show}; {shlex.join(words)}"
    result = place.run("srun", "-N1", "-n1", "--job-name=demo", "bash", "-c", line)

    outside, inside = result.stdout.splitlines()[:2], result.stdout.splitlines()[2:]
    assert outside == inside and outside[0] in NODES
    assert result.returncode == 3


@only("slurm")
def test_here_asks_nobody(place: Place) -> None:
    show = ["--", "sh", "-c", "hostname; echo ${SLURM_JOB_ID:-none}; echo $APPTAINER_CONTAINER"]

    result = place.hpc_amp("shell", "--here", *show)

    host, job_id, image = result.stdout.split()
    assert host not in NODES and job_id == "none" and image.endswith(".sif")
    assert (result.returncode, result.stderr) == (0, "")


@only("slurm")
def test_the_printed_line_works_on_a_node(place: Place) -> None:
    words = ["python", "-I", "-S", str(REPORT), "printed", *WORDS]
    printed = place.hpc_amp("shell", "--print", "--", *words).stdout

    assert printed.startswith("# a node of the job's kind: srun ")
    assert "\napptainer exec --nv -B " in printed
    script = f"cd /\n{printed}"
    done = place.run("srun", "-N1", "-n1", "--job-name=demo", "bash", "-c", script)

    assert done.returncode == 0, done.stderr
    (report,) = read_reports(place.work / "printed")
    assert report.argv == WORDS and report.cwd == str(place.work)
    assert report.environ["TEXT"] == "$HOME 'q' `id`" and report.environ["OF_SITE"] == "a 'b'"
    assert not list(place.work.rglob("pwned"))
