"""TensorBoard, wandb and MLflow as trackers, with the real packages and their files read back."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.commands import python
from support.environment import REPOSITORY, clean_environ
from support.waiting import wait_until
from support.warm import Warm

from hpc_amp.campaigns.found import runs_of
from hpc_amp.cli.app import app
from hpc_amp.distributed.world import World
from hpc_amp.errors import UsageError
from hpc_amp.jobs.export import export
from hpc_amp.trackers import registry, thread
from hpc_amp.trackers.base import Tracker
from hpc_amp.trackers.registry import TRACKERS
from hpc_amp.trackers.run import Point, configuration, flat, identity, points
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.tracking import Tracking

JOB = {
    "name": "demo",
    "env": {"TOKEN": "secret-value"},
    "job": {"nodes": 2, "gpus_per_node": 4, "account": "me"},
    "train": {"optimizer": {"lr": 0.1, "name": "sgd"}, "ema": None, "tf32": True, "list": [1, 2]},
}
FLAT = {
    "name": "demo",
    "job.nodes": 2,
    "job.gpus_per_node": 4,
    "train.optimizer.lr": 0.1,
    "train.optimizer.name": "sgd",
    "train.tf32": True,
    "train.list": "[1, 2]",
}
LOSSES = [(step, 1 / step) for step in range(1, 11)]


def run_dir(folder: Path, job: Mapping[str, Any] = JOB) -> Path:
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"job": job}))
    return folder


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that choose servers are not there."""
    for name in os.environ:
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)


def track(folder: Path, trackers: list[str]) -> Tracking:
    run = RunDirectory(folder, 1)
    run.attempt_path.mkdir(parents=True, exist_ok=True)
    return Tracking(run, World(), start_step=0, trackers=trackers)


@pytest.mark.usefixtures("no_server")
def test_wandb_and_mlflow_have_each_point_once_over_attempts_and_exports(
    warm: Warm, tmp_path: Path
) -> None:
    """The first attempt is killed after step 8, and the second one resumes from step 6."""
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    folder = run_dir(tmp_path / "runs" / "demo" / "20261129-100000-aaaa")
    other = run_dir(tmp_path / "runs" / "demo" / "20261129-110000-bbbb")
    lines = [json.dumps({"step": s, "time": 1e9 + s, "train/loss": 1 / s}) for s in range(1, 251)]
    (other / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 251, "ti']))

    search = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
    tracked = warm.run("-m", "support.tracked", folder, environ=search)
    assert tracked.returncode == 0, tracked.stderr
    ended = [line for line in tracked.stdout.splitlines() if line.startswith("ended:")]
    assert ended == [f"ended: {-signal.SIGKILL}", "ended: 0", "ended: 0"], tracked.stderr
    assert "WARNING" not in tracked.stdout and "Traceback" not in tracked.stderr
    # Without torch: exports are made on login nodes.
    exported = python(
        *("-m", "support.exported"),
        *map(str, (tmp_path / "store", folder, other)),
        cwd=tmp_path,
        environ=clean_environ(**search),
    )
    assert exported.returncode == 0, exported.stderr

    from hpc_amp.trackers.wandb_files import rows

    (own,) = (folder / "mlruns").glob("*/*/metrics/train/loss")
    stored = [line.split() for line in own.read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in stored] == LOSSES
    found = [row for row in rows(folder / "wandb", identity(folder)) if "train/loss" in row]
    assert [(row["step"], row["train/loss"]) for row in found] == LOSSES
    assert [row["_step"] for row in found] == sorted({row["_step"] for row in found})
    # On a busy machine, wandb's own process writes the file some seconds after its run.
    own_rows = wait_until(lambda: list(rows(folder / "own" / "wandb", "abc")), "rows of the user")
    assert [row["step"] for row in own_rows] == [7], "rows without a step are left out"
    (picture,) = (folder / "mlruns").rglob("*.png")
    assert picture.name == "step-00000001.png"
    for place in ("mlruns", "wandb"):
        files = [path.read_bytes() for path in (folder / place).rglob("*") if path.is_file()]
        assert not [text for text in files if b"secret-value" in text]

    *sent, last = exported.stdout.splitlines()
    assert [json.loads(line)["points"] for line in sent] == [20, 250, 0, 0]
    result = json.loads(last)
    assert not result["torch"]
    first, second = result["runs"][f"demo/{folder.name}"], result["runs"][f"demo/{other.name}"]
    assert len(result["runs"]) == 2
    assert [tuple(point) for point in first["points"]] == LOSSES
    assert first["curves"] == ["train/loss", "train/loss_scale_a_b"]
    assert first["params"] == {name: str(value) for name, value in FLAT.items()}
    assert [step for step, _ in second["points"]] == list(range(1, 251))


def test_the_settings_of_a_run_for_trackers(tmp_path: Path) -> None:
    assert flat(configuration(run_dir(tmp_path / "run"))) == FLAT
    (tmp_path / "train.json").write_text(json.dumps({"seed": 3}))
    assert flat(configuration(tmp_path)) == {"name": tmp_path.name, "train.seed": 3}
    assert configuration(tmp_path / "nothing") == {}


def test_the_tab_hparams_has_one_entry_a_run(tmp_path: Path) -> None:
    hparams = pytest.importorskip("support.hparams")
    for name, rate in (("one", 0.1), ("two", 0.2)):
        job = {**JOB, "train": {"optimizer": {"lr": rate}}}
        folder = run_dir(tmp_path / name, job)
        for first, last in ((1, 4), (3, 6)):  # two attempts
            run = RunDirectory(folder, first)
            run.attempt_path.mkdir(parents=True)
            tracking = Tracking(run, World(), start_step=first - 1, trackers=["tensorboard"])
            for step in range(first, last + 1):
                tracking.scalars(step, {"eval/accuracy": rate * step})
            if last == 6:
                tracking.end("finished")
            tracking.close()

    groups = hparams.session_groups(tmp_path)

    assert len(groups) == 2
    for group, rate in zip(sorted(groups, key=lambda one: one.name), (0.1, 0.2), strict=True):
        assert group.hparams["train.optimizer.lr"].number_value == rate
        assert group.hparams["job.nodes"].number_value == 2
        (session,) = group.sessions
        assert session.status == 1  # success
        (metric,) = session.metric_values
        assert (metric.name.tag, metric.training_step) == ("eval/accuracy", 6)
        assert metric.value == pytest.approx(6 * rate)


def test_the_configuration_is_a_text_in_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    track(run_dir(tmp_path / "run"), ["tensorboard"]).close()
    board = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    (event,) = board.Tensors("configuration/text_summary")
    (text,) = event.tensor_proto.string_val
    assert b'    "lr": 0.1' in text and b"secret" not in text


def test_a_tracker_that_hangs_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on, entered = threading.Event(), threading.Event()
    taken = []

    class Hanging(Tracker):
        def scalars(self, step: int, values: Mapping[str, float]) -> None:
            entered.set()
            goes_on.wait()
            taken.append(step)

    monkeypatch.setattr(TRACKERS, "get", lambda name: Hanging)
    tracking = track(tmp_path, ["one"])
    tracking.scalars(1, {"train/loss": 0.5})
    assert entered.wait(60)
    tracking.scalars(2, {"train/loss": 0.5})
    tracking.close(seconds=0.1)
    assert (
        "the tracker one has not written everything within 0.1 seconds" in capsys.readouterr().out
    )
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert taken == []
    goes_on.set()


def test_a_tracker_that_takes_no_more_reports_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goes_on, entered = threading.Event(), threading.Event()

    class Hanging(Tracker):
        def scalars(self, step: int, values: Mapping[str, float]) -> None:
            entered.set()
            goes_on.wait()

    monkeypatch.setattr(TRACKERS, "get", lambda name: Hanging)
    monkeypatch.setattr(thread, "_ROOM", 5)
    tracking = track(tmp_path, ["one"])
    tracking.scalars(0, {"train/loss": 0.5})
    assert entered.wait(60)
    for step in range(1, 20):
        tracking.scalars(step, {"train/loss": 0.5})
    assert capsys.readouterr().out.count("the tracker one is not used: it does not take any") == 1
    goes_on.set()
    tracking.close()
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 20


def test_a_package_that_is_missing_is_one_line_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = []

    class Other(Tracker):
        def scalars(self, step: int, values: Mapping[str, float]) -> None:
            taken.append(step)

    find = registry.importlib.util.find_spec
    monkeypatch.setattr(
        registry.importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name)
    )
    get = TRACKERS.get
    monkeypatch.setattr(TRACKERS, "get", lambda name: Other if name == "other" else get(name))
    tracking = track(run_dir(tmp_path / "run"), ["wandb", "other"])
    tracking.scalars(1, {"train/loss": 0.5})
    tracking.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert "the tracker wandb is not used: there is no package wandb here" in line
    assert taken == [1]
    with pytest.raises(UsageError, match="pip install wandb"):
        export(tmp_path / "run", "wandb")


def test_lines_of_a_program_of_the_users_own(tmp_path: Path) -> None:
    lines = ['{"step": 1, "loss": 2.5}', '{"step": 2, "time": 5, "loss": 1, "phase": "warm"}']
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "7", '{"loss": 1}', '{"step"']))
    os.utime(tmp_path / "metrics.jsonl", (1e9, 1e9))
    assert list(points(tmp_path)) == [Point(1, 1e9, {"loss": 2.5}), Point(2, 5.0, {"loss": 1})]
    assert list(points(tmp_path / "nothing")) == []


def test_a_tracker_gets_again_what_could_not_be_sent(tmp_path: Path) -> None:
    from hpc_amp.trackers.sender import Sender

    sent: list[int] = []
    is_down = True

    class Server(Sender):
        def send(self, points: Any) -> None:
            if is_down:
                raise ConnectionError("the server is down")
            sent.extend(point.step for point in points)

    lines = [Point(step, 1e9, {"train/loss": 1 / step}) for step in range(1, 6)]
    server = Server(tmp_path, 1)
    with (tmp_path / "metrics.jsonl").open("w") as out:
        for line in lines:
            text = {"step": line.step, "time": line.time, **line.values}
            out.write(json.dumps(text) + "\n")
            out.flush()
            is_down = line.step < 4
            if is_down:
                with pytest.raises(ConnectionError):
                    server.report(line.step, line.time, line.values)
            else:
                server.report(line.step, line.time, line.values)
    assert sent == [1, 2, 3, 4, 5]


def test_export_takes_the_folder_of_a_sweep_and_says_what_is_wrong(tmp_path: Path) -> None:
    sweep = tmp_path / "sweeps" / "lr" / "20261129-100000-aaaa"
    folders = [run_dir(sweep / "points" / f"{number:04d}") for number in range(3)]
    assert runs_of(str(folders[1]), tmp_path) == [folders[1]]
    (sweep / "campaign.json").write_text("{}")
    (sweep.parent / "latest").symlink_to(sweep.name)
    assert runs_of(str(sweep.parent), tmp_path) == runs_of(str(sweep), tmp_path) == folders
    with pytest.raises(UsageError, match="there is no run 'nothing'"):
        runs_of("nothing", tmp_path)
    result = CliRunner().invoke(app, ["export", str(folders[0])])
    assert result.exit_code == 2 and "Give --wandb or --mlflow." in result.output
    result = CliRunner().invoke(app, ["export", str(folders[0]), "--mlflow"])
    assert result.exit_code == 0 and "there is no metrics.jsonl yet" in result.output


@pytest.mark.parametrize(
    ("given", "mode"), [("dryrun", "offline"), ("run", "online"), ("offline", "offline")]
)
def test_old_names_of_the_modes_of_wandb(
    monkeypatch: pytest.MonkeyPatch, given: str, mode: str
) -> None:
    """Otherwise a run would be exported once more, under another name of the same mode."""
    pytest.importorskip("wandb")
    from hpc_amp.trackers.wandb import choose_mode

    monkeypatch.setenv("WANDB_MODE", given)
    assert choose_mode() == mode
