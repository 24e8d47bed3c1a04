"""FID and KID on several ranks, one of which has no images.

Run as a program (`python test_fid_ranks.py FOLDER PORT`), this file measures on each number of
ranks. They are its forks, since each would import torchmetrics for seconds.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from support import lite0
from support.ports import free_ports
from support.warm import Warm

from hpc_amp.distributed import setup
from hpc_amp.distributed.world import resolve
from hpc_amp.gan import fid
from hpc_amp.gan.config import FeatureDistance
from hpc_amp.gan.distance import SetDistances

pytestmark = pytest.mark.ranks

SIZE = (32, 32)
NETWORKS = ("lite0", "lite0_double")
SHARES = {1: ([0, 12], [0, 12]), 3: ([0, 8, 12, 12], [0, 0, 12, 12])}
"""By the number of ranks, where the share of each rank begins: of the set `a`, and of `b`, all of
which one rank has."""


def test_three_ranks_measure_as_one(warm: Warm, tmp_path: Path) -> None:
    """A network in float64 has equal results but for the last digits. In fp32, the features of an
    image depend a little on the images beside it."""
    ended = warm.run(__file__, tmp_path, str(free_ports(1)[0]))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {}
    for ranks in SHARES:
        files = sorted(tmp_path.glob(f"{ranks}-*.json"))
        assert len(files) == ranks
        results = [json.loads(file.read_text()) for file in files]
        assert all(result == results[0] for result in results)
        found[ranks] = results[0]
    for network, error in (("lite0_double", 1e-10), ("lite0", 1e-4)):
        expected, seen = found[1][network], found[3][network]
        assert {f"fid_{network}", f"fid_{network}_a", f"kid_{network}_b"} <= set(expected)
        for metric, value in expected.items():
            digits = 1e-7 if metric.startswith("frechet_random") else error
            assert seen[metric] == pytest.approx(value, rel=digits, abs=error * 1e-3), metric
        assert set(seen) == set(expected)
    assert found[1]["counts"] == found[3]["counts"]


def main(folder: Path, port: str) -> None:
    """Fork the ranks, each number after the other."""
    fid.torchmetrics("the test")
    for ranks in SHARES:
        pids = []
        for rank in range(ranks):
            pids.append(os.fork())
            if pids[-1] == 0:
                world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "RANK": rank}
                world |= {"LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in world.items()})
                measure(folder)
                return
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        assert not any(statuses)


def measure(folder: Path) -> None:
    """What this rank finds."""
    torch.set_num_threads(1)
    world, device = resolve(os.environ), torch.device("cpu")
    setup.join(world, device, 600)
    stream = torch.Generator().manual_seed(0)
    real = torch.rand(12, 3, *SIZE, generator=stream) * 2 - 1
    made = real.lerp(torch.rand(12, 3, *SIZE, generator=stream), 0.3)
    result = {}
    for network in NETWORKS:
        place = f"support.lite0:{network}"
        config = FeatureDistance(
            network=place, weights=lite0.WEIGHTS, kid_subsets=3, kid_subset_size=6
        )
        distances = SetDistances(("a", "b"), world, device, fid=config, size=SIZE)
        for name, starts in zip(("a", "b"), SHARES[world.size], strict=True):
            first, last = starts[world.rank], starts[world.rank + 1]
            for own, add in ((real, distances.add_real), (made, distances.add_made)):
                for part in own[first:last].split(7):
                    add(name, part)
        result[network] = distances.distances()
        result["counts"] = distances.protocol()["fid"]["images"]
    (folder / f"{world.size}-{world.rank}.json").write_text(json.dumps(result))
    setup.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
