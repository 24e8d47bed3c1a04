"""`hpc-amp shell`: run a shell, or one command, on a node, in the environment of the job's ranks.

Each session has a folder with its script. If the session is of a job file, the folder also has
job.json and the package, as a run directory. It is removed at the end, unless the session wrote
files into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import LoadedJob, read_job, read_tree
from hpc_amp.config.schema import Job, Resources
from hpc_amp.config.site import Site
from hpc_amp.config.sites import find_site, site_of
from hpc_amp.config.source import parse
from hpc_amp.config.tree import MappingNode
from hpc_amp.errors import SchedulerError, UsageError
from hpc_amp.jobs import rundir, terminal
from hpc_amp.jobs.code import copy_package, host_folder
from hpc_amp.jobs.plan import Plan, absolute_path, make_plan
from hpc_amp.jobs.render import render_session
from hpc_amp.launchers import get_launcher
from hpc_amp.schedulers.base import Interactive, run_here, script_command

_SCRIPT = "shell.sh"
_MARKS = ("started", "status")


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is not started yet. Its job.json is in `plan.run_dir`."""

    plan: Plan
    folder: Path
    command: tuple[str, ...]
    """Empty for a shell."""
    config_text: str | None
    """The text of the job file; None if the session is of a run."""

    @property
    def request(self) -> Plan:
        """The plan whose resources are requested from the scheduler: one node of the job, with its
        cores and GPUs, for one process."""
        job = self.plan.job
        resources = dataclasses.replace(
            job.resources, nodes=1, ranks_per_node=1, cpus_per_gpu=job.cpus_per_node
        )
        return dataclasses.replace(
            self.plan,
            job=dataclasses.replace(job, resources=resources),
            launcher=get_launcher("single"),
        )


def of_config(config: Path | None, overrides: Sequence[str], command: Sequence[str]) -> Session:
    """Prepare a session for a job file. If `config` is None, its job has only the site's defaults
    and the overrides. `command` is empty for a shell. Raises ConfigError."""
    if config is None:
        where = "hpc-amp shell"
        tree = parse("name: shell\nrun: [sh]\n", lambda line: where)
        assert isinstance(tree, MappingNode)
        source = read_tree(Path(where), "", tree, overrides)
    else:
        source = read_job(config, overrides)
    site = site_of(source)
    loaded = source.validate(site.defaults)
    check_job(loaded, site)
    job = loaded.job
    folder = Path(job.runs_dir) / job.name / f"shell-{rundir.new_run_id()}"
    # A session works on the user's code itself, not on a copy.
    loaded = loaded._replace(job=dataclasses.replace(_on_one_node(job), code=None))
    plan = make_plan(loaded, site, folder)
    if job.code is not None:
        code = Path(absolute_path(job.code, Path.cwd()))
        job = dataclasses.replace(plan.job, code=str(code))  # a task is imported from there
        plan = dataclasses.replace(plan, workdir=code, job=job)
    return Session(plan, plan.run_dir, tuple(command), source.text)


def of_run(run_dir: Path, overrides: Sequence[str], command: Sequence[str]) -> Session:
    """Prepare a session for a run, with the run's code and job. `overrides` may change keys of
    `job` only. `command` is empty for a shell. Raises ConfigError or UsageError."""
    rundir.refuse_elsewhere(run_dir)
    resolved = rundir.read_resolved(run_dir)
    if not (host_folder(run_dir) / "begin_alone.sh").is_file():
        raise UsageError(
            f"{run_dir} was made by an older hpc-amp ({resolved.get('hpc_amp', 'unknown')})",
            hint="this version cannot open a shell for its runs; name the job file instead",
        )
    job = rundir.job_of(run_dir, resolved)
    for override in overrides:
        if not override.startswith("job."):
            raise UsageError(
                f"{override}: for the shell of a run, only keys of job can be set",
                hint="name the job file instead of the run",
            )
    resources, tree = _resources(run_dir, resolved["job"], overrides)
    loaded = LoadedJob(
        _on_one_node(dataclasses.replace(job, resources=resources)), run_dir / "job.json", "", tree
    )
    plan = make_plan(loaded, _site_of(job, resolved), run_dir)
    if not (host_folder(run_dir) / "containers" / f"{plan.container.name}.sh").is_file():
        raise UsageError(
            f"{run_dir} has no host code for the container runtime {plan.container.name}: the site "
            f"{plan.site.name} used another one when the run was submitted",
            hint="name the job file instead of the run",
        )
    plan = dataclasses.replace(
        plan,
        workdir=Path(resolved["workdir"]),
        shares_code=(run_dir / "src").is_symlink(),
        python=resolved.get("python", plan.python),
    )
    return Session(plan, plan.run_dir / f"shell-{rundir.new_run_id()}", tuple(command), None)


def _on_one_node(job: Job) -> Job:
    return dataclasses.replace(job, resources=dataclasses.replace(job.resources, nodes=1))


def _resources(
    run_dir: Path, job: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Resources, MappingNode]:
    where = str(run_dir / "job.json")
    shown = {"name": "run", "run": ["sh"], "job": job.get("job", {})}
    tree = parse(json.dumps(shown, ensure_ascii=False), lambda line: where)
    assert isinstance(tree, MappingNode)
    source = read_tree(Path(where), "", tree, overrides)
    return source.validate().job.resources, source.tree


def _site_of(job: Job, resolved: Mapping[str, Any]) -> Site:
    """The site of a run. If the job named a site file, that file is read again if it exists."""
    is_path = "/" in job.site or job.site.endswith((".yaml", ".yml"))
    if is_path and os.path.isfile(job.site):
        return find_site(job.site)
    return find_site(resolved["site"])


# ---- lines to copy -------------------------------------------------------------------------------


def lines_to_copy(session: Session, *, here: bool, environ: Mapping[str, str]) -> list[str]:
    """The lines that a user can type on a node instead of calling `hpc-amp shell`: the environment
    and `setup` of site and job, and the container's command. `here`: this machine is the node.

    The command sets the environment inside the container, where the image's environment cannot
    override it and no shell evaluates it.
    """
    # The session's own folder is not created.
    folder = session.plan.workdir if session.config_text is not None else session.plan.run_dir
    plan = dataclasses.replace(session.plan, run_dir=folder)
    lines = []
    if not here and plan.scheduler.allocation and not environ.get(plan.scheduler.allocation):
        request = dataclasses.replace(session.request, run_dir=folder)
        script = folder / _SCRIPT
        how = plan.scheduler.interactive(request, script, environ, terminal=True)
        words = how.command if how.typed else _for_a_shell(how.command, script)
        if words:
            lines.append(f"# a node of the job's kind: {shlex.join(words)}")
    for name, value in {**plan.fabric_env, **plan.site.env}.items():
        lines.append(f"export {name}={shlex.quote(value)}")
    for text in (plan.site.setup, plan.job.resources.setup):
        lines += text.rstrip().splitlines()
    return [*lines, shlex.join(_container_words(session, plan))]


def _for_a_shell(command: Sequence[str], script: Path) -> list[str]:
    """Replace the script at the end of `command`, which runs it on a new node, by a login shell.
    Returns an empty list if the command runs the script on this machine."""
    here = run_here(script, {}).command
    for runs in (script_command(script), here, [str(script)]):
        # Some schedulers pass the words to a shell, and the command then has them quoted.
        for end in (runs, [shlex.quote(word) for word in runs]):
            before = list(command[: -len(end)])
            if [*before, *end] == list(command):
                return _and_a_shell(before)
    return []


def _and_a_shell(before: list[str]) -> list[str]:
    if before and before[-1] == "--":
        return before[:-1]
    return [*before, "bash", "-l"] if before else []


def _container_words(session: Session, plan: Plan) -> list[str]:
    variables = {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(plan.job.resources.cpus_per_gpu),
        **plan.fabric_env,
        **plan.site.env,
        **plan.job.container.env,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "61000",
    }
    if session.config_text is None:
        variables["HPC_AMP_JOB"] = str(plan.run_dir / "job.json")
        own = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [f"{plan.run_dir}/src", own]))
    command = list(session.command) or ["bash", "--norc"]
    if command[0] in ("python", "python3"):
        command[0] = plan.python
    inside = ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
    return plan.container.command(plan, inside)


# ---- running a session ---------------------------------------------------------------------------


def start(
    session: Session, *, here: bool, environ: Mapping[str, str], say: Callable[[str], None]
) -> int:
    """Run a session. Returns the exit status of its shell or command. `here`: run it on this
    machine. `say` is called with messages for the user. Raises HpcAmpError if the session cannot be
    started."""
    has_terminal = terminal.is_terminal()
    if not session.command and not has_terminal:
        raise UsageError(
            "there is no terminal to type into",
            hint="call it from one, or give a command: hpc-amp shell -- COMMAND",
        )
    scheduler, script = session.plan.scheduler, session.folder / _SCRIPT
    how: Interactive | None
    if here:
        how = run_here(script, environ)
    else:
        how = scheduler.inside(script, environ, terminal=has_terminal)
    is_new = how is None
    if how is None:
        scheduler.check(dataclasses.replace(session.request, run_dir=session.folder))
        how = scheduler.interactive(session.request, script, environ, terminal=has_terminal)
    text = render_session(
        session.plan,
        session.folder,
        session.command,
        records_status=how.records_status,
        limited=is_new and scheduler.allocation != "",
    )
    made = _create(session, text)
    try:
        return _run(session, how)
    finally:
        _remove(session, made, say)


def _run(session: Session, how: Interactive) -> int:
    started = session.folder / "started"
    if how.is_watched:
        return _run_watched(session, how)
    status, interrupted, signalled = terminal.run(how)
    recorded = _recorded_status(session)
    if signalled and (status if recorded is None else recorded) == 0:
        return 128 + signalled  # a shell may take it for the end of its input, and end well
    if recorded is not None:
        if recorded != status:
            terminal.tell(f"hpc-amp: the session has ended with exit status {recorded}")
        return recorded
    if interrupted and not started.exists():
        return 128 + signal.SIGINT
    if interrupted and status == 0 and how.hides_interrupts:
        return 128 + signal.SIGINT
    return status


def _run_watched(session: Session, how: Interactive) -> int:
    name = session.plan.scheduler.title
    try:
        status = terminal.watch(how, session.plan.scheduler.cancel)
    except terminal.SessionInterrupted as interrupted:
        if interrupted.job_id is not None:
            terminal.tell(f"hpc-amp: job {interrupted.job_id} is deleted")
        return 128 + interrupted.number
    recorded = _recorded_status(session)
    if recorded is not None:
        return recorded
    if (session.folder / "started").exists():
        raise SchedulerError(
            "the session was ended by its time limit or by the scheduler",
            hint=f"{name} may know why",
        )
    if status == 0:
        raise SchedulerError(f"{name} ended the job before the session could start")
    return status  # the scheduler's command has printed the reason


def _recorded_status(session: Session) -> int | None:
    """The exit status that the session's script has written; None if it has not."""
    try:
        return int((session.folder / "status").read_text())
    except (OSError, ValueError):
        return None


def _create(session: Session, script: str) -> set[str]:
    """Create the session's folder with the files that it needs. Returns the names of all files
    that hpc-amp writes to it. Raises UsageError if it cannot be written."""
    folder, plan = session.folder, session.plan
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise UsageError(f"the session's folder cannot be created: {error}") from None
    try:
        if session.config_text is not None:
            copy_package(folder, session.plan)
            rundir.write_resolved(plan, folder)
        (folder / _SCRIPT).write_text(script)
        return {*os.listdir(folder), *_MARKS}
    except BaseException as error:
        _discard(session)
        if isinstance(error, OSError):
            raise UsageError(f"the session's folder cannot be written: {error}") from None
        raise


def _discard(session: Session) -> None:
    """Remove the session's folder. That of a run's session is in the run directory, which stays."""
    if session.config_text is None:
        shutil.rmtree(session.folder, ignore_errors=True)
    else:
        rundir.discard(session.folder)


def _remove(session: Session, made: set[str], say: Callable[[str], None]) -> None:
    """Remove the session's folder, unless it has other files than those in `made`, such as
    checkpoints. `say` is called with a message in this case."""
    leftovers = session.plan.scheduler.leftover_files
    with contextlib.suppress(OSError):
        others = sorted(
            name
            for name in os.listdir(session.folder)
            if name not in made and not re.fullmatch(leftovers, name)
        )
        if others and session.config_text is not None:
            shown = ", ".join(others[:4]) + (", ..." if len(others) > 4 else "")
            say(f"kept {session.folder}: the session wrote {shown} there")
            return
    # A process on the node may still be ending and write its last file during the removal.
    for seconds in (0.0, 0.1, 0.5, 1.0, 2.0):
        time.sleep(seconds)
        _discard(session)
        if not session.folder.exists():
            return
