"""Grid Engine: qsub's directives, qstat, qacct, qdel, qrsh.

Behaviour not in the manuals was observed on Son of Grid Engine 8.1.9, Debian's.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.config.units import parse_size
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.base import (
    TERMINAL,
    AwayError,
    Interactive,
    Which,
    asked_again,
    complaint,
    hand_in,
    merge_directives,
    refuse_directives,
    run_command,
    run_here,
    script_command,
    submission_environment,
)
from hpc_amp.schedulers.gridengine import qstat
from hpc_amp.schedulers.gridengine.arrays import GridEngineArrays
from hpc_amp.schedulers.gridengine.grammar import GRAMMAR, names_of, written
from hpc_amp.schedulers.gridengine.slots import environment, slots_of_node
from hpc_amp.schedulers.qsub import QsubScheduler, log_files_in

if TYPE_CHECKING:
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.grammar import Option

OWN_VARIABLES = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_CLUSTER_NAME")
DEBIAN_ROOT = Path("/var/lib/gridengine")
LOST = r"got (receive|read) error|failed receiving gdi|timeout|timed out"
"""What qsub says where the master may have the job although its answer did not come."""
_UNKNOWN = "does not exist"
# qrsh does not know the options of files, since it has a terminal, nor those of jobs that start
# again or several times.
_OF_BATCH_JOBS = {"o", "e", "i", "j", "S", "r", "t", "tc", "sync", "terse", "C", "c", "ckpt", "a"}
_OF_BATCH_JOBS |= {"h", "hold_jid", "hold_jid_ad", "shell", "b", "now"}
# Options that make of a submission something else than one job whose id qsub tells at once.
_REFUSED = {
    "t": "every task of the array would be the same run; several runs are `hpc-amp sweep`",
    "sync": "qsub would answer when the job has ended only; `--follow` waits for a run",
    "now": "qsub would wait for the job's start, and give up where it cannot start at once",
    "verify": "qsub would submit nothing",
    "help": "qsub would submit nothing",
    "C": "qsub would no longer read the lines that begin with #$",
    "clear": "qsub would forget the options before it",
    "b": "qsub would take the script for a program that is on the nodes",
    "h": "the job would wait until somebody releases it",
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
    """Several slots, and so several nodes, come from a parallel environment of the site, which has
    a rule of its own for how many slots a node gives. The run goes on in a job of its own: of a job
    on several nodes that was rescheduled (exit status 99), the nodes besides the first never count
    as clean, and it waits for ever."""

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
    }
    grace = 60  # the default of a queue's `notify`; there is no SIGTERM
    allocation = "JOB_ID"
    lost_log = (
        "Grid Engine opens the log on the node before the job starts, and keeps the job in the "
        "queue in an error state (Eqw) where it cannot"
    )

    @classmethod
    def is_configured(cls, which: Which = shutil.which) -> bool:
        """PBS has a `qsub`, too, but no `qconf`. Packages install both on machines of no cluster;
        a cell with a master is what makes one."""
        if not (which("qsub") and which("qconf")):
            return False
        root = Path(os.environ.get("SGE_ROOT") or DEBIAN_ROOT)
        cell = os.environ.get("SGE_CELL") or "default"
        return (root / cell / "common" / "act_qmaster").is_file()

    def directives(self, plan: Spec) -> list[str]:
        """The shell is named since most queues ignore the script's first line. Grid Engine starts
        the job again where a node is lost (`-r y`)."""
        job, request = plan.job, plan.job.resources
        generated = [
            ("-N", f"-N {_job_name(job.name)}"),
            ("-S", "-S /bin/bash"),
            ("-wd", f"-wd {written(str(plan.run_dir))}"),
            ("-j", "-j y"),
            ("-o", f"-o {written(str(plan.run_dir / 'logs' / 'job.log'))}"),
            ("-r", "-r y"),
            # Grid Engine gives jobs the umask of its daemon; the scripts set this one.
            ("-v HPC_AMP_UMASK", f"-v HPC_AMP_UMASK={plan.umask:03o}"),
            ("-l h_rt", f"-l h_rt={plan.walltime}"),
        ]
        name = environment(job, plan.site)
        if name is not None:
            slots = slots_of_node(job, plan.site) * request.nodes
            generated.append(("-pe", f"-pe {name} {slots}"))
        generated += [(f"-l {name}", f"-l {name}={amount}") for name, amount in _resources(plan)]
        if request.queue is not None:
            generated.append(("-q", f"-q {written(request.queue)}"))
        if request.account is not None:
            generated.append(("-P", f"-P {written(request.account)}"))
        return merge_directives(generated, plan, names_of)

    def check(self, plan: Spec) -> None:
        """What qsub cannot carry or understands as something else."""
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
                f"Grid Engine does not take a path of a log with {found[0]!r} in it: "
                f"{plan.run_dir}",
                hint="set runs_dir to another folder",
            )
        if plan.job.resources.memory is not None and "memory_resource" not in plan.site.options:
            raise ConfigError(
                f"job.memory: the site {plan.site.name} does not say what memory is called here",
                hint="set options.memory_resource in the site file, or say it in job.directives: "
                "-l mem_free=4G is for each slot",
            )

    @asked_again
    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """`qsub`. `-hold_jid` waits for any end of the job before, which may have been killed; a
        link of a chain looks for itself whether there is anything to do."""
        options = ["-h"] if held else []
        if after is not None:
            options += ["-hold_jid", after]
        return hand_in(
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
        """`qrsh` waits for nodes (`-now n`), withdraws its request at Ctrl-C, and ends with the
        script's status. A shell on the node reads its words."""
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
            end_signal=signal.SIGINT,  # while it waits, it hears nothing of others
        )

    def arrays(self) -> GridEngineArrays:
        """`qsub -t`."""
        return GridEngineArrays(self)

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """Other programs have a variable JOB_ID, too."""
        return run_here(script, environ) if environ.get("SGE_JOB_SPOOL_DIR") else None

    def queued(self) -> dict[str, Path]:
        """Working directories of batch jobs. A session has that of its run, but no script."""
        numbers = sorted({job.number for job in qstat.queued_jobs()})
        shown = qstat.details(numbers) if numbers else ()
        return {
            facts["job_number"]: Path(facts["cwd"])
            for facts in shown
            if "job_number" in facts
            and "cwd" in facts
            and facts.get("script_file", "").endswith(".sh")
        }

    @asked_again
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """All jobs of the user in one request. Why one waits stands in another answer only, which
        is asked for where one waits."""
        if not job_ids:
            return {}
        found = {job.id: job for job in qstat.queued_jobs()}
        wanted = [found[job_id] for job_id in job_ids if job_id in found]
        waiting = sorted({job.number for job in wanted if job.needs_reason})
        reasons = qstat.reasons(waiting) if waiting else {}
        return {job.id: job.status(reasons.get(job.number, "")) for job in wanted}

    @asked_again
    def cancel(self, job_id: str) -> None:
        """`qdel`: SIGKILL at once, to what runs on the first node."""
        result = run_command(["qdel", job_id])
        said = f"{result.stdout}{result.stderr}"
        if result.returncode == 0 or _UNKNOWN in said:
            return
        if re.search(qstat.AWAY, said):
            raise AwayError(f"qdel {job_id}: {complaint(result)}")
        raise SchedulerError(f"qdel {job_id}: {complaint(result)}")

    def last_words(self, job_id: str, run_dir: Path) -> JobStatus:
        """From the accounting file, which has a job some seconds after its end, where this machine
        can read it."""
        return qstat.ended([job_id]).get(job_id, NOT_IN_QUEUE)

    def check_limits(self, job: Job, site: Site) -> Iterator[Finding]:
        """Of queues and parallel environments."""
        from hpc_amp.schedulers.gridengine import limits

        return limits.check_limits(job, site)

    def log_files(self, directives: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Of `-o` and `-e`, whose files may have a host in front, and variables in them."""
        return log_files_in(directives, GRAMMAR, variable="$")


def _words_of(option: Option) -> list[str]:
    """An option as words of a command line."""
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
    """A job name that Grid Engine takes: no digit first, ASCII without `/:@*?` and backslashes, and
    not one of its keywords."""
    plain = re.sub(r"[^A-Za-z0-9._+=-]", "_", name)
    if plain.upper() in ("NONE", "ALL", "TEMPLATE") or not plain[0].isalpha():
        return f"j{plain}"
    return plain


def _resources(plan: Spec) -> Iterator[tuple[str, str]]:
    """GPUs and memory, which Grid Engine counts for each slot unless a site has it otherwise.
    Raises ConfigError."""
    request, site, slots = plan.job.resources, plan.site, slots_of_node(plan.job, plan.site)
    gpus = request.gpus_per_node
    if gpus and site.gpu_request != "none":
        per_slot = site.gpu_request == "gpu-per-slot"
        if per_slot and gpus % slots:
            raise ConfigError(
                f"{gpus} GPUs cannot be asked for with {slots} slots of a node: Grid Engine counts "
                f"them for each slot on the site {site.name}",
                hint="set options.slots_per_node in the site file, or gpu_request: none and "
                "job.directives",
            )
        name = site.options.get("gpu_resource", "gpu")
        yield name, str(gpus // slots if per_slot else gpus)
    if request.memory is not None:
        megabytes = -(-parse_size(request.memory) // (2**20 * slots))
        yield site.options.get("memory_resource", ""), f"{megabytes}M"
