"""Images from trained generators: `hpc_amp.train.generate`, and the job of `hpc-amp generate`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from support.environment import REPOSITORY
from support.funit import plain_train as plain_few_shot
from support.paired import paired, plain_train
from support.unpaired import plain_train as plain_unpaired
from support.unpaired import unpaired
from support.vid2vid import plain_train as plain_video
from support.vid2vid import vid2vid
from support.video import write_videos

from hpc_amp.config.load import load_job
from hpc_amp.config.schema import Job, from_plain, to_plain
from hpc_amp.data.errors import DataError
from hpc_amp.distributed.world import World
from hpc_amp.errors import InputError, JobError, UsageError
from hpc_amp.gan.data.synthetic import draw_pairs
from hpc_amp.gan.generation import Request, read_images
from hpc_amp.gan.video.mp4 import video_file
from hpc_amp.jobs.generation import check_request, write_job_file
from hpc_amp.tasks.build import build_task
from hpc_amp.tasks.registry import config_class
from hpc_amp.train import generate
from hpc_amp.train.generate import load_generator

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "ema": 0.9,
    "images": {"synthetic": {"train": 16, "test": 4}},
}
"""Two steps an epoch."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a SPADE that was trained for two epochs."""
    folder = tmp_path_factory.mktemp("runs") / "spade" / "20261129-120000-abcd"
    made = paired(folder, "spade", checkpoint={"every": "1epochs", "keep": 2}, **SETTINGS)
    made.fit()
    made.tracker.close()
    write_job_json(folder, plain_train("spade", **SETTINGS))
    return folder


def write_job_json(folder: Path, train: dict[str, Any] | None, **job: Any) -> None:
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
    monkeypatch: pytest.MonkeyPatch, output: Path, *words: str | Path
) -> dict[str, bytes]:
    """The files that one rank makes, by their names."""
    monkeypatch.setattr("sys.argv", ["generate", *map(str, words), "--output", str(output)])
    assert generate.main() == 0
    files = sorted(output.rglob("*.png"))
    return {file.relative_to(output).as_posix(): file.read_bytes() for file in files}


def test_each_map_becomes_an_image_of_the_same_name(
    run: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes for the same seed, and from Python."""
    words = (run, "--input", maps, "--instances", maps.parent / "instances", "--device", "cpu")
    one = generated(monkeypatch, tmp_path / "one", *words)
    assert list(one) == ["0.png", "1.png", "more/2.png"]
    assert generated(monkeypatch, tmp_path / "one", *words) == one, "existing files are replaced"
    made = load_generator(run).make(maps, tmp_path / "python", instances=maps.parent / "instances")
    assert made == 3
    assert {name: (tmp_path / "python" / name).read_bytes() for name in one} == one
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
        generated(monkeypatch, tmp_path / "early", *words, "--checkpoint", "1")


def test_best_and_newest_average_and_networks(run: Path) -> None:
    newest = load_generator(run)
    assert (newest.step, newest.weights) == (4, "average")
    assert not newest.networks["generator"].training
    assert load_generator(run, checkpoint="2").step == 2
    assert load_generator(run, checkpoint="best").step in (2, 4)
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
    with pytest.raises(DataError, match=r"no checkpoint of step 3 .*: it has 2, 4"):
        load_generator(run, checkpoint="3")
    with pytest.raises(DataError, match="is not the directory of a run"):
        load_generator(tmp_path)
    write_job_json(tmp_path / "new", plain_train("spade", **SETTINGS))
    with pytest.raises(DataError, match="no valid checkpoint"):
        load_generator(tmp_path / "new")
    words = (run, "--input", maps, "--device", "cpu")
    with pytest.raises(InputError, match=r"trained with instance maps: .* in --instances"):
        generated(monkeypatch, tmp_path / "out", *words)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no image in"):
        generated(monkeypatch, tmp_path / "out", run, "--input", tmp_path / "empty")
    for output in (maps, maps / "made"):
        with pytest.raises(InputError, match="is in the folder of the inputs"):
            generated(monkeypatch, output, *words)
    (maps / "0.jpg").touch()
    with pytest.raises(InputError, match="would both become"):
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
    options: dict[str, Any] = {"input": maps, "output": out, "style": style, "seed": "3"}
    file = write_job_file(run, {**options, "direction": None})
    made = yaml.safe_load(file.read_text())
    assert made["job"] == {"nodes": 1, "gpus_per_node": 2, "chain": 0}
    assert made["container"]["bind"] == sorted(["/scratch", str(run), str(maps), str(out)])
    assert made["run"][:4] == ["python", "-m", "hpc_amp.train.generate", str(run)]
    assert made["run"][4:] == [
        *("--input", str(maps), "--output", str(out)),
        *("--style", str(style), "--seed", "3"),
    ]
    assert (made["name"], made["runs_dir"]) == ("spade-generate", str(tmp_path / "runs"))


def test_the_folder_of_the_job_may_have_a_dollar_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/elsewhere")
    root = tmp_path / "a $HOME"
    run = root / "runs" / "spade" / "20261129-120000-abcd"
    container = {"image": f"{root}/a.sif", "runtime": "apptainer", "bind": [f"{root}/b"]}
    write_job_json(run, plain_unpaired("unit"), container=container)
    file = write_job_file(run, {"input": root, "output": root / "out"})
    made = load_job(file).job
    assert made.runs_dir == f"{root}/runs"
    assert made.container.image == f"{root}/a.sif"
    assert made.container.bind == sorted([str(root), f"{root}/b", f"{root}/out", str(run)])


def request(folder: Path, **options: Any) -> dict[str, Any]:
    inputs, output = folder / "maps", folder / "out"
    inputs.mkdir(exist_ok=True)
    (inputs / "0.png").touch()
    return {"input": inputs, "output": output, "checkpoint": "newest", **options}


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        (plain_train("spade"), {}, "trained with instance maps: name their folder in --instances"),
        (plain_unpaired("unit"), {}, "needs a direction: --direction a2b or --direction b2a"),
        (
            plain_unpaired("unit"),
            {"direction": "a2b", "style": Path("s.png")},
            "this unit does not use --style; leave it out",
        ),
        (plain_few_shot("funit"), {}, "needs images of the class to draw"),
        (
            plain_few_shot("funit"),
            {"style": Path("s.png"), "direction": "a2b"},
            "this funit does not use --direction",
        ),
        ({"task": "classification"}, {}, "the task classification makes no images from files"),
        (None, {}, "trains no task of hpc-amp"),
        (
            plain_unpaired("munit"),
            {"direction": "a2b", "style": Path("nothing")},
            "there is no folder nothing",
        ),
    ],
)
def test_options_that_the_run_cannot_use_are_refused_before_a_job_starts(
    train: dict[str, Any] | None, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    write_job_json(run, train)
    (run / "checkpoints" / "step-00000003").mkdir(parents=True)
    with pytest.raises((UsageError, InputError)) as error:
        check_request(run, request(tmp_path, **options))
    assert message in str(error.value)
    assert error.value.exit_code == 2


def test_checkpoints_and_folders_are_checked_before_a_job_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_job_json(run, plain_unpaired("munit"))
    good = request(tmp_path, direction="a2b")
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        check_request(run, good)
    for step in (3, 12):
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    check_request(run, good)
    check_request(run, {**good, "checkpoint": "12"})
    with pytest.raises(UsageError, match="no checkpoint of step 4; it has those of 3, 12"):
        check_request(run, {**good, "checkpoint": "4"})
    with pytest.raises(UsageError, match="it is newest, best or a step"):
        check_request(run, {**good, "checkpoint": "lates"})
    good["output"].touch()
    with pytest.raises(InputError, match="is a file: name a folder"):
        check_request(run, good)
    (good["input"] / "0.png").unlink()
    with pytest.raises(InputError, match="there is no image in"):
        check_request(run, good)


def test_the_order_of_frames_is_checked_before_a_job_starts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000003").mkdir(parents=True)
    options = request(tmp_path)
    options["instances"] = options["input"]
    for number in (2, 10):
        (options["input"] / f"{number}.png").touch()
    write_job_json(run, plain_train("spade"))
    check_request(run, options)  # they are images, not frames
    write_job_json(run, plain_video())
    with pytest.raises(InputError, match=r"10 is before .*2, by their numbers after it"):
        check_request(run, options)


def test_a_relative_image_of_the_run_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, elsewhere = tmp_path / "runs" / "spade" / "one", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_job_json(
        run, plain_unpaired("unit"), site="own.yaml", container={"image": "images/a.sif"}
    )
    resolved = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**resolved, "submitted_from": str(tmp_path)}))
    for name in ("own.yaml", "images/a.sif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(elsewhere)
    made = yaml.safe_load(write_job_file(run, request(tmp_path)).read_text())
    assert made["site"] == str(tmp_path / "own.yaml")
    assert made["container"]["image"] == str(tmp_path / "images" / "a.sif")


def test_batches_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    """Kernels differ for other sizes of batches, and the images with them."""
    files = [tmp_path / f"{number}.png" for number in range(11)]
    whole = [*Request(tmp_path, files, batch_size=2).batches()]
    parts = [
        [*Request(tmp_path, files, batch_size=2, rank=rank, ranks=4).batches()] for rank in range(4)
    ]
    assert sorted(batch for part in parts for batch in part) == sorted(whole)
    assert [len(part) for part in parts] == [2, 2, 1, 1]


@pytest.mark.parametrize("name", ["funit", "coco_funit"])
def test_references_are_encoded_once(name: str, tmp_path: Path) -> None:
    """For any number of batches, with the images of `Generator.translate`."""
    train = from_plain(config_class(name), plain_few_shot(name))
    task = build_task(train, World(), CPU)
    networks = task.generation_networks()
    (generator,) = networks.values()
    generator.eval()
    drawn = draw_pairs(9, 4, (16, 16), 0, "files").images
    files = [tmp_path / f"{number}.png" for number in range(9)]
    for file, pixels in zip(files, drawn, strict=True):
        Image.fromarray(pixels.numpy()).save(file)
    seen: list[int] = []
    generator.style.encoder.register_forward_hook(lambda *call: seen.append(len(call[1][0])))
    request = Request(tmp_path, files[:6], style=tuple(files[6:]), batch_size=2)
    with torch.no_grad():
        made = dict(task.generate(request, networks))
        assert seen == [2, 1], "three references, two at a time"
        content, style = (read_images(some, train.images, CPU) for some in (files[:6], files[6:]))
        expected = generator.translate(content, style.expand(6, *style.shape))
    assert list(made) == files[:6]
    torch.testing.assert_close(torch.stack([*made.values()]), expected)


def test_the_page_loads_generators_in_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the directories of runs alone, in another folder than theirs."""
    page = (REPOSITORY / "docs" / "gan-generate.md").read_text()
    to_files, to_tensors = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name, make, plain in (
        ("spade", paired, plain_train("spade", epochs=1, images={"instances": False})),
        ("munit", unpaired, plain_unpaired("munit", epochs=1)),
    ):
        folder = tmp_path / "runs" / name / "latest"
        engine = make(folder, name, epochs=1, images=plain["images"])
        engine.fit()
        engine.tracker.close()
        write_job_json(folder, plain)
    (tmp_path / "maps").mkdir()
    Image.fromarray(draw_pairs(1, 4, (16, 16), 0, "maps").labels[0].numpy()).save(
        tmp_path / "maps" / "a.png"
    )
    monkeypatch.chdir(tmp_path)
    exec(to_files, {})
    with Image.open(tmp_path / "images" / "a.png") as image:
        assert image.size == (16, 16)
    names: dict[str, Any] = {}
    exec(to_tensors, names)
    dogs = names["dogs"]
    assert dogs.shape == (4, 3, 32, 32) and not torch.equal(dogs[0], dogs[1])


# -- videos ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def video_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a vid2vid that was trained for an epoch."""
    folder = tmp_path_factory.mktemp("runs") / "vid2vid" / "20261129-120000-abcd"
    settings: dict[str, Any] = {"epochs": 1, "images": {"instances": False}}
    made = vid2vid(folder, **settings)
    made.fit()
    made.tracker.close()
    write_job_json(folder, plain_video(**settings))
    return folder


def videos(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.mp4")}


def test_each_sequence_becomes_a_video_beside_its_frames(
    video_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes again, and for every number of ranks."""
    write_videos(tmp_path, sequences=3)
    words = (video_run, "--input", tmp_path / "test_A", "--device", "cpu", "--fps", "12")
    frames = generated(monkeypatch, tmp_path / "one", *words)
    one = videos(tmp_path / "one")
    assert set(one) == {f"scene {number}/video.mp4" for number in range(3)}
    generated(monkeypatch, tmp_path / "two", *words)
    assert videos(tmp_path / "two") == one
    loaded = load_generator(video_run)
    for rank in range(2):
        world = World(rank=rank, size=2)
        monkeypatch.setattr("hpc_amp.data.together.from_main", lambda world, find: find())
        request = generate.make_request(
            world, tmp_path / "test_A", tmp_path / "ranks", None, None, None, None, 0, 8, 12
        )
        generate.write_images(loaded, request, tmp_path / "ranks", lambda made: None)
    assert videos(tmp_path / "ranks") == one
    with av.open(str(tmp_path / "one/scene 1/video.mp4")) as video:
        assert video.streams.video[0].average_rate == 12
        shown = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(shown) == 4 and len(frames) == 12
    for number, pixels in enumerate(shown):
        with Image.open(tmp_path / f"one/scene 1/frame-{number:03d}.png") as png:
            assert np.abs(pixels.astype(int) - np.asarray(png).astype(int)).mean() < 12


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_video_that_a_full_disk_cuts_off_is_said_and_removed(
    video_run: Path, tmp_path: Path
) -> None:
    write_videos(tmp_path, sequences=1)
    out = tmp_path / "small"
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "test", out], check=True)

    def fill(made: int) -> None:
        """After the last frame."""
        if made == 4:
            with contextlib.suppress(OSError), open(out / "all", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

    try:
        world = World(rank=0, size=1)
        request = generate.make_request(
            world, tmp_path / "test_A", out, None, None, None, None, 0, 8, 12
        )
        with pytest.raises(JobError, match=r"small/scene 0 cannot be written to: .*No space left"):
            generate.write_images(load_generator(video_run), request, out, fill)
        kept = sorted(file.suffix for file in (out / "scene 0").iterdir())
        assert kept == [".png"] * 4, "and neither the video nor a part of it"
    finally:
        subprocess.run(["umount", "--lazy", out], check=True)


def test_a_long_video_takes_the_memory_of_some_frames(tmp_path: Path) -> None:
    """Also when it is not complete, there is no file under its name."""

    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    frame = torch.randint(256, (128, 128, 3), dtype=torch.uint8)
    with video_file(tmp_path / "video.mp4", 24) as add:
        for number in range(300):
            add(frame.roll(number, 1))
            if number == 100:
                before = memory()
        assert memory() - before < 200 * frame.numel() / 2
        assert not (tmp_path / "video.mp4").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["video.mp4"]


def test_what_cannot_become_a_video_is_said(
    run: Path, video_run: Path, maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--input", maps, "--device", "cpu", "--fps")
    with pytest.raises(InputError, match="this spade does not use --fps"):
        generated(monkeypatch, tmp_path / "out", run, *words, "9", "--instances", maps)
    with pytest.raises(InputError, match="0 frames a second are too few"):
        generated(monkeypatch, tmp_path / "out", video_run, *words, "0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="a video needs PyAV, and this Python has none") as error:
        generated(monkeypatch, tmp_path / "out", video_run, *words, "9")
    assert error.value.exit_code == 2 and not (tmp_path / "out").exists()
