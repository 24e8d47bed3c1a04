"""SPADE and pix2pixHD: networks, losses, phases, metrics, resume, number formats."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gan_checks import check_number_formats, check_phases, check_resume, digests
from support.paired import LOSSES, METRICS, MODELS, paired
from support.training import fit_until

from hpc_amp.errors import KeyProblem
from hpc_amp.gan.comparison import image_sums
from hpc_amp.gan.data.batches import condition
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.pix2pixhd.clusters import cluster
from hpc_amp.tasks.pix2pixhd.networks import instance_means
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.state import weights_digest

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


@pytest.mark.parametrize("name", MODELS)
def test_each_phase_moves_all_of_its_networks_and_nothing_else(name: str, tmp_path: Path) -> None:
    """DDP waits for each parameter."""
    made = paired(tmp_path, name)
    check_phases(made, buffers=False)
    names = [loss for update in made.updates for loss in update.losses]
    assert set(names) == set(LOSSES[name])


def test_a_loss_without_weight_is_not_computed(tmp_path: Path) -> None:
    made = paired(
        tmp_path,
        "spade",
        spade={**MODELS["spade"]["spade"], "losses": {"features": 0.0, "perceptual": 0.0}},
    )
    assert list(made.updates[1].losses) == ["gan", "kl"]
    assert made.updates[1].run(next(made.data.epoch(0)), lambda: None)


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_convolutions_are_half_and_losses_and_statistics_fp32(
    name: str, mode: str, tmp_path: Path
) -> None:
    made = paired(tmp_path, name, precision=mode, adversarial={"r1": 0.0})
    check_number_formats(made, mode)
    assert set(METRICS) <= set(made.metrics)


def test_pix2pixhd_goes_from_coarse_to_fine(tmp_path: Path) -> None:
    made = paired(tmp_path, "pix2pixhd", epochs=3)
    phases = [[p.phase.name for p in made.updates if p.phase.runs_in(epoch)] for epoch in range(3)]
    assert phases == [
        ["coarse_discriminator", "coarse"],
        ["discriminator", "fine"],
        ["discriminator", "generator"],
    ]
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    for network in made.networks.values():
        network.eval()
    with torch.no_grad():
        shown = condition(batch, task.train.images)
        coarse = task.render(batch, made.networks)
        assert coarse.shape == batch.images.shape
        assert torch.equal(coarse[:, :, ::2, ::2], coarse[:, :, 1::2, 1::2]), "enlarged"
        assert task.make(batch, shown, made.networks, "coarse").images.shape[2:] == (8, 8)
    fit_until(made, 4)
    for network in made.networks.values():
        network.eval()
    with torch.no_grad():
        fine = task.render(batch, made.networks)
    assert not torch.equal(fine[:, :, ::2, ::2], fine[:, :, 1::2, 1::2])


def test_features_of_an_instance_are_means_over_its_pixels() -> None:
    features = torch.arange(16.0).reshape(1, 2, 2, 4).repeat(2, 1, 1, 1)
    instances = torch.tensor([[[7, 7, 26001, 26001], [7, 26001, 26001, 26001]]]).repeat(2, 1, 1)
    instances[1] = 3
    found = instance_means(features, instances)
    seven = instances[0] == 7
    assert found[0, 0, seven].tolist() == [features[0, 0, seven].mean()] * 3
    assert found[0, 1, ~seven].unique().tolist() == [features[0, 1, ~seven].mean()]
    assert found[1, 0].unique().tolist() == [3.5]


def test_clusters_of_known_groups_are_found() -> None:
    """Also where there are fewer different values than clusters."""
    wanted = torch.tensor([[-0.8, -0.8], [0.0, 0.9], [0.7, -0.1], [0.7, 0.1]], dtype=torch.float64)
    noise = torch.randn(200, 2, dtype=torch.float64)
    noise = 0.05 * (noise - noise.unflatten(0, (50, 4)).mean(0).repeat(50, 1)) / 10
    values = wanted.repeat(50, 1) + noise
    found = cluster(values, 4, "test")
    order = found[:, 0].add(found[:, 1], alpha=0.01).argsort()
    torch.testing.assert_close(found[order], wanted)
    assert torch.equal(cluster(values, 4, "test"), found)
    assert torch.equal(cluster(wanted[[1, 0, 1, 0]], 4, "test"), wanted[:2])
    assert cluster(wanted[:0], 4, "test").shape == (0, 2)


@pytest.mark.parametrize("precision", ["fp32", "O2"])
def test_an_evaluation_clusters_the_features_of_training_images(
    precision: str, tmp_path: Path
) -> None:
    """Of the networks that are evaluated; an object without an image gets one of its label's."""
    sides = {"r1": 0.0}
    made = paired(tmp_path, "pix2pixhd", precision=precision, adversarial=sides, ema=0.9, epochs=1)
    made.fit()
    assert made.average is not None
    encoder: Any = made.average.networks["encoder"].eval()
    pairs = list(made.data.unchanged(1000))  # type: ignore[attr-defined]
    assert sum(len(batch) for batch in pairs) == 24
    assert sum(len(batch) for batch in made.data.unchanged(10)) == 8  # type: ignore[attr-defined]
    seen = torch.cat([batch.labels.flatten() for batch in pairs]).unique()
    assert encoder.found.nonzero().flatten().tolist() == seen.tolist()
    assert 1 < encoder.found.max() <= 10
    looks = []
    for batch in pairs:
        with torch.no_grad():
            features = encoder(batch.images, batch.instances)
        looks.append(features.permute(0, 2, 3, 1)[batch.labels == 1])
    distances = torch.cdist(torch.cat(looks), encoder.centres[1, : encoder.found[1]])
    assert distances.min(1).values.mean() < 0.5 * torch.cat(looks).std(0).norm()
    live: Any = made.networks["encoder"]
    torch.testing.assert_close(live.centres.float(), encoder.centres, atol=1e-3, rtol=1e-3)
    batch = pairs[0]
    drawn = encoder.drawn(batch.instances, batch.labels, batch.seeds)
    for image, label in enumerate(batch.labels[:, 8, 8].tolist()):
        assert drawn[image, :, 8, 8].tolist() in encoder.centres[label].tolist()
    torch.testing.assert_close(instance_means(drawn, batch.instances), drawn)
    alone = encoder.drawn(batch.instances[3:4], batch.labels[3:4], batch.seeds[3:4])
    assert torch.equal(alone, drawn[3:4])
    assert not torch.equal(encoder.drawn(batch.instances, batch.labels, batch.seeds + 1), drawn)
    encoder.found[1] = 0
    drawn = encoder.drawn(batch.instances, batch.labels, batch.seeds)
    assert not drawn.permute(0, 2, 3, 1)[batch.labels == 1].any()


def test_maps_and_formats_that_a_model_cannot_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyProblem, match="instance_features: it needs label maps with instance"):
        paired(tmp_path, "pix2pixhd", images={"instances": False})
    with pytest.raises(KeyProblem, match="instance_features: it needs evaluations"):
        paired(tmp_path, "pix2pixhd", evaluate_every=0)
    with pytest.raises(ModelError, match="r1 is computed in fp32"):
        paired(tmp_path, "spade", precision="O3")


def test_the_discriminator_is_updated_several_times_for_each_update_of_the_generator(
    tmp_path: Path,
) -> None:
    """Also where a run was stopped in between; a report tells the step of a loss that is lost."""
    options: dict[str, Any] = {
        "adversarial": {"discriminator_steps": 2},
        "batch_size": 2,
        "images": {"synthetic": {"train": 6, "test": 4}},  # three steps an epoch
        "epochs": 2,
    }
    whole = paired(tmp_path / "whole", "spade", **options)
    moved = []
    for micro_batches in itertools.islice(whole.data.epoch(0), 3):
        before = digests(whole, buffers=False)
        whole.train_step(micro_batches)
        after = digests(whole, buffers=False)
        moved.append({name for name in before if before[name] != after[name]})
    assert moved == [{"discriminator"}, {"discriminator", "generator"}, {"discriminator"}]
    again = paired(tmp_path / "again", "spade", **options)
    again.fit()
    fit_until(paired(tmp_path / "parts", "spade", **options), 3)
    last = paired(tmp_path / "parts", "spade", **options, attempt=2)
    last.fit()
    assert weights_digest(last.networks) == weights_digest(again.networks)
    lost = paired(tmp_path / "lost", "spade", **options, log_every=6)
    usual = lost.task.losses

    def losses(phase: str, batch: Any, networks: Any) -> Iterator[Any]:
        for values in usual(phase, batch, networks):
            if phase == "generator" and lost.step == 3:  # the fourth step
                values = {**values, "gan": values["gan"] * torch.nan}
            yield values

    lost.task.losses = losses  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="the loss `gan` is nan since step 4:"):
        lost.fit()


# -- resume ---------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "ema": 0.9,
    "log_every": 2,
    "batch_size": 2,
    "images": {"synthetic": {"train": 4, "test": 4}},  # two steps an epoch
}
EPOCHS = {"spade": 2, "pix2pixhd": 3}
SCALES = {"spade": 2.0**13, "pix2pixhd": 2.0**13}
"""Of which some overflow, and some do not."""


@pytest.mark.parametrize("name", MODELS)
def test_a_resume_is_bit_exact(name: str, tmp_path: Path) -> None:
    """In the middle of an epoch and of a logging interval, under fp16 with overflows; of pix2pixHD,
    in epochs with different phases."""
    curves = [*(f"train/{loss}" for loss in LOSSES[name]), *(f"eval/{m}" for m in METRICS)]

    def make(folder: Path, attempt: int) -> Engine:
        precision = {"mode": "fp16", "init_scale": SCALES[name], "growth_interval": 2}
        own: dict[str, Any] = {"epochs": EPOCHS[name], "precision": precision}
        return paired(folder, name, attempt=attempt, **own, **EVERYTHING)

    check_resume(make, tmp_path, (1, 3), curves)


# -- metrics --------------------------------------------------------------------------------------


def test_metrics_of_true_images_are_the_best_possible(tmp_path: Path) -> None:
    made = paired(tmp_path, "spade")
    task: Any = made.task
    sums: dict[str, float] = {}
    task.render = lambda batch, networks: batch.images
    for batch in task.evaluation_batches():
        for name, value in task.evaluate(batch, made.networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    metrics = task.summarize(sums)
    assert metrics["l1"] == 0 and metrics["psnr"] == pytest.approx(100)
    assert metrics["ssim"] == pytest.approx(1) and metrics["frechet_random"] < 1e-9
    assert metrics["label_agreement"] > 0.95


def test_image_metrics_by_hand() -> None:
    black, grey = -torch.ones(1, 3, 16, 16), torch.zeros(1, 3, 16, 16)
    found = image_sums(black, grey)
    assert float(found["l1"]) == 1.0
    assert float(found["psnr"]) == pytest.approx(6.0206, abs=1e-4)  # an error of 0.5 of 1
    noisy = grey + 0.1 * torch.randn(1, 3, 16, 16)
    assert 0 < float(image_sums(noisy, grey)["ssim"]) < 1


def test_a_picture_shows_map_outputs_and_truth(tmp_path: Path) -> None:
    made = paired(tmp_path, "spade", evaluation={"pictures": 2}, ema=0.9)
    assert made.average is not None
    made.evaluate()
    with torch.no_grad():
        pictures = made.task.pictures(made.average.networks)
    assert pictures is not None and pictures.shape == (2, 3, 16, 4 * 16)
    batch = next(iter(made.task.evaluation_batches()))
    columns = pictures.unflatten(3, (4, 16))
    torch.testing.assert_close(columns[:, :, :, 3], batch.images[:2] / 2 + 0.5, atol=1e-6, rtol=0)
    assert all(network.training for network in made.networks.values())
