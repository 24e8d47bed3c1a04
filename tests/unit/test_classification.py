"""The classification task: its contract with the engine, and that it learns."""

import pytest
import torch

from hpc_amp.config import schema
from hpc_amp.distributed.world import World
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.classification.config import ClassificationConfig

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


def task(world: World | None = None, **train: object):
    settings = {
        "model": {"name": "resnet8", "width": 8},
        "data": {"name": "synthetic", "synthetic": {"train": 512, "test": 101, "image_size": 16}},
        "batch_size": 64,
    }
    config = schema.from_plain(ClassificationConfig, {**settings, **train})
    return build_task(config, world or World(), CPU)


def test_data_is_named_in_reports() -> None:
    made = task()
    data = made.prepare_data()
    assert (made.name, made.data_name, made.synthetic) == ("classification", "SYNTHETIC", True)
    assert (data.samples, data.steps_per_epoch) == (512, 8)


def test_one_phase_updates_the_network() -> None:
    made = task()
    made.prepare_data()
    (phase,) = made.phases()
    assert phase.networks == tuple(made.build_networks())
    assert phase.optimizer is made.train.optimizer


@pytest.mark.parametrize("size", [1, 3])
def test_evaluation_is_exact_over_uneven_shares(size: int) -> None:
    torch.manual_seed(0)
    total: dict[str, float] = {}
    network = None
    for rank in range(size):
        made = task(World(rank=rank, size=size), eval_batch_size=16, batch_size=63)
        made.prepare_data()
        network = network or made.build_networks()["model"].eval()
        with torch.no_grad():
            for batch in made.evaluation_batches():
                sums = made.evaluate(batch, {"model": network})
                assert sums["correct"].dtype is sums["count"].dtype is torch.int64
                assert sums["loss"].dtype is torch.float64
                for key, value in sums.items():
                    total[key] = total.get(key, 0) + value.item()
    assert total["count"] == 101
    metrics = made.summarize(total)
    with torch.no_grad():
        whole = task(eval_batch_size=101)
        whole.prepare_data()
        ((images, labels),) = whole.evaluation_batches()
        logits = network(images)
    assert total["correct"] == (logits.argmax(1) == labels).sum()
    assert metrics["accuracy"] == total["correct"] / 101
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_is_for_training_alone() -> None:
    plain, smooth = task(), task(label_smoothing=0.2)
    seen = []
    for made in (plain, smooth):
        torch.manual_seed(0)
        data = made.prepare_data()
        networks = made.build_networks()
        (batch,) = next(data.epoch(0))
        (losses,) = made.losses("train", batch, networks)
        sums = made.evaluate(batch, networks)
        seen.append((losses["loss"].item(), sums["loss"].item()))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]


def test_it_learns() -> None:
    torch.manual_seed(0)
    made = task()
    data = made.prepare_data()
    networks = made.build_networks()
    optimizer = torch.optim.SGD(networks["model"].parameters(), lr=0.1, momentum=0.9)
    seen: list[float] = []
    for epoch in range(6):
        for (batch,) in data.epoch(epoch):
            (losses,) = made.losses("train", batch, networks)
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            seen.append(losses["loss"].item())
    assert sum(seen[-8:]) < 0.75 * sum(seen[:8])


def test_more_in_a_batch_than_images_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="batch_size: 1024 is more than the 512"):
        task(batch_size=1024).prepare_data()
