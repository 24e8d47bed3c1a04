"""Damage to any file of a checkpoint is found and named, and the checkpoint before is used."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.ranks import Run, Zygote
from hpc_amp.train.checkpoint import CheckpointStore, DamagedCheckpoint, Retention

pytestmark = pytest.mark.ranks

FILES = ("networks.pt", "average.pt", "optimizers.pt", "random.pt", "losses.pt")
FILES += ("trainer.json", "MANIFEST.json")


@pytest.fixture(scope="module")
def made(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with everything that a checkpoint may hold, and checkpoints of the steps 5 and 10."""
    run = Run(
        zygote,
        tmp_path_factory.mktemp("made") / "run",
        {"precision": "fp16", "ema": 0.9, "checkpoint": "1epochs"},
    )
    assert run.start().wait() == [0]
    assert run.checkpoints() == [5, 10]
    assert {path.name for path in (run.path / "checkpoints/step-00000010").iterdir()} == set(FILES)
    return run


class Copy:
    """A copy of the checkpoints, to be damaged."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.folder = folder / "checkpoints"
        shutil.copytree(run.path / "checkpoints", self.folder)
        self.newest = self.folder / "step-00000010"

    def check(self, name: str) -> None:
        """The damage to this file of the newest checkpoint is found, named, and avoided."""
        warnings: list[str] = []
        store = CheckpointStore(self.folder, run="run", retention=Retention(), warn=warnings.append)
        assert store.newest() == 5
        (warning,) = warnings
        assert f"{self.newest} is not used" in warning
        assert name in warning
        with pytest.raises(DamagedCheckpoint, match=name):
            store.load(10)
        assert store.load(5).trainer["step"] == 5


@pytest.fixture
def copy(made: Run, tmp_path: Path) -> Copy:
    return Copy(made, tmp_path)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def hole(path: Path) -> None:
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + bytes(third) + content[2 * third :])


def lose_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lose_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_all(path: Path) -> None:
    path.write_bytes(b"")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (hole, lose_the_end, lose_half, lose_all, grow, Path.unlink, become_a_folder)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damage_of_every_kind_to_every_file(
    copy: Copy, name: str, damage: Callable[[Path], None]
) -> None:
    damage(copy.newest / name)
    copy.check(name)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(30, id="30-a-file"),
        pytest.param(3000, id="3000-a-file", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_every_file(copy: Copy, name: str, part: int) -> None:
    path = copy.newest / name
    bits = 8 * path.stat().st_size
    for bit in chosen(bits, part):
        flip(path, bit)
        copy.check(name)
        flip(path, bit)


def chosen(bits: int, count: int) -> Iterator[int]:
    """The first, the last, and others at random."""
    yield from {0, bits - 1, *random.Random(bits).sample(range(bits), min(count, bits) - 2)}


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["trainer.json", "MANIFEST.json"])
def test_every_single_bit_of_the_text_files(copy: Copy, name: str) -> None:
    path = copy.newest / name
    shutil.rmtree(copy.folder / "step-00000005")
    for bit in range(8 * path.stat().st_size):
        flip(path, bit)
        warnings: list[str] = []
        store = CheckpointStore(copy.folder, run="run", retention=Retention(), warn=warnings.append)
        assert store.newest() is None
        assert name in warnings[0]
        flip(path, bit)


def test_a_newer_schema_is_named(copy: Copy) -> None:
    path = copy.newest / "MANIFEST.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    copy.check("MANIFEST.json has format 3, but this version reads 2")


def test_a_run_goes_on_from_the_one_before(made: Run, tmp_path: Path) -> None:
    """What the user sees: the damage in the log, and the same end."""
    run = Run(made.zygote, tmp_path / "run", made.train)
    shutil.copytree(made.path / "checkpoints", run.path / "checkpoints")
    flip(run.path / "checkpoints/step-00000010/optimizers.pt", 4000)
    attempt = run.start(attempt=2)
    assert attempt.wait() == [0]
    said = attempt.said()
    assert "WARNING: checkpoint" in said
    assert "step-00000010 is not used: optimizers.pt differs from what was written" in said
    assert "at step 5" in said
    assert run.summary["weights_sha256"] == made.summary["weights_sha256"]
