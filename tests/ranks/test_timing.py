"""Steps measured on several ranks: the exchange of gradients is timed and stays what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_ports
from support.warm import Warm

from hpc_amp.campaigns.timing import read_allreduce, read_rank

pytestmark = pytest.mark.ranks

RANKS = 3

PROGRAM = """
import json, sys
from hpc_amp.config.schema import from_plain
from hpc_amp.tasks.classification.config import ClassificationConfig
from hpc_amp.train import fit, run_program

def main():
    for name, train in json.loads(sys.argv[1]).items():
        fit(from_plain(ClassificationConfig, train), name)
    return 0

run_program(main)
"""
TRAIN: dict[str, Any] = {
    "model": {"name": "resnet8", "width": 8},
    "data": {"name": "synthetic", "synthetic": {"train": 192, "test": 12, "image_size": 16}},
    "epochs": 1,
    "batch_size": 24,
    "device": "cpu",
}
TIMED = {**TRAIN, "timing": {"warmup": 2, "steps": 5}}
RUNS = {
    "plain": TRAIN,
    "timed": TIMED,
    "plain in parts": {**TRAIN, "accumulate": 2},
    "timed in parts": {**TIMED, "accumulate": 2},
}


@pytest.fixture(scope="module")
def runs(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which three ranks have trained them all, one after the other."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "program.py").write_text(PROGRAM)
    (port,) = free_ports(1)
    world = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_PORT": str(port)}
    world["MASTER_ADDR"] = "127.0.0.1"
    ranks = [
        warm.start(
            *("program.py", json.dumps(RUNS)),
            cwd=folder,
            environ={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]
    ended = [rank.wait() for rank in ranks]
    assert [rank.returncode for rank in ended] == [0] * RANKS, ended
    return folder


def digest(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["weights_sha256"])


@pytest.mark.parametrize("how", ["", " in parts"])
def test_measuring_does_not_change_a_bit(runs: Path, how: str) -> None:
    """With three ranks the order and the scale of every sum show in the last bit."""
    assert digest(runs / f"timed{how}") == digest(runs / f"plain{how}")
    assert digest(runs / "timed") != digest(runs / "timed in parts"), "it would show"


@pytest.mark.parametrize("how", ["", " in parts"])
def test_every_rank_tells_what_it_waited_for(runs: Path, how: str) -> None:
    timing = runs / f"timed{how}" / "attempts" / "1" / "timing"
    ranks = [read_rank(timing / f"rank-{rank:05d}.json") for rank in range(RANKS)]
    assert [rank.rank for rank in ranks] == [0, 1, 2]
    for rank in ranks:
        assert rank.world_size == RANKS
        assert rank.communication is not None
        pairs = list(zip(rank.communication, rank.steps, strict=True))
        assert len(pairs) == 5
        assert all(part is not None and 0 < part < step for part, step in pairs)


def test_the_exchange_is_measured_alone_too(runs: Path) -> None:
    alone = read_allreduce(runs / "timed" / "attempts" / "1" / "timing" / "allreduce.json")
    rank = read_rank(runs / "timed" / "attempts" / "1" / "timing" / "rank-00000.json")
    assert (alone.bytes, alone.world_size, alone.nodes) == (rank.gradient_bytes, RANKS, 1)
    assert 1 <= len(alone.seconds) <= 20
