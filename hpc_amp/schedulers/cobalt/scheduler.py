"""Cobalt: qsub's directives, qstat, qdel, and the .cobaltlog.

Behaviour was observed on Cobalt 1.0.33 and taken from its source (`qsub.py`, `client_utils.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.errors import ConfigError
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import (
    NEVER_STARTS,
    NOT_IN_QUEUE,
    JobStatus,
    Submission,
)
from hpc_amp.schedulers.base import (
    TERMINAL,
    Interactive,
    UnreachableError,
    complaint,
    needs_terminal,
    output_of,
    retried,
    run_command,
    script_command,
    submission_environment,
)
from hpc_amp.schedulers.cobalt.grammar import GRAMMAR
from hpc_amp.schedulers.cobalt.submission import OWN_VARIABLES, qsub
from hpc_amp.schedulers.qsub import QsubScheduler

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.config.site_draft import SiteDraft
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.cobalt.arrays import CobaltArrays

FILE = Path("/etc/cobalt.conf")
_COMMANDS = ("cqwait", "cqstat", "cqadm")  # programs that only Cobalt has
_OF_BATCH_JOBS = {"-o", "-e", "-O", "-i", "-h", "--dependencies", "--debuglog", "--mode"}
_SHORTEST_MINUTES = 5
_PENDING = {
    "queued": "",
    "user_hold": "held by its user",
    "admin_hold": "held by an administrator",
    "maxrun_hold": "its user has as many jobs running as are allowed",
    "preempted": "preempted",
}
_RUNNING = {"starting", "running", "exiting", "killing", "preempting"}

# The form in which options are written: those that have a letter.
_LETTERS = {
    "project": "-A",
    "queue": "-q",
    "time": "-t",
    "nodecount": "-n",
    "output": "-o",
    "error": "-e",
    "outputprefix": "-O",
    "inputfile": "-i",
    "notify": "-M",
    "umask": "-u",
    "kerneloptions": "-K",
    "held": "-h",
    "debug": "-d",
    "verbose": "-v",
    "interactive": "-I",
}
# Options with which qsub does not submit exactly one batch job and print its id.
_REFUSED = {
    "-I": "the job would be interactive; use `hpc-amp shell` for that",
    "--help": "qsub would submit nothing",
    "--version": "qsub would submit nothing",
}


class Cobalt(QsubScheduler):
    """Cobalt. qsub reads the lines `#COBALT ` that directly follow the first line, and splits them
    at blanks; there are no quotes. The script is not copied: the queue contains its path."""

    name = "cobalt"
    title = GRAMMAR.title
    grammar = GRAMMAR
    whole_nodes = True
    grace = 300  # the default of force_kill_delay
    allocation = "COBALT_JOBID"
    leftover_files = r"\d+\.(cobaltlog|error|output)"

    @classmethod
    def is_configured(cls, which: Which = which) -> bool:
        """Whether this machine has Cobalt's commands and configuration."""
        if not (which("qsub") and any(map(which, _COMMANDS))):
            return False
        named = os.environ.get("COBALT_CONFIG_FILES")
        files = [Path(file) for file in named.split(":") if file] if named else [FILE]
        return any(file.is_file() for file in files)

    def directives(self, plan: Spec) -> list[str]:
        """See `Scheduler.directives`. Each option is written once, and the `--attrs` of site and
        job are joined, because qsub accepts no repetition. Every word is checked to be an option or
        its value: qsub would ignore all directives after any other word."""
        values = self._values(plan)
        return [name if value is None else f"{name} {value}" for name, value in values.items()]

    def _values(self, plan: Spec) -> dict[str, str | None]:
        """The options with their values. The value is None for options that take none."""
        job, request = plan.job, plan.job.resources
        log = str(plan.run_dir / "logs" / "job.log")
        options = {
            "--jobname": job.name,
            "-n": str(request.nodes),
            "-t": str(-(-plan.walltime // 60)),  # in minutes
            "--cwd": str(plan.run_dir),
            "-o": log,
            "-e": log,
            # Cobalt replaces the variable. Each job has a file of its own, because the lines of the
            # file do not name the job.
            "--debuglog": str(plan.run_dir / "logs" / "$jobid.cobaltlog"),
        }
        if request.queue is not None:
            options["-q"] = request.queue
        if request.account is not None:
            options["-A"] = request.account
        unwanted = (*plan.site.skip_directives, *request.skip_directives)
        skipped = {_written(name) for name in unwanted}
        values: dict[str, str | None] = {
            name: value for name, value in options.items() if name not in skipped
        }
        for line in (*plan.site.directives, *request.directives):
            for name, value in _pairs(line):
                values[name] = _joined(name, values.get(name), value)
        for name, value in values.items():
            _refuse_what_breaks(name, value)
        return values

    def check(self, plan: Spec) -> None:
        """Refuse a walltime below Cobalt's minimum, and a run directory whose path Cobalt cannot
        pass to the node: a remote shell reads the script's path without quotes."""
        if plan.walltime < _SHORTEST_MINUTES * 60:
            raise ConfigError(
                f"job.walltime {plan.job.resources.walltime} is less than "
                f"{_SHORTEST_MINUTES} minutes, the minimum of Cobalt"
            )
        if not re.fullmatch(r"[A-Za-z0-9/._+@%,-]+", str(plan.run_dir)):
            raise ConfigError(
                f"Cobalt cannot pass on the path of the run directory: {plan.run_dir}",
                hint="set runs_dir to a folder with only letters, digits and ._+@%,- in its path",
            )

    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Submit with `qsub`. The job exists if its id is in the output: a site's filter may make
        qsub print an error and exit with 1 for a job that was accepted."""
        options = ["-h"] if held else []
        if after is not None:
            options += ["--dependencies", after]
        return qsub(options, script, environ)

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """`qsub -I` opens a login shell on the first node and takes no command, so the command is
        typed into the shell: `exec` and words without special characters (see `check`), which
        every shell reads in the same way."""
        if not terminal:
            raise needs_terminal("Cobalt")
        values = {k: v for k, v in self._values(plan).items() if k not in _OF_BATCH_JOBS}
        values["--cwd"] = str(script.parent)  # Cobalt writes its own files there
        return Interactive(
            ["qsub", "-I", *(w for pair in values.items() for w in pair if w is not None)],
            submission_environment(environ, *OWN_VARIABLES, *TERMINAL),
            job_id=r"Wait for job (\d+) to start",
            ready=r"Opening interactive session to \S+",
            typed=f"exec {' '.join(script_command(script))}",
        )

    def arrays(self) -> CobaltArrays:
        """One job for each task."""
        from hpc_amp.schedulers.cobalt.arrays import CobaltArrays  # only for many runs

        return CobaltArrays(self)

    def queued(self) -> dict[str, Path]:
        """The scripts of jobs. Cobalt accepts no script with a blank in its path."""
        lines = output_of(["qstat", "--header", "JobID:Command"]).splitlines()
        rows = (line.split() for line in lines)
        return {row[0]: Path(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}

    @retried
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query with one `qstat`. It prints nothing for unknown jobs. If it knows none of them, it
        exits with 1 and no message; if the server does not answer, with 1 and a message."""
        if not job_ids:
            return {}
        result = run_command(["qstat", "--header", "JobID:State", *job_ids])
        knows_none = result.returncode == 1 and not f"{result.stdout}{result.stderr}".strip()
        if result.returncode != 0 and not knows_none:
            raise UnreachableError(f"qstat does not answer: {complaint(result)}")
        rows = (line.split() for line in result.stdout.splitlines())
        return {row[0]: _status(row[1]) for row in rows if len(row) >= 2 and row[0] in job_ids}

    @retried
    def cancel(self, job_id: str) -> None:
        """Cancel with `qdel`, which ignores unknown jobs."""
        result = run_command(["qdel", job_id])
        if result.returncode != 0:
            raise UnreachableError(f"qdel {job_id}: {complaint(result)}")

    def draft_site(self, draft: SiteDraft, clients: Clients, queue: str | None) -> None:
        """Queues and numbers of nodes, from qstat and nodelist."""
        from hpc_amp.schedulers.cobalt.draft import draft_site

        draft_site(draft, clients, queue)

    def final_status(self, job_id: str, run_dir: Path) -> JobStatus:
        """From the .cobaltlog, which is the only record. Its last line is written late, and is
        missing if the job was killed."""
        try:
            text = (run_dir / "logs" / f"{job_id}.cobaltlog").read_text(errors="replace")
        except OSError:
            return NOT_IN_QUEUE
        if match := re.search(r"task completed normally with an exit code of (-?\d+)", text):
            return JobStatus("ended", f"exit status {match[1]}")
        if "maximum execution time exceeded" in text:
            return JobStatus("ended", "Cobalt ended it at its time limit")
        if "user delete requested" in text:
            return JobStatus("ended", "cancelled with qdel")
        return NOT_IN_QUEUE


def _written(spelling: str) -> str:
    """The form in which an option is written in directives, from any of its spellings."""
    name = GRAMMAR.options.canonical(spelling)
    return spelling if name is None else _LETTERS.get(name, f"--{name}")


def _pairs(line: str) -> list[tuple[str, str | None]]:
    """The options of a directive and their values, as qsub reads them. Raises ConfigError for any
    other word: qsub would read it as the program and ignore all directives after it."""
    found = GRAMMAR.parse_line(line)
    for option in found.no_value:
        raise ConfigError(f"the directive {line!r}: {option.spelling} needs a value")
    flags = GRAMMAR.options.flags.values()
    unknown = [
        option.word.text
        for option in found.options
        if not option.known or (option.name in flags and option.value is not None)
    ]
    for text in (*unknown, *(word.text for word in found.strays)):
        raise ConfigError(
            f"the directive {line!r}: {text!r} is not an option of Cobalt's qsub",
            hint="it splits at blanks, and has neither quotes nor comments",
        )
    pairs = [(_LETTERS.get(one.name, f"--{one.name}"), one.value) for one in found.options]
    for name, _ in pairs:
        if name in _REFUSED:
            raise ConfigError(f"the directive {line!r} cannot be used: {_REFUSED[name]}")
    return pairs


def _joined(name: str, before: str | None, value: str | None) -> str | None:
    """The value of a repeated option. The later value counts, but attributes and environment are
    merged by name."""
    if name not in ("--attrs", "--env") or before is None or value is None:
        return value
    # In `--env`, a colon separates only if a name and `=` follow: `PATH=/a:/b` is one item.
    separator = r":(?=\w+=)" if name == "--env" else ":"
    items = {
        item.partition("=")[0]: item
        for text in (before, value)
        for item in re.split(separator, text)
    }
    return ":".join(items.values())


def _refuse_what_breaks(name: str, value: str | None) -> None:
    if value is None:
        return
    if not value.isascii():
        raise ConfigError(
            f"Cobalt cannot pass on {value!r} in {name}: qstat fails for all users while a job is "
            "queued whose options are not ASCII"
        )
    if value == "" or re.search(r"\s", value):
        raise ConfigError(
            f"Cobalt cannot pass on {value!r} in {name}: its header has no quotes, and blanks "
            "separate words"
        )
    if re.search(r"""["'`;&|<>()\\]""", value):
        raise ConfigError(
            f"Cobalt cannot pass on {value!r} in {name}: quotes stay in the value, and a remote "
            "shell reads it again"
        )


def _status(state: str) -> JobStatus:
    if state in _RUNNING:
        return JobStatus("running")
    if state in _PENDING:
        return JobStatus("pending", _PENDING[state])
    if state == "dep_hold":
        return JobStatus("pending", "waits for another job", after=True)
    if state == "dep_fail":
        return NEVER_STARTS
    return JobStatus("ended", state)
