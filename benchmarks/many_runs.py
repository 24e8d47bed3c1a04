"""How long `hpc-amp status` and `submit` take with many runs, in CPU seconds with all children.

    python benchmarks/many_runs.py [--runs 1000] [--repeats 7] [--json]

Makes run directories as finished, failed and pending trainings leave them: job.json, state.jsonl,
a log of 200 lines, metrics of 2,000 lines, two attempts. Beside `status` and `submit`, a peer reads
the same facts as a script of one's own would: `ls`, then job.json, state.jsonl and progress.json of
each run. The first `status` finds no cache; failures are explained then. No
scheduler is asked: all runs have ended, except one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from cli_start import cpu_seconds
from rounds import Values, machine, report

STATES = ("finished", "finished", "finished", "failed", "cancelled", "checkpointed")
PEER = """
import json, os, sys
rows = []
for name in os.listdir("runs"):
    if name.startswith("."):
        continue
    for run in os.listdir(f"runs/{name}"):
        folder = f"runs/{name}/{run}"
        if not os.path.isfile(f"{folder}/attempts/2/progress.json"):
            continue  # made by `submit`
        job = json.load(open(f"{folder}/job.json"))
        events = [json.loads(line) for line in open(f"{folder}/state.jsonl")]
        progress = json.load(open(f"{folder}/attempts/2/progress.json"))
        rows.append((run, job["job"]["name"], events[-1]["state"], progress["step"]))
for row in sorted(rows, reverse=True):
    print(*row, sep="\\t")
"""
JOB = """\
name: cifar
site: local
run: ["true"]
job: {gpus_per_node: 0, walltime: "10m"}
"""


def make_runs(folder: Path, number: int) -> None:
    """Make the run directories, from one that `hpc-amp submit` made."""
    (folder / "job.yaml").write_text(JOB)
    cpu_seconds([*hpc_amp(), "submit", "job.yaml", "--run-id", "20260101-000000-aaaa"], str(folder))
    first = folder / "runs" / "cifar" / "20260101-000000-aaaa"
    deadline = time.monotonic() + 120
    while '"finished"' not in (first / "state.jsonl").read_text():
        if time.monotonic() > deadline:
            sys.exit("the first run did not finish")
        time.sleep(0.1)
    job = json.loads((first / "job.json").read_text())
    log = "".join(f"[00:00:{i % 60:02d}] step {i} loss 1.234 lr 0.1\n" for i in range(200))
    failure = "Traceback (most recent call last):\nRuntimeError: CUDA out of memory. Tried\n"
    metrics = "".join(f'{{"step": {i}, "train/loss": 1.5, "lr": 0.1}}\n' for i in range(2000))
    for index in range(number - 1):
        name, state = f"job_{index % 12}", STATES[index % len(STATES)]
        clock = f"{index // 3600:02d}{index // 60 % 60:02d}{index % 60:02d}"
        run_id = f"2026{2 + index % 9:02d}{1 + index % 28:02d}-{clock}-abcd"
        run = folder / "runs" / name / run_id
        attempt = run / "attempts" / "2"
        attempt.mkdir(parents=True)
        (run / "logs").mkdir()
        own = {**job, "run_dir": str(run), "job": {**job["job"], "name": name}}
        (run / "job.json").write_text(json.dumps(own, indent=1))
        (run / "logs" / "job.log").write_text(log + (failure if state == "failed" else ""))
        (run / "metrics.jsonl").write_text(metrics)
        (attempt / "progress.json").write_text('{"step": 200, "total_steps": 400, "epoch": 1}')
        (attempt / "outcome.json").write_text(json.dumps({"outcome": state}))
        events = [{"state": "submitted"}, {"state": "queued", "job_id": str(index)}]
        events += [{"state": "started", "attempt": n, "job_id": str(index)} for n in (1, 2)]
        events += [{"state": state, "attempt": 2, "reason": "exit status 1"}]
        lines = (json.dumps({"time": 1764000000 + i, **event}) for i, event in enumerate(events))
        (run / "state.jsonl").write_text("".join(f"{line}\n" for line in lines))


def hpc_amp() -> list[str]:
    """The command."""
    return [sys.executable, "-m", "hpc_amp"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="number of run directories")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each command")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="many-runs-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        make_runs(folder, arguments.runs)
        first = first_status(folder)
        times = measure(folder, arguments.repeats)
    finally:
        shutil.rmtree(folder)
    facts = {
        "runs": arguments.runs,
        "repeats": arguments.repeats,
        "first_status_cpu_seconds": first,
    }
    report(
        {**machine(), **facts},
        {"CPU seconds": times},
        beside="peer",
        missing={},
        as_json=arguments.json,
    )


def first_status(folder: Path) -> float:
    """CPU seconds of the first `status`, and of those after it that explain further failures."""
    status = [*hpc_amp(), "status"]
    first = cpu_seconds(status, str(folder))
    while (again := cpu_seconds(status, str(folder))) > 1.0 and again < first:
        first += again
    return round(first, 3)


def measure(folder: Path, repeats: int) -> Values:
    """The CPU seconds of each command. Each round runs all of them in turn."""
    commands = {
        "peer": [sys.executable, "-c", PEER],
        "hpc-amp --version": [*hpc_amp(), "--version"],
        "hpc-amp status": [*hpc_amp(), "status"],
        "hpc-amp status -n 20": [*hpc_amp(), "status", "-n", "20"],
        "hpc-amp submit --dry-run": [*hpc_amp(), "submit", "job.yaml", "--dry-run"],
        "hpc-amp submit": [*hpc_amp(), "submit", "job.yaml"],
    }
    times: Values = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            times[name].append(cpu_seconds(command, str(folder)))
    return times


if __name__ == "__main__":
    main()
