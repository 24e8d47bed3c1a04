"""Python functions as jobs of Slurm: submitit's executor, set up for a plan."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import submitit

from hpc_amp.errors import SchedulerError
from hpc_amp.jobs.spec import Spec

# What submitit has to say itself: where its logs are, and which signal it listens to.
_OF_SUBMITIT = ("--output", "--open-mode", "--signal")


def executor(plan: Spec, directives: Callable[[Spec], list[str]]) -> submitit.Executor:
    """One task a rank, and the header that a batch job of ours has, made by `directives`. Raises
    SchedulerError where Slurm is not on this machine."""
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
        # Before the first command, so they are directives; of two of a kind the last counts.
        setup=[
            *(f"#SBATCH {line}" for line in directives(plan)),
            # A job that was killed, and started again by Slurm, may have left its wish behind.
            f"rm -f {_wish(plan.run_dir)}",
        ],
        srun_args=[
            f"--cpus-per-task={request.cpus_per_gpu}",
            *plan.site.launcher_args,
            *plan.job.launch.args,
        ],
        teardown=_requeue_lines(plan.run_dir),
    )
    return made


def _wish(folder: Path) -> str:
    """Shell: the file that says that a function asked to be started again."""
    return f'{shlex.quote(str(folder))}/requeue-"$SLURM_JOB_ID"'


def _requeue_lines(folder: Path) -> list[str]:
    """Shell for the end of the batch script: what a function asked for at a checkpoint."""
    return [
        f"asked={_wish(folder)}",
        "id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}",
        '[ ! -e "$asked" ] || { rm -f "$asked" && scontrol requeue "$id" && sleep 60; }',
    ]
