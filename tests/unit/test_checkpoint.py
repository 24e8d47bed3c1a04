"""Checkpoints: complete or not there, checked before use, kept as many as asked."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.environment import REPOSITORY, file_size_limit
from support.training import Regression, engine, fit_until

from hpc_amp.tasks.base import Best
from hpc_amp.train.checkpoint import Checkpoint, CheckpointStore, Retention
from hpc_amp.train.manifest import MANIFEST, DamagedCheckpoint
from hpc_amp.train.state import config_digest


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


def measured(store: Store, *steps: tuple[int, float | None]) -> None:
    for step, metric in steps:
        store.save(Checkpoint(step, {}, {"w": torch.ones(3)}, {"metric": metric}))


def test_the_best_stay_besides(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2, best=2)
    measured(store, (1, 0.3), (2, 0.9), (3, None), (4, 0.5), (5, math.nan), (6, 0.4), (7, None))
    assert store.steps() == [2, 4, 6, 7]
    again = Store(tmp_path, keep=2, best=2)  # what a resumed run knows is in the manifests
    measured(again, (8, 0.6), (9, 0.1), (10, None))
    assert again.steps() == [2, 8, 9, 10]


class Accurate(Regression):
    """Best after five steps."""

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        return {"accuracy": 0.9 if self.steps() == 5 else 0.5}


def test_the_best_stays_where_a_stop_put_its_evaluation_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saved without a metric, and the next attempt has evaluated it."""
    checkpoint = {"every": "1steps", "keep": 2, "keep_best": 1}
    fit_until(engine(tmp_path, Accurate, epochs=3, checkpoint=checkpoint), 5)
    again = engine(tmp_path, Accurate, attempt=2, epochs=3, checkpoint=checkpoint)
    monkeypatch.setattr(Accurate, "steps", lambda task: again.step, raising=False)
    again.fit()
    assert again.store.steps() == [5, 14, 15]
    later = engine(tmp_path, attempt=3, epochs=4, checkpoint=checkpoint).store
    assert later.load(5).facts["metric"] == 0.9
    assert later.load(5).trainer["step"] == 5


class Wrong(Accurate):
    """Worst after five steps by the metric of `Accurate`, but that is not what counts."""

    best = Best("error", "lowest")

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        return {"accuracy": 0.1, "error": 0.2} if self.steps() == 5 else super().summarize(sums)


class Unmeasured(Regression):
    best = None


def test_the_task_names_the_metric_and_its_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = {"every": "1steps", "keep": 2, "keep_best": 1}
    made = engine(tmp_path / "lowest", Wrong, epochs=3, checkpoint=checkpoint)
    monkeypatch.setattr(Accurate, "steps", lambda task: made.step, raising=False)
    monkeypatch.setattr(Accurate, "summarize", lambda task, sums: {"accuracy": 0.9, "error": 0.5})
    made.fit()
    assert made.store.steps() == [5, 14, 15]
    assert made.report.summary()["best"] == {
        "metric": "error", "direction": "lowest", "value": 0.2,
    }  # fmt: skip

    without = engine(tmp_path / "none", Unmeasured, epochs=3, checkpoint=checkpoint)
    without.fit()
    assert without.store.steps() == [14, 15]
    assert without.report.summary()["best"] is None


@pytest.mark.parametrize(
    ("direction", "values", "best"),
    [
        ("highest", [0.1, None, 0.3, 0.2], 0.3),
        ("lowest", [0.2, math.nan, 0.1, 0.3], 0.1),
        ("lowest", [None, math.inf], None),
        ("highest", [-2.0, -1.0], -1.0),
    ],
)
def test_the_best_of_some_values(direction: Any, values: list[Any], best: float | None) -> None:
    found = None
    for value in values:
        found = Best("x", direction).better(value, found)
    assert found == best


def test_of_two_that_are_as_good_the_newer_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2, best=1)
    measured(store, (1, 0.5), (2, 0.5), (3, None), (4, None))
    assert store.steps() == [2, 3, 4]


def test_every_so_many_steps_one_stays_for_good(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2, every=10)
    store.put(5, 10, 15, 20, 21, 22, 23)
    assert store.steps() == [10, 20, 22, 23]


def test_what_another_run_has_made_is_read_but_never_removed(tmp_path: Path) -> None:
    """Someone copied checkpoints here to go on from them."""
    Store(tmp_path, run="another").put(1, 2)
    store = Store(tmp_path, keep=2)
    assert store.newest() == 2
    store.put(3, 4, 5, 6)
    assert store.steps() == [1, 2, 5, 6]


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


def test_all_is_on_the_disk_before_it_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses power keeps what was fsynced, in whatever order it was written."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def note_rename(source: Path, target: Path) -> None:
        rename(source, target)
        calls.append(f"named {target.name}")

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    store.put(1)
    *files, manifest, stage, named, folder = calls
    assert sorted(files) == ["networks.pt", "random.pt", "trainer.json"]
    assert manifest == MANIFEST
    assert stage.startswith(".tmp-step-00000001-")
    assert (named, folder) == ("named step-00000001", "checkpoints")


def test_a_file_system_that_syncs_no_folders_takes_checkpoints(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some say so with EINVAL: there is nothing to be synced."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.put(1)
    assert store.newest() == 1


def test_staging_folders_of_killed_writers_are_ignored_and_swept(store: Store) -> None:
    store.put(1)
    shutil.copytree(store.path(1), store.folder / ".tmp-step-00000009-0123abcd")
    later = Store(store.folder)
    assert later.newest() == 1
    later.put(2)
    assert store.names() == ["step-00000001", "step-00000002"]


def test_a_writer_that_was_taken_for_dead_leaves_the_files_of_a_later_one(store: Store) -> None:
    store.put(1)
    being_written = store.folder / ".tmp-step-00000009-0123abcd"
    being_written.mkdir()
    store.put(2)
    assert being_written.exists()


# -- damage (tests/chaos/test_damage.py has every kind of it) -----------------------------------


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("\x00" * 50, "cannot be read"),
        ("[]", "cannot be read"),
        ("null", "cannot be read"),
        ("{}", "cannot be read"),
        ('{"format": 1}', "has format 1, but"),
        ('{"format": 3, "sealed": "otherwise"}', "has format 3, but"),
        ('{"format": 2, "step": 2, "files": {}}', "differs from what was written"),
        ('{"format": 2, "step": 2, "files": {}, "sha256": "0"}', "differs from what was written"),
    ],
)
def test_a_manifest_that_means_nothing(store: Store, manifest: str, said: str) -> None:
    store.put(1, 2)
    (store.path(2) / MANIFEST).write_text(manifest)
    assert store.newest() == 1
    assert said in store.warnings[0]


def test_a_manifest_that_somebody_edited_is_not_believed(store: Store) -> None:
    store.put(1, 2)
    file = store.path(2) / MANIFEST
    edited = {**json.loads(file.read_text()), "run": "another"}
    file.write_text(json.dumps(edited, indent=1))
    assert store.newest() == 1
    assert f"{MANIFEST} differs from what was written (sha256)" in store.warnings[0]


def test_a_file_that_is_none_of_ours_is_not_used(store: Store) -> None:
    """Its digest fits, so that only reading it shows what it is."""
    store.put(1)
    tensors = {"networks": torch.ones(3)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "save", lambda content, out: out.write(b"text" * 100))
        store.save(Checkpoint(2, {}, tensors))
    assert store.newest() == 2
    with pytest.raises(DamagedCheckpoint, match=r"networks.pt"):
        store.load(2)


def test_a_copy_under_another_number_is_not_used(store: Store) -> None:
    store.put(1)
    shutil.copytree(store.path(1), store.path(2))
    assert store.newest() == 1
    assert "belongs to step 1" in store.warnings[0]


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


@pytest.mark.parametrize("run", ["mine", "another"])
def test_what_cannot_be_read_for_a_moment_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """Nothing is known of it then, not even whose it is."""
    Store(tmp_path, run=run, keep=2).put(1, 2)
    store = Store(tmp_path, keep=2)
    read = Path.read_text

    def refuse(path: Path, **more: str) -> str:
        if path.parent in (store.path(1), store.path(2)):
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        store.put(3)
    assert store.steps() == [1, 2, 3]
    store.put(4)
    assert store.steps() == ([3, 4] if run == "mine" else [1, 2, 3, 4])


# -- the manifest --------------------------------------------------------------------------------


def test_the_manifest_tells_what_there_is_and_where_it_comes_from(tmp_path: Path) -> None:
    made = engine(tmp_path / "some-run", checkpoint="4steps", ema=0.9)
    made.fit()
    folder = made.store.path(8)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["format"], manifest["run"], manifest["step"]) == (2, "some-run", 8)
    assert (manifest["epoch"], manifest["samples"], manifest["world_size"]) == (1, 64, 1)
    assert manifest["config_sha256"] == config_digest(made.train)
    assert manifest["environment"]["torch"] == torch.__version__
    assert manifest["environment"].keys() >= {"hpc_amp", "python", "cuda", "device", "host"}
    assert manifest["metric"] is None, "nothing was evaluated at this step"
    files = {path.name: path for path in folder.iterdir() if path.name != MANIFEST}
    assert manifest["files"].keys() == files.keys()
    for name, entry in manifest["files"].items():
        content = files[name].read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    last = json.loads((made.store.path(10) / MANIFEST).read_text())
    assert last["metric"] == made.metrics["accuracy"]
    assert made.store.load(10).facts["metric"] == last["metric"]


# -- what may be in it -------------------------------------------------------------------------


class Malicious:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


def test_a_malicious_pickle_with_a_fitting_manifest_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.save(Checkpoint(1, {}, {"networks": {"w": Malicious()}}))
    with pytest.raises(
        DamagedCheckpoint, match=r"networks.pt holds other objects than tensors: \w+\.\w+$"
    ):
        store.load(1)
    assert not (tmp_path / "owned").exists()


def test_a_run_goes_on_from_the_checkpoint_before_a_malicious_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = engine(tmp_path, checkpoint="5steps")
    made.fit()
    (tmp_path / "checkpoints" / "step-00000010").rename(tmp_path / "put away")
    made.store.save(Checkpoint(10, {"step": 10}, {"networks": {"w": Malicious()}}))
    assert engine(tmp_path, attempt=2).step == 5
    assert "networks.pt holds other objects than tensors" in capsys.readouterr().out
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_that_was_passed_over_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digests may fit, and yet it cannot be loaded: the next attempt would fall back again."""
    monkeypatch.chdir(tmp_path)
    made = engine(tmp_path, checkpoint="5steps")
    made.fit()
    shutil.rmtree(made.store.path(10))
    Store(tmp_path / "checkpoints").save(Checkpoint(10, {}, {"networks": {"w": Malicious()}}))
    again = engine(tmp_path, checkpoint="5steps", attempt=2)
    again.fit()
    assert (again.saver.saved_step, engine(tmp_path, attempt=3).step) == (10, 10)


FREE_PICKLES = {"pickle.load", "pickle.loads", "pickle.Unpickler", "torch.jit.load"}


def test_nothing_is_ever_loaded_as_a_free_pickle() -> None:
    texts = [source.read_text() for source in (REPOSITORY / "hpc_amp").rglob("*.py")]
    # Each of these names has one word of both kinds, and to parse all files would take seconds.
    trees = [
        ast.parse(text)
        for text in texts
        if ("torch" in text or "pickle" in text) and ("load" in text or "Unpickler" in text)
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("load", "loads", "Unpickler")
    ]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads, "the search finds what it is for"
    for call in loads:
        assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]
    assert not {ast.unparse(call.func) for call in calls} & FREE_PICKLES
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    from_where = {(node.module, name.name) for node in imported for name in node.names}
    assert not {name for module, name in from_where if module in ("torch", "pickle")} & {
        "load", "loads", "Unpickler",
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


def refusing(
    monkeypatch: pytest.MonkeyPatch, store: Store, code: int, *, until: int
) -> list[list[int]]:
    """Let the disk take nothing as long as there are `until` checkpoints. Returns what was there at
    each attempt."""
    seen: list[list[int]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        writing = any(name.startswith(".tmp-") for name in store.names())
        if writing and len(store.steps()) >= until:
            seen.append(store.steps())
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_lets_those_go_early_that_are_about_to_go(
    store: Store, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(1, 2, 3)
    seen = refusing(monkeypatch, store, code, until=3)
    store.put(4)
    assert seen == [[1, 2, 3]]
    assert store.steps() == [2, 3, 4]
    (warning,) = store.warnings
    assert os.strerror(code) in warning
    assert "older checkpoints were removed early, to make room" in warning


def test_where_that_is_not_enough_the_newest_ones_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(1, 2, 3)
    seen = refusing(monkeypatch, store, errno.ENOSPC, until=1)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            store.put(4)
    assert seen == [[1, 2, 3], [2, 3], [2, 3]], "tried again once, where something had gone"
    assert store.names() == ["step-00000002", "step-00000003"]
    assert store.newest() == 3


def test_no_room_is_made_for_another_reason(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(1, 2, 3)
    refusing(monkeypatch, store, errno.EROFS, until=1)
    with pytest.raises(OSError, match="Read-only"):
        store.put(4)
    assert store.steps() == [1, 2, 3]


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
