"""Showing a log while it grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc_amp.jobs import follow
from hpc_amp.jobs.follow import LogTail
from hpc_amp.jobs.status import RunStatus

RUNNING = RunStatus(
    run_dir="/runs/x",
    name="x",
    job_id="1",
    scheduler="slurm",
    state="running",
    reason="",
    attempt=1,
    step=None,
    total_steps=None,
    outcome=None,
)


def test_a_tail_hands_over_each_piece_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pieces: list[str] = []
    tail = LogTail(log, pieces.append)

    assert not tail.pump()
    for piece in ("one\n", "two", " and a half\n"):
        with log.open("a") as out:
            out.write(piece)
        assert tail.pump()
        assert not tail.pump()

    assert pieces == ["one\n", "two", " and a half\n"]


def test_a_tail_waits_for_the_other_half_of_a_letter(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pieces: list[str] = []
    tail = LogTail(log, pieces.append)
    data = "aé💥".encode()

    for end in range(1, len(data) + 1):
        log.write_bytes(data[:end])
        tail.pump()

    assert pieces == ["a", "é", "💥"]


def test_a_tail_shows_a_substitute_for_what_is_not_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a\xffb\n")
    pieces: list[str] = []
    tail = LogTail(log, pieces.append)

    tail.pump()
    log.write_bytes(b"a\xffb\nc")
    tail.pump()

    assert pieces == ["a\ufffdb\n", "c"]


def test_a_tail_can_start_in_the_middle(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\nnew\n")
    pieces: list[str] = []

    LogTail(log, pieces.append, offset=4).pump()

    assert pieces == ["new\n"]


def test_the_last_lines_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come between the last look at the log and the word that the run has ended."""
    log = tmp_path / "logs" / "job.log"
    log.parent.mkdir()
    log.write_text("first\n")
    states = iter(["pending", "pending", "running", "finished"])

    def statuses(folders: Sequence[Path]) -> list[RunStatus]:
        assert list(folders) == [tmp_path]
        with log.open("a") as out:
            out.write("later\n")
        return [dataclasses.replace(RUNNING, state=next(states))]

    monkeypatch.setattr(follow, "run_statuses", statuses)
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0)
    monkeypatch.setattr("hpc_amp.schedulers.base.Scheduler.ask_seconds", 0)
    pieces: list[str] = []
    waited: list[str] = []

    status = follow.follow(tmp_path, pieces.append, on_wait=waited.append)

    assert status.state == "finished"
    assert "".join(pieces) == "first\n" + 4 * "later\n"
    assert waited == [f"job {RUNNING.job_id} is pending"]


def test_slurm_is_not_asked_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files say nearly everything: the word `finished` in them is seen at once."""
    asked = slept = 0

    def statuses(folders: Sequence[Path]) -> list[RunStatus]:
        nonlocal asked
        asked += 1
        return [dataclasses.replace(RUNNING, state="finished" if asked == 2 else "running")]

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        assert slept == 1, "it was not seen at once"
        (tmp_path / "state.jsonl").write_text('{"time": 1, "state": "finished"}\n')

    monkeypatch.setattr(follow, "run_statuses", statuses)
    monkeypatch.setattr("time.sleep", sleep)

    follow.follow(tmp_path, lambda text: None, on_wait=lambda text: None)

    assert asked == 2
