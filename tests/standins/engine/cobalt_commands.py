"""qsub, qstat, qdel, qhold, qrls, qalter and cqwait of the stand-in of Cobalt."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys
import time
from pathlib import Path

from . import cobalt_options as options
from .client import Client
from .cobalt_facts import DEFAULTS, stamp
from .folder import Message, ServerDown
from .nodes import compress, on_node
from .texts import hours

KIND = "cobalt"
_TRYING = "Following exception occurred while trying to execute queue-manager"


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def _client(program: str) -> Client:
    return Client(program, KIND, DEFAULTS)


# ---- qsub ----------------------------------------------------------------------------------------


def qsub() -> int:
    """Hand in a job."""
    client = _client("qsub")
    try:
        return _qsub(client, sys.argv[1:])
    except options.Refused as refused:
        if refused.usage:
            print(options.usage(), end="")
        _complain(str(refused))
        return refused.status
    except ServerDown:
        _complain(_away(client.config["down"], "system", "Failed to connect to system"))
        return 1


def _away(down: object, component: str, attempt: str) -> str:
    """What a client says where a component is down: `killed`, so that the name server still has
    its address, or stopped. Of `queue-manager` alone, qsub says no more than what it misses."""
    if down == "killed":
        trace = "".join(
            f'  2026-11-28 20:39:22.090616|File "/usr/lib/python2.7/httplib.py", line {line}, in '
            "send\\n  2026-11-28 20:39:22.090616|    self.connect()\\n"
            for line in range(100, 120)
        )
        return (
            'No handlers could be found for logger "Proxy"\n'
            f"<Fault 20: '{'-' * 32} START TRACEBACK {'-' * 30}\\n    Exception  : error: [Errno "
            f"111] Connection refused\\n    Time       : 2026-11-28 20:39:22.090616\\n{'-' * 80}\\n"
            f"{trace}{'-' * 32} END TRACEBACK {'-' * 32}'>"
        )
    if down == "queue-manager" and component == "system":
        return "Proxy.py     :L#422:cn:queue-manager"
    return f"component error: {attempt}: Proxy.py     :L#422:cn:{component}\n"


def _qsub(client: Client, words: list[str]) -> int:
    given, command = options.parse(words)
    typed, looked_up = given, given.looked_up
    interactive = given.interactive or given.mode == "interactive"
    if interactive and command:
        raise options.Refused("An executable may not be specified if using the interactive option.")
    if not interactive and not command:
        raise options.Refused("No executable or script specified", usage=True)
    submit_cwd = os.getcwd()
    if not interactive:
        # Looked up in --cwd of the command line or, where that is silent, of the header.
        script = _script_path(given.cwd or submit_cwd, command[0])
        directives = options.header(script) if os.path.isfile(script) else None
        if directives is not None:
            words = ["--mode", "script", *directives, *words]
            given, _ = options.parse(words)
            looked_up = [*looked_up, *given.looked_up]
            # The command line's own options only where the header did not end option parsing; the
            # script and its arguments are known from before, and so is `-h`.
            given.held = given.held or typed.held
    _require(given)
    minutes = options.minutes(given.time)
    cwd = os.path.normpath(os.path.join(submit_cwd, given.cwd or "."))
    for path in (given.output, given.error, given.prefix, given.debuglog):
        if path is not None and not os.path.isdir(os.path.dirname(os.path.join(cwd, path))):
            raise options.Refused(f"directory {os.path.join(cwd, path)} does not exist")
    if given.input is not None and not os.path.isfile(os.path.join(cwd, given.input)):
        path = os.path.join(cwd, given.input)
        raise options.Refused(f"file {path} not found, or is not a file")
    script, arguments = "", []
    if not interactive:
        script, arguments = _script_path(cwd, command[0]), command[1:]
        if not os.path.isfile(script):
            raise options.Refused(f"command {script} not found, or is not a file")
        if not os.access(script, os.X_OK):
            raise options.Refused(f"command {script} is not executable")
    if given.mode is not None and given.mode not in options.MODES:
        raise options.Refused(
            f"Specifed mode '{given.mode}' not valid, valid modes are\n" + "\n".join(options.MODES)
        )
    job = {
        "command": script or "/bin/sleep",
        "args": arguments or ([str(minutes * 60)] if interactive else []),
        "cwd": cwd,
        "minutes": minutes,
        "nodes": given.nodecount,
        "procs": given.proccount or given.nodecount,
        "queue": given.queue or "default",
        "project": given.project,
        "env": options.variables(given.env) if given.env is not None else {},
        "attrs": options.attributes(given.attrs) if given.attrs is not None else {},
        "output": given.output,
        "error": given.error,
        "prefix": given.prefix,
        "debuglog": given.debuglog,
        "input": os.path.join(cwd, given.input) if given.input else None,
        "umask": int(given.umask, 8) if given.umask else 0o022,
        "name": given.jobname or _name_of_output(given.output or given.prefix),
        "dependencies": given.dependencies.split(":") if given.dependencies else [],
        "looked_up": len(looked_up),
        "held": given.held,
        "mode": "interactive" if interactive else given.mode or "script",
        "preemptable": given.preemptable,
    }
    if interactive:
        return _interactive(client, job)
    return _submit(client, job, " ".join(["qsub", *words]))


def _script_path(cwd: str, name: str) -> str:
    # Blanks are deleted, wherever they are.
    return os.path.normpath(os.path.join(os.getcwd(), cwd, name)).replace(" ", "")


def _name_of_output(path: str | None) -> str | None:
    return re.sub(r"\.output$", "", os.path.basename(path)) if path else None


def _require(given: object) -> None:
    values = {**vars(given)}
    values.pop("mode")
    if not any(value for value in values.values()) and values["nodecount"] is None:
        raise options.Refused("No required options provided", usage=True)
    if values["time"] is None:
        raise options.Refused("'time' not provided")
    if values["nodecount"] is None:
        raise options.Refused("'nodecount' not provided")


def _submit(client: Client, job: Message, shown: str) -> int:
    config = client.config
    if config["filter_message"]:
        _complain(config["filter_message"])
    if config["filter_fails"]:
        raise options.Refused(f"Filter {config['filter_fails']} failed")
    answer = client.ask("submit", job=job)
    if "fault" in answer:
        raise options.Refused(answer["fault"])
    job = answer["job"]
    for warning in answer["warnings"]:
        _complain(warning)
    try:
        with open(job["debuglog"], "a", encoding="utf-8", errors="surrogateescape") as log:
            log.write(f"Jobid: {job['id']}\n{shown}\n")
            log.write(f"{stamp(time.time())} submitted with cwd set to: {job['cwd']}\n")
    except OSError:
        _complain("WARNING: failed to create cobalt log file")
    if job["dependencies"] == ["none"]:
        print("Removing job dependencies")
    message = answer["message"]
    print(f"{job['id']} {message}" if message else job["id"])
    return config["submit_status"]


def _interactive(client: Client, job: Message) -> int:
    """The queue holds a `sleep`; the shell is this command's own, on the first node."""
    import subprocess  # only needed here

    answer = client.ask("submit", job=job)
    if "fault" in answer:
        raise options.Refused(answer["fault"])
    job = answer["job"]
    identity = job["id"]
    print(f"Wait for job {identity} to start...", flush=True)
    try:
        while job["state"] != "running":
            time.sleep(0.1)
            jobs = {other["id"]: other for other in client.ask("list")["jobs"]}
            if identity not in jobs:
                raise options.Refused(f"job {identity} ended before it started")
            job = jobs[identity]
        first = job["location"][0]
        print(f"Opening interactive session to {first}", flush=True)
        nodefile = client.folder.path / "var" / "tmp" / f"cobalt.{identity}"
        account = pwd.getpwuid(os.getuid())
        environ = {
            "HOME": client.config["home"] or str(Path.home()),
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
            "MAIL": f"/var/mail/{account.pw_name}",
            "SHELL": account.pw_shell,
            "PATH": ":".join(["/usr/local/bin:/usr/bin:/bin:/usr/games", *client.config["path"]]),
            "SSH_CLIENT": "10.77.0.1 40022 22",
            "SSH_CONNECTION": "10.77.0.1 40022 10.77.0.11 22",
            "COBALT_JOBID": identity,
            "COBALT_NODEFILE": str(nodefile),
        }
        if sys.stdin.isatty():  # ssh hands it on with a terminal
            environ |= {"TERM": os.environ.get("TERM", "dumb"), "SSH_TTY": os.ttyname(0)}
        shell = on_node(first, client.config["local_nodes"], ["/bin/sh"])
        subprocess.run(shell, env=environ, check=False)
    finally:
        print(f"Deleting interactive job {identity}", flush=True)
        client.ask("delete", ids=[identity])
    return 0


# ---- qstat ---------------------------------------------------------------------------------------

DEFAULT_FIELDS = ("JobID", "User", "WallTime", "Nodes", "State", "Location")
FULL_FIELDS = (
    *("JobID", "JobName", "User", "WallTime", "QueuedTime", "RunTime", "TimeRemaining", "Nodes"),
    *("State", "Location", "Mode", "Procs", "Preemptable", "Queue", "StartTime", "Index"),
)
ALL_FIELDS = (
    *("JobID", "JobName", "User", "WallTime", "QueuedTime", "RunTime", "TimeRemaining", "Nodes"),
    *("State", "Location", "Mode", "Procs", "Preemptable", "Queue", "StartTime", "Index"),
    *("SubmitTime", "Project", "S", "short_state", "Score", "Command", "Args", "Outputdir"),
    *("outputpath", "errorpath", "Envs", "Dependencies", "attrs", "user_list", "Est_Start_Time"),
)
SHORT_STATES = {"queued": "Q", "starting": "R", "running": "R", "exiting": "E", "killing": "K"}


def _fields(job: Message, minute: float) -> dict[str, object]:
    now, started = time.time(), job["started"]
    limit = job["minutes"] * 60
    ran = None if started is None else now - started
    short = SHORT_STATES.get(job["state"], "H")
    wanted = (f"{name}*" if name in job["met"] else name for name in job["dependencies"])
    return {
        "JobID": job["id"],
        "JobName": job["name"],
        "User": job["user"],
        "WallTime": hours(0 if job["unlimited"] else limit),
        "QueuedTime": hours((started or now) - job["submitted"]),
        "RunTime": "N/A" if ran is None else hours(ran),
        "TimeRemaining": "N/A" if ran is None else hours(job["minutes"] * minute - ran),
        "Nodes": job["nodes"],
        "State": job["state"],
        "Location": compress(job["location"]) or "None",
        "Mode": job["mode"],
        "Procs": job["procs"],
        "Preemptable": job["preemptable"],
        "Queue": job["queue"],
        "StartTime": "N/A" if started is None else stamp(started),
        "Index": "None",
        "SubmitTime": stamp(job["submitted"]),
        "Project": job["project"],
        "S": short,
        "short_state": short,
        "Score": "0.0",
        "Command": job["command"],
        "Args": " ".join(job["args"]),
        "Outputdir": job["cwd"],
        "outputpath": job["output"],
        "errorpath": job["error"],
        "Envs": " ".join(f"{name}={value}" for name, value in job["env"].items()),
        "Dependencies": ":".join(wanted),
        "attrs": job["attrs"],
        "user_list": job["user"],
        "Est_Start_Time": "N/A",
    }


def _table(names: tuple[str, ...] | list[str], rows: list[list[str]]) -> str:
    lines = [list(names), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    shown = [
        "".join(f"{cell.ljust(width)}  " for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([shown[0], "=" * len(shown[0]), *shown[1:]]) + "\n"


class _ClientParser(argparse.ArgumentParser):
    """Errors as optparse reports them: the usage, the program's name, status 2."""


def qstat() -> int:
    """Show what is in the queue."""
    parser = _ClientParser(prog="qstat.py", add_help=False, allow_abbrev=False)
    parser.add_argument("-f", "--full", action="store_true")
    parser.add_argument("-l", "--long", action="store_true")
    parser.add_argument("-u", "--user")
    parser.add_argument("--header")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    client = _client("qstat")
    try:
        answer = client.ask("list")
    except ServerDown:
        _complain(_away(client.config["down"], "queue-manager", f"{_TRYING}.get_queues"))
        return 1
    jobs = sorted(answer["jobs"], key=lambda job: int(job["id"]))
    if given.names:
        for name in given.names:
            if not name.isdigit() and name not in answer["queues"]:
                _complain(f"{name} is not a valid jobid or queue name")
                return 1
        jobs = [job for job in jobs if {job["id"], job["queue"]} & {*given.names}]
        if not jobs:
            return 1
    if given.user is not None:
        jobs = [job for job in jobs if job["user"] == given.user]
    names: tuple[str, ...] = FULL_FIELDS if given.full else DEFAULT_FIELDS
    if given.full and given.long:
        names = ALL_FIELDS
    header = given.header or os.environ.get("QSTAT_HEADER") or os.environ.get("CQSTAT_HEADER")
    if header and not given.full:
        names = tuple(header.split(":"))
    width_of_ids = max((len(job["id"]) for job in jobs), default=0)
    rows = []
    for job in jobs:
        fields = {
            name.lower(): str(value)
            for name, value in _fields(job, client.config["minute"]).items()
        }
        fields["jobid"] = job["id"].rjust(width_of_ids)
        if not "".join(fields.values()).isascii():
            # It fetches everything of a job, whatever it is to show.
            _complain(
                "*** FATAL EXCEPTION: 'ascii' codec can't encode character: ordinal not in "
                "range(128) ***"
            )
            return 1
        rows.append([fields.get(name.lower(), "-") for name in names])
    if not given.long:
        print(_table(names, rows), end="")
        return 0
    width = max(len(name) for name in names)
    for job, row in zip(jobs, rows, strict=True):
        print(f"JobID: {job['id'].rjust(width_of_ids)}")
        for name, value in zip(names, row, strict=True):
            if name != "JobID":
                print(f"    {name.ljust(width)} : {value}")
        print()
    return 0


# ---- qdel and the others -------------------------------------------------------------------------


def _job_ids(words: list[str]) -> list[str]:
    """Ids of a command line; the command ends where one is none."""
    if not words:
        _complain("No Jobid(s) given")
        raise SystemExit(1)
    for word in words:
        if not re.fullmatch(r"\d+", word):
            _complain(f"jobid must be an integer: {word}")
            raise SystemExit(1)
    return words


def _change(program: str, operation: str, ids: list[str], **more: object) -> Message:
    client = _client(program)
    attempts = {"qdel": f"{_TRYING}.del_jobs", "qrls": "Failed to connect to queue-manager"}
    try:
        return client.ask(operation, ids=ids, **more)
    except ServerDown:
        attempt = attempts.get(program, f"{_TRYING}.get_queues")
        _complain(_away(client.config["down"], "queue-manager", attempt))
        raise SystemExit(1) from None


def qdel() -> int:
    """End jobs."""
    parser = _ClientParser(prog="qdel.py", add_help=False, allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    names = _job_ids(parser.parse_args().names)
    deleted = _change("qdel", "delete", names)["deleted"]
    if deleted:
        print("      Deleted Jobs")
        print(_table(("JobID", "User"), [[job["id"], job["user"]] for job in deleted]), end="")
    return 0


def _hold_or_release(program: str, operation: str) -> int:
    parser = _ClientParser(prog=f"{program}.py", add_help=False, allow_abbrev=False)
    if program == "qrls":
        parser.add_argument("--dependencies", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    more = {"dependencies": True} if getattr(given, "dependencies", False) else {}
    answer = _change(program, operation, _job_ids(given.names), **more)
    for name in answer["unknown"]:
        _complain(f"   Failed to match any jobs: {name}")
    for name in answer["changed"]:
        print(f"   {'Removed' if program == 'qrls' else 'Placed'} user hold on job: {name}")
    return 0


def qhold() -> int:
    """Keep jobs from starting."""
    return _hold_or_release("qhold", "hold")


def qrls() -> int:
    """Let held jobs start."""
    return _hold_or_release("qrls", "release")


def qalter() -> int:
    """`qalter --dependencies none ID`, and nothing else."""
    parser = _ClientParser(prog="qalter.py", add_help=False, allow_abbrev=False)
    parser.add_argument("--dependencies", required=True, choices=["none"])
    parser.add_argument("names", nargs="*")
    _change("qalter", "undepend", _job_ids(parser.parse_args().names))
    print("Removing job dependencies")
    return 0


def cqwait() -> int:
    """Until the jobs are out of the queue."""
    parser = _ClientParser(prog="cqwait.py", add_help=False, allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    waiting = set(_job_ids(parser.parse_args().names))
    while waiting & {job["id"] for job in _change("cqwait", "list", [])["jobs"]}:
        time.sleep(0.1)
    return 0
