"""A new run with the weights of another one, or of a file: `train.start_from`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.dcgan import dcgan
from support.environment import REPOSITORY
from support.paired import paired
from support.training import fit_until, settings
from torch import Tensor, nn

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import load_job
from hpc_amp.distributed.world import World
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.base import ModelError
from hpc_amp.train.engine import Engine
from hpc_amp.train.start import start_networks


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of a DCGAN with an average."""
    folder = tmp_path_factory.mktemp("first")
    dcgan(folder, epochs=1, ema=0.9).fit()
    return folder


def saved(run: Path, stem: str) -> dict[str, dict[str, Tensor]]:
    """The networks in the only checkpoint of `first`."""
    found: dict[str, dict[str, Tensor]] = torch.load(checkpoint(run) / f"{stem}.pt")
    return found


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "step-00000004"


def check_weights(network: nn.Module, expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(dict(network.state_dict()), dict(expected), rtol=0, atol=0)


def start(path: Path, into: dict[str, nn.Module], **keys: Any) -> list[str]:
    train = settings(start_from={"path": str(path), **keys})
    assert train.start_from is not None
    return start_networks(into, train.start_from, World())


def refusal(path: Path, into: dict[str, nn.Module], **keys: Any) -> str:
    """The error for a file, which is one line and leaves the status 2."""
    with pytest.raises(ModelError) as caught:
        start(path, into, **keys)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- another run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["auto", "average", "networks"])
def test_a_run_begins_with_the_networks_of_another(
    weights: str, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its own first step, with optimizers and an average of its own."""
    made = dcgan(tmp_path, start_from={"path": str(first), "weights": weights}, ema=0.5, seed=7)
    stem = "networks" if weights == "networks" else "average"
    expected = saved(first, stem)
    assert made.average is not None
    for name in ("generator", "discriminator"):
        check_weights(made.networks[name], expected[name])
        check_weights(made.average.networks[name], expected[name])
    assert made.step == 0 and made.average.updates == 0
    assert all(not update.optimizer.state for update in made.updates)
    said = capsys.readouterr().out
    assert f"a new run, which begins with weights of {checkpoint(first)}/{stem}.pt" in said
    assert re.search(r"generator \(\d+ tensors\), discriminator \(\d+ tensors\)", said)


def test_only_the_networks_that_are_named(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"path": str(checkpoint(first)), "networks": ["generator"]}
    made = dcgan(tmp_path / "named", start_from=keys, seed=7)
    fresh = dcgan(tmp_path / "fresh", seed=7)
    check_weights(made.networks["generator"], saved(first, "average")["generator"])
    check_weights(
        made.networks["discriminator"], dict(fresh.networks["discriminator"].state_dict())
    )
    assert "other tensors of the file: discriminator." in capsys.readouterr().out


def test_a_resume_continues_the_run_itself(first: Path, tmp_path: Path) -> None:
    """It does not read the weights again: the other run may be gone."""
    source = tmp_path / "source"
    shutil.copytree(first, source)
    keys = {"path": str(source)}
    fit_until(dcgan(tmp_path / "run", start_from=keys), 3)
    shutil.rmtree(source)
    again = engine_again(tmp_path / "run", keys)
    assert again.step == 3
    with pytest.raises(ModelError, match="is neither a file of weights, nor a checkpoint"):
        dcgan(tmp_path / "new", start_from=keys)


def engine_again(folder: Path, keys: dict[str, Any]) -> Engine:
    return dcgan(folder, attempt=2, start_from=keys)


def test_the_newest_checkpoint_that_is_valid_is_taken(first: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(first, run)
    newer = run / "checkpoints" / "step-00000009"
    shutil.copytree(checkpoint(run), newer)
    made = dcgan(tmp_path / "second", start_from={"path": str(run)})
    check_weights(made.networks["generator"], saved(first, "average")["generator"])
    assert "is damaged" in refusal(newer, made.networks)
    file = checkpoint(run) / "average.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "is damaged" in refusal(checkpoint(run), made.networks)
    assert "nor the directory of a run with a valid checkpoint" in refusal(run, made.networks)


@pytest.mark.parametrize("rest", ["", "checkpoints/step-00000004"])
def test_latest_is_the_newest_run_of_a_name(rest: str, first: Path, tmp_path: Path) -> None:
    (tmp_path / "20261129-100000-aaaa").symlink_to(first)
    (tmp_path / "latest").write_text("20261129-100000-aaaa\n")
    networks = dcgan(tmp_path / "other", seed=7).networks
    (line,) = start(tmp_path / "latest" / rest, networks, weights="networks")
    assert "20261129-100000-aaaa/checkpoints/step-00000004/networks.pt" in line


def test_an_average_that_is_not_there_is_missed(tmp_path: Path) -> None:
    made = dcgan(tmp_path, epochs=1)
    made.fit()
    assert "has no average.pt" in refusal(tmp_path, made.networks, weights="average")
    start(tmp_path, made.networks)


# ---- what does not fit ---------------------------------------------------------------------------


def small() -> dict[str, nn.Module]:
    return {"net": nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))}


def written(folder: Path, content: Any) -> Path:
    file = folder / "weights.pt"
    torch.save(content, file)
    return file


def test_what_does_not_fit_is_counted_and_named(tmp_path: Path) -> None:
    networks = small()
    state = dict(networks["net"].state_dict())
    before = {key: value.clone() for key, value in state.items()}
    for key in ("0.weight", "0.bias", "1.weight", "1.bias"):
        del state[key]
    state |= {"extra": torch.zeros(1), "3.bias": torch.zeros(3)}
    file = written(tmp_path, {"net": {key: torch.ones_like(state[key]) for key in state}})
    assert refusal(file, networks) == (
        f"the weights in {file} do not fit net: "
        "4 are missing: 0.weight, 0.bias, 1.weight and 1 more; "
        "1 have no place: extra; 1 have another shape: 3.bias 3 instead of 2"
    )
    check_weights(networks["net"], before)
    lines = start(file, networks, partial=True)
    assert lines[0].endswith("net (3 tensors)")
    assert len([line for line in lines if line.startswith("WARNING: net begins without")]) == 3
    assert (networks["net"].state_dict()["2.weight"] == 1).all()
    check_weights(networks["net"][0], {"weight": before["0.weight"], "bias": before["0.bias"]})  # type: ignore[index]


def test_a_network_that_the_file_does_not_have(tmp_path: Path) -> None:
    networks = {**small(), "other": nn.Linear(1, 1)}
    file = written(tmp_path, {"net": networks["net"].state_dict()})
    said = refusal(file, networks)
    assert f"{file} has no tensors of other: its names are net.0.weight" in said
    assert "train.start_from.networks" in said
    start(file, networks, networks=["net"])
    assert "the task has no network nets, but net, other" in refusal(
        file, networks, networks=["nets"]
    )


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("never",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"net": Malicious()}, "holds other objects than tensors"),
        ([1], "holds a list instead of weights"),
        ({"step": 3}, "has no tensors of net"),
    ],
)
def test_a_file_without_weights(
    content: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(written(tmp_path, content), small())
    assert "never" not in capsys.readouterr().out


def test_a_single_network_needs_no_name_in_the_file(tmp_path: Path) -> None:
    """As `torch.save(model.state_dict())` writes it, also of a network in DDP or compiled."""
    networks = small()
    state = {f"module._orig_mod.{k}": v + 1 for k, v in networks["net"].state_dict().items()}
    expected = {key: value + 1 for key, value in networks["net"].state_dict().items()}
    start(written(tmp_path, {"state_dict": state}), networks, names={r"^state_dict\.": ""})
    check_weights(networks["net"], expected)


# ---- state dicts of other programs ---------------------------------------------------------------


def documented_names() -> dict[str, str]:
    """The map for SPADE's original generator in the documentation."""
    text = (REPOSITORY / "docs" / "gan-own.md").read_text()
    (block,) = (part for part in re.findall(r"```yaml\n(.*?)```", text, re.S) if "net_G" in part)
    names: dict[str, str] = yaml.safe_load(block)["train"]["start_from"]["names"]
    return names


def original_names(stages: int) -> dict[str, str]:
    """For each tensor of our generator, its name in a state dict of the original: its blocks are
    numbered by hand here, in the layout of the paper's appendix."""
    blocks = {"head": "head_0", "middle.0": "G_middle_0", "middle.1": "G_middle_1"}
    blocks |= {f"up.{n}": f"up_{n}" for n in range(stages - 1)}
    layers = {"convs.0": "conv_0", "convs.1": "conv_1", "shortcut": "conv_s"}
    norms = {"norms.0": "norm_0", "norms.1": "norm_1", "shortcut_norm": "norm_s"}
    found = {}
    for kind in ("weight", "bias"):
        found |= {f"first.{kind}": f"fc.{kind}", f"last.{kind}": f"conv_img.{kind}"}
    for ours, theirs in blocks.items():
        for layer, name in layers.items():
            place, original = f"{ours}.{layer}.parametrizations.weight", f"{theirs}.{name}"
            found[f"{place}.original"] = f"{original}.weight_orig"
            found |= {f"{place}.0.{v}": f"{original}.weight_{v}" for v in "uv"}
            found[f"{ours}.{layer}.bias"] = f"{original}.bias"
        for norm, name in norms.items():
            place, original = f"{ours}.{norm}", f"{theirs}.{name}"
            for buffer in ("running_mean", "running_var", "num_batches_tracked"):
                found[f"{place}.norm.{buffer}"] = f"{original}.param_free_norm.{buffer}"
            for kind in ("weight", "bias"):
                found[f"{place}.shared.0.{kind}"] = f"{original}.mlp_shared.0.{kind}"
                found[f"{place}.scale.{kind}"] = f"{original}.mlp_gamma.{kind}"
                found[f"{place}.shift.{kind}"] = f"{original}.mlp_beta.{kind}"
    return found


def test_a_state_dict_in_the_names_of_the_original_spade(tmp_path: Path) -> None:
    spade = {"norm": "batch", "stages": 3, "style_encoder": False}
    other = paired(tmp_path / "other", "spade", spade=spade, epochs=1)
    other.fit()
    names = original_names(stages=3)
    state = other.networks["generator"].state_dict()
    file = tmp_path / "latest_net_G.pth"
    torch.save({names[key]: value for key, value in state.items()}, file)
    keys = {"path": str(file), "networks": ["generator"], "names": documented_names()}
    made = paired(tmp_path / "new", "spade", spade=spade, start_from=keys, seed=5)
    check_weights(made.networks["generator"], dict(state))


def test_networks_of_two_domains_under_one_name_each(tmp_path: Path) -> None:
    """Nested dictionaries, other objects beside them, tensors that are left out."""
    networks = small()
    state = networks["net"].state_dict()
    halves = {
        "a": {key: state[key] + 1 for key in state if key < "2"},
        "b": {f"second.{key}": state[key] + 1 for key in state if key >= "2"},
        "iterations": 5,
        "old": {"0.weight": torch.zeros(1)},
    }
    expected = {key: value + 1 for key, value in state.items()}
    names = {r"^a\.": "net.", r"^b\.second\.": "net.", r"^old\..*": ""}
    lines = start(written(tmp_path, halves), networks, names=names)
    check_weights(networks["net"], expected)
    assert len(lines) == 1, "nothing is left over"
    names[r"^old\..*"] = "net.0.weight"
    said = refusal(written(tmp_path, halves), networks, names=names)
    assert said.endswith("the name net.0.weight: a.0.weight and old.0.weight")


# ---- the job file --------------------------------------------------------------------------------

JOB = "name: x\nsite: local\njob: {gpus_per_node: 0}\ntrain:\n  task: dcgan\n"


def checked(folder: Path, *lines: str) -> Any:
    file = folder / "job.yaml"
    file.write_text(JOB + "".join(f"  {line}\n" for line in lines))
    loaded = load_job(file, [])
    check_job(loaded)
    return loaded.job.train.start_from  # type: ignore[union-attr]


def test_a_run_directory_is_enough(first: Path, tmp_path: Path) -> None:
    assert checked(tmp_path) is None
    found = checked(tmp_path, f"start_from: {first}")
    assert (found.path, found.weights, found.networks, found.names) == (str(first), "auto", [], {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere/at/all", "there is no file or folder nowhere/at/all"),
        ("{weights: average}", "train.start_from.path is missing"),
        ("{path: ., names: {'(': x}}", "cannot replace it"),
        (r"{path: ., names: {'a': '\1'}}", "cannot replace it"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_runs(
    value: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked(tmp_path, f"start_from: {value}")
