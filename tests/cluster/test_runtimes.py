"""Other container runtimes than Apptainer, the real ones, on the cluster: Charliecloud with a
folder and with a SquashFS file, and Podman. tests/unit has their options."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.cluster import STEPS, TRAINING, TWO_NODES, Cluster, one_real_rank
from support.commands import PATIENT
from support.environment import REPOSITORY
from support.images import locked, store, tar_as_root, unpack
from support.waiting import wait_until
from support.warm_python import WarmPython

from hpc_amp.containers.charliecloud import Charliecloud

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

CONFIG = str(REPOSITORY / "configs" / "cifar_resnet.yaml")

Overrides = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def images(
    cluster: Cluster, warm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Overrides:
    """What makes a job run in a runtime, by its name; `squashfs` is Charliecloud's other image."""
    folder = tmp_path_factory.mktemp("images")
    made: dict[str, list[str]] = {}

    def get(name: str) -> list[str]:
        if name not in made:
            make = {"charliecloud": _folder, "squashfs": _squashfs, "podman": _in_storage}[name]
            made[name] = [*cluster.overrides, *make(warm_cluster, folder)]
        return made[name]

    return get


def _folder(cluster: Cluster, folder: Path) -> list[str]:
    """A folder, in which there is nothing to bind to."""
    unpack(Path(cluster.image), folder / "root")
    return ["container.runtime=charliecloud", f"container.image={folder / 'root'}"]


def _squashfs(cluster: Cluster, folder: Path) -> list[str]:
    """A SquashFS file, in which Charliecloud cannot make what it binds to."""
    unpack(Path(cluster.image), folder / "prepared")
    for bind in cluster.binds:
        (folder / "prepared" / bind.lstrip("/")).mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mksquashfs", folder / "prepared", folder / "image.sqfs", "-quiet", "-no-progress",
         "-noI", "-noD", "-noF", "-noX"],
        check=True, timeout=300,
    )  # fmt: skip
    return ["container.runtime=charliecloud", f"container.image={folder / 'image.sqfs'}"]


def _in_storage(cluster: Cluster, folder: Path) -> list[str]:
    """An image in Podman's storage, where it stays. Podman would raise limits, which root may not
    do on every machine."""
    recipe = Path(cluster.environ["HPC_AMP_CLUSTER_STATE"]) / "base.recipe"
    name = f"localhost/hpc-amp-test:{recipe.read_text()[:12]}"
    with locked(store(cluster)):
        if not cluster.run("podman", "images", "--quiet", name, cwd=folder).stdout.strip():
            unpack(Path(cluster.image), folder / "layer")
            layer = tar_as_root(folder / "layer", folder / "layer.tar")
            cluster.run("podman", "import", "--quiet", str(layer), name, cwd=folder)
    return [
        "container.runtime=podman",
        f"container.image={name}",
        "container.args=[--ulimit=nofile=1024:1024, --ulimit=nproc=4096:4096]",
        "container.gpu=false",  # the nodes have no CDI specification
    ]


def entry(cluster: Cluster, run_dir: Path) -> dict[str, Any]:
    shown = cluster.hpc_amp("status", str(run_dir), "--json", cwd=run_dir.parent)
    (only,) = json.loads(shown.stdout)
    return only


def follow(cluster: Cluster, folder: Path, *words: str) -> Path:
    """Submit a job and wait for its end; the run directory of one that finished."""
    ended = cluster.hpc_amp("submit", *words, "--follow", "--json", cwd=folder, timeout=900)
    return Path(json.loads(ended.stdout.splitlines()[-1])["run_dir"])


def log_of(run_dir: Path) -> str:
    return (run_dir / "logs" / "job.log").read_text()


@pytest.mark.parametrize(("before", "after"), [("squashfs", "charliecloud"), ("podman", "podman")])
def test_a_cancelled_training_goes_on_where_it_was(
    before: str,
    after: str,
    warm_cluster: Cluster,
    warm_pythons: WarmPython,
    images: Overrides,
    tmp_path: Path,
) -> None:
    """The signal reaches every rank, whose image is whole until it has saved. Charliecloud's run
    begins in one kind of image and goes on in the other. The first rank that begins imports torch
    itself."""
    cluster = warm_cluster
    image = next(word for word in reversed(images(after)) if word.startswith("container.image="))
    forks = [word for word in cluster.overrides if word.startswith(("container.b", "container.p"))]
    begins = [*forks, f"container.python={one_real_rank(warm_pythons)}"]
    job = [*images(before), *begins, *TWO_NODES, "job.gpus_per_node=1", *TRAINING]
    shown = cluster.hpc_amp("submit", CONFIG, "--json", *job, cwd=tmp_path)
    facts = json.loads(shown.stdout)
    run_dir = Path(facts["run_dir"])
    progress = run_dir / "attempts" / "1" / "progress.json"

    def at_step_10() -> bool:
        assert '"failed"' not in (run_dir / "state.jsonl").read_text(), log_of(run_dir)
        return progress.exists() and json.loads(progress.read_text())["step"] >= 10

    wait_until(at_step_10, "step 10")
    cluster.hpc_amp("cancel", facts["job_id"], cwd=tmp_path)

    def resumed() -> bool:
        words = ("resume", str(run_dir), image, *forks)
        return cluster.hpc_amp(*words, cwd=tmp_path, check=False).returncode == 0

    wait_until(resumed, "the end of the first attempt")
    ends = ("finished", "failed", "lost")
    wait_until(lambda: entry(cluster, run_dir)["state"] in ends, "the end of the second attempt")

    log = log_of(run_dir)
    assert entry(cluster, run_dir)["state"] == "finished", log
    stopped = json.loads((run_dir / "attempts" / "1" / "outcome.json").read_text())
    assert stopped["outcome"] == "checkpointed"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["world_size"], summary["nodes"], summary["steps"]) == (2, 2, STEPS)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, STEPS + 1))
    assert re.search(
        r"^container: (Charliecloud 0\.\d|\S*/podman \(podman version)", log, re.MULTILINE
    )
    if after == "podman":
        left = cluster.run("podman", "ps", "--all", "--quiet", cwd=tmp_path).stdout
        assert left == ""


LOOK = """
import json, os, pathlib, socket, time

def wait_for(path):
    while not path.exists():
        time.sleep(0.1)

rank, seen = int(os.environ["RANK"]), pathlib.Path(os.environ["SEEN"])
other = rank ^ 1  # on the same node
shared = [f"/dev/shm/hpc-amp-test-{os.environ['HPC_AMP_JOB_ID']}-{one}" for one in (rank, other)]
pathlib.Path(shared[0]).touch()
wait_for(pathlib.Path(shared[1]))
(seen / f"{rank}.json").write_text(json.dumps({
    "node": socket.gethostname(),
    "folder": os.getcwd(),
    "inside": "CH_RUNNING" in os.environ or os.path.exists("/run/.containerenv"),
    "given": os.environ["GIVEN"],
    "exported": os.environ["EXPORTED"],
    "libraries": os.environ.get("LD_LIBRARY_PATH"),
}))
wait_for(seen / f"{other}.json")
os.unlink(shared[0])
"""


@pytest.mark.parametrize("runtime", ["charliecloud", "podman"])
def test_what_a_rank_sees(
    runtime: str, cluster: Cluster, images: Overrides, tmp_path: Path
) -> None:
    """Values are what they are, whoever sets them, and the ranks of a node share its memory."""
    text = "$(touch evaluated)`touch evaluated` \"'\\ a\nb"
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "seen").mkdir()
    job = {
        "name": "look",
        "run": ["python", "look.py"],
        "container": {"env": {"GIVEN": text, "SEEN": str(tmp_path / "seen")}},
        "job": {"setup": f"export EXPORTED={_quoted(text)}\nexport LD_LIBRARY_PATH=/host/only\n"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))

    follow(cluster, tmp_path, "job.yaml", *images(runtime), *TWO_NODES)

    seen = [json.loads((tmp_path / "seen" / f"{rank}.json").read_text()) for rank in range(4)]
    nodes = [one["node"] for one in seen]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    for one in seen:
        assert one["inside"]
        assert (one["given"], one["exported"]) == (text, text)
        assert one["folder"] == str(tmp_path)
        assert one["libraries"] != "/host/only"
    assert not list(tmp_path.rglob("evaluated"))
    assert {path.stat().st_uid for path in (tmp_path / "seen").iterdir()} == {os.getuid()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.parametrize("runtime", ["charliecloud", "podman"])
def test_a_session(runtime: str, cluster: Cluster, images: Overrides, tmp_path: Path) -> None:
    job = {"name": "session", "run": ["true"]}
    (tmp_path / "job.yaml").write_text(json.dumps(job))

    ended = cluster.hpc_amp(
        "shell", "job.yaml", *images(runtime), "job.walltime=5m", "job.gpus_per_node=0",
        "--", "python", "-c", "import os, sys; print(os.getcwd()); sys.exit(7)",
        cwd=tmp_path, check=False,
    )  # fmt: skip

    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines()[-1] == str(tmp_path)


def test_a_container_does_not_outlive_its_client(
    cluster: Cluster, images: Overrides, tmp_path: Path
) -> None:
    """Podman's containers are no children of the client, and would train on without it."""
    job = {"name": "killed", "run": ["python", "-c", "import time; time.sleep(10000)"]}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    words = ("job.yaml", *images("podman"), *TWO_NODES)
    facts = json.loads(cluster.hpc_amp("submit", "--json", *words, cwd=tmp_path).stdout)

    def containers() -> int:
        return len(cluster.run("podman", "ps", "--quiet", cwd=tmp_path).stdout.split())

    wait_until(lambda: containers() == 4, "four containers")
    cluster.run("scancel", "--signal=KILL", f"{facts['job_id']}.1", cwd=tmp_path, check=False)
    run_dir = Path(facts["run_dir"])
    wait_until(lambda: entry(cluster, run_dir)["state"] == "failed", "the end of the job")

    wait_until(lambda: containers() == 0, "the end of the containers")


def test_an_image_that_storage_has_not(cluster: Cluster, images: Overrides, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({"name": "missing", "run": ["true"]}))
    words = [*images("podman"), "container.image=localhost/none:1", "job.gpus_per_node=0"]

    ended = cluster.hpc_amp(
        "submit", "job.yaml", *words, "--follow", "--json", cwd=tmp_path, check=False
    )

    run_dir = Path(json.loads(ended.stdout.splitlines()[-1])["run_dir"])
    assert ended.returncode == 1
    assert "has no image localhost/none:1 on n" in log_of(run_dir)


@pytest.mark.parametrize(("runtime", "status"), [("charliecloud", 2), ("podman", 0)])
def test_an_image_without_torch(
    runtime: str, status: int, cluster: Cluster, images: Overrides, tmp_path: Path
) -> None:
    """The storage of Podman may be another one on the nodes, so that is only a note."""
    (tmp_path / "job.yaml").write_text(json.dumps({"name": "x", "train": {"data": "synthetic"}}))
    own = ["job.gpus_per_node=0", "container.bind=[]", "site=slurm"]
    for python, said in (("python3", "has no torch"), ("/opt/own/python3", "has no /opt/own")):
        words = ["validate", "job.yaml", *images(runtime), *own, f"container.python={python}"]
        ended = commands.python(*PATIENT, *words, cwd=tmp_path, environ=cluster.environ)
        assert ended.returncode == status, ended.stderr
        assert ended.stderr.startswith("hpc-amp: " if status else "note: ")
        assert said in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_what_is_in_an_image(cluster: Cluster, images: Overrides, tmp_path: Path) -> None:
    root = images("charliecloud")[-1].partition("=")[2]
    words = Charliecloud().words_here(root, clean=True)

    said = cluster.run(*words, "/usr/bin/python3", "-c", "print('inside')", cwd=tmp_path)

    assert said.stdout == "inside\n"
