"""Folders of conditional generators on two ranks: one looks at the files, both get the same list,
and both end with the same error.

Run as a program (`python test_gan_data_ranks.py FOLDER RANK PORT`), this file is one of the ranks.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.warm import Warm

from hpc_amp.config.schema import Train
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.gan.data.config import UnpairedData
from hpc_amp.gan.data.training import prepare_unpaired

pytestmark = pytest.mark.ranks


def test_both_ranks_have_the_files_that_rank_0_found(warm: Warm, tmp_path: Path) -> None:
    from support.gandata import write_image
    from support.ports import free_ports

    for folder in ("trainA", "trainB", "testA", "testB"):
        for number in range(8):
            write_image(tmp_path / folder / f"{number}.png", (number * 10, 0, 0))
    (port,) = free_ports(1)

    ranks = [warm.start(__file__, str(tmp_path), str(rank), str(port)) for rank in range(2)]
    for ended in [rank.wait() for rank in ranks]:
        assert ended.returncode == 0, ended.stderr

    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(results[0]["train"] + results[1]["train"]) == [10 * n for n in range(8)]
    assert results[0]["test"] + results[1]["test"] == [10 * n for n in range(8)]
    # What is gathered takes the memory of the largest value on each rank, times the ranks.
    assert max(result["gathered"] for result in results) < 100
    assert results[0]["error"] == results[1]["error"] == f"no images in {tmp_path}/trainB"


def main(folder: Path, rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    data = UnpairedData(name="folder", root=str(folder), image_size=[8], workers=1)

    def reds(images: torch.Tensor) -> list[int]:
        return [round(float(red + 1) * 127.5) for red in images[:, 0, 0, 0]]

    gathered = []
    gather = dist.all_gather_object

    def measured(values: list[Any], value: object) -> None:
        gathered.append(len(pickle.dumps(value)))
        gather(values, value)

    dist.all_gather_object = measured
    prepared = prepare_unpaired(
        data, Train(batch_size=4), World(rank=rank, size=2), torch.device("cpu")
    )
    dist.all_gather_object = gather
    found: dict[str, Any] = {
        "gathered": max(gathered),
        "train": [red for (batch,) in prepared.training.epoch(0) for red in reds(batch.a)],
        "test": [red for batch in prepared.evaluation() for red in reds(batch.a)],
    }
    prepared.training.close()
    dist.barrier()
    if rank == 0:
        for path in (folder / "trainB").iterdir():
            path.unlink()
    try:
        prepare_unpaired(data, Train(batch_size=4), World(rank=rank, size=2), torch.device("cpu"))
    except DataError as error:
        found["error"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an orderly end
