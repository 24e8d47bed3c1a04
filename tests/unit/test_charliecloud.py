"""Charliecloud as a container runtime: images, options and the host code, without ch-run itself
(tests/cluster/test_runtimes.py has the real one)."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.environment import REPOSITORY

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

    assert "a SIF file; make a folder" in refusal(tmp_path / "a.sif")
    assert "is not a squashfs file: it is something else" in refusal(tmp_path / "empty")
    assert "cut off: 4096 of 8192 bytes" in refusal(squashfs(tmp_path / "a.sqfs", used=8192))
    assert "is a URI" in refusal("docker://nvcr.io/nvidia/pytorch:25.06-py3")
    assert "no file or folder" in refusal(tmp_path / "missing")


def test_binds() -> None:
    assert CHARLIECLOUD.mountable("/lus/a b,c^d")
    assert not CHARLIECLOUD.mountable("/lus/a:b")
    assert CHARLIECLOUD.check_bind(Bind("/data", "/data")) is None
    assert "read-only" in str(CHARLIECLOUD.check_bind(Bind("/data", "/data", "ro")))


def client(folder: Path, help_text: str) -> Path:
    """A stand-in for ch-run, which wants USER and says its help on the other output."""
    path = folder / "ch-run"
    path.write_text(
        '#!/bin/sh\n[ -n "$USER" ] || exit 1\n'
        f'case $1 in --version) echo 0.45.2 >&2 ;; --help) echo "{help_text}" >&2 ;; esac\n'
    )
    path.chmod(0o755)
    return path


def test_words_for_this_machine(tmp_path: Path) -> None:
    root = root_folder(tmp_path / "root")
    program = client(tmp_path, "-w, --write")
    (tmp_path / "data").mkdir()

    def words(**more: object) -> list[str]:
        found = CHARLIECLOUD.words_here(str(root), which=lambda name: str(program), **more)  # type: ignore[arg-type]
        assert found[0] == "env" and found[1].startswith("USER=")
        return found[2:]

    assert words() == [str(program), "--cd=/", str(root), "--"]
    assert words(clean=True)[1] == "--unset-env=*"
    assert words(binds=[f"{tmp_path}/data:/bin", "/no/such/folder"])[1:-3] == [
        f"--bind={tmp_path}/data:/bin"
    ]
    with pytest.raises(HpcAmpError, match="the image has no /deep/place to bind to"):
        words(binds=[f"{tmp_path}/data:/deep/place"])
    client(tmp_path, "-W, --write-fake")
    assert "--write-fake" in words(binds=[f"{tmp_path}/data:/deep/place"])
    (root / "ch").mkdir()
    (root / "ch" / "environment").touch()
    assert words()[1] == "--set-env"
    with pytest.raises(HpcAmpError, match="no ch-run"):
        CHARLIECLOUD.words_here(str(root), which=lambda name: None)


def test_it_is_found_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USER", raising=False)
    program = client(tmp_path, "")

    (found,) = CHARLIECLOUD.check_here(needed=True, which=lambda name: str(program))
    (missing,) = CHARLIECLOUD.check_here(needed=True, which=lambda name: None)

    assert (found.severity, found.what) == ("good", f"Charliecloud 0.45.2, {program}")
    assert missing.severity == "error"


def test_what_it_says_is_told_without_its_own_places() -> None:
    said = (
        "warning: something\n"
        "ch-run[4550]: error: can't mkdir: /img/lus: Read-only file system (fs.c:272 30 EROFS)\n"
    )

    assert CHARLIECLOUD.explain(said) == ("can't mkdir: /img/lus: Read-only file system", None)
    assert CHARLIECLOUD.explain("Traceback\nValueError: x\n")[0] == "ValueError: x"


def test_options_that_hide_the_launcher_s_variables() -> None:
    def statuses(*options: str, ranks: int = 4) -> list[str]:
        return [found.severity for found in CHARLIECLOUD.check_options(options, ranks=ranks)]

    assert statuses("--unset-env=SLURM*") == ["warning"]
    assert statuses("--unset-env=SLURM*", ranks=1) == ["good"]
    assert statuses("--unset-env=DISPLAY", "--private-tmp") == ["good"]


def test_what_runs_in_a_squashfs_file_hears_signals(tmp_path: Path) -> None:
    """They are blocked in ch-run, which passes that on. A rank unblocks them itself, but what runs
    inside is not always a rank."""
    stub = tmp_path / "ch-run"
    stub.write_text(
        '#!/bin/bash\nif [ "$1" = --version ]; then echo 0.38; exit; fi\n'
        'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    stub.chmod(0o755)
    image = squashfs(tmp_path / "a.sqfs")
    host = REPOSITORY / "hpc_amp" / "containers" / "charliecloud" / "host.sh"
    mask = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    script = (
        "set -euo pipefail\ncontainer_program() { runtime=$(command -v ch-run); }\n"
        "container_paths() { :; }\ncontainer_environment() { :; }\n"
        'fail() { echo "$1"; exit 2; }\n'
        f"source {host}\nimage={image}\npython={sys.executable}\ncontainer_options=(--cd=/)\n"
        "enter_container\n"
        f"""\"${{container[@]}}\" /bin/sh -c 'exec "$0" -c "$1"' "$python" "{mask}"\n"""
    )

    ended = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        text=True, capture_output=True,
    )  # fmt: skip

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "set()\n"
