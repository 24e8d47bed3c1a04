"""Find out what a batch script runs on the first node only, and whether it uses other nodes.

A batch script runs once, on the first node. An unknown program, such as another script or a
variable that is set outside, is assumed to start processes on other nodes. This avoids wrong
findings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hpc_amp.lint.job import LaunchLine, LintedJob
from hpc_amp.lint.shell import ASSIGNMENT, Command, read_shell

# Programs that prepare nodes or files. Starting them on many nodes does not start the training.
_HELPERS = {
    *("hostname", "nvidia-smi", "rocm-smi", "xpu-smi", "lscpu", "nproc", "free", "df", "uname"),
    *(
        "mkdir",
        "cp",
        "rm",
        "ls",
        "mv",
        "ln",
        "touch",
        "chmod",
        "find",
        "du",
        "stat",
        "tar",
        "rsync",
    ),
    *("unzip", "cat", "echo", "printf", "head", "tail", "grep", "awk", "sed", "sort", "date", "id"),
    *("env", "printenv", "export", "sleep", "true", "which", "test", "[", "[[", "cd", "module"),
    *("pwd", "ulimit", "ip", "ifconfig", "ibstat", "git", "pip", "squeue", "scontrol", "set"),
}
# Programs that start another program on the same node. Their arguments name that program.
_PASSING = {
    *("time", "exec", "nohup", "command", "env", "eval", "stdbuf", "unbuffer", "timeout", "nice"),
    *("ionice", "numactl", "taskset", "setsid", "nsys", "ncu", "rocprof", "rocprofv3", "catchsegv"),
    *("coverage", "conda", "mamba", "micromamba", "poetry", "uv", "pixi", "pipenv", "hatch"),
    *("singularity", "apptainer", "docker", "podman", "podman-hpc", "shifter", "ch-run", "enroot"),
}
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
# Words anywhere in a script that start processes on other nodes, or may do so.
_ELSEWHERE = re.compile(
    r"srun|mpirun|mpiexec|mprun|orterun|prterun|aprun|ibrun|jsrun|yhrun|pdsh|clush|pbsdsh|pbs_tmrsh"
    r"|horovodrun|charmrun|hostfile|machinefile"
    r"|(?<![\w.-])(?:ssh|rsh|dsh|xdsh|psh|qrsh|blaunch|lrun|prun|poe|flux|runjob|parallel|ansible|ray"
    r"|dask|dask-\w+|spark\w*|colossalai|deepspeed|torchx|sky|fab)(?![\w.=-])"
)
_AGENT = re.compile(
    r"(?:^|(?<=[\s'\";&(]))(?:\S*/)?(?P<name>torchrun(?:_jsc)?|accelerate\s+launch"
    r"|python[\d.]*\s+(?:-[a-zA-Z]+\s+)*-m\s+(?:torch\.distributed\.(?:run|launch)"
    r"|accelerate\.commands\.launch))(?=\s)"
)
_PYTHON = re.compile(
    r"(?:^|(?<=[\s'\";&(]))(?:\S*/)?python[\d.]*\s+(?:-(?![cmV])[a-zA-Z]+\s+)*"
    r"(?P<what>-m\s+[\w.]+|[^\s-]\S*\.py)(?=\s|$|['\"])"
)
# Python modules that are tools, not training programs.
_TOOLS = re.compile(
    r"-m\s+(?:pip|venv|virtualenv|json|site|http|zipfile|ensurepip|conda|compileall)"
)


@dataclass(frozen=True)
class LocalStart:
    """A program that the batch script starts directly, without a launcher.

    `kind` is `agent` for torchrun and similar programs, and `python` for other Python programs.
    `text` is the command line with the variables of the script expanded.
    """

    kind: Literal["agent", "python"]
    name: str
    command: Command
    text: str

    @property
    def line(self) -> int:
        return self.command.line


def local_programs(job: LintedJob) -> list[LocalStart]:
    """Return the agents and Python programs that the script starts without a launcher."""
    found = []
    for command in job.commands:
        if command.depth:
            continue
        text = _own_text(job, command)
        if text is None or re.search(r"\s(?:--help|--version|-h)(?:\s|$)", text):
            continue
        if match := _AGENT.search(text):
            name = re.sub(r"\s+", " ", match["name"])
            found.append(LocalStart("agent", name, command, text[match.start() :]))
        elif (match := _PYTHON.search(text)) and not _TOOLS.match(match["what"]):
            found.append(LocalStart("python", match[0].strip(), command, text[match.start() :]))
    return found


def _own_text(job: LintedJob, command: Command) -> str | None:
    """The command line if it may start a program that `local_programs` looks for, else None."""
    argv = [one for one in job.argv(command.program) if one]
    while argv and ASSIGNMENT.match(argv[0]):
        argv = argv[1:]
    if not argv:
        return None
    name = _base(argv[0])
    text = " ".join(argv)
    if name in _PASSING or (name in _SHELLS and any(one in ("-c", "-lc") for one in argv[1:4])):
        return text
    known = name in ("torchrun", "torchrun_jsc", "accelerate") or re.match(r"python[\d.]*$", name)
    return text if known else None


def starts_elsewhere(job: LintedJob) -> bool:
    """Whether the script starts processes on other nodes, or may do so."""
    if any(request.starts_ranks for request in job.requests):
        return True
    helpers = set()
    for launch in job.launches:
        if not _is_helper(launch):
            return True
        helpers.add(id(launch.command))
    return any(id(one) not in helpers and _may_start(job, one) for one in job.commands)


def _is_helper(launch: LaunchLine) -> bool:
    """Whether a launch only queries or prepares the nodes."""
    if launch.kind != "srun":
        words = launch.argv[1:]
        while words and words[-1].startswith("-"):
            words = words[:-1]
        return bool(words) and _base(words[-1]) in ("hostname", "nvidia-smi", "date", "rocm-smi")
    payload = launch.payload
    if not payload or launch.command.heredocs:
        return False
    if _base(payload[0]) in _SHELLS:
        if len(payload) < 3 or payload[1] not in ("-c", "-lc"):
            return False
        inner = [one for one in read_shell(payload[2]).commands if one.program]
        return bool(inner) and all(_base(one.program[0].text) in _HELPERS for one in inner)
    return _base(payload[0]) in _HELPERS


def _may_start(job: LintedJob, command: Command) -> bool:
    program = command.program
    texts = [re.sub(r"\$\([^()]*\)|`[^`]*`", "", word.text) for word in command.words]
    texts += [heredoc.text for heredoc in command.heredocs]
    name = _base(program[0].text) if program else ""
    says = name in ("echo", "printf", "module", "ml", "conda", "pip") and not command.redirects
    if not says and any(_ELSEWHERE.search(text) for text in texts):
        return True
    if not program or command.depth:
        return False
    return _is_unknown(job, command)


def _is_unknown(job: LintedJob, command: Command) -> bool:
    """Whether a command runs another script, or a program that is only known by a variable."""
    argv = [one for one in job.argv(command.program) if one]
    text = " ".join(argv)
    passed_on = False
    while argv and (_base(argv[0]) in _PASSING or ASSIGNMENT.match(argv[0])):
        passed_on = passed_on or _base(argv[0]) in _PASSING
        argv = argv[1:]
    if not argv:
        return False
    first, name = argv[0], _base(argv[0])
    if first.startswith(("$", "`")) and not re.match(r"\$\{?\w+\}?/", first):
        return True
    if passed_on or name in _SHELLS:
        inline = any(one in ("-c", "-lc") for one in argv[1:4])
        runs_script = re.search(r"\.(?:sh|bash)\b|\b(?:ba)?sh\s+[^-\s]", text) is not None
        return runs_script or (name in _SHELLS and not inline)
    if re.search(r"torchrun|python", name):
        return False
    own_file = "/" in first and not first.startswith(("/bin/", "/usr/bin/"))
    is_script = name.endswith((".sh", ".bash", ".pl", ".csh"))
    says_so = re.search(r"run$|launch|spawn|dispatch|distribute", name) is not None
    return own_file or is_script or says_so


def _base(word: str) -> str:
    return word.rpartition("/")[2]
