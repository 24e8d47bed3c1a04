"""Rules about rank variables: RANK and similar, which every task must set for itself."""

from __future__ import annotations

import re
from pathlib import Path

from hpc_amp.config.command import local_rank_argument
from hpc_amp.lint.findings import FileFindings
from hpc_amp.lint.job import LaunchLine, LintedJob, option_in
from hpc_amp.lint.shell import ShellWord
from hpc_amp.schedulers.grammar import number
from hpc_amp.schedulers.pbs.grammar import resources as pbs_resources

# Variables that differ between tasks. In the batch script they have the values of its own process,
# or they are not set.
_OF_TASKS = {
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
    *("PMI_RANK", "PMI_LOCAL_RANK", "PMIX_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID"),
    *("MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
}

_TASK_VARIABLE = re.compile(rf"\$\{{?({'|'.join(sorted(_OF_TASKS))})\b")
_TORCHRUN = re.compile(r"torchrun|torch\.distributed\.run")
_RANK_NAMES = {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "GLOBAL_RANK"}


def check_ranks(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    if not job.is_batch:
        return
    frozen = _rank_in_batch_shell(job, report)
    _rank_expanded_early(job, frozen, report)
    _local_rank_argument(job, report)
    _written_scripts(job, report)
    _sizes(job, report)
    _node_file(job, report)


def _rank_in_batch_shell(job: LintedJob, report: FileFindings) -> set[str]:
    """Check for RANK and similar variables that are set once for all tasks.

    Returns the names of all variables that hold such a value.
    """
    frozen: set[str] = set()
    exported = job.exported
    # A function that is exported runs in the tasks, with their variables.
    ranked = any(launch.agent is None for launch in job.launches) or not job.launches
    functions_travel = re.search(r"\bexport -f\b|\bdeclare -f", job.body) is not None
    for command in job.commands:
        if command.depth or (command.function is not None and functions_travel):
            continue
        for name, word in command.assignments:
            value = word.live.partition("=")[2]
            match = _TASK_VARIABLE.search(value)
            if match is None:
                continue
            if " " not in value:
                frozen.add(name)
            is_rank = name in _RANK_NAMES and (name in exported or bool(command.program))
            if is_rank and job.has_many_tasks and (ranked or name in ("NODE_RANK", "GROUP_RANK")):
                report.add(
                    "rank-in-batch-shell",
                    word.line,
                    f"{name} is set once, in the batch script, where ${match[1]} has the value of "
                    "the script's own process: every task gets the same value",
                    f"set it in each task: srun bash -c 'export {name}=${match[1]}; exec …', or "
                    "read it in Python",
                )
    for command in job.commands:
        for name, word in command.assignments:
            literal = job.expand(word.text).partition("=")[2]
            if (
                name in ("RANK", "LOCAL_RANK")
                and number(literal) is not None
                and name in exported
                and command.depth == 0
                and command.function is None
                and any(launch.agent is None and job.starts_many(launch) for launch in job.launches)
            ):
                report.add(
                    "rank-in-batch-shell",
                    word.line,
                    f"{name}={literal} is exported to every task: all tasks get the same rank",
                    f"remove it; set {name} in each task from SLURM_PROCID or a similar variable",
                )
    return frozen


def _rank_expanded_early(job: LintedJob, frozen: set[str], report: FileFindings) -> None:
    """Check for rank variables that the batch shell expands before the tasks start."""
    names = "|".join(sorted(_OF_TASKS | frozen))
    pattern = re.compile(rf"\$\{{?({names})\b")
    for launch in job.launches:
        if not job.starts_many(launch):
            continue
        words = [*_after_launcher(launch), *_variables_in(job, launch)]
        for word in words:
            match = pattern.search(word.live)
            if match is None:
                continue
            if _node_rank_unused(launch):
                continue
            report.add(
                "rank-expanded-early",
                word.line,
                f"the batch shell expands ${match[1]} before {launch.kind} starts any task: all "
                "tasks get the same value",
                f"let each task expand it, with single quotes: {launch.kind} bash -c "
                f"'… ${match[1]} …'",
            )
            break
        for heredoc in launch.command.heredocs:
            match = pattern.search(heredoc.text) if heredoc.live else None
            if match is not None:
                report.add(
                    "rank-expanded-early",
                    heredoc.line + heredoc.text.count("\n", 0, match.start()),
                    f"the batch shell expands ${match[1]} in this here-document before "
                    f"{launch.kind} starts any task",
                    "quote the delimiter: <<'EOF'",
                )


def _after_launcher(launch: LaunchLine) -> list[ShellWord]:
    words = launch.command.program
    for index, word in enumerate(words):
        if word.text.rpartition("/")[2] == launch.kind:
            return words[index + 1 :]
    return words


def _variables_in(job: LintedJob, launch: LaunchLine) -> list[ShellWord]:
    """The values of the variables that the launch uses, such as CMD="… $SLURM_PROCID"."""
    found = []
    for word in launch.command.program:
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", word.live):
            value = job.variables.get(name)
            if value is not None and name not in _RANK_NAMES:
                if value.items:
                    found += list(value.items)
                elif " " in value.text:
                    found.append(value)
    return found


def _node_rank_unused(launch: LaunchLine) -> bool:
    """Whether the launch ignores --node_rank.

    With one node or with the c10d rendezvous, torchrun numbers the nodes itself. So does
    accelerate.
    """
    text = launch.text
    if option_in(text, "nnodes") in ("1", "1:1"):
        return True
    backend = option_in(text, "rdzv-backend") or ""
    if backend and backend != "static":
        return True
    if re.search(r"rdzv_backend[= ]c10d", text):
        return True
    return launch.agent is not None and option_in(text, "rdzv-endpoint") is not None and not backend


_LONGEST_PROGRAM = 2**20


def _local_rank_argument(job: LintedJob, report: FileFindings) -> None:
    """Check for a program with an option --local_rank that its launcher does not set. Programs are
    read if they are beside the script or in the working directory."""
    for launch in job.launches:
        agent = launch.agent
        if not job.starts_many(launch) or not (agent is None or _TORCHRUN.search(agent)):
            continue
        name = next((word for word in launch.payload if word.endswith(".py")), None)
        text = None if name is None else _program(job, name)
        option = None if text is None else local_rank_argument(text)
        if option is None or re.search(r"\s--local[-_]rank\b", launch.text):
            continue
        line, default = option
        report.add(
            "local-rank-argument",
            launch.line,
            f"{name}:{line} takes the local rank from an option, which {agent or launch.kind} does "
            f"not set: it is {default} in every rank, so all ranks of a node use the same GPU",
            f"read the variable that {'torchrun sets' if agent else 'each task has'}: default="
            f'int(os.environ.get("{"LOCAL_RANK" if agent else _local_id(launch)}", 0))',
        )


def _program(job: LintedJob, name: str) -> str | None:
    for folder in (Path(job.script.name).parent, Path()):
        path = folder / name
        try:
            if path.is_file() and path.stat().st_size <= _LONGEST_PROGRAM:
                return path.read_text(errors="replace")
        except OSError:
            continue
    return None


def _local_id(launch: LaunchLine) -> str:
    return "SLURM_LOCALID" if launch.kind == "srun" else "OMPI_COMM_WORLD_LOCAL_RANK"


def _written_scripts(job: LintedJob, report: FileFindings) -> None:
    """Check for `cat > run.sh <<EOF` with a rank variable, which is expanded at once."""
    for command in job.commands:
        program = [word.text for word in command.program]
        if program[:1] not in (["cat"], ["tee"]) or not (command.redirects or len(program) > 1):
            continue
        for heredoc in command.heredocs:
            if not heredoc.live:
                continue
            for offset, line in enumerate(heredoc.text.split("\n")):
                match = re.search(rf"RANK\w*[=\s]+['\"]?(?<!\\){_TASK_VARIABLE.pattern}", line)
                if match is not None:
                    report.add(
                        "rank-expanded-early",
                        heredoc.line + offset,
                        f"${match[1]} is expanded when this file is written, once for all tasks",
                        f"quote the delimiter (<<'EOF'), or write \\${match[1]}",
                    )
                    break


def _sizes(job: LintedJob, report: FileFindings) -> None:
    """Check for arithmetic with SLURM_TASKS_PER_NODE, which may be `4(x2)`."""
    if (job.nodes or 1) < 2:
        return
    for command in job.commands:
        for word in command.words:
            if re.search(r"\$\(\([^)]*\bSLURM_TASKS_PER_NODE\b", word.live):
                report.add(
                    "tasks-per-node-list",
                    word.line,
                    "on several nodes, SLURM_TASKS_PER_NODE is a list such as `4(x2)`, not a "
                    "number",
                    "use SLURM_NTASKS for the total, or give --ntasks-per-node and use "
                    "SLURM_NTASKS_PER_NODE",
                )
                return


_COUNTS_LINES = re.compile(r"\bwc\s+-l\b")
_NAMES_NODES = re.compile(r"(?:NUM_?|N_?)?(?:NODES|MACHINES|HOSTS)(?:_?COUNT)?", re.IGNORECASE)


def _node_file(job: LintedJob, report: FileFindings) -> None:
    """Check for nodes counted as lines of PBS_NODEFILE, which has a line for each MPI process."""
    if "pbs" not in job.options:
        return
    resources = pbs_resources(job.options["pbs"])
    repeats = re.search(
        r"(?:mpiprocs|ppn)=(\d+)", resources.get("select", "") + ":" + resources.get("nodes", "")
    )
    if repeats is None or int(repeats[1]) < 2:
        return
    for command in job.commands:
        counted = [
            (name, word) for name, word in command.assignments if _NAMES_NODES.fullmatch(name)
        ]
        for before, word in zip(command.program, command.program[1:], strict=False):
            if re.fullmatch(r"--?(?:nnodes|num[-_](?:nodes|machines))", before.text):
                counted.append((before.text, word))
        for word in command.program:
            if re.match(r"--?(?:nnodes|num[-_](?:nodes|machines))=", word.text):
                counted.append((word.text.partition("=")[0], word))
        for name, word in counted:
            text = word.live
            if not ("PBS_NODEFILE" in text and _COUNTS_LINES.search(text)):
                continue
            if re.search(r"uniq|sort\s+(?:-\w+\s+)*-\w*u|awk", text):
                continue
            report.add(
                "node-file-lines",
                word.line,
                f"PBS_NODEFILE has {repeats[1]} lines for each node ({repeats[0]}): {name} is "
                f"{repeats[1]} times too large",
                'count each node once: $(sort -u "$PBS_NODEFILE" | wc -l)',
            )
