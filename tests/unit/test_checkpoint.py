"""Checkpoints: complete or not there, checked before use, kept as many as asked."""

from __future__ import annotations

import ast
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.environment import REPOSITORY, clean_environ, file_size_limit
from support.training import engine

from hpc_amp.train.checkpoint import (
    MANIFEST,
    Checkpoint,
    CheckpointStore,
    DamagedCheckpoint,
    Retention,
)


class Store(CheckpointStore):
    """A store of small checkpoints that remembers its warnings."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 3,
        best: int = 0,
        every: int | None = None,
        run: str = "mine",
    ) -> None:
        self.warnings: list[str] = []
        retention = Retention(keep, best, every)
        super().__init__(folder, run=run, retention=retention, warn=self.warnings.append)

    def put(self, *steps: int) -> None:
        for step in steps:
            tensors = {"networks": {"w": torch.full((50,), float(step))}, "random": [torch.ones(3)]}
            self.save(Checkpoint(step, {"step": step}, tensors))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")


def test_what_is_saved_is_loaded(store: Store) -> None:
    assert store.newest() is None
    assert store.steps() == []
    store.put(7)
    assert store.newest() == 7
    loaded = store.load(7)
    assert loaded.trainer == {"step": 7}
    assert set(loaded.tensors) == {"networks", "random"}
    assert torch.equal(loaded.tensors["networks"]["w"], torch.full((50,), 7.0))
    assert store.warnings == []


# -- retention ---------------------------------------------------------------------------------


def test_the_newest_stay_by_number_not_by_name(store: Store) -> None:
    store.put(9, 90_000_000, 100_000_000, 100_000_001)
    assert store.steps() == [90_000_000, 100_000_000, 100_000_001]
    assert store.newest() == 100_000_001


def test_foreign_names_are_left_alone(store: Store) -> None:
    foreign = ["step-00000100.backup", "step-7", "best", ".tmp-mine", "step-00000001 (copy)"]
    for name in foreign:
        (store.folder / name).mkdir(parents=True)
    store.put(101, 102, 103, 104)
    assert store.names() == sorted([*foreign, *(f"step-00000{n}" for n in (102, 103, 104))])
    assert store.steps() == [102, 103, 104]
    assert store.warnings == []


def test_the_new_one_is_published_before_an_old_one_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(1, 2, 3)
    seen = []
    real = shutil.rmtree

    def remove(path: Path, **more: bool) -> None:
        seen.append(Store(store.folder).newest())
        real(path, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    store.put(4)
    assert seen == [4]
    assert store.steps() == [2, 3, 4]


def test_damaged_ones_from_ahead_do_not_push_out_what_was_just_saved(tmp_path: Path) -> None:
    """After a fall back, the damaged checkpoints have higher numbers than the new ones."""
    Store(tmp_path).put(10, 40, 50)
    for step in (40, 50):
        (tmp_path / f"step-{step:08d}" / MANIFEST).unlink()
    store = Store(tmp_path, keep=2)
    assert store.newest() == 10
    store.put(20, 30)
    assert store.steps() == [20, 30, 40, 50]
    store.put(40)
    assert store.steps() == [30, 40, 50]
    store.put(60)
    assert store.steps() == [40, 60], "a damaged one that was passed goes and never counts"
    assert Store(tmp_path).newest() == 60


def test_a_valid_checkpoint_of_the_step_stays_and_a_damaged_one_is_replaced(store: Store) -> None:
    store.put(5)
    file = store.path(5) / "networks.pt"
    before = file.stat().st_ino
    store.put(5)
    assert file.stat().st_ino == before
    flip_bit(file)
    store.put(5)
    assert store.newest() == 5


def test_staging_folders_of_killed_writers_are_ignored_and_swept(store: Store) -> None:
    store.put(1)
    shutil.copytree(store.path(1), store.folder / ".tmp-step-00000009-0123abcd")
    assert store.newest() == 1
    store.put(2)
    assert store.names() == ["step-00000001", "step-00000002"]


# -- damage ------------------------------------------------------------------------------------


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def hole(path: Path) -> None:
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + bytes(third) + content[2 * third :])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_bit, cut, hole, empty, Path.unlink])
@pytest.mark.parametrize("name", ["networks.pt", "random.pt", "trainer.json", MANIFEST])
def test_damage_is_found_and_named_and_the_one_before_is_used(
    store: Store, name: str, damage: Callable[[Path], None]
) -> None:
    store.put(1, 2)
    damage(store.path(2) / name)
    assert store.newest() == 1
    (warning,) = store.warnings
    assert str(store.path(2)) in warning
    assert name in warning
    with pytest.raises(DamagedCheckpoint, match=re.escape(name)):
        store.load(2)


GOOD = {"format": 2, "step": 2, "files": {}}


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("\x00" * 50, "cannot be read"),
        ("[]", "cannot be read"),
        ("null", "cannot be read"),
        ("{}", "cannot be read"),
        (json.dumps({**GOOD, "files": ["networks.pt"]}), "cannot be read"),
        (json.dumps({**GOOD, "files": {"networks.pt": "abc"}}), "cannot be read"),
        (json.dumps({**GOOD, "format": 3}), "format 3 is not 2"),
        (json.dumps(GOOD), "trainer.json"),
        (json.dumps({**GOOD, "step": "two"}), "cannot be read"),
    ],
)
def test_a_manifest_that_means_nothing(store: Store, manifest: str, said: str) -> None:
    store.put(1, 2)
    (store.path(2) / MANIFEST).write_text(manifest)
    assert store.newest() == 1
    assert said in store.warnings[0]


def test_a_copy_under_another_number_is_not_used(store: Store) -> None:
    store.put(1)
    shutil.copytree(store.path(1), store.path(2))
    assert store.newest() == 1
    assert "is of step 1" in store.warnings[0]


def test_a_file_in_the_place_of_a_folder(store: Store) -> None:
    store.put(1)
    store.path(2).write_text("?")
    assert store.newest() == 1


def test_when_all_are_damaged_there_is_none(store: Store) -> None:
    store.put(1, 2, 3)
    for step in (1, 2, 3):
        flip_bit(store.path(step) / "networks.pt")
    assert store.newest() is None
    assert len(store.warnings) == 3


# -- what may be in it -------------------------------------------------------------------------


class Malicious:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


def test_a_malicious_pickle_with_a_fitting_manifest_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(Checkpoint(1, {}, {"networks": {"w": Malicious()}}))
    with pytest.raises(DamagedCheckpoint, match=r"networks.pt holds more than tensors"):
        store.load(1)
    assert not (tmp_path / "owned").exists()


def test_nothing_is_ever_loaded_as_a_free_pickle() -> None:
    sources = (REPOSITORY / "hpc_amp").rglob("*.py")
    calls = [
        node
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
    ]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads, "the search finds what it is for"
    for call in loads:
        assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]
    assert not {ast.unparse(call.func) for call in calls} & {
        "pickle.load", "pickle.loads", "pickle.Unpickler", "load", "loads",
    }  # fmt: skip


# -- writing that fails ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 300, 100_000])
def test_a_full_disk_is_an_oserror_and_leaves_the_older_checkpoint(
    store: Store, limit: int
) -> None:
    """torch.save alone would make a RuntimeError of it, where the file is beyond buffers."""
    store.put(1)
    large = {"networks": {"w": torch.zeros(50_000)}}
    with file_size_limit(limit), pytest.raises(OSError, match="too large"):
        store.save(Checkpoint(2, {}, large))
    assert store.names() == ["step-00000001"]
    assert store.newest() == 1
    store.put(3)
    assert store.newest() == 3


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
def test_any_refusal_of_the_file_system_leaves_the_older_checkpoint(
    store: Store, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EACCES cannot be provoked as root, so the call itself refuses."""

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    store.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(PermissionError):
            store.put(2)
    assert store.names() == ["step-00000001"]
    assert store.newest() == 1


def test_an_old_one_that_cannot_be_removed_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(1, 2, 3)
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if source == store.path(1):
            raise PermissionError(errno.EACCES, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    store.put(4)
    assert store.newest() == 4
    assert "could not be removed" in store.warnings[0]


def test_training_goes_on_when_the_disk_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = engine(tmp_path, checkpoint="2steps")
    made.train_step(next(made.data.epoch(0)))
    made.save()
    made.saver.finish()
    with file_size_limit(1000):
        made.train_step(next(made.data.epoch(0, 1)))
        made.save()
        made.saver.finish()
    made.train_step(next(made.data.epoch(0, 2)))
    assert made.store.steps() == [1]
    assert "no checkpoint of step 2" in capsys.readouterr().out
    made.save()
    made.saver.finish()
    assert made.store.newest() == 3


# -- a writer that is killed ---------------------------------------------------------------------

WRITER = """
import os, sys, time
from pathlib import Path
import torch
from hpc_amp.train.checkpoint import Checkpoint, CheckpointStore, Retention

sys.stdin.readline()  # torch is imported once; a child a line
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        store = CheckpointStore(
            Path(sys.argv[1]), run="mine", retention=Retention(2), warn=print
        )
        step = store.newest() or 0
        print(os.getpid(), flush=True)
        while True:
            step += 1
            tensors = {"networks": {"w": torch.full((20_000,), step)}}
            store.save(Checkpoint(step, {"step": step}, tensors))
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def test_a_writer_killed_at_any_instant_never_leaves_a_checkpoint_that_does_not_load(
    store: Store,
) -> None:
    instants = random.Random(1)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, store.folder],
        env=clean_environ(OMP_NUM_THREADS="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        print("go", file=parent.stdin, flush=True)
        interrupted = 0
        for kills in range(300):
            if kills >= 30 and interrupted >= 10:
                break
            print("fork", file=parent.stdin, flush=True)
            pid = int(parent.stdout.readline())
            time.sleep(instants.uniform(0.005, 0.05))
            os.kill(pid, signal.SIGKILL)
            assert parent.stdout.readline() == "dead\n"
            interrupted += any(name.startswith(".tmp-") for name in store.names())
            steps = store.steps()
            assert all(store.load(step).trainer["step"] == step for step in steps)
            assert store.newest() == (steps[-1] if steps else None)
        parent.stdin.close()
    assert store.warnings == []
    assert store.steps()
    assert interrupted >= 10, "kills have hit the writing"
