"""Grid Engine: qsub's directives, qstat, qacct, qdel, qrsh.

Behaviour that the manuals do not describe was observed on Debian's Son of Grid Engine 8.1.9.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.config.units import parse_size
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.base import (
    TERMINAL,
    Interactive,
    UnreachableError,
    complaint,
    merge_directives,
    refuse_directives,
    retried,
    run_command,
    run_here,
    run_submit_command,
    script_command,
    submission_environment,
)
from hpc_amp.schedulers.gridengine import qstat
from hpc_amp.schedulers.gridengine.grammar import GRAMMAR, names_of, written
from hpc_amp.schedulers.gridengine.slots import environment, slots_of_node
from hpc_amp.schedulers.qsub import QsubScheduler, log_files_in

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.config.site_draft import SiteDraft
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.base import Client
    from hpc_amp.schedulers.grammar import Option
    from hpc_amp.schedulers.gridengine.arrays import GridEngineArrays

OWN_VARIABLES = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_CLUSTER_NAME")
DEBIAN_ROOT = Path("/var/lib/gridengine")
LOST = r"got (receive|read) error|failed receiving gdi|timeout|timed out"
"""Messages of qsub after which the master may have accepted the job although it did not answer."""
_UNKNOWN = "does not exist"
# Options that qrsh does not have: of files, which its terminal replaces, of restarts and of arrays.
_OF_BATCH_JOBS = {"o", "e", "i", "j", "S", "r", "t", "tc", "sync", "terse", "C", "c", "ckpt", "a"}
_OF_BATCH_JOBS |= {"h", "hold_jid", "hold_jid_ad", "shell", "b", "now"}
# Options with which qsub does not submit exactly one job and print its id at once.
_REFUSED = {
    "t": "every task of the array would be the same run; several runs are `hpc-amp sweep`",
    "sync": "qsub would print the id after the job's end only; `--follow` waits for a run",
    "now": "qsub would wait for the job's start, and fail if it cannot start at once",
    "verify": "qsub would submit nothing",
    "help": "qsub would submit nothing",
    "C": "qsub would no longer read the lines that begin with #$",
    "clear": "qsub would forget the options before it",
    "b": "qsub would read the script as a program that is on the nodes",
    "h": "the job would wait for its release",
}


def _count(value: str) -> None:
    """A check that text is a number above 0."""
    if not re.fullmatch(r"[1-9]\d*", value):
        raise ValueError(f"{value!r} is not a number above 0")


def _object_name(value: str) -> None:
    """A check that text can name an environment or a resource."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value):
        raise ValueError(f"{value!r} is not a name")


class GridEngine(QsubScheduler):
    """Grid Engine. Several slots, and therefore several nodes, need a parallel environment of the
    site, whose rule decides how many slots a node gives. A run continues in a new job, because a
    job on several nodes that is rescheduled (exit status 99) waits forever: all its nodes except
    the first stay occupied."""

    name = "gridengine"
    title = "Grid Engine"
    grammar = GRAMMAR
    gpu_requests = ("gpu", "gpu-per-slot")
    site_options: ClassVar[Mapping[str, Callable[[str], None]]] = {
        "parallel_environment": _object_name,
        "one_node_environment": _object_name,
        "slots_per_node": _count,
        "gpu_resource": _object_name,
        "memory_resource": _object_name,
        "exclusive_resource": _object_name,
    }
    grace = 60  # the default of a queue's `notify`; there is no SIGTERM
    allocation = "JOB_ID"
    lost_log = (
        "Grid Engine opens the log on the node before the job starts, and keeps the job in the "
        "queue in an error state (Eqw) if it cannot"
    )

    @classmethod
    def is_configured(cls, which: Which = which) -> bool:
        """Whether qsub and qconf are installed and there is a cell with a master. PBS has a `qsub`
        too, but no `qconf`. Packages install both on machines without a cluster."""
        if not (which("qsub") and which("qconf")):
            return False
        root = Path(os.environ.get("SGE_ROOT") or DEBIAN_ROOT)
        cell = os.environ.get("SGE_CELL") or "default"
        return (root / cell / "common" / "act_qmaster").is_file()

    def directives(self, plan: Spec) -> list[str]:
        """See `Scheduler.directives`. The shell is given because most queues ignore the script's
        first line. `-r y`: Grid Engine starts the job again if a node fails."""
        job, request = plan.job, plan.job.resources
        generated = [
            ("-N", f"-N {_job_name(job.name)}"),
            ("-S", "-S /bin/bash"),
            ("-wd", f"-wd {written(str(plan.run_dir))}"),
            ("-j", "-j y"),
            ("-o", f"-o {written(str(plan.run_dir / 'logs' / 'job.log'))}"),
            ("-r", "-r y"),
            # A job has the umask of Grid Engine's daemon. The host code sets this one.
            ("-v HPC_AMP_UMASK", f"-v HPC_AMP_UMASK={plan.umask:03o}"),
            ("-l h_rt", f"-l h_rt={plan.walltime}"),
        ]
        name = environment(job, plan.site)
        if name is not None:
            slots = slots_of_node(job, plan.site) * request.nodes
            generated.append(("-pe", f"-pe {name} {slots}"))
        generated += [(f"-l {name}", f"-l {name}={amount}") for name, amount in _resources(plan)]
        if request.exclusive:
            directive = self.exclusive_directive(plan.site)
            generated.append((directive.partition("=")[0], directive))
        if request.queue is not None:
            generated.append(("-q", f"-q {written(request.queue)}"))
        if request.account is not None:
            generated.append(("-P", f"-P {written(request.account)}"))
        return merge_directives(generated, plan, names_of)

    def exclusive_directive(self, site: Site) -> str:
        """The request for a resource of the site whose relation is `EXCL` (complex(5))."""
        name = site.options.get("exclusive_resource", "")
        return f"-l {name}=true" if name else ""

    def check(self, plan: Spec) -> None:
        """Refuse directives and paths that qsub refuses or reads differently, and a request for
        memory on a site that does not name the resource."""
        refuse_directives(plan, GRAMMAR, _REFUSED)
        for key, lines in (
            (f"directives of site {plan.site.name}", plan.site.directives),
            ("job.directives", plan.job.resources.directives),
        ):
            for line in lines:
                _check_added(key, line)
        found = re.search(r"[$:,\"'#\x00-\x1f\x7f]", str(plan.run_dir))
        if found is not None:
            raise ConfigError(
                f"Grid Engine does not accept a log path with {found[0]!r} in it: {plan.run_dir}",
                hint="set runs_dir to another folder",
            )
        if plan.job.resources.memory is not None and "memory_resource" not in plan.site.options:
            raise ConfigError(
                f"job.memory: the site {plan.site.name} does not name the resource for memory",
                hint="set options.memory_resource in the site file, or use job.directives: "
                "-l mem_free=4G is for each slot",
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
        """Submit with `qsub`. `-hold_jid` waits for any end of the job before, because that may
        have been killed. The script of a job in a chain checks whether there is anything left to
        do."""
        options = ["-h"] if held else []
        if after is not None:
            options += ["-hold_jid", after]
        return run_submit_command(
            ["qsub", "-terse", *options, str(script)],
            environ=submission_environment(environ, *OWN_VARIABLES),
            folder=script.parent,
            job_id=r"^(\d+)(?:\.\d+-\d+:\d+)?$",
            lost=LOST,
            away=qstat.AWAY,
        )

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """`qrsh` waits for nodes (`-now n`), withdraws its request at Ctrl-C, and exits with the
        script's status, or with 1 if the job has ended before qrsh knows that it has started. A
        shell on the node reads its words, so they are quoted."""
        given = (GRAMMAR.parse_line(line).options for line in self.directives(plan))
        options = [
            word
            for option in itertools.chain.from_iterable(given)
            if option.name not in _OF_BATCH_JOBS
            for word in _words_of(option)
        ]
        command = [shlex.quote(word) for word in script_command(script)]
        return Interactive(
            ["qrsh", "-now", "n", "-pty", "y" if terminal else "n", *options, *command],
            submission_environment(environ, *OWN_VARIABLES, *TERMINAL),
            end_signal=signal.SIGINT,  # it ignores other signals while it waits
            loses_status=True,
        )

    def arrays(self) -> GridEngineArrays:
        """Arrays of `qsub -t`."""
        from hpc_amp.schedulers.gridengine.arrays import GridEngineArrays  # only for many runs

        return GridEngineArrays(self)

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """The variable JOB_ID is not enough to detect an allocation, since other programs use it
        too."""
        return run_here(script, environ) if environ.get("SGE_JOB_SPOOL_DIR") else None

    def queued(self) -> dict[str, Path]:
        """The working directories of batch jobs. Interactive sessions, which have no script, are
        left out: they may have the working directory of a run."""
        numbers = sorted({job.number for job in qstat.queued_jobs()})
        shown = qstat.details(numbers) if numbers else ()
        return {
            facts["job_number"]: Path(facts["cwd"])
            for facts in shown
            if "job_number" in facts
            and "cwd" in facts
            and facts.get("script_file", "").endswith(".sh")
        }

    @retried
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query all jobs of the user. The reasons why jobs wait need a second query, which is made
        only if one waits."""
        if not job_ids:
            return {}
        found = {job.id: job for job in qstat.queued_jobs()}
        wanted = [found[job_id] for job_id in job_ids if job_id in found]
        waiting = sorted({job.number for job in wanted if job.needs_reason})
        reasons = qstat.reasons(waiting) if waiting else {}
        return {job.id: job.status(reasons.get(job.number, "")) for job in wanted}

    @retried
    def cancel(self, job_id: str) -> None:
        """Cancel with `qdel`, which sends SIGKILL at once to the processes on the first node."""
        result = run_command(["qdel", job_id])
        output = f"{result.stdout}{result.stderr}"
        if result.returncode == 0 or _UNKNOWN in output:
            return
        if re.search(qstat.AWAY, output):
            raise UnreachableError(f"qdel {job_id}: {complaint(result)}")
        raise SchedulerError(f"qdel {job_id}: {complaint(result)}")

    def final_status(self, job_id: str, run_dir: Path) -> JobStatus:
        """From the accounting file (`qstat.ended`)."""
        return qstat.ended([job_id]).get(job_id, NOT_IN_QUEUE)

    def check_limits(self, job: Job, site: Site, client: Client) -> Iterator[Finding]:
        """The limits of queues and parallel environments."""
        from hpc_amp.schedulers.gridengine import limits

        return limits.check_limits(job, site, client)

    def check_configuration(self, client: Client) -> Iterator[Finding]:
        """Whether Grid Engine kills all ranks of a deleted job."""
        from hpc_amp.schedulers.gridengine import limits

        return limits.check_configuration(client)

    def check_site(self, job: Job, site: Site) -> Iterator[Finding]:
        """The slots of jobs on several nodes."""
        from hpc_amp.schedulers.gridengine import limits

        return limits.check_site(site)

    def draft_site(self, draft: SiteDraft, clients: Clients, queue: str | None) -> None:
        """Queues, parallel environments, resources and hosts, from qconf and qhost."""
        from hpc_amp.schedulers.gridengine.draft import draft_site

        draft_site(draft, clients, queue)

    def log_files(self, directives: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """The files of `-o` and `-e` without variables in their names."""
        return log_files_in(directives, GRAMMAR, variable="$")


def _words_of(option: Option) -> list[str]:
    """The words of an option on a command line."""
    count = GRAMMAR.values.get(option.name, 1)
    value = [] if option.value is None else option.value.split(" ", count - 1)
    return [option.spelling, *value]


def _check_added(key: str, line: str) -> None:
    """Raise ConfigError for a directive of site or job that qsub refuses."""
    parsed = GRAMMAR.parse_line(line)
    for option in parsed.no_value:
        raise ConfigError(f"{key}: {line!r} cannot be used: {option.spelling} needs a value")
    unknown = [option.spelling for option in parsed.options if not option.known]
    for text in (*unknown, *(word.text for word in parsed.strays)):
        raise ConfigError(f"{key}: {line!r} cannot be used: {text!r} is not an option of qsub")


def _job_name(name: str) -> str:
    """A job name that Grid Engine accepts: ASCII without `/:@*?` and backslashes, no digit at the
    beginning, and none of its keywords."""
    plain = re.sub(r"[^A-Za-z0-9._+=-]", "_", name)
    if plain.upper() in ("NONE", "ALL", "TEMPLATE") or not plain[0].isalpha():
        return f"j{plain}"
    return plain


def _resources(plan: Spec) -> Iterator[tuple[str, str]]:
    """Yield the requests for GPUs and memory. Grid Engine normally counts resources for each slot;
    a site may count GPUs for each node. Raises ConfigError if the GPUs of a node cannot be divided
    among its slots."""
    request, site, slots = plan.job.resources, plan.site, slots_of_node(plan.job, plan.site)
    gpus = request.gpus_per_node
    if gpus and site.gpu_request != "none":
        per_slot = site.gpu_request == "gpu-per-slot"
        if per_slot and gpus % slots:
            raise ConfigError(
                f"{gpus} GPUs cannot be requested with {slots} slots of a node: Grid Engine counts "
                f"them for each slot on the site {site.name}",
                hint="set options.slots_per_node in the site file, or gpu_request: none and "
                "job.directives",
            )
        name = site.options.get("gpu_resource", "gpu")
        yield name, str(gpus // slots if per_slot else gpus)
    if request.memory is not None:
        megabytes = -(-parse_size(request.memory) // (2**20 * slots))
        yield site.options.get("memory_resource", ""), f"{megabytes}M"
