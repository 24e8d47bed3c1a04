"""The stand-in of Cobalt against what was observed on Cobalt 1.0.33. Every row is an observation,
unless it says otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.standins import OPEN_MPI, CobaltStandIn, identity
from support.waiting import is_running, wait_until

pytestmark = pytest.mark.standin

Start = Callable[..., CobaltStandIn]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CobaltStandIn]:
    """A server that takes jobs and starts none: for what happens at submission."""
    with CobaltStandIn(
        tmp_path_factory.mktemp("cobalt") / "shelf",
        queues={
            "default": {"state": "stopped"},
            "dead": {"state": "dead"},
            "short": {"state": "stopped", "max_minutes": 60, "min_minutes": 10},
            "full": {"state": "stopped", "max_queued": 0},
        },
    ) as stand_in:
        yield stand_in


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that run jobs, and stops them."""
    started: list[CobaltStandIn] = []

    def make(**settings: Any) -> CobaltStandIn:
        started.append(CobaltStandIn(tmp_path / f"cobalt{len(started)}", **settings))
        return started[-1]

    yield make
    for stand_in in started:
        stand_in.stop()


def submit(cobalt: CobaltStandIn, body: str, *options: str, name: str = "job.sh") -> str:
    """Hand in a bash script, on one node for ten minutes unless the options say otherwise."""
    cobalt.script(f"#!/bin/bash\n{body}\n", name)
    result = cobalt.run("qsub", "-t", "10", "-n", "1", *options, name)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.strip()


def end(cobalt: CobaltStandIn, *job_ids: str) -> None:
    """Wait until jobs are out of the queue."""
    wait_until(lambda: not set(job_ids) & cobalt.jobs().keys(), f"the end of {job_ids}")


def output(cobalt: CobaltStandIn, job_id: str) -> str:
    return (cobalt.work / f"{job_id}.output").read_text()


def log(cobalt: CobaltStandIn, job_id: str) -> str:
    return (cobalt.work / f"{job_id}.cobaltlog").read_text()


def field(cobalt: CobaltStandIn, job_id: str, name: str) -> str:
    """One cell of qstat."""
    shown = cobalt.run("qstat", "--header", name, job_id)
    return shown.stdout.splitlines()[-1].strip()


# ---- the header ----------------------------------------------------------------------------------

USAGE = ("Usage: qsub.py", "No required options provided")

HEADERS_READ = {
    "several options a line and several lines": (
        "#COBALT -t 10 -n 2 -q default -A proj\n#COBALT --jobname jn -h\n",
        {"WallTime": "00:10:00", "Nodes": "2", "JobName": "jn", "State": "user_hold"},
    ),
    "long options with equals signs": (
        "#COBALT --time=10 --nodecount=2\n",
        {"WallTime": "00:10:00", "Nodes": "2"},
    ),
    "the later line wins": ("#COBALT -t 10 -n 2\n#COBALT -t 20\n", {"WallTime": "00:20:00"}),
    "an empty directive with its blank": ("#COBALT \n#COBALT -t 10 -n 2\n", {"Nodes": "2"}),
    "windows line ends": ("#COBALT -t 10 -n 2\r\n", {"WallTime": "00:10:00", "Nodes": "2"}),
    "quotes are characters": (
        '#COBALT -t 10 -n 2 --jobname "my"\n',
        {"JobName": '"my"'},
    ),
    "a quoted blank ends the options": (
        '#COBALT -t 10 -n 2 --jobname "my job"\n',
        {"JobName": '"my'},
    ),
    "variables with quotes": (
        '#COBALT -t 10 -n 2 --env "A=1:B=two"\n',
        {"Envs": '"A=1 B=two"'},
    ),
    "shell variables stay": ("#COBALT -t 10 -n 2 --env X=$HOME\n", {"Envs": "X=$HOME"}),
}


@pytest.mark.parametrize("case", HEADERS_READ)
def test_stand_in_reads_header(shelf: CobaltStandIn, case: str) -> None:
    header, expected = HEADERS_READ[case]
    shelf.script(f"#!/bin/bash\n{header}echo\n", "header.sh")
    result = shelf.run("qsub", "header.sh")
    assert (result.returncode, result.stderr) == (0, "")
    assert {name: field(shelf, result.stdout.strip(), name) for name in expected} == expected


HEADERS_NOT_READ = {
    "blank line first": "#!/bin/bash\n\n#COBALT -t 10 -n 2\n",
    "comment first": "#!/bin/bash\n# about\n#COBALT -t 10 -n 2\n",
    "no interpreter line": "#COBALT -t 10 -n 2\n",
    "leading blank": "#!/bin/bash\n #COBALT -t 10 -n 2\n",
    "two hashes": "#!/bin/bash\n##COBALT -t 10 -n 2\n",
    "a tab behind it": "#!/bin/bash\n#COBALT\t-t 10 -n 2\n",
    "lower case": "#!/bin/bash\n#cobalt -t 10 -n 2\n",
    "bare marker": "#!/bin/bash\n#COBALT\n#COBALT -t 10 -n 2\n",
}


@pytest.mark.parametrize("case", HEADERS_NOT_READ)
def test_stand_in_ignores_header(shelf: CobaltStandIn, case: str) -> None:
    shelf.script(HEADERS_NOT_READ[case], "header.sh")
    result = shelf.run("qsub", "header.sh")
    assert (result.returncode, result.stderr.strip()) == (1, USAGE[1])
    assert USAGE[0] in result.stdout


def test_stand_in_stops_at_comment_in_header(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10\n# comment\n#COBALT -n 2\n")
    result = shelf.run("qsub", "job.sh")
    assert (result.returncode, result.stderr) == (1, "'nodecount' not provided\n")


def test_stand_in_ignores_all_behind_a_word_in_header(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 2 -h # comment\n#COBALT -t 30\n")
    result = shelf.run("qsub", "-t", "20", "job.sh", "x")
    job_id = result.stdout.strip()
    assert field(shelf, job_id, "WallTime") == "00:10:00"
    assert field(shelf, job_id, "Args") == "x"
    assert field(shelf, job_id, "Command") == str(shelf.work / "job.sh")


def test_stand_in_holds_in_spite_of_a_word_in_header(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 1 extra\n")
    job_id = shelf.run("qsub", "-h", "-t", "20", "job.sh").stdout.strip()
    assert field(shelf, job_id, "State:WallTime").split() == ["user_hold", "00:10:00"]


def test_stand_in_prefers_command_line(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 2 -A proj --env A=1:B=1\n")
    result = shelf.run(
        "qsub", "-n", "1", "-t", "20", "-A", "mine", "--env", "B=2", "job.sh", "-n", "3"
    )
    job_id = result.stdout.strip()
    assert field(shelf, job_id, "Nodes") == "1"
    assert field(shelf, job_id, "WallTime") == "00:20:00"
    assert field(shelf, job_id, "Project") == "mine"
    assert field(shelf, job_id, "Envs") == "A=1 B=2"
    assert field(shelf, job_id, "Args") == "-n 3"
    assert log(shelf, job_id).splitlines()[:2] == [
        f"Jobid: {job_id}",
        "qsub --mode script -t 10 -n 2 -A proj --env A=1:B=1 "
        "-n 1 -t 20 -A mine --env B=2 job.sh -n 3",
    ]


# ---- arguments and refusals ----------------------------------------------------------------------

ok = ("-t", "10", "-n", "1")

REFUSED = {
    "no script": ((), 1, "No executable or script specified"),
    "no options": (("plain.sh",), 1, "No required options provided"),
    "no time": (("-n", "1", "plain.sh"), 1, "'time' not provided"),
    "queue alone": (("-q", "default", "plain.sh"), 1, "'time' not provided"),
    "no nodes": (("-t", "10", "plain.sh"), 1, "'nodecount' not provided"),
    "four minutes": (
        ("-t", "4", "-n", "1", "plain.sh"),
        1,
        "component error: XMLRPC failure <Fault 1004: 'Walltime less than minimum'> "
        "in system.validate_job",
    ),
    "seconds count for nothing": (
        ("-t", "00:04:59", "-n", "1", "plain.sh"),
        1,
        "<Fault 1004: 'Walltime less than minimum'>",
    ),
    "no number": (
        ("-t", "abc", "-n", "1", "plain.sh"),
        1,
        "invalid time specification: illegal value 'abc' for minutes",
    ),
    "a day": (("-t", "1d", "-n", "1", "plain.sh"), 1, "illegal value '1d' for minutes"),
    "a fraction": (("-t", "1.5", "-n", "1", "plain.sh"), 1, "illegal value '1.5' for minutes"),
    "negative": (("-t", "-5", "-n", "1", "plain.sh"), 1, "minutes value must not be negative"),
    "too many seconds": (
        ("-t", "00:00:300", "-n", "1", "plain.sh"),
        1,
        "seconds value '300' outside range [0, 59]",
    ),
    "above the queue's limit": (
        ("-t", "61", "-n", "1", "-q", "short", "plain.sh"),
        1,
        "<Fault 1001: \"Walltime greater than the 'short' queue max walltime of 01:00:00\\n\">",
    ),
    "below the queue's limit": (
        ("-t", "6", "-n", "1", "-q", "short", "plain.sh"),
        1,
        "Walltime less than the 'short' queue min walltime of 00:10:00",
    ),
    "too many jobs": (
        (*ok, "-q", "full", "plain.sh"),
        1,
        "The limit of 0 jobs per user in the 'full' queue has been reached\\n",
    ),
    "no node": (("-t", "10", "-n", "0", "plain.sh"), 1, "node count out of realistic range"),
    "too many nodes": (("-t", "10", "-n", "5", "plain.sh"), 1, "node count out of realistic range"),
    "negative nodes": (
        ("-t", "10", "-n", "-1", "plain.sh"),
        1,
        "node count out of realistic range",
    ),
    "nodes that are no number": (
        ("-t", "10", "-n", "abc", "plain.sh"),
        2,
        "qsub.py: error: option -n: invalid integer value: 'abc'",
    ),
    "unknown option": (
        ("--frobnicate", "1", "plain.sh"),
        2,
        "qsub.py: error: no such option: --frobnicate",
    ),
    "unknown queue": (
        (*ok, "-q", "nosuch", "plain.sh"),
        1,
        "<Fault 1001: \"trying to add job to non-existent queue 'nosuch'\">",
    ),
    "dead queue": (
        (*ok, "-q", "dead", "plain.sh"),
        1,
        "<Fault 1001: \"The 'dead' queue is dead\">",
    ),
    "no such script": ((*ok, "nosuch.sh"), 1, "nosuch.sh not found, or is not a file"),
    "no search on PATH": ((*ok, "hostname"), 1, "hostname not found, or is not a file"),
    "a folder": ((*ok, "."), 1, "not found, or is not a file"),
    "standard input": ((*ok, "-"), 1, "not found, or is not a file"),
    "not executable": ((*ok, "nox.sh"), 1, "nox.sh is not executable"),
    "blanks are deleted from names": ((*ok, "sp ace.sh"), 1, "space.sh not found"),
    "script below --cwd": ((*ok, "--cwd", "/nosuch", "plain.sh"), 1, "/nosuch/plain.sh not found"),
    "no folder of -o": ((*ok, "-o", "sub/x", "plain.sh"), 1, "sub/x does not exist"),
    "no folder of -O": (
        (*ok, "-O", "/nosuch/x", "plain.sh"),
        1,
        "directory /nosuch/x does not exist",
    ),
    "no folder of -e": ((*ok, "-e", "sub/x", "plain.sh"), 1, "sub/x does not exist"),
    "no folder of --debuglog": (
        (*ok, "--debuglog", "sub/x", "plain.sh"),
        1,
        "sub/x does not exist",
    ),
    "other mode": (
        ("--mode", "co", "headed.sh"),
        1,
        "Mode already set to 'script' and trying to set it again to 'co'",
    ),
    "unknown mode": ((*ok, "--mode", "c16", "binary"), 1, "interactive"),
    "no input file": ((*ok, "-i", "nosuch", "plain.sh"), 1, "nosuch not found, or is not a file"),
    "two --attrs": (
        (*ok, "--attrs", "a=1", "--attrs", "b=2", "plain.sh"),
        1,
        "Multiple --attrs options not supported.  Specify multiple attributes as follows: "
        "--attrs FOO=1:BAR=2",
    ),
    "strange --attrs": (
        (*ok, "--attrs", "a=b=c", "plain.sh"),
        1,
        "Improperly formatted argument to attrs : a=b=c",
    ),
    "variable without value": (
        (*ok, "--env", "MYVAR", "plain.sh"),
        1,
        "Improperly formatted argument to env : ['MYVAR']",
    ),
    "two values of an attribute": (
        (*ok, "--attrs", "a=b=c", "plain.sh"),
        1,
        "Improperly formatted argument to attrs : a=b=c",
    ),
    "a umask that is not octal": ((*ok, "-u", "9", "plain.sh"), 1, "Invalid umask value 9"),
    "no processes": ((*ok, "--proccount", "0", "plain.sh"), 1, "--proccount is 0 which is"),
    "a flat geometry": ((*ok, "--geometry", "1x1", "plain.sh"), 1, "Invalid geometry entered"),
    "a relative folder": ((*ok, "--cwd", "sub", "plain.sh"), 1, "directory sub does not exist"),
    "an option of Slurm": ((*ok, "--gres=gpu:1", "plain.sh"), 2, "no such option: --gres"),
    "an ambiguous beginning": ((*ok, "--out", "x", "plain.sh"), 2, "ambiguous option: --out"),
    "a value of a flag": ((*ok, "--held=1", "plain.sh"), 2, "does not take a value"),
    "interactive with a script": (
        (*ok, "-I", "plain.sh"),
        1,
        "An executable may not be specified if using the interactive option.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stand_in_refuses(shelf: CobaltStandIn, case: str) -> None:
    words, status, text = REFUSED[case]
    shelf.script("#!/bin/bash\n", "plain.sh")
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 1\n", "headed.sh")
    shelf.script("\x7fELF", "binary")
    (shelf.work / "nox.sh").write_text("#!/bin/bash\n")
    shelf.script("#!/bin/bash\n", "sp ace.sh")
    result = shelf.run("qsub", *words)
    assert result.returncode == status, result
    assert text in result.stderr
    assert not re.search(r"^\d+$", result.stdout, re.MULTILINE)


def test_stand_in_counts_attrs_of_header_and_command_line(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 1 --attrs a=1\n")
    result = shelf.run("qsub", "--attrs", "b=2", "job.sh")
    assert result.returncode == 1 and "Multiple --attrs" in result.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_stand_in_prints_a_text_instead(shelf: CobaltStandIn, option: str) -> None:
    shelf.script(f"#!/bin/bash\n#COBALT -t 10 -n 1 {option}\n")
    result = shelf.run("qsub", "job.sh")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout and not re.search(r"^\d+$", result.stdout, re.MULTILINE)


def test_stand_in_refuses_an_interactive_script(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 1 -I\n")
    result = shelf.run("qsub", "job.sh")
    assert result.returncode == 1
    assert (
        "Mode already set to 'script' and trying to set it again to 'interactive'" in result.stderr
    )


ACCEPTED = {
    "hours and minutes": (("-t", "10:00"), {"WallTime": "10:00:00"}),
    "hours, minutes, seconds": (("-t", "00:10:00"), {"WallTime": "00:10:00"}),
    "days": (("-t", "1:00:00:00"), {"WallTime": "24:00:00"}),
    "zero is the longest, and shown as zero": (("-t", "0"), {"WallTime": "00:00:00"}),
    "more than 59 minutes": (("-t", "00:61:00"), {"WallTime": "01:01:00"}),
    "a plus": (("-t", "+7"), {"WallTime": "00:07:00"}),
    "nodes with a zero in front": (("-n", "03"), {"Nodes": "3"}),
    "options of other systems": (
        ("--kernel", "k", "-K", "o", "--ion_kernel", "i", "--ion_kerneloptions", "j"),
        {"Mode": "script"},
    ),
    "more options": (
        ("--disable_preboot", "--run_project", "--verbose", "-M", "me", "--geometry", "1x1x1x1x2"),
        {"Mode": "script"},
    ),
    "a mode without a header": (("--mode", "co"), {"Nodes": "1"}),
    "a beginning of an option": (("--proj", "x"), {"Project": "x"}),
    "zero is the queue's longest": (("-t", "0", "-q", "short"), {"WallTime": "01:00:00"}),
    "max_walltime is not a limit": (("-t", "721"), {"WallTime": "12:01:00"}),
    "colons in values": (("--env", "A=/a/b:/c/d:B=2"), {"Envs": "A=/a/b:/c/d B=2"}),
    "a union of variables": (("--env", "A=1", "--env", "B=2"), {"Envs": "A=1 B=2"}),
    "no union of the other form": (("--env=A=1", "--env=B=2"), {"Envs": "B=2"}),
    "attributes": (
        ("--attrs", "filesystems=home,eagle:foo:no_x"),
        {"attrs": "{'filesystems': 'home,eagle', 'foo': 'true', 'x': 'false'}"},
    ),
    "empty attributes": (("--attrs", ""), {"attrs": "{'': 'true'}"}),
    "name from -o": (("-o", "foo.output"), {"JobName": "foo"}),
    "name from -O": (("-O", "pre"), {"JobName": "pre"}),
    "no name": ((), {"JobName": "N/A", "Mode": "script", "Queue": "default"}),
    "preemptable": (("--preemptable",), {"Preemptable": "True"}),
    "processes are a number": (("--proccount", "8"), {"Procs": "8"}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_stand_in_accepts(shelf: CobaltStandIn, case: str) -> None:
    words, expected = ACCEPTED[case]
    job_id = submit(shelf, "", *words)
    assert job_id.isdigit()
    assert {name: field(shelf, job_id, name) for name in expected} == expected


def test_stand_in_names_job_in_values(shelf: CobaltStandIn) -> None:
    words = ("--env", "A=$jobid:B=x_$COBALT_JOBID", "--jobname", "j$jobid")
    job_id = submit(shelf, "", *words, "-o", "o_$jobid")
    assert field(shelf, job_id, "Envs") == f"A={job_id} B=x_{job_id}"
    assert field(shelf, job_id, "JobName") == f"j{job_id}"
    assert field(shelf, job_id, "outputpath") == str(shelf.work / f"o_{job_id}")


def test_stand_in_warns_of_log_it_cannot_write(shelf: CobaltStandIn) -> None:
    script = shelf.script("#!/bin/bash\n")
    result = shelf.run("qsub", *ok, "--cwd", "/nosuch", str(script))
    assert result.returncode == 0 and result.stdout.strip().isdigit()
    assert result.stderr == "WARNING: failed to create cobalt log file\n"


def test_stand_in_knows_filters_and_messages(start: Start) -> None:
    cobalt = start(queues={"default": {"state": "stopped"}}, filter_message="Job routed.")
    cobalt.script("#!/bin/bash\n")
    result = cobalt.run("qsub", *ok, "job.sh")
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "Job routed.\n")
    cobalt.config(submit_status=1)
    result = cobalt.run("qsub", *ok, "job.sh")
    assert (result.returncode, result.stdout) == (1, "2\n")
    cobalt.config(submit_status=0, server_message="welcome")
    assert cobalt.run("qsub", *ok, "job.sh").stdout == "3 welcome\n"
    cobalt.config(filter_fails="/etc/filter")
    result = cobalt.run("qsub", *ok, "job.sh")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Filter /etc/filter failed" in result.stderr
    assert sorted(cobalt.jobs()) == ["1", "2", "3"]


def test_stand_in_that_is_down_answers_nothing(start: Start) -> None:
    cobalt = start(down=True)
    cobalt.script("#!/bin/bash\n")
    trying = "Following exception occurred while trying to execute queue-manager."
    for command, attempt, component in (
        (("qsub", *ok, "job.sh"), "Failed to connect to system", "system"),
        (("qstat",), f"{trying}get_queues", "queue-manager"),
        (("qstat", "1"), f"{trying}get_queues", "queue-manager"),
        (("qdel", "1"), f"{trying}del_jobs", "queue-manager"),
        (("qrls", "1"), "Failed to connect to queue-manager", "queue-manager"),
    ):
        result = cobalt.run(*command)
        assert (result.returncode, result.stdout) == (1, "")
        text = f"component error: {attempt}: Proxy.py     :L#422:cn:{component}\n\n"
        assert result.stderr == text
    assert not (cobalt.state / "server.pid").exists()


def test_stand_in_without_its_queue_manager(start: Start) -> None:
    """`killed`: the name server still has its address, and the client's traceback is the answer."""
    cobalt = start(down="queue-manager")
    cobalt.script("#!/bin/bash\n")
    assert cobalt.run("qsub", *ok, "job.sh").stderr == "Proxy.py     :L#422:cn:queue-manager\n"
    cobalt.config(down="killed")
    for command in (("qsub", *ok, "job.sh"), ("qstat",)):
        result = cobalt.run(*command)
        assert (result.returncode, result.stdout) == (1, "")
        first, second = result.stderr.splitlines()
        assert first == 'No handlers could be found for logger "Proxy"'
        assert second.startswith("<Fault 20: '----") and "[Errno 111] Connection refused" in second
        assert len(second) > 2000


# ---- running -------------------------------------------------------------------------------------

REMOTE = pytest.mark.parametrize("remote", [True, False], ids=["R", "L"])


@REMOTE
def test_stand_in_gives_jobs_a_login_environment(start: Start, remote: bool) -> None:
    cobalt = start(run_remote=remote, path=["/opt/site/bin"], login_environment={"SITE": "yes"})
    body = "env -0 >env; pwd >pwd; cat $COBALT_NODEFILE >nodes; cat; ps -o sid= $$ >sid; tty >tty"
    cobalt.script(f"#!/bin/bash\n{body}\n")
    result = cobalt.run(
        "qsub", "-t", "10", "-n", "2", "--env", "MINE=1", "job.sh", MYVAR="x", PYTHONPATH="/p"
    )
    job_id = result.stdout.strip()
    end(cobalt, job_id)
    pairs = (
        entry.split("=", 1) for entry in (cobalt.work / "env").read_text().split("\0") if entry
    )
    environ = dict(pairs)
    expected = {"COBALT_JOBID", "COBALT_NODEFILE", "MINE", "SITE", "HOME", "LOGNAME", "USER"}
    expected |= {"SHELL", "MAIL", "PATH", "PWD", "SHLVL", "_"}
    expected |= (
        {"SSH_CLIENT", "SSH_CONNECTION"}
        if remote
        else {
            *("COBALT_PARTNAME", "COBALT_PARTSIZE", "COBALT_JOBSIZE"),
            *("COBALT_STARTTIME", "COBALT_ENDTIME"),
        }
    )
    assert environ.keys() - {"OLDPWD"} == expected
    assert environ["COBALT_JOBID"] == job_id and environ["MINE"] == "1"
    assert environ["PATH"].endswith(":/opt/site/bin")
    assert environ["HOME"] == str(cobalt.home)
    assert (cobalt.work / "nodes").read_text() == "n1\nn2\n"
    assert (cobalt.work / "pwd").read_text().strip() == str(cobalt.work)
    assert (cobalt.work / "tty").read_text() == "not a tty\n"
    assert int((cobalt.work / "sid").read_text()) != os.getsid(0)


def test_stand_in_shows_states_until_a_job_vanishes(start: Start) -> None:
    cobalt = start(start_delay=3)
    job_id = submit(cobalt, "until [ -e go ]; do sleep 0.02; done; exit 3", "-n", "2")
    shown = cobalt.run("qstat", job_id).stdout
    user = cobalt.jobs()[job_id]["user"]
    header = f"JobID  {'User'.ljust(len(user))}  WallTime  Nodes  State     Location  "
    assert shown.splitlines() == [
        header,
        "=" * len(header),
        f"{job_id.ljust(5)}  {user}  00:10:00  2      starting  n[1-2]    ",
    ]
    wait_until(lambda: field(cobalt, job_id, "State") == "running", "the job to run")
    assert (cobalt.work / "1.output").exists()
    (cobalt.work / "go").touch()
    end(cobalt, job_id)
    gone = cobalt.run("qstat", job_id)
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", "")
    text = (
        "Info: task completed normally with an exit code of 3; initiating job cleanup and removal"
    )
    wait_until(lambda: log(cobalt, job_id).endswith(f"{text}\n"), "the last line of the log")


def test_stand_in_writes_last_line_of_log_late(start: Start) -> None:
    cobalt = start(log_delay=1000)
    job_id = submit(cobalt, "true")
    end(cobalt, job_id)
    lines = log(cobalt, job_id).splitlines()
    at = lines.index(f"Jobid: {job_id}")  # the job may have started before the command writes it
    assert lines[at + 2].endswith(f" (UTC) submitted with cwd set to: {cobalt.work}")
    assert any(" (UTC) Command: '" in line for line in lines)
    assert lines[-3:] == [
        lines[-3].partition(" Info")[0] + " Info: stdin received from /dev/null",
        lines[-2].partition(" Info")[0] + f" Info: stdout sent to {cobalt.work}/{job_id}.output",
        lines[-1].partition(" Info")[0] + f" Info: stderr sent to {cobalt.work}/{job_id}.error",
    ]
    assert f"COBALT_JOBID={job_id}" in lines


@REMOTE
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("#!/bin/bash\nexit 200", 200),
        ("#!/bin/bash\nkill -9 $$", None),
        ("#!/nosuch/interpreter\n", 127),
        ("#!/bin/bash\r\ntrue\r\n", 127),
        ("echo no interpreter", 1),
    ],
)
def test_stand_in_notes_exit_status(
    start: Start, remote: bool, text: str, status: int | None
) -> None:
    """ssh has one status for all that die of a signal."""
    if status is None:
        status = 255 if remote else 137
    cobalt = start(run_remote=remote, log_delay=0)
    cobalt.script(text)
    job_id = cobalt.run("qsub", *ok, "job.sh").stdout.strip()
    end(cobalt, job_id)
    wait_until(lambda: f"exit code of {status};" in log(cobalt, job_id), f"status {status}")


def test_stand_in_reads_script_when_the_job_starts(start: Start) -> None:
    cobalt = start()
    job_id = submit(cobalt, "echo old", "-h")
    assert field(cobalt, job_id, "State") == "user_hold"
    cobalt.script("#!/bin/bash\necho new $0\n")
    assert cobalt.run("qrls", job_id).returncode == 0
    end(cobalt, job_id)
    assert output(cobalt, job_id) == f"new {cobalt.work}/job.sh\n"


def test_stand_in_passes_words_through_a_remote_shell(start: Start) -> None:
    remote, direct = start(run_remote=True), start(run_remote=False)
    words = ("a", "b c", "$HOME", "*.sh")
    for cobalt, expected in (
        (remote, ["a", "b", "c", str(remote.home), "job.sh"]),
        (direct, ["a", "b c", "$HOME", "*.sh"]),
    ):
        cobalt.script('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        job_id = cobalt.run("qsub", *ok, "--cwd", str(cobalt.work), "job.sh", *words).stdout.strip()
        end(cobalt, job_id)
        # The remote shell is in the home folder, where no file matches.
        wanted = [word.replace("job.sh", "*.sh") for word in expected]
        assert output(cobalt, job_id).splitlines() == wanted


@pytest.mark.parametrize(
    ("value", "seen", "said"),
    [
        ("has space", None, "No such file or directory: 'space'"),
        ("a;b", None, ""),
        ("it's", None, "Unterminated quoted string"),
        ("$HOME/x", "{home}/x", ""),
        ('"q"', "q", ""),
        ("k=v", "k=v", ""),
        ("", "", ""),
        ("http://h:80/x", "http://h:80/x", ""),
    ],
)
def test_stand_in_passes_variables_through_a_remote_shell(
    start: Start, value: str, seen: str | None, said: str
) -> None:
    cobalt = start(run_remote=True)
    job_id = submit(cobalt, 'printf "<%s>" "$A"', "--env", f"A={value}")
    end(cobalt, job_id)
    expected = "" if seen is None else f"<{seen.format(home=cobalt.home)}>"
    assert output(cobalt, job_id) == expected
    assert said in (cobalt.work / f"{job_id}.error").read_text()


def test_stand_in_keeps_variables_without_remote_shell(start: Start) -> None:
    cobalt = start(run_remote=False)
    value = 'it\'s a "$HOME";\\'
    job_id = submit(cobalt, 'printf "%s" "$A"', "--env", f"A={value}")
    end(cobalt, job_id)
    assert output(cobalt, job_id) == value


def test_stand_in_unescapes_variables(start: Start) -> None:
    cobalt = start(run_remote=False)
    job_id = submit(cobalt, "echo $A $C $D", "--env", r"A=B:C=x\=1\:y\=2:D=ABC")
    end(cobalt, job_id)
    assert output(cobalt, job_id) == "B x=1:y=2 ABC\n"


def test_stand_in_puts_output_where_told(start: Start) -> None:
    cobalt = start()
    (cobalt.work / "sub").mkdir()
    first = submit(cobalt, "echo out; echo err >&2", "-O", "sub/pre_$jobid")
    end(cobalt, first)
    assert (cobalt.work / f"sub/pre_{first}.output").read_text() == "out\n"
    assert (cobalt.work / f"sub/pre_{first}.error").read_text() == "err\n"
    assert (cobalt.work / f"sub/pre_{first}.cobaltlog").exists()
    (cobalt.work / "only.out").write_text("before\n")
    second = submit(cobalt, "echo out", "-o", "only.out")
    end(cobalt, second)
    assert (cobalt.work / "only.out").read_text() == "before\nout\n"
    assert (cobalt.work / f"{second}.error").exists()
    third = submit(cobalt, "echo lost; touch ran", "-o", "/proc/nosuch")
    end(cobalt, third)
    assert (cobalt.work / "ran").exists()


def test_stand_in_reads_input_file_and_makes_prologue_noise(start: Start) -> None:
    cobalt = start(prologue_noise="prologue speaking\n")
    (cobalt.work / "in").write_text("typed\n")
    job_id = submit(cobalt, "cat", "-i", "in")
    end(cobalt, job_id)
    assert output(cobalt, job_id) == "prologue speaking\ntyped\n"


def test_stand_in_runs_on_the_location_asked_for(start: Start) -> None:
    cobalt = start()
    job_id = submit(cobalt, "cat $COBALT_NODEFILE", "--attrs", "location=n4")
    end(cobalt, job_id)
    assert output(cobalt, job_id) == "n4\n"


def test_stand_in_queues_what_does_not_fit(start: Start) -> None:
    cobalt = start()
    first = submit(cobalt, "until [ -e go ]; do sleep 0.02; done", "-n", "3")
    second = submit(cobalt, "true", "-n", "2", name="second.sh")
    wait_until(lambda: field(cobalt, first, "State") == "running", "the first job to run")
    assert field(cobalt, second, "State") == "queued"
    assert field(cobalt, second, "Location") == "None"
    (cobalt.work / "go").touch()
    end(cobalt, first, second)


def test_stand_in_fails_jobs_whose_prologue_fails(start: Start) -> None:
    """From its source."""
    cobalt = start(prologue_fails=True)
    job_id = submit(cobalt, "touch ran")
    end(cobalt, job_id)
    assert not (cobalt.work / "ran").exists()


# ---- qdel and walltime ---------------------------------------------------------------------------

# Writes to a file of its own: standard output is closed under it.
STUBBORN = """\
trap 'echo TERM >>heard' TERM HUP INT USR1 USR2
echo $$ >pid
while true; do sleep 0.05; echo alive >>beats; done"""


def started(cobalt: CobaltStandIn, name: str = "pid") -> int:
    """Wait until a script has written its process id."""
    path = cobalt.work / name
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the script to start")
    return int(path.read_text())


def test_stand_in_remote_job_never_hears_of_qdel(start: Start) -> None:
    cobalt = start(run_remote=True, epilogue_delay=None)
    job_id = submit(cobalt, STUBBORN)
    pid = started(cobalt)
    result = cobalt.run("qdel", job_id)
    user = result.stdout.splitlines()[-1].split()[-1]
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "      Deleted Jobs",
        f"JobID  {'User'.ljust(len(user))}  ",
        "=" * (9 + len(user)),
        f"{job_id.ljust(5)}  {user}  ",
    ]
    end(cobalt, job_id)
    (cobalt.work / "beats").unlink(missing_ok=True)
    wait_until((cobalt.work / "beats").exists, "the orphan to go on")
    assert is_running(pid) and not (cobalt.work / "heard").exists()
    assert log(cobalt, job_id).endswith(
        f"Info: user delete requested with signal SIGTERM by user {user}\n"
    )
    cobalt.stop()
    assert not is_running(pid)


def test_stand_in_shows_a_deleted_job_for_a_while(start: Start) -> None:
    """Its script runs on until the job is out of the queue, and a little longer."""
    cobalt = start(run_remote=True, linger=1000)
    job_id = submit(cobalt, STUBBORN)
    pid = started(cobalt)
    launcher = cobalt.jobs()[job_id]["pid"]
    cobalt.run("qdel", job_id)
    wait_until(lambda: not is_running(launcher), "the end of the ssh client")
    assert field(cobalt, job_id, "State") == "killing"
    assert is_running(pid)


def test_stand_in_epilogue_kills_what_a_remote_job_left(start: Start) -> None:
    cobalt = start(run_remote=True, epilogue_delay=0.3)
    job_id = submit(cobalt, STUBBORN)
    pid = started(cobalt)
    cobalt.run("qdel", job_id)
    end(cobalt, job_id)
    wait_until(lambda: not is_running(pid), "the epilogue")
    assert not (cobalt.work / "heard").exists()


def test_stand_in_remote_job_notices_when_it_writes(start: Start) -> None:
    cobalt = start(run_remote=True, epilogue_delay=None)
    job_id = submit(cobalt, "echo $$ >pid; until [ -e go ]; do sleep 0.02; done; echo x; echo y")
    pid = started(cobalt)
    cobalt.run("qdel", job_id)
    end(cobalt, job_id)
    (cobalt.work / "go").touch()
    wait_until(lambda: not is_running(pid), "the broken pipe")


@pytest.mark.parametrize("remote", [True, False], ids=["R", "L"])
def test_stand_in_ends_job_at_walltime(start: Start, remote: bool) -> None:
    cobalt = start(run_remote=remote, minute=0.3, epilogue_delay=0.3)
    job_id = submit(cobalt, STUBBORN)
    pid = started(cobalt)
    end(cobalt, job_id)
    wait_until(lambda: not is_running(pid), "the end of the script")
    assert log(cobalt, job_id).endswith(
        "Info: maximum execution time exceeded; initiating job termination\n"
    )
    assert (cobalt.work / "heard").exists() is not remote


def test_stand_in_local_job_gets_term_then_kill(start: Start) -> None:
    cobalt = start(run_remote=False, force_kill_delay=4.0)
    child = (
        "bash -c 'trap \"echo child >>heard\" TERM; echo $$ >child; while :; do sleep 0.05; done' &"
    )
    job_id = submit(cobalt, f"{child}\n{STUBBORN}")
    pid, child_pid = started(cobalt), started(cobalt, "child")
    cobalt.run("qdel", job_id)
    assert field(cobalt, job_id, "State") == "killing"
    assert cobalt.run("qdel", job_id).returncode == 0
    assert "user delete request already pending with signal SIGTERM" in log(cobalt, job_id)
    wait_until(lambda: (cobalt.work / "heard").exists(), "SIGTERM")
    end(cobalt, job_id)
    assert sorted((cobalt.work / "heard").read_text().split()) == ["TERM", "child"]
    wait_until(lambda: not is_running(pid) and not is_running(child_pid), "SIGKILL")


def test_stand_in_local_job_may_end_by_itself_after_term(start: Start) -> None:
    cobalt = start(run_remote=False, force_kill_delay=1000)
    job_id = submit(cobalt, "trap 'exit 42' TERM; echo $$ >pid; while :; do sleep 0.05; done")
    started(cobalt)
    cobalt.run("qdel", job_id)
    end(cobalt, job_id)
    accounting = "".join(path.read_text() for path in (cobalt.state / "var" / "log").iterdir())
    assert f";E;{job_id};Exit_status=42\n" in accounting


def test_stand_in_deletes_waiting_and_starting_jobs(start: Start) -> None:
    cobalt = start(start_delay=3)
    held = submit(cobalt, "touch ran", "-h")
    assert cobalt.run("qdel", held).returncode == 0
    assert held not in cobalt.jobs()
    assert log(cobalt, held).endswith("Info: user delete requested; removing job from the queue\n")
    starting = submit(cobalt, "touch ran")
    assert cobalt.run("qdel", starting).returncode == 0
    assert field(cobalt, starting, "State") == "starting"
    end(cobalt, starting)
    assert not (cobalt.work / "ran").exists()


def test_stand_in_qdel_answers(shelf: CobaltStandIn) -> None:
    for words, status, said in (
        ((), 1, "No Jobid(s) given\n"),
        (("abc",), 1, "jobid must be an integer: abc\n"),
        (("999999",), 0, ""),
    ):
        result = shelf.run("qdel", *words)
        assert (result.returncode, result.stdout, result.stderr) == (status, "", said)


def test_stand_in_loses_a_node(start: Start) -> None:
    cobalt = start(log_delay=0)
    job_id = submit(cobalt, "echo $$ >pid; sleep 1000")
    pid = started(cobalt)
    cobalt.lose_node("n1")
    end(cobalt, job_id)
    assert not is_running(pid)
    wait_until(lambda: "with an exit code of 255;" in log(cobalt, job_id), "the log")
    said = (cobalt.work / f"{job_id}.error").read_text()
    assert "Connection to n1 closed by remote host.\n" in said


# ---- qstat ---------------------------------------------------------------------------------------


def test_stand_in_qstat_answers(shelf: CobaltStandIn) -> None:
    job_id = submit(shelf, "")
    unknown = shelf.run("qstat", "999999")
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (1, "", "")
    both = shelf.run("qstat", "--header", "JobID", job_id, "999999")
    assert both.returncode == 0 and both.stdout.split()[2:] == [job_id]
    garbage = shelf.run("qstat", "abc")
    assert (garbage.returncode, garbage.stderr) == (1, "abc is not a valid jobid or queue name\n")
    full = shelf.run("qstat", "-f", job_id).stdout.splitlines()[0].split()
    assert full == [
        *("JobID", "JobName", "User", "WallTime", "QueuedTime", "RunTime", "TimeRemaining"),
        *("Nodes", "State", "Location", "Mode", "Procs", "Preemptable", "Queue", "StartTime"),
        "Index",
    ]
    assert field(shelf, job_id, "JobID:State:short_state:nosuch").split() == [
        *(job_id, "queued", "Q", "-")
    ]
    by_variable = shelf.run("qstat", job_id, QSTAT_HEADER="State").stdout.split()
    assert by_variable[0] == "State" and by_variable[2:] == ["queued"]
    long = shelf.run("qstat", "-l", job_id).stdout.splitlines()
    assert long[0] == f"JobID: {job_id}"
    assert "    WallTime : 00:10:00" in long and "    Nodes    : 1" in long


def test_stand_in_qstat_columns(shelf: CobaltStandIn) -> None:
    job_id = submit(shelf, "")
    assert field(shelf, job_id, "jobid:STATE").split() == [job_id, "queued"]
    full = shelf.run("qstat", "-f", "--header", "JobID", job_id).stdout
    assert full.split()[:2] == ["JobID", "JobName"]


def test_stand_in_qstat_aligns_ids_on_the_right(start: Start) -> None:
    cobalt = start(queues={"default": {"state": "stopped"}})
    ids = [submit(cobalt, "") for _ in range(10)]
    assert ids[-2:] == ["9", "10"]
    rows = cobalt.run("qstat", "--header", "JobID:State", "9", "10").stdout.splitlines()[2:]
    assert rows == [" 9     queued  ", "10     queued  "]
    assert cobalt.run("qstat", "-l", "9", "10").stdout.startswith("JobID:  9\n")
    assert cobalt.run("qstat", "-l", "9").stdout.startswith("JobID: 9\n")


def test_stand_in_qstat_dies_of_letters_that_are_not_ascii(start: Start) -> None:
    cobalt = start(queues={"default": {"state": "stopped"}})
    good = submit(cobalt, "")
    bad = submit(cobalt, "", "--env", "A=\u00e9")
    assert cobalt.run("qstat", good).returncode == 0
    for command in (("qstat",), ("qstat", "--header", "JobID", bad)):
        result = cobalt.run(*command)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("*** FATAL EXCEPTION: 'ascii' codec")


def test_stand_in_shows_a_job_that_has_ended_for_a_while(start: Start) -> None:
    cobalt = start(linger=1000)
    job_id = submit(cobalt, "exit 0")
    text = "task completed normally with an exit code of 0"
    wait_until(lambda: text in log(cobalt, job_id), "the end of the script")
    assert field(cobalt, job_id, "State") == "running"
    cobalt.run("qdel", job_id)
    assert field(cobalt, job_id, "State") == "running"


def test_stand_in_frames_an_empty_table(start: Start) -> None:
    result = start().run("qstat")
    assert result.returncode == 0
    header, rule = result.stdout.splitlines()
    assert header == "JobID  User  WallTime  Nodes  State  Location  "
    assert rule == "=" * len(header)


# ---- dependencies --------------------------------------------------------------------------------


def test_stand_in_starts_dependents_of_successes_only(start: Start) -> None:
    cobalt = start()
    good = submit(cobalt, "exit 0", "-h", name="good.sh")
    bad = submit(cobalt, "exit 3", "-h", name="bad.sh")
    killed = submit(cobalt, "sleep 1000", "-h", name="killed.sh")
    after_good = submit(cobalt, "touch ran", "--dependencies", good, name="ok.sh")
    after_both = submit(cobalt, "touch both", "--dependencies", f"{good}:{bad}", name="both.sh")
    after_killed = submit(cobalt, "touch killed", "--dependencies", killed, name="after.sh")
    for job_id in (after_good, after_both, after_killed):
        assert field(cobalt, job_id, "State") == "dep_hold"
    cobalt.run("qrls", good, bad)
    end(cobalt, good, bad, after_good)
    assert (cobalt.work / "ran").exists()
    assert field(cobalt, after_both, "Dependencies") == f"{good}*:{bad}"
    cobalt.run("qdel", killed)
    for job_id in (after_both, after_killed):
        wait_until(
            lambda name=job_id: field(cobalt, name, "State") == "dep_fail", "the broken dependency"
        )
    assert cobalt.run("qalter", "--dependencies", "none", after_both).returncode == 0
    end(cobalt, after_both)
    assert (cobalt.work / "both").exists() and not (cobalt.work / "killed").exists()


@pytest.mark.parametrize("text", ["999999", "abc", "1,2", "gone"])
def test_stand_in_holds_for_ever_what_depends_on_nothing(start: Start, text: str) -> None:
    cobalt = start()
    gone = submit(cobalt, "exit 0")
    end(cobalt, gone)
    text = gone if text == "gone" else text
    cobalt.script("#!/bin/bash\n")
    result = cobalt.run("qsub", *ok, "--dependencies", text, "job.sh")
    assert result.returncode == 0
    warning = f"WARNING: dependencies {text} do not match jobs currently in the queue\n"
    assert result.stderr == warning
    other = submit(cobalt, "exit 0", name="other.sh")
    end(cobalt, other)
    assert field(cobalt, result.stdout.strip(), "State") == "dep_hold"


def test_stand_in_warns_twice_of_a_script_with_a_header(shelf: CobaltStandIn) -> None:
    """It reads the command line again, then."""
    shelf.script("#!/bin/bash\n#COBALT -t 10 -n 1\n")
    result = shelf.run("qsub", "--dependencies", "999999", "job.sh")
    assert result.stderr.count("WARNING: dependencies 999999 do not match") == 2


def test_stand_in_of_a_dead_chain_shows_the_first_only(start: Start) -> None:
    cobalt = start()
    first = submit(cobalt, "exit 0", "-h")
    second = submit(cobalt, "exit 0", "--dependencies", first)
    third = submit(cobalt, "exit 0", "--dependencies", second)
    cobalt.run("qdel", first)
    wait_until(lambda: field(cobalt, second, "State") == "dep_fail", "the broken dependency")
    assert field(cobalt, third, "State") == "dep_hold"


def test_stand_in_holds_what_depends_on_none(shelf: CobaltStandIn) -> None:
    shelf.script("#!/bin/bash\n")
    result = shelf.run("qsub", *ok, "--dependencies", "none", "job.sh")
    first, job_id = result.stdout.splitlines()
    assert first == "Removing job dependencies"
    assert field(shelf, job_id, "Dependencies") == "none"
    assert field(shelf, job_id, "State") == "dep_hold"


# ---- interactive, and from inside ----------------------------------------------------------------


def test_stand_in_interactive_job(start: Start) -> None:
    cobalt = start()
    typed = 'echo "IN $COBALT_JOBID $(cat $COBALT_NODEFILE)"; exit 5\n'
    result = cobalt.run("qsub", "-I", "-t", "10", "-n", "2", text=typed)
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        "Wait for job 1 to start...",
        "Opening interactive session to n1",
        "IN 1 n1",
        "n2",
        "Deleting interactive job 1",
    ]
    end(cobalt, "1")


def test_stand_in_job_submits_a_job(start: Start) -> None:
    cobalt = start()
    cobalt.script("#!/bin/bash\ntouch grandchild\n", "next.sh")
    body = "qsub -t 10 -n 1 next.sh >next.id; echo $? >rc; qstat >queue 2>&1; echo $? >asked"
    end(cobalt, submit(cobalt, body))
    assert (cobalt.work / "rc").read_text() == "0\n"
    end(cobalt, (cobalt.work / "next.id").read_text().strip())
    assert (cobalt.work / "grandchild").exists()
    cobalt.config(may_submit_from_nodes=False)
    end(cobalt, submit(cobalt, body))
    assert (cobalt.work / "rc").read_text() == (cobalt.work / "asked").read_text() == "1\n"


def test_stand_in_cqwait(start: Start) -> None:
    cobalt = start()
    job_id = submit(cobalt, "sleep 0.1")
    assert cobalt.run("cqwait", job_id).returncode == 0
    assert job_id not in cobalt.jobs()


# ---- the stand-in itself -------------------------------------------------------------------------


def test_stand_in_remembers_its_jobs_when_its_server_is_gone(start: Start) -> None:
    cobalt = start()
    job_id = submit(cobalt, "true", "-h")
    cobalt.stop()
    assert field(cobalt, job_id, "State") == "user_hold"
    assert submit(cobalt, "true") == str(int(job_id) + 1)


def test_stand_in_dies_with_its_folder(start: Start) -> None:
    cobalt = start(epilogue_delay=None)
    submit(cobalt, f"setsid bash -c 'echo $$ >outside; sleep 1000' &\n{STUBBORN}")
    pids = [started(cobalt), started(cobalt, "outside")]
    pids.append(cobalt.server_pid())
    cobalt.state.rename(cobalt.folder / "moved")
    (cobalt.folder / "moved" / "socket").unlink()
    shutil.rmtree(cobalt.folder / "moved")
    wait_until(lambda: not any(map(is_running, pids)), "the server to end with its folder")


def test_stand_in_dies_with_the_tests_that_started_it(start: Start) -> None:
    cobalt = start(epilogue_delay=None)
    with subprocess.Popen(["sleep", "1000"]) as owner:
        cobalt.config(owner=identity(owner.pid))
        submit(cobalt, STUBBORN)
        pids = [started(cobalt), cobalt.server_pid()]
        owner.kill()
    wait_until(lambda: not any(map(is_running, pids)), "the server to end with its owner")


def test_stand_in_that_broke_down_says_so(start: Start) -> None:
    cobalt = start()
    submit(cobalt, "true", "-h")
    (cobalt.state / "config.json").write_text('{"nosuch": 1}')
    result = cobalt.run("qstat")
    assert result.returncode == 1 and "unknown settings ['nosuch']" in result.stderr
    wait_until(lambda: (cobalt.state / "crash").exists(), "the server to break down")
    cobalt.config()
    with pytest.raises(RuntimeError, match="broke down"):
        cobalt.stop()
    (cobalt.state / "crash").unlink()


@pytest.mark.cluster
def test_stand_in_runs_on_nodes_of_the_cluster(start: Start) -> None:
    cobalt = start(local_nodes=False, login_environment=OPEN_MPI, epilogue_delay=0.5)
    body = "hostname; ip -4 -o address show dev eth0 | awk '{print $4}'\n"
    body += "mpirun -n 4 -npernode 2 -hostfile $COBALT_NODEFILE hostname | sort"
    job_id = submit(cobalt, body, "-n", "2", "--attrs", "location=n3,n4")
    end(cobalt, job_id)
    said = output(cobalt, job_id) + (cobalt.work / f"{job_id}.error").read_text()
    assert said.split() == ["n3", "10.77.0.13/24", "n3", "n3", "n4", "n4"]


@pytest.mark.cluster
@pytest.mark.parametrize(("nodes", "place"), [("1", os.uname().nodename), ("2", "n3")])
def test_stand_in_without_ssh_runs_jobs_of_one_node_on_the_head(
    start: Start, nodes: str, place: str
) -> None:
    cobalt = start(local_nodes=False, run_remote=False)
    job_id = submit(cobalt, "uname -n", "-n", nodes, "--attrs", "location=n3,n4")
    end(cobalt, job_id)
    assert output(cobalt, job_id) == f"{place}\n"


@pytest.mark.cluster
def test_stand_in_epilogue_leaves_nothing_of_mpirun(start: Start) -> None:
    cobalt = start(local_nodes=False, login_environment=OPEN_MPI, epilogue_delay=0.2)
    rank = cobalt.script(
        f"#!/bin/sh\necho $$ >{cobalt.work}/$OMPI_COMM_WORLD_RANK\nexec sleep 1000\n", "rank.sh"
    )
    body = f"mpirun -n 2 -npernode 1 -hostfile $COBALT_NODEFILE {rank}"
    job_id = submit(cobalt, body, "-n", "2")
    pids = [started(cobalt, "0"), started(cobalt, "1")]
    cobalt.run("qdel", job_id)
    wait_until(lambda: not any(map(is_running, pids)), "both ranks to end")
