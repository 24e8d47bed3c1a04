"""What ssh does for Cobalt: `remote_shell.py cluster|local NODE WORD...` runs the words, joined by
blanks and read again by a shell, on a node.

As with ssh, a signal to this process ends this process only: the remote side goes on, and notices
when it writes. As with ssh, this process stays until the remote side has closed its output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.nodes import initial_environment, on_node


def _copy(source: int, target: int) -> None:
    while data := os.read(source, 65536):
        while data:
            data = data[os.write(target, data) :]


def main(place: str, node: str, *words: str) -> int:
    """The remote command's status; 255 where it was ended by a signal."""
    process = subprocess.Popen(
        on_node(node, place == "local", ["/bin/sh", "-c", " ".join(words)]),
        env=initial_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    copiers = [
        threading.Thread(target=_copy, args=(process.stdout.fileno(), 1)),
        threading.Thread(target=_copy, args=(process.stderr.fileno(), 2)),
    ]
    for copier in copiers:
        copier.start()
    for copier in copiers:
        copier.join()
    status = process.wait()
    if status < 0:
        os.write(2, f"Connection to {node} closed by remote host.\n".encode())
        return 255
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
