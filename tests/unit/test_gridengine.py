"""Grid Engine: the header that qsub reads, and what qstat's and qacct's answers mean. Whole jobs
run in the conformance suite, on a real one; the answers here, and the verdicts on directives, are
those of Son of Grid Engine 8.1.9 (Debian's), 2026-11-29."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.campaigns import planned_sweep
from support.environment import REPOSITORY, working_directory
from support.stubs import StubHost, command_that_says

from hpc_amp.campaigns.submit import describe, parts_of, write, write_script
from hpc_amp.config.sites import load_site
from hpc_amp.errors import ConfigError, SchedulerError, UnclearError
from hpc_amp.jobs.plan import Plan
from hpc_amp.jobs.render import render
from hpc_amp.lint.linter import lint
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.base import UnreachableError
from hpc_amp.schedulers.gridengine import GridEngine
from hpc_amp.schedulers.gridengine.grammar import GRAMMAR, written
from hpc_amp.schedulers.gridengine.limits import job_is_killed_whole
from hpc_amp.sweep.view import SWEEP


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Callable[[], list[str]]]:
    folder = tmp_path / "commands"
    folder.mkdir()

    def make(name: str, out: str = "", err: str = "", status: int = 0) -> Callable[[], list[str]]:
        return command_that_says(monkeypatch, folder, name, out, err, status)

    return make


def plan(host: StubHost, site: Mapping[str, Any] | None = None, **job: Any) -> Plan:
    path = host.folder / "ge-test.yaml"
    path.write_text(yaml.safe_dump({"scheduler": "gridengine", **(site or {})}))
    config = {"site": str(path), "run": ["true"], "job": {"nodes": 2, "walltime": "1h", **job}}
    return host.plan(config)


def header(plan: Plan) -> list[str]:
    """The options of the script's own lines."""
    lines = render(plan).splitlines()
    return [line.removeprefix("#$ ") for line in lines if line.startswith("#$ ")]


# ---- directives ----------------------------------------------------------------------------------


def test_the_header_asks_for_slots_of_a_parallel_environment(host: StubHost) -> None:
    site = {"options": {"slots_per_node": "16", "memory_resource": "mem_free"}}
    made = plan(host, site, ranks_per_node=4, memory="64GiB", queue="gpu.q", account="proj")

    assert header(made) == [
        "-N test",
        "-S /bin/bash",
        f"-wd {made.run_dir}",
        "-j y",
        f"-o {made.run_dir}/logs/job.log",
        "-r y",
        "-v HPC_AMP_UMASK=022",
        "-l h_rt=3600",
        "-pe mpi 32",
        "-l mem_free=4096M",
        "-q gpu.q",
        "-P proj",
    ]


@pytest.mark.parametrize(
    ("options", "job", "expected"),
    [
        ({}, {"nodes": 2, "ranks_per_node": 4, "cpus_per_gpu": 3}, ["-pe mpi 24"]),
        ({}, {"nodes": 1, "ranks_per_node": 1}, []),
        ({}, {"nodes": 1, "ranks_per_node": 2}, ["-pe mpi 2"]),
        ({"one_node_environment": "smp"}, {"nodes": 1, "ranks_per_node": 2}, ["-pe smp 2"]),
        ({"one_node_environment": "smp"}, {"nodes": 2, "ranks_per_node": 1}, ["-pe mpi 2"]),
        ({"parallel_environment": "orte"}, {"nodes": 3, "ranks_per_node": 1}, ["-pe orte 3"]),
        ({"slots_per_node": "8"}, {"nodes": 1, "ranks_per_node": 1}, ["-pe mpi 8"]),
    ],
)
def test_nodes_are_slots(
    host: StubHost, options: dict[str, str], job: dict[str, Any], expected: list[str]
) -> None:
    made = plan(host, {"options": options}, **job)

    assert [line for line in header(made) if line.startswith("-pe")] == expected


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ({"gpu_request": "none"}, []),
        ({"gpu_request": "gpu"}, ["-l gpu=4"]),
        ({"gpu_request": "gpu", "options": {"gpu_resource": "ngpus"}}, ["-l ngpus=4"]),
        ({"gpu_request": "gpu-per-slot"}, ["-l gpu=1"]),
        ({"gpu_request": "gpu-per-slot", "options": {"slots_per_node": "2"}}, ["-l gpu=2"]),
    ],
)
def test_gpus_are_asked_for_as_the_site_counts_them(
    host: StubHost, site: dict[str, Any], expected: list[str]
) -> None:
    made = plan(host, site, gpus_per_node=4)

    assert [line for line in header(made) if line.startswith("-l") and "gpu" in line] == expected


def test_whole_nodes_are_requested_by_the_resource_of_the_site(host: StubHost) -> None:
    made = plan(host, {"options": {"exclusive_resource": "exclusive"}}, exclusive=True)
    assert "-l exclusive=true" in header(made)
    assert made.whole_nodes
    assert not plan(host, {"options": {"exclusive_resource": "exclusive"}}).whole_nodes
    with pytest.raises(ConfigError, match="not known how Grid Engine requests whole nodes"):
        plan(host, {}, exclusive=True)


def test_gpus_that_slots_do_not_divide_are_refused(host: StubHost) -> None:
    site = {"gpu_request": "gpu-per-slot", "options": {"slots_per_node": "8"}}
    with pytest.raises(ConfigError, match="4 GPUs cannot be requested with 8 slots"):
        render(plan(host, site, gpus_per_node=4))


def test_memory_needs_a_name(host: StubHost) -> None:
    with pytest.raises(ConfigError, match="does not name the resource for memory"):
        render(plan(host, memory="4GiB"))


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_files_have_the_submitters_umask(host: StubHost, umask: int) -> None:
    before = os.umask(umask)
    try:
        made = plan(host)
    finally:
        os.umask(before)

    assert f"-v HPC_AMP_UMASK={umask:03o}" in header(made)


@pytest.mark.parametrize(
    ("name", "expected"), [("resnet", "resnet"), ("8bit", "j8bit"), ("none", "jnone")]
)
def test_a_job_name_is_one_that_grid_engine_takes(host: StubHost, name: str, expected: str) -> None:
    (host.folder / "ge.yaml").write_text("scheduler: gridengine\n")
    made = host.plan({"name": name, "site": str(host.folder / "ge.yaml"), "run": ["true"]})

    assert header(made)[0] == f"-N {expected}"


def test_resources_and_variables_are_replaced_one_by_one(host: StubHost) -> None:
    site = {"directives": ["-l h_rt=7200", "-v A=1"], "skip_directives": ["-r"]}
    made = plan(host, site, directives=["-l mem_free=1G,h_rt=60", "-v B=2"])

    shown = [line for line in header(made) if line[:2] in ("-l", "-v", "-r")]
    assert shown == ["-v HPC_AMP_UMASK=022", "-v A=1", "-l mem_free=1G,h_rt=60", "-v B=2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-t 1-3", "hpc-amp sweep"),
        ("-sync y", "--follow"),
        ("-now y", "could not start|cannot start"),
        ("-C X", "no longer read"),
        ("-b y", "program"),
        ("-N a b", "'b' is not an option"),
        ("-foo", "'-foo' is not an option"),
        ("--N a", "'--N' is not an option"),
        ("-pe mpi", "-pe needs a value"),
        ("-A my#account", "comment"),
        ('-A "my #account"', "comment"),
    ],
)
def test_a_directive_that_would_be_misread_is_refused(
    host: StubHost, line: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        render(plan(host, directives=[line]))


def test_no_line_of_setup_or_of_a_value_becomes_a_directive(host: StubHost) -> None:
    message = r"would read a line of the script as a directive: '#[$] -N x'"
    with pytest.raises(ConfigError, match=message):
        render(plan(host, setup="module load a\n#$ -N x\n"))
    with pytest.raises(ConfigError, match=r"directive: .#[$] -t 1-3"):
        render(plan(host, {"env": {"TEXT": "a\n#$ -t 1-3"}}))
    render(plan(host, {"env": {"TEXT": "a\nb #$ -t 1-3"}}, setup="# $ -N x\n"))


@pytest.mark.parametrize("letter", ["#", ",", "$", '"', "'"])
def test_a_path_that_qsub_would_misread_is_refused(host: StubHost, letter: str) -> None:
    work = host.folder / f"a{letter}b"
    work.mkdir()
    (host.folder / "ge.yaml").write_text("scheduler: gridengine\n")
    config = {"site": str(host.folder / "ge.yaml"), "run": ["true"]}

    with pytest.raises(ConfigError, match="does not accept a log path"):
        render(host.plan(config, cwd=work))


@pytest.mark.parametrize("part", ["a b", "ünï", "(a;b)&|", "back\\slash", "*", "%j"])
def test_other_paths_are_carried(host: StubHost, part: str) -> None:
    work = host.folder / part
    work.mkdir()
    (host.folder / "ge.yaml").write_text("scheduler: gridengine\n")
    made = host.plan({"site": str(host.folder / "ge.yaml"), "run": ["true"]}, cwd=work)

    (line,) = (line for line in header(made) if line.startswith("-wd"))
    assert [word.text for word in GRAMMAR.split(line).words] == ["-wd", str(made.run_dir)]


# What `qsub -verify` showed of a line: its words. All were tried with `-ac` and `-N`.
WORDS = {
    "-ac A=1": ["-ac", "A=1"],
    "\t-ac\tA=1": ["-ac", "A=1"],
    '-ac "A=1 2"': ["-ac", "A=1 2"],
    "-ac 'A=1 2'": ["-ac", "A=1 2"],
    '-ac A="1 2"': ["-ac", "A=1 2"],
    "-ac A=1\\\\2": ["-ac", "A=1\\\\2"],
    '-ac "A=1\\"2"': ["-ac", "A=1\\2"],
    '-ac "A=it\'s"': ["-ac", "A=its"],
    "-ac 'A=1\"2'": ["-ac", "A=12"],
    "-ac A=1 # comment": ["-ac", "A=1"],
    "-ac A=1#2": ["-ac", "A=1"],
    '-ac "A=1 # 2"': ["-ac", "A=1"],
    "-ac A=$HOME": ["-ac", "A=$HOME"],
    '-ac "A=unended': ["-ac", "A=unended"],
    "#comment": [],
    "": [],
    # From the first quote on, blanks part nothing any more.
    '-ac A="a b" -N zz': ["-ac", "A=a b -N zz"],
    "-ac A='a\" b' -N zz": ["-ac", "A=a b -N zz"],
    '-ac A=a"b c"d -N zz': ["-ac", "A=ab cd -N zz"],
    '-ac A="" -N zz': ["-ac", "A= -N zz"],
    "-N 'zz' -j y": ["-N", "zz -j y"],
    '-ac A="a b"  \t': ["-ac", "A=a b"],
    '-N zz -ac A="a b" # comment': ["-N", "zz", "-ac", "A=a b"],
    "-ac A=a\u00a0b -N zz": ["-ac", "A=a\u00a0b", "-N", "zz"],
    "-ac A=a\\": ["-ac", "A=a\\"],
    "-ac A=a\r": ["-ac", "A=a"],
}


@pytest.mark.parametrize("line", WORDS)
def test_a_line_is_split_as_qsub_splits_it(line: str) -> None:
    assert [word.text for word in GRAMMAR.split(f" {line}").words] == WORDS[line]


@pytest.mark.parametrize("value", ["", "a", "a b", "\\", "a\\", "$x", "ü", "-x", "a;b"])
def test_what_is_written_is_read_back(value: str) -> None:
    assert [word.text for word in GRAMMAR.split(f"-N {written(value)}").words] == ["-N", value]


@pytest.mark.parametrize("value", ["it's", 'a"b', "a#b", "a\nb"])
def test_what_cannot_be_written_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="cannot pass on"):
        written(value)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("-N 8bit", "bad-value"),
        ("-N a:b", "bad-value"),
        ("-N none", "bad-value"),
        ("-t 0-3", "bad-value"),
        ("-t 1-x", "bad-value"),
        ("-l h_rt=24h", "bad-value"),
        ("-l h_rt=1-00:00:00", "bad-value"),
        ("-l h_rt=1:30", "bad-value"),
        ("-l mem_free=1G,walltime=60", "bad-value"),
        ("-pe mpi x", "bad-value"),
        ("-pe mpi 0", "bad-value"),
        ("-r x", "bad-value"),
        ("-p 20000", "bad-value"),
        ("-pe mpi", "missing-value"),
        ("-ac", "missing-value"),
        ("-foo", "unknown-option"),
        ("--N a", "unknown-option"),
        ("stray", "stray-word"),
        ("-A a#b", "value-cut"),
        ("-o ~/log", "tilde-in-path"),
        ("-A $PROJECT", "variable-in-directive"),
        ("-ac A=1 \\", "line-continuation"),
        ("-verify", "submits-nothing"),
    ],
)
def test_lint_says_what_qsub_refuses_or_misreads(line: str, rule: str) -> None:
    found = lint(f"#!/bin/bash\n#$ -N a\n#$ {line}\n./a.out\n".encode(), "job.sh")

    assert (3, rule) in {(finding.line, finding.id) for finding in found}


@pytest.mark.parametrize(
    "line",
    [
        "-N a.b-c_d+e=f,g%h", "-t 1-3:2 -tc 2", "-t 3", "-l h_rt=3600,gpu=1", "-l h_rt=99:00:00",
        "-l h_rt=infinity", "-pe mpi 8-16", "-pe mpi 8-", "-cwd -j yes -r n", "-o $JOB_ID.log",
        "-hold_jid 3,4", "-S /bin/bash # why", "-p -100", "-v A=1,B=2", "-q all.q@n1", "-V",
    ],
)  # fmt: skip
def test_lint_says_nothing_of_what_qsub_takes(line: str) -> None:
    assert lint(f"#!/bin/bash\n#$ {line}\n./a.out\n".encode(), "job.sh") == []


def test_a_comment_that_begins_like_a_directive_is_none() -> None:
    """In a script for another scheduler."""
    assert lint(b"#!/bin/bash\n#SBATCH -N 1\n#$HOME is here\nsrun ./a.out\n", "job.sh") == []


# ---- the site ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "8"}, "Grid Engine has no option slots"),
        ({"slots_per_node": "0"}, "not a number above 0"),
        ({"parallel_environment": "a b"}, "is not a name"),
    ],
)
def test_options_of_a_site_are_checked(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({"scheduler": "gridengine", "options": options}))

    with pytest.raises(ConfigError, match=message):
        load_site(path)


def test_other_schedulers_have_no_options(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("scheduler: slurm\noptions: {slots_per_node: '8'}\n")

    with pytest.raises(ConfigError, match="Slurm has no option slots_per_node"):
        load_site(path)


def test_it_is_configured_where_a_cell_has_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = tmp_path / "cell" / "common"
    common.mkdir(parents=True)
    monkeypatch.setenv("SGE_ROOT", str(tmp_path))
    monkeypatch.setenv("SGE_CELL", "cell")
    commands = {"qsub": "/x/qsub", "qconf": "/x/qconf"}

    assert not GridEngine.is_configured(commands.get)
    (common / "act_qmaster").write_text("head\n")
    assert GridEngine.is_configured(commands.get)
    assert not GridEngine.is_configured({"qsub": "/x/qsub"}.get)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("execd_params                 none", False),
        ("execd_params                 ENABLE_ADDGRP_KILL=TRUE", True),
        ("execd_params                 KEEP_ACTIVE=FALSE \\\n      ENABLE_ADDGRP_KILL=true", True),
        ("execd_params                 ENABLE_ADDGRP_KILL=FALSE", False),
        ("", False),
    ],
)
def test_whether_all_processes_of_a_job_are_ended(line: str, expected: bool) -> None:
    assert job_is_killed_whole(f"mailer /usr/bin/mail\n{line}\nreporting_params x\n") is expected


# ---- submission ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "expected"), [("1141\n", "1141"), ("1093.1-5:1\n", "1093"), ("note\n7\n", "7")]
)
def test_the_id_of_a_submission(
    says: Callable[..., Callable[[], list[str]]], tmp_path: Path, out: str, expected: str
) -> None:
    calls = says("qsub", out)
    script = tmp_path / "launch.sh"
    script.touch()

    assert GridEngine().submit(script, os.environ) == Submission(expected)
    assert GridEngine().submit(script, os.environ, after="4", held=True).job_id == expected
    assert calls() == [f"-terse {script}", f"-terse -h -hold_jid 4 {script}"]


@pytest.mark.parametrize(
    ("err", "error"),
    [
        ('Unable to run job: unknown resource "gpu"\nExiting.\n', SchedulerError),
        ("Unable to run job: Error reading answer list from qmaster\nExiting.\n", SchedulerError),
        (
            "error: commlib error: got select error (Connection refused)\nUnable to run job: "
            'unable to send message to qmaster using port 6444 on host "head": got send error\n',
            UnreachableError,
        ),
        (
            "Unable to run job: failed receiving gdi request response for mid=1 (got syncron "
            "message receive timeout error).\nExiting.\n",
            UnclearError,
        ),
    ],
)
def test_a_refusal_an_absence_and_a_lost_answer(
    says: Callable[..., Callable[[], list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    err: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr("hpc_amp.schedulers.base.PAUSES", ())
    says("qsub", "", err, 1)

    with pytest.raises(error) as raised:
        GridEngine().submit(tmp_path / "launch.sh", os.environ)
    assert type(raised.value) is error


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (3, 3), (75, 75), (99, 1), (100, 1)])
def test_a_script_never_ends_with_an_order_to_grid_engine(status: int, expected: int) -> None:
    """99 would start the job again, and 100 keep it in the queue in an error state."""
    host_code = GridEngine().host_code().partition("scheduler_begins()")[0]
    library = REPOSITORY / "hpc_amp" / "host" / "exit.sh"
    script = f"leave() {{ :; }}\nsource {library}\n{host_code}\nexit {status}\n"

    assert subprocess.run(["bash", "-c", script]).returncode == expected


# ---- the queue -----------------------------------------------------------------------------------


def listed(*jobs: Mapping[str, str]) -> str:
    """`qstat -xml -r -g d`."""
    entries = ""
    for job in jobs:
        inner = "".join(f"<{name}>{text}</{name}>" for name, text in job.items())
        entries += f'<job_list state="pending">{inner}</job_list>'
    return f"<?xml version='1.0'?>\n<job_info><queue_info>{entries}</queue_info></job_info>\n"


DETAILS = """==============================================================
job_number:                 8
cwd:                        /work/runs/a b
script_file:                launch.sh
error reason          1:      11/29/2026 00:11:46 [0:1231]: error: can't chdir to /gone: No such
scheduling info:            Job is in error state
==============================================================
job_number:                 9
cwd:                        /work/runs/b
script_file:                /work/runs/b/launch.sh
scheduling info:            queue instance "all.q@n2" dropped because it is full
                            queue instance "all.q@n3" dropped because it is full
                            cannot run in PE "mpi" because it only offers 0 slots
"""


@pytest.mark.parametrize(
    ("state", "more", "expected"),
    [
        ("r", {}, JobStatus("running")),
        ("t", {}, JobStatus("running")),
        ("Rr", {}, JobStatus("running")),
        ("dr", {}, JobStatus("running")),
        ("s", {}, JobStatus("running")),
        ("hqw", {}, JobStatus("pending", "held")),
        (
            "hqw",
            {"predecessor_jobs_req": "1", "predecessor_jobs": "1"},
            JobStatus("pending", "waits for another job", after=True),
        ),
        (
            "qw",
            {"predecessor_jobs_req": "1"},
            JobStatus("pending", 'cannot run in PE "mpi" because it only offers 0 slots'),
        ),
    ],
)
def test_states(
    says: Callable[..., Callable[[], list[str]]],
    state: str,
    more: dict[str, str],
    expected: JobStatus,
) -> None:
    says("qstat", listed({"JB_job_number": "9", "state": state, **more}))
    if state == "qw":  # two answers of one command
        says("qstat", "")
        _answers(says, listed({"JB_job_number": "9", "state": state, **more}))

    assert GridEngine().query(["9", "10"]) == {"9": expected}


def _answers(says: Callable[..., Callable[[], list[str]]], xml: str) -> None:
    """Let qstat show jobs, and with `-j` the details."""
    says("qstat-xml", xml)
    says("qstat-details", DETAILS)
    says("qstat", "")
    path = Path(os.environ["PATH"].split(":")[0]) / "qstat"
    path.write_text(
        '#!/bin/sh\ncase " $* " in *" -j "*) exec qstat-details ;; *) exec qstat-xml ;; esac\n'
    )


def test_a_job_in_an_error_state_is_stuck(
    says: Callable[..., Callable[[], list[str]]],
) -> None:
    _answers(says, listed({"JB_job_number": "8", "state": "Eqw"}))

    reason = "Grid Engine could not start it: can't chdir to /gone: No such"
    assert GridEngine().query(["8"]) == {"8": JobStatus("ended", reason, stuck=True)}


def test_jobs_are_found_by_their_folders(says: Callable[..., Callable[[], list[str]]]) -> None:
    job = {"JB_job_number": "8", "state": "r"}
    _answers(says, listed(job, {"JB_job_number": "9", "state": "qw"}))

    assert GridEngine().queued() == {"8": Path("/work/runs/a b"), "9": Path("/work/runs/b")}
    assert GridEngine().find_jobs(Path("/work/runs/a b")) == ["8"]


@pytest.mark.parametrize(("out", "status"), [("", 1), ("", 0), ("<job_info>", 0)])
def test_silence_is_not_an_end(
    says: Callable[..., Callable[[], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    status: int,
) -> None:
    monkeypatch.setattr("hpc_amp.schedulers.base.PAUSES", ())
    says("qstat", out, "error: commlib error: got select error (Connection refused)\n", status)

    with pytest.raises(UnreachableError, match="qstat does not answer"):
        GridEngine().query(["9"])


@pytest.mark.parametrize(
    ("failed", "status", "expected"),
    [
        ("0", "0", JobStatus("ended", "exit status 0")),
        ("0", "3", JobStatus("ended", "exit status 3")),
        (
            "100 : assumedly after job",
            "137                  (Killed)",
            JobStatus("ended", "killed, perhaps by qdel (exit status 137)"),
        ),
        (
            "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit",
            "137                  (Killed)",
            JobStatus("ended", "Grid Engine ended it at its time limit or its memory limit"),
        ),
        (
            "26  : opening input/output file",
            "0",
            JobStatus("ended", "Grid Engine could not run it: opening input/output file"),
        ),
    ],
)
def test_last_words(
    says: Callable[..., Callable[[], list[str]]],
    tmp_path: Path,
    failed: str,
    status: str,
    expected: JobStatus,
) -> None:
    text = (
        f"==\njobnumber    9    \nfailed       {failed}\nexit_status  {status}\nmaxvmem      1KB\n"
    )
    calls = says("qacct", text)

    assert GridEngine().final_status("9", tmp_path) == expected
    assert calls() == ["-j 9"]


def test_last_words_of_tasks(says: Callable[..., Callable[[], list[str]]], tmp_path: Path) -> None:
    """A task that was started twice is there twice."""
    line = "=====\njobnumber 9\ntaskid {}\nfailed {}\nexit_status {}\n"
    says(
        "qacct",
        line.format(1, 0, 1) + line.format(2, "25 : rescheduling", 99) + line.format(2, 0, 0),
    )

    found = GridEngine().arrays().final_status(["9.1", "9.2", "9.3"])
    assert {job_id: status.reason for job_id, status in found.items()} == {
        "9.1": "exit status 1",
        "9.2": "exit status 0",
    }


def test_an_array(says: Callable[..., Callable[[], list[str]]]) -> None:
    arrays = GridEngine().arrays()

    assert arrays.header(["-N a"], 5, 2) == ["-N a", "-t 1-5", "-tc 2"]
    assert arrays.header(["-N a"], 5, 5) == ["-N a", "-t 1-5"]
    assert arrays.task_id(["41"], 0, 5) == "41.1" and arrays.array_of("41.1") == "41"
    says(
        "qstat",
        listed(
            {"JB_job_number": "41", "state": "r", "tasks": "1"},
            {"JB_job_number": "41", "state": "qw", "tasks": "2"},
        ),
    )
    assert arrays.query(["41"], []) == {"41.1": JobStatus("running"), "41.2": JobStatus("pending")}
    says("qconf", "max_aj_instances             2000\nmax_aj_tasks                 75\n")
    assert arrays.largest() == 75


@pytest.mark.parametrize(
    ("options", "rule", "told"),
    [
        ({}, "16", "mpi gives 16 slots of a node, and the site has no options.slots_per_node"),
        ({"slots_per_node": "16"}, "16", None),
        ({}, "$pe_slots", None),
    ],
)
def test_a_site_without_the_slots_of_its_nodes(
    says: Callable[..., Callable[[], list[str]]],
    host: StubHost,
    options: dict[str, str],
    rule: str,
    told: str | None,
) -> None:
    """`doctor site=NAME`: a job of two nodes with other slots would be refused."""
    calls = says("qconf", f"pe_name            mpi\nallocation_rule    {rule}\n")
    job = plan(host, {"options": options}).job
    site = load_site(host.folder / "ge-test.yaml")

    found = list(GridEngine().check_site(job, site))

    assert [(one.severity, one.what) for one in found] == ([("warning", told)] if told else [])
    assert [one.fix for one in found] == (
        ["set options.slots_per_node to 16 in the site file"] if told else []
    )
    assert calls() == ([] if options else ["-sp mpi"])


def test_no_last_words(says: Callable[..., Callable[[], list[str]]], tmp_path: Path) -> None:
    says("qacct", "", "error: job id 424242 not found\n", 1)

    assert GridEngine().final_status("424242", tmp_path) == NOT_IN_QUEUE


def test_a_job_that_is_gone_is_cancelled(says: Callable[..., Callable[[], list[str]]]) -> None:
    says("qdel", 'denied: job "424242" does not exist\n', "", 1)

    GridEngine().cancel("424242")


# ---- the host code -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "ends", "found"),
    [
        ("echo 'job_number: 41'; echo 'cwd: FOLDER'; echo 'script_file: launch.sh'", 0, "41"),
        ("echo 'job_number: 41'; echo 'cwd: FOLDER'; echo 'script_file: QRSH'", 0, ""),
        ("echo 'Following jobs do not exist: 41' >&2; exit 1", 0, ""),
        ("echo 'error: unable to send message to qmaster' >&2; exit 1", 1, ""),
    ],
)
def test_a_queue_that_stops_to_answer_is_not_an_empty_one(
    tmp_path: Path, said: str, ends: int, found: str
) -> None:
    """Else the run would be submitted once more, beside the job that it has."""
    host_code = tmp_path / "src" / "hpc_amp" / "host"
    host_code.parent.mkdir(parents=True)
    host_code.symlink_to(REPOSITORY / "hpc_amp" / "host")
    qstat = tmp_path / "qstat"
    details = said.replace("FOLDER", str(tmp_path))
    qstat.write_text(
        f'#!/bin/sh\nif [ "$1" = -j ]; then {details}; else echo "41 0.5 name user qw"; fi\n'
    )
    qstat.chmod(0o755)
    script = REPOSITORY / "hpc_amp" / "schedulers" / "gridengine" / "host.sh"

    ended = subprocess.run(
        ["bash", "-ec", f'run_dir={tmp_path}; source "{script}"; own_jobs || exit 1'],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        text=True, capture_output=True,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout.strip()) == (ends, found)


def test_a_point_of_a_sweep_has_the_users_permissions(host: StubHost) -> None:
    """Grid Engine gives jobs the umask of its daemon."""
    site = host.folder / "ge-test.yaml"
    site.write_text("scheduler: gridengine\n")
    config = host.write_job(
        {"name": "test", "site": str(site), "run": ["true"], "job": {"walltime": "1h"}}
    )
    with working_directory(host.work):
        planned = planned_sweep(config, "container.env.A=1,2")
        sweep = describe(SWEEP, planned)
        write(sweep, planned)
        (part,) = parts_of(sweep, [0, 1], None)
        script = write_script(sweep, part)
    (sweep.folder / "launch.sh").write_text("exit 0\n")
    task = {"SGE_TASK_ID": "2", "JOB_ID": "41", "SGE_JOB_SPOOL_DIR": "/x", "HPC_AMP_UMASK": "007"}

    ended = subprocess.run(
        ["bash", script], env={"PATH": os.environ["PATH"], **task}, capture_output=True, text=True
    )

    point = sweep.point_dir(1)
    assert ended.returncode == 0, ended.stderr + (point / "logs" / "job.log").read_text()
    modes = {path: path.stat().st_mode & 0o777 for path in (point, point / "logs" / "job.log")}
    assert list(modes.values()) == [0o770, 0o660]
    assert '"job_id": "41.2"' in (point / "state.jsonl").read_text()
