"""`python -m support.tracked RUN_DIR ATTEMPT FIRST LAST END TRACKER...`: an attempt that reports
the steps from FIRST to LAST. END is `killed`, or the outcome of the attempt."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hpc_amp.distributed.world import World
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.tracking import Tracking


def main(folder: str, number: str, first: str, last: str, end: str, *trackers: str) -> None:
    run = RunDirectory(Path(folder), int(number))
    run.attempt_path.mkdir(parents=True)
    tracking = Tracking(run, World(), start_step=int(first) - 1, trackers=trackers)
    if run.attempt == 1:
        import torch

        tracking.pictures(1, torch.rand(4, 3, 8, 8), "inputs")
    for step in range(int(first), int(last) + 1):
        tracking.scalars(step, {"train/loss": 1 / step, "train/loss_scale_a+b": 2.0})
    if end == "killed":
        # A loss at this moment, of what a tracker has not taken yet, cannot be avoided.
        while any(thread._reports.qsize() for thread in tracking._trackers.values()):
            time.sleep(0.1)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    tracking.end(end)
    tracking.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
