"""Runs whose records are damaged, that nobody has submitted, or that were copied in part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.stubs import StubHost

from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs import change
from hpc_amp.jobs.again import again
from hpc_amp.jobs.code import copy_code
from hpc_amp.jobs.compared import _code
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.follow import follow
from hpc_amp.jobs.git import record_code_state
from hpc_amp.jobs.places import has_no_job
from hpc_amp.jobs.status import run_statuses

GOOD = {"scheduler": "slurm", "job": {"name": "a"}}


def run_in(folder: Path, resolved: Any = GOOD, *events: dict[str, Any]) -> Path:
    run_dir = folder / "runs" / "a" / f"2026010{len(events)}-000000-aaaa"
    run_dir.mkdir(parents=True)
    (run_dir / "job.json").write_text(json.dumps(resolved))
    (run_dir / "state.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    return run_dir


@pytest.mark.parametrize(
    "resolved",
    [{"job": None}, {"job": []}, {"job": {"name": 5}}, {"run_dir": "a\0b"}, {"scheduler": ["x"]}],
)
def test_a_damaged_job_json_is_one_unknown_row(resolved: dict[str, Any], tmp_path: Path) -> None:
    (found,) = run_statuses([run_in(tmp_path, resolved)])
    assert (found.name, found.state, found.reason) == ("a", "unknown", "its job.json is damaged")


@pytest.mark.parametrize(
    "wrong", [{"attempt": None}, {"time": None}, {"folder": 5}, {"job_id": ["a"]}, {"array": "x"}]
)
def test_a_damaged_event_is_one_unknown_row(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpc_amp.jobs.status.found_since", lambda *words: [])
    event = {"time": 1, "state": "submitted", **wrong}
    (found,) = run_statuses([run_in(tmp_path, GOOD, event)])
    assert (found.state, found.reason) == ("unknown", "its state.jsonl is damaged")


def test_a_damaged_run_does_not_hide_the_others(host: StubHost) -> None:
    run_in(host.work, {"run_dir": "a\0b"})
    run_in(host.work, {"job": []}, {"state": "queued", "job_id": ["a"]})
    good = run_in(host.work, GOOD, {"state": "queued"}, {"state": "finished", "attempt": None})
    shown = host.hpc_amp("status", "--json")
    assert shown.returncode == 0, shown.stderr
    rows = {row["run_dir"]: row["state"] for row in json.loads(shown.stdout)}
    assert sorted(rows.values()) == ["finished", "unknown", "unknown"]
    assert rows[str(good)] == "finished"


# ---- nothing to wait for -------------------------------------------------------------------------


def test_nobody_waits_for_a_run_that_was_only_created(host: StubHost) -> None:
    run_dir = run_in(host.work, GOOD, {"time": 1, "state": "created"})
    with pytest.raises(UsageError, match="its script has not started"):
        follow(run_dir, print, on_wait=print)
    watched = host.hpc_amp("status", "--watch")
    assert watched.returncode == 0 and "render --create" in watched.stdout
    assert host.hpc_amp("status", "--watch", "a").returncode == 0


def test_a_run_that_was_moved_has_no_job(tmp_path: Path) -> None:
    run_dir = run_in(tmp_path, {**GOOD, "run_dir": str(tmp_path)}, {"state": "submitted"})
    assert has_no_job(run_dir)
    (run_dir / "job.json").write_text(json.dumps({**GOOD, "run_dir": str(run_dir)}))
    assert not has_no_job(run_dir)


# ---- code ----------------------------------------------------------------------------------------


def test_code_is_not_copied_into_itself(tmp_path: Path) -> None:
    run_dir = tmp_path / "a" / "20260101-000000-aaaa"
    run_dir.mkdir(parents=True)
    with pytest.raises(ConfigError, match="into which it would be copied"):
        copy_code(tmp_path, run_dir, tmp_path)
    assert list(run_dir.iterdir()) == []


def test_a_comparison_reads_no_data_through_links(tmp_path: Path) -> None:
    code = tmp_path / "run" / "code"
    code.mkdir(parents=True)
    data = tmp_path / "data"
    data.write_text("large")
    (code / "data").symlink_to(data)
    (code / "loop").symlink_to("loop")
    (code / "one.py").write_text("")
    found = _code(tmp_path / "run")
    assert found["code/data"] == f"link to {data}"
    assert found["code/loop"] == "link to loop"
    assert len(found["code/one.py"]) == 12


def test_only_the_code_of_a_run_has_the_state_of_a_run(tmp_path: Path) -> None:
    for name in ("code", "mine"):
        (tmp_path / "from" / name).mkdir(parents=True)
    (tmp_path / "from" / "job.json").write_text("{}")
    (tmp_path / "from" / "git.json").write_text('{"commit": "of the run"}')

    def recorded(name: str) -> bool:
        folder = tmp_path / "to"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        job = SimpleNamespace(code=str(tmp_path / "from" / name))
        plan: Any = SimpleNamespace(job=job, submitted_from=tmp_path)
        record_code_state(plan, folder, tmp_path)
        return (folder / "git.json").exists()

    assert not recorded("code")
    record_event(tmp_path / "from", "submitted")
    assert recorded("code") and not recorded("mine")


def test_a_copy_of_a_point_without_its_job_file(tmp_path: Path) -> None:
    run_dir = run_in(tmp_path)
    (run_dir / "config.yaml").symlink_to("../../config.yaml")
    for command in (again, lambda folder: change.plan_change(folder, [], here=True)):
        with pytest.raises(UsageError, match="leads nowhere") as refused:
            command(run_dir)
        assert "cp -aL" in (refused.value.hint or "")


def test_the_script_says_that_only_its_code_is_gone(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    shutil.move(run_dir / "src", host.folder / "elsewhere")
    (run_dir / "src").symlink_to("nowhere")
    said = host.run(run_dir).output
    assert f"{run_dir}/src leads to no folder" in said and "hpc-amp resume --here" in said
    assert "there is no run directory" not in said
