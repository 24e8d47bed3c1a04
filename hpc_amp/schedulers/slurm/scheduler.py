"""Slurm: sbatch's directives and quoting, squeue, scancel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.config.units import format_duration, parse_size
from hpc_amp.errors import ConfigError, SchedulerError
from hpc_amp.schedulers.answers import JobStatus, Submission
from hpc_amp.schedulers.base import (
    TERMINAL,
    Interactive,
    Scheduler,
    Which,
    complaint,
    directive_words,
    hand_in,
    merge_directives,
    output_of,
    refuse_directives,
    run_command,
    run_here,
    script_command,
    submission_environment,
    without_options,
)
from hpc_amp.schedulers.slurm.arrays import SlurmArrays
from hpc_amp.schedulers.slurm.grammar import GRAMMAR
from hpc_amp.schedulers.slurm.states import job_status

if TYPE_CHECKING:
    import submitit

    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec

FILES = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))
_AWAY = "Unable to contact slurm controller|Connection refused|No route to host"


def quote_directive(value: str) -> str:
    """`value` as sbatch's directive parser reads it back: it groups with quotes like a shell, but a
    backslash escapes inside either kind of quotes, and `#` outside them starts a comment."""
    return shlex.quote(value.replace("\\", "\\\\"))


def file_pattern(path: str) -> str:
    """`path` as a file name of sbatch, which replaces `%j` and the like; a backslash anywhere turns
    that off and goes away, like the one of `\\\\` (sbatch(1), "filename pattern")."""
    return re.sub(r"[\\%]", r"\\\g<0>", path)


class Slurm(Scheduler):
    """sbatch copies the script at submission; options in it are read up to the first command."""

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
    def is_configured(cls, which: Which = shutil.which) -> bool:
        """Packages install the commands on machines of no cluster, hence the question for a
        controller."""
        if not which("sbatch"):
            return False
        if os.environ.get("SLURM_CONF") or any(file.exists() for file in FILES):
            return True
        scontrol = which("scontrol")
        if not scontrol:
            return False
        try:  # a "configless" cluster has no file: the controller answers all the same
            ping = subprocess.run([scontrol, "ping"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ping.returncode == 0

    def default_launcher(self, job: Job) -> str:
        """One task a rank."""
        return self.step_launcher

    def directives(self, plan: Spec) -> list[str]:
        """`--chdir` is a path, `--output` a pattern: a relative one would be joined to the path and
        then be expanded as a whole. `B:USR1` warns the script, which asks the ranks to save."""
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
        return merge_directives([*generated, ("--requeue", "--requeue")], plan, _options)

    def _gpu_options(self, plan: Spec) -> dict[str, str]:
        count, kind = plan.job.resources.gpus_per_node, plan.site.gpu_type
        if count == 0 or plan.site.gpu_request == "none":
            return {}
        amount = f"{kind}:{count}" if kind else str(count)
        if plan.site.gpu_request == "gres":
            return {"--gres": f"gpu:{amount}"}
        return {"--gpus-per-node": amount}

    def check(self, plan: Spec) -> None:
        """Slurm's own limits on what the script asks for."""
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
        """`sbatch --parsable`, from a clean environment: SBATCH_* variables would override the
        script, and SLURM_* of an allocation that we are inside would reach the new job."""
        return hand_in(
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
        """srun makes the allocation and its only step at once: it then gets the options that a
        batch job gets, hands on window size and exit status, and takes its request back when it
        is interrupted while it waits."""
        words = [w for line in self.directives(plan) for w in directive_words(line, GRAMMAR)]
        options = without_options(words, _OF_BATCH_JOBS, _LONG_OPTIONS)
        # Behind what site and job say: it shall be one process.
        options += ["--nodes=1", "--ntasks=1", "--mpi=none", *_terminal_options(terminal)]
        kept = submission_environment(environ, "SLURM_CONF", "SLURM_CLUSTERS", *TERMINAL)
        command = ["srun", *options, *script_command(script)]
        return Interactive(command, kept, hides_interrupts=True)

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """salloc may have left its shell on the login node; slurmd's variable tells."""
        if not environ.get(self.allocation):
            return None
        if environ.get("SLURMD_NODENAME"):
            return run_here(script, environ)
        # All of the job's cores on the node, although others of its steps use them.
        options = [f"--jobid={environ[self.allocation]}", "--overlap", "--cpu-bind=none"]
        options += ["--nodes=1", "--ntasks=1", "--mpi=none", *_terminal_options(terminal)]
        here = run_here(script, environ)
        command = ["srun", *options, *here.command]
        return Interactive(command, here.environ, hides_interrupts=True)

    def arrays(self) -> SlurmArrays:
        """`sbatch --array`."""
        return SlurmArrays(self)

    def queued(self) -> dict[str, Path]:
        """Scripts of jobs. A session has no script in the run, but the same working directory."""
        command = ["squeue", "-h", "-u", str(os.getuid()), "--states=all", "-o", "%i|%o"]
        rows = (line.strip().partition("|") for line in output_of(command).splitlines())
        return {job_id: Path(path) for job_id, _, path in rows if path}

    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """squeue, asked once for all the user's jobs: naming one that it has forgotten would make
        it refuse the whole request."""
        if not job_ids:
            return {}
        user = str(os.getuid())  # not every node knows everybody's name
        result = run_command(["squeue", "-h", "-u", user, "--states=all", "-o", "%i|%T|%r"])
        if result.returncode != 0:
            raise SchedulerError(f"squeue does not answer: {complaint(result)}")
        wanted = set(job_ids)
        rows = (line.strip().split("|", 2) for line in result.stdout.splitlines())
        return {row[0]: job_status(row[1], row[2]) for row in rows if row[0] in wanted}

    def submitit_executor(self, plan: Spec) -> submitit.Executor:
        """Batch jobs with one task a rank."""
        from hpc_amp.schedulers.slurm import functions

        return functions.executor(plan, self.directives)

    def check_limits(self, job: Job, site: Site) -> Iterator[Finding]:
        """The limits of the job's partition."""
        from hpc_amp.schedulers.slurm import limits

        return limits.check_limits(job)

    def node_architectures(self, job: Job) -> set[str]:
        """Those of the nodes in the job's partition."""
        from hpc_amp.schedulers.slurm import limits

        return limits.node_architectures(job)

    def cancel(self, job_id: str) -> None:
        """scancel: SIGTERM to all, SIGKILL after the site's KillWait."""
        result = run_command(["scancel", job_id])
        if result.returncode != 0 and "Invalid job id" not in result.stderr:
            raise SchedulerError(f"scancel {job_id}: {complaint(result)}")


def _terminal_options(terminal: bool) -> list[str]:
    """Without a terminal, srun would take the first Ctrl-C for a question."""
    return ["--pty"] if terminal else ["--quit-on-interrupt"]


# What sbatch knows and srun does not, or understands as something else: of files that a terminal
# takes the place of, of a script that may start again, and of the environment.
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


# Options that make of a submission something else than one job whose id sbatch tells at once.
_REFUSED = {
    "array": "every task of the array would be the same run; several runs are `hpc-amp sweep`",
    "wait": "sbatch would answer when the job has ended only; `--follow` waits for a run",
    "test-only": "sbatch would submit nothing; `--dry-run` shows the script",
    "wrap": "sbatch would run another script",
    "clusters": "squeue would not find the job; export SLURM_CLUSTERS before you submit",
    **dict.fromkeys(
        ("hetjob", "packjob"), "the job would be several in one, with ids of their own"
    ),
}
# What sbatch says where slurmctld may have the job although its answer did not come.
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
