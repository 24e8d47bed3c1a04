"""`hpc-amp resume RUN KEY=VALUE...`: what may change, what stays, and what is kept of before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.stubs import StubHost
from support.waiting import wait_until

from hpc_amp.config.keys import keys_of
from hpc_amp.config.schema import job_class
from hpc_amp.jobs import change
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.schedulers.local import scheduler as local
from hpc_amp.tasks.registry import TASKS, config_class


def job(**more: Any) -> dict[str, Any]:
    resources = {"gpus_per_node": 0, "walltime": "10m", **more.pop("job", {})}
    program = {} if "train" in more else {"run": ["true"]}
    return {"name": "test", "site": "slurm", **program, **more, "job": resources}


TRAINING: dict[str, Any] = {
    "data": {"name": "synthetic", "synthetic": {"train": 64, "test": 16, "image_size": 16}},
    "model": {"name": "resnet8", "width": 8},
    "batch_size": 16,
    "epochs": 3,
}


def submitted(host: StubHost, config: dict[str, Any], *overrides: str) -> Path:
    host.write_job(config)
    result = host.hpc_amp("submit", "job.yaml", "launch.preflight=false", *overrides, "--json")
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def ended(host: StubHost, run_dir: Path, state: str = "checkpointed") -> None:
    record_event(run_dir, "started", attempt=1, job_id="4242")
    record_event(run_dir, state, attempt=1, job_id="4242")
    (host.state / "queue").write_text("")


def fails(result: subprocess.CompletedProcess[str], status: int = 2) -> str:
    assert result.returncode == status, result.stdout + result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("hpc-amp: ")


def files(run_dir: Path) -> dict[str, bytes]:
    """Everything that a run is made of; its log and its events are told of what happens."""
    told = {run_dir / "state.jsonl", run_dir / "logs" / "job.log"}
    paths = (path for path in run_dir.rglob("*") if path.is_file() and path not in told)
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}


def log_of(run_dir: Path) -> list[str]:
    path = run_dir / "logs" / "job.log"
    return path.read_text().splitlines() if path.exists() else []


# ---- what is written -----------------------------------------------------------------------------


def test_a_run_of_an_older_version_goes_on_with_other_settings(host: StubHost) -> None:
    """Its `job.json` has the keys of every task."""
    run_dir = submitted(host, job(train=TRAINING))
    ended(host, run_dir)
    resolved = json.loads((run_dir / "job.json").read_text())
    resolved["job"]["train"]["gan"] = {"image_size": 64, "latent": 100}
    (run_dir / "job.json").write_text(json.dumps(resolved))

    result = host.hpc_amp("resume", str(run_dir), "train.epochs=4")

    assert result.returncode == 0, result.stderr
    assert "changed: train.epochs 3 -> 4" in result.stdout + result.stderr
    assert "gan" not in json.loads((run_dir / "job.json").read_text())["job"]["train"]


def test_a_run_goes_on_with_other_settings(host: StubHost) -> None:
    config = job(train=TRAINING, container={"env": {"A": "1", "SECRET": "old"}})
    run_dir = submitted(host, config, "train.optimizer.lr=0.4", "container.env.B=it's $HOME")
    ended(host, run_dir)
    before = files(run_dir)

    result = host.hpc_amp(
        "resume", str(run_dir), "train.epochs=4", "train.optimizer.lr=0.02", "job.walltime=2h",
        "job.nodes=2", "job.queue=long", "container.env.SECRET=new", "train.precision=bf16",
        "--json", cwd=host.folder,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    changes = [
        "job.nodes 1 -> 2",
        "job.walltime 10m -> 2h",
        "job.queue null -> long",
        "container.env.SECRET changed",
        "train.epochs 3 -> 4",
        "train.optimizer.lr 0.4 -> 0.02",
        "train.precision.mode fp32 -> bf16",
    ]
    assert result.stderr.splitlines() == [f"changed: {text}" for text in changes]
    resolved = json.loads((run_dir / "job.json").read_text())
    assert (resolved["job"]["train"]["epochs"], resolved["job"]["train"]["optimizer"]["lr"]) == (
        4, 0.02,
    )  # fmt: skip
    assert resolved["job"]["container"]["env"] == {"A": "1", "B": "it's $HOME", "SECRET": "new"}
    script = (run_dir / "launch.sh").read_text()
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --partition=long\n" in script
    assert os.access(run_dir / "launch.sh", os.X_OK)
    assert host.calls("sbatch")[1] == ["--parsable", str(run_dir / "launch.sh")]
    # What was before stays.
    after = files(run_dir)
    for name in ("launch.sh", "job.json"):
        assert after[f"history/1/{name}"] == before[name] != after[name]
    changed = {"launch.sh", "job.json"}
    assert {n: c for n, c in after.items() if n in before and n not in changed} == {
        n: c for n, c in before.items() if n not in changed
    }
    told = json.loads(after["history/1/change.json"])
    assert told["command"].startswith(f"hpc-amp resume {run_dir} train.epochs=4 ")
    assert told["changed"]["train.optimizer.lr"] == [0.4, 0.02]
    (line,) = log_of(run_dir)
    assert line.endswith(f": {', '.join(changes)}; before: {run_dir}/history/1")
    assert "container.env.SECRET=..." in line and "=new" not in line
    shown = host.hpc_amp("status", str(run_dir)).stdout
    assert "train.epochs 3 -> 4" in shown and told["command"] in shown
    (plain,) = json.loads(host.hpc_amp("status", str(run_dir), "--json").stdout)
    assert plain["changes"][0]["number"] == 1

    # The next change is one of the run as it is now.
    ended(host, run_dir)
    again = host.hpc_amp("resume", str(run_dir), "train.epochs=5")
    assert again.stderr == "changed: train.epochs 4 -> 5\n"
    assert json.loads((run_dir / "job.json").read_text())["job"]["job"]["nodes"] == 2
    assert sorted(path.name for path in (run_dir / "history").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("key", ["container", "container.env"])
def test_no_log_shows_what_stands_in_a_whole_section(host: StubHost, key: str) -> None:
    run_dir = submitted(host, job(container={"env": {"A": "1"}}))
    ended(host, run_dir)
    value = "{SECRET: hunter2}"

    result = host.hpc_amp(
        "resume", str(run_dir), f"{key}={value if key != 'container' else '{env: ' + value + '}'}"
    )

    assert result.returncode == 0, result.stderr
    (line,) = log_of(run_dir)
    assert f"{key}=..." in line and "hunter2" not in line
    assert "hunter2" not in host.hpc_amp("status", str(run_dir)).stdout


def test_nothing_to_change_is_a_resume_as_ever(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    ended(host, run_dir)
    before = files(run_dir)

    result = host.hpc_amp("resume", "test", "train.epochs=3")

    assert (result.returncode, result.stderr) == (0, "")
    assert files(run_dir) == before


def test_paths_count_from_where_the_run_was_submitted(host: StubHost) -> None:
    (host.work / "own").mkdir()
    (host.work / "own" / "program.py").write_text("print()")
    (host.work / "site.yaml").write_text("scheduler: slurm\ndirectives: [--qos=one]\n")
    run_dir = submitted(host, job(code="own", site="./site.yaml"))
    ended(host, run_dir)
    shutil.rmtree(host.work / "own")  # the run has a copy

    result = host.hpc_amp("resume", str(run_dir), "run=[python, other.py]", cwd=host.folder)

    assert result.stderr == 'changed: run ["true"] -> ["python", "other.py"]\n'
    assert "#SBATCH --qos=one\n" in (run_dir / "launch.sh").read_text()
    assert (run_dir / "code" / "program.py").exists()
    assert json.loads((run_dir / "job.json").read_text())["workdir"] == str(run_dir / "code")


def test_another_hpc_amp_brings_its_own_package(host: StubHost) -> None:
    """A script of one version and the ranks of another need not understand each other."""
    run_dir = submitted(host, job())
    ended(host, run_dir)
    own = run_dir / "src" / "hpc_amp" / "config" / "schema.py"
    now = own.read_text()
    own.write_text("# of another version\n")
    (run_dir / "src" / "hpc_amp" / "__pycache__").mkdir()
    (run_dir / "src" / "hpc_amp" / "__pycache__" / "schema.pyc").write_bytes(b"made by Python")

    assert host.hpc_amp("resume", "test", "job.walltime=1h").returncode == 0
    assert own.read_text() == now
    kept = run_dir / "history" / "1" / "src" / "hpc_amp" / "config" / "schema.py"
    assert kept.read_text() == "# of another version\n"

    ended(host, run_dir)
    assert host.hpc_amp("resume", "test", "job.walltime=2h").returncode == 0
    assert not (run_dir / "history" / "2" / "src").exists()


# ---- what cannot change --------------------------------------------------------------------------

FIXED = {
    "name", "runs_dir", "code",
    "train.task", "train.batch_size", "train.seed",
    "train.model.name", "train.model.stem", "train.model.norm", "train.model.width",
    "train.model.weights",
    "train.gan.image_size", "train.gan.latent", "train.gan.norm", "train.gan.generator_width",
    "train.gan.discriminator_width", "train.gan.generator_weights",
    "train.gan.discriminator_weights",
    "train.data.name", "train.data.image_size", "train.data.synthetic.train",
    "train.data.synthetic.test", "train.data.synthetic.classes",
    "train.data.synthetic.image_size", "train.data.synthetic.channels",
    "train.optimizer.name", "train.optimizer.decay_norm_and_bias",
    "train.precision.mode", "train.precision.init_scale",
    "train.start_from.path", "train.start_from.weights", "train.start_from.networks",
    "train.start_from.names", "train.start_from.partial",
}  # fmt: skip
"""All other keys may change. A new key has to be thought of here."""


def fixed_keys(section: type, path: str = "", above: bool = False) -> Iterator[str]:
    for name, key in keys_of(section).items():
        fixed = above or key.fixed is not None
        if key.is_section:
            yield from fixed_keys(key.type, f"{path}{name}.", fixed)
        elif fixed:
            yield f"{path}{name}"


def test_which_keys_are_fixed() -> None:
    own = ("classification", "dcgan")
    schemas = [job_class(config_class(name)) for name in own]
    assert {key for schema in schemas for key in fixed_keys(schema)} == FIXED
    for name in {*TASKS.names()} - {*own}:
        keys = set(fixed_keys(job_class(config_class(name)))) - FIXED
        assert {key.split(".")[1] for key in keys} == {"images", name}
        assert {"train.images.name", "train.images.image_size", f"train.{name}.width"} <= keys
        assert not {key for key in keys if key.endswith((".root", ".gan", ".gan_weight", ".lr"))}


def test_what_cannot_change_is_refused_with_the_reason(host: StubHost) -> None:
    config = job(train={**TRAINING, "precision": "fp16"}, container={"env": {"A": "1"}})
    run_dir = submitted(host, config)
    ended(host, run_dir)
    before, events = files(run_dir), read_events(run_dir)

    for override, reason in {
        "train.model=resnet20": "train.model.name: it stays resnet8 and cannot become resnet20: "
        "the weights in the checkpoints are those of this network",
        "train.seed=2": "the order of the samples follows from it",
        "train.batch_size=32": "the place in the data, are counted in batches",
        "train.precision=O2": "O2 and O3 train weights in half precision",
        "train.optimizer=adamw": "the state of this optimizer, which another cannot use",
        "name=other": "the run's folder and its job are named by it",
        "runs_dir=elsewhere": "the run's folder and its job are named by it",
        "code=.": "the run has a copy, `code` in its folder, which may be edited",
        "train.data.synthetic.train=128": "the run has learned from these samples",
        "train.nonsense=1": "train.nonsense",
        "job.nodes=0": "job.nodes: 0 is too small",
        "job.nodes=3": "train.batch_size: 16 does not divide by world size 3",
        "nonsense": "this has no '='",
    }.items():
        said = fails(host.hpc_amp("resume", "test", override, "job.walltime=1h"))
        assert reason in said
    program = fails(host.hpc_amp("resume", "test", "train=null", "run=[true]"))
    assert "a run cannot change between a built-in task and a program of your own" in program

    assert files(run_dir) == before
    assert read_events(run_dir) == events
    assert len(host.calls("sbatch")) == 1


def test_a_run_under_way_is_refused(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    before = files(run_dir)

    said = fails(host.hpc_amp("resume", "test", "train.epochs=9"))

    assert said == f"{run_dir} is pending as job 4242; it cannot run twice"
    assert files(run_dir) == before


def has_made(run_dir: Path, step: int, total: int, in_epoch: int) -> None:
    """What a training leaves behind that has come to a step."""
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    progress = {"step": step, "total_steps": total, "steps_per_epoch": in_epoch}
    (folder / "progress.json").write_text(json.dumps(progress))
    (run_dir / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


def test_a_run_cannot_end_before_where_it_is(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    has_made(run_dir, 10, 12, 4)
    ended(host, run_dir)

    said = fails(host.hpc_amp("resume", "test", "train.epochs=2"))

    assert said.startswith(f"{run_dir} has made 10 steps already, and would end at step 8; ")
    assert host.hpc_amp("resume", "test", "train.max_steps=10").returncode == 0


def test_a_finished_run_needs_more_to_do(host: StubHost) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    has_made(run_dir, 12, 12, 4)
    ended(host, run_dir, "finished")

    assert fails(host.hpc_amp("resume", "test")).endswith("there is nothing to resume")
    for override in ("job.walltime=2h", "train.max_steps=12", "train.optimizer.lr=0.2"):
        assert fails(host.hpc_amp("resume", "test", override)) == (
            f"{run_dir} has finished, at step 12 of 12; it can continue with more train.epochs or "
            "train.max_steps"
        )
    assert not (run_dir / "history").exists()
    assert host.hpc_amp("resume", "test", "train.epochs=4").returncode == 0


def test_a_run_that_does_not_tell_how_it_was_submitted(host: StubHost) -> None:
    run_dir = submitted(host, job())
    ended(host, run_dir)
    resolved = json.loads((run_dir / "job.json").read_text())
    del resolved["overrides"]
    (run_dir / "job.json").write_text(json.dumps(resolved))

    assert "did not record the overrides of its command line" in fails(
        host.hpc_amp("resume", "test", "job.walltime=1h")
    )
    assert host.hpc_amp("resume", "test").returncode == 0


def test_a_machine_of_another_site_is_no_reason_to_go_there(host: StubHost) -> None:
    run_dir = submitted(host, job(site="auto"), "site=auto")
    ended(host, run_dir)
    assert json.loads((run_dir / "job.json").read_text())["site"] != "pbs"
    resolved = json.loads((run_dir / "job.json").read_text())
    here, resolved["site"] = resolved["site"], "polaris"
    (run_dir / "job.json").write_text(json.dumps(resolved))

    said = fails(host.hpc_amp("resume", str(run_dir), "job.walltime=1h"))

    assert f"was submitted for the site polaris, but this machine is one of the site {here}" in said
    moved = host.hpc_amp("resume", str(run_dir), "job.walltime=1h", f"site={here}")
    assert f"changed: site polaris -> {here}" in moved.stderr.splitlines()


# ---- when it does not come about -----------------------------------------------------------------


@pytest.mark.parametrize("state", ["checkpointed", "finished"])
def test_a_refused_submission_leaves_all_as_it_was(host: StubHost, state: str) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    has_made(run_dir, 12, 12, 4)
    ended(host, run_dir, state)
    (run_dir / "src" / "hpc_amp" / "errors.py").write_text("# of another version\n")
    before = files(run_dir)
    host.fail("sbatch", "Invalid qos specification")

    said = fails(host.hpc_amp("resume", "test", "train.epochs=9"), 1)

    assert "Invalid qos specification" in said
    assert files(run_dir) == before
    made, taken_back = log_of(run_dir)
    assert "train.epochs 3 -> 9" in made
    assert "the change was reverted: sbatch" in taken_back
    (told,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert told["state"] == ("finished" if state == "finished" else "failed")
    (host.state / "fail-sbatch").unlink()
    assert host.hpc_amp("resume", "test", "train.epochs=9").returncode == 0
    assert (run_dir / "history" / "1" / "launch.sh").read_bytes() == before["launch.sh"]


STEPS = ("_keep", "_replace", "_log")


@pytest.mark.parametrize("step", STEPS)
def test_a_disk_that_refuses_leaves_all_as_it_was(
    host: StubHost, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    ended(host, run_dir)
    (run_dir / "src" / "hpc_amp" / "errors.py").write_text("# of another version\n")
    before = files(run_dir)
    planned = change.plan_change(run_dir, ["train.epochs=9"])
    real = getattr(change, step)

    def refused(*arguments: Any) -> None:
        if step != "_keep":
            real(*arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(change, step, refused)

    with pytest.raises(change.UsageError, match=r"cannot be changed: .*No space left"):
        change.apply(run_dir, planned, "hpc-amp resume test train.epochs=9")

    assert files(run_dir) == before
    assert not list(run_dir.glob(".change-*"))


KILLED = """
import sys
from pathlib import Path
from hpc_amp.jobs import change
run_dir, step = Path(sys.argv[1]), sys.argv[2]
planned = change.plan_change(run_dir, ["train.epochs=9"])
real = getattr(change, step)
def killed(*arguments):
    import os
    result = real(*arguments)
    os.kill(os.getpid(), 9)
setattr(change, step, killed)
change.apply(run_dir, planned, "hpc-amp resume")
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_half_way_is_mended_by_the_next_resume(host: StubHost, step: str) -> None:
    run_dir = submitted(host, job(train=TRAINING))
    ended(host, run_dir)
    (run_dir / "src" / "hpc_amp" / "errors.py").write_text("# of another version\n")
    before = files(run_dir)

    words = ("-c", KILLED, str(run_dir), step)
    killed = commands.python(*words, cwd=host.work, environ=host.environ())

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert host.hpc_amp("resume", "test").returncode == 0
    now = {name: c for name, c in files(run_dir).items() if not name.startswith(".change-")}
    assert now == before
    assert "its command was killed before it submitted the job" in log_of(run_dir)[-1]


# ---- runs that really run ------------------------------------------------------------------------


@pytest.fixture
def here(host: StubHost) -> Iterator[StubHost]:
    """A machine on which local runs are started; none outlives the test."""
    yield host
    for path in host.work.glob("*/*/[0-9]*/state.jsonl"):
        for event in read_events(path.parent):
            job_id = str(event.get("job_id", ""))
            if job_id.startswith("local-") and local._alive(job_id):
                os.kill(int(job_id.split("-")[1]), signal.SIGKILL)


def until(host: StubHost, run_dir: Path, state: str) -> dict[str, Any]:
    def status() -> dict[str, Any] | None:
        (entry,) = json.loads(host.hpc_amp("status", str(run_dir), "--json").stdout)
        assert entry["state"] in (state, "pending", "running"), entry
        return dict(entry) if entry["state"] == state else None

    found: dict[str, Any] = wait_until(status, f"{run_dir} to be {state}", pause=0.2)
    return found


def test_a_finished_training_trains_longer(here: StubHost, warm_python: Path) -> None:
    container = {"python": str(warm_python)}
    training = {**TRAINING, "device": "cpu"}
    run_dir = submitted(here, job(site="local", container=container, train=training))
    assert until(here, run_dir, "finished")["step"] == 12

    result = here.hpc_amp("resume", "test", "train.epochs=4", "train.optimizer.lr=0.02", "--follow")

    assert result.returncode == 0, result.stdout
    assert until(here, run_dir, "finished")["step"] == 16
    log = (run_dir / "logs" / "job.log").read_text()
    assert (
        "changed since the checkpoint: train.epochs 3 -> 4, train.optimizer.lr 0.1 -> 0.02" in log
    )
    assert "the run now ends at step 16, not at 12" in log
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["total_steps"]) == (16, 16)


def test_a_finished_program_of_ones_own_runs_with_other_arguments(here: StubHost) -> None:
    run_dir = submitted(here, job(site="local", run=["echo", "first"]))
    until(here, run_dir, "finished")

    assert here.hpc_amp("resume", "test", "run=[echo, second]", "--follow").returncode == 0

    log = log_of(run_dir)
    assert [line for line in log if line in ("first", "second")] == ["first", "second"]
    (told,) = [line for line in log if "run [" in line]
    assert log.index("first") < log.index(told) < log.index("second")


def test_a_point_of_a_sweep(here: StubHost) -> None:
    """Its package is a link to that of the whole sweep, and its settings are its own."""
    here.write_job(job(site="local", run=["bash", "-c", 'echo "point $X $Y"']))
    made = here.hpc_amp(
        "sweep", "job.yaml", "container.env.X=a,b", "launch.preflight=false", "--json"
    )
    assert made.returncode == 0, made.stderr
    folder = Path(json.loads(made.stdout)["folder"])
    point = folder / "points" / "0001"
    until(here, point, "finished")

    result = here.hpc_amp("resume", str(point), "container.env.Y=more", "--follow")

    assert result.returncode == 0, result.stdout
    assert [line for line in log_of(point) if line.startswith("point")] == [
        "point b ", "point b more",
    ]  # fmt: skip
    assert (point / "src").is_dir() and not (point / "src").is_symlink()
    assert (point / "history" / "1" / "src").is_symlink()
