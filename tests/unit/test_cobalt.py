"""Cobalt: the header that qsub reads, and what qstat and the .cobaltlog mean. Whole jobs run in the
conformance suite; answers here are in the words of Cobalt 1.0.33."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost, command_that_says

from hpc_amp.errors import ConfigError, SchedulerError, UnclearError
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.schedulers.answers import NEVER_STARTS, NOT_IN_QUEUE, JobStatus
from hpc_amp.schedulers.base import UnreachableError
from hpc_amp.schedulers.cobalt import Cobalt


def plan(host: StubHost, site: str = "", **job: Any) -> Plan:
    path = host.folder / "cobalt-test.yaml"
    path.write_text(f"scheduler: cobalt\n{site}")
    config = {"site": str(path), "run": ["true"], "job": {"nodes": 2, "walltime": "1h", **job}}
    return host.plan(config)


def header(plan: Plan) -> list[str]:
    """The words of the header, read by qsub's rule."""
    lines = render(plan).splitlines(keepends=True)
    assert lines[0].startswith("#!")
    found = []
    for line in lines[1:]:
        if not line.startswith("#COBALT ") or len(line) <= 8:
            break
        found.append(" ".join(line.removeprefix("#COBALT ").split()))
    assert not any("#COBALT" in line for line in lines[1 + len(found) :])
    return found


def test_the_header(host: StubHost) -> None:
    made = plan(host, gpus_per_node=8, queue="full-node", account="proj")

    logs = made.run_dir / "logs"
    assert header(made) == [
        "--jobname test",
        "-n 2",
        "-t 60",
        f"--cwd {made.run_dir}",
        f"-o {logs}/job.log",
        f"-e {logs}/job.log",
        f"--debuglog {logs}/$jobid.cobaltlog",
        "-q full-node",
        "-A proj",
    ]


def test_seconds_round_up(host: StubHost) -> None:
    assert "-t 91" in header(plan(host, walltime="01:30:01"))


def test_attributes_are_one_option(host: StubHost) -> None:
    """qsub refuses a second --attrs. The job's value of a name counts."""
    site = "directives: ['--attrs filesystems=home:pubnet=true -q full-node']\n"
    made = plan(host, site, directives=["--attrs=filesystems=home,theta-fs0:ssds=required"])

    assert header(made)[-2:] == [
        "--attrs filesystems=home,theta-fs0:pubnet=true:ssds=required",
        "-q full-node",
    ]


def test_environment_is_one_option(host: StubHost) -> None:
    made = plan(host, directives=["--env A=/x:/y:B=2", "--env B=3"])

    assert header(made)[-1] == "--env A=/x:/y:B=3"


@pytest.mark.parametrize("line", ["-n 4 -t 30", "--nodecount=4 --time 30", "-n4 -t30"])
def test_the_users_option_replaces_ours(host: StubHost, line: str) -> None:
    found = header(plan(host, directives=[line]))

    assert [text for text in found if text.startswith(("-n", "-t"))] == ["-n 4", "-t 30"]


def test_skipping_touches_generated_lines_only(host: StubHost) -> None:
    made = plan(
        host, "skip_directives: [--queue, -A]\n", queue="q", account="a", directives=["-A b"]
    )

    found = header(made)
    assert "-A b" in found
    assert not any(text.startswith("-q") for text in found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-q full-node # the queue", "'#' is not an option"),
        ("--frobnicate 1", "'--frobnicate' is not an option"),
        ("word", "'word' is not an option"),
        ("--attrs", "--attrs needs a value"),
        ('--jobname "a', "quotes stay in the value"),
        ("--env A=$(id)", "a remote shell reads it again"),
        ("--preemptable=1", "is not an option"),
        ("--gres=gpu:1", "'--gres=gpu:1' is not an option"),
        ("-I", "use `hpc-amp shell` for that"),
        ("--help", "qsub would submit nothing"),
        ("--vers", "qsub would submit nothing"),
        ("--attrs a=b=c", "it is not a list of NAME=VALUE"),
        ("--mode c16", "Mode already set"),
        ("--env A=\u00e9", "cannot pass on 'A=\u00e9' in --env: qstat fails for all users"),
        ("--jobname \u00e9", "qstat fails for all users"),
    ],
)
def test_what_would_silence_the_header_is_refused(host: StubHost, line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        render(plan(host, directives=[line]))

    assert message in str(caught.value)


def test_every_option_of_qsub_is_kept_as_what_it_is(host: StubHost) -> None:
    """`--kernel` is not `-K`, and names may be shortened."""
    lines = [
        "--kernel k --kerneloptions o --ion_kernel i",
        "--mode script --notify me --umask 022 --user_list a:b",
        "--proj other --inputfile /dev/null --held --verbose",
    ]
    found = header(plan(host, account="mine", directives=lines))

    assert "-A other" in found and "-A mine" not in found
    assert found[-10:] == [
        "--kernel k",
        "-K o",
        "--ion_kernel i",
        "--mode script",
        "-M me",
        "-u 022",
        "--user_list a:b",
        "-i /dev/null",
        "-h",
        "-v",
    ]


@pytest.mark.parametrize("key", ["queue", "account"])
def test_values_of_the_job_are_ascii(host: StubHost, key: str) -> None:
    with pytest.raises(ConfigError, match="qstat fails for all users"):
        render(plan(host, **{key: "proj\u00e9t"}))


def test_a_flag_is_kept(host: StubHost) -> None:
    assert header(plan(host, directives=["-h --preemptable"]))[-2:] == ["-h", "--preemptable"]


def test_blanks_cannot_be_carried(host: StubHost) -> None:
    with pytest.raises(ConfigError, match="cannot pass on 'my project' in -A"):
        render(plan(host, account="my project"))


@pytest.mark.parametrize("name", ["a b", "a$b", "a'b", "a;b", "a{b", "a(b", "é"])
def test_a_path_that_a_remote_shell_would_change_is_refused(host: StubHost, name: str) -> None:
    folder = host.folder / name
    folder.mkdir()
    (host.folder / "cobalt.yaml").write_text("scheduler: cobalt\n")
    made = host.plan({"site": str(host.folder / "cobalt.yaml"), "run": ["true"]}, cwd=folder)

    with pytest.raises(ConfigError, match="cannot pass on the path of the run directory"):
        render(made)


def test_the_least_walltime(host: StubHost) -> None:
    render(plan(host, walltime="5m"))
    with pytest.raises(ConfigError, match="less than 5 minutes"):
        render(plan(host, walltime="299s"))


def test_the_script_can_be_executed(host: StubHost) -> None:
    (host.folder / "cobalt.yaml").write_text("scheduler: cobalt\n")
    run_dir = host.create({"site": str(host.folder / "cobalt.yaml"), "run": ["true"]})

    assert (run_dir / "launch.sh").stat().st_mode & 0o111 == 0o111


# ---- answers -------------------------------------------------------------------------------------


TABLE = """JobID  State
=====================
1      running
2      dep_hold
3      dep_fail
4      maxrun_hold
"""


def test_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", TABLE)

    assert Cobalt().query(["1", "2", "3", "4", "5"]) == {
        "1": JobStatus("running"),
        "2": JobStatus("pending", "waits for another job", after=True),
        "3": NEVER_STARTS,
        "4": JobStatus("pending", "its user has as many jobs running as are allowed"),
    }


def test_silence_with_status_1_means_that_no_job_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", "", status=1)

    assert Cobalt().query(["1"]) == {}


def test_a_server_that_is_down_is_not_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "Following exception occurred while trying to execute queue-manager.get_jobs\n"
    command_that_says(monkeypatch, tmp_path, "qstat", "", text, 1)

    with pytest.raises(SchedulerError, match="qstat does not answer"):
        Cobalt().query(["1"])


# What the real clients say, each with status 1. The traceback is one line.
FAULT = (
    "<Fault 20: '------ START TRACEBACK -----\\n    Exception  : error: [Errno 111] Connection "
    "refused\\n    Time       : 2026-11-28 20:39:22.090616\\n-----\\n  2026-11-28|File "
    '"/usr/lib/python2.7/site-packages/Cobalt/Proxy.py", line 129, in __call__\\n'
    + "  2026-11-28|    retval = _Method.__call__(self, *args)\\n" * 40
    + "------ END TRACEBACK -----'>"
)
AWAY = {
    "queue manager stopped": "Proxy.py     :L#422:cn:queue-manager\n",
    "queue manager killed": f'No handlers could be found for logger "Proxy"\n{FAULT}\n',
    "all stopped": "component error: Failed to connect to system: Proxy.py  :L#422:cn:system\n\n",
    "while it looks": "component error: Following exception occurred while trying to execute "
    "queue-manager.get_jobs: Proxy.py     :L#422:cn:queue-manager\n\n",
}


@pytest.mark.parametrize("err", AWAY.values(), ids=AWAY.keys())
def test_an_outage_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, err: str) -> None:
    calls = command_that_says(monkeypatch, tmp_path, "qsub", "", err, 1)

    with pytest.raises(UnreachableError) as caught:
        Cobalt().submit(tmp_path / "launch.sh", os.environ)
    said = str(caught.value)
    assert said.startswith("qsub does not reach the scheduler: ")
    assert said.endswith("; try again when the scheduler answers")
    assert len(said) < 250 and "\n" not in said and "TRACEBACK" not in said
    assert "logger" not in said
    assert len(calls()) == 3


def test_a_server_that_hangs_may_have_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What qsub said of a queue manager that was stopped for two minutes."""
    calls = command_that_says(
        monkeypatch, tmp_path, "qsub", "", "<Fault 20: 'Server Failure'>\n", 1
    )

    with pytest.raises(UnclearError, match="Server Failure"):
        Cobalt().submit(tmp_path / "launch.sh", os.environ)
    assert len(calls()) == 1


def test_of_a_traceback_the_exception_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command_that_says(monkeypatch, tmp_path, "qsub", "", AWAY["queue manager killed"], 1)

    with pytest.raises(
        UnreachableError, match=r"<Fault 20: error: \[Errno 111\] Connection refused>"
    ):
        Cobalt().submit(tmp_path / "launch.sh", os.environ)


def test_what_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    qstat = command_that_says(monkeypatch, tmp_path, "qstat", "", AWAY["while it looks"], 1)
    qdel = command_that_says(monkeypatch, tmp_path, "qdel", "", "something new\n", 1)
    qrls = command_that_says(monkeypatch, tmp_path, "qrls", "", AWAY["all stopped"], 1)

    with pytest.raises(UnreachableError):
        Cobalt().query(["1"])
    with pytest.raises(UnreachableError, match="qdel 1: something new"):
        Cobalt().cancel("1")
    with pytest.raises(UnreachableError):
        Cobalt().release("1")
    assert [len(calls()) for calls in (qstat, qdel, qrls)] == [3, 3, 3]


def test_a_refusal_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "<Fault 1001: \"trying to add job to non-existent queue 'nosuch'\">\n"
    calls = command_that_says(monkeypatch, tmp_path, "qsub", "", text, 1)

    with pytest.raises(SchedulerError, match="qsub refused the job: <Fault 1001"):
        Cobalt().submit(tmp_path / "launch.sh", os.environ)
    assert len(calls()) == 1


def test_a_command_that_was_killed_does_not_say_that_no_job_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", "", "", 137)

    with pytest.raises(UnreachableError):
        Cobalt().query(["1"])


@pytest.mark.parametrize(
    ("out", "err", "status", "job_id"),
    [
        ("7\n", "", 0, "7"),
        ("7\n", 'Job routed to queue "default".\n', 1, "7"),
        ("Removing job dependencies\n7\n", "", 0, "7"),
        ("7 your allocation is nearly used up\n", "", 0, "7"),
    ],
)
def test_the_job_exists_if_its_id_was_printed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    out: str,
    err: str,
    status: int,
    job_id: str,
) -> None:
    command_that_says(monkeypatch, tmp_path, "qsub", out, err, status)

    submission = Cobalt().submit(tmp_path / "launch.sh", os.environ)
    assert (submission.job_id, submission.remarks) == (job_id, err.strip())


def test_a_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command_that_says(
        monkeypatch,
        tmp_path,
        "qsub",
        "Usage: qsub ...\n",
        "node count out of\nrealistic range\n",
        1,
    )

    with pytest.raises(SchedulerError) as caught:
        Cobalt().submit(tmp_path / "launch.sh", os.environ)
    assert "qsub refused the job: node count out of / realistic range" in str(caught.value)


NORMAL = "task completed normally with an exit code of {}; initiating job cleanup and removal"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (NORMAL.format(3), JobStatus("ended", "exit status 3")),
        (NORMAL.format(255), JobStatus("ended", "exit status 255")),
        (
            "maximum execution time exceeded; initiating job termination",
            JobStatus("ended", "Cobalt ended it at its time limit"),
        ),
        (
            "user delete requested with signal SIGTERM by user user",
            JobStatus("ended", "cancelled with qdel"),
        ),
        ("stdout sent to x", NOT_IN_QUEUE),
    ],
)
def test_the_cobaltlog_tells_how_a_job_ended(
    tmp_path: Path, last: str, expected: JobStatus
) -> None:
    (tmp_path / "logs").mkdir()
    text = f"Jobid: 12\nqsub --mode script -t 10 -n 2 launch.sh\n... Info: {last}\n"
    (tmp_path / "logs" / "12.cobaltlog").write_text(text)

    assert Cobalt().final_status("12", tmp_path) == expected


def test_without_a_cobaltlog_nothing_is_known(tmp_path: Path) -> None:
    assert Cobalt().final_status("1", tmp_path) == NOT_IN_QUEUE
