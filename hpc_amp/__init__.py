"""hpc-amp: one YAML file in, a multi-node mixed-precision PyTorch run out."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `hpc_amp.executor` when it is first used: images do not have what it needs."""
    if name == "executor":
        import importlib

        return importlib.import_module("hpc_amp.functions").executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
