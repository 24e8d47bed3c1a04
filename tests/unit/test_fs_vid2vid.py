"""Few-shot vid2vid: data, networks, losses, number formats, resume, generated sequences."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.fs_vid2vid import LOSSES, METRICS, ONE, TWO, fs_vid2vid, plain_train
from support.gan_checks import check_number_formats, check_phases, merged
from support.training import CPU, settings
from support.video import write_videos
from support.video_checks import check_generated, check_resume_where_sequences_grow, forward_passes
from torch import Tensor

from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.errors import KeyProblem
from hpc_amp.gan.data.synthetic import COLOURS, labels_of
from hpc_amp.gan.data.training import drawn_identities
from hpc_amp.gan.generation import Request
from hpc_amp.gan.inputs import images_below
from hpc_amp.gan.video.batches import conditions
from hpc_amp.gan.video.references import ReferenceBatch
from hpc_amp.gan.video.warp import warp
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.fs_vid2vid.config import ReferenceNetwork
from hpc_amp.tasks.fs_vid2vid.networks import AdaptiveConv, ReferenceReader

pytestmark = pytest.mark.usefixtures("one_thread", "seed_zero")


def test_each_phase_moves_all_of_its_networks_and_nothing_else(tmp_path: Path) -> None:
    """DDP waits for each parameter."""
    made = fs_vid2vid(tmp_path, **ONE)
    check_phases(made, buffers=False)
    assert {loss for update in made.updates for loss in update.losses} == set(LOSSES)


def test_a_sequence_is_one_forward_pass_of_each_network(tmp_path: Path) -> None:
    """So the ranks exchange the gradients of a network once in a step, and not once a frame."""
    made = fs_vid2vid(
        tmp_path, adversarial={"r1": 0.0}, fs_vid2vid={"temporal": {"scales": 0}}, epochs=1, **ONE
    )
    assert forward_passes(made) == ["discriminator"] * 2 + ["generator"] * 2


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O1", "O2"])
def test_convolutions_are_half_and_flows_masks_and_frames_fp32(mode: str, tmp_path: Path) -> None:
    keys = merged(ONE, {"images": {"image_size": [12]}})
    made = fs_vid2vid(tmp_path, precision=mode, adversarial={"r1": 0.0}, **keys)
    generator: Any = made.networks["generator"]
    wide: list[Tensor] = []
    for network in (generator.flow, generator.reference_flow):
        network.register_forward_hook(lambda *seen: wide.extend(seen[2]))
    generator.reader.register_forward_hook(lambda *seen: wide.append(seen[2][1]))
    check_number_formats(made, mode)
    assert set(METRICS) <= set(made.metrics)
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    with made.policy.autocast():
        video = task.make(batch, conditions(batch, task.train.images), made.networks)
    outputs = [getattr(video, field.name) for field in dataclasses.fields(video)]
    assert len(wide) > 4
    assert {x.dtype for x in (*wide, *outputs[:-1])} == {torch.float32}
    for update in made.updates:
        update.run([batch], lambda: None)  # overflows at first, perhaps
        assert all(p.isfinite().all() for p in generator.parameters())


def test_half_precision_makes_the_frames_and_gradients_of_fp32(tmp_path: Path) -> None:
    """Of the same weights."""
    found = {}
    for mode in ("fp32", "bf16", "fp16"):
        torch.manual_seed(3)
        made = fs_vid2vid(tmp_path / mode, precision=mode, **TWO)
        (batch,) = next(made.data.epoch(0))
        task: Any = made.task
        generator = made.networks["generator"]
        with made.policy.autocast():
            video = task.make(batch, conditions(batch, task.train.images), made.networks)
        ((video.frames - batch.images).square().mean() * 64).backward()
        gradients = [p.grad.flatten() for p in generator.parameters() if p.grad is not None]
        found[mode] = video.frames.detach(), torch.cat(gradients)
    expected, expected_gradients = found.pop("fp32")
    for mode, (frames, half_gradients) in found.items():
        difference = float((expected - frames).abs().mean())
        assert difference < 0.01 < float(expected.std()), mode
        assert float(F.cosine_similarity(expected_gradients, half_gradients, 0)) > 0.95, mode


def test_wrong_keys_are_refused() -> None:
    def check(**train: Any) -> str:
        config = settings(**plain_train(**train))
        with pytest.raises(KeyProblem) as error:
            config.check_keys()
        return error.value.key

    assert check(images={"name": "folder"}) == "fs_vid2vid.losses.reference_flow"
    assert (
        check(
            images={"name": "folder"},
            fs_vid2vid={"losses": {"reference_flow": 0, "reference_mask": 1}},
        )
        == "fs_vid2vid.losses.reference_mask"
    )
    assert check(fs_vid2vid={"references": {"halvings": 4}}) == "fs_vid2vid.references.halvings"
    assert (
        check(fs_vid2vid={"reference_flow": {"halvings": 4}})
        == "fs_vid2vid.reference_flow.halvings"
    )


# -- data ------------------------------------------------------------------------------------------


def test_references_are_other_frames_of_the_sequence_and_follow_from_the_position() -> None:
    data = settings(**plain_train()).images  # type: ignore[attr-defined]
    samples = drawn_identities(data, "train")
    seen = set()
    for seed in range(40):
        shown = set(samples.frames_of((3, 3), seed, training=True))
        chosen = samples.references_of((3, 3), seed, training=True)
        assert chosen == samples.references_of((3, 3), seed, training=True)
        assert len(set(chosen)) == 2 and set(chosen) <= set(range(18, 24)) - shown
        seen |= set(chosen)
    assert len(seen) == 6
    # Only one frame is not in the sample: all frames of the sequence may be references then.
    whole = [samples.references_of((3, 5), seed, training=True) for seed in range(20)]
    assert {number for chosen in whole for number in chosen} == set(range(18, 24))
    for frames, wanted in ((2, [20, 23]), (3, [21, 23]), (4, [22, 23]), (5, [20, 23])):
        assert samples.references_of((3, frames), 7, training=False) == wanted


def test_flows_to_references_are_exact_in_mirrored_samples_too() -> None:
    data = settings(**plain_train()).images  # type: ignore[attr-defined]
    samples = drawn_identities(data, "train")
    known_pixels = 0
    for seed in range(6):
        member = samples.read((seed, 3), seed, training=True)
        images, references = (member[name].float() / 127.5 - 1 for name in ("images", "references"))
        for time in range(3):
            warped = warp(references, member["reference_flows"][time])
            error = (warped - images[time]).abs().amax(1)
            known = member["reference_known"][time]
            known_pixels += int(known.sum())
            assert float((error * known).max()) < 1e-4
    assert known_pixels > 500


def test_an_identity_has_colours_that_the_label_map_does_not_say() -> None:
    """Sequences of one identity look alike and move in another way; identities of the evaluation
    are new."""
    data = settings(**plain_train()).images  # type: ignore[attr-defined]
    train, test = (drawn_identities(data, split) for split in ("train", "test"))
    assert train.truth is not None and test.truth is not None
    looks = {split: [tuple(s.truth.colours(n).tolist()) for n in range(6)]  # type: ignore[union-attr]
             for split, s in (("train", train), ("test", test))}  # fmt: skip
    assert looks["train"][0] == looks["train"][4] and len(set(looks["train"][:4])) == 4
    assert not set(looks["train"]) & set(looks["test"])
    first, again = (train.read((number, 3), 0, training=False) for number in (0, 4))
    assert not torch.equal(first["labels"], again["labels"])
    for sample in (first, again):
        images = sample["images"].float() / 127.5 - 1
        wanted = sample["colours"][sample["labels"].long()]
        assert (labels_of(images, len(COLOURS)) == wanted).float().mean() > 0.95


def test_references_of_an_evaluation_may_have_folders_of_their_own(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_videos(root, sequences=4)
    for part in ("A", "B", "inst"):
        shutil.copytree(root / f"train_{part}", root / f"test_ref_{part}")
    keys: Any = {
        "images": {"name": "folder", "root": str(root)},
        "fs_vid2vid": {"losses": {"reference_flow": 0.0, "reference_mask": 0.0}},
    }
    made = fs_vid2vid(tmp_path / "run", **keys)
    (batch, *_) = made.task.evaluation_batches()
    assert isinstance(batch, ReferenceBatch) and batch.reference_flows is None
    (other, *_) = made.data.unchanged(4)  # type: ignore[attr-defined]
    assert torch.equal(batch.references[0], other.images[0, :2])
    assert batch.reference_labels is not None and other.labels is not None
    assert torch.equal(batch.reference_labels[0], other.labels[0, :2])
    made.evaluate()
    assert "identity_agreement" not in made.metrics

    with pytest.raises(DataError, match="has 4 frames, and references=5 needs as many"):
        fs_vid2vid(tmp_path / "more", **{**keys, "images": {**keys["images"], "references": 5}})
    for part in ("A", "B", "inst"):
        shutil.move(root / f"test_ref_{part}/scene 1", root / f"test_ref_{part}/scene 9")
    train = settings(**plain_train(**keys))
    with pytest.raises(DataError, match="scene 1 is in one of them only"):
        train.images.scan(train)  # type: ignore[attr-defined]


# -- the generator ---------------------------------------------------------------------------------


def generator_of(scale: float = 8.0, **networks: Any) -> Any:
    """With weights that give flows and masks of some size."""
    task = build_task(settings(**plain_train(fs_vid2vid=networks)), World(), CPU)
    torch.manual_seed(1)
    made: Any = task.build_networks()["generator"]
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not name.startswith(("reader", "code")):
                parameter.mul_(scale)
    return made


def shown(*shape: int) -> Tensor:
    """Label maps with edges, in five channels."""
    return torch.rand(*shape, 5, 16, 16)


def references(samples: int = 2, count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.rand(samples, count, 3, 16, 16) * 2 - 1, shown(samples, count)


def test_weights_of_a_sample_are_a_product_that_is_never_made() -> None:
    conv = AdaptiveConv(5, 7, ReferenceNetwork(code=6, rank=3))
    x, code = torch.randn(4, 5, 8, 8), torch.randn(4, 6)
    computed = conv.computed(code).view(4, 7, 4)
    product = torch.einsum("bor,rikl->boikl", computed[:, :, 1:], conv.learned.weight)
    weights = conv.common.weight + product
    biases = conv.common.bias + computed[:, :, 0]
    wanted = F.conv2d(
        x.reshape(1, 20, 8, 8), weights.flatten(0, 1), biases.flatten(), padding=1, groups=4
    )
    torch.testing.assert_close(conv(x, code), wanted.view(4, 7, 8, 8), atol=1e-5, rtol=1e-4)


def test_attention_finds_the_place_with_the_same_surroundings() -> None:
    reader = ReferenceReader(5, ReferenceNetwork(width=16, halvings=0))
    with torch.no_grad():
        reader.sharpness.fill_(1e5)
    now = torch.randn(2, 5, 12, 12)
    conditions = torch.stack((torch.randn(2, 5, 12, 12), now.roll((3, -2), (2, 3))), 1)
    pictures = torch.randn(2, 2, 3, 12, 12)
    features, keys = reader.read(pictures, conditions)
    found, share = reader(now, features, keys)
    torch.testing.assert_close(share.sum(1), torch.ones(2))
    assert share[:, 1].min() > 0.5
    inner = (slice(None), slice(None), slice(4, 8), slice(4, 8))
    torch.testing.assert_close(
        found[inner], features[:, 1].roll((-3, 2), (2, 3))[inner], atol=1e-3, rtol=1e-3
    )


def test_frames_depend_on_their_own_references_alone() -> None:
    generator = generator_of().eval()
    condition, (images, of_images) = shown(2, 3), references()
    with torch.no_grad():
        made, *_ = generator(condition, None, None, images, of_images)
        other = torch.stack((images[0], torch.rand(2, 3, 16, 16)))
        changed, *_ = generator(condition, None, None, other, of_images)
        both = images.flip(1), of_images.flip(1)
        swapped, *_ = generator(condition, None, None, *both)
    torch.testing.assert_close(made[0], changed[0])
    assert float((made[1] - changed[1]).abs().mean()) > 0.01
    torch.testing.assert_close(swapped, made)  # their order does not matter


def test_a_sequence_in_pieces_is_the_same_as_at_once() -> None:
    """With any number of references."""
    generator = generator_of().eval()
    condition, images = shown(2, 6), references(count=3)
    with torch.no_grad():
        whole, flows, _, flows_to, masks, chosen = generator(condition, None, None, *images)
        first, *_ = generator(condition[:, :3], None, None, *images)
        rest, later, *_ = generator(condition[:, 3:], first[:, -1:], condition[:, 2:3], *images)
        one, none, *_ = generator(condition[:, :1], None, None, *images)
    torch.testing.assert_close(torch.cat((first, rest), 1), whole)
    torch.testing.assert_close(later, flows[:, 2:])
    torch.testing.assert_close(one, whole[:, :1])
    assert flows.shape == (2, 5, 2, 16, 16) and none.shape == (2, 0, 2, 16, 16)
    assert flows_to.shape == (2, 6, 2, 16, 16) and flows_to.abs().max() > 0.5
    assert masks.shape == (2, 6, 1, 16, 16) and chosen.shape == (2, 6)


def test_checkpointing_keeps_less_and_changes_nothing() -> None:
    results, kept = [], []
    condition = torch.linspace(0, 1, 4 * 5 * 256).reshape(1, 4, 5, 16, 16)
    images = references(samples=1)
    for checkpointing in (False, True):
        generator = generator_of(checkpointing=checkpointing).train()
        sizes: list[int] = []

        def note(value: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(value.numel())
            return value

        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            made, flows, _, flows_to, *_ = generator(condition, None, None, *images)
        (made.square().mean() + flows.abs().mean() + flows_to.abs().mean()).backward()
        gradients = {name: value.grad for name, value in generator.named_parameters()}
        results.append({**gradients, **dict(generator.named_buffers()), "made": made})
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4
    for name, value in results[0].items():
        assert value is not None, name
        torch.testing.assert_close(results[1][name], value, atol=1e-6, rtol=1e-4)


# -- losses and metrics ----------------------------------------------------------------------------


def test_the_discriminator_sees_a_reference_beside_each_frame(tmp_path: Path) -> None:
    made = fs_vid2vid(tmp_path, **TWO)
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    beside = task.beside(batch, conditions(batch, task.train.images)).unflatten(0, (2, 3))
    assert beside.shape[2] == task.judged_channels == 13
    for time in range(3):
        assert torch.equal(beside[:, time, 5:8], batch.references[:, 0])


def test_losses_are_of_the_reference_that_was_warped(tmp_path: Path) -> None:
    """With the known flow they are 0, whichever it is."""
    made = fs_vid2vid(tmp_path)
    (batch,) = next(made.data.epoch(0))
    task: Any = made.task
    video = task.make(batch, conditions(batch, task.train.images), made.networks)
    for number in (0, 1):
        chosen = torch.full_like(video.chosen, number)
        known = batch.reference_known[:, :, number]
        right = dataclasses.replace(
            video,
            chosen=chosen,
            reference_flows=batch.reference_flows[:, :, number],
            reference_masks=1 - known[:, :, None].float(),
        )
        losses = task.sequence_losses(batch, right)
        assert losses["reference_flow"] == 0 and losses["reference_mask"] == 0
        other = dataclasses.replace(right, chosen=1 - chosen)
        losses_of_other = task.sequence_losses(batch, other)
        assert losses_of_other["reference_flow"] > 0.1
        assert losses_of_other["reference_warp"] > losses["reference_warp"]


def test_a_perfect_generator_has_the_best_metrics_and_is_shown(tmp_path: Path) -> None:
    made = fs_vid2vid(tmp_path)
    task: Any = made.task
    task.render = lambda batch, networks: (batch.images, batch.flows)
    made.evaluate()
    found = made.metrics
    assert found["l1"] == 0 and found["flow_error"] == 0 and found["identity_agreement"] > 0.95
    with torch.no_grad():
        pictures = task.pictures(made.networks)
    assert pictures.shape == (6, 3, 16, 5 * 16)
    assert torch.equal(pictures[1], pictures[2]) and not torch.equal(pictures[0], pictures[1])
    # The colours of another identity are wrong where they differ.
    task.render = lambda batch, networks: (batch.images.roll(1, 2), batch.flows)
    made.evaluate()
    assert made.metrics["identity_agreement"] < 0.5


# -- resume ----------------------------------------------------------------------------------------


def test_a_resume_is_bit_exact_where_sequences_grow(tmp_path: Path) -> None:
    """With the seed, some steps of the end overflow and some do not."""
    judge = {"width": 4, "layers": 1, "scales": 1}
    model = partial(
        fs_vid2vid,
        seed=1,
        fs_vid2vid={"discriminator": judge, "temporal": judge},
        **merged(TWO, {"images": {"image_size": [8, 16]}}),
    )
    check_resume_where_sequences_grow(model, tmp_path, LOSSES, METRICS)


# -- generate --------------------------------------------------------------------------------------


def test_frames_of_several_sequences_are_made_on_any_number_of_ranks(tmp_path: Path) -> None:
    """As the evaluation makes them, from the references of each sequence."""
    root = tmp_path / "data"
    write_videos(root, sequences=3)
    for part in ("A", "B", "inst"):
        for scene in range(3):
            target = tmp_path / "references" / part / f"scene {scene}"
            target.mkdir(parents=True)
            for frame in (1, 3):
                name = f"frame-{frame:03d}.png"
                shutil.copy(root / f"test_{part}/scene {scene}/{name}", target)
    made = fs_vid2vid(
        tmp_path / "run",
        images={"name": "folder", "root": str(root)},
        fs_vid2vid={"losses": {"reference_flow": 0.0, "reference_mask": 0.0}},
        batch_size=2,
    )
    folder, style = root / "test_A", tmp_path / "references"
    request = Request(
        folder=folder,
        files=images_below(folder),
        style=tuple(images_below(style)),
        instances=root / "test_inst",
    )
    frames, shares = check_generated(made, request, 3)
    assert [len(share) for share in shares] == [8, 4]
    task: Any = made.task
    with torch.no_grad():
        # References without a folder are those of all sequences.
        for part in ("A", "B", "inst"):
            (style / part / "scene 0").rename(style / "kept")
            for scene in (1, 2):
                shutil.rmtree(style / part / f"scene {scene}")
            for file in (style / "kept").iterdir():
                file.rename(style / part / file.name)
            (style / "kept").rmdir()
        alike = dataclasses.replace(request, style=tuple(images_below(style)))
        again = dict(task.generate(alike, made.networks))
        first, last = request.files[0], request.files[-1]
        assert torch.equal(again[first], frames[first])
        assert not torch.equal(again[last], frames[last])
        (style / "A/frame-001.png").unlink()
        with pytest.raises(DataError, match="for the reference"):
            next(task.generate(alike, made.networks))
        nothing = tuple(images_below(style / "A"))
        with pytest.raises(DataError, match="there are no references for"):
            next(task.generate(dataclasses.replace(alike, style=nothing), made.networks))
