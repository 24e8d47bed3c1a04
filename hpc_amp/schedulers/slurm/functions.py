"""An executor of submitit for a plan on Slurm (`hpc_amp.executor`)."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import submitit

from hpc_amp.errors import SchedulerError
from hpc_amp.jobs.spec import Spec

# Options that submitit sets itself.
_OF_SUBMITIT = ("--output", "--open-mode", "--signal")


def executor(plan: Spec, directives: Callable[[Spec], list[str]]) -> submitit.Executor:
    """Create an executor that starts one task for each rank. Its jobs have the header that
    `directives` returns for the plan. Raises SchedulerError if Slurm is not on this machine."""
    if shutil.which("srun") is None:
        raise SchedulerError(
            "`srun` is not on this machine's PATH",
            hint="use a login node, or site=local to run here",
        )
    request = plan.job.resources
    skipped = [*request.skip_directives, *_OF_SUBMITIT]
    resources = replace(request, skip_directives=skipped)
    plan = replace(plan, job=replace(plan.job, resources=resources))
    made = submitit.SlurmExecutor(
        plan.run_dir / "jobs",
        request.max_restarts,
        python=shlex.quote(str(plan.run_dir / "python")),
    )
    made.update_parameters(
        nodes=request.nodes,
        ntasks_per_node=plan.job.ranks_per_node,
        time=-(-plan.walltime // 60),
        signal_delay_s=plan.stop_margin,
        stderr_to_stdout=True,
        wckey=None,
        # These lines come before the first command, so Slurm reads them as directives. If an option
        # is repeated, the last one counts.
        setup=[
            *(f"#SBATCH {line}" for line in directives(plan)),
            # A job that was killed and requeued by Slurm may have left this file.
            f"rm -f {_request_file(plan.run_dir)}",
        ],
        srun_args=[
            f"--cpus-per-task={request.cpus_per_gpu}",
            *plan.site.launcher_args,
            *plan.job.launch.args,
        ],
        teardown=_requeue_lines(plan.run_dir),
    )
    return made


def _request_file(folder: Path) -> str:
    """A shell word: the file with which a function requests that its job is requeued."""
    return f'{shlex.quote(str(folder))}/requeue-"$SLURM_JOB_ID"'


def _requeue_lines(folder: Path) -> list[str]:
    """Shell lines for the end of the batch script, which requeue the job if a function requested
    it at a checkpoint."""
    return [
        f"asked={_request_file(folder)}",
        "id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}",
        '[ ! -e "$asked" ] || { rm -f "$asked" && scontrol requeue "$id" && sleep 60; }',
    ]
