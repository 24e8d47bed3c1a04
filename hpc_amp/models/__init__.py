"""Networks for the built-in tasks."""

from hpc_amp.models.build import build_model

__all__ = ["build_model"]
