"""How an attempt ended: `attempts/N/outcome.json`, by which the launch script decides how to go on,
and how the first error of several ranks comes to be the one that is shown."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from hpc_amp.train.rundir import RunDirectory, json_text, write_json
from hpc_amp.train.stopping import StopReason

AFTERMATH_SECONDS = 2.0
"""How long a rank that lost another one waits with its own words."""

# What collective operations say when another rank is gone: gloo, NCCL, the key-value store.
_LOST_CONTACT = re.compile(
    r"Connection (closed by peer|reset|refused)|Broken pipe|Socket (closed|Timeout)|Read error"
    r"|Timed out waiting|remote process (has )?(exited|terminated)|ncclRemoteError"
    r"|unhandled system error|connectFullMesh failed|Connect timeout|recvValue failed"
    r"|failed to recv",
    re.IGNORECASE,
)


def is_aftermath(error: BaseException) -> bool:
    """Whether an error only says that contact to another rank was lost: that one has the cause."""
    return isinstance(error, (RuntimeError, ConnectionError)) and bool(
        _LOST_CONTACT.search(str(error))
    )


def write_outcome(
    run: RunDirectory, outcome: str, reason: str, step: int | None, cause: StopReason
) -> None:
    """Say how the attempt ended. The script looks for `outcome` and `cause`, each on a line of its
    own."""
    write_json(run.outcome_file, _content(outcome, reason, step, cause))


def write_first_outcome(
    run: RunDirectory, outcome: str, reason: str, step: int | None, cause: StopReason
) -> bool:
    """The same, unless another rank has said so before. Returns whether this one was the first. A
    disk that does not take it leaves the decision to the exit status."""
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
