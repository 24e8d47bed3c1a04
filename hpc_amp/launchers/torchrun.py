"""torchrun: one agent on each node, which starts the node's ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, verbatim, words
from hpc_amp.launchers import get_launcher
from hpc_amp.launchers.base import Launcher, StepLauncher

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

# A static rendezvous: the c10d backend compares host names, which may differ in a container.
_AGENT = (
    '-m torch.distributed.run --nnodes="$HPC_AMP_NNODES" --nproc-per-node="$HPC_AMP_PPN" '
    '--master-addr="$HPC_AMP_MASTER_ADDR" --master-port="$HPC_AMP_MASTER_PORT" --max-restarts=0'
)


class Torchrun(Launcher):
    """Starts one agent of torchrun on each node. The agents meet at the first node."""

    name = "torchrun"
    starts_agents = True
    longest_grace = 30

    def forwards(self, plan: Spec) -> dict[str, str]:
        """SIGUSR1 would kill the agent, and its ranks would continue without it. The agent forwards
        SIGTERM and kills the ranks 30 s later. A scheduler that starts the agents sends SIGTERM to
        them itself."""
        return {} if plan.step_launcher else {"TERM": "TERM", "INT": "TERM"}

    def reaches_nodes(self, step_launcher: str) -> bool:
        """Only the scheduler's launcher can start an agent on another node."""
        return step_launcher != ""

    def command(self, plan: Spec) -> ShellText:
        """Start the agents with the scheduler's step launcher, or directly on this machine if it
        has none. A shell on each node expands the variable with the node's number."""
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
        """Run the task once on each node, as the agents."""
        step = _step_launcher(plan)
        return task if step is None else step.once_per_node(plan, task, ())


def _step_launcher(plan: Spec) -> StepLauncher | None:
    if not plan.step_launcher:
        return None
    launcher = get_launcher(plan.step_launcher)
    assert isinstance(launcher, StepLauncher), f"{launcher.name} makes no steps"
    return launcher
