"""Defects of the GANs that a reading of the code found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.paired import paired
from torch import nn

from hpc_amp.config.schema import StartFrom
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError
from hpc_amp.gan.data.batches import PairedBatch, part_of
from hpc_amp.gan.inputs import check_outputs
from hpc_amp.models.weights import load_weights
from hpc_amp.tasks.base import ModelError
from hpc_amp.tasks.funit.metrics import NearestClass
from hpc_amp.tasks.pix2pixhd.networks import InstanceEncoder
from hpc_amp.train.generate import _choose_step, make_request
from hpc_amp.train.manifest import read_manifest, replace_manifest
from hpc_amp.train.start import start_networks


def test_images_that_are_not_finite_belong_to_no_class() -> None:
    metric = NearestClass(2, World(), torch.device("cpu"))
    real = torch.rand(2, 3, 16, 16)
    metric.add(real, real, torch.tensor([0, 1]))
    assert metric.share() == 1
    metric.begin()
    metric.add(real, torch.full_like(real, torch.nan), torch.tensor([0, 1]))
    assert metric.share() == 0


def test_features_that_are_not_finite_are_not_clustered(tmp_path: Path) -> None:
    encoder = paired(tmp_path, "pix2pixhd", epochs=1).networks["encoder"]
    assert isinstance(encoder, InstanceEncoder)
    channels = encoder.centres.shape[2]
    looks, labels = torch.rand(6, channels), torch.zeros(6, dtype=torch.long)
    encoder.set_clusters(looks, labels)
    before = encoder.centres.clone()
    encoder.set_clusters(torch.full_like(looks, torch.nan), labels)
    assert torch.equal(encoder.centres, before)
    encoder.set_clusters(torch.cat((looks, looks[:1] * torch.nan)), torch.zeros(7).long())
    assert torch.equal(encoder.centres, before)


def test_a_checkpoint_is_chosen_that_is_valid_and_has_a_metric(tmp_path: Path) -> None:
    made = paired(tmp_path / "run", "spade", epochs=2, checkpoint={"every": "1steps", "keep": 9})
    made.fit()
    folder = tmp_path / "run" / "checkpoints"
    steps = sorted(int(path.name[5:]) for path in folder.glob("step-*"))
    for step, metric in zip(steps, [float("nan"), 0.5, 0.7], strict=False):
        place = folder / f"step-{step:08d}"
        replace_manifest(place, {**read_manifest(place), "metric": metric})
    for step in steps[3:]:
        shutil.rmtree(folder / f"step-{step:08d}")
    assert _choose_step(folder, "best", lowest=True) == steps[1]
    assert _choose_step(folder, "best", lowest=False) == steps[2]
    weights = folder / f"step-{steps[1]:08d}" / "networks.pt"
    damaged = bytearray(weights.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    weights.write_bytes(damaged)
    assert _choose_step(folder, "best", lowest=True) == steps[2]
    with pytest.raises(Exception, match=rf"step {steps[1]} in .* is damaged"):
        _choose_step(folder, str(steps[1]), lowest=True)


@pytest.mark.parametrize("content", [b"hello world", b"train: {}\n", b"", b"\x80\x02."])
def test_files_that_torch_did_not_write_are_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"the weights in .* cannot be read"):
        load_weights(nn.Linear(1, 1), str(file), "x")
    with pytest.raises(ModelError, match=r"the weights in .* cannot be read"):
        start_networks({"x": nn.Linear(1, 1)}, StartFrom(path=str(file)), World())


class Wrapper(nn.Module):
    """A network whose part has the name of DDP's prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


def test_a_network_with_the_name_of_ddps_prefix_reads_its_own_weights(tmp_path: Path) -> None:
    file = tmp_path / "networks.pt"
    saved = Wrapper()
    torch.save({"x": saved.state_dict()}, file)
    for load in ("weights", "start"):
        network = Wrapper()
        if load == "weights":
            load_weights(network, str(file), "x")
        else:
            start_networks({"x": network}, StartFrom(path=str(file)), World())
        assert torch.equal(network.module.weight, saved.module.weight)


def test_a_file_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    torch.save({"x": {"other": torch.ones(1)}}, tmp_path / "networks.pt")
    start = StartFrom(path=str(tmp_path / "networks.pt"), partial=True)
    with pytest.raises(ModelError, match=r"nothing in .* fits x"):
        start_networks({"x": nn.Linear(1, 1)}, start, World())


def test_outputs_replace_no_file_that_is_read(tmp_path: Path) -> None:
    inputs, other = tmp_path / "out" / "in", tmp_path / "maps"
    for file in (inputs / "x.png", inputs / "in" / "x.jpg", other / "x.png"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with pytest.raises(InputError, match="would replace the input"):
        check_outputs([inputs / "x.png", inputs / "in" / "x.jpg"], inputs, tmp_path / "out")
    for read in (other, other / "x.png"):
        with pytest.raises(InputError, match="which is read"):
            check_outputs([inputs / "x.png"], inputs, other, [read])
    check_outputs([inputs / "x.png"], inputs, tmp_path / "new", [other])


def test_a_batch_size_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    for size in (0, -1):
        with pytest.raises(InputError, match="is not positive"):
            make_request(World(), tmp_path, tmp_path, None, None, None, None, 0, size)


def test_a_part_of_a_batch_keeps_no_memory_of_the_rest() -> None:
    batch = PairedBatch(images=torch.zeros(8, 3, 4, 4), seeds=torch.arange(8))
    part = part_of(batch, slice(1))
    assert part.images.untyped_storage().nbytes() == 3 * 4 * 4 * 4
