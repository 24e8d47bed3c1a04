"""Rules about what a script starts. It runs once, on the first node of its job."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.job import LintedJob, option_in
from hpc_amp.lint.shell import Command
from hpc_amp.lint.starts import LocalStart, local_programs, starts_elsewhere
from hpc_amp.schedulers.grammar import number


def check_starts(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    if not job.options:
        return
    _first_node_only(job, report)
    _background(job, report)


def _first_node_only(job: LintedJob, report: FileFindings) -> None:
    """Check that the script starts processes on all nodes or tasks that it requests."""
    places = job.places
    programs = local_programs(job)
    if not programs or places is None or starts_elsewhere(job):
        return
    agents = [one for one in programs if one.kind == "agent"]
    if places > 1 and agents:
        for agent in agents:
            _agent_once(job, agent, places, report)
    elif (job.nodes or 1) > 1:
        _python_once(job, programs[-1], report)
    elif not agents:
        _tasks_once(job, programs[-1], report)


def _agent_once(job: LintedJob, agent: LocalStart, places: int, report: FileFindings) -> None:
    if _may_start_others(agent):
        return
    where = f"runs once, on the first of {places} {job.place_name}"
    if _waits_for_others(agent):
        report.add(
            "first-node-only",
            agent.line,
            f"{agent.name} {where}, and waits for the others, on which it is not started",
            f"start it once on each node: {job.grammar.once_a_node} {shown(agent.name)} …",
        )
    elif (job.nodes or 1) > 1:
        report.add(
            "started-once",
            agent.line,
            f"{agent.name} {where}: the others are idle",
            f"start it on each node, with --nnodes: {job.grammar.once_a_node} "
            f"{shown(agent.name)} …; or request one node",
        )


_SEVERAL = re.compile(
    r"SLURM_(?:JOB_NUM_|N)NODES\b|NUM_?NODES\b|NNODES\b|NODEFILE|\bwc\b", re.IGNORECASE
)


def _waits_for_others(agent: LocalStart) -> bool:
    """Whether its options name several nodes, so that it waits for all of them."""
    name = "num-machines" if "accelerate" in agent.name else "nnodes"
    value = (option_in(agent.text, name) or "1").partition(":")[0]
    several = (number(value) or 1) > 1
    return several or (":-" not in value and _SEVERAL.search(value) is not None)


def _may_start_others(agent: LocalStart) -> bool:
    """Whether accelerate may use pdsh or mpirun, by its options or its configuration file."""
    of_its_own = r"deepspeed|mpirun|--config[-_]file(?!.*--machine[-_]rank)"
    return "accelerate" in agent.name and re.search(of_its_own, agent.text) is not None


# Programs that start processes on other nodes themselves, or that have another purpose.
_STARTS_ITSELF = re.compile(
    r"ray|dask|spark|parsl|slurm|submit|launch|hosts?\b|node_?list|nodes_?file|client|server"
    r"|cluster|schedul|download|prepare|preproc|convert|plot|evaluat|test",
    re.IGNORECASE,
)


def _python_once(job: LintedJob, program: LocalStart, report: FileFindings) -> None:
    if not job.is_distributed or _STARTS_ITSELF.search(program.text):
        return
    report.add(
        "started-once",
        program.line,
        f"`{shown(program.name, 40)}` runs once, on the first of {job.nodes} nodes: it is not "
        "started on the others",
        f"start it with a launcher: {job.grammar.once_a_node} {shown(program.name, 40)}; or "
        "request one node",
    )


def _tasks_once(job: LintedJob, program: LocalStart, report: FileFindings) -> None:
    """Check for a single process although WORLD_SIZE is the number of Slurm's tasks."""
    tasks = job.tasks_per_node or job.ntasks or 1
    if tasks < 2 or "spawn" in job.body or "multiprocessing" in job.body:
        return
    for command in job.commands:
        for name, word in command.assignments:
            promised = re.search(r"SLURM_(?:NTASKS|NPROCS)\b", word.live) is not None
            if name == "WORLD_SIZE" and promised and name in job.exported and not command.depth:
                report.add(
                    "started-once",
                    program.line,
                    f"`{shown(program.name, 40)}` runs once, but line {word.line} sets WORLD_SIZE "
                    f"to {tasks}: it waits for ranks that are not started",
                    f"start it with a launcher: srun {shown(program.name, 40)}",
                )
                return


# Commands that may follow at the end of a script without doing work.
_LAST_WORDS = {
    "echo",
    "printf",
    "date",
    "export",
    "done",
    "fi",
    "esac",
    "deactivate",
    "set",
    "exit",
}


def _background(job: LintedJob, report: FileFindings) -> None:
    """Check that the script waits for work in the background, which is killed at its end."""
    commands = [one for one in job.commands if not one.depth]
    started = [
        index
        for index, command in enumerate(commands)
        if command.background and command.function is None and _is_work(job, command)
    ]
    if not started:
        return
    last = started[-1]
    if any(re.search(r"\bwait\b", word.text) for one in job.commands for word in one.words):
        return
    for command in commands[last + 1 :]:
        program = command.program
        if command.function is None and program and program[0].text not in _LAST_WORDS:
            return
    report.add(
        "background-not-waited",
        commands[last].line,
        "the script ends while this runs in the background: the scheduler then ends the job and "
        "kills it",
        "write `wait` at the end of the script",
    )


def _is_work(job: LintedJob, command: Command) -> bool:
    started = [one.command for one in job.launches] + [one.command for one in local_programs(job)]
    return any(one is command for one in started)
