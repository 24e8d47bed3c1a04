"""torchrun: one agent on each node, which starts the node's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, verbatim, words
from hpc_amp.launchers import get_launcher
from hpc_amp.launchers.base import Launcher, StepLauncher

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
        30 s later; a scheduler that starts the agents itself sends it to them itself."""
        return {} if plan.step_launcher else {"TERM": "TERM", "INT": "TERM"}

    def reaches_nodes(self, step_launcher: str) -> bool:
        """Only the scheduler itself starts an agent on another node."""
        return step_launcher != ""

    def command(self, plan: Spec) -> ShellText:
        """The agents, through the scheduler's step launcher where it has one, directly on this
        machine otherwise. The node's number has to be expanded on the node, so a shell there puts
        it in."""
        program = '"${program[@]}"'
        if plan.job.launch.args:
            program = f"{words(plan.job.launch.args)} {program}"
        step = _step_launcher(plan)
        if step is None:
            return verbatim(f'"${{container[@]}}" "$python" {_AGENT} --node-rank=0 {program}')
        agent = f"""'exec "$0" {_AGENT} --node-rank="${step.node_number}" "$@"'"""
        shell = f'"${{container[@]}}" /bin/sh -c {agent} "$python" {program}'
        return step.tasks(plan, verbatim(shell), ())

    def node_command(self, plan: Spec, task: ShellText) -> ShellText:
        """Where the agents will start."""
        step = _step_launcher(plan)
        return task if step is None else step.once_per_node(plan, task, ())


def _step_launcher(plan: Spec) -> StepLauncher | None:
    if not plan.step_launcher:
        return None
    launcher = get_launcher(plan.step_launcher)
    assert isinstance(launcher, StepLauncher), f"{launcher.name} makes no steps"
    return launcher
