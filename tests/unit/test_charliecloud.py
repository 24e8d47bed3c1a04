"""Charliecloud as a container runtime: images, options and the host code, without ch-run itself
(tests/cluster/test_charliecloud.py has the real one)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hpc_amp.config.bind import Bind
from hpc_amp.containers.charliecloud import Charliecloud
from hpc_amp.errors import HpcAmpError, UsageError

CHARLIECLOUD = Charliecloud()


def squashfs(path: Path, *, used: int = 4096, size: int = 4096) -> Path:
    """The head of a SquashFS file, in a file of `size` bytes."""
    head = struct.pack("<4s36xQ", b"hsqs", used)
    path.write_bytes(head + bytes(size - len(head)))
    return path


def root_folder(path: Path) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "sh").write_text("#!")
    return path


def refusal(image: Path | str) -> str:
    with pytest.raises(UsageError) as raised:
        CHARLIECLOUD.check_image(str(image))
    return f"{raised.value.message}; {raised.value.hint}"


def test_a_squashfs_file_and_a_folder_are_images(tmp_path: Path) -> None:
    file, folder = squashfs(tmp_path / "a.sqfs"), root_folder(tmp_path / "root")

    CHARLIECLOUD.check_image(str(file))
    CHARLIECLOUD.check_image(str(folder))
    assert CHARLIECLOUD.read_image(str(file)).kind == "squashfs"
    assert CHARLIECLOUD.read_image(str(folder)).kind == "sandbox"


def test_other_files_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "a.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC" + bytes(100))
    (tmp_path / "empty").touch()

    assert "a SIF file, which Apptainer runs; make a folder" in refusal(tmp_path / "a.sif")
    assert "is not a squashfs file: it is something else" in refusal(tmp_path / "empty")
    assert "cut off: 4096 of 8192 bytes" in refusal(squashfs(tmp_path / "a.sqfs", used=8192))
    assert "is a URI" in refusal("docker://nvcr.io/nvidia/pytorch:25.06-py3")
    assert "no file or folder" in refusal(tmp_path / "missing")


def test_binds() -> None:
    assert CHARLIECLOUD.mountable("/lus/a b,c^d")
    assert not CHARLIECLOUD.mountable("/lus/a:b")
    assert CHARLIECLOUD.check_bind(Bind("/data", "/data")) is None
    assert "read-only" in str(CHARLIECLOUD.check_bind(Bind("/data", "/data", "ro")))


def test_words_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "me")
    root = root_folder(tmp_path / "root")

    def words(**more: object) -> list[str]:
        return CHARLIECLOUD.words_here(str(root), which=lambda name: f"/opt/{name}", **more)  # type: ignore[arg-type]

    assert words() == ["/opt/ch-run", "--cd=/", str(root), "--"]
    assert words(clean=True)[1] == "--unset-env=*"
    assert words(binds=[str(tmp_path), "/no/such/folder"])[1:-3] == [
        f"--bind={tmp_path}:{tmp_path}"
    ]
    (root / "ch").mkdir()
    (root / "ch" / "environment").touch()
    assert words()[1] == "--set-env"
    monkeypatch.delenv("USER")
    assert words()[0] == "env" and words()[1].startswith("USER=")
    with pytest.raises(HpcAmpError, match="no ch-run"):
        CHARLIECLOUD.words_here(str(root), which=lambda name: None)


def test_what_it_says_is_told_without_its_own_places() -> None:
    said = (
        "warning: something\n"
        "ch-run[4550]: error: can't mkdir: /img/lus: Read-only file system (fs.c:272 30 EROFS)\n"
    )

    assert CHARLIECLOUD.explain(said) == ("can't mkdir: /img/lus: Read-only file system", None)
    assert CHARLIECLOUD.explain("Traceback\nValueError: x\n")[0] == "ValueError: x"


def test_options_that_hide_the_launcher_s_variables() -> None:
    def statuses(*options: str, ranks: int = 4) -> list[str]:
        return [found.status for found in CHARLIECLOUD.check_options(options, ranks=ranks)]

    assert statuses("--unset-env=SLURM*") == ["warning"]
    assert statuses("--unset-env=SLURM*", ranks=1) == ["good"]
    assert statuses("--unset-env=DISPLAY", "--private-tmp") == ["good"]
