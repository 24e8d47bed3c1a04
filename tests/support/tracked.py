"""`python -m support.tracked RUN_DIR`: two attempts of a run with wandb and MLflow, in forks of one
process that has imported them. The first one reports the steps from 1 to 8 and is killed, the
second one resumes from step 6, goes to step 10 and finishes. Then a program of the user writes rows
of its own. Prints how each one ended."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from hpc_amp.distributed.world import World
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.tracking import Tracking


def main(folder: str) -> None:
    for name in ("wandb.sdk.launch.inputs.internal", "mlflow"):
        importlib.import_module(name)
    for run in (partial(attempt, 1, 1, 8), partial(attempt, 2, 7, 10), program_of_the_user):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(Path(folder))
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        print("ended:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def attempt(number: int, first: int, last: int, folder: Path) -> None:
    """An attempt that reports the steps from `first` to `last`. The first one does not survive."""
    run = RunDirectory(folder, number)
    run.attempt_path.mkdir(parents=True)
    tracking = Tracking(run, World(), start_step=first - 1, trackers=["wandb", "mlflow"])
    if number == 1:
        import torch

        tracking.pictures(1, torch.rand(4, 3, 8, 8), "inputs")
    for step in range(first, last + 1):
        tracking.scalars(step, {"train/loss": 1 / step, "train/loss_scale_a+b": 2.0})
    if number == 1:
        # A loss at this moment, of what a tracker has not taken yet, cannot be avoided.
        while any(thread._reports.qsize() for thread in tracking._trackers.values()):
            time.sleep(0.1)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    tracking.end("finished")
    tracking.close()


def program_of_the_user(folder: Path) -> None:
    """A run of wandb in the folder `own`, of which one row has no step."""
    import wandb

    settings = wandb.Settings(console="off", silent=True)
    (folder / "own").mkdir()
    run = wandb.init(id="abc", mode="offline", dir=str(folder / "own"), settings=settings)
    run.log({"other": 1.0})
    run.log({"step": 7, "train/loss": 0.5})
    run.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
