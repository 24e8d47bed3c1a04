"""Read what a launch script requests (nodes, tasks, GPUs) and what it starts with a launcher."""

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
# Programs that start the program in their arguments.
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
    """A command that starts tasks with a launcher.

    `kind` is the name of the launcher, `argv` its command line with simple variables expanded,
    `options` the launcher's options, and `payload` the program that it starts, with arguments.
    """

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
        """The agent (torchrun or similar) that the tasks run, or None. It starts the ranks."""
        match = _AGENT.search(self.text)
        return match[0].strip(" \t\n/'\";&") if match else None


def option_in(text: str, *names: str) -> str | None:
    """Return the last value of a long option in a command line, without quotes.

    `names` are tried in order, without the leading dashes. `-` and `_` are equal in a name.
    """
    for name in names:
        pattern = name.replace("-", "[-_]")
        found = re.findall(rf"(?<!\S)['\"]?--?{pattern}(?:=|\s+)(\S+)", text)
        if found:
            return str(found[-1]).strip("'\"")
    return None


@dataclass
class LintedJob:
    """A script whose headers and body have been read.

    `options` has the options of each scheduler for which the script has directives, by name.
    """

    script: LintedScript
    grammars: Sequence[Grammar]
    options: dict[str, Options]
    layout: Shell | None  # None if the body is not a shell script
    variables: dict[str, ShellWord] = field(default_factory=dict)

    @property
    def shell(self) -> Shell | None:
        """The body, or None if a shell runs it whose commands are not understood."""
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
        """Whether the script seems to start distributed training with torch."""
        return _TORCH.search(self.body) is not None

    @cached_property
    def exported(self) -> set[str]:
        """The names of the variables that the script exports."""
        return {name for command in self.commands for name in command.exported}

    @property
    def is_batch(self) -> bool:
        """Whether the script is a batch script, not one that every task runs."""
        return bool(self.options) or bool(self.launches)

    # ---- resources -------------------------------------------------------------------------------
    @cached_property
    def requests(self) -> list[Requested]:
        """The resources that each header requests."""
        return [
            one.requested(self.options[one.name])
            for one in self.grammars
            if one.name in self.options
        ]

    @property
    def grammar(self) -> Grammar:
        """The grammar of the first scheduler for which the script has directives."""
        return next((one for one in self.grammars if one.name in self.options), self.grammars[0])

    @property
    def request(self) -> Requested:
        """The resources that the header for this scheduler requests."""
        return self.requests[0] if self.requests else Requested()

    @property
    def nodes(self) -> int | None:
        """The number of nodes, or None if the header does not give a plain number."""
        return self.request.nodes

    @property
    def is_heterogeneous(self) -> bool:
        """Whether a header describes a heterogeneous job."""
        return any(options.alone for options in self.options.values())

    @property
    def places(self) -> int | None:
        """The number of nodes, or of chunks if several chunks may share a node."""
        if self.nodes is None and len(self.options) == 1:
            return self.request.chunks
        return self.nodes

    @property
    def place_name(self) -> str:
        """What `places` counts: `nodes` or `chunks`."""
        return "nodes" if self.nodes is not None else "chunks"

    @property
    def ntasks(self) -> int | None:
        """The total number of tasks that the header requests."""
        return self.request.tasks

    @property
    def tasks_per_node(self) -> int | None:
        """The number of tasks on each node from the header, or None if it is not fixed."""
        return self.request.tasks_per_node

    def tasks_per_node_of(self, launch: LaunchLine) -> int | None:
        """The number of tasks on each node of a launch, or None if it is not fixed."""
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
        """Whether a launch starts several tasks. False only if it certainly starts one."""
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
        """Whether the script seems to start several tasks."""
        if self.launches:
            return any(self.starts_many(launch) for launch in self.launches)
        return (self.nodes or 1) > 1 or (self.tasks_per_node or self.ntasks or 1) > 1

    @property
    def gpus_per_node(self) -> int | None:
        """The number of GPUs on each node from the header, or None if it is not known."""
        return self.request.gpus_per_node

    @property
    def asks_for_gpus(self) -> bool:
        return self.request.gpus

    # ---- variables -------------------------------------------------------------------------------
    def expand(self, text: str, depth: int = 0) -> str:
        """Replace variables in `text` by their values, if the script sets them."""
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
        """The words of a command with variables expanded.

        An unquoted variable that is a whole word may become several words.
        """
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
    """Split the arguments of a launcher into its own options and the program with its arguments.

    Variables among the options are skipped.
    """
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
    """Read the headers for the schedulers of `grammars`, and the body if it is a shell script."""
    options: dict[str, Options] = {}
    for grammar in grammars:
        header = grammar.read(script.lines)
        if grammar.is_meant(header):
            options[grammar.name] = grammar.parse(header)
    # csh has another grammar, but its comments and here-documents are the same.
    is_shell = script.is_posix_shell or script.interpreter in ("csh", "tcsh")
    layout = read_shell(script.text.removeprefix("\ufeff")) if is_shell else None
    job = LintedJob(script, grammars, options, layout)
    for command in job.commands:
        for name, word in command.assignments:
            job.variables[name] = word
    return job
