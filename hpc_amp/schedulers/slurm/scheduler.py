"""Slurm: sbatch's directives and quoting, squeue, scancel."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.config.units import format_duration, parse_size
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import JobStatus, Submission
from hpc_amp.schedulers.base import (
    TERMINAL,
    Interactive,
    Scheduler,
    complaint,
    directive_words,
    merge_directives,
    output_of,
    refuse_directives,
    run_command,
    run_here,
    run_submit_command,
    script_command,
    submission_environment,
    without_options,
)
from hpc_amp.schedulers.slurm import squeue
from hpc_amp.schedulers.slurm.grammar import GRAMMAR

if TYPE_CHECKING:
    import submitit

    from hpc_amp.clients import Clients
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.config.site_draft import SiteDraft
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.schedulers.base import Client
    from hpc_amp.schedulers.slurm.arrays import SlurmArrays

FILES = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))
_AWAY = (
    "Unable to contact slurm controller|Connection refused|No route to host"
    "|Could not establish a configuration source"
)


def quote_directive(value: str) -> str:
    """Quote a value for sbatch's parser of directives. It reads quotes as a shell does, but a
    backslash also escapes inside quotes, and an unquoted `#` starts a comment."""
    return shlex.quote(value.replace("\\", "\\\\"))


def file_pattern(path: str) -> str:
    """Escape a path for sbatch's options with a file name. sbatch replaces `%j` and similar
    patterns, and removes the backslash of `\\\\` (sbatch(1), "filename pattern")."""
    return re.sub(r"[\\%]", r"\\\g<0>", path)


class Slurm(Scheduler):
    """Slurm. sbatch copies the script at submission, and reads options in it up to the first
    command."""

    name = "slurm"
    title = GRAMMAR.title
    command = GRAMMAR.command
    grammar = GRAMMAR
    step_launcher = "srun"
    gpu_requests = ("gpus-per-node", "gres")
    site_keys = ("gpu_type",)
    grace = 30  # the default of KillWait
    allocation = "SLURM_JOB_ID"
    own_variables: ClassVar[Mapping[str, str]] = {
        "SRUN_CPUS_PER_TASK": "it is job.cpus_per_gpu",
        "SLURM_EXPORT_ENV": "the ranks get the whole environment of the launch script",
    }

    @classmethod
    def is_configured(cls, which: Which = which) -> bool:
        """Whether sbatch is installed, and there is a configuration file or a controller. Packages
        install the commands on machines without a cluster too."""
        if not which("sbatch"):
            return False
        if os.environ.get("SLURM_CONF") or any(file.exists() for file in FILES):
            return True
        scontrol = which("scontrol")
        if not scontrol:
            return False
        try:  # a "configless" cluster has no file, but its controller answers
            ping = subprocess.run([scontrol, "ping"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ping.returncode == 0

    def cluster(self) -> str:
        """`ClusterName` of slurm.conf. On a "configless" cluster, slurmd keeps a copy."""
        given = os.environ.get("SLURM_CONF")
        files = [Path(given)] if given else [*FILES, Path("/run/slurm/conf/slurm.conf")]
        for file in files:
            with contextlib.suppress(OSError):  # it is not there
                text = file.read_text(errors="replace")
                found = re.search(r"(?im)^\s*ClusterName\s*=\s*(\S+)", text)
                return found[1] if found else ""
        return ""

    def default_launcher(self, job: Job) -> str:
        """srun, with one task for each rank."""
        return self.step_launcher

    def directives(self, plan: Spec) -> list[str]:
        """See `Scheduler.directives`.

        `--chdir` is a path, and `--output` a pattern, which is absolute: Slurm would append a
        relative one to the path and then expand patterns in both. `B:USR1` sends the signal to the
        script, which tells the ranks to save.
        """
        job, request = plan.job, plan.job.resources
        options = {
            "--job-name": job.name,
            "--chdir": str(plan.run_dir),
            "--output": file_pattern(str(plan.run_dir / "logs" / "job.log")),
            "--open-mode": "append",
            "--nodes": str(request.nodes),
            "--ntasks-per-node": str(plan.tasks_per_node),
            "--cpus-per-task": str(plan.cpus_per_task),
            **self._gpu_options(plan),
        }
        if request.memory is not None:
            options["--mem"] = f"{-(-parse_size(request.memory) // 2**20)}M"
        options["--time"] = format_duration(plan.walltime)
        if request.queue is not None:
            options["--partition"] = request.queue
        if request.account is not None:
            options["--account"] = request.account
        options["--signal"] = f"B:USR1@{plan.stop_margin}"
        generated = [(name, f"{name}={quote_directive(value)}") for name, value in options.items()]
        if request.exclusive:
            generated.append(("--exclusive", self.exclusive_directive(plan.site)))
        return merge_directives([*generated, ("--requeue", "--requeue")], plan, _options)

    def _gpu_options(self, plan: Spec) -> dict[str, str]:
        count, kind = plan.job.resources.gpus_per_node, plan.site.gpu_type
        if count == 0 or plan.site.gpu_request == "none":
            return {}
        amount = f"{kind}:{count}" if kind else str(count)
        if plan.site.gpu_request == "gres":
            return {"--gres": f"gpu:{amount}"}
        return {"--gpus-per-node": amount}

    def exclusive_directive(self, site: Site) -> str:
        """Slurm then allocates all cores and GPUs of the nodes. The ranks still get what their step
        requests."""
        return "--exclusive"

    def check(self, plan: Spec) -> None:
        """Refuse directives that hpc-amp cannot follow, and a stop margin above Slurm's limit."""
        refuse_directives(plan, GRAMMAR, _REFUSED)
        if plan.stop_margin > 65535:
            raise ConfigError("job.stop_margin is too long: Slurm warns at most 65535 s before")

    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Submit with `sbatch --parsable`, in a clean environment: variables SBATCH_* would
        override the script, and variables SLURM_* of the present allocation would reach the new
        job."""
        return run_submit_command(
            ["sbatch", "--parsable", str(script)],
            environ=submission_environment(environ, "SLURM_CONF", "SLURM_CLUSTERS"),
            folder=script.parent,
            job_id=r"^(\d+)(?:;.*)?$",
            lost=_LOST,
            away=_AWAY,
        )

    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """One srun that creates the allocation and its only step. It accepts the options of a batch
        job, forwards the window size and the exit status, and withdraws its request if it is
        interrupted while it waits."""
        words = [w for line in self.directives(plan) for w in directive_words(line, GRAMMAR)]
        options = without_options(words, _OF_BATCH_JOBS, _LONG_OPTIONS)
        # These come after the options of site and job, so that there is only one process.
        options += ["--nodes=1", "--ntasks=1", "--mpi=none", *_terminal_options(terminal)]
        kept = submission_environment(environ, "SLURM_CONF", "SLURM_CLUSTERS", *TERMINAL)
        command = ["srun", *options, *script_command(script)]
        return Interactive(command, kept, hides_interrupts=True)

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """The shell of an allocation by salloc may run on the login node. Only processes on a node
        of the job have the variable SLURMD_NODENAME."""
        if not environ.get(self.allocation):
            return None
        if environ.get("SLURMD_NODENAME"):
            return run_here(script, environ)
        # The step may use all of the job's cores on the node, even if other steps use them too.
        options = [f"--jobid={environ[self.allocation]}", "--overlap", "--cpu-bind=none"]
        options += ["--nodes=1", "--ntasks=1", "--mpi=none", *_terminal_options(terminal)]
        here = run_here(script, environ)
        command = ["srun", *options, *here.command]
        return Interactive(command, here.environ, hides_interrupts=True)

    def arrays(self) -> SlurmArrays:
        """Arrays of `sbatch --array`."""
        from hpc_amp.schedulers.slurm.arrays import SlurmArrays  # only for many runs

        return SlurmArrays(self)

    def queued(self) -> dict[str, Path]:
        """The scripts of jobs. The working directory would not do: an interactive session of a run
        has the same."""
        command = ["squeue", "-h", "-u", str(os.getuid()), "--states=all", "-o", "%i|%o"]
        rows = (line.strip().partition("|") for line in output_of(command).splitlines())
        return {job_id: Path(path) for job_id, _, path in rows if path}

    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query with squeue."""
        if not job_ids:
            return {}
        found = squeue.statuses()
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def submitit_executor(self, plan: Spec) -> submitit.Executor:
        """Batch jobs with one task for each rank."""
        from hpc_amp.schedulers.slurm import functions

        return functions.executor(plan, self.directives)

    def check_limits(self, job: Job, site: Site, client: Client) -> Iterator[Finding]:
        """The limits of the job's partition."""
        from hpc_amp.schedulers.slurm import limits

        return limits.check_limits(job, site, client)

    def draft_site(self, draft: SiteDraft, clients: Clients, queue: str | None) -> None:
        """Partitions, GPUs, types of MPI and accounts, from scontrol, sinfo, srun and sacctmgr."""
        from hpc_amp.schedulers.slurm.draft import draft_site

        draft_site(draft, clients, queue)

    def check_site(self, job: Job, site: Site) -> Iterator[Finding]:
        """The type of MPI."""
        from hpc_amp.schedulers.slurm import limits

        return limits.check_site(site)

    def node_architectures(self, job: Job, client: Client) -> set[str]:
        """The architectures of the nodes in the job's partition."""
        from hpc_amp.schedulers.slurm import limits

        return limits.node_architectures(job, client)

    def cancel(self, job_id: str) -> None:
        """Cancel with scancel: SIGTERM to all processes, SIGKILL after Slurm's KillWait."""
        result = run_command(["scancel", job_id])
        if result.returncode != 0 and "Invalid job id" not in result.stderr:
            raise SchedulerError(f"scancel {job_id}: {complaint(result)}")


def _terminal_options(terminal: bool) -> list[str]:
    """Options of srun. Without a terminal, it would answer the first Ctrl-C with its status and
    continue."""
    return ["--pty"] if terminal else ["--quit-on-interrupt"]


# Options of sbatch that srun does not have or reads differently, and whether they take a value: of
# files, which the terminal replaces, of requeueing, and of the environment.
_OF_BATCH_JOBS = {
    **dict.fromkeys(("--output", "--error", "--input", "--open-mode", "--signal"), True),
    **dict.fromkeys(("--array", "--export", "--export-file", "--wrap"), True),
    **dict.fromkeys(("--requeue", "--no-requeue", "--parsable", "--test-only"), False),
    **dict.fromkeys(("--get-user-env", "--wait", "--ignore-pbs"), False),
}
_LONG_OPTIONS = {
    "-e": "--error",
    "-i": "--input",
    "-a": "--array",
    "-W": "--wait",
    "-J": "--job-name",
    "-D": "--chdir",
    "-o": "--output",
    "-N": "--nodes",
    "-c": "--cpus-per-task",
    "-t": "--time",
    "-p": "--partition",
    "-A": "--account",
}


# Options with which sbatch does not submit exactly one job and print its id at once.
_REFUSED = {
    "array": "every task of the array would be the same run; several runs are `hpc-amp sweep`",
    "wait": "sbatch would print the id after the job's end only; `--follow` waits for a run",
    "test-only": "sbatch would submit nothing; `--dry-run` shows the script",
    "wrap": "sbatch would run another script",
    "clusters": "squeue would not find the job; export SLURM_CLUSTERS before you submit",
    **dict.fromkeys(
        ("hetjob", "packjob"), "the job would have several components with ids of their own"
    ),
}
# Messages of sbatch after which slurmctld may have accepted the job although it did not answer.
_LOST = r"timed out|Zero Bytes|(send|receive) failure|Unexpected message|Connection reset"


def _options(line: str) -> set[str]:
    """The options that a directive line sets, by their long names."""
    names = set()
    for word in directive_words(line, GRAMMAR):
        if word.startswith("--"):
            names.add(word.partition("=")[0])
        elif word.startswith("-"):
            names.add(_LONG_OPTIONS.get(word[:2], word[:2]))
    return names
