"""The interface of containers to the renderer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from hpc_amp.registry import code_beside

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


class Container(ABC):
    """`binaries` are the programs that can run the image, in order of preference; the script takes
    the first that the node has and finds out by `--version` what it really is."""

    binaries: tuple[str, ...]
    name: ClassVar[str]

    @abstractmethod
    def options(self, plan: Spec) -> list[str]:
        """Words between `exec` and the image."""

    def host_code(self) -> str:
        """Bash that is sourced before the launch and defines `enter_container`. Default: `host.sh`
        beside the module."""
        return code_beside(self, "host.sh")
