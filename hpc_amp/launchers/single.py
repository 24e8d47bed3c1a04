"""One process on one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.jobs.shell import ShellText, verbatim
from hpc_amp.launchers.base import RANK, Launcher, warnings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class Single(Launcher):
    """The only rank is a child of the script."""

    name = "single"

    def forwards(self, plan: Spec) -> dict[str, str]:
        """All: the rank is the launcher."""
        return {**warnings(plan), "TERM": "TERM", "INT": "TERM"}

    def command(self, plan: Spec) -> ShellText:
        """The rank itself."""
        return verbatim(RANK)
