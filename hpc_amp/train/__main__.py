"""`python -m hpc_amp.train JOB_JSON`: one rank of a built-in task.

Exit status: 0 finished, 75 stopped at a checkpoint (go on later; 0 under MPI's launchers), 2 the
input is wrong, 1 anything else. The outcome file says the same: some launchers hide exit codes.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopWatch

EXIT_CHECKPOINTED = 75


def main(arguments: list[str]) -> int:
    """Run this rank. `arguments` is the path of `job.json`, in the run directory; inside
    `hpc-amp shell` that of the session's job is the default."""
    arguments = arguments or list(filter(None, [os.environ.get("HPC_AMP_JOB")]))
    if len(arguments) != 1:
        print("usage: python -m hpc_amp.train JOB_JSON", file=sys.stderr)
        return 2
    attempt = int(os.environ.get("HPC_AMP_ATTEMPT", "1"))
    stop_at = os.environ.get("HPC_AMP_STOP_AT")
    run = RunDirectory(Path(arguments[0]).parent, attempt)
    watch = StopWatch(stop_at=float(stop_at) if stop_at else None, stop_file=run.stop_file)
    # Before torch is imported, which takes seconds: a signal in between must not kill the rank.
    watch.install_handlers()

    try:
        from hpc_amp.train.session import run_rank
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "torchvision"):
            raise
        print(
            f"hpc-amp: {sys.executable} has no {error.name}: use an image that has it, name "
            "another interpreter in container.python, or, without a container, "
            "pip install 'hpc-amp[train]'",
            file=sys.stderr,
            flush=True,
        )
        return 2

    return run_rank(run, watch)


def _die(status: int) -> NoReturn:
    """Leave at once: other ranks may be waiting for this one in a collective operation, and an
    orderly exit would wait for them in turn."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except KeyboardInterrupt:
        _die(128 + signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        _die(1)
    _die(status)
