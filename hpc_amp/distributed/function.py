"""`python -m hpc_amp.distributed.function FOLDER`: submitit's program for a rank, in a container.

Slurm sends a signal to every process of a step, and the container runtime forwards the one that it
gets, so the process of a function gets it twice. submitit would then begin a second checkpoint
during the first one.
"""

from __future__ import annotations

import signal
from types import FrameType

from submitit.core.job_environment import SignalHandler
from submitit.core.submission import submitit_main


def main() -> None:
    """Run the function that was pickled into the folder."""
    checkpoint = SignalHandler.checkpoint_and_try_requeue

    def once(self: SignalHandler, signum: int, frame: FrameType | None = None) -> None:
        signal.signal(signum, signal.SIG_IGN)
        checkpoint(self, signum, frame)

    # submitit creates the handler itself, and has no option for another one.
    SignalHandler.checkpoint_and_try_requeue = once  # type: ignore[method-assign]
    submitit_main()


if __name__ == "__main__":
    main()
