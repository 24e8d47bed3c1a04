"""The table of all figures: measured, written as one record, and put into the README.

    benchmarks/run [--quick] [--out FILE] | --readme

starts this with the environment that has everything. Each part is one of the programs beside this
one. A part that fails or takes too long is named, the others are measured all the same, and the
exit status is 1. What is interrupted leaves no record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rounds import machine, number, ratio, shown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECORDS = HERE / "records"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmarks/run --readme writes this -->\n", "<!-- its end -->\n"
PACKAGES = ("torch", "torchvision", "accelerate", "lightning", "nvidia-dali-cuda120", "submitit")

QUICK = {
    "cli_start": ["--repeats", "1"],
    "sweep": ["--points", "3", "--repeats", "1"],
    "many_runs": ["--runs", "6", "--repeats", "1"],
    "first_step": ["--repeats", "1", "--ranks", "1"],
    "overhead": ["--rounds", "1", "--steps", "50"],
    "images": [
        *("--rounds", "1", "--batches", "1", "--workers", "1"),
        *("--different", "8", "--images", "64", "--batch", "4"),
    ],
    "checkpoint": ["--rounds", "1", "--linear", "8"],
}
"""The parts, and the arguments of each for the fewest rounds of the least."""
LIMIT = 3600
"""Seconds after which a part is ended."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: what two contestants of a part need, or do, in each of its rounds."""

    what: str
    part: str
    values: str
    """Which of the part's values, with their unit."""
    ours: str
    other: str
    goal: str = ""
    """For the ratio of ours to the other, or in seconds for ours."""


FOLDER, MEMORY = "JPEG folder, 500 x 375 to 224", "images of 32 x 32 in memory"
STEP, SAVE = "training step of two layers", "checkpoint of 205 MB"
SWEEP, RUNS = "submit a sweep of 1,000 points", "with 1,000 runs"
START = "from `run` to the first step of two ranks"
ROWS = (
    Row(FOLDER, "images", "files, images a second", "hpc-amp", "DALI", "≥ 1.1"),
    Row(FOLDER, "images", "files, images a second", "hpc-amp", "torchvision"),
    Row(FOLDER, "images", "files, images a second", "hpc-amp", "Pillow"),
    Row(FOLDER, "images", "files, images a CPU second", "hpc-amp", "DALI"),
    Row(MEMORY, "images", "memory, images a second", "hpc-amp", "torchvision", "≥ 20"),
    Row(STEP, "overhead", "wall ms", "hpc-amp", "by hand", "≤ 1.02"),
    Row(STEP, "overhead", "wall ms", "hpc-amp", "accelerate"),
    Row(STEP, "overhead", "wall ms", "hpc-amp", "Lightning"),
    Row(STEP, "overhead", "quiet CPU ms", "hpc-amp", "by hand"),
    Row(f"{STEP}, as it comes", "overhead", "wall ms", "as it comes", "by hand"),
    Row(SAVE, "checkpoint", "stall, seconds", "background", "torch.save", "≤ 0.015"),
    Row(SAVE, "checkpoint", "written, seconds", "background", "torch.save", "≤ 1 s"),
    Row(SWEEP, "sweep", "CPU seconds", "hpc-amp", "submitit", "≤ 0.79"),
    Row(SWEEP, "sweep", "wall seconds", "hpc-amp", "submitit"),
    Row(SWEEP, "sweep", "files", "hpc-amp", "submitit"),
    Row("`--help`", "cli_start", "CPU seconds", "hpc-amp --help", "torchrun --help", "≤ 0.028"),
    Row(
        *("`submit --dry-run`", "cli_start", "CPU seconds"),
        *("hpc-amp submit --dry-run", "torchrun --help", "≤ 0.055"),
    ),
    Row(START, "first_step", "seconds", "hpc-amp", "torchrun", "≤ 0.8"),
    Row(f"`status` {RUNS}", "many_runs", "CPU seconds", "hpc-amp status", "peer"),
    Row(f"`submit` {RUNS}", "many_runs", "CPU seconds", "hpc-amp submit", "peer"),
)
"""Goals are ratios where the machine matters: a second means something else on each."""


# -- measuring -------------------------------------------------------------------------------------


def measure(part: str, arguments: list[str]) -> dict[str, Any]:
    """What a part printed, and under `failed` why it did not end as it should."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules would be compiled at each start
    # In a session of its own, or Ctrl-C would reach it twice: from the terminal, and from `ended`.
    process = subprocess.Popen(
        [sys.executable, HERE / f"{part}.py", "--json", *arguments],
        env=environ, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with ended(process):
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done after {LIMIT} s"}
    found: dict[str, Any]
    try:
        found = json.loads(output)
    except json.JSONDecodeError:
        found = {"failed": "it printed no results"}
    if process.returncode != 0:
        found["failed"] = (errors.strip().splitlines() or [f"status {process.returncode}"])[-1]
    return found


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End what still runs at the end: it gets time to remove its files."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.communicate(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def compared(row: Row, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row of the record: the medians of both and the ratio, or why they are missing."""
    facts = {
        "what": row.what,
        "values": row.values,
        "ours": row.ours,
        "other": row.other,
        "goal": row.goal,
    }
    part = parts[row.part]
    values = part.get("values", {}).get(row.values, {})
    if row.ours not in values or row.other not in values:
        missing = part.get("missing", {}).get(row.other, "not measured")
        return {**facts, "missing": part.get("failed", missing)}
    ours, other = values[row.ours], values[row.other]
    return {
        **facts,
        "our_median": statistics.median(ours),
        "other_median": statistics.median(other),
        "rounds": len(ours),
        **ratio(ours, other),
    }


def measured(quick: bool) -> dict[str, Any]:
    """The whole record."""
    begin = machine(*PACKAGES)
    parts = {}
    for part, arguments in QUICK.items():
        begun = time.monotonic()
        parts[part] = measure(part, arguments if quick else [])
        seconds = time.monotonic() - begun
        how = f"failed: {parts[part]['failed']}" if "failed" in parts[part] else "measured"
        print(f"{part} {how} ({seconds:.0f} s)", file=sys.stderr)
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    return {
        **begin,
        "load_after": machine()["load"],
        "commit": commit.stdout.strip() or "unknown",
        "quick": quick,
        "rows": [compared(row, parts) for row in ROWS],
        "parts": parts,
    }


def write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


# -- showing ---------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of a record as a table in Markdown."""
    lines = ["| what | hpc-amp | others in the same run | ratio | goal |", "|---|---|---|---|---|"]
    for row in rows:
        named = row["other"] if row["other"] != "peer" else "a script that reads the same files"
        if "missing" in row:
            cells = ["", f"{named}: {row['missing']}", ""]
        else:
            cells = [
                number(row["our_median"]),
                f"{named} {number(row['other_median'])}",
                shown(row),
            ]
        lines.append(
            f"| {row['what']}: {row['values']} | " + " | ".join([*cells, row["goal"]]) + " |"
        )
    return "".join(f"{line}\n" for line in lines)


def newest_record() -> dict[str, Any]:
    """The newest record."""
    record: dict[str, Any] = json.loads(max(RECORDS.glob("all-*.json")).read_text())
    return record


def readme(text: str, record: dict[str, Any]) -> str:
    """The text of the README with the rows of a record that have a goal."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md has no lines {BEGIN}{END}")
    rows = table([row for row in record["rows"] if row["goal"]])
    machine = (
        f"Measured on {record['date'][:10]} on {record['cores']} cores ({record['cpu']}; load "
        f"{record['load']} before, {record['load_after']} after), with Python {record['python']} "
        f"and torch {record['torch']}.\nA ratio is ours to the other's in the same round: the "
        "median, with an interval and how sure it is.\n"
    )
    return f"{before}{BEGIN}{machine}\n{rows}\n{END}{after}"


def main() -> int:
    """Measure and print, or write the README."""
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, to try the command")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the record")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    arguments = parser.parse_args()
    if arguments.readme:
        write(README, readme(README.read_text(), newest_record()))
        return 0
    out = arguments.out
    if out is not None and not out.parent.is_dir():
        parser.error(f"--out: there is no folder {out.parent}")
    record = measured(arguments.quick)
    if out is None and not arguments.quick:
        out = RECORDS / f"all-{record['date'][:10]}.json"
    if out is not None:
        write(out, json.dumps(record, indent=1) + "\n")
        print(f"written: {out}", file=sys.stderr)
    print(table(record["rows"]), end="")
    failed = [name for name, part in record["parts"].items() if "failed" in part]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run() -> NoReturn:
    """`main` to the end of the process, also when it is interrupted."""
    # SIGTERM ends what was started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: no record was written")


if __name__ == "__main__":
    run()
