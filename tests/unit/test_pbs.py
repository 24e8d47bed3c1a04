"""PBS: the header that qsub reads, and what qstat's answers mean. Whole jobs run in the conformance
suite; answers here are in the words of OpenPBS 23.06."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost, command_that_says

from hpc_amp.errors import ConfigError, SchedulerError, UnclearError, UsageError
from hpc_amp.jobs.links import submit_chain
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.base import UnreachableError
from hpc_amp.schedulers.pbs.qstat import job_status
from hpc_amp.schedulers.pbs.scheduler import Pbs


def plan(host: StubHost, site: str = "", **job: Any) -> Plan:
    path = host.folder / "pbs-test.yaml"
    path.write_text(f"scheduler: pbs\n{site}")
    config = {"site": str(path), "run": ["true"], "job": {"nodes": 2, "walltime": "1h", **job}}
    return host.plan(config)


def header(plan: Plan) -> list[str]:
    """The options of the script's own lines."""
    lines = render(plan).splitlines()
    return [line.removeprefix("#PBS ") for line in lines if line.startswith("#PBS ")]


def test_whole_hosts(host: StubHost) -> None:
    made = plan(host, exclusive=True)
    assert "-l place=scatter:exclhost" in made.scheduler.directives(made)
    assert made.whole_nodes
    own = plan(host, exclusive=True, directives=["-l place=scatter"])
    assert [line for line in own.scheduler.directives(own) if "place" in line] == [
        "-l place=scatter"
    ]
    assert not own.whole_nodes


def test_the_header_asks_for_one_chunk_a_node(host: StubHost) -> None:
    made = plan(host, gpus_per_node=4, cpus_per_gpu=8, memory="64GiB", queue="prod", account="a b")

    log = made.run_dir / "logs" / "job.log"
    assert header(made) == [
        "-N test",
        "-l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=65536mb",
        "-l place=scatter",
        "-l walltime=01:00:00",
        "-q prod",
        "-A 'a b'",
        "-j oe",
        "-k doe",
        f"-o {log}",
        "-r y",
        "-W umask=022",
    ]


@pytest.mark.parametrize("umask", [0o077, 0o002, 0])
def test_files_have_the_submitters_umask(host: StubHost, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = plan(host)
    finally:
        os.umask(before)

    assert header(made)[-1] == f"-W umask={umask:03o}"
    own = plan(host, directives=["-W umask=027,depend=after:3"])
    assert [line for line in header(own) if "umask" in line] == ["-W umask=027,depend=after:3"]


def test_the_site_shapes_the_chunk(host: StubHost) -> None:
    made = plan(host, "gpu_request: none\nchunk: [system=polaris]\n", gpus_per_node=4)

    assert header(made)[1] == "-l select=2:ncpus=4:mpiprocs=4:system=polaris"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("resnet", "resnet"), ("8bit", "j8bit"), ("a_name_that_is_too_long", "a_name_that_is_")],
)
def test_a_job_name_is_one_that_every_pbs_takes(host: StubHost, name: str, expected: str) -> None:
    (host.folder / "pbs.yaml").write_text("scheduler: pbs\n")
    made = host.plan({"name": name, "site": str(host.folder / "pbs.yaml"), "run": ["true"]})

    assert header(made)[0] == f"-N {expected}"


def test_every_resource_is_asked_for_once(host: StubHost) -> None:
    """Of two `-l select` PBS takes the first: the line of the user replaces ours."""
    site = "directives: ['-l filesystems=home', '-l walltime=02:00:00,place=pack']\n"
    made = plan(host, site, directives=["-l filesystems=home:eagle", "-lselect=1:ncpus=3"])

    resources = [line for line in header(made) if line.startswith("-l")]
    assert resources == [
        "-l walltime=02:00:00,place=pack",
        "-l filesystems=home:eagle",
        "-lselect=1:ncpus=3",
    ]


def test_skipping_touches_generated_lines_only(host: StubHost) -> None:
    made = plan(
        host, "skip_directives: [-l place, -k]\n", directives=["-l place=pack", "-k oed", "-m n"]
    )

    assert [line for line in header(made) if line[:2] in ("-k", "-m") or "place" in line] == [
        "-l place=pack",
        "-k oed",
        "-m n",
    ]


def test_several_w_add_up(host: StubHost) -> None:
    made = plan(host, "directives: [-W umask=022]\n", directives=["-W depend=after:3"])

    assert header(made)[-2:] == ["-W umask=022", "-W depend=after:3"]
    both = plan(host, "directives: [-W depend=after:2]\n", directives=["-W depend=after:3"])
    assert header(both)[-2:] == ["-W umask=022", "-W depend=after:3"]


def test_a_directive_with_an_open_quote_is_refused(host: StubHost) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        render(plan(host, directives=["-A 'my"]))


def test_a_log_path_with_other_letters_is_refused(host: StubHost) -> None:
    folder = host.folder / "é"
    folder.mkdir()
    (host.folder / "pbs.yaml").write_text("scheduler: pbs\n")
    made = host.plan({"site": str(host.folder / "pbs.yaml"), "run": ["true"]}, cwd=folder)

    with pytest.raises(ConfigError, match="ASCII"):
        render(made)


def test_a_folder_that_pbs_would_write_numbers_into_is_refused(host: StubHost) -> None:
    folder = host.work / "^array_index^"
    folder.mkdir()
    made = host.plan({"site": "pbs", "run": ["true"]}, cwd=folder)

    with pytest.raises(ConfigError, match=r"numbers in place of \^array_index\^"):
        Pbs().check(made)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"job_state": "Q", "comment": "Job run at Sat Nov 28 at 10:00 on (pb1:ncpus=1)"}, ""),
        ({"job_state": "H", "comment": "Job run at Sat Nov 28 at 10:00 on (pb1)"}, "held"),
        ({"job_state": "Q", "comment": "Job Array Began at Sat Nov 28 at 10:00"}, ""),
        (
            {
                "job_state": "H",
                "Exit_status": "-3",
                "comment": "job held, too many failed attempts",
            },
            "job held, too many failed attempts",
        ),
        (
            {"job_state": "Q", "comment": "Not Running: Insufficient amount of resource: ngpus"},
            "Not Running: Insufficient amount of resource: ngpus",
        ),
    ],
)
def test_a_comment_of_an_earlier_start_is_no_reason_for_waiting(
    attributes: dict[str, str], reason: str
) -> None:
    assert job_status(attributes) == JobStatus("pending", reason)


def test_torchrun_reaches_one_node_only(host: StubHost) -> None:
    (host.folder / "pbs.yaml").write_text("scheduler: pbs\n")
    config = {"site": str(host.folder / "pbs.yaml"), "run": ["true"], "launch": "torchrun"}

    assert host.plan(config).launcher.name == "torchrun"
    with pytest.raises(ConfigError, match="starts ranks on one node only"):
        host.plan({**config, "job": {"nodes": 2}})


# ---- qstat ---------------------------------------------------------------------------------------

RUNNING = """Job Id: 372.head
    Job_Name = golden
    Job_Owner = user@head
    resources_used.walltime = 00:00:05
    job_state = R
    exec_host = n1/0*2+n2/0*2
    Variable_List = PBS_O_HOME=/home/user,PBS_O_PATH=/usr/local/bin:/usr/bin:/bin:/us
\tr/games,PBS_O_QUEUE=workq
    comment = Job run at Fri Nov 27 at 21:36 on (n1:ncpus=2)+(n2:ncpus=2)

"""


def ended(**attributes: str) -> str:
    lines = {"Job_Name": "golden", "job_state": "F", **attributes}
    return "Job Id: 372.head\n" + "".join(f"    {k} = {v}\n" for k, v in lines.items()) + "\n"


def test_jobs_are_asked_for_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waiting = (
        "Job Id: 9.head\n    job_state = Q\n    comment = Not Running: Insufficient amount of r"
    )
    waiting += "\n\tesource: ngpus\n\n"
    gone = "qstat: 8.head Job has finished, use -x or -H to obtain historical job information\n"
    command_that_says(monkeypatch, tmp_path, "qstat", RUNNING + waiting, gone, 35)

    assert Pbs().query(["372.head", "9.head", "8.head"]) == {
        "372.head": JobStatus("running"),
        "9.head": JobStatus("pending", "Not Running: Insufficient amount of resource: ngpus"),
        "8.head": JobStatus("ended"),
    }


DOWN = "Connection refused\nqsub: cannot connect to server head (errno=15010)\n"


def test_an_outage_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = command_that_says(monkeypatch, tmp_path, "qsub", "", DOWN, 162)

    with pytest.raises(
        UnreachableError, match=r"does not reach the scheduler: Connection refused / qsub"
    ):
        Pbs().submit(tmp_path / "launch.sh", os.environ)
    assert len(calls()) == 3


@pytest.mark.parametrize(
    ("err", "status", "asked"),
    [
        ("Connection refused\nCouldn't connect to cluster: head\n", 162, 3),
        ("qdel: something new\n", 1, 3),
        ("qdel: Unauthorized Request  7.head\n", 159, 1),
    ],
)
def test_a_cancellation_without_an_answer_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, err: str, status: int, asked: int
) -> None:
    calls = command_that_says(monkeypatch, tmp_path, "qdel", "", err, status)

    with pytest.raises(SchedulerError, match="qdel 7"):
        Pbs().cancel("7.head")
    assert len(calls()) == asked


def test_a_server_of_another_name_is_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", RUNNING)

    assert Pbs().query(["372.head.cluster.example.org"]) == {
        "372.head.cluster.example.org": JobStatus("running")
    }


def test_an_unknown_job_is_not_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", "", "qstat: Unknown Job Id 0.head\n", 153)

    assert Pbs().query(["0.head"]) == {}


@pytest.mark.parametrize(
    ("err", "status"),
    [
        ("Connection refused\nqstat: cannot connect to server head (errno=15010)\n", 255),
        ("qstat: something new\n", 35),
        ("", 1),
    ],
)
def test_silence_is_not_an_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, err: str, status: int
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", "", err, status)

    with pytest.raises(SchedulerError, match="qstat does not answer"):
        Pbs().query(["372.head"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ended(Exit_status="0"), "exit status 0"),
        (ended(Exit_status="75"), "exit status 75"),
        (ended(Exit_status="-29"), "PBS ended it at its time limit"),
        (ended(Exit_status="-20"), "its node was lost"),
        (ended(Exit_status="271"), "cancelled with qdel (exit status 271)"),
        (
            ended(Exit_status="265", comment="Job run at ... and terminated by me@head"),
            "cancelled with qdel (exit status 265)",
        ),
        (ended(), "it never ran: it was deleted, or the job it waited for was"),
    ],
)
def test_the_history_tells_how_a_job_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, expected: str
) -> None:
    command_that_says(monkeypatch, tmp_path, "qstat", text)

    assert Pbs().final_status("372.head", tmp_path) == JobStatus("ended", expected)


def test_without_history_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "qstat: PBS is not configured to maintain job history 372.head\n"
    command_that_says(monkeypatch, tmp_path, "qstat", "", text)

    assert Pbs().final_status("372.head", tmp_path) == NOT_IN_QUEUE


class Refusing(Pbs):
    """A server that takes three jobs and releases none, and gives `kept` not back."""

    def __init__(self, kept: str = "") -> None:
        self.kept = kept
        self.queue: list[str] = []

    def submit(self, script: Path, environ: Mapping[str, str], **options: Any) -> Submission:
        self.queue.append(f"{len(self.queue) + 7}.head")
        return Submission(self.queue[-1])

    def release(self, job_id: str) -> None:
        raise SchedulerError("qrls: no")

    def cancel(self, job_id: str) -> None:
        if job_id == self.kept:
            raise SchedulerError("qdel: no")
        self.queue.remove(job_id)


def test_of_a_chain_that_is_refused_as_little_stays_as_can_be(tmp_path: Path) -> None:
    server = Refusing()
    with pytest.raises(SchedulerError, match=r"^qrls: no$"):
        submit_chain(server, tmp_path, 2)
    assert server.queue == []
    server = Refusing(kept="9.head")
    # Its folder has to stay.
    with pytest.raises(UnclearError, match=r"qrls: no; could not be deleted again: 9.head"):
        submit_chain(server, tmp_path, 2)
    assert server.queue == ["9.head"]


def test_a_chain_that_the_disk_does_not_take_is_refused(tmp_path: Path) -> None:
    server = Refusing()
    with pytest.raises(UsageError, match=r"the chain cannot be recorded: .*missing"):
        submit_chain(server, tmp_path / "missing", 2)
    assert server.queue == []
