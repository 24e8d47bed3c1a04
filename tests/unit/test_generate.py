"""Images from trained generators: `hpc_amp.train.generate`, and the job of `hpc-amp generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from support.paired import paired, plain_train
from support.unpaired import plain_train as plain_unpaired

from hpc_amp.config.schema import Job, to_plain
from hpc_amp.data.errors import DataError
from hpc_amp.errors import UsageError
from hpc_amp.gan.data.synthetic import draw_pairs
from hpc_amp.jobs.generation import write_job_file
from hpc_amp.train import generate
from hpc_amp.train.generate import load_generator

SETTINGS: dict[str, Any] = {"epochs": 2, "ema": 0.9}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a SPADE that was trained for two epochs."""
    folder = tmp_path_factory.mktemp("runs") / "spade" / "20261129-120000-abcd"
    made = paired(folder, "spade", checkpoint={"every": "1epochs", "keep": 2}, **SETTINGS)
    made.fit()
    made.tracker.close()
    write_job_json(folder, plain_train("spade", **SETTINGS))
    return folder


def write_job_json(folder: Path, train: dict[str, Any], **job: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {**to_plain(Job(name="spade")), "train": train, **job}
    (folder / "job.json").write_text(json.dumps({"job": plain, "site": "local"}))


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Label maps, one in a folder of its own, and their instance maps."""
    drawn = draw_pairs(3, 4, (16, 16), 0, "maps")
    for number, name in enumerate(("0.png", "1.png", "more/2.png")):
        for kind, values in (("labels", drawn.labels), ("instances", drawn.instances)):
            file = tmp_path / kind / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values[number].byte().numpy()).save(file)
    return tmp_path / "labels"


def generated(
    monkeypatch: pytest.MonkeyPatch, output: Path, *words: str | Path, rank: int = 0, size: int = 1
) -> dict[str, bytes]:
    """The files that ranks make, by their names."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.argv", ["generate", *map(str, words), "--output", str(output)])
    assert generate.main() == 0
    files = sorted(output.rglob("*.png"))
    return {file.relative_to(output).as_posix(): file.read_bytes() for file in files}


def test_each_map_becomes_an_image_of_the_same_name(
    run: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes from one rank and from two, and for the same seed."""
    words = (run, "--input", maps, "--instances", maps.parent / "instances", "--device", "cpu")
    one = generated(monkeypatch, tmp_path / "one", *words)
    assert list(one) == ["0.png", "1.png", "more/2.png"]
    for rank in (0, 1):
        two = generated(monkeypatch, tmp_path / "two", *words, rank=rank, size=2)
    assert two == one
    other = generated(monkeypatch, tmp_path / "other", *words, "--seed", "1")
    assert all(other[name] != one[name] for name in one), "another style"
    styled = generated(monkeypatch, tmp_path / "style", *words, "--style", tmp_path / "one/0.png")
    assert styled != one


def test_objects_get_looks_by_the_seed_and_the_name_of_the_file(
    maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pix2pixHD with instance features: the same alone or beside other files."""
    run = tmp_path / "features"
    settings = {**SETTINGS, "epochs": 3, "checkpoint": {"every": "1steps", "keep": 20}}
    made = paired(run, "pix2pixhd", **settings)
    made.fit()
    made.tracker.close()
    write_job_json(run, plain_train("pix2pixhd", **settings))
    for number in (0, 1):  # more of the same maps
        for kind in ("labels", "instances"):
            copy = maps.parent / kind / f"copy {number}.png"
            copy.write_bytes((maps.parent / kind / "0.png").read_bytes())
    words = (run, "--input", maps, "--instances", maps.parent / "instances", "--device", "cpu")
    one = generated(monkeypatch, tmp_path / "one", *words)
    looks = {one[name] for name in ("0.png", "copy 0.png", "copy 1.png")}
    assert len(looks) == 3, "one map, three looks"
    assert generated(monkeypatch, tmp_path / "again", *words, "--batch-size", "1") == one
    other = generated(monkeypatch, tmp_path / "other", *words, "--seed", "1")
    assert all(other[name] != one[name] for name in one)
    with pytest.raises(DataError, match="older than the first evaluation"):
        generated(monkeypatch, tmp_path / "early", *words, "--checkpoint", "2")


def test_best_and_newest_average_and_networks(run: Path) -> None:
    newest = load_generator(run)
    assert (newest.step, newest.weights) == (6, "average")
    assert not newest.networks["generator"].training
    assert load_generator(run, checkpoint="3").step == 3
    assert load_generator(run, checkpoint="best").step in (3, 6)
    live = load_generator(run, weights="networks")
    ours, theirs = (
        torch.nn.utils.parameters_to_vector(each.networks["generator"].parameters())
        for each in (newest, live)
    )
    assert not torch.equal(ours, theirs)
    assert "discriminator" not in newest.networks


def test_what_is_wrong_is_said(
    run: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"no checkpoint of step 4 .*: it has 3, 6"):
        load_generator(run, checkpoint="4")
    with pytest.raises(DataError, match="is not the directory of a run"):
        load_generator(tmp_path)
    write_job_json(tmp_path / "new", plain_train("spade", **SETTINGS))
    with pytest.raises(DataError, match="no valid checkpoint"):
        load_generator(tmp_path / "new")
    words = (run, "--input", maps, "--device", "cpu")
    with pytest.raises(DataError, match="instance maps"):
        generated(monkeypatch, tmp_path / "out", *words)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is no image in"):
        generated(monkeypatch, tmp_path / "out", run, "--input", tmp_path / "empty")
    for output in (maps, maps / "made"):
        with pytest.raises(DataError, match="is in the folder of the inputs"):
            generated(monkeypatch, output, *words)
    (maps / "0.jpg").touch()
    with pytest.raises(DataError, match="would both become"):
        generated(monkeypatch, tmp_path / "out", *words)
    with pytest.raises(DataError, match="it is newest, best or a step"):
        load_generator(run, checkpoint="lates")
    bad = tmp_path / "bad"
    bad.mkdir()
    Image.fromarray(torch.full((16, 16), 9, dtype=torch.uint8).numpy()).save(bad / "0.png")
    with pytest.raises(DataError, match="has the label id 9"):
        generated(monkeypatch, tmp_path / "out", run, "--input", bad, "--instances", bad)


def test_the_job_binds_its_folders_and_is_one_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "spade" / "20261129-120000-abcd"
    container = {"image": "/images/a b.sif", "runtime": "apptainer", "bind": ["/scratch"]}
    resources = {"nodes": 4, "gpus_per_node": 2, "chain": 3}
    write_job_json(run, plain_unpaired("unit"), container=container, job=resources)
    maps, out = tmp_path / "my maps", tmp_path / "out"
    maps.mkdir()
    out.mkdir()
    style = maps / "one.png"
    style.touch()
    options: dict[str, Any] = {"--input": maps, "--output": out, "--style": style, "--seed": "3"}
    file = write_job_file(run, {**options, "--direction": None})
    made = yaml.safe_load(file.read_text())
    assert made["job"] == {"nodes": 1, "gpus_per_node": 2, "chain": 0}
    assert made["container"]["bind"] == sorted(["/scratch", str(run), str(maps), str(out)])
    assert made["run"][:4] == ["python", "-m", "hpc_amp.train.generate", str(run)]
    assert made["run"][4:] == [
        *("--input", str(maps), "--output", str(out)),
        *("--style", str(style), "--seed", "3"),
    ]
    assert (made["name"], made["runs_dir"]) == ("spade-generate", str(tmp_path / "runs"))
    resolved = json.loads((run / "job.json").read_text())
    resolved["job"] |= {"train": None, "run": ["true"]}
    (run / "job.json").write_text(json.dumps(resolved))
    with pytest.raises(UsageError, match="trains no task"):
        write_job_file(run, options)
