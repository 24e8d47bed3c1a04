"""The interface of containers to the renderer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from hpc_amp.jobs.plan import Plan


class Container(ABC):
    """`binaries` are the programs that can run the image, in order of preference; the script takes
    the first that the node has and finds out by `--version` what it really is."""

    binaries: tuple[str, ...]
    name: ClassVar[str]

    @abstractmethod
    def options(self, plan: Plan) -> list[str]:
        """Words between `exec` and the image."""


class NoContainer(Container):
    """The command runs on the node as it is."""

    name = "none"
    binaries = ()

    def options(self, plan: Plan) -> list[str]:
        """Nothing to say."""
        return []
