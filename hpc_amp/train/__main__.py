"""`python -m hpc_amp.train JOB_JSON`: one rank of a job with a task.

Exit status: 0 finished (and, under MPI's launchers, stopped at a checkpoint), 75 stopped at a
checkpoint, 2 the input is wrong, 1 any other error. The outcome file says the same, because some
launchers hide exit codes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from hpc_amp.distributed.ending import end_process
from hpc_amp.distributed.world import WorldError, resolve
from hpc_amp.train.outcome import write_first_outcome
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stopping import StopReason, StopWatch, seconds_in


def main(arguments: list[str]) -> int:
    """Run this rank. Returns the exit status.

    `arguments`: the path of `job.json` in the run directory. Without it, the job of the session in
    `hpc-amp shell`.
    """
    arguments = arguments or list(filter(None, [os.environ.get("HPC_AMP_JOB")]))
    if len(arguments) != 1:
        print("usage: python -m hpc_amp.train JOB_JSON", file=sys.stderr)
        return 2
    run = RunDirectory(Path(arguments[0]).parent, int(os.environ.get("HPC_AMP_ATTEMPT", "1")))
    try:
        world = resolve(os.environ)
    except WorldError as error:
        print(f"hpc-amp: {error}", file=sys.stderr, flush=True)
        write_first_outcome(run, "failed", str(error), None, StopReason.NONE)
        return 1
    if world.is_main and "HPC_AMP_ATTEMPT" not in os.environ:
        run.outcome_file.unlink(missing_ok=True)  # by hand, each time is the first attempt
    watch = StopWatch(
        stop_at=seconds_in("HPC_AMP_STOP_AT"),
        end_at=seconds_in("HPC_AMP_END_AT"),
        stop_file=run.stop_file if world.is_main else None,
        successor=run.successor if world.is_main else None,
    )
    # Importing torch takes seconds. A signal in that time must not kill the rank.
    watch.install_handlers()
    sentry = Sentry(run, watch, rank=world.rank, grace=seconds_in("HPC_AMP_GRACE") or 30.0)
    sentry.listen()

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

    return run_rank(run, world, watch, sentry)


def run_as_process(arguments: list[str]) -> NoReturn:
    """Run this rank, and end the process at once (see `end_process`)."""
    # If the disk is full, the log cannot be written. That must not change the exit status.
    with contextlib.suppress(OSError):
        try:
            status = main(arguments)
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        except BaseException:
            status = 1
            traceback.print_exc()
    end_process(status)


if __name__ == "__main__":
    run_as_process(sys.argv[1:])
