"""How an attempt ended: `attempts/N/outcome.json`. The launch script reads it to decide what
follows. If several ranks fail, the first error is reported."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from hpc_amp.files import json_text, write_json
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopReason

AFTERMATH_SECONDS = 2.0
"""Seconds for which a rank that lost contact to another one delays its own report."""

# What collective operations report if another rank has ended: gloo, NCCL, the key-value store.
_LOST_CONTACT = re.compile(
    r"Connection (closed by peer|reset|refused)|Broken pipe|Socket (closed|Timeout)|Read error"
    r"|Timed out waiting|remote process (has )?(exited|terminated)|ncclRemoteError"
    r"|unhandled system error|connectFullMesh failed|Connect timeout|recvValue failed"
    r"|failed to recv",
    re.IGNORECASE,
)


def is_aftermath(error: BaseException) -> bool:
    """Whether an error only means that another rank, which knows the cause, cannot be reached."""
    return isinstance(error, (RuntimeError, ConnectionError)) and bool(
        _LOST_CONTACT.search(str(error))
    )


def write_outcome(
    run: RunDirectory, outcome: str, reason: str, step: int | None, cause: StopReason
) -> None:
    """Write how the attempt ended.

    `outcome`: `finished`, `checkpointed` or `failed`.
    `reason`: one line for the user.
    `step`: the number of completed steps, or None if training has not begun.
    `cause`: why it stopped early.

    The launch script looks for `outcome` and `cause`, each on a line of its own. Raises OSError.
    """
    write_json(run.outcome_file, _content(outcome, reason, step, cause))


def write_first_outcome(
    run: RunDirectory, outcome: str, reason: str, step: int | None, cause: StopReason
) -> bool:
    """Write how the attempt ended, unless another rank has done so. Returns whether this rank was
    the first. If the disk refuses the file, the exit status of the rank decides what follows."""
    temporary = run.attempt_path / f".outcome.{os.uname().nodename}.{os.getpid()}"
    text = json_text(_content(outcome, reason, step, cause))
    with contextlib.suppress(OSError):
        temporary.write_text(text)
        try:
            os.link(temporary, run.outcome_file)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            with run.outcome_file.open("x") as out:
                out.write(text)
        finally:
            temporary.unlink()
        return True
    return False


def _content(outcome: str, reason: str, step: int | None, cause: StopReason) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "cause": cause.name,
        "reason": reason,
        "step": step,
        "time": time.time(),
    }
