"""Cobalt: qsub's header and its many traps, qstat, qdel, and the .cobaltlog.

Behaviour was observed on Cobalt 1.0.33 and read in its source (`qsub.py`, `client_utils.py`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpc_amp.errors import ConfigError
from hpc_amp.schedulers.answers import (
    NEVER_STARTS,
    NOT_IN_QUEUE,
    JobStatus,
    Submission,
)
from hpc_amp.schedulers.base import (
    TERMINAL,
    AwayError,
    Interactive,
    Which,
    asked_again,
    complaint,
    needs_terminal,
    output_of,
    run_command,
    script_command,
    submission_environment,
)
from hpc_amp.schedulers.cobalt.arrays import CobaltArrays
from hpc_amp.schedulers.cobalt.grammar import GRAMMAR
from hpc_amp.schedulers.cobalt.submission import OWN_VARIABLES, qsub
from hpc_amp.schedulers.qsub import QsubScheduler

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

FILE = Path("/etc/cobalt.conf")
_COMMANDS = ("cqwait", "cqstat", "cqadm")  # only Cobalt has them; one is enough
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

# How we write the options that have a letter.
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
# The submission would not be one batch job whose id qsub tells.
_REFUSED = {
    "-I": "the job would be a terminal; that is `hpc-amp shell`",
    "--help": "qsub would submit nothing",
    "--version": "qsub would submit nothing",
}


class Cobalt(QsubScheduler):
    """qsub reads the lines `#COBALT ` that follow the first line without a gap, splits them at
    blanks and knows no quotes. The script is not copied: the queue holds its path."""

    name = "cobalt"
    title = GRAMMAR.title
    grammar = GRAMMAR
    whole_nodes = True
    grace = 300  # the default of force_kill_delay
    allocation = "COBALT_JOBID"
    leftover_files = r"\d+\.(cobaltlog|error|output)"

    @classmethod
    def is_configured(cls, which: Which = shutil.which) -> bool:
        """Whether this machine has Cobalt's commands and a configuration of it."""
        if not (which("qsub") and any(map(which, _COMMANDS))):
            return False
        named = os.environ.get("COBALT_CONFIG_FILES")
        files = [Path(file) for file in named.split(":") if file] if named else [FILE]
        return any(file.is_file() for file in files)

    def directives(self, plan: Spec) -> list[str]:
        """Every option once, `--attrs` of site and job joined into one: qsub takes no second. A
        word too many would silence all that follows, so every word is known to be an option or its
        value."""
        values = self._values(plan)
        return [name if value is None else f"{name} {value}" for name, value in values.items()]

    def _values(self, plan: Spec) -> dict[str, str | None]:
        """The value of every option; None for those that have none."""
        job, request = plan.job, plan.job.resources
        log = str(plan.run_dir / "logs" / "job.log")
        options = {
            "--jobname": job.name,
            "-n": str(request.nodes),
            "-t": str(-(-plan.walltime // 60)),  # in minutes
            "--cwd": str(plan.run_dir),
            "-o": log,
            "-e": log,
            # Cobalt puts the id in. One file a job: its lines do not say whose they are.
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
        """Cobalt's own limits, and what does not survive its way to the node: it passes the path of
        the script through a remote shell without quotes."""
        if plan.walltime < _SHORTEST_MINUTES * 60:
            raise ConfigError(
                f"job.walltime {plan.job.resources.walltime} is less than "
                f"{_SHORTEST_MINUTES} minutes, the least that Cobalt takes"
            )
        if not re.fullmatch(r"[A-Za-z0-9/._+@%,-]+", str(plan.run_dir)):
            raise ConfigError(
                f"Cobalt cannot carry the path of the run directory: {plan.run_dir}",
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
        """`qsub`. The job exists if stdout names it: a site's filter may make qsub complain and
        return 1 for a job that was accepted."""
        options = ["-h"] if held else []
        if after is not None:
            options += ["--dependencies", after]
        return qsub(options, script, environ)

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """`qsub -I` opens a login shell on the first node and takes no command, so it has to be
        typed: `exec` and plain words, which every shell reads alike (`check` sees to it)."""
        if not terminal:
            raise needs_terminal("Cobalt")
        values = {k: v for k, v in self._values(plan).items() if k not in _OF_BATCH_JOBS}
        values["--cwd"] = str(script.parent)  # Cobalt's own files go there, by the job's number
        return Interactive(
            ["qsub", "-I", *(w for pair in values.items() for w in pair if w is not None)],
            submission_environment(environ, *OWN_VARIABLES, *TERMINAL),
            job_id=r"Wait for job (\d+) to start",
            ready=r"Opening interactive session to \S+",
            typed=f"exec {' '.join(script_command(script))}",
        )

    def arrays(self) -> CobaltArrays:
        """A job a task."""
        return CobaltArrays(self)

    def queued(self) -> dict[str, Path]:
        """Scripts of jobs: Cobalt takes none with a blank in its path."""
        lines = output_of(["qstat", "--header", "JobID:Command"]).splitlines()
        rows = (line.split() for line in lines)
        return {row[0]: Path(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal()}

    @asked_again
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """`qstat`, asked once for all. It says nothing at all of jobs that it does not know, with
        status 1 where it knows none; a server that does not answer is a status 1 with a message."""
        if not job_ids:
            return {}
        result = run_command(["qstat", "--header", "JobID:State", *job_ids])
        knows_none = result.returncode == 1 and not f"{result.stdout}{result.stderr}".strip()
        if result.returncode != 0 and not knows_none:
            raise AwayError(f"qstat does not answer: {complaint(result)}")
        rows = (line.split() for line in result.stdout.splitlines())
        return {row[0]: _status(row[1]) for row in rows if len(row) >= 2 and row[0] in job_ids}

    @asked_again
    def cancel(self, job_id: str) -> None:
        """`qdel`, which is silent about jobs that it does not know."""
        result = run_command(["qdel", job_id])
        if result.returncode != 0:
            raise AwayError(f"qdel {job_id}: {complaint(result)}")

    def last_words(self, job_id: str, run_dir: Path) -> JobStatus:
        """From the .cobaltlog, the only record that is left. Its last line is late, and missing
        where the job was killed."""
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
    """An option as we write it, of any of its names."""
    name = GRAMMAR.options.canonical(spelling)
    return spelling if name is None else _LETTERS.get(name, f"--{name}")


def _pairs(line: str) -> list[tuple[str, str | None]]:
    """A line of directives as (option, value) pairs, read as qsub does. Raises ConfigError for
    what is not an option: qsub would take it for the program and ignore all that follows."""
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
            hint="it splits at blanks and knows neither quotes nor comments",
        )
    pairs = [(_LETTERS.get(one.name, f"--{one.name}"), one.value) for one in found.options]
    for name, _ in pairs:
        if name in _REFUSED:
            raise ConfigError(f"the directive {line!r} cannot be used: {_REFUSED[name]}")
    return pairs


def _joined(name: str, before: str | None, value: str | None) -> str | None:
    """The value of an option that is given again: the later one counts, but attributes and
    environment add up, name by name."""
    if name not in ("--attrs", "--env") or before is None or value is None:
        return value
    # A colon separates only where a name and `=` follow (`PATH=/a:/b`), or for attributes always.
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
            f"Cobalt cannot carry {value!r} in {name}: qstat fails for all users while a job is "
            "queued whose options are not ASCII"
        )
    if value == "" or re.search(r"\s", value):
        raise ConfigError(
            f"Cobalt cannot carry {value!r} in {name}: its header knows no quotes, and blanks "
            "separate words"
        )
    if re.search(r"""["'`;&|<>()\\]""", value):
        raise ConfigError(
            f"Cobalt cannot carry {value!r} in {name}: quotes stay in the value, and a remote "
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
