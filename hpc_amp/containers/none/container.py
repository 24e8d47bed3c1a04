"""No container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.containers.base import Container

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class NoContainer(Container):
    """The command runs on the node as it is."""

    name = "none"
    binaries = ()

    def options(self, plan: Spec) -> list[str]:
        """Nothing to say."""
        return []
