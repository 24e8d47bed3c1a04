"""How often the networks of each conditional GAN halve images: what is too often is refused before
a job is submitted, and what is just allowed trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands, funit, paired, unpaired
from support.environment import clean_environ
from support.training import engine

from hpc_amp.config.schema import from_plain
from hpc_amp.errors import KeyProblem
from hpc_amp.tasks.build import task_class
from hpc_amp.tasks.registry import config_class

PAIRED, UNPAIRED, FEW_SHOT = tuple(paired.MODELS), unpaired.NAMES, funit.NAMES
NAMES = (*PAIRED, *UNPAIRED, *FEW_SHOT)
JUDGES = {"width": 4, "layers": 1, "scales": 1}
PLAIN = {"enhancer": None, "instance_features": None, "discriminator": JUDGES}
VGG = {"perceptual": 1.0, "perceptual_weights": "vgg19.pt"}


def plain_train(name: str, size: list[int], **networks: Any) -> dict[str, Any]:
    """The keys of `train` of a model for images of `size`."""
    of = paired if name in PAIRED else unpaired if name in UNPAIRED else funit
    return of.plain_train(name, images={"image_size": size}, **{name: networks})


REFUSED: list[tuple[str, list[int], dict[str, Any], str, int, int]] = [
    ("spade", [24], {"stages": 4}, "stages", 3, 4),
    ("spade", [16, 24], {"stages": 4, "discriminator": JUDGES}, "stages", 3, 4),
    ("spade", [16], {"stages": 10**9}, "stages", 4, 10**9),
    ("spade", [16], {"discriminator": JUDGES | {"layers": 4}}, "discriminator.layers", 2, 4),
    ("spade", [16], {"discriminator": JUDGES | {"scales": 4}}, "discriminator.layers", 2, 4),
    ("spade", [8], {"losses": VGG, "discriminator": JUDGES}, "losses.perceptual_weights", 3, 4),
    ("pix2pixhd", [18], {**PLAIN, "downsamplings": 2}, "downsamplings", 1, 2),
    ("pix2pixhd", [8], {**PLAIN, "downsamplings": 3}, "downsamplings", 2, 3),
    ("pix2pixhd", [16], {"downsamplings": 3, "discriminator": JUDGES}, "downsamplings", 3, 4),
    # The discriminator of images of half the size has one scale at least.
    ("pix2pixhd", [8], {"discriminator": JUDGES | {"layers": 2}}, "discriminator.layers", 1, 3),
    (
        "pix2pixhd",
        [16],
        {"instance_features": {"downsamplings": 4}},
        "instance_features.downsamplings",
        3,
        4,
    ),
    ("pix2pixhd", [16], {"losses": VGG}, "losses.perceptual_weights", 4, 5),
    *[("unit", [18], {"downs": 2}, "downs", 1, 2)],
    *[(name, [16], {"downs": 4}, "downs", 3, 4) for name in UNPAIRED],
    *[(name, [16], {"discriminator_layers": 5}, "discriminator_layers", 4, 5) for name in UNPAIRED],
    ("unit", [16], {"discriminator_scales": 4}, "discriminator_layers", 4, 5),
    ("munit", [16, 64], {"style_downs": 5}, "style_downs", 4, 5),
    ("munit", [8], VGG, "perceptual_weights", 3, 4),
    *[(name, [18], {"content_halvings": 2}, "content_halvings", 1, 2) for name in FEW_SHOT],
    *[(name, [16], {"content_halvings": 4}, "content_halvings", 3, 4) for name in FEW_SHOT],
    *[(name, [16], {"style_halvings": 5}, "style_halvings", 4, 5) for name in FEW_SHOT],
    ("funit", [16], {"discriminator_halvings": 5}, "discriminator_halvings", 4, 5),
]


@pytest.mark.parametrize(("name", "size", "networks", "key", "possible", "times"), REFUSED)
def test_more_halvings_than_an_image_has_are_refused(
    name: str, size: list[int], networks: dict[str, Any], key: str, possible: int, times: int
) -> None:
    train = from_plain(config_class(name), plain_train(name, size, **networks))
    with pytest.raises(KeyProblem) as error:
        train.check_keys()
    assert error.value.key == f"{name}.{key}"
    shown = f"{size[0]} x {size[-1]} pixels"
    assert f"images of {shown} (train.images.image_size) can be halved {possible} times" in str(
        error.value
    )
    assert f"not {times} times" in str(error.value)


LARGEST: list[tuple[str, list[int], dict[str, Any]]] = [
    ("spade", [8, 16], {"stages": 3, "discriminator": JUDGES}),
    ("pix2pixhd", [8], {**PLAIN, "downsamplings": 2}),
    (
        "pix2pixhd",
        [16],
        {"downsamplings": 2, "instance_features": {"width": 4, "downsamplings": 3}},
    ),
    ("unit", [8, 24], {"downs": 2, "discriminator_layers": 3}),
    ("munit", [9], {"downs": 0, "style_downs": 3, "discriminator_layers": 3}),
    *[
        (
            name,
            [8],
            {"content_halvings": 2, "style_halvings": 3, "discriminator_halvings": 3},
        )
        for name in FEW_SHOT
    ],
]


@pytest.mark.parametrize(("name", "size", "networks"), LARGEST)
def test_as_many_halvings_as_an_image_has_train(
    name: str, size: list[int], networks: dict[str, Any], tmp_path: Path
) -> None:
    """In each phase; and they are evaluated, with pictures."""
    plain = plain_train(name, size, **networks)
    # One step an epoch.
    train = 2 if name in FEW_SHOT else 8
    plain["images"]["synthetic"] = {**plain["images"]["synthetic"], "train": train, "test": 4}
    made = engine(tmp_path, task_class(name), **plain, epochs=3)
    made.fit()
    assert made.metrics


def test_validate_says_the_line_of_the_key(tmp_path: Path) -> None:
    train = plain_train("munit", [16], style_downs=7)
    job = {"name": "x", "site": "local", "job": {"gpus_per_node": 0}, "train": train}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    result = commands.hpc_amp("validate", "job.yaml", cwd=tmp_path, environ=clean_environ())
    line = 1 + next(
        number
        for number, text in enumerate((tmp_path / "job.yaml").read_text().splitlines())
        if "style_downs" in text
    )
    assert result.returncode == 2
    assert result.stderr == (
        f"hpc-amp: job.yaml:{line}: train.munit.style_downs: images of 16 x 16 pixels "
        "(train.images.image_size) can be halved 4 times here, not 7 times; use fewer, or images "
        "of another size\n"
    )
