"""A sweep on this machine: real points, so many at a time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands
from support.campaigns import find_sweep, group, make_campaign
from support.environment import clean_environ
from support.waiting import wait_for_file, wait_until

from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.here import Slot, slots_here
from hpc_amp.campaigns.status import point_statuses


class Machine:
    """A folder to run sweeps in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, command: str, **job: Any) -> None:
        """A job whose only rank runs this shell command, with the point's number in `$A`."""
        request = {"gpus_per_node": 0, "walltime": "10m"}
        config = {"name": "test", "site": "local", "job": request, "run": ["bash", "-c", command]}
        config |= {"launch": {"preflight": False}, **job}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(config))

    def start(self, *words: str, prefix: str = "env", **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [prefix, sys.executable, "-m", "hpc_amp", "sweep", *words],
            cwd=self.folder,
            env=clean_environ(**environ),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return commands.hpc_amp("sweep", *words, cwd=self.folder, environ=clean_environ(**environ))

    @property
    def sweep(self) -> Campaign:
        return find_sweep("test", self.folder / "sweeps")

    def states(self) -> list[str]:
        return [status.state for status in point_statuses(self.sweep)]

    def processes(self) -> list[bytes]:
        """The command lines of what runs for a sweep of this folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                found.append(path.read_bytes())
        return [words for words in found if bytes(self.folder) in words]

    def wait_for(self, name: str) -> None:
        """Until a file is there, which a point makes."""
        wait_for_file(self.folder / name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_points_run_and_no_more_at_once_than_allowed(machine: Machine) -> None:
    # The first two wait for each other; then each gives a third the time to come.
    machine.write(
        'mkdir -p now && touch "now/$A"\n'
        'until [ -e two ]; do [ "$(ls now | wc -l)" -lt 2 ] || touch two; sleep 0.05; done\n'
        'ls now | wc -l >>counts && sleep 0.5 && ls now | wc -l >>counts && rm "now/$A"'
    )

    result = machine.run("job.yaml", "container.env.A=0,1,2,3,4", "--max-parallel=2")

    assert result.returncode == 0, result.stderr
    assert machine.states() == ["finished"] * 5
    assert max(map(int, (machine.folder / "counts").read_text().split())) == 2
    assert "[5/5] point" in result.stdout


def test_a_point_that_fails_does_not_stop_the_others(machine: Machine) -> None:
    machine.write('[ "$A" != 1 ] || [ -e mended ]')

    first = machine.run("job.yaml", "container.env.A=0,1,2", "--json")

    assert first.returncode == 1
    facts = json.loads(first.stdout)
    assert [point["state"] for point in facts["points"]] == ["finished", "failed", "finished"]
    dropped = machine.run("drop", "test", "0,2", "--json")
    assert json.loads(dropped.stdout)["dropped"] == []
    dropped = machine.run("drop", "test", "2")
    assert dropped.stdout.startswith("dropped 0 points of ")
    assert dropped.stderr == "point 2 is finished, and stays\n"
    (machine.folder / "mended").touch()
    second = machine.run("continue", "test")
    assert second.returncode == 0, second.stderr
    assert "[1/1] point 1 (container.env.A=1) finished" in second.stdout
    assert machine.states() == ["finished"] * 3
    third = machine.run("continue", "test")
    assert (third.returncode, third.stdout) == (0, "all points have finished\n")
    shown = json.loads(machine.run("continue", "test", "--json").stdout)
    assert [point["state"] for point in shown["points"]] == ["finished"] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_what_runs_save_and_continue_goes_on(
    machine: Machine, number: signal.Signals
) -> None:
    """Point 0 and 1 run until they are asked to stop, and finish when they go on."""
    machine.write(
        'trap "touch saved-$A; exit 75" TERM; touch "at-$A"\n'
        'while [ ! -e "saved-$A" ]; do sleep 0.1; done'
    )
    process = machine.start("job.yaml", "container.env.A=0,1,2", "--max-parallel=2")
    machine.wait_for("at-0")
    machine.wait_for("at-1")

    process.send_signal(number)
    _, err = process.communicate(timeout=300)

    assert process.returncode == 130
    assert "hpc-amp sweep continue" in err
    assert machine.states() == ["cancelled"] * 3
    assert {path.name for path in machine.folder.glob("saved-*")} == {"saved-0", "saved-1"}
    (machine.folder / "saved-2").touch()
    assert machine.run("continue", "test").returncode == 0
    assert machine.states() == ["finished"] * 3


def test_under_nohup_a_closed_terminal_ends_nothing(machine: Machine) -> None:
    machine.write("touch at; until [ -e go ]; do sleep 0.05; done")
    process = machine.start("job.yaml", "container.env.A=0,1", prefix="nohup")
    machine.wait_for("at")

    process.send_signal(signal.SIGHUP)
    (machine.folder / "go").touch()
    _, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert machine.states() == ["finished"] * 2


# Presses Ctrl-C when a point's process is there and nobody has noted it yet.
_PRESSED = """
import os, runpy, signal, subprocess, types
from hpc_amp.campaigns import here

def start(*arguments, **settings):
    process = subprocess.Popen(*arguments, **settings)
    os.kill(os.getpid(), signal.SIGINT)
    return process

here.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})
runpy.run_module("hpc_amp", run_name="__main__")
"""


def test_ctrl_c_while_a_point_is_being_started_ends_it_too(machine: Machine) -> None:
    machine.write('trap "exit 75" TERM; touch "at-$A"; while :; do sleep 0.1; done')
    words = ["sweep", "job.yaml", "container.env.A=0,1", "--max-parallel=1"]

    result = subprocess.run(
        [sys.executable, "-c", _PRESSED, *words],
        cwd=machine.folder, env=clean_environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert result.returncode == 130, result.stderr
    assert machine.states() == ["cancelled", "cancelled"]
    assert not (machine.folder / "at-1").exists()
    assert not machine.processes()


def test_whatever_ends_the_command_ends_what_it_runs(machine: Machine) -> None:
    """Here nobody reads any more what it says when the first point ends."""
    machine.write(
        'trap "exit 75" TERM; touch "at-$A"\n[ "$A" = 0 ] || while :; do sleep 0.1; done\n'
        "until [ -e go ]; do sleep 0.1; done"
    )
    process = machine.start("job.yaml", "container.env.A=0,1,2", "--max-parallel=2")
    machine.wait_for("at-0")
    machine.wait_for("at-1")
    assert process.stdout is not None
    process.stdout.close()

    (machine.folder / "go").touch()

    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=300) != 0
    assert said.startswith("stopped") and "hpc-amp sweep continue" in said
    assert machine.states() == ["finished", "cancelled", "cancelled"]
    assert not machine.processes()


def test_cancel_from_elsewhere_ends_the_command_too(machine: Machine) -> None:
    # Whichever comes first, the stop file or SIGTERM: a program that ends with 0 has finished.
    machine.write(
        'touch "at-$A"\n'
        'while [ ! -e "${HPC_AMP_OUTCOME_FILE%/*}/stop" ]; do sleep 0.1; done; exit 75'
    )
    process = machine.start("job.yaml", "container.env.A=0,1", "--max-parallel=1")
    machine.wait_for("at-0")

    result = machine.run("cancel", "test")

    assert result.returncode == 0, result.stderr
    assert "cancelled 2 points" in result.stdout
    assert process.wait(timeout=300) == 130
    process.communicate()
    assert machine.states() == ["cancelled", "cancelled"]
    assert not (machine.folder / "at-1").exists()
    again = machine.run("cancel", "test")
    assert "no point" in again.stdout


def test_a_second_command_does_not_start_what_runs(machine: Machine) -> None:
    machine.write('touch "at-$A"; while [ ! -e go ]; do sleep 0.1; done')
    process = machine.start("job.yaml", "container.env.A=0,1", "--max-parallel=1")
    machine.wait_for("at-0")

    result = machine.run("continue", "test")
    shown = machine.run("status", "test")

    assert result.returncode == 0
    assert "2 points are under way" in result.stdout
    assert "2 points: 1 running, 1 pending" in shown.stdout
    (machine.folder / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_second_command_runs_nothing_beside_the_first(machine: Machine) -> None:
    """Both would give their points the same GPUs."""
    machine.write('touch "at-$A"; [ "$A" != 0 ] || exit 3; while [ ! -e go ]; do sleep 0.1; done')
    process = machine.start("job.yaml", "container.env.A=0,1", "--max-parallel=2")
    machine.wait_for("at-1")
    wait_until(lambda: machine.states()[0] == "failed", "the end of the first point")

    refused = machine.run("continue", "test")

    assert refused.returncode == 2
    assert "1 point is under way" in refused.stderr
    (machine.folder / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 1
    assert machine.states() == ["failed", "finished"]


def test_gpus_are_divided_among_points(machine: Machine) -> None:
    machine.write('echo "$A $CUDA_VISIBLE_DEVICES" >>seen; sleep 0.5')

    result = machine.run(
        "job.yaml", "container.env.A=0,1,2,3", "job.gpus_per_node=2", "launch.method=single",
        "job.ranks_per_node=1", CUDA_VISIBLE_DEVICES="4,5,6,7",
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert "2 at once" in result.stdout
    seen = [line.split() for line in (machine.folder / "seen").read_text().splitlines()]
    assert {gpus for _, gpus in seen} == {"4,5", "6,7"}
    assert {first for first, _ in seen} == {"0", "1", "2", "3"}


# ---- slots ---------------------------------------------------------------------------------------


def sweep_with(gpus: int, cores: int, at_once: int | None) -> Campaign:
    groups = (group(0, gpus=gpus, cores=cores), group(1, script="launch-2.sh"))
    return make_campaign(Path(), (), [(), ()], groups=groups, at_once=at_once)


@pytest.mark.parametrize(
    ("gpus", "cores", "at_once", "devices", "here", "slots"),
    [
        (0, 2, None, [], 8, [Slot()] * 4),
        (0, 16, None, [], 8, [Slot()]),
        (0, 2, 20, [], 8, [Slot()] * 20),
        (2, 2, None, [], 8, [Slot()] * 4),  # no GPU here: the job says what then
        (2, 2, None, ["0", "1", "2", "3", "4"], 8, [Slot(("0", "1")), Slot(("2", "3"))]),
        (2, 2, 1, ["0", "1", "2", "3"], 8, [Slot(("0", "1"))]),
        (1, 2, 9, ["a", "b"], 8, [Slot(("a",)), Slot(("b",))]),
    ],
)
def test_as_many_slots_as_there_is_room_for(
    gpus: int, cores: int, at_once: int | None, devices: list[str], here: int, slots: list[Slot]
) -> None:
    assert slots_here(sweep_with(gpus, cores, at_once), devices, here) == slots
