"""The MPI check: do the ranks of the host's launcher meet in the MPI library of the image?

Where the two do not fit, every rank becomes "rank 0 of 1", and most of the time nothing fails: each
would train by itself. So a job with `launch.mpi` starts this first, with the launcher and the
container of the real start, and its program only if all ranks agree. mpi4py is asked in a process
of its own: an initialisation that hangs can be ended only from outside, and the program's own comes
later, untouched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hpc_amp.distributed.world import World, WorldError
from hpc_amp.preflight.mpi_fit import TIMEOUT, Mismatch, MpiCheck, ProbeAnswer, judge

MISMATCH = 3
"""Exit status of a check that failed."""


# What rank 0 needs to be first where all ranks fail alike, in seconds. Only who speaks depends on
# it: whichever rank comes first explains the failure.
_HEAD_START = 2.0

# What mpi4py says, as JSON lines into the descriptor of the first argument: whatever comes after,
# the last line tells how far it got. The library's version can be asked before MPI is initialised.
# The working directory is no place to import from. The sum shows that the ranks reach each other.
# The launcher kills the process that asks, which is a rank to it, but knows no child: so the kernel
# ends this one with it (prctl 1 is PR_SET_PDEATHSIG, 9 SIGKILL).
_ASK_MPI4PY = """
import ctypes, json, os, sys
if hasattr(ctypes.CDLL(None), "prctl"):
    ctypes.CDLL(None).prctl(1, 9)
sys.path[:] = [entry for entry in sys.path if entry]
pipe = int(sys.argv[1])
def tell(**facts):
    os.write(pipe, (json.dumps(facts) + "\\n").encode())
try:
    import mpi4py
except ImportError as error:
    tell(**{"absent" if error.name == "mpi4py" else "unloadable": str(error)})
    sys.exit()
tell(stage="load", mpi4py=mpi4py.__version__)
mpi4py.rc.initialize = False
try:
    from mpi4py import MPI
    library = MPI.Get_library_version()
except Exception as error:
    tell(unloadable=str(error))
    sys.exit()
tell(stage="start", library=library)
MPI.Init_thread()
world = MPI.COMM_WORLD
tell(stage="talk", size=world.size, rank=world.rank)
total = world.allreduce(world.rank) if world.size > 1 else 0
tell(stage="end", total=total)
MPI.Finalize()
tell(stage="done")
"""


def probe(
    job: Mapping[str, Any],
    run_dir: Path,
    folder: str,
    world: World,
    environment: Mapping[str, str],
) -> int:
    """Check this rank, in the environment and the folder of the program. Returns 0, or MISMATCH
    after one rank has explained. `job` is the job of job.json. Raises WorldError for a time limit
    that is none, and OSError where `folder` does not exist."""
    limit = _time_limit(environment)
    answer = _ask(environment, folder, limit)
    setting = MpiCheck(job, world, environment, answer)
    failure = judge(setting, limit)
    if failure is not None:
        return _explain(failure, answer, world, run_dir, environment)
    if world.is_main:
        ranks = f"{world.size} rank{'s' * (world.size > 1)}"
        host = f"host {setting.host.text}" if setting.host.text else "host unknown"
        image = f"{setting.inside} {setting.library.text}"
        print(f"MPI: {ranks}, {host}, {image}, mpi4py {answer.facts['mpi4py']}", flush=True)
    return 0


def _time_limit(environment: Mapping[str, str]) -> float:
    text = environment.get(TIMEOUT) or "60"
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < 1e9:
        raise WorldError(f"{TIMEOUT}={text!r} is not a number of seconds above 0")
    return limit


# ---- asking ------------------------------------------------------------------------------------


def _ask(environment: Mapping[str, str], folder: str, limit: float) -> ProbeAnswer:
    """Let mpi4py initialise in a process of its own, and end it with all that it started when the
    time is up. Descriptors stay open in it: PMI's server is behind an inherited one."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with tempfile.TemporaryFile() as output, open(reading, "rb") as pipe:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _ASK_MPI4PY, str(writing)],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                close_fds=False,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        status: int | None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        # A library that finds no server may have started one of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return ProbeAnswer(_facts(pipe), status, _text(output))


def _facts(pipe: IO[bytes]) -> dict[str, Any]:
    """Everything that was told. A daemon that escaped its session may hold the pipe open, so there
    is no waiting for its end: the lines are few enough to lie in the pipe already."""
    os.set_blocking(pipe.fileno(), False)
    content = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe.fileno(), 65536):
            content += part
    facts: dict[str, Any] = {}
    for line in content.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            facts.update(json.loads(line))
    return facts


def _text(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read(2**20).decode(errors="replace")


# ---- explaining --------------------------------------------------------------------------------


def _explain(
    failure: Mismatch,
    answer: ProbeAnswer,
    world: World,
    run_dir: Path,
    environment: Mapping[str, str],
) -> int:
    """Say it once in the whole job. Rank 0 speaks at once; others wait a little, and then only if
    nobody has spoken of the same failure. A file in the run directory, which all nodes see, shows
    who was first; what MPI wrote is kept there. A rank that stays silent waits once more before it
    ends, since launchers kill all ranks when one fails, and the speaker shall have finished."""
    attempt = environment.get("HPC_AMP_ATTEMPT")
    kept = ""
    if attempt:
        if not world.is_main:
            time.sleep(_HEAD_START)
        record = run_dir / "attempts" / attempt / f"mpi-{failure.kind}.txt"
        try:
            with open(record, "x") as file:
                file.write(f"{failure.text}\n\n{answer.output}")
            if answer.output.strip():
                kept = f". What MPI wrote is in {record}"
        except FileExistsError:
            time.sleep(_HEAD_START)
            return MISMATCH
        except OSError:  # a full disk, a read-only mount: better too many lines than none
            pass
    # In one write: launchers mix what several ranks say.
    sys.stderr.write(f"hpc-amp: MPI check: {failure.text}{kept}\n")
    sys.stderr.flush()
    return MISMATCH
