"""Image files decoded by DALI: the same samples in the same order as by Pillow, whatever the files.

`make dali` installs DALI, of about 1 GB, and runs these tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from support.training import engine, fit_until

from hpc_amp.config import schema
from hpc_amp.data.decoder_dali import DaliDecoder
from hpc_amp.data.decoders import PillowDecoder, View
from hpc_amp.data.prepare import PreparedData, prepare
from hpc_amp.data.readers import Readers
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError
from hpc_amp.tasks.classification.task import Classification
from hpc_amp.train.engine import Engine

pytest.importorskip("nvidia.dali", reason="DALI is not installed; see make dali")

CPU = torch.device("cpu")
SIDE = 224


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def photograph(width: int = 500, height: int = 375) -> Image.Image:
    """Smooth shapes under a little noise."""
    stream = torch.Generator().manual_seed(width)
    small = torch.randint(256, (6, 8, 3), generator=stream).byte().numpy()
    shapes = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    grain = torch.randint(256, (height, width, 3), generator=stream).byte().numpy()
    blurred = Image.fromarray(grain).filter(ImageFilter.GaussianBlur(1))
    return Image.blend(shapes, blurred, 0.2)


def turned(orientation: int) -> dict[str, Any]:
    data = Image.Exif()
    data[0x0112] = orientation
    return {"exif": data.tobytes()}


JPEGS: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": ("RGB", {"quality": 90}),
    "full colours": ("RGB", {"subsampling": 0}),
    "half the colours across": ("RGB", {"subsampling": 1}),
    "progressive": ("RGB", {"progressive": True}),
    "restarts": ("RGB", {"restart_marker_rows": 1}),
    "gray": ("L", {}),
    "own tables": ("RGB", {"optimize": True, "quality": 100}),
    "upright": ("RGB", turned(1)),
    "a comment": ("RGB", {"comment": b"c" * 60_000}),
}
"""What DALI decodes."""
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "CMYK.jpg": ("CMYK", {}),
    "red, green, blue.jpg": ("RGB", {"keep_rgb": True}),
    **{f"turned {way}.jpg": ("RGB", turned(way)) for way in range(2, 9)},
    "colours.png": ("RGB", {}),
    "alpha.png": ("RGBA", {}),
    "palette.png": ("P", {}),
    "16 bits.png": ("I;16", {}),
    "gray.tif": ("L", {}),
    "lossless.webp": ("RGB", {"lossless": True}),
}
"""What is left to Pillow."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of both kinds, in turns."""
    folder = tmp_path_factory.mktemp("files")
    kinds = {f"{name}.jpg": kind for name, kind in JPEGS.items()}
    names = [name for pair in zip(kinds, OTHERS, strict=False) for name in pair]
    names += [name for name in OTHERS if name not in names]
    picture = photograph()
    for name in names:
        mode, options = {**kinds, **OTHERS}[name]
        if mode == "I;16":
            values = np.arange(375 * 500, dtype=np.uint32).reshape(375, 500) % 65536
            Image.fromarray(values.astype(np.uint16)).save(folder / name)
        else:
            picture.convert(mode).save(folder / name, **options)
    return [str(folder / name) for name in names]


def dali(device: torch.device = CPU, workers: int = 2) -> DaliDecoder:
    return DaliDecoder(SIDE, Readers(workers), device, max(1, workers))


def views(paths: Sequence[str], seed: str | None = "1") -> list[View]:
    return [View(path, seed and f"{seed} {path}", crop=True, flip=True) for path in paths]


def pixels(decoder: Any, *batches: Sequence[View]) -> torch.Tensor:
    found = torch.cat(list(decoder.read(batches))).cpu()
    decoder.readers.close()
    return found


def differences(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of each image, by how many levels its values differ on average."""
    return (one.float() - other.float()).abs().mean((1, 2, 3))


# ---- the same samples ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", ["1", "2", "3", None])
def test_every_file_gives_the_sample_that_pillow_gives(
    paths: list[str], device: torch.device, seed: str | None
) -> None:
    batch = views(paths, seed)

    expected = pixels(PillowDecoder(SIDE, Readers(2), CPU), batch)
    found = pixels(dali(device), batch)

    assert found.shape == (len(paths), 3, SIDE, SIDE)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for path, by in zip(paths, differences(found, expected).tolist(), strict=True):
        if Path(path).name in OTHERS:
            assert by == 0, path
        else:
            assert 0 < by < 0.5, path
    assert (found.int() - expected.int()).abs().max() <= 12


def test_large_files_differ_by_what_pillow_saves(tmp_path: Path, device: torch.device) -> None:
    """Pillow decodes them at a reduced size in training, and in full for evaluations."""
    path = str(tmp_path / "large.jpg")
    photograph(2000, 1500).save(path, quality=90)

    def difference(batch: list[View]) -> float:
        expected = pixels(PillowDecoder(SIDE, Readers(2), CPU), batch)
        return differences(pixels(dali(device), batch), expected).max().item()

    assert difference(views([path], None)) < 0.5
    assert difference([View(path, str(seed), crop=True) for seed in range(20)]) < 3


def test_samples_depend_on_nothing_else(paths: list[str]) -> None:
    batch = views(paths * 4)
    expected = pixels(dali(workers=0), batch)
    assert torch.equal(pixels(dali(workers=1), batch), expected)
    assert torch.equal(pixels(dali(workers=3), batch), expected)
    assert torch.equal(pixels(dali(), *[[view] for view in batch]), expected)
    assert torch.equal(pixels(dali(), batch[:7], batch[7:50], batch[50:]), expected)
    assert torch.equal(pixels(dali(), batch[::-1]), expected.flip(0))


def test_passes_may_alternate_and_end_early(paths: list[str]) -> None:
    ones, others = views(paths, "1"), views(paths, None)
    expected = dict(zip(ones + others, pixels(dali(), ones, others), strict=True))
    decoder = dali()
    training = decoder.read([[view] for view in ones])
    evaluation = decoder.read([[view] for view in others])
    for number in range(3):
        assert torch.equal(next(training)[0], expected[ones[number]])
        assert torch.equal(next(evaluation)[0], expected[others[number]])
    evaluation.close()
    assert torch.equal(next(training)[0], expected[ones[3]])
    training.close()
    decoder.readers.close()


# ---- files that DALI refuses ---------------------------------------------------------------------


def odd(path: Path) -> str:
    """A JPEG with a byte between two segments, which Pillow passes over."""
    photograph().save(path, quality=90)
    path.write_bytes(path.read_bytes().replace(b"\xff\xdb", b"\0\xff\xdb", 1))
    return str(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_dali_refuses_is_decoded_by_pillow_and_no_other(
    paths: list[str], tmp_path: Path, workers: int, logged: list[str]
) -> None:
    whole = pixels(dali(), views(paths))
    refused = [odd(tmp_path / f"odd{number}.jpg") for number in range(2)]
    batch = views([*paths[:3], *refused, *paths[3:]])
    by_pillow = pixels(PillowDecoder(SIDE, Readers(0), CPU), batch)

    decoder = dali(workers=workers)
    found = torch.cat(list(decoder.read([batch, batch])))

    expected = torch.cat([whole[:3], by_pillow[3:5], whole[3:]])
    assert torch.equal(found, torch.cat([expected] * 2))
    (said,) = logged
    assert said.startswith("DALI cannot decode ") and "\n" not in said
    assert any(f"{path}: nvImageCodec failure" in said for path in refused)
    # From then on they are not given to DALI at all.
    built = decoder._pipeline
    list(decoder.read([batch]))
    assert decoder._pipeline is built is not None
    decoder.readers.close()


def test_an_error_that_is_no_file_s_is_not_hidden(
    paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the memory sufficed for one image only."""
    run = DaliDecoder._run

    def out_of_memory(self: DaliDecoder, jpegs: Sequence[Any]) -> torch.Tensor:
        if len(jpegs) > 1:
            raise RuntimeError("somewhere in DALI\nencountered:\nout of memory")
        return run(self, jpegs)

    monkeypatch.setattr(DaliDecoder, "_run", out_of_memory)
    decoder = dali()
    batches = decoder.read([views(paths)])
    with pytest.raises(DataError, match=rf"{len(paths)} images at once, from {paths[0]} on: out"):
        next(batches)
    decoder.readers.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-2],
        lambda content: content[:300] + b"\xff\xd9",
        lambda content: b"",
        lambda content: b"no image",
    ],
    ids=["half", "without its end", "header only", "empty", "text"],
)
def test_a_damaged_file_is_named_when_its_batch_is_requested(
    paths: list[str], tmp_path: Path, damage: Any, device: torch.device
) -> None:
    path = tmp_path / "damaged.jpg"
    photograph().save(path, quality=90)
    path.write_bytes(damage(path.read_bytes()))
    messages = []
    for decoder in (PillowDecoder(SIDE, Readers(2), device), dali(device)):
        batches = decoder.read([views(paths), views([paths[0], str(path)]), views(paths)])
        next(batches)
        with pytest.raises(DataError, match=rf"^the image {path} cannot be read: ") as raised:
            next(batches)
        decoder.readers.close()
        messages.append(str(raised.value))
    assert messages[0].partition(" <")[0] == messages[1].partition(" <")[0]


# ---- a data set ----------------------------------------------------------------------------------


def load(root: Path, decoder: str, rank: int = 0, ranks: int = 1, **data: Any) -> PreparedData:
    own = {"name": "imagefolder", "root": root, "image_size": SIDE, "in_memory": False}
    config = schema.Train(
        batch_size=8, eval_batch_size=5, data=schema.Data(decoder=decoder, **own, **data)
    )
    return prepare(config, World(rank=rank, size=ranks), CPU)


@pytest.fixture
def root(paths: list[str], tmp_path: Path) -> Path:
    for folder in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / folder).mkdir(parents=True)
        for path in paths:
            os.link(path, tmp_path / folder / Path(path).name)
    return tmp_path


def test_an_epoch_is_the_same_for_every_division_and_begins_anywhere(root: Path) -> None:
    data = load(root, "dali", workers=0).training
    assert data.decoder.startswith("DALI ") and data.decoder.endswith(" on the CPU")
    whole = list(data.epoch(1))
    by_pillow = list(load(root, "pillow").training.epoch(1))
    assert len(whole) == len(by_pillow) == 6
    for (micro,), (other,) in zip(whole, by_pillow, strict=True):
        assert (micro[0] - other[0]).abs().mean() < 0.5 / 255 / 0.22
        assert torch.equal(micro[1], other[1])
    for start in (1, 3):
        for (micro,), (later,) in zip(whole[start:], data.epoch(1, start), strict=True):
            assert torch.equal(micro[0], later[0])
    shares = [load(root, "dali", rank, 2, workers=2).training for rank in (0, 1)]
    for (micro,), *pair in zip(whole, *[share.epoch(1) for share in shares], strict=True):
        assert torch.equal(micro[0], torch.cat([images for ((images, _),) in pair]))
    for share in shares:
        share.close()


def test_an_evaluation_sees_every_image_once(root: Path) -> None:
    found, expected = (list(load(root, decoder).evaluation()) for decoder in ("dali", "pillow"))
    for one, other in zip(found, expected, strict=True):
        assert (one[0] - other[0]).abs().mean() < 0.5 / 255 / 0.22
        assert torch.equal(one[1], other[1])


def test_a_run_that_was_stopped_has_the_weights_of_one_that_was_not(
    root: Path, tmp_path: Path
) -> None:
    data = {"name": "imagefolder", "root": str(root), "image_size": 32, "in_memory": False}
    settings = {"data": {**data, "decoder": "dali"}, "model": {"name": "resnet8", "width": 8}}

    def weights(made: Engine) -> dict[str, torch.Tensor]:
        return made.networks["model"].state_dict()

    whole = engine(tmp_path / "whole", Classification, **settings)
    whole.fit()
    stopped = engine(tmp_path / "parts", Classification, **settings)
    fit_until(stopped, 5)
    resumed = engine(tmp_path / "parts", Classification, attempt=2, **settings)
    assert resumed.step == 5
    resumed.fit()
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name
