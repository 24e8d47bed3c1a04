"""The stand-in of PBS against what was observed on OpenPBS 23.06. Every row is an observation,
unless it says otherwise."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.qsub_verdicts import REFUSED, TAKEN, headers
from support.standins import OPEN_MPI, PbsStandIn, pbs_options
from support.waiting import is_running, wait_until

pytestmark = pytest.mark.standin

Start = Callable[..., PbsStandIn]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsStandIn]:
    """A server for what happens at submission: its jobs are held."""
    with PbsStandIn(tmp_path_factory.mktemp("pbs") / "shelf", history=True) as stand_in:
        yield stand_in


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that run jobs, and stops them."""
    started: list[PbsStandIn] = []

    def make(**settings: Any) -> PbsStandIn:
        settings = {"history": True, **settings}
        started.append(PbsStandIn(tmp_path / f"pbs{len(started)}", **settings))
        return started[-1]

    yield make
    for stand_in in started:
        stand_in.stop()


def submit(pbs: PbsStandIn, body: str, *options: str, name: str = "job.sh") -> str:
    """Hand in a bash script."""
    pbs.script(f"#!/bin/bash\n{body}\n", name)
    result = pbs.run("qsub", *options, name)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith(".head\n")
    return result.stdout.strip()


def show(pbs: PbsStandIn, job_id: str) -> dict[str, Any]:
    """What qstat says of a job in JSON."""
    result = pbs.run("qstat", "-x", "-f", "-F", "json", job_id)
    assert result.returncode == 0, result
    return json.loads(result.stdout)["Jobs"][job_id]


def show_all(pbs: PbsStandIn) -> dict[str, dict[str, Any]]:
    """The same of all jobs."""
    return json.loads(pbs.run("qstat", "-x", "-f", "-F", "json").stdout)["Jobs"]


def end(pbs: PbsStandIn, job_id: str) -> dict[str, Any]:
    """How a job ended, once it did."""
    return wait_until(
        lambda: (answer := pbs.ask("wait", id=job_id))["ended"] and answer, f"the end of {job_id}"
    )


def started(pbs: PbsStandIn, name: str = "pid") -> int:
    """Wait until a script has written its process id."""
    path = pbs.work / name
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the script to start")
    return int(path.read_text())


IN_WORK = "cd $PBS_O_WORKDIR || exit 99\n"
STUBBORN = (
    IN_WORK
    + """\
trap 'echo heard >>heard' TERM USR1
echo $$ >pid
while true; do sleep 0.05; done"""
)


# ---- directives ----------------------------------------------------------------------------------

READ = {
    "several options a line": ("#PBS -N a -l walltime=60\n", {"Job_Name": "a"}),
    "no interpreter line, leading blanks": ("  #PBS -N a\n", {"Job_Name": "a"}),
    "no blank": ("#PBS-N a\n", {"Job_Name": "a"}),
    "a tab": ("#PBS\t-N a\n", {"Job_Name": "a"}),
    "glued": ("#PBS -Na\n", {"Job_Name": "a"}),
    "nothing": ("#PBS\n#PBS -N a\n", {"Job_Name": "a"}),
    "behind comments, blank lines and a colon": ("# x\n\n:\n#PBS -N a\n", {"Job_Name": "a"}),
    "not behind a command": ("#PBS -N a\ntrue\n#PBS -N b\n", {"Job_Name": "a"}),
    "not behind an assignment": ("X=1\n#PBS -N b\n", {"Job_Name": "job.sh"}),
    "not with two hashes": ("##PBS -N b\n# PBS -N c\n#pbs -N d\n", {"Job_Name": "job.sh"}),
    "not behind a byte order mark": ("\ufeff#PBS -N a\n", {"Job_Name": "job.sh"}),
    "the last name wins": ("#PBS -N a\n#PBS -N b\n", {"Job_Name": "b"}),
    "the first walltime wins": (
        "#PBS -l walltime=60\n#PBS -l walltime=120\n",
        {"Resource_List.walltime": "00:01:00"},
    ),
    "the first of one line as well": (
        "#PBS -l walltime=60,walltime=120\n",
        {"Resource_List.walltime": "00:01:00"},
    ),
    "the first select wins": (
        "#PBS -l select=2:ncpus=1\n#PBS -l select=1:ncpus=2\n",
        {"Resource_List.select": "2:ncpus=1"},
    ),
    "the last -v wins": (
        "#PBS -v A=1\n#PBS -v B=2\n",
        {"Variable_List.A": None, "Variable_List.B": 2},
    ),
    "no expansion": ("#PBS -o $HOME/x\n", {"Output_Path": "head:{work}/$HOME/x"}),
    "a hash is a character": ("#PBS -A a#b\n", {"Account_Name": "a#b"}),
    "nodes are converted": (
        "#PBS -l nodes=2:ppn=2\n",
        {"Resource_List.place": "scatter", "Resource_List.ncpus": 4},
    ),
    "placement without select": ("", {"Resource_List.place": "pack"}),
    "placement with select": ("#PBS -l select=2\n", {"Resource_List.place": "free"}),
    "attributes join": (
        "#PBS -W umask=022\n#PBS -W depend=afterok:9999\n",
        {"depend": "afterok:9999@head"},
    ),
    "walltime without value": ("#PBS -l walltime\n", {"Resource_List.walltime": None}),
    "quotes": (
        "#PBS -A 'my \"q\" $x \\\\'\n",
        {"Account_Name": 'my "q" $x \\\\'},
    ),
    "backslash": (r"#PBS -A a\ b" + "\n", {"Account_Name": "a b"}),
    "more than there is": (
        "#PBS -l select=1:ncpus=1000\n",
        {"job_state": "H"},
    ),
}


def pick(shown: dict[str, Any], name: str) -> Any:
    for key in name.split("."):
        if key not in shown:
            return None
        shown = shown[key]
    return shown


@pytest.mark.parametrize("case", READ)
def test_stand_in_reads_directives(shelf: PbsStandIn, case: str) -> None:
    text, expected = READ[case]
    shelf.script(f"{text}echo\n")
    result = shelf.run("qsub", "-h", "job.sh")
    assert (result.returncode, result.stderr) == (0, "")
    attributes = show(shelf, result.stdout.strip())
    expected = {
        name: value.replace("{work}", str(shelf.work)) if isinstance(value, str) else value
        for name, value in expected.items()
    }
    assert {name: pick(attributes, name) for name in expected} == expected


DIRECTIVES_REFUSED = {
    "unknown option": (
        "#PBS -Z foo",
        1,
        "qsub: invalid option -- 'Z'\nqsub: directive error: -Z foo \n",
    ),
    "no value": (
        "#PBS -l",
        1,
        "qsub: option requires an argument -- 'l'\nqsub: directive error: -l \n",
    ),
    "a word": ("#PBS frob", 1, "qsub: directive error: frob \n"),
    "a comment": ("#PBS -N a5 # c", 1, "qsub: directive error: -N a5 # c \n"),
    "a comment that begins alike": (
        "#PBS_NODEFILE holds the hosts",
        1,
        "qsub: directive error: _NODEFILE holds the hosts \n",
    ),
    "another word": ("#PBSfoo -N zz", 1, "qsub: directive error: foo -N zz \n"),
    "a hash in a name": ("#PBS -N a5b#c", 2, "qsub: illegal -N value\nusage: qsub"),
    "an equals sign": ("#PBS -N=foo", 2, "qsub: illegal -N value\nusage: qsub"),
    "a continued line": ("#PBS -N a \\\n#PBS -A b", 1, "qsub: directive error: "),
    "windows line ends": ("#PBS -N a\r\n", 1, "qsub: script contains cr, lf\n"),
    "an open quote": ("#PBS -A 'a", 1, "qsub: unmatched \n"),
    "no time": (
        "#PBS -l walltime=abc",
        166,
        "qsub: Illegal attribute or resource value Resource_List.walltime\n",
    ),
    "four fields": ("#PBS -l walltime=1:2:3:4", 166, "Resource_List.walltime\n"),
    "negative": ("#PBS -l walltime=-5", 166, "Resource_List.walltime\n"),
    "no count": (
        "#PBS -l select=2:ncpus=x",
        166,
        "qsub: Illegal attribute or resource value select.ncpus\n",
    ),
    "unknown place": ("#PBS -l place=foo", 166, "Resource_List.place\n"),
    "unknown resource": (
        "#PBS -l nosuchres=3",
        187,
        "qsub: Unknown resource Resource_List.nosuchres\n",
    ),
    "GPUs, undefined": ("#PBS -l ngpus=1", 187, "qsub: Unknown resource Resource_List.ngpus\n"),
    "unknown in select": ("#PBS -l select=1:foo=2", 187, "qsub: Unknown resource: foo\n"),
    "GPUs in select": ("#PBS -l select=1:ngpus=2", 187, "qsub: Unknown resource: ngpus\n"),
    "select and ncpus": (
        "#PBS -l select=1 -l ncpus=2",
        5,
        'qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus\n',
    ),
    "select and nodes": (
        "#PBS -l select=1 -l nodes=2",
        6,
        "qsub: Cannot be used with select or place: nodes\n",
    ),
    "unknown queue": ("#PBS -q nosuchq", 170, "qsub: Unknown queue\n"),
    "join": ("#PBS -j x", 2, "qsub: illegal -j value\nusage: qsub"),
    "keep": ("#PBS -k x", 2, "qsub: illegal -k value\nusage: qsub"),
    "mail": ("#PBS -m x", 2, "qsub: illegal -m value\nusage: qsub"),
    "priority": ("#PBS -p x", 2, "qsub: illegal -p value\nusage: qsub"),
    "shell": ("#PBS -S bash", 2, "qsub: illegal -S value\nusage: qsub"),
    "rerun": ("#PBS -r x", 1, "qsub: directive error: -r x \n"),
    "date": ("#PBS -a x", 1, "qsub: directive error: -a x \n"),
    "dependency": ("#PBS -W depend=bogus:0", 2, "qsub: illegal -W value\nusage: qsub"),
    "dependency on a word": ("#PBS -W depend=afterok:abc", 2, "qsub: illegal -W value\n"),
    "attribute": ("#PBS -W foo=bar", 154, "qsub: Error (15002) submitting job\n"),
    "project": ("#PBS -P a.b-c_d+e", 166, "qsub: Illegal attribute or resource value"),
    "long name": (f"#PBS -N {'a' * 231}", 2, "Job name is too long"),
    "empty name": ("#PBS -N ''", 2, "qsub: illegal -N value"),
    "output on a host": ("#PBS -o a:b", 2, "qsub: illegal -o value"),
    "output with an accent": ("#PBS -o é", 2, "qsub: illegal -o value"),
    "output without name": ("#PBS -o ''", 2, "qsub: illegal -o value"),
}


@pytest.mark.parametrize("case", DIRECTIVES_REFUSED)
def test_stand_in_refuses_directive(shelf: PbsStandIn, case: str) -> None:
    line, status, said = DIRECTIVES_REFUSED[case]
    shelf.script(f"#!/bin/bash\n{line}\necho\n")
    before = shelf.jobs().keys()
    result = shelf.run("qsub", "job.sh")
    assert (result.returncode, result.stdout) == (status, ""), result
    assert said in result.stderr
    assert shelf.jobs().keys() == before


def refused(lines: str) -> bool:
    """Whether the stand-in's qsub refuses a header, before it asks its server."""
    given = pbs_options.Options()
    try:
        for line in lines.split("\n"):
            given.directive(line)
        given.check()
        pbs_options.chunks(given.resources, ["ngpus", "naccelerators"])
    except pbs_options.Refused:
        return True
    return False


@pytest.mark.parametrize("lines", headers(REFUSED))
def test_stand_in_refuses_what_the_real_one_refuses(lines: str) -> None:
    assert refused(lines)


# It says so of dependencies; hosts it does not look up; who would write the last?
NOT_IMITATED = (
    *("-W depend=on:2", "-W depend=before:1", "-W depend=runone:1", "-W depend=beforeany:1"),
    *("-o pbhead:/tmp/x", "-o pb1:x", "-l 'walltime=60 ncpus=2'"),
)


@pytest.mark.parametrize("lines", [one for one in headers(TAKEN) if one not in NOT_IMITATED])
def test_stand_in_takes_what_the_real_one_takes(lines: str) -> None:
    assert not refused(lines)


COMMAND_LINES_REFUSED = {
    "script arguments": (("job.sh", "arg"), 2, "usage: qsub"),
    "unknown option": (("--foo", "job.sh"), 2, "usage: qsub"),
    "no script": (("nosuch.sh",), 1, "qsub: script file:: No such file or directory\n"),
    "name from a script": (("my job.sh",), 2, "qsub: illegal -N value"),
    "interactive without terminal": (
        ("-I",),
        1,
        "qsub:\tstandard input and output must be a terminal for\n\tinteractive job submission\n",
    ),
}


@pytest.mark.parametrize("case", COMMAND_LINES_REFUSED)
def test_stand_in_refuses_command_line(shelf: PbsStandIn, case: str) -> None:
    words, status, said = COMMAND_LINES_REFUSED[case]
    shelf.script("#!/bin/bash\n")
    shelf.script("#!/bin/bash\n", "my job.sh")
    result = shelf.run("qsub", *words, text="")
    assert (result.returncode, result.stdout) == (status, "")
    assert said in result.stderr


def test_stand_in_prefers_command_line_option_by_option(shelf: PbsStandIn) -> None:
    text = "#PBS -N a -l select=2:ncpus=1 -l walltime=60 -v A=1\n"
    shelf.script(text)
    words = ("-l", "walltime=200", "-l", "walltime=300", "-v", "B=2", "-N", "b")
    shown = show(shelf, shelf.run("qsub", "-h", *words, "job.sh").stdout.strip())
    assert shown["Job_Name"] == "b"
    assert shown["Resource_List"]["walltime"] == "00:05:00"
    assert shown["Resource_List"]["select"] == "2:ncpus=1"
    assert shown["Variable_List"]["B"] == 2 and "A" not in shown["Variable_List"]
    mixed = shelf.run("qsub", "-h", "-l", "ncpus=3", "job.sh")
    assert mixed.returncode == 5


def test_stand_in_reads_other_prefixes(shelf: PbsStandIn) -> None:
    shelf.script("#PBS -N a\n#QSUB -N b\n")
    for words, expected in ((("-C", "#QSUB"), "b"), (("-C", ""), "job.sh")):
        job_id = shelf.run("qsub", "-h", *words, "job.sh").stdout.strip()
        assert show(shelf, job_id)["Job_Name"] == expected


HOSTILE = ["my name", "it's", 'd"q', "a$b", "a\\b", "a,b", "a:b", "a\tb", "é", "#", "'", "a;b|c&d"]


@pytest.mark.parametrize("value", HOSTILE)
def test_stand_in_reads_back_what_shlex_quotes(shelf: PbsStandIn, value: str) -> None:
    shelf.script(f"#PBS -A {shlex.quote(value)}\n")
    result = shelf.run("qsub", "-h", "job.sh")
    assert show(shelf, result.stdout.strip())["Account_Name"] == value


# How values of -v arrive: given as `Z=value`, as `Z="value"`, as `Z` from the environment, and by
# -V. None where the submission is refused.
VARIABLES = {
    "a b": ("a b", "a b", "a b", "a b"),
    "$HOME=;:&|`é": ("$HOME=;:&|`é",) * 4,
    "": ("", "", "", ""),
    "a,b": (None, "a,b", "a,b", "a,b"),
    "it's": (None, None, None, "it's"),
    'd"q': (None, "dq", None, 'd"q'),
    "a\\b": ("a\\\\b", "a\\\\b", "a\\\\b", "a\\b"),
    "a ": ("a", "a", "a", "a"),
    "a\nb": ("a\nb", "a\nb", "a\nb", "a\nb"),
}


@pytest.mark.parametrize("value", VARIABLES)
def test_stand_in_passes_variables(shelf: PbsStandIn, value: str) -> None:
    shelf.script("#!/bin/bash\n")
    ways = (("-v", f"Z={value}"), ("-v", f'Z="{value}"'), ("-v", "Z"), ("-V",))
    for words, expected in zip(ways, VARIABLES[value], strict=True):
        result = shelf.run("qsub", "-h", *words, "job.sh", Z=value)
        if expected is None:
            assert result.returncode == 1
            assert result.stderr == "qsub: cannot send environment with the job\n"
            continue
        variables = shelf.jobs()[result.stdout.strip()]["variables"]
        assert variables["Z"].rstrip() == expected.rstrip() and len(variables["Z"]) == len(expected)


def test_stand_in_refuses_unknown_variable_name(shelf: PbsStandIn) -> None:
    shelf.script("#!/bin/bash\n")
    assert shelf.run("qsub", "-v", "NOSUCH", "job.sh").returncode == 1
    quoted = shelf.run("qsub", "-h", "-v", r"A=1\,2,B='3,4'", "job.sh").stdout.strip()
    variables = shelf.jobs()[quoted]["variables"]
    assert (variables["A"], variables["B"]) == ("1,2", "3,4")


def test_stand_in_lets_the_environment_win_over_v(shelf: PbsStandIn) -> None:
    shelf.script("#!/bin/bash\n")
    job_id = shelf.run("qsub", "-h", "-V", "-v", "Z=cli", "job.sh", Z="env").stdout.strip()
    assert shelf.jobs()[job_id]["variables"]["Z"] == "env"


# ---- qsub's other ways ---------------------------------------------------------------------------


def test_stand_in_takes_scripts_from_standard_input(shelf: PbsStandIn) -> None:
    for words in ((), ("-",)):
        result = shelf.run("qsub", "-h", *words, text="#PBS -A mine\necho\n")
        shown = show(shelf, result.stdout.strip())
        assert (shown["Job_Name"], shown["Account_Name"]) == ("STDIN", "mine")


def test_stand_in_says_nothing_with_z(shelf: PbsStandIn) -> None:
    shelf.script("#!/bin/bash\n")
    result = shelf.run("qsub", "-h", "-z", "job.sh")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_stand_in_may_refuse_by_site_rules(start: Start) -> None:
    """The rules are real; the texts of the limits are from memory."""
    pbs = start(
        refuse_root=True,
        required=["walltime", "Account_Name", "filesystems"],
        job_resources=["filesystems"],
        queues={"workq": {"max_walltime": 60}, "full": {"max_queued": 0}},
        hook_message="welcome",
    )
    pbs.script("#!/bin/bash\n")
    if os.getuid() == 0:
        result = pbs.run("qsub", "job.sh")
        assert (result.returncode, result.stderr) == (175, "qsub: Bad UID for job execution\n")
    pbs.config(refuse_root=False)
    words = ["-h"]
    for more, said in (
        (["-l", "walltime=60"], "Resource: walltime is required to be set."),
        (["-A", "mine"], "Account_Name is required"),
        (["-l", "filesystems=home:eagle"], "Resource: filesystems is required to be set."),
    ):
        result = pbs.run("qsub", *words, "job.sh")
        assert result.returncode != 0 and said in result.stderr
        words += more
    result = pbs.run("qsub", *words, "job.sh")
    assert (result.returncode, result.stdout, result.stderr) == (0, "0.head\n", "welcome\n")
    assert pbs.run("qsub", *words, "-l", "walltime=61", "job.sh").returncode == 188
    assert pbs.run("qsub", *words, "-q", "full", "job.sh").returncode == 198
    pbs.config(submit_status=1)
    result = pbs.run("qsub", *words, "job.sh")
    assert (result.returncode, result.stdout) == (1, "1.head\n")


def test_stand_in_that_is_down_answers_nothing(start: Start) -> None:
    pbs = start(down=True)
    pbs.script("#!/bin/bash\n")
    for command, status, said in (
        (("qsub", "job.sh"), 162, "qsub: cannot connect to server head (errno=15010)\n"),
        (("qstat",), 255, "qstat: cannot connect to server head (errno=15010)\n"),
        (("qdel", "0"), 162, "Couldn't connect to cluster: head\n"),
    ):
        result = pbs.run(*command)
        assert (result.returncode, result.stdout) == (status, "")
        assert result.stderr.endswith(said)
    result = pbs.run("qstat", "-f", "-F", "json", "0")
    assert result.returncode == 255 and "Jobs" not in json.loads(result.stdout)


@pytest.mark.parametrize(
    ("body", "status"), [("exit 7", 7), ("sleep 1000", 227), ("kill -9 $$", 137)]
)
def test_stand_in_blocks_until_the_end(start: Start, body: str, status: int) -> None:
    pbs = start(history=False)
    pbs.script(f"#!/bin/bash\n{body}\n")
    words = ("-W", "block=true", "-l", f"walltime={1 if 'sleep' in body else 600}")
    result = pbs.run("qsub", *words, "job.sh")
    assert (result.returncode, result.stdout) == (status, "0.head\n")


# ---- running -------------------------------------------------------------------------------------


def test_stand_in_gives_jobs_a_login_environment(start: Start) -> None:
    pbs = start(path=["/opt/site/bin"], login_environment={"SITE": "yes"})
    body = f"""\
echo "$0|$(pwd)|$(tty)|$(umask)|$(ulimit -c)|$(cat)" >{pbs.work}/facts
env -0 >{pbs.work}/env; cat $PBS_NODEFILE >{pbs.work}/nodes; ps -o sid= $$ >{pbs.work}/sid
test -d $TMPDIR && echo yes >{pbs.work}/tmpdir"""
    pbs.script(f"#!/bin/bash\n{body}\n")
    result = pbs.run("qsub", "-v", "MINE=1", "-l", "select=1:ncpus=2", "job.sh", MYVAR="x")
    job_id = result.stdout.strip()
    pbs.script("#!/bin/bash\necho replaced\n")
    assert end(pbs, job_id)["exit_status"] == 0
    script = pbs.state / "mom_priv" / "jobs" / f"{job_id}.SC"
    facts = (pbs.work / "facts").read_text().rstrip("\n").split("|")
    assert facts == [str(script), str(pbs.home), "not a tty", "0077", "0", ""]
    pairs = (entry.split("=", 1) for entry in (pbs.work / "env").read_text().split("\0") if entry)
    environ = dict(pairs)
    fixed = {"ENVIRONMENT", "HOME", "LOGNAME", "USER", "SHELL", "PATH", "TMPDIR", "NCPUS"}
    fixed |= {"OMP_NUM_THREADS", "MINE", "SITE", "PWD", "SHLVL", "_"}
    others = {name for name in environ if not name.startswith("PBS_")}
    # MANPATH is from the profile of a real PBS, where this machine has one.
    assert others - {"OLDPWD", "MANPATH"} == fixed
    assert environ["PBS_JOBID"] == job_id and environ["PBS_ENVIRONMENT"] == "PBS_BATCH"
    assert environ["PBS_O_WORKDIR"] == str(pbs.work) and environ["PBS_JOBNAME"] == "job.sh"
    assert environ["NCPUS"] == environ["OMP_NUM_THREADS"] == "2"
    assert environ["PATH"].startswith("/opt/site/bin:")
    assert (pbs.work / "nodes").read_text() == "n1\n"
    assert int((pbs.work / "sid").read_text()) != os.getsid(0)
    assert (pbs.work / "tmpdir").exists() and not Path(environ["TMPDIR"]).exists()


@pytest.mark.parametrize(
    ("request_", "hosts"),
    [
        ("select=2:ncpus=2:mpiprocs=2", "n1 n1 n1 n1"),
        ("select=2:ncpus=2:mpiprocs=2,place=scatter", "n1 n1 n2 n2"),
        ("select=2:ncpus=2,place=scatter", "n1 n2"),
        ("select=1:ncpus=1+2:ncpus=2:mpiprocs=2,place=scatter", "n1 n2 n2 n3 n3"),
        ("nodes=2:ppn=2", "n1 n1 n2 n2"),
        ("select=1:host=n3", "n3"),
        ("select=2:ngpus=3", "n1 n2"),
    ],
)
def test_stand_in_places_chunks(start: Start, request_: str, hosts: str) -> None:
    pbs = start(node_resources={"ncpus": 8, "ngpus": 4})
    job_id = submit(pbs, f"cat $PBS_NODEFILE >{pbs.work}/nodes", "-l", request_)
    end(pbs, job_id)
    assert (pbs.work / "nodes").read_text().split() == hosts.split()


@pytest.mark.parametrize(
    ("request_", "comment"),
    [
        (
            "ncpus=1000",
            "Can Never Run: Insufficient amount of resource: ncpus (R: 1000 A: 32 T: 32)",
        ),
        ("mem=1tb", "Can Never Run: Insufficient amount of resource: mem (R: 1tb A: 16gb T: 16gb)"),
        ("select=5,place=scatter", "Can Never Run: Not enough total nodes available"),
    ],
)
def test_stand_in_keeps_what_can_never_run(start: Start, request_: str, comment: str) -> None:
    pbs = start()
    shown = show(pbs, submit(pbs, "true", "-l", request_))
    assert (shown["job_state"], shown["comment"]) == ("Q", comment)


def test_stand_in_queues_what_does_not_fit(start: Start) -> None:
    pbs = start()
    body = IN_WORK + "echo $$ >pid; until [ -e go ]; do sleep 0.02; done"
    first = submit(pbs, body, "-l", "select=4:ncpus=8")
    started(pbs)
    second = submit(pbs, "true")
    shown = show(pbs, second)
    assert (shown["job_state"], shown["substate"]) == ("Q", 10)
    text = "Not Running: Insufficient amount of resource: ncpus (R: 1 A: 0 T: 32)"
    assert shown["comment"] == text
    (pbs.work / "go").touch()
    end(pbs, first)
    assert end(pbs, second)["exit_status"] == 0


# name: body, options, Exit_status, substate, what the comment ends with
ENDS = {
    "success": ("exit 0", (), 0, 92, "and finished"),
    "failure": ("exit 3", (), 3, 93, "and failed"),
    "kill -9": ("kill -9 $$", (), 137, 93, "and failed"),
    "segmentation fault": ("kill -SEGV $$", (), 139, 93, "and failed"),
    "no such command": ("/no/such", (), 127, 93, "and failed"),
    "no such shell": ("true", ("-S", "/no/such"), 254, 93, "and failed"),
    "walltime": ("sleep 1000", ("-l", "walltime=1"), -29, 93, "and exceeded resource walltime"),
}


@pytest.mark.parametrize("case", ENDS)
def test_stand_in_shows_how_a_job_ended(start: Start, case: str) -> None:
    body, options, status, substate, comment = ENDS[case]
    pbs = start()
    job_id = submit(pbs, body, *options)
    end(pbs, job_id)
    shown = show(pbs, job_id)
    assert (shown["job_state"], shown["substate"]) == ("F", substate)
    assert shown["Exit_status"] == status
    assert shown["comment"].startswith("Job run at ") and shown["comment"].endswith(comment)


def test_stand_in_runs_commands_without_a_shell(start: Start) -> None:
    pbs = start()
    result = pbs.run("qsub", "--", "/bin/echo", "a  b", "$HOME")
    job_id = result.stdout.strip()
    end(pbs, job_id)
    assert (pbs.work / f"STDIN.o{job_id.partition('.')[0]}").read_text() == "a  b $HOME\n"
    missing = pbs.run("qsub", "--", "/no/such").stdout.strip()
    assert end(pbs, missing)["exit_status"] == 254


def test_stand_in_lets_no_interpreter_be_127(start: Start) -> None:
    pbs = start()
    pbs.script("#!/nosuch/interpreter\n")
    job_id = pbs.run("qsub", "job.sh").stdout.strip()
    assert end(pbs, job_id)["exit_status"] == 127
    assert "not found" in (pbs.work / "job.sh.e0").read_text()


# ---- output --------------------------------------------------------------------------------------

SPEAK = "echo out; echo err >&2; echo out"


def test_stand_in_delivers_output_at_the_end(start: Start) -> None:
    pbs = start()
    body = IN_WORK + SPEAK + "; echo $$ >pid; until [ -e go ]; do sleep 0.02; done"
    job_id = submit(pbs, body)
    started(pbs)
    assert not list(pbs.work.glob("job.sh.*"))
    (pbs.work / "go").touch()
    end(pbs, job_id)
    assert (pbs.work / "job.sh.o0").read_text() == "out\nout\n"
    assert (pbs.work / "job.sh.e0").read_text() == "err\n"
    assert (pbs.work / "job.sh.o0").stat().st_mode & 0o777 == 0o600
    assert show(pbs, job_id)["Stageout_status"] == 1


@pytest.mark.parametrize("keep", ["doe", "oed"])
def test_stand_in_writes_output_live_where_kept_directly(start: Start, keep: str) -> None:
    pbs = start()
    (pbs.work / "od").mkdir()
    body = IN_WORK + SPEAK + "; echo $$ >pid; until [ -e go ]; do sleep 0.02; done"
    words = ("-k", keep, "-j", "oe", "-o", "od/live", "-W", "umask=022")
    job_id = submit(pbs, body, *words)
    started(pbs)
    assert (pbs.work / "od/live").read_text() == "out\nerr\nout\n"
    assert (pbs.work / "od/live").stat().st_mode & 0o777 == 0o644
    (pbs.work / "go").touch()
    end(pbs, job_id)


OUTPUTS = {
    "joined": (("-j", "oe"), {"work/job.sh.o0": "out\nerr\nout\n"}),
    "joined the other way": (("-j", "eo"), {"work/job.sh.e0": "out\nerr\nout\n"}),
    "named": (("-o", "od/x", "-j", "oe"), {"work/od/x": "out\nerr\nout\n"}),
    "a folder": (
        ("-o", "od/", "-e", "od"),
        {"work/od/0.head.OU": "out\nout\n", "work/od/0.head.ER": "err\n"},
    ),
    "kept at home": (
        ("-k", "oe", "-o", "x"),
        {"home/job.sh.o0": "out\nout\n", "home/job.sh.e0": "err\n"},
    ),
    "thrown away": (("-R", "oe"), {}),
    "nowhere": (("-o", "/dev/null", "-e", "/dev/null"), {}),
    "no expansion": (
        ("-o", "$PBS_JOBID.out", "-j", "oe"),
        {"work/$PBS_JOBID.out": "out\nerr\nout\n"},
    ),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_stand_in_puts_output_where_told(start: Start, case: str) -> None:
    words, expected = OUTPUTS[case]
    pbs = start()
    (pbs.work / "od").mkdir()
    end(pbs, submit(pbs, SPEAK, *words))
    folders = (pbs.work, pbs.work / "od", pbs.home)
    files = {
        str(path.relative_to(pbs.folder)): path.read_text()
        for folder in folders
        for path in folder.iterdir()
        if path.is_file() and path.name not in ("job.sh", ".bash_logout")
    }
    assert files == expected


def test_stand_in_cannot_deliver_into_a_missing_folder(start: Start) -> None:
    pbs = start(stageout_retries=1e6)
    job_id = submit(pbs, SPEAK, "-o", "nosuch/x", "-j", "oe")
    wait_until(lambda: show(pbs, job_id)["job_state"] == "E", "the attempts")
    pbs.config(stageout_retries=0)
    end(pbs, job_id)
    shown = show(pbs, job_id)
    assert (shown["Exit_status"], shown["Stageout_status"]) == (0, 0)
    assert (pbs.state / "undelivered" / f"{job_id}.OU").read_text() == "out\nerr\nout\n"


def test_stand_in_says_that_walltime_killed(start: Start) -> None:
    pbs = start()
    job_id = submit(pbs, STUBBORN, "-l", "walltime=3")
    pid = started(pbs)
    assert end(pbs, job_id)["exit_status"] == -29
    assert (pbs.work / "heard").read_text() == "heard\n"
    assert not is_running(pid)
    said = (pbs.work / "job.sh.e0").read_text()
    assert said.startswith("=>> PBS: job killed: walltime 3 exceeded limit 3\n")


def test_stand_in_makes_prologue_noise(start: Start) -> None:
    pbs = start(prologue_noise="prologue speaking\n")
    end(pbs, submit(pbs, "echo out"))
    assert (pbs.work / "job.sh.o0").read_text() == "prologue speaking\nout\n"


# ---- qdel and qsig -------------------------------------------------------------------------------


def test_stand_in_qdel_terminates_the_session_then_kills(start: Start) -> None:
    pbs = start()
    child = (
        "bash -c 'trap \"echo child >>heard\" TERM; echo $$ >child; while :; do sleep 0.05; done' &"
    )
    outside = "setsid bash -c 'echo $$ >outside; exec sleep 1000' &"
    job_id = submit(pbs, f"{IN_WORK}{child}\n{outside}\n{STUBBORN}")
    pid, inner, outer = started(pbs), started(pbs, "child"), started(pbs, "outside")
    result = pbs.run("qdel", job_id)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert show(pbs, job_id)["job_state"] == "R"
    assert end(pbs, job_id)["exit_status"] == 271  # the login shell died from SIGTERM
    assert sorted((pbs.work / "heard").read_text().split()) == ["child", "heard"]
    wait_until(lambda: not is_running(pid) and not is_running(inner), "SIGKILL")
    assert is_running(outer)
    shown = show(pbs, job_id)
    assert shown["substate"] == 91
    assert shown["comment"].endswith(f"and terminated by {shown['Job_Owner']}")
    assert (pbs.work / "job.sh.o0").exists()
    pbs.stop()
    assert not is_running(outer)


def test_stand_in_qdel_ends_a_plain_job_at_once(start: Start) -> None:
    pbs = start(kill_delay=1000)
    job_id = submit(pbs, IN_WORK + "echo $$ >pid; sleep 1000")
    started(pbs)
    pbs.run("qdel", job_id)
    assert end(pbs, job_id)["exit_status"] == 271


def test_stand_in_qdel_by_force(start: Start) -> None:
    pbs = start(kill_delay=1000)
    job_id = submit(pbs, STUBBORN)
    started(pbs)
    assert pbs.run("qdel", "-W", "force", job_id).returncode == 0
    assert end(pbs, job_id)["exit_status"] == 265
    assert not (pbs.work / "heard").exists()


def test_stand_in_qdel_of_waiting_jobs_leaves_no_status(start: Start) -> None:
    pbs = start()
    job_id = submit(pbs, "true", "-h")
    assert pbs.run("qdel", job_id).returncode == 0
    shown = show(pbs, job_id)
    assert (shown["job_state"], shown["substate"]) == ("F", 91)
    assert "Exit_status" not in shown
    assert not list(pbs.work.glob("job.sh.*"))


def test_stand_in_qdel_answers(start: Start) -> None:
    pbs = start()
    job_id = submit(pbs, "true")
    end(pbs, job_id)
    for word, status, said in (
        (job_id, 35, f"qdel: Job has finished {job_id}\n"),
        ("99999", 153, "qdel: Unknown Job Id 99999.head\n"),
        ("garbage", 1, "garbage"),
        ("99999 garbage", 153, "illegally formed job identifier: garbage\nqdel: Unknown Job Id"),
        ("garbage 99999", 153, "illegally formed job identifier: garbage\nqdel: Unknown Job Id"),
    ):
        result = pbs.run("qdel", *word.split())
        assert result.returncode == status and said in result.stderr
    assert pbs.run("qdel", "-x", job_id).returncode == 0
    assert pbs.run("qstat", "-x", job_id).returncode == 153


def test_stand_in_qsig_kills_the_login_shell_and_so_the_job(start: Start) -> None:
    pbs = start()
    for options in ((), ("-S", "/bin/bash")):
        job_id = submit(pbs, STUBBORN, *options)
        pid = started(pbs)
        assert pbs.run("qsig", "-s", "USR1", job_id).returncode == 0
        assert end(pbs, job_id)["exit_status"] == 256 + signal.SIGUSR1
        wait_until(lambda process=pid: not is_running(process), "the rest to be killed")
        (pbs.work / "pid").unlink()


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "10"])
def test_stand_in_qsig_reaches_a_job_without_login_shell(start: Start, name: str) -> None:
    pbs = start()
    script = pbs.script(f"#!/bin/bash\n{STUBBORN.replace('$PBS_O_WORKDIR', str(pbs.work))}\n")
    job_id = pbs.run("qsub", "--", "/bin/bash", str(script)).stdout.strip()
    pid = started(pbs)
    assert pbs.run("qsig", "-s", name, job_id).returncode == 0
    wait_until((pbs.work / "heard").exists, "the trap")
    assert is_running(pid) and show(pbs, job_id)["job_state"] == "R"
    pbs.config(kill_delay=0.2)
    pbs.run("qdel", job_id)
    assert end(pbs, job_id)["exit_status"] == 265


def test_stand_in_qsig_answers(start: Start) -> None:
    pbs = start()
    held = submit(pbs, "true", "-h")
    assert pbs.run("qsig", "-s", "suspend", held).returncode == 159
    assert pbs.run("qsig", "-s", "USR1", held).returncode == 168
    assert pbs.run("qsig", "-s", "USR1", "99").returncode == 153


def test_stand_in_kills_what_a_script_leaves_in_its_session(start: Start) -> None:
    pbs = start()
    body = IN_WORK + (
        "sleep 1000 & echo $! >pid\n"
        "setsid sh -c 'echo $$ >outside; exec sleep 1000' &\n"
        "until [ -s outside ]; do sleep 0.1; done\n"
    )
    job_id = submit(pbs, body)
    pid, outside = started(pbs), started(pbs, "outside")
    assert end(pbs, job_id)["exit_status"] == 0
    wait_until(lambda: not is_running(pid), "the background process")
    assert is_running(outside)


def test_stand_in_holds_and_releases(start: Start) -> None:
    pbs = start()
    job_id = submit(pbs, "true", "-h")
    shown = show(pbs, job_id)
    assert (shown["job_state"], shown["substate"], shown["Hold_Types"]) == ("H", 20, "u")
    assert pbs.run("qrls", job_id).returncode == 0
    assert end(pbs, job_id)["exit_status"] == 0
    assert pbs.run("qhold", job_id).returncode == 35
    running = submit(pbs, "sleep 1000")
    wait_until(lambda: show(pbs, running)["job_state"] == "R", "the job")
    assert pbs.run("qhold", running).returncode == 0
    assert (show(pbs, running)["job_state"], show(pbs, running)["Hold_Types"]) == ("R", "u")


def test_stand_in_waits_for_a_time(start: Start) -> None:
    pbs = start()
    shown = show(pbs, submit(pbs, "true", "-a", "203701012330"))
    assert (shown["job_state"], shown["substate"]) == ("W", 30)
    assert shown["Execution_Time"] == "Thu Jan  1 23:30:00 2037"
    assert end(pbs, submit(pbs, "true", "-a", "202001012330"))["exit_status"] == 0


def test_stand_in_counts_threads_for_cores(start: Start) -> None:
    pbs = start()
    body = IN_WORK + 'echo "$NCPUS $OMP_NUM_THREADS" >threads'
    end(pbs, submit(pbs, body, "-l", "select=1:ncpus=8:ompthreads=2"))
    assert (pbs.work / "threads").read_text() == "2 2\n"


def test_stand_in_comes_before_the_real_one(start: Start) -> None:
    """On a machine with a real PBS the login's profile finds its commands."""
    pbs = start()
    other = pbs.folder / "other"
    other.mkdir()
    (other / "qstat").write_text("#!/bin/sh\nexit 99\n")
    (other / "qstat").chmod(0o755)
    (pbs.home / ".profile").write_text(f'PATH="{other}:$PATH"\n')
    end(pbs, submit(pbs, IN_WORK + "command -v qstat >which"))
    assert (pbs.work / "which").read_text() == f"{pbs.bin}/qstat\n"


# ---- qstat ---------------------------------------------------------------------------------------


def test_stand_in_qstat_with_history(start: Start) -> None:
    pbs = start()
    ended, other = submit(pbs, "exit 3", "-N", "a"), submit(pbs, "true", "-h")
    end(pbs, ended)
    plain = pbs.run("qstat", ended)
    assert (plain.returncode, plain.stdout) == (35, "")
    assert plain.stderr == (
        f"qstat: {ended} Job has finished, use -x or -H to obtain historical job information\n"
    )
    table = pbs.run("qstat", "-x", ended).stdout.splitlines()
    assert table[0] == "Job id            Name             User              Time Use S Queue"
    assert table[2].split()[:2] == [ended, "a"] and table[2].split()[-2:] == ["F", "workq"]
    mixed = pbs.run("qstat", "nosuch", other)
    assert mixed.returncode == 170 and other in mixed.stdout
    assert mixed.stderr == "qstat: Unknown queue destination nosuch\n"
    unknown = pbs.run("qstat", "-f", "-F", "json", "99")
    assert unknown.returncode == 153 and "Jobs" not in json.loads(unknown.stdout)
    assert unknown.stderr == "qstat: Unknown Job Id 99.head\n"


def test_stand_in_qstat_without_history(start: Start) -> None:
    pbs = start(history=False)
    job_id = submit(pbs, "exit 3")
    end(pbs, job_id)
    gone = pbs.run("qstat", job_id)
    assert (gone.returncode, gone.stderr) == (153, f"qstat: Unknown Job Id {job_id}\n")
    asked = pbs.run("qstat", "-x", job_id)
    assert (asked.returncode, asked.stdout) == (0, "")
    assert asked.stderr == f"qstat: PBS is not configured to maintain job history {job_id}\n"
    running = submit(pbs, "sleep 1000")
    for words in ([running], []):
        refused = pbs.run("qstat", "-x", *words)
        assert (refused.returncode, refused.stdout) == (0, "")
        assert "not configured" in refused.stderr
    # As commercial versions are said to do.
    pbs.config(history_off_refuses="finished")
    assert running in pbs.run("qstat", "-x", running).stdout


def test_stand_in_json_shows_the_first_of_several_jobs_only(shelf: PbsStandIn) -> None:
    jobs = [submit(shelf, "true", "-h") for _ in range(2)]
    shown = shelf.run("qstat", "-x", "-f", "-F", "json", *jobs)
    document = json.loads(shown.stdout)
    assert list(document["Jobs"]) == jobs[:1]
    assert document["pbs_server"] == "head"
    everything = json.loads(shelf.run("qstat", "-x", "-f", "-F", "json").stdout)
    assert {*jobs} <= everything["Jobs"].keys()
    separated = shelf.run("qstat", "-f", "-F", "dsv", *jobs).stdout.splitlines()
    assert [line.split("|")[0] for line in separated] == [f"Job Id: {name}" for name in jobs]
    assert all(name in shelf.run("qstat", *jobs).stdout for name in jobs)


def test_stand_in_json_loses_types(shelf: PbsStandIn) -> None:
    words = ("-v", "A=007,B=1e5,C=true,D=x", "-N", "007", "-A", "1e5")
    shown = show(shelf, submit(shelf, "true", "-h", *words))
    variables = shown["Variable_List"]
    assert [variables[name] for name in "ABCD"] == [7, 100000, True, "x"]
    assert (shown["Job_Name"], shown["Account_Name"]) == ("007", "1e5")


def test_stand_in_wraps_long_lines(shelf: PbsStandIn) -> None:
    value = "x" * 200
    job_id = submit(shelf, "true", "-h", "-v", f"LONG={value},MORE=1")
    wrapped = shelf.run("qstat", "-f", job_id).stdout
    assert max(map(len, wrapped.splitlines())) < 80
    assert wrapped.startswith(f"Job Id: {job_id}\n    Job_Name = job.sh\n")
    joined = wrapped.replace("\n\t", "")
    assert f"LONG={value},MORE=1" in joined
    assert f"LONG={value},MORE=1" in shelf.run("qstat", "-f", "-w", job_id).stdout


# ---- dependencies --------------------------------------------------------------------------------

KINDS = ("afterok", "afternotok", "afterany", "after")
# How the parent ends; what becomes of its dependents, in the order of KINDS.
DEPENDENTS = {
    "exit 0": ("runs", "dropped", "runs", "runs"),
    "exit 3": ("dropped", "runs", "runs", "runs"),
    "kill -9 $$": ("dropped", "runs", "runs", "runs"),
    "walltime": ("dropped", "runs", "runs", "runs"),
    "qdel": ("dropped", "runs", "runs", "runs"),
    "qdel while held": ("waits", "waits", "waits", "waits"),
}


@pytest.mark.parametrize("how", DEPENDENTS)
def test_stand_in_dependents(start: Start, how: str) -> None:
    pbs = start()
    body = "sleep 1000" if how in ("walltime", "qdel", "qdel while held") else how
    parent = submit(pbs, body, "-h", "-l", f"walltime={1 if how == 'walltime' else 600}")
    children = [submit(pbs, "true", "-W", f"depend={kind}:{parent}") for kind in KINDS]
    waiting = show_all(pbs)
    for child in children:
        shown = waiting[child]
        assert (shown["job_state"], shown["substate"], shown["Hold_Types"]) == ("H", 22, "s")
    if how == "qdel while held":
        pbs.run("qdel", parent)
    else:
        pbs.run("qrls", parent)
        if how == "qdel":
            wait_until(lambda: pbs.jobs()[parent]["session"], "the parent to run")
            pbs.run("qdel", parent)
        end(pbs, parent)
    for child, expected in zip(children, DEPENDENTS[how], strict=True):
        if expected != "waits":
            end(pbs, child)
    after = show_all(pbs)
    for child, expected in zip(children, DEPENDENTS[how], strict=True):
        shown = after[child]
        if expected == "waits":
            assert shown["job_state"] == "H"
        elif expected == "runs":
            assert shown["Exit_status"] == 0
        else:
            assert (shown["substate"], shown["Hold_Types"]) == (92, "s")
            assert "Exit_status" not in shown and "comment" not in shown


def test_stand_in_drops_whole_chains(start: Start) -> None:
    pbs = start()
    first = submit(pbs, "exit 3", "-h")
    second = submit(pbs, "true", "-W", f"depend=afterok:{first}")
    third = submit(pbs, "true", "-W", f"depend=afterany:{second}")
    pbs.run("qrls", first)
    end(pbs, third)
    assert "Exit_status" not in show(pbs, third)


def test_stand_in_wants_all_dependencies_met(start: Start) -> None:
    pbs = start()
    good, bad = submit(pbs, "exit 0"), submit(pbs, "exit 3", "-h")
    short = good.partition(".")[0]
    both = submit(pbs, "true", "-W", f"depend=afterok:{short},afternotok:{bad}")
    end(pbs, good)
    assert show(pbs, both)["job_state"] == "H"
    pbs.run("qrls", bad)
    assert end(pbs, both)["exit_status"] == 0


@pytest.mark.parametrize("history", [True, False])
def test_stand_in_depends_on_jobs_that_are_over(start: Start, history: bool) -> None:
    pbs = start(history=history)
    good = submit(pbs, "exit 0")
    deleted = submit(pbs, "true", "-h")
    end(pbs, good)
    pbs.run("qdel", deleted)
    rows = {f"afterok:{good}": history, f"afterany:{good}": history, "afterany:9999": False}
    rows |= {f"afternotok:{good}": False, f"afterok:{deleted}": history}
    for text, runs in rows.items():
        ended = end(pbs, submit(pbs, "true", "-W", f"depend={text}"))
        assert (ended["exit_status"] == 0) is runs, text


def test_stand_in_job_submits_its_successor(start: Start) -> None:
    pbs = start()
    body = f"""{IN_WORK}echo "$N" >>generations
[ "$N" -lt 3 ] || exit 0
qsub -v N=$((N + 1)) -W depend=afterany:$PBS_JOBID job.sh >>ids; echo $? >>rcs"""
    submit(pbs, body, "-v", "N=1")
    for number in range(3):
        wait_until(lambda name=f"{number}.head": name in pbs.jobs(), "the next job")
        end(pbs, f"{number}.head")
    assert (pbs.work / "generations").read_text().split() == ["1", "2", "3"]
    assert (pbs.work / "ids").read_text().split() == ["1.head", "2.head"]
    pbs.config(may_submit_from_nodes=False)
    end(pbs, submit(pbs, body, "-v", "N=1"))
    assert (pbs.work / "rcs").read_text().split() == ["0", "0", "175"]


# ---- arrays --------------------------------------------------------------------------------------


def subjobs(pbs: PbsStandIn, *names: str) -> dict[str, str]:
    """The states of all that `qstat -t` shows."""
    text = pbs.run("qstat", "-t", "-f", "-w", *names).stdout
    states: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("Job Id: "):
            name = line.removeprefix("Job Id: ")
        elif line.startswith("    job_state = "):
            states[name] = line.removeprefix("    job_state = ")
    return states


def test_stand_in_runs_an_array(start: Start) -> None:
    pbs = start(history=False)
    body = IN_WORK + (
        'echo "$PBS_JOBID $PBS_ARRAY_INDEX $PBS_ARRAY_ID"\n'
        "touch at-$PBS_ARRAY_INDEX; until [ -e go-$PBS_ARRAY_INDEX ]; do sleep 0.02; done"
    )
    parent = submit(pbs, body, "-J", "1-4%2", "-N", "arr", "-j", "oe", "-o", "out.^array_index^")
    assert parent == "0[].head"
    wait_until(lambda: (pbs.work / "at-1").exists() and (pbs.work / "at-2").exists(), "two")
    assert subjobs(pbs) == {
        "0[].head": "B", "0[1].head": "R", "0[2].head": "R", "0[3].head": "Q", "0[4].head": "Q",
    }  # fmt: skip
    (table,) = pbs.run("qstat").stdout.splitlines()[2:]
    assert table.split()[0] == "0[].head"
    shown = pbs.run("qstat", "-f", "0[].head").stdout
    assert "array_state_count = Queued:2 Running:2 Exiting:0 Expired:0\n" in shown
    assert "array_indices_remaining = 3,4\n" in shown
    assert "Exit_status" not in shown
    alone = pbs.run("qstat", "-f", "0[4].head").stdout  # not started: the parent's attributes
    assert "job_state = Q\n" in alone and "Exit_status" not in alone
    several = pbs.run("qstat", "0[3-4].head").stdout.splitlines()[2:]
    assert [line.split()[0] for line in several] == ["0[3].head", "0[4].head"]
    assert [line.split()[0] for line in pbs.run("qstat", "-J").stdout.splitlines()[2:]] == [parent]

    (pbs.work / "go-1").touch()
    wait_until(lambda: (pbs.work / "at-3").exists(), "the third")
    assert subjobs(pbs, "0[].head")["0[1].head"] == "X"
    for index in range(2, 5):
        (pbs.work / f"go-{index}").touch()
    end(pbs, parent)

    assert pbs.run("qstat", "-t", parent).returncode == 153
    assert [(pbs.work / f"out.{index}").read_text() for index in range(1, 5)] == [
        f"0[{index}].head {index} 0[].head\n" for index in range(1, 5)
    ]


def test_stand_in_counts_in_steps_and_names_outputs(start: Start) -> None:
    pbs = start()
    body = IN_WORK + "echo $PBS_ARRAY_INDEX; [ $PBS_ARRAY_INDEX != 3 ]"
    parent = submit(pbs, f"#PBS -J 0-6:3\n{body}", "-N", "arr")
    end(pbs, parent)
    assert sorted(path.name for path in pbs.work.glob("arr.o*")) == [
        "arr.o0.0", "arr.o0.3", "arr.o0.6",
    ]  # fmt: skip
    assert (pbs.work / "arr.o0.6").read_text() == "6\n"
    shown = show(pbs, parent)
    # Its status is 1 where a subjob has failed, whatever that one's was.
    assert (shown["job_state"], shown["substate"], shown["Exit_status"]) == ("F", 93, 1)
    assert shown["comment"].startswith("Job Array Began at ")
    assert shown["comment"].endswith(" and failed")
    assert end(pbs, submit(pbs, "true", "-W", f"depend=afterany:{parent}"))["exit_status"] == 0


@pytest.mark.parametrize("words", [["1-1"], ["5-3"], ["1"], ["a-b"], ["1-4:0"]])
def test_stand_in_refuses_arrays(shelf: PbsStandIn, words: list[str]) -> None:
    shelf.script("#!/bin/bash\ntrue\n")
    result = shelf.run("qsub", "-h", "-J", *words, "job.sh")
    assert result.returncode == 2
    assert result.stderr.startswith("qsub: illegal -J value\n")
    large = shelf.run("qsub", "-h", "-J", "0-10000", "job.sh")
    assert (large.returncode, large.stderr) == (
        3,
        "qsub: Array job exceeds server or queue size limit\n",
    )


def test_stand_in_deletes_an_array_or_a_part_of_it(start: Start) -> None:
    pbs = start()
    body = IN_WORK + "touch at-$PBS_ARRAY_INDEX; sleep 1000"
    parent = submit(pbs, body, "-J", "0-2%1")
    wait_until((pbs.work / "at-0").exists, "the first")
    assert pbs.run("qdel", "0[0].head", "0[1].head").returncode == 0
    wait_until((pbs.work / "at-2").exists, "the third")
    assert not (pbs.work / "at-1").exists()
    assert pbs.run("qdel", parent).returncode == 0
    end(pbs, parent)
    shown = show(pbs, parent)
    assert (shown["job_state"], shown["substate"]) == ("F", 91)
    held = submit(pbs, body, "-J", "0-2", "-h")
    assert show(pbs, held)["job_state"] == "H"
    pbs.run("qdel", held)
    assert "Exit_status" not in show(pbs, held)


# ---- rerun and lost nodes ------------------------------------------------------------------------

COUNT = IN_WORK + "echo $(head -1 $PBS_NODEFILE) >>runs\n"


def test_stand_in_reruns_for_operators_only(start: Start) -> None:
    pbs = start(kill_delay=0.2)
    body = COUNT + "[ $(wc -l <runs) -eq 1 ] || exit 5\n" + STUBBORN
    job_id = submit(pbs, body)
    started(pbs)
    refused = pbs.run("qrerun", job_id)
    assert (refused.returncode, refused.stderr) == (
        159,
        f"qrerun: Unauthorized Request  {job_id}\n",
    )
    pbs.rerun(job_id)
    assert end(pbs, job_id)["exit_status"] == 5
    assert show(pbs, job_id)["run_count"] == 2


def test_stand_in_requeues_jobs_of_a_lost_node(start: Start) -> None:
    pbs = start()
    body = COUNT + "[ $(wc -l <runs) -eq 1 ] || exit 0\n" + STUBBORN
    job_id = submit(pbs, body)
    started(pbs)
    pbs.lose_node("n1")
    assert end(pbs, job_id)["exit_status"] == 0
    assert (pbs.work / "runs").read_text().split() == ["n1", "n2"]
    assert show(pbs, job_id)["run_count"] == 2


def test_stand_in_fails_unrerunnable_jobs_of_a_lost_node(start: Start) -> None:
    pbs = start()
    job_id = submit(pbs, STUBBORN, "-r", "n")
    started(pbs)
    pbs.lose_node("n1")
    assert end(pbs, job_id)["exit_status"] == -20
    pbs.restore_node("n1")


# ---- interactive ---------------------------------------------------------------------------------


def test_stand_in_interactive_job(start: Start) -> None:
    pbs = start()
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [pbs.bin / "qsub", "-I", "-l", "walltime=600"],
        env=pbs.environ(),
        cwd=pbs.work,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(master, 4096)

    try:
        read_until(b"qsub: job 0.head ready")
        os.write(master, b"echo in-$PBS_ENVIRONMENT-$PBS_JOBNAME; exit 3\n")
        read_until(b"qsub: job 0.head completed")
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    text = shown.decode().replace("\r", "")
    assert text.startswith("qsub: waiting for job 0.head to start\nqsub: job 0.head ready\n\n")
    assert "in-PBS_INTERACTIVE-STDIN" in text
    end(pbs, "0.head")
    assert show(pbs, "0.head")["Exit_status"] == 0


# ---- the stand-in itself -------------------------------------------------------------------------


def test_stand_in_remembers_its_jobs_when_its_server_is_gone(start: Start) -> None:
    pbs = start()
    ended, held = submit(pbs, "exit 3"), submit(pbs, "true", "-h")
    end(pbs, ended)
    pbs.stop()
    assert show(pbs, ended)["Exit_status"] == 3
    assert pbs.run("qstat", held).returncode == 0


@pytest.mark.cluster
def test_stand_in_runs_on_nodes_of_the_cluster(start: Start) -> None:
    pbs = start(local_nodes=False, login_environment=OPEN_MPI)
    body = "hostname; ip -4 -o address show dev eth0 | awk '{print $4}'\n"
    body += "mpirun -n 4 -hostfile $PBS_NODEFILE hostname | sort"
    words = ("-j", "oe", "-l", "select=2:ncpus=2:mpiprocs=2,place=scatter")
    job_id = submit(pbs, body, *words)
    assert end(pbs, job_id)["exit_status"] == 0
    said = (pbs.work / "job.sh.o0").read_text().split()
    assert said == ["n1", "10.77.0.11/24", "n1", "n1", "n2", "n2"]


@pytest.mark.cluster
def test_stand_in_qdel_leaves_nothing_of_mpirun(start: Start) -> None:
    pbs = start(local_nodes=False, login_environment=OPEN_MPI, kill_delay=1.0)
    rank = pbs.script(
        f"#!/bin/sh\necho $$ >{pbs.work}/$OMPI_COMM_WORLD_RANK\nexec sleep 1000\n", "rank.sh"
    )
    words = ("-l", "select=2:ncpus=1,place=scatter")
    job_id = submit(pbs, f"mpirun -n 2 -hostfile $PBS_NODEFILE {rank}", *words)
    pids = [started(pbs, "0"), started(pbs, "1")]
    pbs.run("qdel", job_id)
    end(pbs, job_id)
    wait_until(lambda: not any(map(is_running, pids)), "both ranks to end")
