"""`python -I -S actor.py FOLDER ACTION...`: a training script of a user's, with one action for each
attempt: `ok`, `exit:N`, `wait` (until FOLDER/go exists), `hang` (deaf to every signal but SIGKILL),
`deadline` (until the clock says that it has to stop, which it does as the training does).

Leaves FOLDER/<attempt>-<rank>: where this rank was, as a Python literal. Hundreds of ranks are this
program, so it does without `json` and `socket`, which would take half of its time.
"""

import os
import sys
import time

folder, *actions = sys.argv[1:]
attempt, rank = int(os.environ["HPC_AMP_ATTEMPT"]), os.environ["RANK"]
os.makedirs(folder, exist_ok=True)
with open("/proc/self/stat", encoding="utf-8") as stat:
    started = stat.read().rpartition(")")[2].split()[19]
facts = {
    "pid": os.getpid(),
    "started": started,  # in clock ticks since boot: a pid is given again to a later process
    "host": os.uname().nodename,
    "variables": {
        name: os.environ[name]
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    },
}
part = os.path.join(folder, f".{attempt}-{rank}")
with open(part, "w", encoding="utf-8") as out:
    out.write(repr(facts))
os.rename(part, os.path.join(folder, f"{attempt}-{rank}"))
print(f"rank {rank} of attempt {attempt} is on {facts['host']}", flush=True)

action = actions[min(attempt, len(actions)) - 1]
if action == "hang":
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)
while action == "wait" and not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.05)
if action == "deadline":
    while time.time() < float(os.environ["HPC_AMP_STOP_AT"]):
        time.sleep(0.05)
    if rank == "0":
        with open(os.environ["HPC_AMP_OUTCOME_FILE"], "w", encoding="utf-8") as out:
            out.write('{"outcome": "checkpointed", "cause": "DEADLINE"}')
    sys.exit(75)
if action.startswith("exit:"):
    sys.exit(int(action.removeprefix("exit:")))
