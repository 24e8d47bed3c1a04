"""Images from trained generators on two ranks, while their run still trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support.paired import paired, plain_train
from support.rank_trainings import run_on
from support.warm import Warm

from hpc_amp.config.schema import Job, to_plain
from hpc_amp.gan.data.synthetic import draw_pairs

pytestmark = pytest.mark.ranks

SETTINGS = {
    "epochs": 2,
    "ema": 0.9,
    "images": {"instances": False},
    "checkpoint": {"every": "1epochs", "keep": 2},
}

# Rank 1 comes when the checkpoint is chosen and the world has changed.
_SCRIPT = """
import os, pathlib, shutil, sys, time
import torch
from hpc_amp.data.errors import DataError
from hpc_amp.distributed import setup
from hpc_amp.distributed.world import resolve
from hpc_amp.train import generate, run_program

run, chosen = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
choose = generate._choose

def choose_and_go_on(*arguments, **named):
    found = choose(*arguments, **named)
    CHANGES[what]()
    (chosen / what).touch()
    return found

def save():
    (run / "step-00000006").rename(run / "checkpoints" / "step-00000006")

def retire():
    shutil.rmtree(run / "checkpoints" / "step-00000006")

CHANGES = {"save": save, "retire": retire}
generate._choose = choose_and_go_on
world = resolve(os.environ)

def load():
    while world.rank == 1 and not (chosen / what).exists():
        time.sleep(0.01)
    return generate.load_generator(run, world=world)

def main():
    global what
    setup.join(world, torch.device("cpu"), 60)
    what = "save"
    print(f"step {load().step}")
    what = "retire"
    try:
        load()
    except DataError as error:
        print(f"refused {error}")
    setup.leave()
    return 0

run_program(main)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a SPADE with the checkpoints of steps 3 and 6."""
    folder = tmp_path_factory.mktemp("runs") / "spade"
    made = paired(folder, "spade", **SETTINGS)
    made.fit()
    made.tracker.close()
    plain = {**to_plain(Job(name="spade")), "train": plain_train("spade", **SETTINGS)}
    (folder / "job.json").write_text(json.dumps({"job": plain}))
    return folder


def test_two_ranks_make_what_one_makes(run: Path, warm: Warm, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    for number, labels in enumerate(draw_pairs(5, 4, (16, 16), 0, "maps").labels):
        Image.fromarray(labels.numpy()).save(maps / f"{number}.png")
    words = ("-m", "hpc_amp.train.generate", run, "--input", maps, "--batch-size", "2")
    made = {}
    for ranks in (1, 2):
        output = tmp_path / f"out {ranks}"
        said = run_on(warm, ranks, *words, "--output", output, "--device", "cpu")
        made[ranks] = {file.name: file.read_bytes() for file in output.iterdir()}
    assert "5 images to make with the weights of step 6 (average), cpu, 2 ranks" in said
    assert "rank 0: 3 images in" in said and "rank 1: 2 images in" in said
    assert len(made[1]) == 5 and made[2] == made[1]


def test_all_ranks_load_what_one_of_them_has_chosen(run: Path, warm: Warm, tmp_path: Path) -> None:
    """Though a newer checkpoint comes before another rank has begun; and one that is removed ends
    all ranks with one line."""
    still = tmp_path / "run"
    shutil.copytree(run, still)
    (still / "checkpoints" / "step-00000006").rename(still / "step-00000006")
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    said = run_on(warm, 2, script, still, tmp_path).splitlines()
    assert said.count("step 3") == 2, said
    refused = [line for line in said if line.startswith("refused")]
    assert len(refused) == 2, said
    for line in refused:
        assert "step-00000006 was removed while it was loaded: the run still trains" in line
