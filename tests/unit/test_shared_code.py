"""One copy of the package for all runs of a folder, and the file `latest`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.stubs import StubHost, events

from hpc_amp.jobs import shared_code
from hpc_amp.jobs.events import record_event
from hpc_amp.jobs.places import follow_latest, write_latest
from hpc_amp.jobs.shared_code import remove_unused

JOB = "name: {}\nsite: slurm\nrun: [{}]\njob: {{gpus_per_node: 0}}\n"


def submitted(host: StubHost, name: str = "a", *more: str, run: str = "'true'") -> Path:
    (host.work / "job.yaml").write_text(JOB.format(name, run))
    result = host.hpc_amp("submit", "job.yaml", "--json", *more)
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def copies(host: StubHost) -> list[Path]:
    return sorted((host.work / "runs" / ".hpc_amp" / "src").iterdir())


def make_old(path: Path) -> None:
    old = time.time() - 2 * 86400
    os.utime(path, (old, old))


def test_runs_share_one_copy(host: StubHost) -> None:
    one, two = submitted(host, "a"), submitted(host, "b")
    (copy,) = copies(host)
    assert (one / "src").resolve() == (two / "src").resolve() == copy
    assert sum(len(files) for _, _, files in os.walk(one)) < 20
    assert (one / "src" / "hpc_amp" / "host" / "begin.sh").is_file()
    assert host.run(one).status == 0
    assert events(one)[-1] == "finished"
    # Another scheduler has host code of its own.
    submitted(host, "a", "site=local")
    assert len(copies(host)) == 2


def test_a_container_sees_the_copy(host: StubHost) -> None:
    plan = host.plan({"run": ["true"], "container": {"image": str(host.image)}}, cwd=host.work)
    assert plan.shared_code == host.work / "runs" / ".hpc_amp" / "src"
    seen = [Path(bind) for bind in plan.binds]
    assert any(plan.shared_code.is_relative_to(folder) for folder in seen)
    elsewhere = host.plan(
        {"run": ["true"], "container": {"image": str(host.image)}},
        f"runs_dir={host.folder}/elsewhere",
        cwd=host.work,
    )
    assert f"{host.folder}/elsewhere/.hpc_amp/src" in elsewhere.binds


def test_half_a_copy_is_never_used(host: StubHost) -> None:
    run = submitted(host)
    (copy,) = copies(host)
    half = copy.with_name(f".{copy.name}-0000")
    copy.rename(half)
    shutil.rmtree(half / "hpc_amp" / "train")
    other = submitted(host)
    assert (other / "src").resolve() == (run / "src").resolve() == copy
    assert (copy / "hpc_amp" / "train").is_dir()
    make_old(half)
    assert remove_unused([host.work / "runs"]) == 0
    assert copies(host) == [copy]


@pytest.mark.parametrize("change", ["edited", "a file less", "a file more"])
def test_a_changed_copy_is_not_used(host: StubHost, change: str) -> None:
    first = submitted(host)
    (copy,) = copies(host)
    file = copy / "hpc_amp" / "errors.py"
    if change == "edited":
        file.write_text(f"{file.read_text()}# mine\n")
    elif change == "a file less":
        file.unlink()
    else:
        file.with_name("more.py").touch()
    run = submitted(host)
    assert not (run / "src").is_symlink() and (first / "src").resolve() == copy
    assert "# mine" not in (run / "src" / "hpc_amp" / "errors.py").read_text()
    assert not (run / "src" / "hpc_amp" / "more.py").exists()


def test_the_files_of_a_copy_are_read_only_if_their_times_differ(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `cp -r`, or in a copy that an older hpc-amp wrote."""
    submitted(host)
    (copy,) = copies(host)
    plan = host.plan({"run": ["true"], "job": {"gpus_per_node": 0}}, cwd=host.work)
    plan = replace(plan, shares_code=True)
    read: list[Path] = []
    content = shared_code._content
    monkeypatch.setattr(
        shared_code, "_content", lambda folder: read.append(folder) or content(folder)
    )

    for times_differ in (False, True):
        if times_differ:
            os.utime(copy / "hpc_amp" / "errors.py", (1, 1))
        folder = host.work / f"run{times_differ}"
        folder.mkdir()
        shared_code.link_package(folder, plan)
        assert (folder / "src").resolve() == copy
        assert bool(read) == times_differ


def test_what_python_adds_to_a_copy_does_not_count(host: StubHost) -> None:
    submitted(host)
    (copy,) = copies(host)
    (copy / "hpc_amp" / "__pycache__").mkdir()
    (copy / "hpc_amp" / "__pycache__" / "errors.cpython-311.pyc").touch()
    assert (submitted(host) / "src").is_symlink()


def test_prune_removes_copies_that_nothing_uses(host: StubHost) -> None:
    run, other = submitted(host), submitted(host, "b", "site=local")
    of_run, of_other = (run / "src").resolve(), (other / "src").resolve()
    assert host.hpc_amp("wait", str(other)).returncode == 0  # it writes into folder and copy
    for copy in copies(host):
        make_old(copy)
    shutil.rmtree(other.parent)  # by hand
    result = host.hpc_amp("prune", "--yes")
    assert result.stdout == "removed 1 copy of the package\n", result.stderr
    assert copies(host) == [of_run] and of_run != of_other
    record_event(run, "finished")
    (host.state / "queue").write_text("")
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout.splitlines() == [
        "removed 1 run", "removed 1 copy of the package",
    ]  # fmt: skip
    assert not (host.work / "runs" / ".hpc_amp").exists()


def test_a_copy_that_was_used_today_stays(host: StubHost) -> None:
    shutil.rmtree(submitted(host).parent)
    assert host.hpc_amp("prune").stdout == "there is nothing to remove\n"
    assert len(copies(host)) == 1


def test_submissions_and_prune_at_once(host: StubHost) -> None:
    """Copies come and go, and no run is without one."""
    (host.work / "job.yaml").write_text(JOB.format("a", "'true'"))
    command = [sys.executable, "-m", "hpc_amp", "submit", "job.yaml", "--json"]
    running = [
        subprocess.Popen(
            command, cwd=host.work, env=host.environ(), stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    while any(process.poll() is None for process in running):
        remove_unused([host.work / "runs"], older_than=-1)
    for process in running:
        said, _ = process.communicate()
        assert process.returncode == 0
        run = Path(json.loads(said)["run_dir"])
        assert (run / "src" / "hpc_amp" / "host" / "begin.sh").is_file()


def test_a_folder_of_runs_that_cannot_be_written_needs_no_copy(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the name may be the user's, and the one above it somebody else's."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    run = host.create({"run": ["true"]})
    assert (run / "src").is_dir() and not (run / "src").is_symlink()


def test_a_run_whose_weights_another_one_starts_from_is_kept(host: StubHost) -> None:
    first = submitted(host, "first")
    record_event(first, "finished")
    second = submitted(host, "second")
    job = json.loads((second / "job.json").read_text())
    job["job"]["train"] = {"start_from": {"path": str(first / "checkpoints" / "step-1")}}
    (second / "job.json").write_text(json.dumps(job))
    (host.state / "queue").write_text("4243|PENDING|None\n")

    refused = host.hpc_amp("rm", "first", "--yes")
    assert refused.returncode == 2
    assert f"{second} needs files of {first}" in refused.stderr
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout == "there is nothing to remove\n"
    record_event(second, "finished")
    (host.state / "queue").write_text("")
    assert host.hpc_amp("rm", "first", "--yes").stdout == "removed 1 run\n"


# ---- latest --------------------------------------------------------------------------------------


def test_tensorboard_shows_each_run_once(host: StubHost) -> None:
    io = pytest.importorskip("tensorboard.backend.event_processing.io_wrapper")
    for _ in range(2):
        board = submitted(host) / "tensorboard"
        board.mkdir()
        (board / "events.out.tfevents.1.n1.2.0").write_bytes(b"")
    found = list(io.GetLogdirSubdirectories(str(host.work / "runs")))
    assert len(found) == 2 and not any("latest" in folder for folder in found)


def test_latest_is_the_newest_run_wherever_a_run_is_named(host: StubHost) -> None:
    submitted(host, "a", "--run-id=20260101-000000-aaaa")
    newest = submitted(host, "a", "--run-id=20260102-000000-aaaa")
    assert (newest.parent / "latest").read_text() == "20260102-000000-aaaa\n"
    for target in ("a", "runs/a/latest"):
        (found,) = json.loads(host.hpc_amp("status", target, "--json").stdout)
        assert found["run_dir"] == str(newest)
    assert follow_latest(newest.parent / "latest" / "checkpoints") == newest / "checkpoints"
    (newest.parent / "latest").unlink()  # by hand
    (found,) = json.loads(host.hpc_amp("status", "a", "--json").stdout)
    assert found["run_dir"] == str(newest)


def test_a_link_of_an_older_version_is_replaced(host: StubHost) -> None:
    first = submitted(host, "a", "--run-id=20260101-000000-aaaa")
    (first.parent / "latest").unlink()
    (first.parent / "latest").symlink_to(first.name)
    (found,) = json.loads(host.hpc_amp("status", "runs/a/latest", "--json").stdout)
    assert found["run_dir"] == str(first)
    submitted(host, "a")
    assert not (first.parent / "latest").is_symlink()


def test_a_file_latest_of_somebody_else_stays(host: StubHost) -> None:
    """DeepSpeed writes the name of its newest checkpoint to a file of this name."""
    run_dir = submitted(host)
    own = run_dir / "latest"
    own.write_text("global_step1000\n")

    write_latest(run_dir)
    assert own.read_text() == "global_step1000\n"
    own.write_text(f"{run_dir.name}\n")
    write_latest(run_dir)
    assert not own.exists()


def test_a_copy_is_kept_for_runs_that_are_elsewhere_or_named_otherwise(host: StubHost) -> None:
    run_dir = submitted(host)
    (copy,) = copies(host)
    make_old(copy)
    renamed = run_dir.rename(run_dir.with_name("best"))
    assert remove_unused([host.work / "runs"]) == 0
    # The link leads nowhere as long as the folder of runs has another path.
    moved = (host.work / "runs").rename(host.work / "other")
    assert remove_unused([moved]) == 0
    shutil.rmtree(moved / "a" / renamed.name)
    assert remove_unused([moved]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_nobody_runs_code_that_another_user_can_change(host: StubHost) -> None:
    submitted(host)
    shared = host.work / "runs" / ".hpc_amp" / "src"
    os.chown(shared, 4711, 4711)

    assert not (submitted(host) / "src").is_symlink()


def test_what_is_left_of_a_removed_run_goes_at_the_next_prune(host: StubHost) -> None:
    run_dir = submitted(host)
    remains = run_dir.with_name(f".removed-{run_dir.name}")
    remains.mkdir()
    (remains / ".nfs0001").touch()

    assert host.hpc_amp("prune", "--keep", "5", "--yes").returncode == 0
    assert not remains.exists()
