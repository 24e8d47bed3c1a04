"""Explaining a log, or a run: its log, and what its files and the scheduler say of its end."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import BinaryIO

from hpc_amp.errors import UsageError
from hpc_amp.explain.answer import Answer
from hpc_amp.explain.failures import known_failures
from hpc_amp.explain.match import Scan
from hpc_amp.jobs.status import RunStatus

# How much of a log a summary looks at: it must not be late.
_HEAD = 2 * 2**20
_TAIL = 4 * 2**20
_FAILED = ("failed", "lost")


def explain_stream(stream: BinaryIO, name: str) -> Answer:
    """What a log says, read once and to its end."""
    scan = Scan(known_failures())
    scan.read(stream, name)
    return Answer(name, scan.verdict())


def explain_log(path: Path | None) -> Answer:
    """What a file says, or standard input. Raises UsageError where it cannot be read."""
    if path is None:
        return explain_stream(sys.stdin.buffer, "stdin")
    try:
        with path.open("rb") as stream:
            return explain_stream(stream, str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def explain_run(status: RunStatus, *, bounded: bool = False) -> Answer:
    """What became of a run. `bounded` looks at the beginning and the end of a large log."""
    scan = Scan(known_failures())
    log = Path(status.run_dir) / "logs" / "job.log"
    remarks = []
    try:
        with log.open("rb") as stream:
            _read_log(scan, stream, log, bounded=bounded)
    except OSError as error:
        remarks.append(f"{log} cannot be read: {error.strerror}")
    if status.state in _FAILED or (status.state == "pending" and status.reason):
        # As a line like any other: entries know it, also why a job that waits can never start.
        words = f"hpc-amp status: {status.state}: {' '.join(status.reason.split())}\n"
        scan.read(io.BytesIO(words.encode()), "status", first_number=None)
    verdict = scan.verdict()
    if status.state not in _FAILED:
        remarks.append(f"the run is {status.state}")
        verdict.ended_well = verdict.ended_well or status.state == "finished"
        if status.state == "finished":
            verdict.finding = verdict.error = None
    return Answer(status.run_dir, verdict, tuple(remarks))


def _read_log(scan: Scan, stream: BinaryIO, log: Path, *, bounded: bool) -> None:
    name = str(log)
    size = log.stat().st_size
    if not bounded or size <= _HEAD + _TAIL:
        scan.read(stream, name)
        return
    scan.read(io.BytesIO(stream.read(_HEAD)), name)
    stream.seek(size - _TAIL)
    scan.read(io.BytesIO(stream.read(_TAIL).partition(b"\n")[2]), name, first_number=None)
