"""The launcher for one process on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, verbatim
from hpc_amp.launchers.base import RANK, Launcher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class Single(Launcher):
    """Starts the only rank as a child process of the script."""

    name = "single"
    takes_args = False

    def forwards(self, plan: Spec) -> dict[str, str]:
        """All signals, because the launcher is the rank itself."""
        return {**warnings(plan), "TERM": "TERM", "INT": "TERM"}

    def command(self, plan: Spec) -> ShellText:
        """The command of the rank."""
        return verbatim(RANK)
