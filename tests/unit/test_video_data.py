"""Video: warping, flows, synthetic sequences and their truth, folders, samples by position."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.training import CPU, settings
from support.video import write_videos
from torch import Tensor

from hpc_amp.config.checks import find_data
from hpc_amp.config.schema import from_plain
from hpc_amp.data.decode import to_pixels
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError
from hpc_amp.gan.data.reading import DrawnImages
from hpc_amp.gan.data.training import Prepared, prepare_videos
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import images_below
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.config import FrameCounts, SyntheticVideos, VideoData, flow_source
from hpc_amp.gan.video.flows import estimated_flows, read_flow, write_flow
from hpc_amp.gan.video.synthetic import DrawnVideos
from hpc_amp.gan.video.warp import compose, gather_bilinear, inside, warp
from hpc_amp.tasks.vid2vid.config import Vid2vidConfig

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


def flow_of(x: float, y: float, height: int, width: int) -> Tensor:
    return (
        torch.tensor([float(x), float(y)])[None, :, None, None]
        .expand(1, 2, height, width)
        .contiguous()
    )


# -- warping ---------------------------------------------------------------------------------------


def warp_by_lookups(images: Tensor, flow: Tensor) -> Tensor:
    """As `warp` on a GPU with deterministic algorithms."""
    columns = torch.arange(images.shape[3]) + flow[:, 0]
    rows = torch.arange(images.shape[2])[:, None] + flow[:, 1]
    return gather_bilinear(images, columns, rows)


@pytest.mark.parametrize("way", [warp, warp_by_lookups])
def test_a_warped_image_is_where_the_flow_says(way: Any) -> None:
    """Pixels are points: no half of a pixel is lost, as with other `align_corners`."""
    image = torch.rand(1, 3, 6, 9)
    torch.testing.assert_close(way(image, flow_of(0, 0, 6, 9)), image)
    moved = way(image, flow_of(2, -1, 6, 9))
    torch.testing.assert_close(moved[..., 1:, :-2], image[..., :-1, 2:])
    torch.testing.assert_close(moved[..., 1:, -2:], image[..., :-1, -1:].expand(1, 3, 5, 2))
    half = way(image, flow_of(0.5, 0, 6, 9))
    torch.testing.assert_close(half[..., :-1], (image[..., 1:] + image[..., :-1]) / 2)


def test_a_flow_that_is_no_number_gives_pixels_that_are_none() -> None:
    """The loss tells of it then, and not an error of the GPU that names no cause."""
    image, flow = torch.rand(1, 3, 6, 9), flow_of(1, 0, 6, 9)
    flow[0, 0, 2, 3] = flow[0, 1, 4, 5] = torch.nan
    flow[0, 0, 5, 5] = torch.inf
    wanted = torch.zeros(6, 9, dtype=torch.bool)
    wanted[2, 3] = wanted[4, 5] = True
    flow.requires_grad_()
    moved = warp_by_lookups(image, flow)
    assert torch.equal(moved.isnan(), wanted.expand(1, 3, 6, 9))
    moved.sum().backward()


def test_both_ways_to_warp_have_the_same_gradients() -> None:
    image = torch.rand(2, 3, 7, 5)
    flow = 3 * torch.randn(2, 2, 7, 5)
    wanted = torch.rand(2, 3, 7, 5)
    found = []
    for way in (warp, warp_by_lookups):
        inputs = image.clone().requires_grad_(), flow.clone().requires_grad_()
        out = way(*inputs)
        (out - wanted).square().sum().backward()
        found.append((out.detach(), *(each.grad for each in inputs)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_a_grid_is_never_in_half_precision(half: torch.dtype) -> None:
    """At the right of a wide image, coordinates in half precision are off by pixels."""
    image = torch.arange(3001.0).expand(1, 1, 2, 3001).contiguous() / 3001
    with torch.autocast("cpu", dtype=half):
        moved = warp(image, flow_of(-1, 0, 2, 3001).to(half))
    assert moved.dtype == torch.float32
    torch.testing.assert_close(moved[..., 1:], image[..., :-1], atol=1e-5, rtol=0)
    columns = torch.arange(3001.0).to(half) - 1  # what must not be done
    assert (columns.float() - (torch.arange(3001.0) - 1)).abs().max() >= 1


def test_flows_are_composed_and_leave_the_image() -> None:
    two = compose(flow_of(2, 0, 8, 8), flow_of(1, 3, 8, 8))
    torch.testing.assert_close(two, flow_of(3, 3, 8, 8))
    within = inside(flow_of(2, -1, 4, 6))
    assert within[0].nonzero().tolist() == [[r, c] for r in (1, 2, 3) for c in range(4)]


# -- synthetic video -------------------------------------------------------------------------------


def test_known_flow_and_points_say_where_everything_was() -> None:
    drawn = DrawnVideos(3, 6, (16, 24), SyntheticVideos(frames=12, speed=3), "test")
    shares = []
    for sequence, time in itertools.product(range(3), range(1, 12)):
        before, now = (drawn.frames[12 * sequence + at] for at in (time - 1, time))
        for name in ("image", "labels", "points"):
            old, new = (
                getattr(frame, name).float().view(16, 24, -1).permute(2, 0, 1)[None]
                for frame in (before, now)
            )
            error = (warp(old, now.flow[None]) - new).abs().amax((0, 1))
            assert error[now.known].max() < 1e-2, name
        elsewhere = ~torch.isin(now.points, before.points)
        assert not (now.known & elsewhere).any()
        # A point that was visible, and is the only one of its kind, is known.
        assert (now.known | elsewhere).all()
        shares.append(float(now.known.float().mean()))
    assert 0.5 < min(shares) < 0.98 and max(shares) <= 1
    assert drawn.frames[0].points.unique().numel() == 16 * 24
    again = DrawnVideos(3, 6, (16, 24), SyntheticVideos(frames=12, speed=3), "test")
    assert torch.equal(again.frames[30].image, drawn.frames[30].image), "in any order"


# -- samples by position ---------------------------------------------------------------------------

DATA: dict[str, Any] = {
    "image_size": [16],
    "labels": 4,
    "frames": {"first": 2, "double_every": 1, "most": 6, "evaluation": 5},
    "synthetic": {"train": 6, "test": 3, "frames": 8},
}


def prepared(world: World | None = None, **data: Any) -> Prepared[VideoBatch]:
    train = settings(batch_size=2, seed=3)
    return prepare_videos(from_plain(VideoData, {**DATA, **data}), train, world or World(), CPU)


def members(batch: VideoBatch) -> dict[str, Tensor]:
    values = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    return {name: value for name, value in values.items() if value is not None}


def assert_same(batch: VideoBatch, other: VideoBatch) -> None:
    assert members(batch).keys() == members(other).keys()
    for name, value in members(batch).items():
        assert torch.equal(value, members(other)[name]), name


def test_sequences_grow_with_the_epoch_and_are_found_by_position() -> None:
    training = prepared().training
    assert training.steps_per_epoch == 3
    lengths = [next(training.epoch(epoch))[0].images.shape[1] for epoch in range(4)]
    assert lengths == [2, 4, 6, 6]
    assert [FrameCounts(double_every=0).of_epoch(e) for e in (0, 9**9)] == [6, 6]
    assert FrameCounts(double_every=1).of_epoch(9**9) == 30
    whole = [batch for (batch,) in training.epoch(1)]
    assert_same(next(prepared().training.epoch(1, 2))[0], whole[2])
    starts = {tuple(batch.images[0, 0].flatten()[:60].tolist()) for batch in whole}
    assert len(starts) == 3, "of different sequences"
    (flows,), (known,) = ([getattr(b, name)] for b in whole[:1] for name in ("flows", "known"))
    assert flows.shape == (2, 3, 2, 16, 16) and known.dtype == torch.bool


def test_two_ranks_have_the_sequences_of_one() -> None:
    (one,) = next(prepared().training.epoch(2, 1))
    two = [next(prepared(World(rank=r, size=2)).training.epoch(2, 1))[0] for r in range(2)]
    for name, value in members(one).items():
        assert torch.equal(torch.cat([members(part)[name] for part in two]), value), name
    tests = [list(prepared(World(rank=r, size=2)).evaluation()) for r in range(2)]
    assert [sum(map(len, batches)) for batches in tests] == [2, 1]
    assert tests[0][0].images.shape[1] == 5


def test_a_mirrored_or_cut_sequence_has_a_flow_that_fits() -> None:
    """Of frames that are scaled up before a part is cut out, flows are longer."""
    mirrored = 0
    for load_size, error in (([16], 1e-4), ([24], 0.25)):
        batches = [b for (b,) in prepared(load_size=load_size).training.epoch(3)]
        plain = [b for (b,) in prepared(load_size=load_size, flip=False).training.epoch(3)]
        for batch, other in zip(batches, plain, strict=True):
            assert batch.flows is not None and batch.known is not None
            old, new = batch.images[:, :-1].flatten(0, 1), batch.images[:, 1:].flatten(0, 1)
            known = batch.known.flatten(0, 1)[:, None].expand_as(new)
            difference = (warp(old, batch.flows.flatten(0, 1)) - new)[known].abs()
            assert difference.mean() < error
            still = (old - new)[known].abs()
            assert difference.mean() < still.mean() / 2
            if not torch.equal(batch.images, other.images):
                mirrored += 1
        if load_size == [24]:
            longest = max(float(b.flows.abs().max()) for b in batches if b.flows is not None)
            assert longest > 2 and longest % 1.5 == pytest.approx(0)
    assert mirrored > 0


# -- folders ---------------------------------------------------------------------------------------


def test_a_folder_gives_what_was_written(tmp_path: Path) -> None:
    drawn = write_videos(tmp_path)["test"]
    folder: dict[str, Any] = {"name": "folder", "root": str(tmp_path), "instances": True}
    found = prepared(**folder)
    (batch, *_) = found.evaluation()
    assert found.training.samples == 2 and batch.images.shape == (2, 4, 3, 16, 16)
    assert batch.flows is not None and batch.known is not None
    frames = [drawn.frames[number] for number in range(8)]
    images = torch.stack([frame.image.permute(2, 0, 1) for frame in frames]).float() / 127.5 - 1
    torch.testing.assert_close(batch.images.flatten(0, 1), images)
    for name in ("labels", "instances"):
        wanted = torch.stack([getattr(frame, name) for frame in frames]).long()
        assert torch.equal(getattr(batch, name).flatten(0, 1), wanted)
    known = torch.stack([frames[at].known for at in (1, 2, 3, 5, 6, 7)])
    assert torch.equal(batch.known.flatten(0, 1), known)
    flows = torch.stack([frames[at].flow for at in (1, 2, 3, 5, 6, 7)])
    assert torch.equal(batch.flows.flatten(0, 1) * known[:, None], flows * known[:, None])
    data = from_plain(VideoData, {**DATA, **folder})
    assert conditions(batch, data).shape == (2, 4, 5, 16, 16)
    assert data.examine(settings(batch_size=2)) == (
        f"2 sequences of 8 frames for training, 2 of 8 for evaluation in {tmp_path}"
    )
    pictures = prepared(**folder, inputs="images", flow="none")
    (batch, *_) = pictures.evaluation()
    assert batch.flows is None and batch.labels is None and batch.inputs is not None
    assert batch.first(1).inputs is not None and len(batch.first(1)) == 1


def test_a_folder_in_a_sequence_is_another_sequence(tmp_path: Path) -> None:
    write_videos(tmp_path)
    for part in "AB":
        (tmp_path / f"train_{part}/scene 1").rename(tmp_path / f"train_{part}/scene 0/frame-001b")
    data = from_plain(VideoData, {"name": "folder", "root": str(tmp_path), "flow": "none"})
    files = data.scan(settings(batch_size=2)).train
    assert files.lengths == (4, 4)
    folders = [str(Path(path).parent.name) for path in files.images]
    assert folders == [*["scene 0"] * 4, *["frame-001b"] * 4]


def test_frames_are_in_the_order_of_names_and_of_numbers(tmp_path: Path) -> None:
    """The same one in training and generation, also where a name is the beginning of another."""
    folders = [tmp_path / part / "scene" for part in ("train_A", "train_B", "test_A", "test_B")]
    ordered = ["a", "a-1", "a10", "a2b", "b1x", "b1y", "b2x", "b9"]
    for folder in folders:
        folder.mkdir(parents=True)
        for name in ordered:
            (folder / f"{name}.png").touch()
    data = from_plain(VideoData, {"name": "folder", "root": str(tmp_path), "flow": "none"})
    trained = data.scan(settings(batch_size=1)).train
    assert [Path(path).stem for path in trained.images] == ordered
    inputs = tmp_path / "test_A"
    (generated,) = Request(inputs, images_below(inputs)).sequences()
    assert [path.stem for path in generated] == ordered
    for folder in folders:
        (folder / "b10x.png").touch()
    said = r"by their names, .*scene/b10x is before .*scene/b1x, by their numbers after it: give"
    with pytest.raises(DataError, match=said):
        data.scan(settings(batch_size=1))
    with pytest.raises(InputError, match=said):
        Request(inputs, images_below(inputs)).sequences()


def test_flow_is_estimated_from_frames_where_there_is_none(tmp_path: Path) -> None:
    """By OpenCV, much better than no movement; and the same in threads that read side by side."""
    drawn = write_videos(tmp_path, size=(64, 64), sequences=3)["test"]
    shutil.rmtree(tmp_path / "train_flow")
    shutil.rmtree(tmp_path / "test_flow")
    keys = {"name": "folder", "root": str(tmp_path), "image_size": [64], "flow": "dis"}
    read, again = ([*prepared(**keys, workers=workers).evaluation()] for workers in (0, 2))
    flows, known = (torch.cat([getattr(b, name) for b in read]) for name in ("flows", "known"))
    assert torch.equal(torch.cat([b.flows for b in again if b.flows is not None]), flows)
    truth = [drawn.frames[number] for number in range(12) if number % 4]
    both = known.flatten(0, 1) & torch.stack([frame.known for frame in truth])
    wanted = torch.stack([frame.flow for frame in truth])
    error = (flows.flatten(0, 1) - wanted).square().sum(1).sqrt()[both].mean()
    # Waves of four pixels look the same after two movements of two.
    assert error < 0.5 * wanted.square().sum(1).sqrt()[both].mean()
    assert both.float().mean() > 0.6


def moved(now: Tensor, before: Tensor) -> Tensor:
    """An estimate for `images.flow`: the columns from 4 on were two pixels to the left, or the
    others two to the right."""
    flow = torch.zeros(2, *now.shape[1:])
    if now.float().mean() > before.float().mean():
        flow[0, :, 4:] = -2
    else:
        flow[0, :, :4] = 2
    return flow


def test_a_flow_of_ones_own_is_known_where_it_leads_back() -> None:
    light, dark = (Image.new("RGB", (8, 5), colour) for colour in ("white", "black"))
    frames = DrawnImages(2, lambda number: to_pixels((dark, light)[number]).permute(1, 2, 0))
    flow, known = estimated_flows(frames, f"{__name__}:moved")(1)
    assert torch.equal(flow[0], torch.tensor([0.0, 0, 0, 0, -2, -2, -2, -2]).expand(5, 8))
    assert known.tolist() == [[False] * 2 + [False] * 2 + [True] * 2 + [False] * 2] * 5


def wrong(now: Tensor, before: Tensor) -> Tensor:
    """No estimate at all."""
    return now


def test_what_is_wrong_with_estimated_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"the flow of .*:wrong returns \(3, 16, 16\) instead of"):
        prepared(flow=f"{__name__}:wrong")
    with pytest.raises(DataError, match=r"nowhere:at_all cannot be imported"):
        prepared(flow="nowhere:at_all")
    with pytest.raises(ValueError, match="'fast' is none of known, dis, none and"):
        flow_source("fast")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(DataError, match=r"flow: dis needs OpenCV .*pip install 'hpc-amp\[flow\]'"):
        prepared(flow="dis")


def test_frames_may_be_too_small_for_open_cv() -> None:
    with pytest.raises(DataError, match=r"the flow of .*: OpenCV cannot estimate it"):
        prepared(flow="dis", image_size=[8])


def test_what_is_wrong_with_a_folder_of_videos(tmp_path: Path) -> None:
    folder: dict[str, Any] = {"name": "folder", "root": str(tmp_path)}
    with pytest.raises(DataError, match=r"no videos in .*: expected train_A and train_B"):
        prepared(**folder)
    write_videos(tmp_path)
    flow = tmp_path / "train_flow/scene 1/frame-002.flo"
    content = flow.read_bytes()
    flow.unlink()
    with pytest.raises(
        DataError, match=r"scene 1/frame-002 has no flow: there is no .*flow/scene 1/frame-002\.flo"
    ):
        prepared(**folder)
    for wrong, message in (
        (b"", "is not a flow in Middlebury's format"),
        (content[:-4], "has 2056 bytes, which does not fit a flow of 16 x 16 pixels"),
    ):
        flow.write_bytes(wrong)
        with pytest.raises(DataError, match=message):
            read_flow(str(flow))
    write_flow(flow, torch.zeros(2, 8, 16), torch.ones(8, 16, dtype=torch.bool))
    with pytest.raises(DataError, match="has 16 x 16 pixels, and its flow 16 x 8"):
        next(prepared(**folder, frames={"evaluation": 4}).training.epoch(3))
    (tmp_path / "train_B/scene 1/frame-000.png").unlink()
    with pytest.raises(
        DataError, match=r"have no partner in .*train_B: the first is scene 1/frame"
    ):
        prepared(**folder, flow="none")
    for part in "AB":
        for number in (0, 1, 2):
            path = tmp_path / f"train_{part}/scene 1/frame-00{number}.png"
            path.unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"the sequence of .*frame-003\.png has one frame"):
        prepared(**folder, flow="none")


def test_validate_tells_what_a_training_would_refuse(tmp_path: Path) -> None:
    write_videos(tmp_path)

    def wrong(**keys: Any) -> list[tuple[str, str]]:
        images = {"name": "folder", "root": str(tmp_path), "labels": 4, "image_size": [32]}
        train = from_plain(Vid2vidConfig, {"images": images, "batch_size": 2, **keys})
        return [(each.key, each.text) for each in find_data(train) if not each.usable]

    assert wrong() == []
    few = "batch_size: 3 is more than the 2 training samples"
    assert wrong(batch_size=3) == [("train.images", few)]
    for part in ("A", "B"):
        for path in sorted((tmp_path / f"train_{part}/scene 1").iterdir())[2:]:
            path.unlink()
    short = (
        f"the sequence of {tmp_path}/train_B/scene 1/frame-000.png has 2 frames, and the temporal "
        "discriminator judges 3 together: remove the sequence, or set "
        "train.vid2vid.temporal.frames to less"
    )
    assert wrong() == [("train.images", short)]
    frames = {"temporal": {"scales": 0}}
    assert wrong(vid2vid=frames) == []
    for part in ("A", "B"):
        for path in sorted((tmp_path / f"test_{part}/scene 1").iterdir())[1:]:
            path.unlink()
    single = f"the sequence of {tmp_path}/test_B/scene 1/frame-000.png has one frame"
    assert wrong(vid2vid=frames) == [("train.images", f"{single}, and each needs two")]
