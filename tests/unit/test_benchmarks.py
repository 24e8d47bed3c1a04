"""`benchmarks/run`: its parts, its record, and the README's table."""

from __future__ import annotations

import importlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.environment import REPOSITORY, clean_environ
from support.waiting import wait_for_file
from support.warm_python import WarmPython

FOLDER = REPOSITORY / "benchmarks"
MEASURE = """
import sys
sys.path.insert(0, {benchmarks!r})
import pathlib, table
table.HERE = pathlib.Path({parts!r})
table.QUICK = dict.fromkeys({names!r}, [])
table.ROWS = [row for row in table.ROWS if row.part in table.QUICK]
table.run()
"""


@pytest.fixture(scope="module")
def table() -> Iterator[ModuleType]:
    """benchmarks/table.py."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("table")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def rounds(table: ModuleType) -> ModuleType:
    """benchmarks/rounds.py."""
    return importlib.import_module("rounds")


def measuring(folder: Path, **parts: str) -> subprocess.Popen[str]:
    """The command with these programs as its parts. The record goes to folder/all.json."""
    for name, program in parts.items():
        (folder / f"{name}.py").write_text(program)
    program = MEASURE.format(benchmarks=str(FOLDER), parts=str(folder), names=list(parts))
    return subprocess.Popen(
        [sys.executable, "-c", program, "--out", folder / "all.json"],
        env=clean_environ(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def values(**of_command: list[float]) -> str:
    """A part that has measured these CPU seconds."""
    return (
        f"print({json.dumps(json.dumps({'missing': {}, 'values': {'CPU seconds': of_command}}))})"
    )


@pytest.mark.timeout(1800)  # half a minute of one core, which a busy machine may not have
def test_the_quick_form_measures_everything(tmp_path: Path, warm_pythons: WarmPython) -> None:
    out = tmp_path / "quick.json"
    # What only imports torch, and measures what does not begin with that.
    parts = "|".join(f"*/{name}.py*" for name in ("checkpoint", "images", "overhead"))
    python = warm_pythons.interpreter(tmp_path / "env", parts, "*train.py", "*--preflight*")
    (python.parent / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")

    done = subprocess.run(
        [FOLDER / "run", "--quick", "--out", out],
        env=clean_environ(PYTHON=str(python)), text=True, capture_output=True, timeout=1700,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    for row in record["rows"]:
        if "missing" in row:
            assert row["other"] in ("DALI", "accelerate", "Lightning", "submitit"), row
            assert row["missing"].endswith(" is not installed")
        else:
            assert row["low"] <= row["ratio"] <= row["high"]
            assert row["ratio"] == pytest.approx(row["our_median"] / row["other_median"])
        assert f"| {row['what']}: {row['values']} | " in done.stdout
    assert {"cpu", "load", "load_after", "commit", "python", "torch"} <= record.keys()


def test_a_part_that_fails_is_named_and_the_others_are_measured(tmp_path: Path) -> None:
    good = values(**{"hpc-amp status": [1, 4], "hpc-amp submit": [3, 3], "peer": [2, 2]})
    process = measuring(
        tmp_path, cli_start="print('{'); exit('no torch')", many_runs=good, sweep="print('done')"
    )

    output, errors = process.communicate(timeout=300)

    assert process.returncode == 1
    assert "cli_start failed: no torch" in errors
    assert errors.endswith("failed: cli_start, sweep\n")
    record = json.loads((tmp_path / "all.json").read_text())
    assert [row.get("missing", row.get("ratio")) for row in record["rows"]] == [
        *(["it printed no results"] * 3),
        *("no torch", "no torch", 1.25, 1.5),
    ]
    assert record["parts"]["many_runs"]["values"]["CPU seconds"]["peer"] == [2, 2]
    assert "1.25 (0.500 to 2.00, 50 %)" in output


def test_a_folder_that_does_not_exist_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [FOLDER / "run", "--out", tmp_path / "none" / "all.json"],
        env=clean_environ(PYTHON=sys.executable), text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: --out: there is no folder {tmp_path / 'none'}\n")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_record_and_ends_the_part(
    sent: signal.Signals, tmp_path: Path
) -> None:
    program = (
        "import pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'started').touch()\n"
        "try:\n    time.sleep(300)\n"
        "finally:\n    (here / 'cleaned').touch()\n"
    )
    process = measuring(tmp_path, cli_start=program)
    wait_for_file(tmp_path / "started")

    process.send_signal(sent)
    output, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert (output, errors) == ("", "interrupted: no record was written\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("cleaned", "cli_start.py", "started")
    ]


def test_the_readme_has_the_newest_record(table: ModuleType) -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert table.readme(text, table.newest_record()) == text, "run benchmarks/run --readme"


def test_the_readme_says_what_is_missing(table: ModuleType) -> None:
    row = {"what": "a sweep", "values": "files", "ours": "hpc-amp", "other": "submitit"}
    with_goal = {**row, "goal": "≤ 0.5", "missing": "submitit is not installed"}
    record = {**table.newest_record(), "rows": [with_goal, {**with_goal, "goal": ""}]}

    lines = table.readme(f"above\n{table.BEGIN}old\n{table.END}below\n", record).splitlines()

    assert lines[0] == "above"
    assert lines[-4:] == [
        "| a sweep: files |  | submitit: submitit is not installed |  | ≤ 0.5 |",
        "",
        table.END.strip(),
        "below",
    ]


@pytest.mark.parametrize(
    ("number", "k"), [(1, 1), (2, 1), (5, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4)]
)
def test_an_interval_contains_the_median_as_often_as_it_says(
    number: int, k: int, rounds: ModuleType
) -> None:
    """Counted over all ways in which values can be below and above the true median."""
    found = rounds.ratio([2.0 * value for value in range(number, 0, -1)], [2.0] * number)

    assert (found["low"], found["high"]) == (k, number + 1 - k)
    ways = [sum(below) for below in itertools.product((0, 1), repeat=number)]
    inside = sum(k <= below <= number - k for below in ways)
    assert found["percent"] == pytest.approx(100 * inside / len(ways))
    narrower = sum(k + 1 <= below <= number - k - 1 for below in ways)
    assert narrower < 0.95 * len(ways)


def test_ratios_are_those_of_the_same_round(rounds: ModuleType) -> None:
    """The second round had twice the load."""
    assert rounds.ratio([1.0, 2.0, 1.0], [2.0, 4.0, 2.0])["ratio"] == 0.5
    with pytest.raises(ValueError):
        rounds.ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123456, "0.00123"), (0.5, "0.500"), (2.345, "2.35"), (136_000.4, "136,000")],
)
def test_numbers_have_three_digits(value: float, text: str, rounds: ModuleType) -> None:
    assert rounds.number(value) == text
