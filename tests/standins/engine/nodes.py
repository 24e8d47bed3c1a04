"""Nodes, and the processes on them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

# Sets the node's name, then becomes the command. Not `ip netns exec`: that remounts /sys.
_ENTER = 'hostname "$0" && exec "$@"'


def on_node(node: str, local_nodes: bool, command: Sequence[str]) -> list[str]:
    """The command that runs `command` on a node of the test cluster, or on this machine."""
    if local_nodes:
        return list(command)
    return [
        *("/usr/bin/nsenter", f"--net=/run/netns/{node}"),
        *("/usr/bin/unshare", "--uts", "/bin/sh", "-c", _ENTER, node, *command),
    ]


def initial_environment() -> dict[str, str]:
    """What this process was started with. In `os.environ` there may be more: Python sets LC_CTYPE
    where there is no locale, and a job would inherit that."""
    return Process(os.getpid()).environ()


class Process:
    """One process, as /proc shows it."""

    def __init__(self, pid: int) -> None:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.pid = pid
        self.ended = fields[0] in "ZX"
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        self.started = int(fields[19])
        """In clock ticks since boot: tells it from a later process with the same number."""

    def environ(self) -> dict[str, str]:
        """What it was started with."""
        text = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="surrogateescape")
        pairs = (entry.partition("=") for entry in text.split("\0"))
        return {name: value for name, equals, value in pairs if equals}


def identity(pid: int) -> list[int]:
    """What names a process for good."""
    return [pid, Process(pid).started]


def lives(named: list[int]) -> bool:
    """Whether the process of that identity has not ended."""
    try:
        process = Process(named[0])
    except (OSError, IndexError):
        return False
    return process.started == named[1] and not process.ended


def processes() -> list[Process]:
    """All that live."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                found.append(Process(int(name)))
    return [process for process in found if not process.ended]


def descendants(root: int) -> list[Process]:
    """All that live below a process."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, []))
    for process in found:
        found += children.get(process.pid, [])
    return found


def in_session(session: int) -> list[Process]:
    """All that live in a session."""
    return [process for process in processes() if process.session == session]


def send(targets: Iterable[Process], number: int) -> None:
    """Signal processes that may have ended by now."""
    for process in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def signal_number(text: str) -> int | None:
    """`USR1`, `SIGUSR1` or `10`."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    name = text if text.startswith("SIG") else f"SIG{text}"
    return signal.Signals[name].value if name in signal.Signals.__members__ else None


def compress(names: Sequence[str]) -> str:
    """`n[1-2,4]`, as Cobalt lists hosts."""
    groups: dict[str, list[int]] = {}
    plain = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            plain.append(name)
        else:
            groups.setdefault(match[1], []).append(int(match[2]))
    texts = []
    for stem, numbers in groups.items():
        spans: list[list[int]] = []
        for number in sorted(numbers):
            if spans and number == spans[-1][1] + 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        shown = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
        texts.append(f"{stem}[{shown}]" if len(numbers) > 1 else f"{stem}{shown}")
    return ",".join([*plain, *texts])
