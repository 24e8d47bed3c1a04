"""`mpirun` of Open MPI, `mpiexec` of MPICH (hydra) and of Cray (PALS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, quote, verbatim
from hpc_amp.launchers.base import RANK, Launcher, added_options, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


def _more_options(plan: Spec) -> str:
    """What site and job add, with a blank behind it."""
    return "".join(f"{quote(word)} " for word in added_options(plan))


class Mpirun(Launcher):
    """Open MPI, any version since 1.8. Ranks are numbered in blocks, from the first node on."""

    name = "mpirun"
    mpi = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """mpirun passes on SIGUSR1 and SIGUSR2; at SIGTERM it kills the ranks after a second."""
        return warnings(plan)

    def step_cpus(self, plan: Spec) -> int:
        """Where the scheduler has steps, mpirun starts one daemon a node as a step; the ranks share
        its cores."""
        return plan.job.cpus_per_node

    def command(self, plan: Spec) -> ShellText:
        """Every rank."""
        return self._start(plan, "$HPC_AMP_WORLD_SIZE", plan.job.ranks_per_node, RANK)

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """One process a node."""
        return self._start(plan, "$HPC_AMP_NNODES", 1, task)

    def _start(self, plan: Spec, count: str, per_node: int, what: str) -> ShellText:
        """Binding is off: a rank's threads would share one core."""
        hosts = "" if plan.step_launcher else '--hostfile "attempts/$attempt/hosts" '
        return verbatim(
            f'mpirun -n "{count}" {hosts}--map-by ppr:{per_node}:node '
            f'--bind-to none "${{carried[@]}}" {_more_options(plan)}\\\n    {what}'
        )


class Mpiexec(Launcher):
    """MPICH's hydra (also Intel's) and Cray's PALS, which differ in how they place ranks."""

    name = "mpiexec"
    mpi = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """Nothing that both of them do: the stop file reaches the ranks."""
        return {}

    def step_cpus(self, plan: Spec) -> int:
        """Like mpirun, hydra starts one daemon a node as a step."""
        return plan.job.cpus_per_node

    def settings(self, plan: Spec) -> dict[str, str]:
        """Whether the job or its site say how PALS is to bind ranks to cores."""
        more = " ".join(added_options(plan))
        return {"bound": "yes"} if "--cpu-bind" in more else {}

    def command(self, plan: Spec) -> ShellText:
        """Every rank."""
        return self._start(plan, "$HPC_AMP_WORLD_SIZE", '"$HPC_AMP_PPN"', RANK)

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """One process a node."""
        return self._start(plan, "$HPC_AMP_NNODES", "1", task)

    def _start(self, plan: Spec, count: str, per_node: str, what: str) -> ShellText:
        """`-n`, `-ppn` and `-hostfile` are read by both."""
        return verbatim(
            f'mpiexec -n "{count}" -ppn {per_node} '
            f'-hostfile "attempts/$attempt/hosts" "${{placement[@]}}" '
            f"{_more_options(plan)}\\\n    {what}"
        )
