"""Folders of images: found, decoded once a node or streamed, with the contract of all data."""

import tempfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.image_folders import load, write_images
from support.warm import Warm
from torchvision.datasets import ImageFolder

from hpc_amp.data.imagefolder import scan
from hpc_amp.tasks.base import DataError


def joined(steps: list) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*[micro for step in steps for micro in step], strict=True)
    return torch.cat(images), torch.cat(labels)


@pytest.mark.parametrize("test", ["test", "val"])
def test_small_images_are_kept_in_memory(tmp_path: Path, test: str) -> None:
    data = load(write_images(tmp_path / "pets", test))
    assert (data.name, data.synthetic) == ("ImageFolder pets", False)
    assert (data.classes, data.channels, data.image_size) == (2, 3, 12)
    assert data.training.images.pixels.shape == (16, 3, 10, 12)
    assert data.training.images.pixels[:, 0, 0, 0].tolist() == [20 * n % 256 for n in range(16)]
    assert data.training.images.labels.tolist() == [0] * 8 + [1] * 8
    assert torch.cat([labels for _, labels in data.evaluation()]).tolist() == [0, 0, 0, 1, 1, 1]


def test_images_are_brought_to_the_size_asked_for(tmp_path: Path) -> None:
    root = write_images(tmp_path, size=(90, 70))
    assert load(root, image_size=16).training.images.pixels.shape == (16, 3, 16, 16)
    assert load(root, image_size=80, in_memory=True).image_size == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_memory": True}, "set data.image_size"),
        ({"probe": 1}, r"odd.png has 9 x 9 pixels, but others have 12 x 10: set data.image_size"),
    ],
)
def test_images_of_different_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, message: str
) -> None:
    root = write_images(tmp_path)
    Image.new("RGB", (9, 9)).save(root / "train" / "dog" / "odd.png")
    monkeypatch.setattr("hpc_amp.data.imagefolder.PROBED", options.pop("probe", 256))
    with pytest.raises(DataError, match=message):
        load(root, **options)


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    root = write_images(tmp_path)
    (root / "train" / "cat" / "003.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"image .*003\.png cannot be read"):
        load(root)


def test_hidden_files_and_folders_are_no_data(tmp_path: Path) -> None:
    root = write_images(tmp_path)
    for folder in (".ipynb_checkpoints", "dog/.ipynb_checkpoints"):
        (root / "train" / folder).mkdir()
        Image.new("RGB", (12, 10)).save(root / "train" / folder / "1-checkpoint.png")
    Image.new("RGB", (12, 10)).save(root / "train" / "cat" / "._001.png")

    data = load(root)

    assert data.classes == 2
    assert data.training.images.labels.tolist() == [0] * 8 + [1] * 8

    for name in ("cat", "dog"):
        (root / "test" / name).rename(root / "test" / f".{name}")
    with pytest.raises(DataError, match=r"no classes in .*test"):
        load(root)


def test_files_are_in_the_order_of_torchvision(tmp_path: Path) -> None:
    """In which runs of older versions have seen them. A link back is not followed for ever."""
    for split in ("train", "test"):
        for name in ("b/2.png", "b/a/1.JPG", "b/a-b/1.png", "b/a/c/1.pgm", "b/10.png", "A/x.png"):
            (tmp_path / split / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / split / name).touch()
        (tmp_path / split / "b/notes.txt").touch()
    wanted = ImageFolder(str(tmp_path / "train"))
    (tmp_path / "train/b/a/back").symlink_to("..")
    found = scan(tmp_path)
    assert found.classes == wanted.classes
    assert [*zip(found.train.images, found.train.labels, strict=True)] == wanted.samples


def test_folders_that_do_not_match(tmp_path: Path) -> None:
    root = write_images(tmp_path)
    (root / "test" / "dog").rename(root / "test" / "wolf")
    with pytest.raises(DataError, match="differ: dog, wolf"):
        load(root)
    for file in (root / "train" / "dog").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"no images in .*train/dog"):
        load(root)


def test_test_images_without_classes_are_no_test_images(tmp_path: Path) -> None:
    """As those of ImageNet."""
    root = write_images(tmp_path, "val")
    (root / "test").mkdir()
    Image.new("RGB", (9, 9)).save(root / "test" / "1.png")
    assert len(scan(root).test.images) == 6


def test_a_folder_without_test_images(tmp_path: Path) -> None:
    write_images(tmp_path)
    (tmp_path / "test").rename(tmp_path / "other")
    with pytest.raises(DataError, match=r"expected test/<class>/\* \(or val\)"):
        load(tmp_path)


STREAM = {"in_memory": False, "image_size": 32}


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_images_are_the_same_for_every_division(tmp_path: Path, workers: int) -> None:
    root = write_images(tmp_path, size=(90, 70))
    images, labels = joined(list(load(root, workers=0, **STREAM).training.epoch(1)))
    assert images.shape == (16, 3, 32, 32)
    assert images.is_contiguous(memory_format=torch.channels_last)
    shares = [
        load(root, rank, 2, accumulate=2, workers=workers, **STREAM).training for rank in (0, 1)
    ]
    for share in shares:
        list(share.epoch(0))  # persistent workers carry nothing over
    steps = list(zip(*[share.epoch(1) for share in shares], strict=True))
    assert all(len(step) == 2 for pair in steps for step in pair)
    again = joined([step for pair in steps for step in pair])
    assert torch.equal(again[0], images)
    assert torch.equal(again[1], labels)


def test_streamed_images_can_start_at_any_step(tmp_path: Path) -> None:
    root = write_images(tmp_path, size=(90, 70))
    data = load(root, workers=0, **STREAM).training
    before = torch.get_rng_state()
    whole = list(data.epoch(2))
    for start in range(4):
        rest = joined(list(data.epoch(2, start)))
        assert torch.equal(rest[0], joined(whole[start:])[0])
    assert list(data.epoch(2, 4)) == []
    assert torch.equal(before, torch.get_rng_state())


def test_streamed_evaluation_sees_every_image_once(tmp_path: Path) -> None:
    root = write_images(tmp_path, size=(90, 70))
    seen = []
    for rank in range(4):
        for images, labels in load(root, rank, 4, workers=0, **STREAM).evaluation():
            assert images.shape[1:] == (3, 32, 32)
            seen += labels.tolist()
    assert seen == [0, 0, 0, 1, 1, 1]


RANK = """
import datetime, os, sys, torch, torch.distributed as dist
from hpc_amp.config import schema
from hpc_amp.data import imagefolder
from hpc_amp.data.decoder_dali import DaliDecoder
from hpc_amp.data.prepare import prepare
from hpc_amp.distributed.collect import gather
from hpc_amp.distributed.world import World
rank, store, root, broken = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=60))
world = World(rank=rank, size=2, local_rank=rank, local_size=2)
data = schema.Data(name="imagefolder", root=root)
def run(data):
    return prepare(schema.Train(batch_size=4, data=data), world, torch.device("cpu"))
if rank:
    imagefolder.images_in = imagefolder.folders_in = None  # rank 0 looks for all
exists = os.path.exists
def hidden(path):  # in another container than rank 0
    return rank == 0 and exists(path)
for os.path.exists in (exists, hidden):
    found = run(data)
    print(found.training.images.pixels.sum().item(), found.training.images.labels.tolist())
os.path.exists = exists
streamed = schema.Data(name="imagefolder", root=root, in_memory=False, image_size=32, workers=0)
batches = run(streamed).training.epoch(0)
labels = torch.cat([labels for step in batches for _, labels in step]).tolist()
print(sorted(sum(gather(world, labels), [])))
DaliDecoder.problem = lambda self: "absent on rank 1" if rank else None
dali = schema.Data(name="imagefolder", root=root, in_memory=False, decoder="dali")
for name in (
    schema.Data(name="imagefolder", root=broken), schema.Data(root=root, download=False), dali,
    schema.Data(name="imagefolder", root=f"{root}-{rank}"),
):
    try:
        run(name)
    except RuntimeError as error:
        print(type(error).__name__, error)
# Rank 1 sees other files than rank 0: what rank 0 sees counts.
away = schema.Data(root=root if rank else broken, download=False, if_missing="synthetic",
                   synthetic=schema.Synthetic(train=8, test=8))
left = [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("hpc-amp")]
print(run(away).name, left)
sys.stdout.flush()
dist.barrier()
os._exit(0)  # as the engine does: taking the group down can hang with torch 2.1
"""


@pytest.mark.ranks
def test_two_ranks_decode_once_and_fail_together(warm: Warm, tmp_path: Path) -> None:
    root = write_images(tmp_path / "pets")
    write_images(tmp_path / "pets-0")  # of which rank 1 looks for another one
    broken = write_images(tmp_path / "broken")
    (broken / "train" / "cat" / "000.png").write_bytes(b"")
    with tempfile.TemporaryDirectory() as node:
        ranks = [
            warm.start(
                *("-c", RANK, str(rank), tmp_path / "store", root, broken), environ={"TMPDIR": node}
            )
            for rank in range(2)
        ]
        ended = [rank.wait(timeout=300) for rank in ranks]
    said = [(rank.stdout, rank.stderr) for rank in ended]
    assert [rank.returncode for rank in ended] == [0, 0], said
    (first, warning), (second, quiet) = said
    assert first == second
    decoded, alone, *lines = first.splitlines()
    assert decoded == alone, "also where ranks do not see each other's files"
    assert alone.endswith(f"{[0] * 8 + [1] * 8}")
    assert lines[0] == f"{[0] * 8 + [1] * 8}", "read again in each epoch"
    assert lines[1].startswith("DataError the image")
    assert lines[2].startswith("DataError CIFAR-10 is not in")
    assert lines[3].startswith("DataError train.data.decoder=dali: absent on rank 1; ")
    assert lines[4] == f"DataError the image folder {root}-1 is not visible from every node"
    assert lines[5] == "SYNTHETIC []"  # no decoded file is left on the node
    assert "SYNTHETIC images stand in" in warning
    assert warning.count("each of them keeps all images in its memory") == 1
    assert "SYNTHETIC" not in quiet
