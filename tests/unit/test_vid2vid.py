"""vid2vid: networks, losses, phases, number formats, resume, generated sequences."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.gan_checks import check_number_formats, check_phases
from support.training import CPU, settings
from support.vid2vid import LOSSES, METRICS, ONE, TWO, plain_train, vid2vid
from support.video import write_faces, write_videos
from support.video_checks import check_generated, check_resume_where_sequences_grow, forward_passes
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torchvision.transforms.functional import pil_to_tensor

from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.data.reading import View
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import images_below
from hpc_amp.gan.video.batches import VideoBatch, conditions
from hpc_amp.gan.video.config import FlowNetwork
from hpc_amp.gan.video.consistency import consistency_sums, flow_loss
from hpc_amp.gan.video.discriminators import time_windows
from hpc_amp.gan.video.networks import FlowEstimator
from hpc_amp.gan.video.poses import Figure, Point
from hpc_amp.gan.video.regions import crop, squares, squares_of_points
from hpc_amp.gan.video.warp import correlation, warp
from hpc_amp.tasks.base import Networks
from hpc_amp.tasks.build import build_task

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")
REGIONS = {"labels": [], "size": 8, "width": 4, "layers": 1}


def test_each_phase_moves_all_of_its_networks_and_nothing_else(tmp_path: Path) -> None:
    """DDP waits for each parameter. Also in the shortest sequences that are allowed."""
    made = vid2vid(tmp_path)
    check_phases(made, buffers=False)
    assert {loss for update in made.updates for loss in update.losses} == set(LOSSES)
    assert made.updates[0].phase.networks == (
        *("discriminator", "temporal_discriminator", "region_discriminator"),
    )


def test_a_sequence_is_one_forward_pass_of_each_network(tmp_path: Path) -> None:
    """So the ranks exchange the gradients of a network once in a step, and not once a frame."""
    made = vid2vid(tmp_path, adversarial={"r1": 0.0})
    assert forward_passes(made) == [
        *["discriminator"] * 2,
        *["generator"] * 2,
        *["region_discriminator"] * 2,
        *["temporal_discriminator"] * 2,
    ]


def test_without_time_flow_and_regions_there_are_fewer_losses(tmp_path: Path) -> None:
    networks = {
        "temporal": {"scales": 0},
        "regions": {"labels": []},
        "losses": {"flow": 0.0, "mask": 0.0, "perceptual": 0.0},
    }
    made = vid2vid(
        tmp_path, vid2vid=networks, images={"flow": "none"}, adversarial={"r1": 0.0}, epochs=1
    )
    assert list(made.networks) == ["generator", "discriminator"]
    assert list(made.updates[1].losses) == ["gan", "features", "warp"]
    made.fit()
    assert set(made.metrics) == {*METRICS[:5]}


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O1", "O2"])
def test_convolutions_are_half_and_flows_masks_and_frames_fp32(mode: str, tmp_path: Path) -> None:
    made = vid2vid(tmp_path, precision=mode, adversarial={"r1": 0.0}, **ONE)
    generator: Any = made.networks["generator"]
    wide: list[Tensor] = []
    generator.flow.register_forward_hook(lambda *seen: wide.extend(seen[2]))
    check_number_formats(made, mode)
    assert set(METRICS) <= set(made.metrics)
    (batch,) = next(made.data.epoch(0))
    with made.policy.autocast():
        outputs = generator(conditions(batch, made.train.images))  # type: ignore[attr-defined]
    assert len(wide) > 4 and {x.dtype for x in (*wide, *outputs)} == {torch.float32}
    for update in made.updates:
        update.run([batch], lambda: None)  # overflows at first, perhaps
        assert all(p.isfinite().all() for p in generator.parameters())


def test_wrong_keys_are_refused() -> None:
    def check(**train: Any) -> str:
        config = settings(**plain_train(**train))
        with pytest.raises(KeyProblem) as error:
            config.check_keys()
        return error.value.key

    assert check(images={"frames": {"first": 2}}) == "images.frames.first"
    assert check(images={"flow": "none"}) == "vid2vid.losses.flow"
    assert check(vid2vid={"stages": 4}) == "vid2vid.stages"
    assert check(vid2vid={"flow": {"halvings": 4}}) == "vid2vid.flow.halvings"
    assert check(vid2vid={"temporal": {"layers": 4}}) == "vid2vid.temporal.layers"
    assert check(vid2vid={"regions": {"labels": [0, 4]}}) == "vid2vid.regions.labels"
    assert check(vid2vid={"regions": {"labels": [0], "size": 4}}) == "vid2vid.regions.layers"
    assert check(images={"inputs": "images"}) == "vid2vid.regions.labels"
    assert check(images={"regions": ["face"]}) == "images.regions"
    small = {"labels": [], "size": 4}
    faces = {"name": "folder", "inputs": "images", "regions": ["face"]}
    assert check(images=faces, vid2vid={"regions": small}) == "vid2vid.regions.layers"


def test_a_sequence_that_is_too_short_to_be_judged_is_refused() -> None:
    short = {"synthetic": {"train": 4, "test": 1, "frames": 2}}
    with pytest.raises(KeyProblem, match="frames: 2 are less than the 3 that the temporal"):
        build_task(settings(**plain_train(images=short)), World(), CPU)
    untimed = plain_train(images=short, vid2vid={"temporal": {"scales": 0}})
    assert build_task(settings(**untimed), World(), CPU).prepare_data().samples == 4


def test_the_first_weights_are_drawn_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a seed gives the same ones in every process, whatever the hashes of names are."""
    drawn: list[nn.Module] = []
    monkeypatch.setattr("hpc_amp.gan.video.task.initialize", drawn.append)
    built = build_task(settings(**plain_train()), World(), CPU).build_networks()
    assert list(map(id, drawn)) == [id(built[name]) for name in list(built)[1:]]
    assert len(drawn) == 3


# -- the generator ---------------------------------------------------------------------------------


def generator_of(**networks: Any) -> Any:
    """With weights that give flows and masks of some size."""
    task = build_task(settings(**plain_train(vid2vid=networks)), World(), CPU)
    torch.manual_seed(1)
    made: Any = task.build_networks()["generator"]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(8.0)
    return made


def shown(*shape: int) -> Tensor:
    return torch.rand(*shape, 5, 16, 16)


def test_a_sequence_in_pieces_is_the_same_as_at_once() -> None:
    """So a sequence of any length is made with the memory of some frames."""
    generator = generator_of().eval()
    condition = shown(2, 6)
    with torch.no_grad():
        whole, flows, masks = generator(condition)
        first, _, _ = generator(condition[:, :3])
        rest, later, _ = generator(condition[:, 3:], first[:, -2:], condition[:, 1:3])
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    torch.testing.assert_close(later, flows[:, 2:])
    assert flows.shape == (2, 5, 2, 16, 16) and flows.abs().max() > 0.5
    assert masks.min() > 0 and masks.max() < 1
    one, none, _ = generator(condition[:, :1])
    assert one.shape == (2, 1, 3, 16, 16) and none.shape == (2, 0, 2, 16, 16)


@pytest.mark.parametrize(("frames", "reached"), [(1, {3}), (2, {2, 3}), (9, {0, 1, 2, 3})])
def test_gradients_go_back_over_as_many_frames_as_wanted(frames: int, reached: set[int]) -> None:
    generator = generator_of(backprop_frames=frames, spectral="none")
    condition = shown(1, 4).requires_grad_()
    # Through frames alone: a frame sees earlier conditions, too.
    decode = generator._decode
    generator._decode = lambda x, now, guides=(): decode(x.detach(), now, guides)
    flow = generator.flow.forward
    generator.flow.forward = lambda *seen: tuple(out.detach() for out in flow(*seen))
    made, _, _ = generator(condition)
    (gradient,) = torch.autograd.grad(made[:, -1].sum(), condition)
    assert {time for time in range(4) if gradient[0, time].abs().sum() > 0} == reached


def test_checkpointing_keeps_less_and_changes_nothing(tmp_path: Path) -> None:
    """Also with spectral norms, whose power iteration changes them in each forward pass."""
    results, kept = [], []
    for checkpointing in (False, True):
        generator = generator_of(checkpointing=checkpointing).train()
        sizes: list[int] = []

        def note(value: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(value.numel())
            return value

        condition = torch.linspace(0, 1, 4 * 5 * 256).reshape(1, 4, 5, 16, 16)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            made, flows, _ = generator(condition)
        (made.square().mean() + flows.abs().mean()).backward()
        gradients = {name: value.grad for name, value in generator.named_parameters()}
        results.append({**gradients, **dict(generator.named_buffers()), "made": made})
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 5
    for name, value in results[0].items():
        assert value is not None
        torch.testing.assert_close(results[1][name], value, atol=1e-6, rtol=1e-4)


def test_a_network_that_knows_flow_and_mask_copies_the_frame_before() -> None:
    generator = generator_of().eval()
    flow = torch.zeros(1, 2, 16, 16)
    flow[:, 0] = 3.0
    generator.flow = _Fixed(flow, torch.zeros(1, 1, 16, 16))
    with torch.no_grad():
        made, _, _ = generator(shown(1, 3))
    torch.testing.assert_close(made[:, 2], warp(made[:, 1], flow))
    torch.testing.assert_close(made[:, 2, :, :, :-6], made[:, 0, :, :, 6:])


class _Fixed(nn.Module):
    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, seen: Tensor, now: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        return self.outputs


def test_a_correlation_is_largest_where_the_flow_leads() -> None:
    before = torch.nn.functional.one_hot(torch.randint(5, (1, 12, 12)), 5).permute(0, 3, 1, 2)
    now = before.roll((-1, 2), (2, 3)).half()  # what is at (x, y) was at (x - 2, y + 1)
    found = correlation(now, before.half(), 2)
    assert found.shape == (1, 25, 12, 12) and found.dtype == torch.float16
    best = found[:, :, 2:-2, 2:-2].float().mean((2, 3)).argmax()
    assert divmod(int(best), 5) == (2 + 1, 2 - 2)
    made = generator_of(flow={"correlation": 0})
    assert made(shown(1, 2))[1].shape == (1, 1, 2, 16, 16)


@pytest.mark.parametrize("mode", [torch.float32, torch.float16, torch.bfloat16])
def test_before_anything_is_learned_the_flow_is_where_label_maps_fit(mode: torch.dtype) -> None:
    before = torch.nn.functional.one_hot(torch.randint(5, (1, 24, 24)), 5).permute(0, 3, 1, 2)
    now = before.roll((-1, 2), (2, 3)).float()  # what is at (x, y) was at (x - 2, y + 1)
    config = FlowNetwork(width=4, halvings=1, blocks=1, norm="none", correlation=3, scale=4.0)
    estimator = FlowEstimator(5, config, "none")
    estimator.settle()
    with torch.autocast("cpu", dtype=mode, enabled=mode != torch.float32):
        flow, _ = estimator(now, now, before.float())
    assert flow.dtype == torch.float32
    error = (flow - torch.tensor([-2.0, 1.0])[:, None, None])[..., 6:-6, 6:-6]
    assert error.abs().mean() < 0.5


# -- regions ---------------------------------------------------------------------------------------


def test_a_crop_shows_the_square_around_a_label() -> None:
    labels = torch.zeros(3, 12, 16, dtype=torch.int64)
    labels[0, 2:6, 8:10] = 1  # 4 rows, 2 columns
    labels[1, 5, 0] = 1
    places, present = squares(labels, 1, 2)
    assert present.tolist() == [True, True, False]
    assert places.tolist() == [[8.5, 3.5, 4], [0, 5, 2], [7.5, 5.5, 2]]
    images = torch.rand(3, 2, 12, 16)
    crops = crop(images, places, 4)
    torch.testing.assert_close(crops[0], images[0, :, 2:6, 7:11])
    halves = crop(images[:1], places[:1], 2)
    wanted = torch.nn.functional.avg_pool2d(images[0, :, 2:6, 7:11], 2)
    torch.testing.assert_close(halves[0], wanted)
    assert crop(images.half(), places, 4).dtype == torch.float32


def test_only_frames_with_a_region_count_and_parts_of_a_batch_add_up(tmp_path: Path) -> None:
    """Without any region, the losses are 0, and gradients are there, for DDP waits for them."""
    made = vid2vid(tmp_path, adversarial={"r1": 0.0})
    task: Any = made.task
    for network in made.networks.values():
        network.eval()  # spectral norms stay as they are
    (batch,) = next(made.data.epoch(0))
    assert batch.labels is not None
    batch.labels[0][batch.labels[0] == 1] = 0
    batch.labels[2, 1][batch.labels[2, 1] == 2] = 0

    def losses(batch: Any) -> dict[str, Tensor]:
        found = task.discriminator_losses(batch, made.networks)
        found.update(task.generator_losses(batch, made.networks))
        return {name: loss for name, loss in found.items() if name.startswith("region")}

    whole, *halves = (
        losses(each) for each in (batch, batch.first(2), _part(batch, slice(2, None)))
    )
    assert set(whole) == {"region_d", "region_gan", "region_features"}
    for name, loss in whole.items():
        assert loss > 0 and loss.dtype == torch.float32
        torch.testing.assert_close((halves[0][name] + halves[1][name]) / 2, loss)
    none = losses(dataclasses.replace(batch, labels=torch.zeros_like(batch.labels)))
    assert not any(loss.any() for loss in none.values())
    judge = made.networks["region_discriminator"]
    gradients = torch.autograd.grad(none["region_d"], list(judge.parameters()), allow_unused=True)
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def body(**found: tuple[float, float]) -> Figure:
    """A body of 25 points, of which those with these numbers were found, such as `p15`."""
    points: list[Point] = [found.get(f"p{number}") for number in range(25)]
    return Figure("pose", points)


def test_squares_of_key_points_by_hand() -> None:
    """A view of columns 4 to 12 and rows 0 to 8 of a frame of 12 x 12 pixels, twice as large."""
    view = View(16, 16, (24,), down=0.0, right=1.0, mirror=False)
    assert view.box(12, 12) == (4, 0, 12, 8)

    def square(region: str, *figures: Figure, mirror: bool = False) -> list[float]:
        seen = dataclasses.replace(view, mirror=mirror)
        (found,) = squares_of_points(figures, [region], 12, 12, seen).tolist()
        return found

    hand = Figure("hand_left", [(5, 2), None, (7, 6)])
    # Pixel 6 of the frame is pixels 4 and 5 of the view.
    assert square("hand_left", hand) == [4.5, 8.5, 1.5 * 8]
    assert square("hand_left", hand, mirror=True) == [16 - 1 - 4.5, 8.5, 1.5 * 8]
    assert square("hand_right", hand) == square("face", hand) == [0, 0, 0]
    # Nose and an ear; a hip is no part of the head, and the largest of several people counts.
    small = body(p0=(6, 2), p17=(7, 2), p8=(6, 7))
    large = body(p0=(9, 3), p18=(11, 3))
    assert square("head", small) == [5.5, 4.5, 1.5 * 2]
    assert square("head", small, large) == square("head", large, small) == [12.5, 6.5, 1.5 * 4]
    assert square("head", body(p8=(6, 7))) == square("head") == [0, 0, 0]
    assert square("face", Figure("face", [(float("nan"), 6), (6, 7)])) == [0, 0, 0]
    # A single point has no extent, and this middle is left of the view.
    assert square("face", Figure("face", [(6, 6), None]))[2] == 0
    assert square("face", Figure("face", [(2, 2), (4, 2)]))[2] == 0
    assert square("face", Figure("face", [(3, 2), (6, 2)]))[2] > 0
    both = squares_of_points([hand, small], ["head", "hand_left"], 12, 12, view)
    assert both.dtype == torch.float32 and both[:, 2].tolist() == [3, 12]


@pytest.fixture
def faces(tmp_path: Path) -> dict[str, Any]:
    """Keys of `train` for video whose frames have a face."""
    write_videos(tmp_path / "data", sequences=4)
    write_faces(tmp_path / "data")
    keys = {"name": "folder", "root": str(tmp_path / "data"), "regions": ["face"], "flip": False}
    return {"images": {**keys, "instances": False}, "adversarial": {"r1": 0.0}}


def test_only_frames_with_key_points_count(tmp_path: Path, faces: dict[str, Any]) -> None:
    """What is around a face does not count, and where nobody has one, losses are 0."""
    faces["images"]["frames"] = {"first": 4}
    made = vid2vid(tmp_path / "run", vid2vid={"regions": REGIONS}, **faces)
    task: Any = made.task
    for network in made.networks.values():
        network.eval()
    ((batch,), *_) = made.data.epoch(0)
    wanted = torch.tensor([[7.0, 6, 9], [0, 0, 0], [7, 8, 9], [7, 9, 9]])
    torch.testing.assert_close(batch.regions, wanted[:, None].expand(4, 4, 1, 3))

    def loss(**changes: Any) -> Tensor:
        changed = dataclasses.replace(batch, **changes)
        found: Tensor = task.discriminator_losses(changed, made.networks)["region_d"]
        return found

    whole = loss()
    outside, inside = batch.images.clone(), batch.images.clone()
    outside[:, 1] = 0.5  # nobody is here
    outside[:, 0, :, 12:] = 0.5
    inside[:, 0, :, 4:9, 4:11] = 0.5
    assert whole > 0 and whole.dtype == torch.float32
    torch.testing.assert_close(loss(images=outside), whole)
    assert abs(loss(images=inside) - whole) > 1e-4
    nobody = torch.zeros_like(batch.regions)
    none = loss(regions=nobody)
    judge = made.networks["region_discriminator"]
    gradients = torch.autograd.grad(none, list(judge.parameters()), allow_unused=True)
    assert none == 0
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_faces_are_judged_beside_labels_and_evaluations_need_none(
    tmp_path: Path, faces: dict[str, Any]
) -> None:
    """A file that is missing is named."""
    made = vid2vid(tmp_path / "run", **faces)
    judge: Any = made.networks["region_discriminator"]
    judged: list[int] = []
    judge.register_forward_hook(lambda _, inputs, __: judged.append(len(inputs[0])))
    made.train_step(next(made.data.epoch(0)))
    assert judged == [3, 3]  # two labels and the face, once in each phase
    (evaluated,) = made.task.evaluation_batches()  # type: ignore[attr-defined]
    assert evaluated.regions is None
    missing = tmp_path / "data/train_poses/scene 1/frame-002_keypoints.json"
    missing.unlink()
    with pytest.raises(
        DataError, match=f"has no key points: there is no {missing} or scene 1/frame"
    ):
        vid2vid(tmp_path / "next", **faces)


def _part(batch: VideoBatch, part: slice) -> VideoBatch:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dataclasses.replace(batch, **{k: v[part] for k, v in values.items() if v is not None})


# -- losses and metrics ----------------------------------------------------------------------------


def test_windows_of_time_scales_have_their_frames_and_flows() -> None:
    images = torch.arange(7.0)[None, :, None, None, None].expand(2, 7, 3, 4, 4)
    flows = torch.ones(2, 6, 2, 4, 4)
    near, far = time_windows(images, flows, frames=3, scales=2, unit=2.0)
    assert near.shape == (10, 13, 4, 4) and far.shape == (2, 13, 4, 4)
    assert near[1, :9:3, 0, 0].tolist() == [1, 2, 3] and near[5, 0, 0, 0] == 0
    assert far[0, :9:3, 0, 0].tolist() == [0, 3, 6]
    assert near[0, 9:, 0, 0].tolist() == [0.5] * 4 and far[0, 9:, 0, 0].tolist() == [1.5] * 4
    short = time_windows(images[:, :4], None, frames=3, scales=2, unit=2.0)
    assert [part.shape for part in short] == [(4, 9, 4, 4)] * 2


def test_metrics_of_consistency_by_hand(tmp_path: Path) -> None:
    made = vid2vid(tmp_path)
    (batch, *_) = made.task.evaluation_batches()
    assert batch.flows is not None and batch.known is not None
    right = consistency_sums(batch.images, batch.flows, batch.images, batch.flows, batch.known)
    assert right["flow_error"] == 0 and float(right["warping_error"] / right["known"]) < 1e-5
    off = batch.flows + torch.tensor([3.0, 4.0])[:, None, None]
    wrong = consistency_sums(
        batch.images * torch.tensor([1, -1, 1, -1])[:, None, None, None],
        off, batch.images, batch.flows, batch.known,
    )  # fmt: skip
    assert float(wrong["flow_error"] / wrong["known"]) == pytest.approx(5)
    assert float(wrong["warping_error"] / wrong["known"]) > 0.5
    assert wrong["warping_error_real"] == right["warping_error_real"]
    halves = [
        flow_loss(off[part], batch.flows[part], batch.known[part])
        for part in (slice(0, 2), slice(2, 4))
    ]
    whole = flow_loss(off, batch.flows, batch.known)
    assert float(sum(halves) / 2) == pytest.approx(float(whole)), "ranks add up to one"


def test_a_perfect_generator_has_the_best_metrics_and_is_shown(tmp_path: Path) -> None:
    made = vid2vid(tmp_path)
    task: Any = made.task
    task.render = lambda batch, networks: (batch.images, batch.flows)
    made.evaluate()
    found = made.metrics
    assert found["l1"] == 0 and found["flow_error"] == 0 and found["frechet_random"] < 1e-9
    assert found["warping_error"] == found["warping_error_real"] < 1e-5
    assert found["label_agreement"] > 0.95
    with torch.no_grad():
        pictures = task.pictures(made.networks)
    assert pictures.shape == (6, 3, 16, 4 * 16)
    assert torch.equal(pictures[1], pictures[2]) and not torch.equal(pictures[0], pictures[1])


def test_an_evaluation_shows_moving_pictures(tmp_path: Path) -> None:
    """As a file and in TensorBoard: inputs, generated and true frames side by side."""
    made = vid2vid(tmp_path, trackers=["tensorboard"], eval_batch_size=3)
    task: Any = made.task
    rendered: list[VideoBatch] = []

    def render(batch: VideoBatch, networks: Networks) -> tuple[Tensor, Tensor | None]:
        rendered.append(batch)
        return batch.images, batch.flows

    task.render = render
    made.evaluate()
    made.tracker.close()
    assert [len(batch) for batch in rendered] == [3, 1], "nothing is made again to be shown"
    assert torch.equal(task._shown.images, rendered[0].images[:2])
    (file,) = (tmp_path / "samples").glob("*.gif")
    board = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0}).Reload()
    (event,) = board.Images("video")
    assert event.encoded_image_string == file.read_bytes()
    assert (event.width, event.height) == (3 * 16, 2 * 16)
    truth = task._shown.images.permute(1, 2, 0, 3, 4).flatten(2, 3).add(1).mul(127.5)
    with Image.open(file) as gif:
        assert (gif.n_frames, gif.info["duration"], gif.info["loop"]) == (4, 120, 0)  # type: ignore[attr-defined]
        for time in range(4):
            gif.seek(time)
            frame = pil_to_tensor(gif.convert("RGB")).float()
            for columns in (slice(16, 32), slice(32, 48)):
                assert (frame[:, :, columns] - truth[time]).abs().mean() < 8
            assert (frame[:, :, :16] - truth[time]).abs().mean() > 20


def test_a_large_moving_picture_is_made_smaller(tmp_path: Path) -> None:
    tracker = vid2vid(tmp_path).tracker
    tracker.animation(3, torch.full((2, 3, 100, 4096), torch.nan))
    with Image.open(tmp_path / "samples/step-00000003.gif") as gif:
        assert gif.size == (1024, 25) and gif.convert("RGB").getextrema() == ((0, 0),) * 3


# -- resume ----------------------------------------------------------------------------------------


def test_a_resume_is_bit_exact_where_sequences_grow(tmp_path: Path) -> None:
    check_resume_where_sequences_grow(partial(vid2vid, **TWO), tmp_path, LOSSES, METRICS)


# -- generate --------------------------------------------------------------------------------------


def test_a_folder_in_a_sequence_is_another_sequence() -> None:
    files = [Path("in", name) for name in ("a/1.png", "a/b/1.png", "a/c.png", "d/1.png")]
    request = Request(folder=Path("in"), files=files)
    assert request.sequences() == [[files[0], files[2]], [files[1]], [files[3]]]


def test_frames_of_several_sequences_are_made_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As the evaluation makes them; one sequence does not see another."""
    write_videos(tmp_path / "data", sequences=5)
    keys = plain_train(images={"name": "folder", "root": str(tmp_path / "data")})
    keys["images"]["instances"] = False
    made = vid2vid(tmp_path / "run", images=keys["images"])
    folder = tmp_path / "data/test_A"
    request = Request(folder=folder, files=images_below(folder))
    _, shares = check_generated(made, request, 5)
    assert [len(share) for share in shares] == [12, 8]
