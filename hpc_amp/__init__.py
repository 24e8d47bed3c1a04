"""hpc-amp: one YAML file in, a multi-node mixed-precision PyTorch run out."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
_PLACES = {"executor": "hpc_amp.functions", "report": "hpc_amp.distributed.report"}


def __getattr__(name: str) -> Any:
    """Import `hpc_amp.executor` and `hpc_amp.report` when they are first used: images do not have
    what the executor needs."""
    if name in _PLACES:
        import importlib

        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
