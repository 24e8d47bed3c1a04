"""What a launch script asks for and starts: nodes, tasks, GPUs, and its srun or mpirun commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hpc_amp.lint.script import LintedScript
from hpc_amp.lint.shell import ASSIGNMENT, Command, Shell, ShellWord, read_shell
from hpc_amp.schedulers.grammar import Grammar, Options, Requested, number, tasks_on_each
from hpc_amp.schedulers.options import OptionTable

_MPI_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun"}
_OTHER_LAUNCHERS = {"aprun", "ibrun", "jsrun", "pdsh", "clush", "pbsdsh"}
LAUNCHERS = {"srun"} | _MPI_LAUNCHERS | _OTHER_LAUNCHERS
# Programs that start the program behind them.
_WRAPPERS = {"time", "exec", "nohup", "command", "env", "eval", "stdbuf", "unbuffer", "timeout"}

_AGENT = re.compile(
    r"(?:^|[\s/'\";&])(?:torchrun(?:_jsc)?|accelerate\s+launch|deepspeed|composer|horovodrun|"
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|horovod\.runner(?:\.\w+)?|"
    r"deepspeed\.launcher\.(?:runner|launch)|composer\.cli\.launcher)(?=[\s'\"]|$)"
)
_TORCH = re.compile(
    r"torch|\bnccl|rccl|\bddp\b|\bfsdp\b|deepspeed|accelerate\b|lightning|horovod|megatron|"
    r"MASTER_(?:ADDR|PORT)|WORLD_SIZE|LOCAL_RANK|train\w*\.py",
    re.IGNORECASE,
)


@dataclass
class LaunchLine:
    """A command that starts tasks. `argv` has simple variables filled in; `payload` is the program
    with its arguments, as far as it can be told from the launcher's options."""

    kind: str
    command: Command
    argv: list[str]
    options: dict[str, str | None]
    payload: list[str]

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def text(self) -> str:
        return " ".join(self.argv)

    @property
    def is_mpi(self) -> bool:
        return self.kind in _MPI_LAUNCHERS

    @property
    def agent(self) -> str | None:
        """torchrun or the like, which starts the ranks of a node and numbers them itself."""
        match = _AGENT.search(self.text)
        return match[0].strip(" \t\n/'\";&") if match else None


def option_in(text: str, *names: str) -> str | None:
    """The last value of any of the long options in a command line, without quotes."""
    for name in names:
        pattern = name.replace("-", "[-_]")
        found = re.findall(rf"(?<!\S)['\"]?--?{pattern}(?:=|\s+)(\S+)", text)
        if found:
            return str(found[-1]).strip("'\"")
    return None


@dataclass
class LintedJob:
    """A script with its headers and its body read. `options` has the options of each scheduler
    that the script has directives for, by its name."""

    script: LintedScript
    grammars: Sequence[Grammar]
    options: dict[str, Options]
    layout: Shell | None  # None where the body is not a shell script of any kind
    variables: dict[str, ShellWord] = field(default_factory=dict)

    @property
    def shell(self) -> Shell | None:
        """The body, where its commands can be understood."""
        return self.layout if self.script.is_posix_shell else None

    @cached_property
    def commands(self) -> list[Command]:
        return self.shell.commands if self.shell else []

    @cached_property
    def launches(self) -> list[LaunchLine]:
        return [launch for one in self.commands if (launch := self._launch(one)) is not None]

    @cached_property
    def body(self) -> str:
        """The words of all commands, without comments and here-documents."""
        return "\n".join(" ".join(w.text for w in c.words) for c in self.commands)

    @cached_property
    def is_distributed(self) -> bool:
        """Whether the script has to do with torch and its ranks."""
        return _TORCH.search(self.body) is not None

    @cached_property
    def exported(self) -> set[str]:
        """All variables that the script exports."""
        return {name for command in self.commands for name in command.exported}

    @property
    def is_batch(self) -> bool:
        """Whether it runs once, and not once a task."""
        return bool(self.options) or bool(self.launches)

    # ---- resources -------------------------------------------------------------------------------
    @cached_property
    def requests(self) -> list[Requested]:
        """What each of the headers asks for."""
        return [
            one.requested(self.options[one.name])
            for one in self.grammars
            if one.name in self.options
        ]

    @property
    def grammar(self) -> Grammar:
        """That of the scheduler that the script is for, as far as its header tells."""
        return next((one for one in self.grammars if one.name in self.options), self.grammars[0])

    @property
    def request(self) -> Requested:
        """What the header of that scheduler asks for."""
        return self.requests[0] if self.requests else Requested()

    @property
    def nodes(self) -> int | None:
        """The number of nodes where the header says it plainly."""
        return self.request.nodes

    @property
    def is_heterogeneous(self) -> bool:
        """Whether a header is that of several jobs in one."""
        return any(options.alone for options in self.options.values())

    @property
    def places(self) -> int | None:
        """Nodes, or chunks where it is not said that each is on a node of its own."""
        if self.nodes is None and len(self.options) == 1:
            return self.request.chunks
        return self.nodes

    @property
    def place_name(self) -> str:
        """What `places` counts."""
        return "nodes" if self.nodes is not None else "chunks"

    @property
    def ntasks(self) -> int | None:
        """All tasks that the header asks for."""
        return self.request.tasks

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node by the header; None if it depends."""
        return self.request.tasks_per_node

    def tasks_per_node_of(self, launch: LaunchLine) -> int | None:
        """Tasks on each node of one srun or mpirun; None if it depends."""
        if launch.kind == "srun":
            per_node, tasks = launch.options.get("ntasks-per-node"), launch.options.get("ntasks")
            nodes_text = launch.options.get("nodes")
            if per_node is None and tasks is None:
                if nodes_text is not None and self.request.tasks_said:
                    return None
                return self.tasks_per_node
            nodes = number(nodes_text) if nodes_text is not None else self.nodes
            if tasks is not None and re.search(r"N?NODES\b|NUM_?NODES", tasks, re.IGNORECASE):
                return None if "*" in tasks else 1
            return tasks_on_each(per_node, tasks, nodes)
        if launch.is_mpi:
            per_node = option_in(launch.text, "npernode", "ppn", "N")
            return number(per_node)
        return None

    def starts_many(self, launch: LaunchLine) -> bool:
        """False only for a launch that surely starts a single task."""
        if launch.kind == "srun":
            tasks, nodes = launch.options.get("ntasks"), launch.options.get("nodes")
            if tasks == "1":
                return False
            one_on_a_node = self.tasks_per_node_of(launch) == 1
            if tasks is None and nodes is None and self.request.for_launchers:
                return not (one_on_a_node and (self.nodes or 1) == 1)
            return not (nodes == "1" and one_on_a_node)
        if launch.is_mpi:
            return option_in(launch.text, "n", "np") != "1"
        return True

    @cached_property
    def has_many_tasks(self) -> bool:
        """Whether several tasks are started, as far as it is known."""
        if self.launches:
            return any(self.starts_many(launch) for launch in self.launches)
        return (self.nodes or 1) > 1 or (self.tasks_per_node or self.ntasks or 1) > 1

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node by the header."""
        return self.request.gpus_per_node

    @property
    def asks_for_gpus(self) -> bool:
        return self.request.gpus

    # ---- variables -------------------------------------------------------------------------------
    def expand(self, text: str, depth: int = 0) -> str:
        """`text` with the values of variables that the script sets to something simple."""
        if depth > 4 or "$" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            word = self.variables.get(name)
            if word is None:
                return match[0]
            if word.items:
                inner = " ".join(item.text for item in word.items)
            else:
                inner = word.text.partition("=")[2]
            if len(inner) > 4000 or re.search(rf"\$\{{?{name}\b", inner):
                return match[0]
            return self.expand(inner, depth + 1)

        # ${NAME}, ${NAME[@]} or $NAME
        pattern = r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|\$([A-Za-z_]\w*)"
        return re.sub(pattern, value, text)[:20000]

    def argv(self, words: list[ShellWord]) -> list[str]:
        """The words of a command with variables filled in; those in the place of whole words may
        become several, unless quotes or a substitution keep them together."""
        found: list[str] = []
        for word in words:
            text = self.expand(word.text)
            is_variable = re.fullmatch(r"\$\{?\w+(?:\[[@*]\])?\}?", word.text) is not None
            is_one = (word.quoted and "@" not in word.text) or text.startswith(("$(", "`"))
            splits = is_variable and text != word.text and not is_one
            found += text.split() if splits else [text]
        return found

    @cached_property
    def _launcher_options(self) -> dict[str, OptionTable]:
        return {name: table for one in self.grammars for name, table in one.launchers.items()}

    def _launch(self, command: Command) -> LaunchLine | None:
        argv = self.argv(command.program)
        at = 0
        while at < len(argv) and at < 6:
            name = argv[at].rpartition("/")[2]
            if name in LAUNCHERS:
                rest = argv[at + 1 :]
                table = self._launcher_options.get(name)
                options, payload = ({}, rest) if table is None else launch_options(rest, table)
                return LaunchLine(name, command, argv[at:], options, payload)
            wrapped = name in _WRAPPERS or ASSIGNMENT.match(argv[at]) or argv[at].startswith("-")
            if not wrapped and not (at and re.fullmatch(r"[\d.]+[smhd]?", argv[at])):
                return None
            at += 1
        return None


def launch_options(argv: list[str], table: OptionTable) -> tuple[dict[str, str | None], list[str]]:
    """A launcher's own options, and its program. Variables in the place of options are skipped."""
    options: dict[str, str | None] = {}
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word.startswith("$"):
            continue
        if word in ("--", ":"):
            continue
        if word.startswith("--"):
            spelling, equals, value = word.partition("=")
            name = table.canonical(spelling) or spelling[2:]
            if equals:
                options[name] = value
            elif table.takes_value(spelling) is not False and at < len(argv):
                options[name] = argv[at]
                at += 1
            else:
                options[name] = None
        elif word.startswith("-") and len(word) > 1:
            for index, letter in enumerate(word[1:], 1):
                spelling = f"-{letter}"
                name = table.canonical(spelling) or letter
                if table.takes_value(spelling):
                    rest = word[index + 1 :]
                    if not rest and at < len(argv):
                        rest = argv[at]
                        at += 1
                    options[name] = rest
                    break
                options[name] = None
        else:
            return options, argv[at - 1 :]
    return options, []


def read_job(script: LintedScript, grammars: Sequence[Grammar]) -> LintedJob:
    """Read the headers of these schedulers and, where it is a POSIX shell's, the body."""
    options: dict[str, Options] = {}
    for grammar in grammars:
        header = grammar.read(script.lines)
        if grammar.is_meant(header):
            options[grammar.name] = grammar.parse(header)
    # csh has another grammar, but the same comments and here-documents.
    is_shell = script.is_posix_shell or script.interpreter in ("csh", "tcsh")
    layout = read_shell(script.text.removeprefix("\ufeff")) if is_shell else None
    job = LintedJob(script, grammars, options, layout)
    for command in job.commands:
        for name, word in command.assignments:
            job.variables[name] = word
    return job
