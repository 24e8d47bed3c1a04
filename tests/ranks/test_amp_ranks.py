"""`hpc_amp.amp` on two ranks: scales, master weights and verdicts are the same on both.

Run as a program (`python test_amp_ranks.py FOLDER RANK PORT`), this file is one of the ranks: it
goes through all scenarios and writes down what each came to.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.warm import Warm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp import amp

pytestmark = pytest.mark.ranks

RANKS = 2
Scenario = Callable[[int], Any]
scenarios: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    scenarios[function.__name__] = function
    return function


def net() -> nn.Module:
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)
    return nn.Sequential(*layers)


def start(rank: int, level: str, **options: Any) -> tuple[DistributedDataParallel, Any]:
    """A model whose weights every rank draws for itself: DDP makes them equal."""
    torch.manual_seed(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    return DistributedDataParallel(model, broadcast_buffers=False), optimizer


def loss_of(model: nn.Module, rank: int, step: int, bad: bool = False) -> Tensor:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    return model(x).float().square().mean() * (torch.inf if bad else 1.0)


def train_step(model: nn.Module, optimizer: Any, loss: Tensor, **options: Any) -> None:
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer, **options) as scaled:
        scaled.backward()
    optimizer.step()


def numbers(optimizer: Any) -> list[float]:
    """Every master weight, to the bit."""
    return torch.cat([p.detach().flatten() for p in amp.master_params(optimizer)]).tolist()


def refusal(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


def _overflow_on_one_rank(rank: int, level: str) -> Any:
    model, optimizer = start(rank, level)
    taken = []
    for step in range(4):
        train_step(model, optimizer, loss_of(model, rank, step, bad=step == 1 and rank == 1))
        taken.append(amp.stepped(optimizer))
    weights = [p.float().detach().flatten() for p in model.parameters()]
    return taken, amp.loss_scale(), numbers(optimizer), torch.cat(weights).tolist()


@scenario
def overflow_o1(rank: int) -> Any:
    return _overflow_on_one_rank(rank, "O1")


@scenario
def overflow_o2(rank: int) -> Any:
    return _overflow_on_one_rank(rank, "O2")


@scenario
def scales_differ(rank: int) -> Any:
    model, _ = start(rank, "O1")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0 ** (4 + rank), "unskipped": 0}})
    return refusal(lambda: loss_of(model, rank, 0))


@scenario
def scales_would_grow_at_different_steps(rank: int) -> Any:
    model, _ = start(rank, "O2")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 16.0, "unskipped": 10 * rank}})
    return refusal(lambda: loss_of(model, rank, 0))


@scenario
def scales_differ_later(rank: int) -> Any:
    """A state that one rank alone loads in the middle of a training."""
    model, optimizer = start(rank, "O1")
    train_step(model, optimizer, loss_of(model, rank, 0))
    before = refusal(amp.check_ranks)
    if rank == 1:
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}})
    return before, refusal(amp.check_ranks)


@scenario
def naive_scales_differ(rank: int) -> Any:
    """The control, with torch's own scaler: nobody notices, and the replicas part."""
    torch.manual_seed(0)
    model = DistributedDataParallel(net(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (4 + rank))
    scaler.scale(loss_of(model, rank, 0)).backward()
    scaler.step(optimizer)
    return model.module[0].weight.flatten().tolist()


@scenario
def a_checkpoint_that_rank_0_alone_loads(rank: int) -> Any:
    """DDP sends the half-precision weights; the masters have to follow to the last bit."""
    torch.manual_seed(5)
    saved = {name: t + 1e-5 for name, t in net().state_dict().items() if t.is_floating_point()}
    torch.manual_seed(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    if rank == 0:
        model.load_state_dict(saved, strict=False)
    replica = DistributedDataParallel(model)
    replica.eval()
    if rank == 0:  # an evaluation that the others do not take part in
        with torch.no_grad():
            loss_of(replica.module, rank, 3)
    replica.train()
    loss = loss_of(replica, rank, 0)
    expected = [t.flatten() for name, t in saved.items() if not name.startswith("1.running")]
    exact = numbers(optimizer) == torch.cat(expected).tolist()
    train_step(replica, optimizer, loss)
    return exact, numbers(optimizer)


@scenario
def micro_batches(rank: int) -> Any:
    """Accumulation with `no_sync`: the same as one pass over both halves, on every rank."""
    ends = []
    for parts in (1, 2):
        model, optimizer = start(rank, "O2", loss_scale=64.0)
        losses = (loss_of(model, rank, 0), loss_of(model, rank, 1))
        optimizer.zero_grad()
        if parts == 1:
            with amp.scale_loss(losses[0] + losses[1], optimizer) as scaled:
                scaled.backward()
        else:
            with model.no_sync():
                loss = loss_of(model, rank, 0)
                with amp.scale_loss(loss, optimizer, delay_unscale=True) as scaled:
                    scaled.backward()
            with amp.scale_loss(loss_of(model, rank, 1), optimizer) as scaled:
                scaled.backward()
        optimizer.step()
        ends.append(numbers(optimizer))
        amp.reset()
    return ends


@scenario
def no_sync_without_delay(rank: int) -> Any:
    model, optimizer = start(rank, "O1")
    with model.no_sync():
        loss = loss_of(model, rank, 0)
        return refusal(lambda: amp.scale_loss(loss, optimizer).__enter__())


@scenario
def no_sync_of_another_network(rank: int) -> Any:
    """The discriminator's gradients are not needed in the generator's pass."""
    generator, critic = nn.Linear(4, 4), net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)]
    amp.initialize([generator, critic], optimizers, opt_level="O2", verbosity=0)
    g, d = (DistributedDataParallel(m, broadcast_buffers=False) for m in (generator, critic))
    with d.no_sync():
        loss = loss_of(nn.Sequential(g, d), rank, 0)
        alone = refusal(lambda: amp.scale_loss(loss, optimizers).__enter__())
        with amp.scale_loss(loss, optimizers[0]) as scaled:
            scaled.backward()
    optimizers[0].step()
    return alone, numbers(optimizers[0])


@scenario
def wrapped_between_ddp_and_the_model(rank: int) -> Any:
    ends = []
    for wrap in (nn.Sequential, lambda model: torch.compile(model, backend="eager")):
        torch.manual_seed(rank)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
        replica = DistributedDataParallel(wrap(model), broadcast_buffers=False)
        train_step(replica, optimizer, loss_of(replica, rank, 0))
        with replica.no_sync():
            loss = loss_of(replica, rank, 1)
            block = amp.scale_loss(loss, optimizer)
            alone = refusal(block.__enter__)
        ends.append((numbers(optimizer), alone is not None))
        amp.reset()
    return ends


@scenario
def gan(rank: int) -> Any:
    """Two networks in DDP, two optimizers, three losses; two passes through one network before
    its update, one of them with an overflow on one rank."""
    torch.manual_seed(rank)
    generator, critic = nn.Linear(4, 4), net()
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.SGD(generator.parameters(), lr=0.1)
    amp.initialize(
        [generator, critic], [second, first], opt_level="O2", num_losses=3, verbosity=0,
        max_loss_scale=1024.0,
    )  # fmt: skip
    g, d = (DistributedDataParallel(m, broadcast_buffers=False) for m in (generator, critic))
    taken = []
    for step in range(3):
        real = torch.randn(4, 4, generator=torch.Generator().manual_seed(step * 2 + rank))
        bad = torch.inf if (rank, step) == (1, 1) else 1.0
        first.zero_grad()
        with amp.scale_loss(d(real).square().mean() * bad, first, loss_id=0) as scaled:
            scaled.backward()
        with amp.scale_loss(d(g(real).detach()).mean(), first, loss_id=1) as scaled:
            scaled.backward()
        first.step()
        second.zero_grad()
        critic.requires_grad_(False)
        with amp.scale_loss(-d(g(real)).mean(), second, loss_id=2) as scaled:
            scaled.backward()
        critic.requires_grad_(True)
        second.step()
        taken.append([amp.stepped(first), amp.stepped(second)])
    scales = [amp.loss_scale(i) for i in range(3)]
    return taken, scales, numbers(first), numbers(second)


def bucket_views(rank: int, views: bool) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, num_losses=2, verbosity=0)
    amp.load_state_dict(
        {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": 0} for i in range(2)}
    )
    replica = DistributedDataParallel(model, gradient_as_bucket_view=views)
    for step in range(2):
        optimizer.zero_grad()
        for loss_id in range(2):
            loss = loss_of(replica, rank, step + 10 * loss_id)
            with amp.scale_loss(loss, optimizer, loss_id) as scaled:
                scaled.backward()
        optimizer.step()
    return numbers(optimizer)


@scenario
def two_losses_with_bucket_views(rank: int) -> Any:
    ends = []
    for views in (False, True):
        ends.append(bucket_views(rank, views))
        amp.reset()
    return ends


# -- what the ranks came to -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By scenario: what each rank wrote down."""
    from support.ports import free_ports

    folder = tmp_path_factory.mktemp("ranks")
    (port,) = free_ports(1)
    ranks = [warm.start(__file__, folder, str(rank), str(port)) for rank in range(RANKS)]
    ended = [rank.wait() for rank in ranks]
    if any(end.returncode for end in ended):
        pytest.fail("\n".join(end.stdout + end.stderr for end in ended))
    noted = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [of[name] for of in noted] for name in noted[0]}


@pytest.mark.parametrize("name", ["overflow_o1", "overflow_o2"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    results: dict[str, list[Any]], name: str
) -> None:
    (taken, scale, masters, weights), other = results[name]
    assert (taken, scale) == ([True, False, True, True], 32768)
    assert other == [taken, scale, masters, weights]
    assert len(set(masters)) > 10


@pytest.mark.parametrize("rank", range(RANKS))
def test_different_scales_stop_every_rank(results: dict[str, list[Any]], rank: int) -> None:
    said = results["scales_differ"][rank]
    assert "rank 0 has 16 (0 clean steps), rank 1 has 32 (0 clean steps)" in said
    assert "Load the same amp state on every rank" in said
    said = results["scales_would_grow_at_different_steps"][rank]
    assert "rank 0 has 16 (0 clean steps), rank 1 has 16 (10 clean steps)" in said


def test_without_the_check_replicas_part_in_silence(results: dict[str, list[Any]]) -> None:
    one, other = results["naive_scales_differ"]
    assert one != other


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_check_can_be_asked_for(results: dict[str, list[Any]], rank: int) -> None:
    before, after = results["scales_differ_later"][rank]
    assert before is None
    assert "the loss scales of the ranks differ" in after


def test_masters_are_those_of_rank_0_where_only_that_loaded_a_checkpoint(
    results: dict[str, list[Any]],
) -> None:
    for exact, masters in results["a_checkpoint_that_rank_0_alone_loads"]:
        assert exact
        assert masters == results["a_checkpoint_that_rank_0_alone_loads"][0][1]


def test_micro_batches_without_an_exchange_add_up(results: dict[str, list[Any]]) -> None:
    (whole, parts), other = results["micro_batches"]
    assert other == [whole, parts]
    assert parts == pytest.approx(whole, abs=2e-3)


@pytest.mark.parametrize("rank", range(RANKS))
def test_no_sync_without_delay_unscale_is_refused(results: dict[str, list[Any]], rank: int) -> None:
    assert "Pass delay_unscale=True there" in results["no_sync_without_delay"][rank]


def test_no_sync_of_another_network_is_none_of_this_optimizer_s(
    results: dict[str, list[Any]],
) -> None:
    (alone, masters), other = results["no_sync_of_another_network"]
    assert "Pass delay_unscale=True there" in alone
    assert other[1] == masters


def test_masters_are_equal_whatever_stands_between_ddp_and_the_model(
    results: dict[str, list[Any]],
) -> None:
    one, other = results["wrapped_between_ddp_and_the_model"]
    assert one == other
    assert [is_refused for _, is_refused in one] == [True, True]


def test_a_gan_stays_the_same_on_all_ranks(results: dict[str, list[Any]]) -> None:
    one, other = results["gan"]
    assert one == other
    assert one[0] == [[True, True], [False, True], [True, True]]
    assert one[1] == [512, 1024, 1024]


def test_gradients_that_are_views_of_buckets(results: dict[str, list[Any]]) -> None:
    for plain, views in results["two_losses_with_bucket_views"]:
        assert plain == views


def main(folder: Path, rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    noted = {}
    for name, function in scenarios.items():
        noted[name] = function(rank)
        amp.reset()
        dist.barrier()
    (folder / f"rank-{rank}.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an orderly end
