"""No container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_amp.containers.base import Container

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class NoContainer(Container):
    """The command runs on the node as it is. An image that the job names is not looked at: this is
    a quick way to try a job without its container."""

    name = "none"
    title = "no container"
    uses_image = False

    def check_image(self, image: str) -> None:
        """Nothing to check."""
        return

    def options(self, plan: Spec) -> list[str]:
        """Nothing to say."""
        return []

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """The words themselves."""
        return list(inside)
