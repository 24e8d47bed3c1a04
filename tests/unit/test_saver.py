"""Saving beside the training: one checkpoint at a time, and nothing goes wrong in silence."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hpc_amp.train.checkpoint import Checkpoint, CheckpointStore, Retention
from hpc_amp.train.saver import CheckpointSaver, lack_of_room


class Disk(CheckpointStore):
    """A store whose writes wait, or fail, as a test wants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, run="mine", retention=Retention(), warn=pytest.fail)
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def save(self, checkpoint: Checkpoint) -> Path:
        self.begun.set()
        self.open.wait()
        if self.error is not None:
            raise self.error
        return super().save(checkpoint)


class Saving:
    """A saver, its disk, one weight to be saved, and what it said."""

    def __init__(self, folder: Path, background: bool = True) -> None:
        self.disk = Disk(folder)
        self.said: list[str] = []
        self.warnings: list[str] = []
        self.weight = torch.zeros(3)
        self.saver = CheckpointSaver(
            self.disk, background=background, say=self.said.append, warn=self.warnings.append
        )

    def save(self, step: int, changing: tuple[Tensor, ...] = ()) -> None:
        tensors = {"networks": {"w": self.weight}}
        own = {"random": torch.tensor([step])}
        self.saver.save(Checkpoint(step, {"step": step}, tensors), own, changing)

    def saved(self, step: int) -> Any:
        return self.disk.load(step).tensors["networks"]["w"].tolist()


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[Saving]:
    made = Saving(tmp_path)
    yield made
    made.disk.open.set()


def test_the_training_goes_on_while_a_checkpoint_is_written(saving: Saving) -> None:
    saving.disk.open.clear()
    saving.save(1)
    saving.saver.settle()
    saving.weight.add_(1)  # an optimizer's step
    saving.disk.begun.wait()
    saving.saver.poll()
    assert saving.saver.is_writing
    assert (saving.saver.saved_step, saving.said, saving.disk.steps()) == (None, [], [])

    saving.disk.open.set()
    saving.saver.finish()
    assert not saving.saver.is_writing
    assert (saving.saver.saved_step, saving.disk.steps()) == (1, [1])
    assert saving.said == [f"checkpoint {saving.disk.path(1)}"]
    assert saving.saved(1) == [0, 0, 0], "the state of the moment, not of the writing"
    assert saving.disk.load(1).tensors["random"].tolist() == [1]
    assert saving.saver.seconds > 0


def test_an_end_of_the_writing_is_told_when_it_is_looked_for(saving: Saving) -> None:
    saving.save(1)
    while saving.saver.is_writing:
        pass
    assert saving.said == []
    saving.saver.poll()
    assert saving.said == [f"checkpoint {saving.disk.path(1)}"]


def test_at_most_one_is_in_flight(saving: Saving) -> None:
    saving.disk.open.clear()
    saving.save(1)
    saving.disk.begun.wait()
    threading.Timer(0.2, saving.disk.open.set).start()
    saving.save(2)
    assert saving.saver.saved_step == 1, "the second save has waited for the first"
    saving.saver.finish()
    assert saving.disk.steps() == [1, 2]


def test_what_a_forward_pass_changes_is_copied_before_save_returns(saving: Saving) -> None:
    busy = threading.Event()
    saving.saver._thread.submit(busy.wait)  # so that the thread copies nothing for now
    saving.save(1, changing=(saving.weight,))
    saving.weight.add_(1)  # as a forward pass may, without asking
    busy.set()
    saving.saver.finish()
    assert saving.saved(1) == [0, 0, 0]


def test_in_the_foreground_save_returns_when_it_is_done(tmp_path: Path) -> None:
    saving = Saving(tmp_path, background=False)
    saving.saver.reserve({"networks": {"w": saving.weight}})
    saving.save(1)
    saving.weight.add_(1)
    assert saving.saved(1) == [0, 0, 0]
    assert saving.saver.saved_step == 1


def test_a_step_is_saved_once(saving: Saving) -> None:
    saving.save(1)
    saving.save(1)
    saving.saver.finish()
    assert len(saving.said) == 1


@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_refuses_is_a_warning_and_the_next_interval_tries_again(
    tmp_path: Path, background: bool
) -> None:
    saving = Saving(tmp_path, background)
    saving.disk.error = OSError(errno.EDQUOT, "Disk quota exceeded")
    saving.save(1)
    saving.saver.finish()
    (warning,) = saving.warnings
    assert "no checkpoint of step 1: [Errno 122] Disk quota exceeded" in warning
    assert "the next interval tries again" in warning
    assert saving.saver.saved_step is None
    saving.disk.error = None
    saving.save(2)
    saving.saver.finish()
    assert (saving.saver.saved_step, saving.disk.steps()) == (2, [2])


LOOKS: dict[str, Callable[[Saving], None]] = {
    "poll": lambda saving: saving.saver.poll(),
    "save": lambda saving: saving.save(2),
    "finish": lambda saving: saving.saver.finish(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_any_other_error_of_the_writer_is_raised_where_one_looks(saving: Saving, look: str) -> None:
    saving.disk.error = RuntimeError("a defect in the writer")
    saving.save(1)
    while saving.saver.is_writing:
        pass
    with pytest.raises(RuntimeError, match="a defect in the writer"):
        LOOKS[look](saving)
    saving.saver.finish()  # it is told once


def test_an_error_of_the_copy_is_raised_before_the_optimizer_steps(
    saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("a defect in the copy")

    monkeypatch.setattr(saving.saver._snapshot, "take", lambda state, changing: (state, refuse))
    saving.save(1)
    with pytest.raises(RuntimeError, match="a defect in the copy"):
        saving.saver.settle()
    with pytest.raises(RuntimeError, match="a defect in the copy"):
        saving.saver.finish()
    assert saving.disk.steps() == [], "what was not copied as a whole is not published"
    saving.save(2)
    with pytest.raises(RuntimeError, match="a defect in the copy"):
        saving.saver.finish()
    assert saving.disk.steps() == []


# -- room ----------------------------------------------------------------------------------------

MEBIBYTE = 2**20


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the file system says of itself."""
    made = SimpleNamespace(f_bavail=25 * 1024, f_frsize=1024, f_files=1000, f_favail=100)
    monkeypatch.setattr(os, "statvfs", lambda folder: made)
    return made


def test_a_disk_without_room_is_told_at_the_start(disk: SimpleNamespace, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert lack_of_room(folder, 6 * MEBIBYTE, 3) is None
    text = lack_of_room(folder, 7 * MEBIBYTE, 3)
    assert text is not None
    assert "7.0 MiB each, 3 kept and one being written, need 28.0 MiB" in text
    assert f"{tmp_path} has 25.0 MiB left" in text


def test_inodes_run_out_too(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.f_favail = 39
    assert "39 inodes left" in (lack_of_room(tmp_path, 1, 3) or "")
    disk.f_files = disk.f_favail = 0  # a file system that does not count them
    assert lack_of_room(tmp_path, 1, 3) is None


def test_a_file_system_that_does_not_answer_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refuse)
    assert lack_of_room(tmp_path, 1, 3) is None


def test_the_look_at_the_disk_happens_with_the_first_buffers(
    saving: Saving, disk: SimpleNamespace
) -> None:
    disk.f_bavail = 0
    saving.saver.reserve({"networks": {"w": saving.weight}})
    saving.saver.finish()
    (warning,) = saving.warnings
    assert "has 0.0 MiB left" in warning


def test_checkpoints_that_are_there_need_no_more_room(
    tmp_path: Path, disk: SimpleNamespace
) -> None:
    """A resumed run writes one more than it has, and one of those goes then."""
    disk.f_bavail = 1024  # 1 MiB
    weight = torch.zeros(2**17)  # half of one
    for saved in ((), (1, 2, 3)):
        saving = Saving(tmp_path)
        for step in saved:
            saving.disk.save(Checkpoint(step, {}, {"w": torch.zeros(1)}))
        saving.saver.reserve({"networks": {"w": weight}})
        saving.saver.finish()
        assert len(saving.warnings) == (not saved)
