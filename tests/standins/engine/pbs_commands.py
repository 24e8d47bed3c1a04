"""qsub, qstat, qdel, qsig, qhold, qrls and qrerun of the stand-in of OpenPBS."""

from __future__ import annotations

import contextlib
import fcntl
import getopt
import json
import os
import pty
import re
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from . import pbs_options as options
from .client import Client
from .folder import Message, ServerDown
from .nodes import signal_number
from .pbs_facts import DEFAULTS, HOST, exec_host, exec_vnode, walltime_text

KIND = "pbs"
VERSION = "23.06.06"

Job = dict[str, Any]


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


def _client(program: str) -> Client:
    return Client(program, KIND, DEFAULTS)


# ---- qsub ----------------------------------------------------------------------------------------


def qsub() -> int:
    """Hand in a job."""
    client = _client("qsub")
    try:
        return _qsub(client)
    except options.Refused as refused:
        _complain(str(refused))
        if refused.usage:
            _complain(options.USAGE.rstrip("\n"))
        return refused.status
    except ServerDown as down:
        _complain(str(down))
        _complain(f"qsub: cannot connect to server {HOST} (errno=15010)")
        return 162


def _qsub(client: Client) -> int:
    given = options.Options()
    words = sys.argv[1:]
    rest = given.command_line(words)
    if rest == ["--version"]:
        print(f"pbs_version = {VERSION}")
        return 0
    command: list[str] = []
    if "--" in words and words[len(words) - len(rest) - 1] == "--":
        command, rest = rest, []
        if not command:
            raise options.Refused("qsub: no command given", 2, usage=True)
    if len(rest) > 1:
        raise options.Refused("qsub: too many arguments: a script takes none", 2, usage=True)
    text, name = None, "STDIN"
    if not command:
        text, name = _script(rest, interactive="-I" in given.flags)
        for directive in options.directives(text, given.marker):
            given.directive(directive)
    interactive = "-I" in given.flags
    if interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise options.Refused(
            "qsub:\tstandard input and output must be a terminal for\n\tinteractive job submission",
            1,
        )
    given.check()
    if interactive and given.array is not None:
        raise options.Refused("qsub: -I and -J cannot be used together", 2, usage=True)
    job = _job(client, given, name, text, command, interactive)
    answer = client.ask("submit", job=job)
    if "error" in answer:
        raise options.Refused(answer["error"], answer["status"])
    if answer["message"]:
        _complain(answer["message"])
    if interactive:
        return _interact(client, answer["id"])
    if "-z" not in given.flags:
        print(answer["id"], flush=True)
    if given.attributes.get("block", "").lower() in ("true", "t", "1", "y"):
        return _block(client, answer["id"])
    return client.config["submit_status"]


def _script(rest: list[str], *, interactive: bool) -> tuple[str, str]:
    if not rest or rest == ["-"]:
        if interactive:
            return "", "STDIN"
        return sys.stdin.buffer.read().decode(errors="surrogateescape"), "STDIN"
    try:
        with open(rest[0], encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read(), rest[0]
    except OSError as error:
        raise options.Refused(f"qsub: script file:: {error.strerror}", 1) from None


def _job(
    client: Client,
    given: options.Options,
    name: str,
    text: str | None,
    command: list[str],
    interactive: bool,
) -> Job:
    config, cwd = client.config, os.getcwd()
    value = given.values.get
    custom = [*config["node_resources"], *config["job_resources"]]
    chunks = options.chunks(given.resources, custom)
    place = given.resources.get("place") or ("free" if given.resources.get("select") else "pack")
    if "nodes" in given.resources:
        place = "scatter"
    here = socket.gethostname()
    host = here if here in config["nodes"] else HOST
    variables = options.submit_variables(os.environ, cwd, host)
    if "-v" in given.values:
        variables |= options.variables(given.values["-v"], os.environ)
    if "-V" in given.flags:
        variables |= options.whole_environment(os.environ)
    job_name = value("-N") or options.default_name(name)
    walltime = given.resources.get("walltime")
    depend = given.attributes.get("depend")
    paths = {}
    for key in ("output", "error"):
        path = value("-o" if key == "output" else "-e")
        paths[key] = None if path is None else os.path.normpath(os.path.join(cwd, path))
    return {
        "name": job_name,
        "script": None if command else text,
        "command": command,
        "interactive": interactive,
        "cwd": cwd,
        **paths,
        "join": value("-j", "n"),
        "keep": value("-k", "n"),
        "remove": value("-R", ""),
        "umask": options.umask(given.attributes.get("umask", "077")),
        "account": value("-A", ""),
        "project": value("-P", "_pbs_project_default"),
        "queue": value("-q"),
        "priority": int(value("-p", "0")),
        "rerunable": (value("-r", "y") == "y" or given.array is not None) and not interactive,
        "array": given.array,
        "shell": (value("-S") or "").partition("@")[0] or None,
        "hold": "u" if "-h" in given.flags else "n",
        "resources": given.resources,
        "chunks": chunks,
        "place": place,
        "walltime": options.seconds(walltime) if walltime else None,
        "not_before": options.moment(value("-a")) if "-a" in given.values else 0.0,
        "depend": options.dependencies(depend) if depend is not None else [],
        "variables": variables,
        "arguments": " ".join(sys.argv[1:]),
    }


def _block(client: Client, identity: str) -> int:
    while True:
        answer = client.ask("wait", id=identity)
        if answer["ended"]:
            break
        time.sleep(0.05)
    status = answer["exit_status"]
    if status is None or "terminated by" in (answer["comment"] or ""):
        _complain(f"qsub: {identity} Job to be deleted at request of {HOST}")
        return 3
    return status & 255


def _interact(client: Client, identity: str) -> int:
    """A terminal on the job's first node. The status is 0, whatever the shell's was."""
    print(f"qsub: waiting for job {identity} to start", flush=True)
    while True:
        launch = client.ask("launch", id=identity)["launch"]
        if launch is not None:
            break
        time.sleep(0.1)
    # The terminal there has the size of the one here, as it is now (SOURCE): later changes do not
    # reach it.
    size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, size)
        with contextlib.suppress(OSError):
            os.chdir(launch["environ"]["HOME"])
        environ = {**launch["environ"], "TERM": os.environ.get("TERM", "dumb")}
        os.execve(launch["command"][0], launch["command"], environ)
    client.ask("attached", id=identity, pid=child)
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSANOW)  # what was typed by now is not lost
    try:
        print(f"qsub: job {identity} ready\r\n\r", flush=True)
        if launch["profile"]:
            os.write(terminal, launch["profile"].encode())
        _relay(terminal)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
    _, status = os.waitpid(child, 0)
    client.ask("detached", id=identity, status=status)
    print(f"\nqsub: job {identity} completed", flush=True)
    return 0


def _relay(terminal: int) -> None:
    sources = [0, terminal]
    while True:
        ready, _, _ = select.select(sources, [], [])
        for source in ready:
            try:
                data = os.read(source, 4096)
            except OSError:  # the other side of the terminal is closed
                data = b""
            if source == 0 and not data:
                sources.remove(0)
                os.write(terminal, b"\x04")
            elif not data:
                return
            else:
                os.write(terminal if source == 0 else 1, data)


# ---- what a job looks like -----------------------------------------------------------------------


def _date(when: float) -> str:
    return time.ctime(when)


def _attributes(job: Job) -> dict[str, Any]:
    """In qstat's order. Nested where JSON nests, all values as text or whole numbers."""
    shown: dict[str, Any] = {"Job_Name": job["name"], "Job_Owner": job["owner"]}
    if job["state"] in "RE" or job["exit_status"] is not None:
        used = job["used"]
        if job["state"] == "R":
            used = time.time() - job["stime"]
        shown["resources_used"] = {
            "cpupercent": 0,
            "cput": "00:00:00",
            "mem": "0b",
            "ncpus": sum(chunk["ncpus"] for _, chunk in job["vnodes"]),
            "vmem": "0b",
            "walltime": walltime_text(used),
        }
    shown["job_state"] = job["state"]
    shown["queue"] = job["queue"]
    shown["server"] = HOST
    if job["account"]:
        shown["Account_Name"] = job["account"]
    shown["Checkpoint"] = "u"
    shown["ctime"] = _date(job["ctime"])
    if job["not_before"]:
        shown["Execution_Time"] = _date(job["not_before"])
    if job["depend"]:
        parts = (f"{entry['kind']}:{entry['on']}@{HOST}" for entry in job["depend"])
        shown["depend"] = ",".join(parts)
    shown["Error_Path"] = f"{HOST}:{job['error']}"
    if job["vnodes"]:
        shown["exec_host"] = exec_host(job)
        shown["exec_vnode"] = exec_vnode(job)
    system = job["substate"] == 22 or job["outcome"] == "dropped"
    shown["Hold_Types"] = "s" if system else job["hold"]
    if job["interactive"]:
        shown["interactive"] = "True"
    shown["Join_Path"] = job["join"]
    shown["Keep_Files"] = job["keep"]
    shown["Mail_Points"] = "a"
    shown["mtime"] = _date(job["mtime"])
    shown["Output_Path"] = f"{HOST}:{job['output']}"
    shown["Priority"] = job["priority"]
    shown["qtime"] = _date(job["ctime"])
    shown["Rerunable"] = str(job["rerunable"])
    listed = {name: value for name, value in job["resources"].items() if value != ""}
    if job["walltime"] is not None:
        listed["walltime"] = walltime_text(job["walltime"])
    listed["ncpus"] = str(sum(chunk["ncpus"] for chunk in job["chunks"]))
    listed["nodect"] = str(len(job["chunks"]))
    listed["place"] = job["place"]
    listed.setdefault("select", f"{len(job['chunks'])}:ncpus={job['chunks'][0]['ncpus']}")
    shown["Resource_List"] = dict(sorted(listed.items()))
    if job["stime"] is not None:
        shown["stime"] = _date(job["stime"])
    if job["obittime"] is not None:
        shown["obittime"] = _date(job["obittime"])
    if job["session"] is not None:
        shown["session_id"] = job["session"]
    shown["substate"] = job["substate"]
    shown["Variable_List"] = job["variables"]
    if job["comment"]:
        shown["comment"] = job["comment"]
    shown["etime"] = _date(job["ctime"])
    if job["run_count"]:
        shown["run_count"] = job["run_count"]
    if job["stageout"] is not None:
        shown["Stageout_status"] = job["stageout"]
    if job["exit_status"] is not None:
        shown["Exit_status"] = job["exit_status"]
    shown["Submit_arguments"] = job["arguments"]
    if job["parent"]:
        shown |= {"array_id": job["parent"], "array_index": job["index"]}
    shown |= job.get("array_shown", {})
    if job["state"] == "F":
        shown["history_timestamp"] = int(job["mtime"])
    shown["project"] = job["project"]
    shown["Submit_Host"] = HOST
    return shown


def _flat(shown: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in shown.items():
        if name == "Variable_List":
            listed = (f"{key}={_escaped(text)}" for key, text in value.items())
            yield name, ",".join(listed)
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", str(inner)) for key, inner in value.items())
        else:
            yield name, str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def _wrapped(name: str, value: str, width: int) -> str:
    """A line of `qstat -f`. Long ones go on behind a TAB, after a comma where there is one."""
    line = f"    {name} = "
    lines = []
    for piece in re.findall(r"[^,]*,|[^,]+$", value) or [""]:
        while width and len(line) + len(piece) >= width:
            if line.strip():
                if len(lines) == 0 and line == f"    {name} = ":
                    room = width - 1 - len(line)
                    line, piece = line + piece[:room], piece[room:]
                lines.append(line)
                line = "\t"
            if len(piece) < width - 1:
                break
            lines.append(f"\t{piece[: width - 2]}")
            piece = piece[width - 2 :]
        line += piece
    return "\n".join([*lines, line] if line != "\t" else lines)


def _as_json_value(value: str) -> Any:
    """What looks like a number or a truth is one: a known defect."""
    if value in ("true", "false"):
        return value == "true"
    if re.fullmatch(r"[+-]?\d+", value):
        return int(value)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value):
        number = float(value)
        return int(number) if number.is_integer() else number
    return value


# ---- qstat ---------------------------------------------------------------------------------------


def _usage(program: str, text: str) -> NoReturn:
    _complain(text)
    _complain(f"usage: {program} (stand-in): see its man page")
    raise SystemExit(2)


def qstat() -> int:
    """Show jobs."""
    try:
        pairs, names = getopt.getopt(sys.argv[1:], "fxHtwasnirJQBqpTEGM1u:F:D:")
    except getopt.GetoptError as error:
        _usage("qstat", f"qstat: invalid option -- '{error.opt}'")
    flags = {option for option, _ in pairs}
    values = dict(pairs)
    form = values.get("-F", "").lower()
    if form not in ("", "json", "dsv") or (form and "-f" not in flags):
        _usage("qstat", "qstat: -F needs -f, and one of json and dsv")
    client = _client("qstat")
    shown: list[Job] = []
    status = 0
    try:
        answer = client.ask("list")
        shown, status = _selected(client, answer, names, flags, values.get("-u"))
        kinds = [states for flag, states in (("-i", "QHWT"), ("-r", "RES")) if flag in flags]
        shown = [job for job in shown if all(job["state"] in states for states in kinds)]
        if "-J" in flags:
            shown = [job for job in shown if job["array"] is not None]
    except ServerDown as down:
        _complain(str(down))
        _complain(f"qstat: cannot connect to server {HOST} (errno=15010)")
        status = 255
    if flags & {"-Q", "-B", "-q"}:
        _show_server(client, shown, flags)
    elif form == "json":
        _show_json(shown[:1] if names else shown)
    elif form == "dsv":
        for job in shown:
            fields = "|".join(f"{name}={value}" for name, value in _flat(_attributes(job)))
            print(f"Job Id: {job['id']}|{fields}")
    elif "-f" in flags:
        for job in shown:
            print(f"Job Id: {job['id']}")
            for name, value in _flat(_attributes(job)):
                print(_wrapped(name, value, 0 if "-w" in flags else 80))
            print()
    else:
        _show_table(shown)
    return status


def _selected(
    client: Client, answer: Message, names: list[str], flags: set[str], user: str | None
) -> tuple[list[Job], int]:
    history = client.config["history"]
    finished = bool(flags & {"-x", "-H"})
    jobs = {job["id"]: job for job in answer["jobs"]}
    subjobs: dict[str, list[Job]] = {}
    for job in jobs.values():
        subjobs.setdefault(job["parent"], []).append(job)

    def family(job: Job) -> list[Job]:
        """With `-t` an array is shown with its subjobs."""
        return [job, *(subjobs.get(job["id"], []) if "-t" in flags else [])]

    if not names:
        alone = [job for job in jobs.values() if job["parent"] is None]
        shown = [one for job in alone if finished or job["state"] != "F" for one in family(job)]
        if finished and not history and client.config["history_off_refuses"] == "all":
            _complain("qstat: PBS is not configured to maintain job history")
            return [], 0
        return [job for job in shown if user in (None, job["owner"].partition("@")[0])], 0
    shown, status = [], 0
    for name in (one for given in names for one in _range(given)):
        if not re.match(r"\d", name):
            if name in answer["queues"]:
                shown += [
                    job for job in jobs.values() if job["queue"] == name and job["state"] != "F"
                ]
                continue
            _complain(f"qstat: Unknown queue destination {name}")
            status = 170
            continue
        identity = name.partition("@")[0]
        identity = identity if "." in identity else f"{identity}.{HOST}"
        job = jobs.get(identity)
        refuses = client.config["history_off_refuses"] == "all"
        if finished and not history and (job is None or refuses):
            # The status is 0: seen.
            _complain(f"qstat: PBS is not configured to maintain job history {identity}")
        elif job is None:
            _complain(f"qstat: Unknown Job Id {identity}")
            status = 153
        elif job["state"] == "F" and not finished:
            _complain(
                f"qstat: {identity} Job has finished, "
                "use -x or -H to obtain historical job information"
            )
            status = 35
        elif job["parent"] and not job["started"] and job["state"] in "QH":
            # The parent's attributes, but for the state: seen.
            own = {"id": job["id"], "state": "Q", "substate": 10, "exit_status": None}
            shown.append({**jobs[job["parent"]], **own})
        else:
            shown += family(job)
    return shown, status


def _range(name: str) -> list[str]:
    """`12[0-3]` as the subjobs that it names."""
    found = re.fullmatch(r"(\d+)\[(\d+)-(\d+)(?::(\d+))?\](.*)", name)
    if found is None:
        return [name]
    indices = range(int(found[2]), int(found[3]) + 1, int(found[4] or 1))
    return [f"{found[1]}[{index}]{found[5]}" for index in indices]


def _show_json(jobs: list[Job]) -> None:
    document: dict[str, Any] = {
        "timestamp": int(time.time()),
        "pbs_version": VERSION,
        "pbs_server": HOST,
    }
    for job in jobs:
        shown = _attributes(job)
        for name in ("Resource_List", "Variable_List"):
            shown[name] = {key: _as_json_value(text) for key, text in shown[name].items()}
        document.setdefault("Jobs", {})[job["id"]] = shown
    print(json.dumps(document, indent=4))


def _show_server(client: Client, jobs: list[Job], flags: set[str]) -> None:
    """`-Q`, `-q` and `-B`, in one form: how many jobs are in each queue, or in all."""
    names = [HOST] if "-B" in flags else list(client.config["queues"])
    print(f"{'Server' if '-B' in flags else 'Queue':<18} Max   Tot   Que   Run   Hld   Wat")
    print("----------------  ----- ----- ----- ----- ----- -----")
    for name in names:
        states = [job["state"] for job in jobs if "-B" in flags or job["queue"] == name]
        counts = [len(states), *(states.count(state) for state in "QRHW")]
        print(f"{name:<16} {0:>6}" + "".join(f"{count:>6}" for count in counts))


def _show_table(jobs: list[Job]) -> None:
    if not jobs:
        return
    print("Job id            Name             User              Time Use S Queue")
    print("----------------  ---------------- ----------------  -------- - -----")
    for job in jobs:
        used = "00:00:00" if job["started"] else "0"
        user = job["owner"].partition("@")[0]
        columns = f"{job['id'][:16]:<16}  {job['name'][:15]:<16} {user[:16]:<16}  {used:>8}"
        print(f"{columns} {job['state']} {job['queue']:<16}")


# ---- the other commands --------------------------------------------------------------------------


def _each(
    program: str, names: list[str], action: Callable[[Client, Job], tuple[str, int] | None]
) -> int:
    """Do something with every job; the status is that of the last that was refused."""
    client = _client(program)
    status = 0
    if not names:
        _usage(program, f"{program}: no job given")
    legal = r"\d+(\[\d*\])?(\.[\w.-]+)?(@[\w.-]+)?"
    for name in names:  # first of all, so that any other status counts more
        if not re.fullmatch(legal, name):
            _complain(f"{program}: illegally formed job identifier: {name}")
            status = 1
    for name in names:
        if not re.fullmatch(legal, name):
            continue
        try:
            answer = client.ask("list")
        except ServerDown:
            if program == "qdel":
                _complain(f"Couldn't connect to cluster: {HOST}")
            else:
                _complain(f"{program}: cannot connect to server {HOST} (errno=15010)")
            status = 162
            continue
        identity = name.partition("@")[0]
        identity = identity if "." in identity else f"{identity}.{HOST}"
        job = next((job for job in answer["jobs"] if job["id"] == identity), None)
        if job is None:
            _complain(f"{program}: Unknown Job Id {identity}")
            status = 153
            continue
        refused = action(client, job)
        if refused is not None:
            _complain(refused[0])
            status = refused[1]
    return status


def _options(program: str, letters: str) -> tuple[dict[str, str], list[str]]:
    try:
        pairs, names = getopt.getopt(sys.argv[1:], letters)
    except getopt.GetoptError as error:
        _usage(program, f"{program}: invalid option -- '{error.opt}'")
    return dict(pairs), names


def _finished(program: str, job: Job) -> tuple[str, int] | None:
    if job["state"] == "F":
        return f"{program}: Job has finished {job['id']}", 35
    return None


def qdel() -> int:
    """End jobs."""
    given, names = _options("qdel", "xW:")
    how = given.get("-W", "")
    if how not in ("", "force") and not how.isdigit():
        _usage("qdel", "qdel: illegal -W value")

    def delete(client: Client, job: Job) -> tuple[str, int] | None:
        if "-x" in given and job["state"] == "F":
            client.ask("forget", id=job["id"])
            return None
        refused = _finished("qdel", job)
        if refused is None:
            client.ask("delete", id=job["id"], force=how == "force")
        return refused

    return _each("qdel", names, delete)


def qsig() -> int:
    """Signal jobs."""
    given, names = _options("qsig", "s:")
    name = given.get("-s", "TERM")

    def send(client: Client, job: Job) -> tuple[str, int] | None:
        if name in ("suspend", "resume", "admin-suspend", "admin-resume"):
            return f"qsig: Unauthorized Request  {job['id']}", 159
        number = signal_number(name)
        if number is None or number not in signal.valid_signals():
            return f"qsig: Unknown or illegal signal name {job['id']}", 1
        refused = _finished("qsig", job)
        if refused is None:
            answer = client.ask("signal", id=job["id"], number=number)
            if "error" in answer:
                return answer["error"], answer["status"]
        return refused

    return _each("qsig", names, send)


def _hold_or_release(program: str, operation: str) -> int:
    given, names = _options(program, "h:")
    if given.get("-h", "u") != "u":
        return _each(program, names, lambda client, job: (_unauthorized(program, job), 159))

    def change(client: Client, job: Job) -> tuple[str, int] | None:
        refused = _finished(program, job)
        if refused is None and client.ask(operation, id=job["id"]).get("bad_state"):
            return f"{program}: Request invalid for state of job  {job['id']}", 168
        return refused

    return _each(program, names, change)


def _unauthorized(program: str, job: Job) -> str:
    return f"{program}: Unauthorized Request  {job['id']}"


def qhold() -> int:
    """Keep jobs from starting."""
    return _hold_or_release("qhold", "hold")


def qrls() -> int:
    """Let held jobs start."""
    return _hold_or_release("qrls", "release")


def qrerun() -> int:
    """For operators only: a job's owner is refused."""
    _, names = _options("qrerun", "W:")
    return _each("qrerun", names, lambda client, job: (_unauthorized("qrerun", job), 159))
