"""FID and KID on several ranks, one of which has no images.

Run as a program (`python test_fid_ranks.py FOLDER`), this file is one of the ranks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from support import lite0
from support.rank_trainings import run_on
from support.warm import Warm

from hpc_amp.distributed import setup
from hpc_amp.distributed.world import resolve
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
    found = {}
    for ranks in (1, 3):
        run_on(warm, ranks, __file__, tmp_path)
        results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
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


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world, device = resolve(os.environ), torch.device("cpu")
    setup.join(world, device, 600)
    stream = torch.Generator().manual_seed(0)
    real = torch.rand(12, 3, *SIZE, generator=stream) * 2 - 1
    made = real.lerp(torch.rand(12, 3, *SIZE, generator=stream), 0.3)
    result = {}
    for network in NETWORKS:
        place = f"support.lite0:{network}"
        fid = FeatureDistance(
            network=place, weights=lite0.WEIGHTS, kid_subsets=3, kid_subset_size=6
        )
        distances = SetDistances(("a", "b"), world, device, fid=fid, size=SIZE)
        for name, starts in zip(("a", "b"), SHARES[world.size], strict=True):
            first, last = starts[world.rank], starts[world.rank + 1]
            for own, add in ((real, distances.add_real), (made, distances.add_made)):
                for part in own[first:last].split(7):
                    add(name, part)
        result[network] = distances.distances()
        result["counts"] = distances.protocol()["fid"]["images"]
    (folder / f"{world.rank}.json").write_text(json.dumps(result))
    setup.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
