"""Trackers of copied runs, addresses with passwords, and packages that are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.waiting import wait_until

from hpc_amp.errors import HpcAmpError
from hpc_amp.jobs import export
from hpc_amp.trackers.registry import TRACKERS, missing
from hpc_amp.trackers.run import FOLDER, identity
from hpc_amp.trackers.secret import without_passwords
from hpc_amp.trackers.thread import TrackerThread

SECRET = "https://me:pass-word@mlflow.example.org:5000/a"


def new_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "train/loss": 0.5}\n')
    return folder


def test_a_copied_run_has_an_id_of_its_own_and_a_moved_one_keeps_it(tmp_path: Path) -> None:
    first = new_run(tmp_path / "first")
    original = identity(first)
    assert identity(first) == original
    copy = tmp_path / "copy"
    shutil.copytree(first, copy)
    (tmp_path / "link").symlink_to(first)
    assert identity(tmp_path / "link") == original
    own = identity(copy)
    assert own != original
    assert (identity(copy), identity(first)) == (own, original)
    moved = copy.rename(tmp_path / "moved")
    assert identity(moved) == own


def test_an_id_without_a_directory_stays(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "id").write_text("0123456789abcdef")
    assert identity(tmp_path) == "0123456789abcdef"


def test_what_the_original_sent_is_not_taken_as_sent_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    first = new_run(tmp_path / "first")
    record = {"id": identity(first), "online": {"rows": 1, "sent": {"train/loss": 1}}}
    (first / FOLDER / "wandb.json").write_text(json.dumps(record))
    shutil.copytree(first, tmp_path / "copy")
    sender = TRACKERS.get("wandb")
    assert sender(first, 0).sent == {"train/loss": 1}
    assert sender(tmp_path / "copy", 0).sent == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SECRET, "https://mlflow.example.org:5000/a"),
        (
            f"no answer of {SECRET}: at http://b@c/",
            "no answer of https://mlflow.example.org:5000/a",
        ),
        ("postgresql+psycopg2://u:p@ss@db/x", "postgresql+psycopg2://db/x"),
        ("file:///a/b@c", "file:///a/b@c"),
    ],
)
def test_passwords_are_removed_from_addresses(text: str, shown: str) -> None:
    assert without_passwords(text).startswith(shown)
    assert "pass-word" not in without_passwords(text)


class Failing:
    """A tracker whose server cannot be reached."""

    def __init__(self, run_dir: Path, first_step: int) -> None:
        raise ValueError(f"no connection to {SECRET}")


def test_errors_of_trackers_show_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TRACKERS, "get", lambda name: Failing)
    monkeypatch.setattr(export, "missing", lambda name: None)
    with pytest.raises(HpcAmpError) as caught:
        export.export(new_run(tmp_path / "run"), "mlflow")
    said: list[str] = []
    TrackerThread(
        "mlflow",
        lambda: Failing(tmp_path, 0),  # type: ignore[arg-type, return-value]
        opened=lambda tracker: None,
        incomplete=lambda error: None,
        failed=said.append,
    )
    wait_until(lambda: said, "the tracker fails")
    for text in (str(caught.value), said[0]):
        assert "no connection to https://mlflow.example.org:5000/a" in text


def test_mlflow_shows_where_its_curves_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    run = new_run(tmp_path / "a run")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    where = TRACKERS.get("mlflow")(run, 0).where
    assert f"mlflow ui --backend-store-uri {(run / 'mlruns').as_uri()}," in where
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SECRET)
    assert TRACKERS.get("mlflow")(run, 0).where == "https://mlflow.example.org:5000/a"


def test_an_empty_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(__import__("sys").modules, "mlflow", raising=False)
    assert "there is no package mlflow here" in str(missing("mlflow"))
