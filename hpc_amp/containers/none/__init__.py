"""The software of the node."""

from hpc_amp.containers.none.container import NoContainer

__all__ = ["NoContainer"]
