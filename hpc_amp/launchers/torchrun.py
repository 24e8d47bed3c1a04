"""torchrun: one agent on each node, which starts the node's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, command_line, quote, verbatim, words
from hpc_amp.launchers.base import Launcher
from hpc_amp.launchers.srun import SRUN, node_step, srun_options

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

# Static rendezvous: the c10d one compares host names, which differ inside and outside containers.
_AGENT = (
    '-m torch.distributed.run --nnodes="$HPC_AMP_NNODES" --nproc-per-node="$HPC_AMP_PPN" '
    '--master-addr="$HPC_AMP_MASTER_ADDR" --master-port="$HPC_AMP_MASTER_PORT" --max-restarts=0'
)


class Torchrun(Launcher):
    """The agents of all nodes meet at the first one."""

    name = "torchrun"
    starts_agents = True
    longest_grace = 30

    def forwards(self, plan: Spec) -> dict[str, str]:
        """SIGUSR1 would kill the agent and orphan the ranks. SIGTERM it passes on, and kills them
        30 s later; on Slurm, Slurm itself sends it to the agents, and srun would kill them."""
        return {} if plan.has_steps else {"TERM": "TERM", "INT": "TERM"}

    def command(self, plan: Spec) -> ShellText:
        """The agents, through srun on Slurm, directly on this machine otherwise. The node's index
        has to be expanded on the node, so a shell there puts it in."""
        program = '"${program[@]}"'
        if plan.job.launch.args:
            program = f"{words(plan.job.launch.args)} {program}"
        if not plan.has_steps:
            return verbatim(f'"${{container[@]}}" "$python" {_AGENT} --node-rank=0 {program}')
        agent = f"""'exec "$0" {_AGENT} --node-rank="$SLURM_NODEID" "$@"'"""
        options = map(quote, srun_options(plan))
        shell = f'"${{container[@]}}" /bin/sh -c {agent} "$python" {program}'
        return command_line([SRUN, *options, shell])

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """Where the agents will start."""
        return node_step(plan, task) if plan.has_steps else task
