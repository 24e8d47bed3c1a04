"""The commands as a user calls them: what they print, where, and with which exit code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.stubs import RUN_ID, StubHost
from support.waiting import wait_for_file, wait_until

from hpc_amp import __version__
from hpc_amp.errors import UsageError
from hpc_amp.jobs import resume
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers.local import scheduler as local

STATUS_KEYS = {
    "run_dir", "name", "job_id", "scheduler", "state", "reason", "attempt", "step", "total_steps",
    "outcome", "start",
}  # fmt: skip
LISTED_KEYS = STATUS_KEYS | {"kind", "seconds_to_go", "cause"}


def job(**more: Any) -> dict[str, Any]:
    """A job file that runs `true` without GPUs."""
    resources = {"gpus_per_node": 0, "walltime": "10m", **more.pop("job", {})}
    return {"name": "test", "site": "slurm", "run": ["true"], **more, "job": resources}


def fails(result: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The one line in which a command says why it did not do what it was asked."""
    assert result.returncode == status, result.stdout + result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("hpc-amp: ")
    return lines[0].removeprefix("hpc-amp: ")


def until_state(host: StubHost, target: str, state: str) -> dict[str, Any]:
    """The status of a run as soon as it is in that state."""

    def status() -> dict[str, Any] | None:
        (entry,) = json.loads(host.hpc_amp("status", target, "--json").stdout)
        return dict(entry) if entry["state"] == state else None

    found: dict[str, Any] = wait_until(status, f"{target} to be {state}", pause=0.1)
    return found


def submitted(host: StubHost, config: dict[str, Any], *overrides: str) -> dict[str, Any]:
    """What `submit --json` says of a new run."""
    host.write_job(config)
    result = host.hpc_amp("submit", "job.yaml", *overrides, "--json")
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture
def here(host: StubHost) -> Iterator[StubHost]:
    """A machine on which local runs are started; none outlives the test."""
    yield host
    for path in host.work.glob("runs/*/[0-9]*/state.jsonl"):
        for event in read_events(path.parent):
            job_id = str(event.get("job_id", ""))
            if job_id.startswith("local-") and local._alive(job_id):
                for member in local._family(int(job_id.split("-")[1])):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)


# ---- help and errors -----------------------------------------------------------------------------


def test_help(host: StubHost) -> None:
    plain, named, short = (host.hpc_amp(*words) for words in ([], ["--help"], ["-h"]))

    assert plain.stdout == named.stdout == short.stdout
    assert (plain.returncode, named.returncode, short.returncode) == (0, 0, 0)
    assert named.stdout.startswith("Usage: hpc-amp [OPTIONS] COMMAND [ARGS]...\n")
    for command in ("submit", "status", "logs", "cancel", "resume", "render", "validate", "run"):
        assert f"\n  {command} " in named.stdout


def test_version(host: StubHost) -> None:
    result = host.hpc_amp("--version")

    assert (result.stdout, result.returncode) == (f"hpc-amp {__version__}\n", 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sumbit", "x"], "No such command 'sumbit'. Did you mean 'submit'? See hpc-amp --help"),
        (["Status"], "No such command 'Status'. Did you mean 'status'?"),
        (["nothing"], "No such command 'nothing'. See hpc-amp --help"),
        (["sweep", "stauts", "x"], "No such command 'stauts'. Did you mean 'status'?"),
        (["ps"], "No such command 'ps'. Try: hpc-amp status. See hpc-amp --help"),
        (["stop", "x"], "No such command 'stop'. Try: hpc-amp cancel RUN"),
        (["--nope"], "No such option"),
        (["submit"], "Missing argument 'CONFIG'. See hpc-amp submit --help"),
        (["logs", "a", "b"], "Got unexpected extra argument (b). See hpc-amp logs --help"),
        (["render"], "Missing argument 'CONFIG'."),
        (["validate"], "Missing argument 'CONFIG'."),
        (["run"], "Missing argument 'CONFIG'."),
        (["logs"], "there are no runs in runs"),
        (["resume"], "Missing argument 'RUN'."),
        (["cancel"], "Missing argument 'RUN...'."),
        *(
            ([group], f"Missing command. See hpc-amp {group} --help")
            for group in ("bench", "container", "scale", "sweep")
        ),
        (["logs", "-n", "x", "y"], "Invalid value for '-n' / '--lines'"),
        (["logs", "-n", "-1", "y"], "Invalid value for '-n' / '--lines'"),
        *(
            ([command, "job.yaml", "--dry-run", "--json"], "--dry-run prints scripts, which are")
            for command in ("submit", "sweep", "scale", "bench")
        ),
        (["submit", "nope.yaml"], "nope.yaml: there is no such job file"),
        (["submit", "."], ". is a folder; name a job file or a program in it"),
        (["submit", "job.yaml", "oops"], "override 'oops': this has no '='"),
        (["submit", "job.yaml", "job.node=2"], "override 'job.node=2': unknown key job.node; did"),
        (["submit", "job.yaml", "--run-id", "../x"], "'../x' is not a run id"),
        (["submit", "job.yaml", "site=nowhere"], "override 'site=nowhere': site: there is no"),
        (["submit", "job.yaml", "job.stop_margin=20h", "job.walltime=30h"], "job.stop_margin is"),
        (["render", "job.yaml", "container.image=/nope.sif"], "override"),
        (["validate", "job.yaml", "launch=single", "job.nodes=2"], "override 'launch=single'"),
        (["run", "job.yaml", "launch=srun"], "override 'launch=srun': launch.method srun does"),
        (["run", "job.yaml", "job.directives=[--x]"], "job.directives: the local scheduler"),
        (["status", "nope"], "there is no run 'nope'"),
        (["status", "x" * 300], "there is no run"),
        (["logs", "nope"], "there is no run 'nope'"),
        (["cancel", "nope"], "there is no run 'nope'"),
        (["resume", "nope"], "there is no run 'nope'"),
        (["status", "nope", "--runs-dir", "/root/x/y"], "there is no run 'nope'"),
    ],
)
def test_errors_are_one_line(host: StubHost, words: list[str], message: str) -> None:
    host.write_job(job())

    assert fails(host.hpc_amp(*words)).startswith(message)
    assert sorted(path.name for path in host.work.iterdir()) == ["job.yaml"]


def test_an_option_without_its_value(host: StubHost) -> None:
    assert fails(host.hpc_amp("logs", "-n")) == "Option '-n' requires an argument."


def test_init_writes_a_job_file_that_is_good(host: StubHost) -> None:
    result = host.hpc_amp("init")

    assert result.stdout == "wrote job.yaml; next: hpc-amp validate job.yaml\n", result.stderr
    assert host.hpc_amp("validate", "job.yaml").returncode == 0
    assert fails(host.hpc_amp("init")).startswith("job.yaml already exists")
    assert fails(host.hpc_amp("init", "no/folder.yaml")).startswith("no/folder.yaml cannot be")


def test_what_is_to_be_typed_next_can_be_typed_in_a_folder_with_a_space(host: StubHost) -> None:
    config = host.work / "my job.yaml"
    wrote = host.hpc_amp("init", "-o", config.name)
    assert wrote.stdout == "wrote my job.yaml; next: hpc-amp validate 'my job.yaml'\n"

    config.write_text(json.dumps(job(site="local")))
    swept = host.hpc_amp("sweep", config.name, "container.env.X=1,2", "--sweeps-dir", "all of it")
    *_, last = swept.stdout.splitlines()
    see, hpc_amp, *words = shlex.split(last)
    assert (see, hpc_amp) == ("see:", "hpc-amp"), swept.stderr
    assert host.hpc_amp(*words, "--metric", "seconds").returncode == 0


def test_validate(host: StubHost) -> None:
    host.write_job(job(job={"nodes": 2, "ranks_per_node": 3}))

    words = host.hpc_amp("validate", "job.yaml")
    facts = host.hpc_amp("validate", "job.yaml", "--json")

    assert words.stdout == (
        "job.yaml is valid: test, 6 rank(s) on 2 node(s), site slurm, slurm, srun, no container\n"
    )
    assert json.loads(facts.stdout) == {
        "config": "job.yaml", "name": "test", "site": "slurm", "scheduler": "slurm",
        "launcher": "srun", "container": None, "nodes": 2, "world_size": 6,
    }  # fmt: skip
    assert list(host.work.iterdir()) == [host.work / "job.yaml"]


def test_validate_refuses_a_program_that_is_not_there_as_submit_does(host: StubHost) -> None:
    host.write_job(job(run=["python", "trian.py"]))

    said = fails(host.hpc_amp("validate", "job.yaml"))

    assert said.startswith(f"run: trian.py does not exist in {host.work}; check the path")
    assert fails(host.hpc_amp("submit", "job.yaml")).startswith(said)


def test_a_working_directory_that_is_gone(host: StubHost) -> None:
    gone = host.work / "gone"
    gone.mkdir()
    command = [sys.executable, "-m", "hpc_amp", "status"]

    result = subprocess.run(
        ["bash", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *command],
        env=host.environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert fails(result) == ("the working directory no longer exists; change to another one")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_standard_stream_that_is_closed(host: StubHost, closed: str) -> None:
    host.write_job(job())
    command = [sys.executable, "-m", "hpc_amp", "submit", "job.yaml"]

    result = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "-", *command],
        cwd=host.work, env=host.environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert (result.returncode, result.stderr) == (0, "")
    assert ("submitted job" in result.stdout) == (closed != ">&-")


# `hpc-amp` where no file can have a byte.
NO_ROOM = """\
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from hpc_amp.cli import main
main()
"""
# `hpc-amp` with Ctrl-C while it is loaded.
INTERRUPTED = """\
import sys
class Interrupt:
    def find_spec(self, name, *others):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from hpc_amp.cli import main
main()
"""


@pytest.mark.parametrize("words", [["status"], ["submit", "job.yaml"], ["docs", "index"]])
def test_a_disk_without_room_for_the_output(host: StubHost, words: list[str]) -> None:
    host.write_job(job())
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hpc_amp", *words],
            cwd=host.work, env=host.environ(), text=True, stdout=full, stderr=subprocess.PIPE,
            timeout=300,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "hpc-amp: the output cannot be written: No space left on device\n"


def test_a_job_file_that_cannot_be_written_whole_is_not_left(host: StubHost) -> None:
    result = host.python("-c", NO_ROOM, "init")
    assert (result.returncode, result.stderr) == (
        2,
        "hpc-amp: job.yaml cannot be written: File too large\n",
    )
    assert list(host.work.iterdir()) == []


def test_ctrl_c_while_it_is_loaded(host: StubHost) -> None:
    result = host.python("-c", INTERRUPTED, "status")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


# ---- render and submit ---------------------------------------------------------------------------


def test_a_dry_run_prints_the_bytes_and_touches_nothing(host: StubHost) -> None:
    host.write_job(job(run=["echo", "ünï💥\n$(x)"], container={"env": {"A": "'"}}))
    words = ["job.yaml", "job.nodes=2", "--run-id", RUN_ID]
    before = sorted(host.folder.rglob("*"))

    dry = subprocess.run(
        [sys.executable, "-m", "hpc_amp", "submit", *words, "--dry-run"],
        cwd=host.work, env=host.environ(PYTHONIOENCODING="latin-1"),
        capture_output=True, timeout=300,
    )  # fmt: skip
    rendered = host.hpc_amp("render", *words)

    assert sorted(host.folder.rglob("*")) == before
    assert (dry.returncode, dry.stderr) == (0, b"")
    assert rendered.stdout.encode() == dry.stdout
    assert host.hpc_amp("submit", *words).returncode == 0
    assert (host.work / "runs/test" / RUN_ID / "launch.sh").read_bytes() == dry.stdout


def test_a_dry_run_in_a_folder_that_the_terminal_cannot_name(host: StubHost) -> None:
    """The bytes are the script's, whatever the terminal can show."""
    work = host.work / "größe"
    work.mkdir()
    (work / "job.yaml").write_bytes(host.write_job(job()).read_bytes())

    result = host.hpc_amp("submit", "job.yaml", "--dry-run", cwd=work, PYTHONIOENCODING="latin-1")

    assert result.returncode == 0, result.stderr
    assert f"run_dir='{work}/runs/test/" in result.stdout


def test_submit(host: StubHost) -> None:
    text = host.write_job(job()).read_bytes()

    result = host.hpc_amp("submit", "job.yaml", "--run-id", RUN_ID, SBATCH_PARTITION="stray",
                          SLURM_JOB_ID="7", SECRET="x")  # fmt: skip

    run_dir = host.work / "runs/test" / RUN_ID
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"submitted job 4242 (slurm)\nrun directory {run_dir}\n"
    assert host.calls("sbatch") == [["--parsable", str(run_dir / "launch.sh")]]
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "attempts", "config.yaml", "job.json", "launch.sh", "logs", "src", "state.jsonl",
    ]  # fmt: skip
    assert (run_dir / "config.yaml").read_bytes() == text
    assert os.access(run_dir / "launch.sh", os.X_OK)
    assert not list(run_dir.rglob("__pycache__"))
    assert (run_dir.parent / "latest").read_text() == f"{run_dir.name}\n"
    environ = (host.state / "environ-sbatch").read_text()
    assert "SECRET" not in environ
    assert "stray" not in environ


def test_submit_json(host: StubHost) -> None:
    facts = submitted(host, job(), f"--run-id={RUN_ID}")

    assert facts == {
        "job_id": "4242",
        "run_dir": str(host.work / "runs/test" / RUN_ID),
        "scheduler": "slurm",
    }


def test_the_same_submission_twice_in_a_second(host: StubHost) -> None:
    host.write_job(job())

    first, second = (host.hpc_amp("submit", "job.yaml", "--json") for _ in range(2))

    folders = [json.loads(result.stdout)["run_dir"] for result in (first, second)]
    assert folders[0] != folders[1]
    assert all((Path(folder) / "launch.sh").exists() for folder in folders)


def test_a_run_directory_is_never_used_again(host: StubHost) -> None:
    host.write_job(job())
    assert host.hpc_amp("submit", "job.yaml", "--run-id", RUN_ID).returncode == 0

    result = host.hpc_amp("submit", "job.yaml", "--run-id", RUN_ID)

    assert fails(result) == (
        f"{host.work}/runs/test/{RUN_ID} exists already; every run has a directory of its own"
    )
    assert len(host.calls("sbatch")) == 1


def test_a_refused_submission_leaves_nothing_behind(host: StubHost) -> None:
    host.write_job(job())
    host.fail("sbatch", "Batch job submission failed: Invalid account\n or partition")

    result = host.hpc_amp("submit", "job.yaml")

    assert fails(result, 1) == (
        "sbatch refused the job: sbatch: error: Batch job submission failed: Invalid account / "
        "or partition"
    )
    assert not (host.work / "runs" / "test").exists()


def test_a_job_in_the_queue_keeps_its_run_directory(host: StubHost) -> None:
    """The disk is full just when sbatch has taken the job, whose script says so by itself later."""
    host.before("sbatch", 'rm "$(dirname "$2")/state.jsonl"; mkdir "$(dirname "$2")/state.jsonl"\n')
    host.write_job(job())

    result = host.hpc_amp("submit", "job.yaml", "--run-id", RUN_ID)

    run_dir = host.work / "runs/test" / RUN_ID
    assert result.stdout == f"submitted job 4242 (slurm)\nrun directory {run_dir}\n"
    assert "state.jsonl cannot be written" in result.stderr
    assert (run_dir / "launch.sh").exists()


def test_a_refused_submission_leaves_the_latest_run_the_latest(host: StubHost) -> None:
    first = submitted(host, job())
    host.fail("sbatch", "no")

    assert host.hpc_amp("submit", "job.yaml").returncode == 1

    (status,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert status["run_dir"] == first["run_dir"]


@pytest.mark.parametrize("command", ["sbatch", "squeue"])
def test_no_slurm_on_this_machine(host: StubHost, command: str) -> None:
    run_dir = submitted(host, job())["run_dir"]
    tools = host.folder / "tools"
    tools.mkdir()
    for name in ("sbatch", "squeue"):
        (host.bin / name).unlink()

    if command == "sbatch":
        result = host.hpc_amp("submit", "job.yaml", PATH=str(tools))
        assert fails(result, 1) == (
            "`sbatch` is not on this machine's PATH; submit from a login node, or add site=local "
            "to run here"
        )
    else:
        result = host.hpc_amp("status", run_dir, "--json", PATH=str(tools))
        assert json.loads(result.stdout)[0]["state"] == "unknown"


def test_a_runs_folder_that_cannot_be_made(host: StubHost) -> None:
    host.write_job(job())
    (host.work / "runs").touch()

    message = fails(host.hpc_amp("submit", "job.yaml"))

    assert message.startswith(f"the run directory {host.work}/runs/test/")
    assert message.endswith(
        f" cannot be created: Not a directory: '{host.work}/runs/test'; "
        "name a folder that you can write: runs_dir=FOLDER"
    )
    assert host.calls("sbatch") == []


def test_a_sweeps_folder_that_cannot_be_made(host: StubHost) -> None:
    host.write_job(job())
    (host.work / "sweeps").touch()

    message = fails(host.hpc_amp("sweep", "job.yaml", "container.env.X=1,2"))

    assert message.startswith(f"the folder {host.work}/sweeps/test/")
    assert message.endswith("'; --sweeps-dir names another one")


def test_code_is_copied_without_the_runs_in_it(host: StubHost) -> None:
    (host.work / "train.py").write_text("x")
    (host.work / "results").mkdir()
    (host.work / "results" / "old").write_text("x" * 1000)

    facts = submitted(host, job(code=".", runs_dir="results"))

    copied = sorted(path.name for path in (Path(facts["run_dir"]) / "code").iterdir())
    assert copied == ["job.yaml", "train.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_code_that_cannot_be_copied(host: StubHost) -> None:
    code, runs = host.work / "code", host.work / "small"
    for folder in (code, runs):
        folder.mkdir()
    (code / "large").write_bytes(bytes(2 * 2**20))
    host.write_job(job(code="code", runs_dir="small"))

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "test", runs], check=True)
    try:
        message = fails(host.hpc_amp("submit", "job.yaml"))
        assert message.startswith(f"the run directory {runs}/test/")
        assert message.endswith(
            " cannot be written: No space left on device; "
            "free some space, or name another folder: runs_dir=FOLDER"
        )
        assert not (runs / "test").exists()
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


def test_too_much_code(host: StubHost) -> None:
    code = host.work / "code"
    code.mkdir()
    with (code / "data.bin").open("wb") as out:
        out.truncate(101 * 2**20)
    host.write_job(job(code="code"))

    message = fails(host.hpc_amp("submit", "job.yaml"))

    assert message.startswith(f"code: {code} holds more than 100 MiB; ")
    assert not (host.work / "runs" / "test").exists()


# ---- status --------------------------------------------------------------------------------------


def queue(host: StubHost, *rows: str) -> None:
    (host.state / "queue").write_text("".join(f"{row}\n" for row in rows))


@pytest.mark.parametrize(
    ("row", "state", "reason"),
    [
        ("4242|PENDING|Resources", "pending", "Resources"),
        ("4242|PENDING|None", "pending", ""),
        ("4242|PENDING|a|b", "pending", "a|b"),
        ("4242|CONFIGURING|None", "running", ""),
        ("4242|RUNNING|None", "running", ""),
        ("4242|COMPLETING|None", "running", ""),
        ("4242|CANCELLED|None", "cancelled", "CANCELLED"),
        ("4242|CANCELLED by 1000|None", "cancelled", "CANCELLED by 1000"),
        ("4242|NODE_FAIL|None", "lost", "NODE_FAIL"),
        ("4242|TIMEOUT|TimeLimit", "lost", "TIMEOUT"),
        ("9999|RUNNING|None", "lost", "it is not in the queue"),
    ],
)
def test_the_state_of_a_job_in_slurm(host: StubHost, row: str, state: str, reason: str) -> None:
    run_dir = submitted(host, job())["run_dir"]
    queue(host, row)

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert set(status) == LISTED_KEYS
    # Of the ends that the queue shows, these say why.
    assert (status.pop("cause") is not None) == (reason in ("TIMEOUT", "NODE_FAIL"))
    assert status == {
        "run_dir": run_dir, "name": "test", "job_id": "4242", "scheduler": "slurm", "state": state,
        "reason": reason, "attempt": 0, "step": None, "total_steps": None, "outcome": None,
        "kind": "run", "start": None, "seconds_to_go": None,
    }  # fmt: skip


@pytest.mark.parametrize("row", ["9999|RUNNING|None", "4242|FAILED|NonZeroExitCode"])
def test_a_run_that_was_cancelled_while_it_began_is_not_lost(host: StubHost, row: str) -> None:
    """The script said that it begins after the cancellation, and nothing when it ended."""
    run_dir = Path(submitted(host, job())["run_dir"])
    record_event(run_dir, "cancelled", reason="by hpc-amp cancel")
    record_event(run_dir, "started", attempt=1, job_id="4242", reason="on n1")
    queue(host, row)

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert (status["state"], status["reason"]) == ("cancelled", "by hpc-amp cancel")


def failed(host: StubHost, reason: str) -> Path:
    """The directory of a run that failed, and said why."""
    run_dir = Path(submitted(host, job())["run_dir"])
    record_event(run_dir, "failed", attempt=1, job_id="4242", reason="exit status 2")
    (run_dir / "attempts" / "1").mkdir()
    told = {"outcome": "failed", "reason": reason}
    (run_dir / "attempts" / "1" / "outcome.json").write_text(json.dumps(told))
    return run_dir


def test_a_failed_run_says_why_in_the_jobs_own_words(host: StubHost) -> None:
    failed(host, "there is no model 'resnet21'")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert status["reason"] == "there is no model 'resnet21'"


def test_a_reason_with_a_file_name_that_is_no_text(host: StubHost) -> None:
    """The name of the file is not UTF-8. It must not hide all other runs."""
    run_dir = failed(host, "the image a\udce9.png cannot be read")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert status["reason"] == "the image a?.png cannot be read"
    assert "the image a?.png" in host.hpc_amp("status").stdout
    assert "the image a?.png" in host.hpc_amp("status", str(run_dir)).stdout
    assert "the image a?.png" in host.hpc_amp("explain", str(run_dir)).stdout


@pytest.mark.parametrize("state", ["finished", "failed", "cancelled", "checkpointed"])
def test_an_end_is_believed_without_asking(host: StubHost, state: str) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    record_event(run_dir, "started", attempt=1, job_id="4242")
    record_event(run_dir, state, attempt=1, job_id="4242", reason="because")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert (status["state"], status["reason"], status["attempt"]) == (state, "because", 1)
    assert status["outcome"] == (state if state in ("finished", "failed") else None)
    assert host.calls("squeue") == []


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ("4242|PENDING|BeginTime", "pending"),
        ("4242|RUNNING|None", "running"),
        ("4242|CANCELLED|None", "checkpointed"),
        ("1|RUNNING|None", "checkpointed"),
    ],
)
def test_a_terminated_job_may_have_been_preempted(host: StubHost, row: str, state: str) -> None:
    """Then Slurm starts it again, and only Slurm knows."""
    record_event(Path(submitted(host, job())["run_dir"]), "terminated", reason="saved at SIGTERM")
    queue(host, row)

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert status["state"] == state


def test_many_runs_are_one_question(host: StubHost) -> None:
    host.write_job(job())
    for _ in range(3):
        assert host.hpc_amp("submit", "job.yaml").returncode == 0
    queue(host, "4242|RUNNING|None", "4243|PENDING|Priority", "1|RUNNING|None")

    statuses = json.loads(host.hpc_amp("status", "--json").stdout)

    assert len(host.calls("squeue")) == 1
    assert {entry["job_id"]: entry["state"] for entry in statuses} == {
        "4242": "running", "4243": "pending", "4244": "lost",
    }  # fmt: skip


def test_silence_is_not_an_end(host: StubHost) -> None:
    run_dir = submitted(host, job())["run_dir"]
    host.fail("squeue", "Unable to contact slurm controller (connect failure)")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert (status["state"], status["reason"]) == ("unknown", "the scheduler does not answer")
    assert fails(host.hpc_amp("resume", run_dir)).startswith(
        f"it is unknown whether {run_dir} still runs: the scheduler does not answer"
    )


def test_a_job_that_ends_while_it_is_asked_about(host: StubHost) -> None:
    """Between the look at the files and Slurm's answer the script may write its last line."""
    run_dir = submitted(host, job())["run_dir"]
    (host.bin / "squeue").unlink()
    (host.bin / "squeue").write_text(
        f'#!/bin/sh\n# Stub\necho \'{{"state": "finished"}}\' >>{run_dir}/state.jsonl\n'
        "echo '4242|COMPLETED|None'\n"
    )
    (host.bin / "squeue").chmod(0o755)

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert status["state"] == "finished"


def test_a_submission_that_was_interrupted(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    (run_dir / "state.jsonl").unlink()
    record_event(run_dir, "submitted", scheduler="slurm")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)
    assert (status["state"], status["job_id"]) == ("unknown", None)

    record_event(run_dir, "started", attempt=1, job_id="4242")
    queue(host, "4242|RUNNING|None")
    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)
    assert (status["state"], status["job_id"]) == ("running", "4242")


def test_damaged_files_do_not_hide_a_run(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    record_event(run_dir, "finished", attempt=1)
    with (run_dir / "state.jsonl").open("ab") as out:
        out.write(b'5\n[]\n{"no": "state"}\n\xff\xfe\n{"state": "fai')
    (run_dir / "attempts/1").mkdir()
    (run_dir / "attempts/1/progress.json").write_text('{"step": 5, "tot')
    (run_dir / "attempts/1/outcome.json").write_text("[]")

    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)

    assert (status["state"], status["step"]) == ("finished", None)


def test_an_event_behind_one_that_a_full_disk_cut_off(tmp_path: Path) -> None:
    """A lost `submitted` with a change of settings would revert the change."""
    (tmp_path / "state.jsonl").write_bytes(b'{"time": 1, "state": "queued"}\n{"time": 2, "sta')
    record_event(tmp_path, "submitted", change=3)
    record_event(tmp_path, "queued")
    states = [(event["state"], event.get("change")) for event in read_events(tmp_path)]
    assert states == [("queued", None), ("submitted", 3), ("queued", None)]


def test_the_table(host: StubHost) -> None:
    run_dir = Path(submitted(host, job(), f"--run-id={RUN_ID}")["run_dir"])
    (run_dir / "attempts/2").mkdir()
    (run_dir / "attempts/2/progress.json").write_text('{"step": 5, "total_steps": 60}')
    record_event(run_dir, "started", attempt=2)

    result = host.hpc_amp("status", COLUMNS="20")

    titles, line = (line.split("\t") for line in result.stdout.splitlines())
    found = dict(zip(titles, line, strict=True))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.pop("SUBMITTED"))
    assert found == {
        "NAME": "test",
        "KIND": "run",
        "STATE": "pending",
        "STEP": "5",
        "STEPS": "60",
        "ATTEMPT": "2",
        "JOB": "4242",
        "FOLDER": str(run_dir),
        "REASON": "Resources",
        "CAUSE": "-",
    }
    assert host.hpc_amp("status", "--runs-dir", "elsewhere").stdout == "no runs in elsewhere\n"


def test_runs_are_chosen_by_name_state_and_age(host: StubHost) -> None:
    ids = ["20260101-000000-aaaa", "20260101-000001-aaaa", "20260102-000000-aaaa"]
    for name, run_id in zip(("one", "two", "one"), ids, strict=True):
        run_dir = Path(submitted(host, job(name=name), f"--run-id={run_id}")["run_dir"])
        record_event(run_dir, "finished" if name == "two" else "failed", reason="it was a test")

    def chosen(*options: str) -> list[str]:
        found = json.loads(host.hpc_amp("status", "--json", *options).stdout)
        return [Path(one["run_dir"]).name for one in found]

    assert chosen() == ids[::-1]
    assert chosen("-n", "2") == [ids[2], ids[1]]
    assert chosen("--name", "o*") == [ids[2], ids[0]]
    assert chosen("--state", "finished") == [ids[1]]
    assert chosen("--state", "failed", "--state", "finished", "-n", "1") == [ids[2]]
    watched = host.hpc_amp("status", "--watch", "-n", "1")
    assert watched.stdout == host.hpc_amp("status", "-n", "1").stdout  # all have ended
    assert "no matching runs in runs" in host.hpc_amp("status", "--state", "running").stdout
    assert "not one of" in fails(host.hpc_amp("status", "--state", "asleep"))
    assert "leave out RUN" in fails(host.hpc_amp("status", "one", "-n", "1"))
    (Path(run_dir) / "logs" / "job.log").write_text("the newest\n")
    newest = host.hpc_amp("logs")
    assert newest.stdout == "the newest\n" and ids[2] in newest.stderr
    assert "there are no runs in none" in fails(host.hpc_amp("logs", "--runs-dir", "none"))
    waited = host.hpc_amp("wait", "two")
    assert (waited.returncode, waited.stdout) == (0, "two: finished (it was a test)\n")
    assert host.hpc_amp("wait", "one").returncode == 1


@pytest.mark.parametrize("target", ["4242", "test", "runs/test/{}", "runs/test/latest", "ABSOLUTE"])
def test_a_run_is_found_by_job_id_name_or_path(host: StubHost, target: str) -> None:
    run_dir = submitted(host, job(), f"--run-id={RUN_ID}")["run_dir"]
    target = run_dir if target == "ABSOLUTE" else target.format(RUN_ID)

    (status,) = json.loads(host.hpc_amp("status", target, "--json").stdout)

    assert status["run_dir"] == run_dir


def test_a_name_means_its_newest_run(host: StubHost) -> None:
    host.write_job(job())
    for run_id in ("20261127-223455-aaaa", "20261127-223455-bbbb"):
        assert host.hpc_amp("submit", "job.yaml", "--run-id", run_id).returncode == 0

    (status,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert status["job_id"] == "4243"
    (status,) = json.loads(host.hpc_amp("status", "4242", "--json").stdout)
    assert status["run_dir"].endswith("aaaa")


def test_runs_elsewhere(host: StubHost) -> None:
    run_dir = submitted(host, job(), "runs_dir=other")["run_dir"]

    assert host.hpc_amp("status", "test", XDG_STATE_HOME="/proc/none").returncode == 2
    (by_name,) = json.loads(host.hpc_amp("status", "test", "--json", cwd=host.folder).stdout)
    assert by_name["run_dir"] == run_dir  # the folder is known from the submission
    by_option = host.hpc_amp("status", "test", "--runs-dir", "other", "--json")
    by_variable = host.hpc_amp("status", "--json", HPC_AMP_RUNS="other")
    assert json.loads(by_option.stdout)[0]["run_dir"] == run_dir
    assert json.loads(by_variable.stdout)[0]["run_dir"] == run_dir


# ---- refusals of the scheduler, and login nodes ------------------------------------------------


def test_a_refused_job_is_reported_with_its_fix(host: StubHost) -> None:
    host.write_job(job())
    said = "Batch job submission failed: Invalid partition name specified"
    host.fail("sbatch", said)

    assert fails(host.hpc_amp("submit", "job.yaml"), 1) == (
        f"sbatch refused the job: sbatch: error: {said}. Fix: Set job.queue to one of `sinfo -s`."
    )


def test_a_login_node_is_not_measured_unasked(host: StubHost) -> None:
    config = job(train={"data": {"name": "synthetic"}})
    del config["run"]
    host.write_job(config)

    refused = fails(host.hpc_amp("bench", "job.yaml"))
    inside = host.hpc_amp("bench", "job.yaml", SLURM_JOB_ID="1", HPC_AMP_BENCHES="/dev/null/no")

    assert refused == (
        "this machine submits jobs to slurm, so it is probably a login node; measure in a job "
        "with --submit, or here with --yes"
    )
    assert "login node" not in inside.stderr
    assert inside.returncode == 2


# ---- cancel and resume ---------------------------------------------------------------------------


def test_cancel_on_slurm(host: StubHost) -> None:
    run_dir = submitted(host, job())["run_dir"]

    result = host.hpc_amp("cancel", "test")
    again = host.hpc_amp("cancel", "test", "--json")

    assert result.stdout == f"cancelled job 4242 of {run_dir}\n", result.stderr
    assert host.calls("scancel") == [["4242"]]
    assert json.loads(again.stdout) == [
        {"run_dir": run_dir, "job_id": "4242", "state": "cancelled"}
    ]
    assert host.hpc_amp("cancel", "test").stdout == f"{run_dir} has already ended (cancelled)\n"


def test_cancel_of_a_name_says_which_older_runs_go_on(here: StubHost) -> None:
    config = job(site="local", run=["sleep", "60"])
    ids = ["20261127-223455-aaaa", "20261127-223456-bbbb"]
    older, newer = (submitted(here, config, "--run-id", one)["run_dir"] for one in ids)

    first, second = (here.hpc_amp("cancel", "test") for _ in range(2))

    assert (first.stdout.split()[-1], first.stderr) == (newer, "")
    assert second.stdout == f"{newer} has already ended (cancelled)\n"
    assert second.stderr == (
        f"note: older runs of this name have not ended; to end them: hpc-amp cancel {older}\n"
    )


def test_cancel_that_slurm_refuses(host: StubHost) -> None:
    submitted(host, job())
    host.fail("scancel", "Access/permission denied")

    assert fails(host.hpc_amp("cancel", "test"), 1) == (
        "scancel 4242: scancel: error: Access/permission denied"
    )


def test_what_slurm_did_not_cancel_is_cancelled_by_the_next_try(host: StubHost) -> None:
    run_dir = submitted(host, job())["run_dir"]
    host.fail("scancel", "Unable to contact slurm controller")
    assert host.hpc_amp("cancel", "test").returncode == 1
    (host.state / "fail-scancel").unlink()

    result = host.hpc_amp("cancel", "test")

    assert result.stdout == (
        f"job 4242 of {run_dir} was cancelled before, and has not ended; asked the scheduler "
        "again\n"
    ), result.stderr
    assert (host.state / "queue").read_text() == "4242|CANCELLED|None\n"


def test_resume_on_slurm_submits_the_same_script(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    script = (run_dir / "launch.sh").read_bytes()
    queue(host, "4242|FAILED|NonZeroExitCode")

    result = host.hpc_amp("resume", "test", "--json")

    assert json.loads(result.stdout) == {
        "job_id": "4243", "run_dir": str(run_dir), "scheduler": "slurm",
    }  # fmt: skip
    assert host.calls("sbatch")[1] == ["--parsable", str(run_dir / "launch.sh")]
    assert (run_dir / "launch.sh").read_bytes() == script
    (status,) = json.loads(host.hpc_amp("status", "--json").stdout)
    assert (status["state"], status["job_id"]) == ("pending", "4243")


@pytest.mark.parametrize(
    ("events", "row", "message"),
    [
        ([], "4242|PENDING|None", "{} is pending as job 4242; it cannot run twice"),
        (["started"], "4242|RUNNING|None", "{} is running as job 4242; it cannot run twice"),
        (["checkpointed"], "4242|PENDING|None", "job 4242 of {} is still ending; try again"),
        (["finished"], "1|RUNNING|None", "{} has finished; there is nothing to resume"),
    ],
)
def test_resume_refuses(host: StubHost, events: list[str], row: str, message: str) -> None:
    run_dir = submitted(host, job())["run_dir"]
    for state in events:
        record_event(Path(run_dir), state)
    queue(host, row)

    assert fails(host.hpc_amp("resume", "test")) == message.format(run_dir)
    assert len(host.calls("sbatch")) == 1


@pytest.mark.parametrize("ends", [True, False])
def test_resume_waits_for_a_job_that_is_still_ending(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    record_event(run_dir, "checkpointed")
    queue(host, "4242|COMPLETING|None")
    waited: list[str] = []

    def pass_time(seconds: float) -> None:
        waited[:] = [*said, "slept"]
        if ends:
            queue(host, "4242|COMPLETED|None")

    said: list[str] = []
    monkeypatch.setattr(resume.time, "sleep", pass_time)
    monkeypatch.setattr(resume, "ENDING_SECONDS", 60 if ends else 0)
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    if ends:
        resumed = resume.resume(run_dir, on_wait=said.append)
        assert (resumed.submission.job_id, waited) == ("4243", ["4242", "slept"])
    else:
        with pytest.raises(UsageError, match=r"job 4242 of .* is still ending; try again"):
            resume.resume(run_dir, on_wait=said.append)
    assert said == ["4242"]


def test_a_run_of_somebody_else(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    queue(host, "4242|FAILED|None")
    (run_dir / "state.jsonl").unlink()
    (run_dir / "state.jsonl").mkdir()

    assert fails(host.hpc_amp("resume", "test")).startswith("it is unknown whether ")


def test_a_local_run_from_start_to_end(here: StubHost) -> None:
    facts = submitted(here, job(site="local", run=["bash", "-c", "echo out; echo err >&2"]))

    status = until_state(here, "test", "finished")

    assert facts["job_id"].startswith("local-")
    assert status["job_id"] == facts["job_id"]
    assert (status["attempt"], status["outcome"]) == (1, "finished")
    assert fails(here.hpc_amp("resume", "test")).endswith("there is nothing to resume")
    logs = here.hpc_amp("logs", "test").stdout.splitlines()
    assert logs[0].startswith("preflight: 1 node(s) in ")
    assert logs[1].startswith(f"attempt 1 of job {facts['job_id']}: 1 rank(s) on 1 node(s)")
    assert logs[2:] == ["out", "err", "attempt 1 ended: finished (status 0)"]


def test_a_local_run_is_cancelled_and_resumed(here: StubHost) -> None:
    run = ["bash", "-c", '[ "$HPC_AMP_ATTEMPT" != 1 ] || { touch ready; exec sleep 60; }']
    first = submitted(here, job(site="local", run=run))
    wait_for_file(here.work / "ready")
    assert until_state(here, "test", "running")["attempt"] == 1
    assert fails(here.hpc_amp("resume", "test")) == (
        f"{first['run_dir']} is running as job {first['job_id']}; it cannot run twice"
    )

    cancelled = here.hpc_amp("cancel", "test")
    assert cancelled.stdout == f"cancelled job {first['job_id']} of {first['run_dir']}\n"
    assert until_state(here, "test", "cancelled")["attempt"] == 1
    # By SIGTERM, which it heeds, and not by the SIGKILL at the end of its grace.
    assert "attempt 1 ended: failed (status 143)" in here.hpc_amp("logs", "test").stdout

    resumed = here.hpc_amp("resume", "test", "--follow")
    assert resumed.returncode == 0, resumed.stdout
    assert "attempt 2 ended: finished (status 0)" in resumed.stdout.splitlines()
    assert "attempt 1" not in resumed.stdout
    assert "test: finished" in resumed.stdout.splitlines()


def test_a_local_run_that_does_not_listen_is_killed_with_all_that_it_started(
    here: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun gives every rank a session of its own; such a rank must not outlive its run."""
    run = [
        "setsid",
        "--wait",
        "bash",
        "-c",
        "trap '' TERM; echo $$ >pid; while :; do sleep 1; done",
    ]
    facts = submitted(here, job(site="local", run=run))
    wait_for_file(here.work / "pid")
    pid = int(wait_until((here.work / "pid").read_text, "its number"))
    monkeypatch.setattr(local.Local, "grace", 0.5)

    local.Local().cancel(facts["job_id"])

    wait_until(lambda: local.start_time(pid) is None, "its end")
    assert until_state(here, "test", "lost")["reason"] == "process gone"


def test_a_local_run_that_is_killed_is_lost(here: StubHost) -> None:
    facts = submitted(here, job(site="local", run=["bash", "-c", "touch ready; exec sleep 60"]))
    wait_for_file(here.work / "ready")

    for member in local._family(int(facts["job_id"].split("-")[1])):
        os.kill(member, signal.SIGKILL)

    assert until_state(here, "test", "lost")["reason"] == "process gone"


# ---- run, logs, following ------------------------------------------------------------------------


def test_run_shows_the_log_and_a_summary(here: StubHost) -> None:
    here.write_job(job(site="slurm", run=["echo", "hello"]))

    result = here.hpc_amp("run", "job.yaml")

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("submitted job local-")
    assert "hello" in lines
    assert lines[lines.index("test: finished") + 1] == "  outcome  finished"
    assert here.calls("sbatch") == []


def test_run_of_a_failing_job_fails(here: StubHost) -> None:
    here.write_job(job(run=["bash", "-c", "exit 3"]))

    result = here.hpc_amp("run", "job.yaml")

    assert result.returncode == 1
    assert "test: failed" in result.stdout.splitlines()
    assert "  outcome  failed (exit status 3)" in result.stdout.splitlines()


@pytest.mark.parametrize("command", ["validate", "config", "migrate", "explain"])
def test_a_name_that_is_too_long_is_one_line(here: StubHost, command: str) -> None:
    result = here.hpc_amp(command, "x" * 5000)

    assert result.returncode == 2
    assert result.stderr == f"hpc-amp: {'x' * 40}...: File name too long\n"


def test_submit_follow_json_keeps_stdout_for_facts(here: StubHost) -> None:
    line = '{"step": 1, "loss": NaN, "lr": 0.1}'
    report = f"echo hello; echo '{line}' >$HPC_AMP_RUN_DIR/metrics.jsonl"
    here.write_job(job(site="local", run=["bash", "-c", report]))

    result = here.hpc_amp("submit", "job.yaml", "--follow", "--json")

    assert "NaN" not in result.stdout, "JSON has no such number"
    first, last = (json.loads(line) for line in result.stdout.splitlines())
    assert last["summary"]["metrics"] == {"loss": None, "lr": 0.1}
    assert set(first) == {"job_id", "run_dir", "scheduler"}
    assert set(last) == STATUS_KEYS | {"summary"}
    assert last["summary"]["outcome"] == "finished"
    assert "hello" in result.stderr.splitlines()


def start_following(here: StubHost, *command: str) -> subprocess.Popen[str]:
    # The shell that runs the tests may let them ignore signals.
    return subprocess.Popen(
        ["env", "--default-signal", sys.executable, "-m", "hpc_amp", *command],
        cwd=here.work, env=here.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


WAITS = ["bash", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo end"]


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for got in process.stdout:
        if got == f"{line}\n":
            return
    pytest.fail(f"{line!r} did not come")


def test_a_run_that_is_moved_while_it_is_followed(here: StubHost) -> None:
    run_dir = Path(submitted(here, job(site="local", run=WAITS))["run_dir"])
    process = start_following(here, "logs", "-f", "test")
    read_until(process, "ready")
    moved = run_dir.rename(here.work / "moved")
    try:
        _, err = process.communicate(timeout=60)
    finally:
        moved.rename(run_dir)

    assert process.returncode == 1
    assert err == (
        f"hpc-amp: {run_dir} is not there any more: its folder was moved or removed, and its job "
        "may go on\n"
    )


def test_ctrl_c_ends_the_following_and_not_the_run(here: StubHost) -> None:
    here.write_job(job(site="local", run=WAITS))
    process = start_following(here, "submit", "job.yaml", "--follow")
    read_until(process, "ready")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)

    assert process.returncode == 130
    assert out == ""
    assert err.strip().startswith("the run continues. To print its log: hpc-amp logs -f ")
    assert until_state(here, "test", "running")
    (here.work / "go").touch()
    assert until_state(here, "test", "finished")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_was_started_with_run_ends_with_it(
    here: StubHost, number: signal.Signals
) -> None:
    here.write_job(job(run=["bash", "-c", "echo ready; exec sleep 60"]))
    process = start_following(here, "run", "job.yaml")
    read_until(process, "ready")

    process.send_signal(number)
    out, _ = process.communicate(timeout=300)

    assert process.returncode == 1
    assert "test: cancelled" in out.splitlines()
    assert cancellations(here) == ["by its command: it was interrupted"]


def cancellations(here: StubHost) -> list[str]:
    """The reasons for which the run `test` was cancelled."""
    (path,) = (here.work / "runs" / "test").glob("2*/state.jsonl")
    events = map(json.loads, path.read_text().splitlines())
    return [event["reason"] for event in events if event["state"] == "cancelled"]


def test_a_run_ends_also_where_its_output_is_closed(here: StubHost) -> None:
    """Such as that of `hpc-amp run | tee`, at the end of the terminal."""
    loop = "echo ready; while :; do echo more; sleep 0.1; done"
    here.write_job(job(run=["bash", "-c", loop]))
    process = start_following(here, "run", "job.yaml")
    read_until(process, "ready")

    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=300) != 0

    assert until_state(here, "test", "cancelled")
    assert cancellations(here) == ["by its command: its output was closed"]


def test_a_run_goes_on_where_its_output_is_on_a_full_disk(here: StubHost) -> None:
    here.write_job(job(run=WAITS))
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "hpc_amp", "run", "job.yaml"],
            cwd=here.work, env=here.environ(),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=300,
        )  # fmt: skip

    (run_dir,) = (here.work / "runs" / "test").glob("2*")
    problem = "the output cannot be written (No space left on device), and the run goes on"
    assert result.stderr == f"hpc-amp: {problem}; hpc-amp cancel {run_dir} ends it\n"
    assert result.returncode == 1
    (here.work / "go").touch()
    assert until_state(here, "test", "finished")


def test_logs_follow_to_the_end(here: StubHost) -> None:
    submitted(here, job(site="local", run=WAITS))
    process = start_following(here, "logs", "-f", "test")
    read_until(process, "ready")

    (here.work / "go").touch()
    out, err = process.communicate(timeout=300)

    assert process.returncode == 0
    assert out.splitlines() == ["end", "attempt 1 ended: finished (status 0)"]
    assert err == ""


def test_logs(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    log = run_dir / "logs" / "job.log"

    empty = host.hpc_amp("logs", "test")
    assert (empty.stdout, empty.returncode) == ("", 0)
    assert empty.stderr == f"the job has written nothing yet ({log})\n"

    log.write_bytes("one\ntwo ünï💥\n".encode() + b"\xff three\nno newline")
    assert host.hpc_amp("logs", "test").stdout == "one\ntwo ünï💥\n\ufffd three\nno newline"
    assert host.hpc_amp("logs", "-n", "2", "test").stdout == "\ufffd three\nno newline"
    assert host.hpc_amp("logs", "-n", "0", "test").stdout == ""
    assert host.hpc_amp("logs", "-n", "99", "test").stdout.startswith("one\n")
    log.write_text("two 💥")
    assert host.hpc_amp("logs", "test", PYTHONIOENCODING="latin-1").stdout == "two ?"


def test_a_reader_that_has_seen_enough(host: StubHost) -> None:
    run_dir = Path(submitted(host, job())["run_dir"])
    (run_dir / "logs" / "job.log").write_text("a line of the log\n" * 100_000)
    python = f"{sys.executable} -m hpc_amp"

    for command in ("logs test", "status", "--help", "render job.yaml"):
        result = subprocess.run(
            ["bash", "-c", f"{python} {command} | true; echo ${{PIPESTATUS[0]}}"],
            cwd=host.work, env=host.environ(), text=True, capture_output=True, timeout=300,
        )  # fmt: skip
        assert result.stderr == ""
        assert result.stdout == "141\n"


def test_help_shows_each_command_in_a_section(host: StubHost) -> None:
    from hpc_amp.cli.app import app

    text = host.hpc_amp("--help").stdout
    for name in app.list_commands(click.Context(app)):
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1, name


def test_help_says_of_each_command_what_its_own_help_says() -> None:
    """It does not import them."""
    from hpc_amp.cli.app import COMMANDS, MEANT, app

    assert not COMMANDS.keys() & MEANT.keys()
    for name, (_, text) in COMMANDS.items():
        command = app.get_command(click.Context(app), name)
        assert command is not None and command.name == name
        assert text == command.get_short_help_str(limit=80)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_runs(host: StubHost, shell: str) -> None:
    source = host.hpc_amp("completion", shell).stdout
    assert "_HPC_AMP_COMPLETE" in source
    if shell != "bash":
        return
    (host.work / "runs" / "my_run").mkdir(parents=True)

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        found = host.hpc_amp(_HPC_AMP_COMPLETE="bash_complete", **words).stdout
        return [one.partition(",")[2] for one in found.split()]

    assert completed("hpc-amp sub") == ["submit"]
    assert completed("hpc-amp logs m") == ["my_run"]
    assert completed("hpc-amp logs x") == []


def test_runs_are_compared(host: StubHost) -> None:
    ids = ["20260101-000000-aaaa", "20260101-000001-aaaa"]
    for run_id, nodes, loss in zip(ids, (1, 2), (0.5, 0.25), strict=True):
        given = job(job={"nodes": nodes}, container={"env": {"A": "x"}})
        run_dir = Path(submitted(host, given, f"--run-id={run_id}")["run_dir"])
        record_event(run_dir, "finished")
        (run_dir / "summary.json").write_text(json.dumps({"metrics": {"loss": loss}}))
    shown = host.hpc_amp("compare", *(f"runs/test/{run_id}" for run_id in ids))
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["test", ids[0], "test", ids[1]],
        ["settings", "that", "differ:"],
        ["job.nodes", "1", "2"],
        ["environment", "that", "differs:", "none"],
        ["code", "that", "differs:", "none"],
        ["results:"],
        ["loss", "0.5", "0.25"],
        ["state", "finished", "finished"],
    ]
    plain = json.loads(host.hpc_amp("compare", *(f"runs/test/{i}" for i in ids), "--json").stdout)
    assert plain["settings"] == {"job.nodes": [1, 2]} and plain["results"]["loss"] == [0.5, 0.25]
    assert "two runs" in fails(host.hpc_amp("compare", "test"))
