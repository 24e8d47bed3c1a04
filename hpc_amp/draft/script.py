"""A job file drafted from a job script of another hand: its directives, set-up, container and
command. What cannot be taken over is listed as comments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_amp.config.units import format_duration
from hpc_amp.config.write import to_text
from hpc_amp.draft.program import as_name, name_of
from hpc_amp.errors import UsageError, to_type
from hpc_amp.lint.files import check_files
from hpc_amp.lint.job import LaunchLine, LintedJob, option_in, read_job
from hpc_amp.lint.script import read_script
from hpc_amp.lint.shell import Command
from hpc_amp.lint.starts import local_programs
from hpc_amp.schedulers import grammars

_SETS_UP = {"module", "ml", "source", ".", "conda", "mamba", "ulimit", "export", "eval", "set"}
_SET_BY_US = {
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK"),
    *("LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"),
}
_CONTAINERS = {"singularity", "apptainer"}
_WITH_VALUE = {
    *(
        "-B",
        "--bind",
        "--env",
        "--pwd",
        "-H",
        "--home",
        "--overlay",
        "-W",
        "--workdir",
        "--env-file",
    ),
    *("-S", "--scratch", "--mount", "--network", "--security", "--hostname"),
}
_NAMES = {"job-name", "N", "jobname"}
_GENERATED = {
    *("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"),
    *("cpus-per-task", "output", "error", "outputprefix", "requeue", "signal", "open-mode"),
    *("l select", "o", "e", "j", "S", "cwd"),
}
"""Options that hpc-amp generates itself."""
_AGENTS = re.compile(r"(torchrun|accelerate|deepspeed)$|torch\.distributed\.(run|launch)$")


_EXPANDED = re.compile(r"\$\(|`|\$\{[^}]*\}|\$[\w@*#?]+")
_PROGRAM = re.compile(
    r"(^|/)(python[\d.]*|bash|sh|singularity|apptainer|torchrun|accelerate|deepspeed)$|\.(py|sh)$"
)


@dataclass
class Draft:
    """Keys of the job file, and remarks for the person who goes on with it."""

    keys: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any]:
        """The keys of a section, which is created where it is missing."""
        found: dict[str, Any] = self.keys.setdefault(name, {})
        return found


def draft_from_script(path: Path) -> str:
    """The text of a job file that does what the script `path` does. Raises UsageError if the script
    cannot be read, or starts no program that is found in it."""
    (checked,) = check_files([str(path)])
    script = read_script(path.read_bytes(), str(path))
    job = read_job(script, grammars())
    draft = Draft({"name": name_of(path)})
    main = _main_program(job)
    if main is None:
        raise UsageError(
            f"{path} starts no program that hpc-amp recognises",
            hint="hpc-amp init writes a job file to begin with",
        )
    _read_resources(job, main, draft)
    _read_setup(job, main, draft)
    _remark_on_command(job, main, draft)
    _read_command(main, draft)
    findings = [
        f"line {one.line}: {one.severity}: {one.what}; {one.fix}" for one in checked.findings
    ]
    head = [f"Drafted by `{to_type('init', path)}`. Check each line, then: hpc-amp validate FILE"]
    for title, lines in (("To be looked at:", draft.remarks), ("lint found in it:", findings)):
        if lines:
            head += ["", title, *(f"- {line}" for line in lines)]
    comments = "".join(f"# {_printable(line)}".rstrip() + "\n" for line in head)
    keys = to_text({name: value for name, value in draft.keys.items() if value})
    # Bytes that are not UTF-8 are surrogates here.
    return (comments + "\n" + keys).encode("utf-8", "replace").decode()


def _printable(text: str) -> str:
    """`text` in one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(frozen=True)
class _Main:
    """The command of a script that the job is about: the program with its arguments, and the
    launcher that starts it, where there is one."""

    command: Command
    words: list[str]
    launch: LaunchLine | None


def _main_program(job: LintedJob) -> _Main | None:
    """The last launch that has a Python program or a container, else the last such program that the
    script starts directly, else the last launch."""
    launches = [_Main(one.command, one.payload, one) for one in job.launches if one.payload]
    direct = [
        _Main(one.command, job.argv(one.command.program), None) for one in local_programs(job)
    ]
    likely = [one for one in launches if re.search(r"\.py\b|python|torch", " ".join(one.words))]
    for found in (likely, direct, launches):
        if found:
            return found[-1]
    return None


def _read_resources(job: LintedJob, main: _Main, draft: Draft) -> None:
    """Directives, as keys of `job` or as further directives."""
    asked, resources = job.request, draft.section("job")
    text = " ".join(main.words)
    agent = any(_AGENTS.search(word) for word in main.words)
    ranks = job.tasks_per_node_of(main.launch) if main.launch else asked.tasks_per_node
    if agent:
        said = option_in(text, "nproc-per-node", "num-gpus", "num-processes")
        ranks = int(said) if said is not None and said.isdecimal() else None
    gpus = asked.gpus_per_node or (ranks or 1 if asked.gpus else 0)
    resources["nodes"] = asked.nodes or asked.chunks or 1
    resources["gpus_per_node"] = gpus
    if ranks is not None and ranks != max(gpus, 1):
        resources["ranks_per_node"] = ranks
    if job.grammar.name not in job.options:
        draft.remarks.append("the script has no directives: set job.nodes, job.walltime and others")
        return
    further = []
    for option in job.options[job.grammar.name].options:
        entries = job.grammar.entries(option)
        if entries is None:
            values = [(option.name, option.value or "", option.shown)]
        else:
            values = [
                (f"{option.name} {name}", entry.partition("=")[2], f"{option.spelling} {entry}")
                for name, entry in entries
            ]
        for name, value, shown in values:
            key = job.grammar.keys.get(name)
            if name in _NAMES and value:
                draft.keys["name"] = as_name(value)
            elif key is not None and value:
                found = _as_key(job, key, value)
                if found is None:
                    draft.remarks.append(f"line {option.line}: {shown}: write it as {key}")
                elif key != "job.nodes":  # which is read with other options
                    resources[key.removeprefix("job.")] = found
            elif name == "cpus-per-task" and value.isdecimal():
                of_rank = int(value) // (ranks or 1) if agent else int(value)
                resources["cpus_per_gpu"] = max(1, of_rank)
            elif name in ("pe", "hetjob"):
                draft.remarks.append(f"line {option.line}: not taken over: {shown}")
            elif name not in _GENERATED and key is None:
                further.append(shown)
    if further:
        resources["directives"] = further


def _as_key(job: LintedJob, key: str, value: str) -> str | None:
    """The value of a directive as its key in a job file has it; None if it is not understood."""
    if key == "job.walltime":
        seconds = job.grammar.seconds(value)
        return None if seconds is None else format_duration(seconds)
    if key == "job.memory":
        match = re.fullmatch(r"(\d+)([KMGT])B?", value, re.IGNORECASE)
        return f"{match[1]}{match[2].upper()}iB" if match else None
    return value


def _read_setup(job: LintedJob, main: _Main, draft: Draft) -> None:
    """The lines before the program that prepare the shell, and remarks on all others."""
    by_line: dict[int, list[Command]] = {}
    for command in job.commands:
        if not command.depth:
            by_line.setdefault(command.line, []).append(command)
    compound = _compound_lines(job.script.lines)
    lines: list[str] = []
    for number, commands in by_line.items():
        text = _source_line(job, number)
        if number == main.command.line:
            if len(commands) > 1:
                draft.remarks.append(
                    f"line {number}: only one of its commands is taken over: {text}"
                )
            continue
        names = {name for command in commands for name, _ in command.assignments}
        first = [command.program[0].text if command.program else "" for command in commands]
        if names & _SET_BY_US and len(commands) == 1:
            draft.remarks.append(f"line {number}: left out, hpc-amp sets it: {text}")
        elif len(commands) == 1 and first[0] == "cd" and "DIR" in text and "$" in text:
            continue  # to where the job was submitted: it starts there
        elif (
            number < main.command.line
            and number not in compound
            and not names & _SET_BY_US
            and all(name in ("", *_SETS_UP) for name in first)
            and not any(command.function or command.heredocs for command in commands)
            and not text.startswith(("(", "{"))
            and _is_whole(text)
        ):
            if text not in lines:
                lines.append(text)
        elif any(name not in ("", "echo", "date", "hostname", "exit") for name in first) or names:
            draft.remarks.append(f"line {number}: not taken over: {text}")
    if lines:
        draft.section("job")["setup"] = "\n".join(lines) + "\n"


def _is_whole(text: str) -> bool:
    """Whether quotes in a line of shell are closed in it."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _remark_on_command(job: LintedJob, main: _Main, draft: Draft) -> None:
    """What the program's command has besides words."""
    command, lost = main.command, []
    names = [word.text for _, word in command.assignments]
    if names:
        lost.append(f"the variables {' '.join(names)}: write them in container.env")
    if command.redirects:
        lost.append("its redirections: the output is in the log of the run")
    if command.heredocs:
        lost.append("the text that it reads")
    if main.launch is not None and "=" in (main.launch.options.get("export") or ""):
        lost.append(f"--export={main.launch.options['export']}: write it in container.env")
    if job.is_heterogeneous or ":" in main.words:
        lost.append("further components of a heterogeneous job")
    for one in lost:
        draft.remarks.append(f"line {command.line}: not taken over: {one}")


def _compound_lines(lines: Sequence[str]) -> set[int]:
    """The numbers of lines that are in `if`, a loop or `case`."""
    found, depth = set(), 0
    for number, line in enumerate(lines, 1):
        words = re.findall(r"(?:^|;)\s*(if|for|while|until|case|fi|done|esac)\b", line)
        opened = sum(word in ("if", "for", "while", "until", "case") for word in words)
        if depth or opened:
            found.add(number)
        depth += 2 * opened - len(words)
    return found


def _source_line(job: LintedJob, line: int) -> str:
    """The line with that number, and those that continue it."""
    text = job.script.lines[line - 1]
    while text.endswith("\\") and line < len(job.script.lines):
        text = text[:-1].rstrip() + " " + job.script.lines[line].strip()
        line += 1
    return text.strip()


def _read_command(main: _Main, draft: Draft) -> None:
    """The container, and the program with its arguments."""
    words = [word for word in main.words if word]
    if main.launch is not None and main.launch.is_mpi:
        # Options of mpirun depend on its kind: the program begins where one is recognised.
        words = words[next((i for i, word in enumerate(words) if _PROGRAM.search(word)), 0) :]
    container = draft.section("container")
    if main.launch is not None and (image := main.launch.options.get("container-image")):
        container |= {"runtime": "pyxis", "image": image}
        if mounts := main.launch.options.get("container-mounts"):
            container["bind"] = mounts.split(",")
    at = next((i for i, word in enumerate(words) if Path(word).name in _CONTAINERS), None)
    if at is not None:
        words = _read_apptainer(words[at + 1 :], container, draft)
    words = _without_agent(words, draft)
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        words[0] = "python"
    draft.keys["run"] = words
    variables = sorted({name for word in words for name in _EXPANDED.findall(word)})
    if variables:
        draft.remarks.append(
            f"run: no shell replaces {', '.join(variables)}: write the values, or read the "
            "variables in the program"
        )


def _read_apptainer(words: list[str], container: dict[str, Any], draft: Draft) -> list[str]:
    """Read the options of `apptainer exec` and the image. Returns the program with its
    arguments."""
    further, at = [], 0
    words = words[1:] if words and words[0] in ("exec", "run", "shell") else words
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name in _WITH_VALUE and not equals:
            at += 1
            value = words[at] if at < len(words) else ""
        at += 1
        if name in ("-B", "--bind"):
            container.setdefault("bind", []).extend(value.split(","))
        elif name != "--nv":  # hpc-amp gives it where the job has GPUs
            further.append(f"{name}={value}" if value else name)
    if at < len(words):
        container["image"] = words[at]
    if further:
        container["args"] = further
    return words[at + 1 :]


def _without_agent(words: list[str], draft: Draft) -> list[str]:
    """The program that torchrun or a similar agent would start: hpc-amp starts each rank itself."""
    agent = next((i for i, word in enumerate(words) if _AGENTS.search(word)), None)
    if agent is None:
        return words
    for at in range(agent + 1, len(words)):
        if words[at].endswith(".py"):
            return ["python", *words[at:]]
        if words[at] in ("-m", "--module") and at + 1 < len(words):
            return ["python", "-m", *words[at + 1 :]]
    draft.remarks.append("run: write the program without its launcher; hpc-amp starts each rank")
    return words
