"""The launcher for several processes on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, verbatim
from hpc_amp.launchers.base import RANK, Launcher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class Processes(Launcher):
    """Starts the ranks as child processes of one process (`hpc_amp.distributed.processes`), which
    is in the container with them."""

    name = "processes"
    takes_args = False
    starts_agents = True

    def forwards(self, plan: Spec) -> dict[str, str]:
        """All signals. The process above the ranks forwards them."""
        return {**warnings(plan), "TERM": "TERM", "INT": "TERM"}

    def command(self, plan: Spec) -> ShellText:
        """Start the process above the ranks."""
        return verbatim(f'{RANK} --ranks "$HPC_AMP_PPN"')
