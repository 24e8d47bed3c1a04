"""UNIT and MUNIT: networks, losses, metrics, resume, number formats."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gan_checks import check_number_formats, check_phases, check_resume
from support.gandata import write_coordinates, write_image
from support.unpaired import LOSSES, METRICS, NAMES, unpaired
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.data.batches import UnpairedBatch
from hpc_amp.gan.data.config import UnpairedData
from hpc_amp.gan.features import PerceptualLoss, RandomFeatures
from hpc_amp.gan.generation import Request
from hpc_amp.gan.translation import DomainDiscriminators, Translator
from hpc_amp.gan.unpaired import sides
from hpc_amp.gan.unpaired_config import Translation
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.munit.config import MunitNetworks
from hpc_amp.tasks.munit.networks import MunitGenerator
from hpc_amp.tasks.unit.config import UnitNetworks
from hpc_amp.tasks.unit.networks import UnitGenerator
from hpc_amp.tasks.unit.task import divergence
from hpc_amp.train.engine import Engine

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


def unit_generator(**networks: Any) -> UnitGenerator:
    return UnitGenerator(UnitNetworks(width=8, downs=1, **{"blocks": 2, **networks}))


def munit_generator(**networks: Any) -> MunitGenerator:
    return MunitGenerator(
        MunitNetworks(width=8, downs=1, blocks=1, style_downs=2, hidden=8, **networks)
    )


def generators() -> list[Translator]:
    return [unit_generator(), munit_generator()]


# -- networks -------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_translation_is_what_the_training_sees() -> None:
    """By an encoder of one domain and the decoder of the other one."""
    a, b = torch.randn(2, 2, 3, 16, 12)
    unit = unit_generator()
    still = {name: torch.zeros(2, 16, 8, 6) for name in ("a", "b", "ab", "ba")}
    made = unit("all", a, b, still)
    torch.testing.assert_close(unit.translate(a, "a2b"), made["a_in_b"])
    torch.testing.assert_close(unit.translate(b, "b2a"), made["b_in_a"])
    torch.testing.assert_close(unit.translate(made["a_in_b"], "b2a"), made["a_back"])
    swapped = unit.swap(a, b, still)
    torch.testing.assert_close(swapped["a_in_b"], made["a_in_b"])

    munit = munit_generator(style=2)
    code_a, code_b = torch.randn(2, 2, 2)
    made = munit("all", a, b, code_a, code_b, True)
    torch.testing.assert_close(munit.translate(a, "a2b", code_b), made["a_in_b"])
    torch.testing.assert_close(munit.translate(b, "b2a", code_a), made["b_in_a"])
    torch.testing.assert_close(munit.translate(made["b_in_a"], "a2b", b), made["b_back"])
    swapped = munit.swap(a, b, code_a, code_b)
    torch.testing.assert_close(swapped["b_in_a"], made["b_in_a"])
    for images in (*made.values(), unit.translate(a, "a2b")):
        if images.shape == a.shape:
            assert images.abs().max() <= 1


@torch.no_grad()
def test_a_style_is_a_mean_an_image_or_a_seed() -> None:
    munit = munit_generator(style=3)
    images, example = torch.randn(3, 3, 16, 16), torch.randn(1, 3, 16, 16)
    mean = munit.translate(images, "a2b")
    torch.testing.assert_close(munit.translate(images, "a2b", torch.zeros(1, 3)), mean)
    by_example = munit.translate(images, "a2b", example)
    torch.testing.assert_close(
        munit.translate(images, "a2b", example.expand(3, -1, -1, -1)), by_example
    )
    seeds = torch.tensor([5, 7, 5])
    random = munit.translate(images, "a2b", seeds)
    torch.testing.assert_close(munit.translate(images[1:2], "a2b", seeds[1:2]), random[1:2])
    for one, other in ((mean, by_example), (mean, random), (by_example, random)):
        assert (one - other).abs().mean() > 1e-3
    codes = torch.randn(3, 4, 3)
    several = munit.translate_each(images, "b2a", codes)
    torch.testing.assert_close(several[:, 2], munit.translate(images, "b2a", codes[:, 2]))
    with pytest.raises(ModelError, match="UNIT has no styles"):
        unit_generator().translate(images, "a2b", seeds)


def test_the_shared_blocks_of_unit_serve_both_domains() -> None:
    counts = [
        sum(p.numel() for p in unit_generator(shared=shared).parameters()) for shared in (0, 1, 2)
    ]
    block = 2 * 16 * 16 * 9
    assert [a - b for a, b in itertools.pairwise(counts)] == [2 * block, 2 * block]
    with pytest.raises(ModelError, match="shared: 3 is more than blocks, 2"):
        unit_generator(shared=3)


def test_the_divergence_is_that_of_torch() -> None:
    from torch.distributions import Normal, kl_divergence

    mean = torch.randn(3, 2, 4, 4)
    expected = kl_divergence(Normal(mean, 1.0), Normal(torch.zeros_like(mean), 1.0)).mean()
    torch.testing.assert_close(divergence(mean), expected)
    assert divergence(mean.half()).dtype is torch.float32


@pytest.mark.parametrize("spectral", ["none", "fp32"])
def test_real_and_generated_images_are_judged_together_and_alike(spectral: Any) -> None:
    discriminators = DomainDiscriminators(
        Translation(
            discriminator_width=8, discriminator_layers=2, discriminator_scales=2, spectral=spectral
        )
    ).eval()
    images = torch.randn(4, 2, 3, 16, 16)
    found = discriminators(*images, penalize=True)
    for names, of in ((("a", "b"), images[:2]), (("fake_a", "fake_b"), images[2:])):
        alone = discriminators(*of)
        for name, domain in zip(names, "ab", strict=True):
            assert len(found[name]) == 2
            for scale, expected in zip(found[name], alone[domain], strict=True):
                torch.testing.assert_close(scale, expected)
    found["r1"].backward()
    assert found["r1"] > 0
    assert all(p.grad is not None for n, p in discriminators.named_parameters() if "bias" not in n)


def test_a_style_encoder_that_nothing_trains_is_refused(tmp_path: Path) -> None:
    off = {"image_recon": 0.0, "style_recon": 0.0, "cycle": 0.0}
    with pytest.raises(KeyProblem, match="nothing trains the style encoders"):
        unpaired(tmp_path, "munit", munit=off)


# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [(), ("image_recon", "cycle")])
@pytest.mark.parametrize("name", NAMES)
def test_each_phase_moves_all_of_its_network(
    name: str, off: tuple[str, ...], tmp_path: Path
) -> None:
    """DDP waits for each parameter."""
    made = unpaired(tmp_path, name, **{name: dict.fromkeys(off, 0.0)})
    check_phases(made)
    assert set(made.updates[1].losses) == set(LOSSES[name]) - set(off)


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", NAMES)
def test_convolutions_are_half_and_losses_fp32(name: str, mode: str, tmp_path: Path) -> None:
    model = {"perceptual": 1.0}
    made = unpaired(tmp_path, name, precision=mode, adversarial={"r1": 0.0}, **{name: model})
    losses = check_number_formats(made, mode)
    assert set(losses) == {*LOSSES[name], "perceptual"}


def test_the_perceptual_loss_sees_contents_and_not_colours(tmp_path: Path) -> None:
    made = unpaired(tmp_path, "unit", unit={"perceptual": 1.0})
    perceptual = made.task.perceptual  # type: ignore[attr-defined]
    plain = PerceptualLoss(RandomFeatures())
    (batch,) = next(made.data.epoch(0))
    brighter, other = batch.a * 0.5 + 0.2, batch.a.flip(0)
    share, of_plain = (
        loss(brighter, batch.a) / loss(other, batch.a) for loss in (perceptual, plain)
    )
    assert share < 0.8 * of_plain


# -- resume ---------------------------------------------------------------------------------------

# Overflows now and then.
EVERYTHING: dict[str, Any] = {
    "precision": {"mode": "fp16", "init_scale": 2.0**14, "growth_interval": 2},
    "ema": 0.9,
    "log_every": 2,
    "epochs": 2,
    "batch_size": 2,
    "images": {"synthetic": {"train": 4, "test": 4, "styles": 2}},  # two steps an epoch
}


@pytest.mark.parametrize("name", NAMES)
def test_a_resume_is_bit_exact(name: str, tmp_path: Path) -> None:
    """In the middle of an epoch and of a logging interval, under fp16 with overflows."""
    curves = [f"train/{loss}" for loss in ("d", "r1", *LOSSES[name])]
    curves += [f"eval/{metric}" for metric in METRICS[name]]

    def make(folder: Path, attempt: int) -> Engine:
        return unpaired(folder, name, attempt=attempt, **EVERYTHING)

    check_resume(make, tmp_path, (1, 3), curves)


# -- metrics --------------------------------------------------------------------------------------


def metrics_of(made: Engine, kind: str) -> dict[str, float]:
    """Of translations that are correct, all in the first style, or the images themselves."""

    def translations(_: Any, images: Tensor, direction: Any, seeds: Tensor) -> Tensor:
        truth = sides(batch, direction)[2]
        assert truth is not None
        styles = torch.arange(4) % truth.shape[1]
        chosen = {"truth": truth[:, styles], "first": truth[:, [0] * 4]}
        return chosen.get(kind, images[:, None].expand(-1, 4, -1, -1, -1))

    made.task.translations = translations  # type: ignore[attr-defined]
    sums: dict[str, float] = {}
    batch: UnpairedBatch
    for batch in made.task.evaluation_batches():
        for name, value in made.task.evaluate(batch, made.networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    assert sums["images_a"] == sums["images_b"] == 10
    return made.task.summarize(sums)


def test_metrics_tell_the_truth_from_trivial_translations(tmp_path: Path) -> None:
    made = unpaired(tmp_path, "munit")
    truth, first, identity = (metrics_of(made, kind) for kind in ("truth", "first", "identity"))
    for domain in "ab":
        assert truth[f"truth_l1_{domain}"] == first[f"truth_l1_{domain}"] == 0
        assert identity[f"truth_l1_{domain}"] > 0.3
        name = f"frechet_random_{domain}"
        assert truth[name] < 0.5 * identity[name]
    assert (truth["styles_b"], first["styles_b"], identity["styles_b"]) == (2, 1, 1)
    assert truth["diversity_b"] == pytest.approx(truth["true_diversity_b"] * 4 / 6)
    assert first["diversity_b"] == truth["diversity_a"] == 0
    assert truth["frechet_random"] < 0.9 * first["frechet_random"] < first["frechet_random_b"]
    best = made.task.best
    assert (
        best is not None
        and best.better(truth[best.metric], first[best.metric]) == truth[best.metric]
    )


@torch.no_grad()
def test_a_picture_shows_images_truths_and_translations(tmp_path: Path) -> None:
    """By the weights themselves, in one style, and by their average in all."""
    options: dict[str, Any] = {"evaluation": {"pictures": 2, "styles": 3}, "ema": 0.9}
    made = unpaired(tmp_path, "munit", **options)
    assert made.average is not None
    plain = made.task.pictures(made.networks)
    assert plain is not None and plain.shape == (2, 3, 16, (1 + 2 + 3 + 1 + 1 + 3) * 16)
    pictures = made.task.pictures(made.average.networks)
    assert pictures is not None and pictures.shape == (2, 3, 16, 13 * 16)
    batch = next(iter(made.task.evaluation_batches()))
    columns = pictures.unflatten(3, (13, 16)).permute(3, 0, 1, 2, 4)
    shown = {0: batch.a, 1: batch.a_in_b[:, 0], 7: batch.b, 8: batch.b_in_a[:, 0]}
    for place, images in shown.items():
        torch.testing.assert_close(columns[place], images[:2] / 2 + 0.5, atol=1e-6, rtol=0)
    torch.testing.assert_close(columns[3], columns[4], msg="the average is what it was copied from")
    assert not torch.equal(columns[5], columns[4]), "styles differ"


def test_random_numbers_of_both_phases_of_a_step_agree(tmp_path: Path) -> None:
    """The discriminator judges the very images that the generator is then trained on."""
    for name in NAMES:
        made = unpaired(tmp_path / name, name)
        (batch,) = next(made.data.epoch(0))
        task: Any = made.task
        with torch.no_grad():
            judged = task.swapped(batch, made.networks["generator"])
            trained = task.computed(batch, made.networks["generator"])
        for each in ("a_in_b", "b_in_a"):
            torch.testing.assert_close(judged[each], trained[each])


@pytest.mark.parametrize("name", NAMES)
def test_files_are_translated(name: str, tmp_path: Path) -> None:
    """Each by itself, whatever files stand beside it."""
    made = unpaired(tmp_path / "run", name)
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for number, file in enumerate(files):
        write_coordinates(file, 16 + 8 * number, 16)
    networks = {each: network.eval() for each, network in made.task.generation_networks().items()}
    assert list(networks) == ["generator"]

    def generate(chosen: list[Path], **options: Any) -> dict[Path, Tensor]:
        request = Request(tmp_path, chosen, **{"direction": "a2b", "batch_size": 2, **options})
        with torch.no_grad():
            return dict(made.task.generate(request, networks))  # type: ignore[attr-defined]

    images = generate(files)
    assert list(images) == files and images[files[0]].shape == (3, 16, 16)
    torch.testing.assert_close(generate(files[2:])[files[2]], images[files[2]])
    back = generate(files, direction="b2a")
    assert (back[files[0]] - images[files[0]]).abs().mean() > 1e-3
    other = generate(files, seed=1)
    assert torch.equal(other[files[0]], images[files[0]]) == (name == "unit")
    with pytest.raises(DataError, match="a2b or b2a"):
        generate(files, direction=None)
    if name == "unit":
        with pytest.raises(ModelError, match="UNIT has no styles"):
            generate(files, style=(files[0],))
    else:
        styled = [generate(files, style=(files[0],), seed=seed)[files[1]] for seed in (0, 1)]
        assert torch.equal(*styled) and not torch.equal(styled[0], images[files[1]])


def test_evaluation_needs_no_known_truth(tmp_path: Path) -> None:
    made = unpaired(tmp_path, "munit")
    batch = next(iter(made.task.evaluation_batches()))
    real = UnpairedBatch(batch.a, batch.b, batch.seeds, batch.first)
    with torch.no_grad():
        sums = made.task.evaluate(real, made.networks)
    assert set(sums) == {"images_a", "images_b", "diversity_a", "diversity_b"}
    assert UnpairedData().size == (32, 32)


@torch.no_grad()
def test_each_image_of_domains_of_two_sizes_counts_once(tmp_path: Path) -> None:
    """The smaller domain begins again. In the last batch, none of its images is new."""
    for domain, count in (("A", 7), ("B", 3)):
        for number in range(count):
            for split in ("train", "test"):
                write_image(tmp_path / f"{split}{domain}/{number}.png", (30 * number, 9, 99))
    images = {"name": "folder", "root": str(tmp_path), "workers": 0}
    made = unpaired(tmp_path / "run", "munit", images=images, batch_size=2)
    diversity: dict[str, list[float]] = {"a": [], "b": []}
    sums: dict[str, float] = {}
    for batch in made.task.evaluation_batches():
        for name, value in made.task.evaluate(batch, made.networks).items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for domain, direction in (("a", "b2a"), ("b", "a2b")):
            translations = made.task._translated(batch, direction, made.networks)
            diversity[domain] += made.task._diversity(translations.float()).tolist()
    real_a, made_a, real_b, made_b = made.task.distances._moments[:, 0, 0].tolist()
    assert (real_a, real_b) == (7, 3)
    assert (made_a, made_b) == (3 * 4, 7 * 4), "each image in four styles"
    found = made.task.summarize(sums)
    for domain, count in (("a", 3), ("b", 7)):
        assert found[f"diversity_{domain}"] == pytest.approx(sum(diversity[domain][:count]) / count)
