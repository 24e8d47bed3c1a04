"""Small folders of images in classes, and trainings that read them."""

from pathlib import Path

import torch
from PIL import Image

from hpc_amp.config import schema
from hpc_amp.data.prepare import PreparedData, prepare
from hpc_amp.distributed.world import World

CPU = torch.device("cpu")


def write_images(root: Path, test: str = "test", size: tuple[int, int] = (12, 10)) -> Path:
    """Eight training and three test images in each of two classes. Their red is their number."""
    for split, count in (("train", 8), (test, 3)):
        for label, name in enumerate(("cat", "dog")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                colour = (20 * (label * count + number) % 256, 100, 200 * label)
                Image.new("RGB", size, colour).save(folder / f"{number:03}.png")
    return root


def load(
    root: Path, rank: int = 0, size: int = 1, accumulate: int = 1, **data: object
) -> PreparedData:
    config = schema.Train(
        batch_size=4,
        eval_batch_size=2,
        accumulate=accumulate,
        data=schema.Data(name="imagefolder", root=str(root), **data),
    )
    return prepare(config, World(rank=rank, size=size), CPU)
