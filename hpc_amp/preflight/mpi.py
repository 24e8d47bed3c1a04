"""The MPI check: does the MPI library in the image work with the host's launcher?

If they do not work together, every rank becomes "rank 0 of 1". Usually no error is reported, and
every rank trains alone. So a job with `launch.mpi` first starts this check, with the launcher and
the container of the job. Its program starts only if all ranks agree.

mpi4py runs in a separate process, because an MPI_Init that hangs can only be killed from outside.
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


# Seconds that the other ranks wait, so that rank 0 reports a failure of all ranks. If rank 0 is
# slower, another rank reports it.
_HEAD_START = 2.0

# Seconds that srun has to forward the report. When a rank fails, srun ends the step, and what it
# has not read by then may be lost.
_FORWARDING = 1.0

# Writes facts as JSON lines to the file descriptor in the first argument; `stage` shows how far it
# got. The version of the library can be read before MPI_Init. The sum shows that the ranks can
# exchange messages. Nothing is imported from the working directory. The launcher may kill the
# parent, which is the rank, but it does not know this child: prctl makes the kernel kill the child
# together with its parent (1 is PR_SET_PDEATHSIG, 9 is SIGKILL).
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
    run_dir: str,
    folder: str,
    world: World,
    environment: Mapping[str, str],
) -> int:
    """Check MPI on this rank, in the environment and the folder of the program.

    `job` is the key `job` of job.json. Returns 0, or MISMATCH after one of the ranks has printed
    the reason. Raises WorldError if the time limit in the environment is not a number of seconds,
    and OSError if `folder` does not exist.
    """
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
        raise WorldError(f"{TIMEOUT}={text!r} is not a positive number of seconds")
    return limit


# ---- asking ------------------------------------------------------------------------------------


def _ask(environment: Mapping[str, str], folder: str, limit: float) -> ProbeAnswer:
    """Initialise mpi4py in a separate process; kill it and its children after `limit` seconds.

    File descriptors are inherited, because PMI uses one of them to reach its server.
    """
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
        # A library that finds no PMI server may have started one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        text = output.read(2**20).decode(errors="replace")
        return ProbeAnswer(_facts(pipe), status, text)


def _facts(pipe: IO[bytes]) -> dict[str, Any]:
    """Read the facts that the process wrote.

    The read does not wait for the end of the pipe, because a daemon of MPI may keep it open. The
    few lines fit into the pipe, so all of them can be read at once.
    """
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


# ---- explaining --------------------------------------------------------------------------------


def _explain(
    failure: Mismatch,
    answer: ProbeAnswer,
    world: World,
    run_dir: str,
    environment: Mapping[str, str],
) -> int:
    """Report a failure once in the whole job.

    Rank 0 reports at once, the others after `_HEAD_START` seconds. The first rank creates a file in
    the run directory, with the output of MPI. A rank that finds the file reports nothing. It waits
    before it exits, because launchers kill all ranks when one of them fails, and the first rank
    needs time to print its message.
    """
    attempt = environment.get("HPC_AMP_ATTEMPT")
    kept = ""
    if attempt:
        if not world.is_main:
            time.sleep(_HEAD_START)
        record = Path(run_dir) / "attempts" / attempt / f"mpi-{failure.kind}.txt"
        try:
            with open(record, "x") as file:
                file.write(f"{failure.text}\n\n{answer.output}")
            if answer.output.strip():
                kept = f". What MPI wrote is in {record}"
        except FileExistsError:
            time.sleep(_HEAD_START)
            return MISMATCH
        except OSError:
            # On a full or read-only file system, every rank reports: that is better than no report.
            pass
    # In one write, because launchers mix the output of several ranks.
    sys.stderr.write(f"hpc-amp: MPI check: {failure.text}{kept}\n")
    sys.stderr.flush()
    time.sleep(_FORWARDING)
    return MISMATCH
