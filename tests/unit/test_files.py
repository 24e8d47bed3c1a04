"""Atomic writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpc_amp.files import replacing, write_atomically, write_json


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    write_atomically(path, "old")
    write_atomically(path, b"\x00new")
    assert path.read_bytes() == b"\x00new"

    write_json(path, {"a": 1, "b": [2]})
    assert '\n "a": 1,\n' in path.read_text(), "each key has its own line"
    assert os.listdir(tmp_path) == ["facts.json"]


def test_text_is_utf8(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "größer")
    assert (tmp_path / "text").read_bytes() == "größer".encode()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_the_permissions_are_those_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("error", [OSError("full"), ValueError("no"), KeyboardInterrupt()])
def test_a_failed_block_leaves_the_old_file_alone(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as new:
            new.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_renamed_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "text")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_missing_folder_is_the_error_that_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", "text")


def test_a_link_is_replaced_by_another_link(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    for target in ("one", "two"):
        with replacing(latest) as new:
            new.symlink_to(target)
    assert os.readlink(latest) == "two"
    assert os.listdir(tmp_path) == ["latest"]


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    name = "ü" * 127  # 254 bytes; a name has at most 255
    write_atomically(tmp_path / name, "text")
    assert os.listdir(tmp_path) == [name]


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two threads share a process id, as two processes on different nodes may."""
    path = tmp_path / "file"
    both = threading.Barrier(2)
    errors = []

    def write(text: str) -> None:
        try:
            with replacing(path) as new:
                new.write_text(text)
                both.wait()
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert path.read_text() in ("one", "two")
    assert os.listdir(tmp_path) == ["file"]
