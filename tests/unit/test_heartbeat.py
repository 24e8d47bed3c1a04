"""Signs of life of ranks, and what they tell of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_amp.train.heartbeat import Heartbeat, dead_ranks, process_state, read_heartbeats


def test_a_line_is_overwritten_as_a_whole(tmp_path: Path) -> None:
    beat = Heartbeat(tmp_path / "heartbeat", 3)
    beat.write(10**9, "a long phase", time.time())
    beat.write(7, "training", 5.5)
    text = (tmp_path / "heartbeat" / "rank-00003").read_text()
    assert text.count("\n") == 1 and text.endswith("\n")
    seen = json.loads(text)
    assert (seen["rank"], seen["pid"], seen["step"]) == (3, os.getpid(), 7)
    assert (seen["phase"], seen["moved"]) == ("training", 5.5)
    assert seen["time"] == pytest.approx(time.time(), abs=60)


def test_all_are_read_in_order_and_what_is_no_sign_of_life_is_left_out(tmp_path: Path) -> None:
    for rank in (10, 2):
        Heartbeat(tmp_path, rank).write(1, "training", 0)
    (tmp_path / "rank-00001").write_text("")
    (tmp_path / "rank-00003").write_text("{torn")
    assert [beat["rank"] for beat in read_heartbeats(tmp_path)] == [2, 10]
    assert read_heartbeats(tmp_path / "nowhere") == []


def test_a_disk_that_refuses_costs_the_sign_of_life_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    beat = Heartbeat(tmp_path / "file" / "heartbeat", 0)
    beat.write(1, "training", 0)
    full = Heartbeat(tmp_path, 0)
    os.dup2(os.open("/dev/full", os.O_WRONLY), full._file)
    full.write(1, "training", 0)
    assert read_heartbeats(tmp_path) == []


class Sleeper:
    """A process that gives a sign of life and sleeps."""

    def __init__(self, folder: Path) -> None:
        code = "import sys, time; from pathlib import Path\n"
        code += "from hpc_amp.train.heartbeat import Heartbeat\n"
        code += "Heartbeat(Path(sys.argv[1]), 4).write(7, 'training', 0)\n"
        code += "print('alive', flush=True); time.sleep(1e5)"
        command = [sys.executable, "-c", code, str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "alive\n"
        (self.beat,) = read_heartbeats(folder)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def state_becomes(self, state: str) -> bool:
        """Whether it does; a signal takes a moment."""
        deadline = time.monotonic() + 60
        while process_state(self.beat) != state and time.monotonic() < deadline:
            time.sleep(0.01)
        return process_state(self.beat) == state


def test_a_process_is_running_stopped_or_dead(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path)
    assert process_state(sleeper.beat) == "running"
    assert dead_ranks(tmp_path) == []
    sleeper.signal(signal.SIGSTOP)
    assert sleeper.state_becomes("stopped")
    sleeper.signal(signal.SIGCONT)
    assert sleeper.state_becomes("running")
    sleeper.signal(signal.SIGKILL)
    assert sleeper.state_becomes("dead"), "though nobody has reaped it"
    where = f"{sleeper.beat['host']}, process {sleeper.process.pid}, step 7"
    assert dead_ranks(tmp_path) == [f"rank 4 ({where}: dead)"]
    sleeper.process.communicate()
    assert process_state(sleeper.beat) == "dead"


@pytest.mark.parametrize(
    ("changed", "state"),
    [({"born": 1}, "dead"), ({"host": "elsewhere"}, None), ({"pids": "pid:[1]"}, None)],
    ids=["another process of this number", "another machine", "another container"],
)
def test_nothing_is_said_of_what_cannot_be_seen(
    tmp_path: Path, changed: dict[str, Any], state: str | None
) -> None:
    Heartbeat(tmp_path, 0).write(1, "training", 0)
    (beat,) = read_heartbeats(tmp_path)
    assert process_state(beat) == "running"
    assert process_state({**beat, **changed}) == state
