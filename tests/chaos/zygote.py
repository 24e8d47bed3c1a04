"""`python -m chaos.zygote`: one process that has imported what a rank needs, and forks ranks.

Importing torch takes seconds, a fork does not. Each line of the standard input is a request in
JSON, each answer a line: {"start": {job, said, task, environ, mishaps}} is answered with the
process number of a rank that trains as `python -m hpc_amp.train` does; {"ended": PID} with its exit
status (negative for a signal), or null while it lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# Every rank would import these anew, torch._dynamo when it makes an optimizer.
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401
import torchvision  # noqa: F401
from support.warm import import_writers
from support.warm_python import prepare_to_fork

from chaos import mishaps
from hpc_amp.config.schema import to_plain
from hpc_amp.distributed.ending import end_with_parent
from hpc_amp.tasks import registry
from hpc_amp.tasks.classification import task  # noqa: F401
from hpc_amp.train import __main__ as program
from hpc_amp.train import session  # noqa: F401


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        ((verb, given),) = json.loads(line).items()
        answer = start(given) if verb == "start" else ended(given)
        print(json.dumps(answer), flush=True)


def start(request: dict[str, Any]) -> int:
    """The process number of a new rank."""
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGKILL)
        become_rank(request)
    return pid


def ended(pid: int) -> int | None:
    """The exit status of a rank, or None while it lives."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def become_rank(request: dict[str, Any]) -> None:
    """Train as the program does that the launch script starts, except for the mishaps."""
    said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(request["environ"])
    if request["task"] is not None:
        registry.TASKS._own["classification"] = f"chaos.tasks:{request['task']}"
    rank = int(request["environ"]["RANK"])
    for mishap in request["mishaps"]:
        if mishap["rank"] in (rank, None):
            mishaps.arrange(mishap)
    program.run_as_process([request["job"]])


if __name__ == "__main__":
    import_writers()
    whole = registry.job_from_plain({"name": "rehearsal", "train": {}})
    registry.job_from_plain(to_plain(whole))  # once with all keys, for their types are kept
    prepare_to_fork()
    main()
    os._exit(0)  # taking torch apart takes seconds
