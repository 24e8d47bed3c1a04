"""Slurm's srun: one task a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, command_line, quote
from hpc_amp.launchers.base import StepLauncher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


# The nodes are named: a run may have a part of the allocation (hpc_amp/host/campaign.sh), and Slurm
# would take whichever of its nodes are idle, not those that the ranks are told of.
_SRUN = 'srun --nodelist="$SLURM_JOB_NODELIST"'


class Srun(StepLauncher):
    """The ranks find their place in the variables of the Slurm step."""

    name = "srun"
    mpi = True
    node_number = "SLURM_NODEID"

    def forwards(self, plan: Spec) -> dict[str, str]:
        """srun passes on SIGUSR1 and SIGUSR2. SIGTERM would make it kill the step at once; whenever
        Slurm terminates a job, it sends SIGTERM to the ranks itself."""
        return warnings(plan)

    def tasks(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """`--cpus-per-task` is given although the header has it: from Slurm 22.05 to 23.02 srun
        does not inherit it and leaves every rank one core. GPUs are not bound to ranks, so that
        NCCL can copy from one to another; `--gpu-bind=none` is not needed for that, and where no
        cgroup limits a job it would show the ranks other jobs' GPUs. One dead rank ends the step.
        """
        nodes, per_node = plan.job.resources.nodes, plan.tasks_per_node
        options = [
            f"--nodes={nodes}",
            f"--ntasks={nodes * per_node}",
            f"--ntasks-per-node={per_node}",
            f"--cpus-per-task={plan.cpus_per_task}",
            "--distribution=block:block",
            f"--mpi={'none' if plan.job.launch.mpi == 'none' else plan.site.srun_mpi}",
            "--kill-on-bad-exit=1",
            "--wait=60",
            *more,
        ]
        return command_line([_SRUN, *map(quote, options), what])

    def once_per_node(self, plan: Spec, what: ShellText, more: Sequence[str]) -> ShellText:
        """Slurm warns of more cores than the header has."""
        nodes = plan.job.resources.nodes
        options = [
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={plan.cpus_per_task}",
            "--distribution=block:block",
            "--mpi=none",
            "--kill-on-bad-exit=0",
            *more,
        ]
        return command_line([_SRUN, *map(quote, options), what])
