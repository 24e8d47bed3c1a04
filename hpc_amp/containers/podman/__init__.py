"""Podman and podman-hpc."""

from hpc_amp.containers.podman.container import Podman

__all__ = ["Podman"]
