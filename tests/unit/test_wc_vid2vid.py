"""World-consistent vid2vid: guidance, losses, phases, number formats, resume, generated sequences,
and the network of first frames."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gan_checks import check_number_formats, check_phases
from support.paired import paired
from support.training import CPU, settings
from support.vid2vid import plain_train as vid2vid
from support.video import write_videos
from support.video_checks import check_generated, check_resume_where_sequences_grow, forward_passes
from support.wc_vid2vid import LOSSES, METRICS, ONE, TWO, plain_train, wc_vid2vid
from torch import Tensor

from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError, KeyProblem
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import check_options, images_below
from hpc_amp.gan.video.consistency import guidance_loss
from hpc_amp.gan.video.networks import MaskedSpade
from hpc_amp.gan.video.points import PointColours
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.build import build_task

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


@pytest.mark.parametrize("networks", [{}, {"partial": True}, {"keep_colours": True}])
def test_each_phase_moves_all_of_its_networks_and_nothing_else(
    networks: dict[str, bool], tmp_path: Path
) -> None:
    """DDP waits for each parameter."""
    made = wc_vid2vid(tmp_path, wc_vid2vid=networks)
    check_phases(made, buffers=False)
    assert {loss for update in made.updates for loss in update.losses} == set(LOSSES)


def test_a_sequence_is_one_forward_pass_of_each_network(tmp_path: Path) -> None:
    made = wc_vid2vid(tmp_path, adversarial={"r1": 0.0})
    assert forward_passes(made) == [*["discriminator"] * 2, *["generator"] * 2]


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O1", "O2"])
def test_convolutions_are_half_and_colours_fp32(mode: str, tmp_path: Path) -> None:
    made = wc_vid2vid(
        tmp_path,
        precision=mode,
        adversarial={"r1": 0.0},
        wc_vid2vid={"partial": mode == "fp16"},
        **ONE,
    )
    check_number_formats(made, mode)
    assert {*made.metrics} == {*METRICS}
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    with made.policy.autocast(), torch.no_grad():
        shown = torch.rand(1, 3, 5, 16, 16)
        video = task.make(batch, shown, made.networks)
    assert {video.frames.dtype, video.guidance.dtype} == {torch.float32}
    for update in made.updates:
        update.run([batch], lambda: None)  # overflows at first, perhaps
        assert all(p.isfinite().all() for p in made.networks["generator"].parameters())


# -- the generator ---------------------------------------------------------------------------------


def generator_of(**networks: Any) -> Any:
    """With weights that give frames of some contrast."""
    task = build_task(settings(**plain_train(wc_vid2vid=networks)), World(), CPU)
    torch.manual_seed(1)
    made: Any = task.build_networks()["generator"]
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(16.0)
    return made.eval()


def pan(frames: int) -> Tensor:
    """Points of a camera that goes to the right and comes back: [1, frames, 16, 16]."""
    whole = torch.arange(16)[:, None] * 1000 + torch.arange(64)
    at = [min(4 * time, 4 * (frames - 1 - time)) for time in range(frames)]
    return torch.stack([whole[:, left : left + 16] for left in at])[None]


@torch.no_grad()
def test_guidance_is_what_points_looked_like_first() -> None:
    points = pan(5)
    points[:, :, :2] = -1
    made, _, _, guidance = generator_of()(torch.rand(1, 5, 5, 16, 16), points)
    assert guidance[:, 0].abs().sum() == 0
    for time in range(1, 5):
        for row, column in ((0, 3), (5, 0), (5, 15), (9, 7)):
            number = points[0, time, row, column]
            seen = (points[0, :time] == number).nonzero()
            known = len(seen) > 0 and number >= 0
            assert guidance[0, time, 3, row, column] == float(known)
            if known:
                first, at, along = seen[0]
                wanted = made[0, first, :, at, along]
                assert torch.equal(guidance[0, time, :3, row, column], wanted)
    assert guidance[0, 1, 3, 2:].mean() == 0.75
    assert guidance[0, 4, 3, 2:].mean() == 1, "all was seen in the first frame"


@torch.no_grad()
@pytest.mark.parametrize("option", ["checkpointing", "partial", "keep_colours"])
def test_frames_depend_on_guidance_and_a_sequence_may_be_made_in_pieces(option: str) -> None:
    generator = generator_of(**{option: True})
    condition, points = torch.rand(2, 6, 5, 16, 16), pan(6).repeat(2, 1, 1, 1)
    whole, flows, _, guidance = generator(condition, points)
    colours = [PointColours(CPU) for _ in range(2)]
    first = generator(condition[:, :3], points[:, :3], colours=colours)[0]
    rest, later, _, seen = generator(
        condition[:, 3:], points[:, 3:], first[:, -2:], condition[:, 1:3], colours=colours
    )
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    torch.testing.assert_close(later, flows[:, 2:])
    torch.testing.assert_close(seen, guidance[:, 3:])
    unknown = generator(condition, torch.full_like(points, -1))[0]
    assert torch.equal(unknown[:, 0], whole[:, 0])
    assert (unknown[:, 1:] - whole[:, 1:]).abs().mean() > 1e-3


@torch.no_grad()
def test_known_colours_are_kept_where_the_weight_is_1() -> None:
    generator = generator_of(keep_colours=True)
    generator.kept.weight.zero_()
    generator.kept.bias.fill_(30.0)
    points = pan(5)
    points[:, 2, :4] = -1
    made, _, _, guidance = generator(torch.rand(1, 5, 5, 16, 16), points)
    known = guidance[:, :, 3:].bool().expand_as(made)
    assert known[:, 1:].any() and not known[:, 2, :, :4].any()
    torch.testing.assert_close(made[known], guidance[:, :, :3][known])
    generator.kept.bias.fill_(-30.0)
    drawn = generator(torch.rand(1, 5, 5, 16, 16), points)[0]
    assert (drawn[known] - guidance[:, :, :3][known]).abs().mean() > 1e-3


@torch.no_grad()
def test_memory_grows_with_points_and_not_with_frames() -> None:
    colours = PointColours(CPU)
    for points in pan(9)[0].repeat(20, 1, 1):
        colours.show(points)
        colours.add(points, torch.rand(3, 16, 16))
    assert len(colours.numbers) == len(pan(9).unique()) + 1
    assert colours.numbers.diff().min() > 0


def test_gradients_do_not_go_through_colours() -> None:
    generator = generator_of()
    condition = torch.rand(1, 3, 5, 16, 16).requires_grad_()
    *_, guidance = generator(condition, pan(3))
    assert not guidance.requires_grad and guidance[:, 1:].abs().sum() > 0


def test_checkpointing_changes_nothing() -> None:
    results = []
    for checkpointing in (False, True):
        generator = generator_of(checkpointing=checkpointing).train()
        condition = torch.linspace(0, 1, 4 * 5 * 256).reshape(1, 4, 5, 16, 16)
        made, _, _, guidance = generator(condition, pan(4))
        (made.square().mean() + guidance_loss(made, guidance)).backward()
        gradients = {name: value.grad for name, value in generator.named_parameters()}
        results.append({**gradients, **dict(generator.named_buffers()), "made": made})
    for name, value in results[0].items():
        if value is not None:  # without a loss of flows, their last layer's bias has a gradient
            torch.testing.assert_close(results[1][name], value, atol=1e-6, rtol=1e-4)


def test_a_partial_convolution_does_not_see_what_is_masked() -> None:
    torch.manual_seed(0)
    spade = MaskedSpade(4, 4, hidden=6)
    x, guide = torch.rand(1, 4, 12, 12), torch.rand(1, 4, 12, 12)
    guide[:, 3] = 0
    assert torch.equal(spade(x, guide), x)
    guide[:, 3, :, :6] = 1
    out = spade(x, guide)
    other = guide.clone()
    other[:, :3, :, 6:] = 9
    assert torch.equal(spade(x, other), out)
    # Two convolutions of 3 x 3 look two pixels beyond the border of the mask.
    assert torch.equal(out[..., 8:], x[..., 8:]) and (out[..., :8] != x[..., :8]).any()
    # Of equal pixels, those that count weigh as much as all of them: the border does not show where
    # a convolution takes the mean of its window.
    for conv in (spade.shared[0], spade.scale, spade.shift):
        conv.weight.data[:] = conv.weight.data.mean((2, 3), keepdim=True)
    flat = torch.full((1, 4, 12, 12), 0.5)
    flat[:, 3] = 1
    whole = spade(x, flat)
    flat[:, 3, :, 6:] = 0
    torch.testing.assert_close(spade(x, flat)[..., :6], whole[..., :6])


# -- losses and metrics ----------------------------------------------------------------------------


def test_the_guidance_loss_by_hand() -> None:
    made, guidance = torch.zeros(2, 3, 3, 4, 4), torch.zeros(2, 3, 4, 4, 4)
    guidance[:, 0] = 9.0  # the first frame does not count
    guidance[0, 1, :3], guidance[0, 1, 3, :2] = 0.5, 1
    assert float(guidance_loss(made, guidance)) == pytest.approx(0.5 / 4)
    guidance[0, 1, 3] = 1
    assert float(guidance_loss(made, guidance)) == pytest.approx(0.5 / 4), "the mean where it is"
    halves = [guidance_loss(made[part], guidance[part]) for part in (slice(0, 1), slice(1, 2))]
    assert float(sum(halves) / 2) == pytest.approx(0.5 / 4), "ranks add up to one"


def test_a_perfect_generator_has_the_best_metrics(tmp_path: Path) -> None:
    made = wc_vid2vid(
        tmp_path, images={"frames": {"evaluation": 20}, "synthetic": {"frames": 20, "test": 2}}
    )
    task: Any = made.task
    task.render = lambda batch, networks: (batch.images, batch.flows)
    made.evaluate()
    found = made.metrics
    assert found["l1"] == found["revisit_error"] == found["revisit_error_real"] == 0
    assert found["round_trip"] == 0
    with torch.no_grad():
        pictures = task.pictures(made.networks)
    assert pictures.shape == (6, 3, 16, 10 * 16), "of 20 frames, 10 from the first to the last"
    (shown,) = task._shown.images[:1]
    for column, time in ((0, 0), (9, 19)):
        part = pictures[1, :, :, 16 * column : 16 * column + 16]
        torch.testing.assert_close(part, shown[time].div(2).add(0.5).clamp(0, 1))
    ramp = torch.linspace(-1, 1, 39)[None, :, None, None, None]
    task.render = lambda batch, networks: (
        (0 * batch.images + ramp[:, : batch.images.shape[1]], batch.flows)
    )
    made.evaluate()
    assert made.metrics["round_trip"] == pytest.approx(2)
    assert 3 * 2 / 38 < made.metrics["revisit_error"] < 1


def test_a_metric_that_nothing_counts_for_is_left_out(tmp_path: Path) -> None:
    """Not 0, which is the best one: of two frames, none can show anything again."""
    made = wc_vid2vid(tmp_path, images={"frames": {"first": 3, "most": 5, "evaluation": 2}})
    made.evaluate()
    assert made.metrics.keys() == set(METRICS) - {"revisit_error", "revisit_error_real"}


def test_wrong_keys_are_refused() -> None:
    def check(**train: Any) -> str:
        config = settings(**plain_train(**train))
        with pytest.raises(KeyProblem) as error:
            config.check_keys()
        return error.value.key

    assert check(wc_vid2vid={"stages": 4}) == "wc_vid2vid.stages"
    assert check(wc_vid2vid={"first_frame": {"stages": 2}}) == "wc_vid2vid.first_frame"
    assert check(wc_vid2vid={"first_frame": {"stages": 9}}) == "wc_vid2vid.first_frame.stages"
    start = {"path": "x", "networks": ["generator"]}
    assert (
        check(wc_vid2vid={"first_frame": {"stages": 2}}, start_from=start)
        == "wc_vid2vid.first_frame"
    )


# -- the network of first frames -------------------------------------------------------------------


def first_frame_of(run: Path, **first_frame: Any) -> dict[str, Any]:
    return {
        "wc_vid2vid": {
            "first_frame": {"width": 4, "stages": 2, "hidden": 4, "norm": "instance", **first_frame}
        },
        "start_from": {
            "path": str(run),
            "networks": ["first_frame"],
            "names": {r"^generator\.": "first_frame."},
        },
    }


@pytest.fixture(scope="module")
def spade_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of the network that `first_frame_of` describes."""
    folder = tmp_path_factory.mktemp("spade")
    networks = {"width": 4, "stages": 2, "hidden": 4, "norm": "instance", "style_encoder": False}
    paired(folder, "spade", spade=networks, batch_size=2, max_steps=1, evaluate_every=0).fit()
    return folder


def test_a_run_of_spade_makes_first_frames_and_is_not_trained(
    spade_run: Path, tmp_path: Path
) -> None:
    keys = first_frame_of(spade_run)
    made = wc_vid2vid(tmp_path / "run", **keys, **TWO, epochs=1, ema=0.9)
    before = {
        name: value.clone() for name, value in made.networks["first_frame"].state_dict().items()
    }
    made.fit()
    assert made.average is not None
    for networks in (made.networks, made.average.networks):
        for name, value in networks["first_frame"].state_dict().items():
            torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    check_phases(made, buffers=False)
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    shown = torch.rand(2, 3, 5, 16, 16)
    with torch.no_grad():
        first = made.networks["first_frame"](shown[:, 0])[0]
        assert torch.equal(task.make(batch, shown, made.networks).frames[:, 0], first)
    # The weights are in the checkpoints: a resumed run needs no others.
    keys["start_from"]["path"] = str(tmp_path / "gone")
    resumed = wc_vid2vid(tmp_path / "run", attempt=2, **keys, **TWO, epochs=2, ema=0.9)
    assert resumed.step == 2
    assert torch.equal(resumed.networks["first_frame"](shown[:, 0])[0], first)


def test_another_network_of_spade_is_refused(spade_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"do not fit first_frame.* have another shape"):
        wc_vid2vid(tmp_path / "run", **first_frame_of(spade_run, width=8))


# -- resume ----------------------------------------------------------------------------------------


def test_a_resume_is_bit_exact_where_sequences_grow(tmp_path: Path) -> None:
    check_resume_where_sequences_grow(partial(wc_vid2vid, **TWO), tmp_path, LOSSES, METRICS)


# -- generate --------------------------------------------------------------------------------------


def test_generate_needs_points() -> None:
    config = settings(**plain_train(images={"instances": False}))
    with pytest.raises(InputError, match="name their folder in --points"):
        check_options(config, set())
    check_options(config, {"points"})
    other = settings(**vid2vid(images={"instances": False}))
    with pytest.raises(InputError, match="this vid2vid does not use --points"):
        check_options(other, {"points"})


def test_frames_of_several_sequences_are_made_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As the evaluation makes them; one sequence does not see another."""
    write_videos(tmp_path / "data", sequences=5)
    images = {"name": "folder", "root": str(tmp_path / "data"), "instances": False}
    made = wc_vid2vid(tmp_path / "run", images=images)
    folder = tmp_path / "data/test_A"
    request = Request(
        folder=folder, files=images_below(folder), points=tmp_path / "data/test_points"
    )
    _, shares = check_generated(made, request, 5)
    assert [len(share) for share in shares] == [12, 8]
