"""Credentials for registries. They are read from the environment and passed only to the environment
of one child process, never to a file, a command line or a log."""

from __future__ import annotations

from collections.abc import MutableMapping

from hpc_amp.containers.apptainer.program import PREFIXES

NGC_HOST = "nvcr.io"
NGC_USER = "$oauthtoken"
_KEYS = ("NGC_API_KEY", "NGC_CLI_API_KEY")


def credentials(uri: str, child: MutableMapping[str, str]) -> list[str]:
    """Set the runtime's variables for the registry of `uri` in the environment `child`, under both
    names of the runtime. NVIDIA's key is used for NVIDIA's registry only. Returns the secrets, so
    that they can be removed from the output."""
    user = next((child[f"{p}_DOCKER_USERNAME"] for p in PREFIXES if _has(child, p)), None)
    password = next((child[f"{p}_DOCKER_PASSWORD"] for p in PREFIXES if _has(child, p)), None)
    key = next((child[name] for name in _KEYS if child.get(name)), None)
    if user is None and key is not None and registry_host(uri) == NGC_HOST:
        user, password = NGC_USER, key
    for name in _KEYS:
        child.pop(name, None)
    if user is None or password is None:
        return [key] if key else []
    for prefix in PREFIXES:
        child[f"{prefix}_DOCKER_USERNAME"] = user
        child[f"{prefix}_DOCKER_PASSWORD"] = password
    return [secret for secret in (password, key) if secret]


def registry_host(uri: str) -> str:
    """The host of the registry in a URI. Empty for Docker Hub's short names and for files."""
    transport, separator, reference = uri.partition("://")
    if not separator or transport not in ("docker", "oras"):
        return ""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


def _has(child: MutableMapping[str, str], prefix: str) -> bool:
    return bool(child.get(f"{prefix}_DOCKER_USERNAME") and child.get(f"{prefix}_DOCKER_PASSWORD"))
