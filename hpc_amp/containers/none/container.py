"""The runtime `none`: no container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_amp.containers.base import Container

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class NoContainer(Container):
    """Runs the command on the node itself. An image that the job names is ignored, so that a job
    can be tried without its container."""

    name = "none"
    title = "no container"
    uses_image = False

    def check_image(self, image: str) -> None:
        """Accept any image."""
        return

    def options(self, plan: Spec) -> list[str]:
        """No options."""
        return []

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """The words without a prefix."""
        return list(inside)
