"""PBS Professional and OpenPBS: qsub's directives and quoting, qstat, qdel.

Behaviour that the manuals do not describe was observed on OpenPBS 23.06 and taken from its source.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.config.units import format_duration, parse_size
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.base import (
    TERMINAL,
    Client,
    Interactive,
    UnreachableError,
    complaint,
    directive_words,
    merge_directives,
    needs_terminal,
    output_of,
    refuse_directives,
    retried,
    run_command,
    run_submit_command,
    script_command,
    submission_environment,
    without_options,
)
from hpc_amp.schedulers.pbs.grammar import GRAMMAR
from hpc_amp.schedulers.pbs.qstat import job_status, parse_qstat
from hpc_amp.schedulers.qsub import QsubScheduler, is_beside, log_files_in

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.config.site_draft import SiteDraft
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.pbs.arrays import PbsArrays

FILE = Path("/etc/pbs.conf")
_SERVER = r"(?m)^\s*PBS_(SERVER|PRIMARY|SERVER_HOST_NAME)\s*=\s*\S"
_OF_OTHERS = ("qconf", "cqwait")  # of Grid Engine and of Cobalt, which also have a qsub
OWN_VARIABLES = ("PBS_CONF_FILE", "PBS_SERVER", "PBS_DEFAULT", "PBS_EXEC")
AWAY = r"(?i)(cannot|couldn't|failed to) connect|Connection refused|No route to host|errno=15010"
"""Messages of clients that did not reach the server."""
# Options that an interactive job does not have, and whether they take a value: of files, which the
# terminal replaces, of restarts and of arrays.
_OF_BATCH_JOBS = {
    **dict.fromkeys(("-o", "-e", "-j", "-k", "-R", "-r", "-J", "-C"), True),
    **dict.fromkeys(("-I", "-z"), False),
}
# Options with which qsub does not submit exactly one batch job and print its id at once.
_REFUSED = {
    "J": "every job of the array would be the same run; several runs are `hpc-amp sweep`",
    "z": "qsub would not print the job's id",
    "I": "the job would be interactive; use `hpc-amp shell` for that",
    "X": "qsub accepts it for interactive jobs only; use `hpc-amp shell` for that",
    "G": "qsub accepts it for interactive jobs only; use `hpc-amp shell` for that",
    "C": "qsub would no longer read the lines that begin with #PBS",
    "W interactive": "the job would be interactive; use `hpc-amp shell` for that",
    "W block": "qsub would print the id after the job's end only; `--follow` waits for a run",
}
LOST = r"Premature end of message|End of File|timed out|[Pp]rotocol error|Connection reset"
"""Messages of qsub after which the server may have accepted the job although it did not answer."""
_FINISHED = "has finished"
_UNKNOWN = "Unknown Job Id"


class Pbs(QsubScheduler):
    """PBS Professional and OpenPBS. qsub copies the script at submission and reads options in it up
    to the first command. If a resource (`-l`) is repeated, the first value counts, so each is
    written once."""

    name = "pbs"
    title = GRAMMAR.title
    gpu_requests = ("ngpus",)
    site_keys = ("chunk",)
    instead_of_key: ClassVar[Mapping[str, str]] = {
        "gpu_type": "write it into chunk, such as gputype=A100"
    }
    grammar = GRAMMAR
    grace = 10  # the default of kill_delay
    allocation = "PBS_JOBID"

    @classmethod
    def is_configured(cls, which: Which = which) -> bool:
        """Whether qsub and qstat are installed and pbs.conf names a server.

        Torque, Grid Engine, Cobalt and Slurm (in a separate package) have a `qsub` too. None of
        them reads pbs.conf. In case that a pbs.conf was left behind, the programs beside qsub show
        whose it is.
        """
        if not (which("qsub") and which("qstat")) or is_beside(which, "qsub", _OF_OTHERS):
            return False
        try:
            text = Path(os.environ.get("PBS_CONF_FILE") or FILE).read_text(errors="replace")
        except OSError:
            return False
        return bool(os.environ.get("PBS_SERVER")) or bool(re.search(_SERVER, text))

    def directives(self, plan: Spec) -> list[str]:
        """See `Scheduler.directives`.

        There is one chunk for each node. `-k doe`: output is written to the log directly, instead
        of being copied there at the end. `-r y`: PBS starts the job again if a node fails.
        """
        job, request = plan.job, plan.job.resources
        tasks, whole = plan.tasks_per_node, bool(request.exclusive)
        chunk = [
            f"select={request.nodes}",
            f"ncpus={tasks * plan.cpus_per_task}",
            f"mpiprocs={tasks}",
        ]
        if request.gpus_per_node and plan.site.gpu_request != "none":
            chunk.append(f"ngpus={request.gpus_per_node}")
        if request.memory is not None:
            chunk.append(f"mem={-(-parse_size(request.memory) // 2**20)}mb")
        generated = [
            ("-N", f"-N {_job_name(job.name)}"),
            ("-l select", f"-l {shlex.quote(':'.join([*chunk, *plan.site.chunk]))}"),
            ("-l place", self.exclusive_directive(plan.site) if whole else "-l place=scatter"),
            ("-l walltime", f"-l walltime={format_duration(plan.walltime)}"),
        ]
        if request.queue is not None:
            generated.append(("-q", f"-q {shlex.quote(request.queue)}"))
        if request.account is not None:
            generated.append(("-A", f"-A {shlex.quote(request.account)}"))
        log = str(plan.run_dir / "logs" / "job.log")
        generated += [
            ("-j", "-j oe"),
            ("-k", "-k doe"),
            ("-o", f"-o {shlex.quote(log)}"),
            ("-r", "-r y"),
            # The default in jobs is 077, with which the group could not read the files.
            ("-W umask", f"-W umask={plan.umask:03o}"),
        ]
        return merge_directives(generated, plan, _options)

    def exclusive_directive(self, site: Site) -> str:
        """`exclhost` and not `excl`: a host may be divided into several vnodes."""
        return "-l place=scatter:exclhost"

    def check(self, plan: Spec) -> None:
        """Refuse directives that hpc-amp cannot follow or PBS's parser would refuse."""
        refuse_directives(plan, GRAMMAR, _REFUSED)
        if not str(plan.run_dir).isascii():
            raise ConfigError(
                f"PBS takes no letters but ASCII in the path of a log: {plan.run_dir}",
                hint="set runs_dir to another folder",
            )
        if "^array_index^" in str(plan.run_dir):
            raise ConfigError(
                f"PBS puts numbers in place of ^array_index^ in the path of a log: {plan.run_dir}",
                hint="work in another folder: PBS would hold the job forever",
            )

    @retried
    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Submit with `qsub`. A job of a chain starts after any end of the job before, because that
        may have been killed. Its script checks whether there is anything left to do."""
        options = ["-h"] if held else []
        if after is not None:
            options += ["-W", f"depend=afterany:{after}"]
        return run_submit_command(
            ["qsub", *options, str(script)],
            environ=submission_environment(environ, *OWN_VARIABLES),
            folder=script.parent,
            job_id=r"^\d+(?:\[\])?\.\S+$",  # an array has brackets
            lost=LOST,
            away=AWAY,
        )

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """`qsub -I`, which runs the command after `--` on the node's terminal. It would not run the
        body of a script. Its exit status is always 0."""
        if not terminal:
            raise needs_terminal("PBS")
        words = [w for line in self.directives(plan) for w in directive_words(line, GRAMMAR)]
        options = without_options(words, _OF_BATCH_JOBS, {})
        return Interactive(
            ["qsub", "-I", *options, "--", *script_command(script)],
            submission_environment(environ, *OWN_VARIABLES, *TERMINAL),
            job_id=r"qsub: waiting for job (\S+) to start",
            ready=r"qsub: job \S+ ready",
        )

    def check_limits(self, job: Job, site: Site, client: Client) -> Iterator[Finding]:
        """The limits of the job's queue, or of those to which PBS routes it."""
        from hpc_amp.schedulers.pbs import limits

        return limits.check_limits(job, site, client)

    def arrays(self) -> PbsArrays:
        """Arrays of `qsub -J`."""
        from hpc_amp.schedulers.pbs.arrays import PbsArrays  # only for many runs

        return PbsArrays(self)

    def queued(self) -> dict[str, Path]:
        """The logs of jobs."""
        text = output_of(["qstat", "-f"]).replace("\n\t", "")  # a tab continues a long value
        jobs = {}
        for block in text.split("Job Id: ")[1:]:
            output = re.search(r"^ *Output_Path = [^:]*:(.*)$", block, re.MULTILINE)
            if output is not None:
                jobs[block.split()[0]] = Path(output[1])
        return jobs

    @retried
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query with one `qstat -f`. Its text form is used: the JSON form lists only the first of
        several jobs (OpenPBS 23.06), is not always valid, and changes values that look like
        numbers."""
        if not job_ids:
            return {}
        result = run_command(["qstat", "-f", *job_ids])
        answer = {
            job_id: job_status(attributes)
            for job_id, attributes in _match(parse_qstat(result.stdout), job_ids).items()
        }
        for line in filter(None, map(str.strip, result.stderr.splitlines())):
            if _FINISHED in line:
                ended = [
                    job_id for job_id in job_ids if _number(job_id) in re.findall(r"\d+", line)
                ]
                answer |= dict.fromkeys(ended, JobStatus("ended"))
            elif _UNKNOWN not in line:
                raise UnreachableError(f"qstat does not answer: {complaint(result)}")
        if result.returncode not in (0, 35, 153):
            raise UnreachableError(f"qstat does not answer: {complaint(result)}")
        return answer

    def draft_site(self, draft: SiteDraft, clients: Clients, queue: str | None) -> None:
        """Queues and nodes, from qstat and pbsnodes."""
        from hpc_amp.schedulers.pbs.draft import draft_site

        draft_site(draft, clients, queue)

    lost_log = (
        "PBS opens the log on the node before the job starts, and holds the job if it cannot "
        "(Exit_status -3, `too many failed attempts`)"
    )

    def log_files(self, directives: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """The files of `-o` and `-e`."""
        return log_files_in(directives, GRAMMAR, variable="^array_index^")

    @retried
    def cancel(self, job_id: str) -> None:
        """Cancel with `qdel`: SIGTERM to the processes on the first node, SIGKILL some seconds
        later."""
        result = run_command(["qdel", job_id])
        if "Unauthorized" in result.stderr:
            raise SchedulerError(f"qdel {job_id}: {complaint(result)}")
        if result.returncode != 0 and not re.search(f"{_FINISHED}|{_UNKNOWN}", result.stderr):
            raise UnreachableError(f"qdel {job_id}: {complaint(result)}")

    def final_status(self, job_id: str, run_dir: Path) -> JobStatus:
        """From the server's job history, if it keeps one."""
        result = run_command(["qstat", "-x", "-f", job_id])
        attributes = _match(parse_qstat(result.stdout), [job_id]).get(job_id)
        if attributes is None:
            return NOT_IN_QUEUE
        return job_status(attributes)


def _job_name(name: str) -> str:
    """A job name that every version of PBS accepts: it begins with a letter and has at most 15
    characters."""
    return (name if name[0].isalpha() else f"j{name}")[:15]


def _options(line: str) -> set[str]:
    """The options that a directive sets. Each resource (`-l place`) and each attribute (`-W umask`)
    counts as an option of its own."""
    words = iter(directive_words(line, GRAMMAR))
    names = set()
    for word in words:
        if not word.startswith("-"):
            continue
        option = word[:2]
        if option == "-l":
            resources = word[2:] or next(words, "")
            names |= {f"-l {item.partition('=')[0]}" for item in resources.split(",")}
        elif option == "-W":
            attributes = word[2:] or next(words, "")
            names |= {f"-W {item.partition('=')[0]}" for item in attributes.split(",")}
        else:
            names.add(option)
    return names


def _number(job_id: str) -> str:
    """The number in a job id, without the server's name, which may differ between outputs."""
    return job_id.partition(".")[0]


def _match(found: dict[str, dict[str, str]], job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    by_number = {_number(name): attributes for name, attributes in found.items()}
    return {
        job_id: by_number[_number(job_id)] for job_id in job_ids if _number(job_id) in by_number
    }
