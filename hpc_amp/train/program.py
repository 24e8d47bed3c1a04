"""How a training program ends. This module does not import torch before the program does."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hpc_amp.distributed.ending import end_process
from hpc_amp.distributed.world import World, WorldError, resolve
from hpc_amp.train.outcome import write_first_outcome
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopReason


class ArgumentParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit with 2."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def run_program(main: Callable[[], int]) -> NoReturn:
    """Run `main`, which returns the exit status, and end the process.

    If `main` raises an error whose message is for the user, only the message is printed. The exit
    status is 2 if the input is wrong, and 1 for any other error.
    """
    try:
        status = main()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            status = end.code or 0
        else:
            print(end.code, file=sys.stderr, flush=True)
            status = 1
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException as error:
        status = _report_failure(error)
    end_process(status)


def _report_failure(error: BaseException) -> int:
    """Print why a program failed, and in a job write it down. Returns the exit status."""
    try:
        world = resolve(os.environ)
    except WorldError:
        world = World()  # `error` is the same error then
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "torchvision"):
        print(f"hpc-amp: {sys.executable} has no {error.name}", file=sys.stderr, flush=True)
        return 2
    from hpc_amp.train.stages import explain, failure_status

    reason, explained = explain(error, world)
    job = job_of_program()
    if job is not None:
        write_first_outcome(job, "failed", reason, None, StopReason.NONE)
    if explained:
        print(f"hpc-amp: {reason}", file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    return failure_status(error)


def job_of_program() -> RunDirectory | None:
    """The run directory of the job that runs this program, or None outside of a job."""
    outcome = os.environ.get("HPC_AMP_OUTCOME_FILE")
    if not outcome:
        return None
    attempt = Path(outcome).parent
    return RunDirectory(attempt.parents[1], int(attempt.name))
