"""A container program that is a stand-in, and image files that are only heads of some."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -IS
import json, os, signal, sys, time
state = {state!r}
if sys.argv[1:] == ["--version"]:
    print(open(state + "/version").read())
    sys.exit()
with open(state + "/calls", "a") as out:
    out.write(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ)}}) + "\\n")
exec(open(state + "/behaviour").read())
"""

MAKES = """
import pathlib
target = sys.argv[-2]
pathlib.Path(os.environ["APPTAINER_TMPDIR"], "left-over").write_text("x")
print("INFO: working with", os.environ.get("APPTAINER_DOCKER_PASSWORD"), flush=True)
pathlib.Path(target).write_bytes(open(state + "/image", "rb").read())
"""


@dataclass(frozen=True, slots=True)
class FakeRuntime:
    """`apptainer` or `singularity` on a PATH of its own: notes its calls, then does as told."""

    bin: Path
    state: Path

    def does(self, behaviour: str) -> None:
        """Python that it runs, with `sys`, `os`, `time` and `state` at hand."""
        (self.state / "behaviour").write_text(behaviour)

    def fails(self, said: str, status: int = 255) -> None:
        self.does(f"sys.stderr.write({said!r}); sys.exit({status})")

    @property
    def calls(self) -> list[dict[str, Any]]:
        path = self.state / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def call(self) -> dict[str, Any]:
        """The only call."""
        (only,) = self.calls
        return only


def fake_runtime(
    folder: Path, *, name: str = "apptainer", version: str = "apptainer version 1.4.5"
) -> FakeRuntime:
    """One that makes whole images."""
    runtime = FakeRuntime(folder / "bin", folder / "state")
    for made in (runtime.bin, runtime.state):
        made.mkdir(parents=True)
    (runtime.state / "version").write_text(version)
    (runtime.state / "image").write_bytes(sif())
    program = runtime.bin / name
    program.write_text(_PROGRAM.format(python=sys.executable, state=str(runtime.state)))
    program.chmod(0o755)
    runtime.does(MAKES)
    return runtime


def sif(
    architecture: str = "02", labels: dict[str, str] | None = None, *, missing: int = 0
) -> bytes:
    """The bytes of a SIF file with nothing but labels in it."""
    metadata = {"data": {"attributes": {"labels": labels or {}}}, "type": "container"}
    content = json.dumps(metadata).encode()
    table, size = 128, 585
    data = table + size
    head = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0"
    head += architecture.encode() + b"\0" + bytes(16) + bytes(16)
    head += struct.pack("<6q", 0, 1, table, size, data, len(content))
    assert len(head) == table
    entry = struct.pack("<i?3I3q", 0x4006, True, 1, 0, 0, data, len(content), len(content))
    entry += bytes(32) + b"inspect-metadata.json".ljust(128, b"\0")
    whole = head + entry.ljust(size, b"\0") + content
    return whole[: len(whole) - missing]
