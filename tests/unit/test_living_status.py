"""The list of runs and campaigns: on terminals, in pipes, watched, and from its cache."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost
from support.terminal import INTERRUPT, CommandTerminal, Terminal

from hpc_amp.campaigns.listed import Row
from hpc_amp.cli.overview import as_table, as_tabs
from hpc_amp.cli.screen import Screen, cells_of
from hpc_amp.jobs.events import record_event
from hpc_amp.schedulers.pbs.qstat import job_status as pbs_status
from hpc_amp.schedulers.slurm.squeue import job_status as slurm_status

JOB = "name: {}\nsite: slurm\nrun: ['true']\njob: {{gpus_per_node: 0}}\n"
LONG = "a_job_with_a_name_that_takes_more_than_half_of_a_line"


def submitted(host: StubHost, name: str, *more: str) -> Path:
    (host.work / "job.yaml").write_text(JOB.format(name))
    result = host.hpc_amp("submit", "job.yaml", "--json", *more)
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def queue(host: StubHost, *rows: str) -> None:
    (host.state / "queue").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture
def three(host: StubHost) -> list[Path]:
    """A run that waits, one that runs and one that has failed, the oldest one first."""
    ids = [f"20260101-00000{second}-aaaa" for second in range(3)]
    runs = [
        submitted(host, name, f"--run-id={run_id}")
        for name, run_id in zip((LONG, "works", "fails"), ids, strict=True)
    ]
    (runs[1] / "attempts" / "1").mkdir()
    progress = {"step": 270, "total_steps": 600, "samples_per_second": 64.0}
    (runs[1] / "attempts" / "1" / "progress.json").write_text(json.dumps(progress))
    job = json.loads((runs[1] / "job.json").read_text())
    job["job"]["train"] = {"batch_size": 64}
    (runs[1] / "job.json").write_text(json.dumps(job))
    record_event(runs[1], "started", attempt=1, job_id="4243")
    (runs[2] / "logs" / "job.log").write_text(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB\n"
    )
    record_event(runs[2], "failed", reason="exit status 1", job_id="4244")
    waiting = "4242|PENDING|Priority|2099-01-02T03:04:05"
    queue(host, waiting, "4243|RUNNING|None|2026-01-01T00:00:00")
    return runs


def shown(host: StubHost, *words: str, columns: int, **environ: str) -> tuple[list[str], bytes]:
    """The lines of `hpc-amp status` on a terminal, and what it wrote."""
    with CommandTerminal(
        [sys.executable, "-m", "hpc_amp", "status", *words],
        cwd=host.work,
        environ=host.environ(**environ),
        columns=columns,
    ) as terminal:
        assert terminal.end() == 0, terminal.seen
        return terminal.seen.replace("\r", "").splitlines(), terminal.raw


@pytest.mark.parametrize("columns", [40, 60, 100, 200])
def test_no_line_is_wider_than_the_terminal(
    host: StubHost, three: list[Path], columns: int
) -> None:
    lines, written = shown(host, columns=columns)

    assert max(map(len, lines)) < columns
    assert [line.split()[0] for line in lines if not line.startswith("  ")] == [
        "NAME", "fails", "works", lines[4].split()[0],
    ]  # fmt: skip
    assert lines[2] == "  The GPU ran out of memory."
    assert lines[5].startswith("  Priority; expected to start at ")
    assert (LONG in lines[4]) == (columns == 200)
    assert ("45%" in lines[3]) == (columns < 100) and ("270/600" in lines[3]) == (columns >= 100)
    assert ("█" in lines[3]) == (columns >= 60)
    assert (" 5m" in lines[3]) == (columns >= 60)  # 330 steps at one step a second
    assert ("runs/works/" in lines[3]) == (columns == 200)
    assert b"\x1b[31mfailed\x1b[0m" in written


@pytest.mark.parametrize(
    ("environ", "has_colour", "has_bar"),
    [({}, True, True), ({"NO_COLOR": "1"}, False, True), ({"TERM": "dumb"}, False, False)],
)
def test_colours_and_bars_are_for_terminals_that_want_them(
    host: StubHost, three: list[Path], environ: dict[str, str], has_colour: bool, has_bar: bool
) -> None:
    lines, written = shown(host, columns=100, **environ)

    assert (b"\x1b" in written) == has_colour
    assert ("█" in "\n".join(lines)) == has_bar


def test_a_pipe_gets_whole_lines_of_tabs(host: StubHost, three: list[Path]) -> None:
    narrow, wide = (host.hpc_amp("status", COLUMNS=columns).stdout for columns in ("20", "200"))

    assert narrow == wide and "\x1b" not in narrow
    titles, *rows = (line.split("\t") for line in narrow.splitlines())
    found = [dict(zip(titles, row, strict=True)) for row in rows]
    assert [(row["NAME"], row["STATE"]) for row in found] == [
        ("fails", "failed"), ("works", "running"), (LONG, "pending"),
    ]  # fmt: skip
    assert [row["FOLDER"] for row in found] == [str(run) for run in reversed(three)]
    assert found[0]["CAUSE"] == "The GPU ran out of memory."
    assert (found[1]["STEP"], found[1]["STEPS"], found[1]["CAUSE"]) == ("270", "600", "-")
    assert found[2]["SUBMITTED"] == "2026-01-01T00:00:00Z"
    plain = {row["name"]: row for row in json.loads(host.hpc_amp("status", "--json").stdout)}
    assert plain["works"]["seconds_to_go"] == 330
    expected = time.mktime(time.strptime("2099-01-02T03:04:05", "%Y-%m-%dT%H:%M:%S"))
    assert plain[LONG]["start"] == expected


def test_texts_cannot_break_the_list() -> None:
    row = Row("run", "a\tb\x1b[31m", "/x/20260101-000000-aaaa", "failed", "one\ntwo\tthree")
    line = as_tabs([row])[1]
    assert line.count("\t") == 10 and "one two three" in line and "\x1b" not in line
    assert all("\x1b" not in line and "\t" not in line for line in as_table([row], Screen()))


def test_wide_characters_take_two_columns() -> None:
    assert (cells_of("ab"), cells_of("日本"), cells_of("e\u0301")) == (2, 4, 1)
    assert cells_of(Screen().cut("日本語", 5)) <= 5


def test_a_terminal_shows_the_newest_and_what_has_not_ended(host: StubHost) -> None:
    waiting = submitted(host, "first", "--run-id=20260101-000000-aaaa")
    run = submitted(host, "later", "--run-id=20260101-000100-aaaa")
    record_event(run, "finished")
    for second in range(1, 25):
        shutil.copytree(run, run.with_name(f"20260101-0001{second:02d}-aaaa"), symlinks=True)
    queue(host, "4242|PENDING|Resources")

    lines, _ = shown(host, columns=100)

    assert [line.split()[0] for line in lines] == [
        "NAME", *["later"] * 20, waiting.parent.name, "Resources", "5",
    ]  # fmt: skip
    assert lines[-1] == "5 older: --all, or -n 26"
    assert len(host.hpc_amp("status").stdout.splitlines()) == 27


def test_watching_asks_once_a_look_and_ends_with_ctrl_c(host: StubHost, three: list[Path]) -> None:
    before = len(host.calls("squeue"))
    with Terminal(
        [sys.executable, "-m", "hpc_amp", "status", "-w", "--interval", "1"],
        cwd=host.work,
        environ=host.environ(),
        columns=60,
    ) as terminal:
        terminal.wait_for("works")
        terminal.wait_for("works")
        queue(host, "4243|RUNNING|None", "4242|RUNNING|None")
        (three[0] / "attempts" / "1").mkdir()
        terminal.wait_for(r"running[^\n]*\n[^\n]*running")
        terminal.send(INTERRUPT)
        assert terminal.end() == 130
        raw = terminal.raw
    looks = raw.count(b"NAME")
    assert looks >= 3 and len(host.calls("squeue")) - before in (looks, looks + 1)
    assert b"\x1b[2J" not in raw, "the screen is not cleared"
    assert b"\x1b[?" not in raw, "no mode is left on"
    # Each look goes back to the first line of the one before.
    heights = [part.count(b"\n") for part in raw.split(b"NAME")[1:-1]]
    ups = [int(up) for up in re.findall(rb"\x1b\[(\d+)A", raw)]
    assert ups == heights


def test_watching_ends_when_all_have_ended(host: StubHost) -> None:
    record_event(submitted(host, "a"), "finished")
    lines, _ = shown(host, "-w", columns=60)
    assert lines[1].split()[:2] == ["a", "finished"]


def test_all_runs_and_campaigns_are_one_question(host: StubHost) -> None:
    for name in ("a", "b"):
        submitted(host, name)
        assert host.hpc_amp("sweep", "job.yaml", "container.env.X=1,2").returncode == 0
    queue(host, *(f"{number}|PENDING|None" for number in (4242, 4244)))
    before = len(host.calls("squeue"))

    assert host.hpc_amp("status").returncode == 0

    asked = [tuple(words) for words in host.calls("squeue")[before:]]
    assert len(asked) == len(set(asked)) == 2  # jobs, and tasks of arrays


def test_sizes_are_shown_if_asked_for(host: StubHost) -> None:
    (submitted(host, "a") / "big").write_bytes(b"x" * 3 * 2**20)
    titles, row = (
        line.split("\t") for line in host.hpc_amp("status", "--size").stdout.splitlines()
    )
    assert titles[-1] == "SIZE" and 3 * 2**20 <= int(row[-1]) < 4 * 2**20
    lines, _ = shown(host, "--size", columns=60)
    assert lines[0].split()[-1] == "SIZE" and lines[1].endswith(" MiB")
    assert json.loads(host.hpc_amp("status", "--size", "--json").stdout)[0]["size"] == int(row[-1])


# ---- campaigns -----------------------------------------------------------------------------------


@pytest.fixture
def swept(host: StubHost) -> Path:
    """A sweep on this machine with a point that fails."""
    (host.work / "job.yaml").write_text(
        JOB.format("swept").replace("slurm", "local").replace("'true'", "bash, -c, 'exit $X'")
    )
    result = host.hpc_amp("sweep", "job.yaml", "container.env.X=0,0.0,1", "launch.preflight=false")
    assert "3 points" in result.stdout
    (folder,) = (host.work / "sweeps" / "swept").glob("2*")
    return folder


def test_a_campaign_is_one_line(host: StubHost, swept: Path) -> None:
    for _ in range(2):  # the second one is from the cache
        (row,) = json.loads(host.hpc_amp("status", "--json").stdout)
        assert (row["kind"], row["state"], row["counts"]) == (
            "sweep", "failed", {"done": 1, "failed": 2},
        )  # fmt: skip
    lines, _ = shown(host, columns=60)
    assert lines[1].split()[:3] == ["swept", "(sweep)", "failed"]
    assert lines[2] == "  1 of 3 done, 2 failed"
    # A point that is submitted again changes it.
    record_event(swept / "points" / "0002", "finished")
    (row,) = json.loads(host.hpc_amp("status", "--json").stdout)
    assert row["counts"] == {"done": 2, "failed": 1}


def test_the_name_of_a_campaign_opens_it(host: StubHost, swept: Path) -> None:
    assert "3 points: 2 failed, 1 finished" in host.hpc_amp("status", "swept").stdout
    opened = json.loads(host.hpc_amp("status", str(swept), "--json").stdout)
    assert [one["counts"] for one in opened] == [{"failed": 2, "finished": 1}]
    waited = host.hpc_amp("wait", "swept")
    assert (waited.returncode, waited.stdout) == (1, "swept: 3 points: 2 failed, 1 finished\n")


@pytest.mark.parametrize("where", ["work", "folder"])
def test_reports_without_a_name_are_of_the_newest(host: StubHost, swept: Path, where: str) -> None:
    folder = getattr(host, where)
    found = host.hpc_amp("sweep", "status", cwd=folder)
    assert found.returncode == 0 and found.stderr == f"sweep {swept}\n"
    assert "2 failed" in found.stdout
    assert host.hpc_amp("sweep", "report", "--metric", "seconds", cwd=folder).returncode == 0
    none = host.hpc_amp("scale", "report", cwd=folder)
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)
    assert "there is no study in studies" in none.stderr


# ---- the cache -----------------------------------------------------------------------------------


def states(host: StubHost, **environ: str) -> list[str]:
    found = json.loads(host.hpc_amp("status", "--json", **environ).stdout)
    return [row["state"] for row in found]


def test_what_has_ended_is_known_until_it_changes(host: StubHost) -> None:
    run = submitted(host, "a")
    record_event(run, "failed", reason="exit status 1")
    assert states(host) == states(host) == ["failed"]
    (cache,) = (host.folder / "state-home" / "hpc-amp" / "cache").iterdir()
    content = cache.read_text()
    assert "exit status 1" in content

    record_event(run, "submitted")
    record_event(run, "queued", job_id="77")
    queue(host, "77|RUNNING|None")
    assert states(host) == ["running"]
    record_event(run, "finished")
    assert states(host) == ["finished"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"entries": 3}'])
def test_a_damaged_cache_does_no_harm(host: StubHost, content: str) -> None:
    record_event(submitted(host, "a"), "finished")
    assert states(host) == ["finished"]
    (cache,) = (host.folder / "state-home" / "hpc-amp" / "cache").iterdir()
    cache.write_text(content)
    assert states(host) == ["finished"]


def test_the_cache_does_not_know_a_run_that_took_the_place_of_another(host: StubHost) -> None:
    run = submitted(host, "a")
    record_event(run, "finished")
    assert states(host) == ["finished"]
    other = run.rename(run.with_name("other"))
    run.mkdir()
    for name in ("job.json", "state.jsonl"):
        (run / name).write_text((other / name).read_text().replace("finished", "canceled"))
    (run / "state.jsonl").write_text(
        (run / "state.jsonl").read_text().replace('"canceled"', '"failed"')
    )
    assert states(host) == ["failed"]


# ---- schedulers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["N/A", "", "tomorrow"])
def test_slurm_may_not_know_when_a_job_starts(start: str) -> None:
    assert slurm_status("PENDING", "Priority", start).start is None


@pytest.mark.parametrize(
    ("text", "is_known"),
    [("Sun Nov 29 19:02:38 2026", True), ("1796000000", True), ("soon", False), (None, False)],
)
def test_pbs_may_estimate_the_start(text: str | None, is_known: bool) -> None:
    attributes: dict[str, Any] = {"job_state": "Q", "comment": "Not Running"}
    if text is not None:
        attributes["estimated.start_time"] = text
    start = pbs_status(attributes).start
    assert (start is not None) == is_known
    if text == "Sun Nov 29 19:02:38 2026":
        assert start == time.mktime(time.strptime("2026-11-29 19:02:38", "%Y-%m-%d %H:%M:%S"))
