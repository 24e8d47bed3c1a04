"""The ranks of one node, which are started without another program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.stubs import StubHost, read_reports, report_command, wait
from support.waiting import is_running, wait_until

from hpc_amp.errors import ConfigError

RUN = (
    "import sys; from hpc_amp.distributed.processes import run_ranks; "
    "sys.exit(run_ranks(int(sys.argv[1]), [sys.executable, '-c', sys.argv[2]]))"
)
RANK = "import json, os, signal, sys, time; rank = int(os.environ['RANK']); "


def start(program: str, ranks: int = 2) -> subprocess.Popen[str]:
    """Start ranks that run Python code, which has the variable `rank`."""
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(ranks), RANK + program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit status, the output and the messages of `start`."""
    output, messages = process.communicate(timeout=120)
    return process.returncode, output, messages


def test_each_rank_has_its_variables() -> None:
    process = start("os.write(1, (json.dumps(dict(os.environ)) + '\\n').encode())", 3)
    status, output, messages = ended(process)

    assert (status, messages) == (0, "")
    ranks = sorted(map(json.loads, output.splitlines()), key=lambda environ: environ["RANK"])
    for rank, environ in enumerate(ranks):
        expected = {
            **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), 3),
            "GROUP_RANK": 0,
            "GROUP_WORLD_SIZE": 1,
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "HPC_AMP_PARENT": process.pid,
        }
        assert environ | {name: str(value) for name, value in expected.items()} == environ
    assert len(ranks) == 3


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
        ("os.kill(os.getpid(), 35)", 163, "signal 35"),
    ],
)
def test_when_a_rank_fails_the_others_are_ended(end: str, status: int, how: str) -> None:
    """The last one would sleep for longer than the test may take."""
    program = f"time.sleep(3000) if rank != 1 else {end}"

    assert ended(start(program, 3)) == (status, "", f"hpc-amp: rank 1 ended with {how}\n")


def test_on_a_full_disk_the_others_are_ended_too() -> None:
    """The line about the rank that failed is lost, and nothing else."""
    program = "time.sleep(3000) if rank != 1 else sys.exit(3)"
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "3", RANK + "print(os.getpid(), flush=True); " + program],
            stdout=subprocess.PIPE, stderr=full, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},  # as in a launch script
        )  # fmt: skip

    output, _ = process.communicate(timeout=120)

    assert process.returncode == 3
    assert not any(is_running(int(pid)) for pid in output.split())


def test_where_a_rank_cannot_be_started_none_is_left() -> None:
    """The second one cannot, and the first one would sleep for longer than the test may take."""
    refuse = (
        "import os; spawn = os.posix_spawn\n"
        "def refuse(*words, **more):\n"
        "    os.posix_spawn = lambda *words, **more: os.open('/no/such', 0)\n"
        "    first = spawn(*words, **more); print(first, flush=True); return first\n"
        "os.posix_spawn = refuse\n"
    )
    command = [sys.executable, "-c", refuse + RUN, "3", "import time; time.sleep(3000)"]

    result = subprocess.run(command, capture_output=True, text=True, timeout=120)

    problem = "rank 1 cannot be started: [Errno 2] No such file or directory: '/no/such'"
    assert (result.returncode, result.stderr) == (2, f"hpc-amp: {problem}\n")
    assert not is_running(int(result.stdout))


@pytest.mark.parametrize(("others", "status"), [(0, 75), (75, 75), (4, 4)])
def test_a_rank_that_stopped_at_a_checkpoint_lets_the_others_end(others: int, status: int) -> None:
    program = f"sys.exit(75) if rank == 0 else (time.sleep(1), print('saved'), sys.exit({others}))"

    found = ended(start(program))

    assert found[:2] == (status, "saved\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_reaches_each_rank_once(tmp_path: Path, number: signal.Signals) -> None:
    """Also if the whole process group gets it, as at Ctrl-C."""
    program = (
        f"got = []; signal.signal({int(number)}, lambda *_: got.append(1)); "
        f"open(os.path.join({str(tmp_path)!r}, str(rank)), 'w'); "
        "[time.sleep(0.05) for _ in range(600) if not got]; time.sleep(0.5); "
        "os.write(1, b'%d' % len(got))"
    )
    # What a shell started in the background ignores some of them, and so would the launcher.
    heeded = f"import signal; signal.signal({int(number)}, signal.SIG_DFL); " + RUN
    process = subprocess.Popen(
        [sys.executable, "-c", heeded, "2", RANK + program],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks run")

    os.killpg(process.pid, number)

    assert process.communicate(timeout=120)[0] == "11"
    assert process.returncode == 0


def test_a_job_on_one_node_starts_its_ranks_without_torchrun(host: StubHost) -> None:
    out = host.folder / "out"
    run = report_command(out, ["a b", "$(touch pwned)"])
    run_dir = host.create({"site": "local", "run": run, "job": {"ranks_per_node": 3}})

    end = wait(host.start(run_dir))

    assert end.status == 0, end.output
    reports = read_reports(out)
    assert [report.environ["RANK"] for report in reports] == ["0", "1", "2"]
    assert all(report.argv == ["a b", "$(touch pwned)"] for report in reports)
    assert "torch.distributed" not in (run_dir / "launch.sh").read_text()


def test_arguments_for_the_launcher_are_for_torchrun(host: StubHost) -> None:
    config = {"site": "local", "run": ["true"], "job": {"ranks_per_node": 2}}

    assert host.plan(config).launcher.name == "processes"
    assert host.plan({**config, "launch": {"args": ["--tee=3"]}}).launcher.name == "torchrun"
    assert host.plan({**config, "launch": "torchrun"}).launcher.name == "torchrun"
    unused = "launch.args --tee=3: {} has no options"
    for method in ("processes", "single"):
        job = {"ranks_per_node": 2 if method == "processes" else 1}
        launch = {"method": method, "args": ["--tee=3"]}
        with pytest.raises(ConfigError, match=unused.format(method)):
            host.plan({**config, "job": job, "launch": launch})
    alone = host.plan({**config, "job": {}, "launch": {"args": ["--tee=3"]}})
    assert unused.format("single") in alone.remarks
