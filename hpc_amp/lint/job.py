"""What a launch script asks for and starts: nodes, tasks, GPUs, and its srun or mpirun commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from hpc_amp.lint.directives import SCHEDULERS, SchedulerName, read_header
from hpc_amp.lint.options import GRAMMARS, Grammar, Options, parse_options, resource_list
from hpc_amp.lint.script import Script
from hpc_amp.lint.shell import ASSIGNMENT, Command, Shell, Word, read_shell

# Variables that differ from task to task. In the batch script they are those of its own process,
# or not set at all.
TASK_VARIABLES = {
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
    *("PMI_RANK", "PMI_LOCAL_RANK", "PMIX_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID"),
    *("MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}
_MPI_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun"}
_OTHER_LAUNCHERS = {"aprun", "ibrun", "jsrun", "pdsh", "clush", "pbsdsh"}
LAUNCHERS = {"srun"} | _MPI_LAUNCHERS | _OTHER_LAUNCHERS
# Programs that start the program behind them.
_WRAPPERS = {"time", "exec", "nohup", "command", "env", "eval", "stdbuf", "unbuffer", "timeout"}

_SRUN_VALUE = """
mpi cpu-bind jobid r/relative container-image container-mounts container-workdir container-name
container-env container-mount environment task-prolog task-epilog prolog epilog accel-bind W/wait
het-group pack-group T/threads slurmd-debug image module volume uenv view
"""
_SRUN_FLAG = """
l/label u/unbuffered K/kill-on-bad-exit pty overlap exact multi-prog X/disable-status whole
Z/no-allocate no-container-mount-home container-mount-home bcast q/quit-on-interrupt E/preserve-env
container-writable container-readonly container-remap-root no-container-remap-root
"""


def _srun_grammar() -> Grammar:
    base = GRAMMARS["slurm"]

    def table(text: str) -> dict[str, str]:
        found = {}
        for entry in text.split():
            letter, _, name = entry.rpartition("/")
            found[f"--{name}"] = name
            if letter:
                found[f"-{letter}"] = name
        return found

    values, flags = table(_SRUN_VALUE), table(_SRUN_FLAG)
    with_value = {k: v for k, v in base.with_value.items() if k not in flags} | values
    return Grammar(
        with_value, {k: v for k, v in base.flags.items() if k not in values} | flags, long=True
    )


_SRUN = _srun_grammar()

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
class Launch:
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

    def payload_option(self, *names: str) -> str | None:
        """The value of `--name VALUE` or `--name=VALUE` of the program; underscores are dashes."""
        return option_in(self.text, *names)


def option_in(text: str, *names: str) -> str | None:
    """The last value of any of the long options in a command line, without quotes."""
    for name in names:
        pattern = name.replace("-", "[-_]")
        found = re.findall(rf"(?<!\S)['\"]?--?{pattern}(?:=|\s+)(\S+)", text)
        if found:
            return str(found[-1]).strip("'\"")
    return None


def number(text: str | None) -> int | None:
    """A plain count; None for anything else."""
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text) else None


@dataclass
class Job:
    """A script with its headers and its body read."""

    script: Script
    options: dict[SchedulerName, Options]
    layout: Shell | None  # None where the body is no shell script of any kind
    variables: dict[str, Word] = field(default_factory=dict)

    @property
    def shell(self) -> Shell | None:
        """The body, where its commands can be understood."""
        return self.layout if self.script.is_posix_shell else None

    @cached_property
    def commands(self) -> list[Command]:
        return self.shell.commands if self.shell else []

    @cached_property
    def launches(self) -> list[Launch]:
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
    def _slurm(self) -> Options:
        return self.options.get("slurm", Options())

    @cached_property
    def nodes(self) -> int | None:
        """The number of nodes where the header says it plainly."""
        if "slurm" in self.options:
            return self._slurm_nodes
        if "pbs" in self.options:
            return self._pbs_nodes
        if "cobalt" in self.options:
            return number(self.options["cobalt"].last("nodecount"))
        return None

    @property
    def _slurm_nodes(self) -> int | None:
        if self.is_heterogeneous:
            return None  # each component has its own
        value = self._slurm.last("nodes")
        if value:
            return number(value.partition("-")[0])
        tasks, per_node = self.ntasks, number(self._slurm.last("ntasks-per-node"))
        return -(-tasks // per_node) if tasks and per_node else None

    @property
    def is_heterogeneous(self) -> bool:
        """Whether the Slurm header is that of several jobs in one."""
        header = read_header(self.script, "slurm")
        return any(
            [word.text for word in one.split.words] in (["hetjob"], ["packjob"])
            for one in header.directives
        )

    @property
    def _pbs_nodes(self) -> int | None:
        resources = pbs_resources(self.options["pbs"])
        if (nodes := resources.get("nodes")) is not None:
            return number(nodes.partition(":")[0])
        select = resources.get("select")
        if select is None:
            return None
        chunks = self._pbs_chunks or 1
        scattered = "scatter" in resources.get("place", "") or ":system=" in select
        return chunks if scattered or chunks == 1 else None

    @property
    def _pbs_chunks(self) -> int | None:
        select = pbs_resources(self.options["pbs"]).get("select")
        if select is None:
            return None
        return sum(number(chunk.partition(":")[0]) or 1 for chunk in select.split("+"))

    @property
    def places(self) -> int | None:
        """Nodes, or the chunks of PBS where it is not said that each is on a node of its own."""
        if self.nodes is None and set(self.options) == {"pbs"}:
            return self._pbs_chunks
        return self.nodes

    @property
    def place_name(self) -> str:
        """What `places` counts."""
        return "nodes" if self.nodes is not None else "chunks"

    @property
    def ntasks(self) -> int | None:
        """All tasks that the Slurm header asks for."""
        return number(self._slurm.last("ntasks"))

    @cached_property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node by the Slurm header; None if it depends."""
        if "slurm" not in self.options:
            return None
        return _per_node(
            self._slurm.last("ntasks-per-node"), self._slurm.last("ntasks"), self.nodes
        )

    def tasks_per_node_of(self, launch: Launch) -> int | None:
        """Tasks on each node of one srun or mpirun; None if it depends."""
        if launch.kind == "srun":
            per_node, tasks = launch.options.get("ntasks-per-node"), launch.options.get("ntasks")
            nodes_text = launch.options.get("nodes")
            if per_node is None and tasks is None:
                if nodes_text is not None and self._slurm.last("ntasks") is not None:
                    return None
                return self.tasks_per_node
            nodes = number(nodes_text) if nodes_text is not None else self.nodes
            if tasks is not None and re.search(r"N?NODES\b|NUM_?NODES", tasks, re.IGNORECASE):
                return None if "*" in tasks else 1
            return _per_node(per_node, tasks, nodes)
        if launch.is_mpi:
            per_node = option_in(launch.text, "npernode", "ppn", "N")
            return number(per_node)
        return None

    def starts_many(self, launch: Launch) -> bool:
        """False only for a launch that surely starts a single task."""
        if launch.kind == "srun":
            tasks, nodes = launch.options.get("ntasks"), launch.options.get("nodes")
            if tasks == "1":
                return False
            one_on_a_node = self.tasks_per_node_of(launch) == 1
            if tasks is None and nodes is None and "slurm" in self.options:
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

    @cached_property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node by the Slurm header."""
        options = self._slurm
        if value := options.last("gpus-per-node"):
            return _gpu_count(value)
        if value := options.last("gres"):
            match = re.search(r"\bgpu(?:[:=]([^,]*))?", value)
            return (_gpu_count(match[1] or "1") if match else None) or None
        if (value := options.last("gpus")) and (count := _gpu_count(value)):
            nodes = self.nodes or 1
            return count // nodes if count % nodes == 0 else None
        return None

    @property
    def asks_for_gpus(self) -> bool:
        options = self._slurm
        names = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket")
        return any(options.all(name) for name in names) or "gpu" in (options.last("gres") or "")

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

    def argv(self, words: list[Word]) -> list[str]:
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

    def _launch(self, command: Command) -> Launch | None:
        argv = self.argv(command.program)
        at = 0
        while at < len(argv) and at < 6:
            name = argv[at].rpartition("/")[2]
            if name in LAUNCHERS:
                rest = argv[at + 1 :]
                if name == "srun":
                    options, payload = srun_options(rest)
                else:
                    options, payload = {}, rest
                return Launch(name, command, argv[at:], options, payload)
            wrapped = name in _WRAPPERS or ASSIGNMENT.match(argv[at]) or argv[at].startswith("-")
            if not wrapped and not (at and re.fullmatch(r"[\d.]+[smhd]?", argv[at])):
                return None
            at += 1
        return None


def _per_node(per_node: str | None, tasks: str | None, nodes: int | None) -> int | None:
    if per_node is not None:
        return number(per_node)
    if tasks is None:
        return 1
    count = number(tasks)
    if count is None or (nodes is None and count > 1):
        return None
    return -(-count // (nodes or 1))


def _gpu_count(value: str) -> int | None:
    last = value.partition("(")[0].rpartition(":")[2]
    return number(last) if last[:1].isdigit() else 1 if last else None


def pbs_resources(options: Options) -> dict[str, str]:
    """The `-l` resources of a PBS header; the first of a name counts."""
    found: dict[str, str] = {}
    for option in options.all("l"):
        for name, value in resource_list(option.value or ""):
            found.setdefault(name, value or "")
    return found


def srun_options(argv: list[str]) -> tuple[dict[str, str | None], list[str]]:
    """srun's own options, and its program. Variables where an option may be are passed over."""
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
            name = _SRUN.canonical(spelling) or spelling[2:]
            name = "ntasks-per-node" if name == "tasks-per-node" else name
            if equals:
                options[name] = value
            elif _SRUN.takes_value(spelling) is not False and at < len(argv):
                options[name] = argv[at]
                at += 1
            else:
                options[name] = None
        elif word.startswith("-") and len(word) > 1:
            for index, letter in enumerate(word[1:], 1):
                spelling = f"-{letter}"
                name = _SRUN.canonical(spelling) or letter
                if _SRUN.takes_value(spelling):
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


def read_job(script: Script) -> Job:
    """Read headers and, where it is a POSIX shell's, the body."""
    options: dict[SchedulerName, Options] = {}
    for scheduler in SCHEDULERS:
        header = read_header(script, scheduler)
        if header.directives:
            options[scheduler] = parse_options(header)
    # csh has another grammar, but the same comments and here-documents.
    is_shell = script.is_posix_shell or script.interpreter in ("csh", "tcsh")
    layout = read_shell(script.text.removeprefix("\ufeff")) if is_shell else None
    job = Job(script, options, layout)
    for command in job.commands:
        for name, word in command.assignments:
            job.variables[name] = word
    return job
