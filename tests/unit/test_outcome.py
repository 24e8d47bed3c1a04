"""How an attempt ended: the first word stays, and what is an error of its own."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from hpc_amp.train.outcome import is_aftermath, write_first_outcome, write_outcome
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.stopping import StopReason


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path, 2)
    made.attempt_path.mkdir(parents=True)
    return made


def test_the_first_rank_to_say_so_is_believed(run: RunDirectory) -> None:
    assert write_first_outcome(run, "failed", "rank 1: the cause", 7, StopReason.NONE)
    assert not write_first_outcome(run, "failed", "rank 0 lost contact", 7, StopReason.NONE)
    seen = json.loads(run.outcome_file.read_text())
    assert (seen["outcome"], seen["reason"], seen["step"]) == ("failed", "rank 1: the cause", 7)
    assert [path.name for path in run.attempt_path.iterdir()] == ["outcome.json"]


def test_it_is_believed_on_a_file_system_without_hard_links(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_the_first_rank_to_say_so_is_believed(run)


def test_a_run_that_ends_well_after_all_has_the_last_word(run: RunDirectory) -> None:
    write_first_outcome(run, "failed", "no progress for 600 s", 7, StopReason.NONE)
    write_outcome(run, "finished", "all steps done", 9, StopReason.NONE)
    assert json.loads(run.outcome_file.read_text())["outcome"] == "finished"


def test_the_script_finds_outcome_and_cause_on_lines_of_their_own(run: RunDirectory) -> None:
    write_outcome(run, "checkpointed", "it says so", 3, StopReason.WARNED)
    lines = run.outcome_file.read_text().splitlines()
    assert ' "outcome": "checkpointed",' in lines
    assert ' "cause": "WARNED",' in lines


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    nowhere = RunDirectory(tmp_path / "nowhere", 1)
    assert not write_first_outcome(nowhere, "failed", "why", None, StopReason.NONE)


@pytest.mark.parametrize(
    ("error", "aftermath"),
    [
        (
            RuntimeError("[..gloo/transport/tcp/pair.cc:561] Connection closed by peer [::1]:1"),
            True,
        ),
        (RuntimeError("Read error [127.0.0.1]:23213: Connection reset by peer"), True),
        (ConnectionResetError("Connection reset by peer"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError(""), False),
    ],
)
def test_lost_contact_is_told_from_an_error_of_ones_own(error: Exception, aftermath: bool) -> None:
    assert is_aftermath(error) is aftermath


def test_an_error_for_the_user_is_not_taken_for_lost_contact() -> None:
    from hpc_amp.data.errors import DataError
    from hpc_amp.distributed.world import World
    from hpc_amp.train.stages import explain, failure_status

    error = DataError("MNIST is not in data, and the download failed: Connection refused")

    assert is_aftermath(error), "the words are those of lost contact"
    assert explain(error, World(1, 2)) == (f"rank 1: {error}", True)
    assert failure_status(error) == 2


def test_an_error_of_a_task_from_another_package_is_one_line() -> None:
    from hpc_amp.distributed.world import World
    from hpc_amp.errors import InputError, JobError
    from hpc_amp.train.stages import explain, failure_status

    class NoMasks(InputError):
        """Of somebody's task."""

    assert explain(NoMasks("the masks are missing"), World()) == ("the masks are missing", True)
    assert failure_status(NoMasks("the masks are missing")) == 2
    assert failure_status(JobError("the server has gone")) == 1
    assert failure_status(KeyError("masks")) == 1
    assert explain(KeyError("masks"), World()) == ("KeyError: 'masks'", False)
