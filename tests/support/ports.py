"""Ports on which ranks can meet."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to whoever asks for any: gloo does, many times.
_PORTS = range(10_000, 32_000)


def free_ports(count: int) -> list[int]:
    """So many different ports on which nobody listens."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                ports.append(port)
    return ports
