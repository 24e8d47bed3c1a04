"""The order of samples: a permutation an epoch, the same for every number of ranks."""

import pytest
import torch

from hpc_amp.data.order import epoch_order, generator, rank_share


def test_an_epoch_is_a_permutation_of_its_own() -> None:
    first, second, other = epoch_order(100, 0, 0), epoch_order(100, 0, 1), epoch_order(100, 1, 0)
    assert sorted(first.tolist()) == list(range(100))
    assert torch.equal(first, epoch_order(100, 0, 0))
    assert len({tuple(order.tolist()) for order in (first, second, other)}) == 3


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_shares_of_all_ranks_are_the_global_batches(size: int) -> None:
    order = epoch_order(107, 3, 5)
    shares = [rank_share(order, 8, rank, size) for rank in range(size)]
    assert all(share.shape == (13, 8 // size) for share in shares)  # 3 samples are left out
    assert torch.equal(torch.cat(shares, dim=1).flatten(), order[: 13 * 8])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    epoch_order(1000, 0, 0)
    assert torch.equal(before, torch.get_rng_state())


def test_neighbouring_keys_give_unrelated_streams() -> None:
    keys = [(seed, "x", epoch) for seed in range(3) for epoch in range(3)]
    draws = {torch.rand(1, generator=generator(*key)).item() for key in keys}
    assert len(draws) == 9
