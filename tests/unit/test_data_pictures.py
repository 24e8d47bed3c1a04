"""Image files of every kind: the same picture gives the same pixels, or its file is named."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from hpc_amp.data.errors import DataError
from hpc_amp.data.pictures import FINER, Box, open_part, open_rgb, random_box, upright_size

GRAY = np.arange(256, dtype=np.uint8).reshape(16, 16)
DEEP = GRAY.astype(np.uint16) * 257
"""The same picture with 16 bits, as every program writes it."""
COLOURS = np.stack([GRAY, GRAY.T, 255 - GRAY], axis=2)
TWO = np.where(GRAY > 99, 255, 0).astype(np.uint8)
WIDTH = 16


def save(image: Image.Image) -> Callable[[Path], None]:
    return lambda path: image.save(path)


def pgm(highest: int) -> Callable[[Path], None]:
    values = (GRAY.astype(np.uint32) * highest // 255).astype(">u2")
    header = f"P5\n{WIDTH} {WIDTH}\n{highest}\n".encode()
    return lambda path: path.write_bytes(header + values.tobytes())


def png_of_16_bits(colour_type: int, values: np.ndarray) -> Callable[[Path], None]:
    """`values` [H, W, channels]; Pillow reads these files, but does not write them."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", WIDTH, WIDTH, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    content += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return lambda path: path.write_bytes(content)


def tiff(bits: int, values: bytes, *, black: int = 1, kind: int = 1) -> Callable[[Path], None]:
    """One row of four pixels: `black` is 1 where 0 is black, `kind` 2 for signed numbers."""
    tags = [(256, 4), (257, 1), (258, bits), (259, 1), (262, black), (273, 8), (277, 1)]
    tags += [(278, 1), (279, len(values)), (339, kind)]
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    content = b"II*\0" + struct.pack("<I", 8 + len(values)) + values
    content += struct.pack("<H", len(tags)) + table + bytes(4)
    return lambda path: path.write_bytes(content)


def gray(values: np.ndarray) -> np.ndarray:
    return np.stack([values] * 3, axis=2)


def palette() -> Image.Image:
    image = Image.fromarray(GRAY, "L").convert("P")
    image.putpalette(np.stack([GRAY, 255 - GRAY, GRAY // 2], axis=2).tobytes())
    return image


def clear_palette(path: Path) -> None:
    palette().save(path, transparency=bytes(range(256)))


def four(colours: np.ndarray) -> np.ndarray:
    return np.concatenate([colours, GRAY[:, :, None]], axis=2)


PALETTE = np.stack([GRAY, 255 - GRAY, GRAY // 2], axis=2)
DEEP_ALPHA = np.stack([DEEP, DEEP.T], axis=2)
SAME = {
    "8 bits.png": (save(Image.fromarray(GRAY)), gray(GRAY)),
    "16 bits.png": (save(Image.fromarray(DEEP)), gray(GRAY)),
    "16 bits.tif": (save(Image.fromarray(DEEP)), gray(GRAY)),
    "16 bits, big end first.tif": (save(Image.fromarray(DEEP.astype(">u2"))), gray(GRAY)),
    "16 bits.jp2": (save(Image.fromarray(DEEP)), gray(GRAY)),
    "16 bits.pgm": (pgm(65535), gray(GRAY)),
    "10 bits.pgm": (pgm(1023), gray(GRAY)),
    "16 bits and alpha.png": (png_of_16_bits(4, DEEP_ALPHA), gray(GRAY)),
    "16 bits of colour.png": (png_of_16_bits(2, COLOURS * np.uint16(257)), COLOURS),
    "16 bits of all.png": (png_of_16_bits(6, four(COLOURS) * np.uint16(257)), COLOURS),
    "1 bit.png": (save(Image.fromarray(TWO).convert("1")), gray(TWO)),
    "gray and alpha.png": (save(Image.merge("LA", [Image.fromarray(GRAY)] * 2)), gray(GRAY)),
    "colour.png": (save(Image.fromarray(COLOURS)), COLOURS),
    "colour and alpha.png": (save(Image.fromarray(four(COLOURS))), COLOURS),
    "palette.png": (save(palette()), PALETTE),
    "palette and alpha.png": (clear_palette, PALETTE),
    "palette.gif": (save(palette()), PALETTE),
    "CMYK.tif": (save(Image.fromarray(COLOURS).convert("CMYK")), COLOURS),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_picture_gives_the_same_pixels(tmp_path: Path, name: str) -> None:
    write, expected = SAME[name]
    write(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = open_rgb(str(tmp_path / name))
        part = open_part(str(tmp_path / name), lambda width, height: (1, 0, width - 2, height - 3))
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), expected)
    assert np.array_equal(np.asarray(part), expected[:-3, 1:-2])


NO_RANGE = {
    "float.tif": (save(Image.fromarray(GRAY.astype(np.float32) / 255)), "F"),
    "32 bits.tif": (save(Image.fromarray(GRAY.astype(np.int32) << 16)), "I"),
    "signed.tif": (tiff(16, struct.pack("<4h", -5, 0, 5, 32767), kind=2), "I"),
    "12 bits.tif": (tiff(12, bytes(6)), "I;16"),
    "0 is white.tif": (tiff(16, bytes(8), black=0), "I;16"),
}


@pytest.mark.parametrize("name", NO_RANGE)
def test_numbers_without_a_known_range_are_refused(tmp_path: Path, name: str) -> None:
    write, mode = NO_RANGE[name]
    write(tmp_path / name)
    with pytest.raises(DataError, match=rf"the image .*{name} has mode {mode}, in which"):
        open_rgb(str(tmp_path / name))


def test_an_old_pillow_calls_16_bits_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before version 11, a PNG file of 16 bits was of the mode I."""
    path = tmp_path / "deep.png"
    Image.fromarray(DEEP).save(path)
    opened = Image.open(path).convert("I")
    opened.format = "PNG"
    monkeypatch.setattr("PIL.Image.open", lambda _: opened)
    assert np.array_equal(np.asarray(open_rgb(str(path))), gray(GRAY))


@pytest.mark.parametrize("kept", [0, 20, 60])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(COLOURS).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    for open_image in (open_rgb, lambda path: open_part(path, top_left)):
        with pytest.raises(DataError, match=r"the image .*cut.png cannot be read") as raised:
            open_image(str(path))
        assert ("cannot be read: it has no known format" in str(raised.value)) == (kept == 0)


def test_an_image_that_is_too_large_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(GRAY).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"the image .*large.png cannot be read: .*decompression"):
        open_rgb(str(path))


# ---- parts of JPEGs ------------------------------------------------------------------------------


def smooth(width: int, height: int) -> Image.Image:
    """Slopes in all channels, with edges between them."""
    across, down = np.arange(width), np.arange(height)[:, None]
    bands = [(across * a + down * b) % 256 for a, b in ((3, 1), (1, 2), (2, 5))]
    return Image.fromarray(np.stack(bands, axis=2).astype(np.uint8))


def top_left(width: int, height: int) -> Box:
    return 0, 0, width // 2, height // 3


JPEGS = {
    "full colours": ("RGB", {"subsampling": 0}),
    "half the colours across": ("RGB", {"subsampling": 1}),
    "half the colours": ("RGB", {"subsampling": 2}),
    "progressive": ("RGB", {"progressive": True}),
    "progressive, full colours": ("RGB", {"progressive": True, "subsampling": 0}),
    "restarts": ("RGB", {"restart_marker_rows": 1}),
    "gray": ("L", {}),
    "gray, progressive": ("L", {"progressive": True}),
    "CMYK": ("CMYK", {}),
    "own tables": ("RGB", {"optimize": True, "quality": 100}),
}


@pytest.mark.parametrize("name", JPEGS)
def test_a_part_of_a_jpeg_has_the_pixels_of_the_whole(tmp_path: Path, name: str) -> None:
    mode, options = JPEGS[name]
    path = str(tmp_path / "image.jpg")
    smooth(83, 61).convert(mode).save(path, **options)
    whole = open_rgb(path)
    random = Random(name)
    boxes = [random_box(83, 61, random) for _ in range(30)]
    for box in (*boxes, (0, 0, 83, 61), (82, 60, 83, 61), (0, 0, 1, 1)):
        assert open_part(path, lambda *_, box=box: box).tobytes() == whole.crop(box).tobytes()


def test_less_of_a_jpeg_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    load = JpegImageFile.load

    def note(image: JpegImageFile) -> object:
        decoded.append(image.size)
        return load(image)

    monkeypatch.setattr(JpegImageFile, "load", note)
    path = str(tmp_path / "image.jpg")
    smooth(640, 480).save(path)
    open_part(path, top_left)
    assert {height for _, height in decoded} == {160 + 16}
    decoded.clear()
    part = open_part(path, lambda *_: (64, 0, 576, 480), needed=480 // FINER // 4)
    assert set(decoded) == {(160, 120)}
    assert part.size == (128, 120)


def test_reduced_decoding_changes_little(tmp_path: Path) -> None:
    path = str(tmp_path / "image.jpg")
    smooth(900, 700).resize((1800, 1400)).save(path, quality=95)

    def values(needed: int | None) -> np.ndarray:
        part = open_part(path, lambda *_: (8, 16, 1608, 1216), needed)
        return np.asarray(part.resize((100, 80), Image.Resampling.BILINEAR)).astype(int)

    difference = np.abs(values(100) - values(None))
    assert 0 < difference.mean() < 0.6
    assert difference.max() <= 8


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_is_cut_off_is_named_whatever_part_is_used(
    tmp_path: Path, kept: float, progressive: bool
) -> None:
    path = tmp_path / "cut.jpg"
    smooth(200, 200).save(path, progressive=progressive)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"the image .*cut.jpg cannot be read"):
        open_part(str(path), top_left)


def test_bytes_after_a_jpeg_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    smooth(80, 60).save(path)
    expected = open_rgb(str(path)).crop(top_left(80, 60))
    with path.open("ab") as file:
        file.write(b"made by a camera")
    assert open_part(str(path), top_left).tobytes() == expected.tobytes()


@pytest.mark.parametrize("extra", [b"\xff", b"\xff\xff\xff", b"\xff\x00"])
def test_bytes_between_the_segments_of_a_jpeg_change_nothing(tmp_path: Path, extra: bytes) -> None:
    """Decoders pass over bytes that fill up, and over others."""
    path = tmp_path / "image.jpg"
    smooth(80, 60).save(path)
    expected = open_rgb(str(path)).crop(top_left(80, 60))
    for marker in (b"\xff\xdb", b"\xff\xc0"):
        path.write_bytes(path.read_bytes().replace(marker, extra + marker, 1))
    assert open_part(str(path), top_left).tobytes() == expected.tobytes()


# ---- how the camera was held ---------------------------------------------------------------------


def exif(orientation: int) -> bytes:
    data = Image.Exif()
    data[0x0112] = orientation
    return data.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "tif", "webp"])
def test_images_are_upright(tmp_path: Path, kind: str, orientation: int) -> None:
    path = str(tmp_path / f"image.{kind}")
    options = {"lossless": True} if kind == "webp" else {}
    smooth(40, 24).save(path, exif=exif(orientation), **options)
    with Image.open(path) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    assert open_rgb(path).tobytes() == expected.tobytes()
    assert upright_size(path) == expected.size == ((40, 24) if orientation < 5 else (24, 40))
    box = (1, 2, 9, 17)
    assert open_part(path, lambda *_: box).tobytes() == expected.crop(box).tobytes()


@pytest.mark.parametrize("data", [b"Exif\0\0garbage!", exif(1)[:-9], exif(9), exif(0)])
def test_damaged_exif_data_do_not_damage_the_image(tmp_path: Path, data: bytes) -> None:
    path = str(tmp_path / "image.png")
    smooth(40, 24).save(path, exif=data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about the data
        assert open_rgb(path).tobytes() == smooth(40, 24).tobytes()
