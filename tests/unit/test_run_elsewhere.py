"""Runs that are not where they were submitted, and attempts that work on after their job."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost, wait
from support.waiting import wait_for_file

from hpc_amp.jobs.events import read_events, record_event


def fails(result: subprocess.CompletedProcess[str]) -> str:
    """The one line in which a command refuses, with status 2."""
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    return line.removeprefix("hpc-amp: ")


def submitted(host: StubHost, **config: Any) -> Path:
    resources = {"gpus_per_node": 0, "walltime": "10m"}
    host.write_job({"name": "test", "site": "slurm", "run": ["true"], "job": resources, **config})
    result = host.hpc_amp("submit", "job.yaml", "launch.preflight=false", "--json")
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def queue(host: StubHost, *rows: str) -> None:
    (host.state / "queue").write_text("".join(f"{row}\n" for row in rows))


def status(host: StubHost, target: Path | str) -> dict[str, Any]:
    shown = host.hpc_amp("status", str(target), "--json")
    assert shown.returncode == 0, shown.stderr
    (entry,) = json.loads(shown.stdout)
    return dict(entry)


# ---- copies, and runs that were moved ------------------------------------------------------------

VERBS = (
    ["resume"],
    ["wait"],
    ["cancel"],
    ["cancel", "--save"],
    ["logs", "-f"],
    ["shell", "--print"],
)


@pytest.fixture
def run_dir(host: StubHost) -> Path:
    """A run at work as job 4242."""
    made = submitted(host)
    (made / "attempts" / "1").mkdir()
    record_event(made, "started", attempt=1, job_id="4242")
    queue(host, "4242|RUNNING|None")
    return made


def test_nothing_is_done_to_a_copy(host: StubHost, run_dir: Path) -> None:
    copy = shutil.copytree(run_dir, host.work / "copy", symlinks=True)
    record_event(copy, "failed", reason="exit status 1")
    before = read_events(run_dir)

    for verb in VERBS:
        said = fails(host.hpc_amp(*verb, str(copy)))
        assert said.startswith(f"{copy} is a copy of {run_dir}, and its scripts and jobs are"), verb

    assert (host.calls("scancel"), len(host.calls("sbatch"))) == ([], 1)
    assert read_events(run_dir) == before


def test_nothing_is_done_to_a_run_that_was_moved(host: StubHost, run_dir: Path) -> None:
    moved = run_dir.rename(host.work / "it's moved")
    record_event(moved, "failed", reason="exit status 1")
    before = read_events(moved)

    for verb in VERBS:
        said = fails(host.hpc_amp(*verb, str(moved)))
        assert said.startswith(f"{moved} was {run_dir} when it was submitted, and its"), verb

    assert (host.calls("scancel"), len(host.calls("sbatch"))) == ([], 1)
    assert (read_events(moved), run_dir.exists()) == (before, False)
    # What is advised works.
    subprocess.run(["bash", "-c", said.rpartition("lead to it: ")[2]], check=True)
    queue(host)
    assert host.hpc_amp("resume", str(moved)).returncode == 0
    assert status(host, run_dir)["state"] == "pending"
    assert host.calls("sbatch")[1] == ["--parsable", str(moved / "launch.sh")]


def test_the_status_of_a_copy_is_not_that_of_the_original(host: StubHost, run_dir: Path) -> None:
    copy = shutil.copytree(run_dir, run_dir.with_name("20250101-000000-copy"), symlinks=True)
    asked = len(host.calls("squeue"))

    found = status(host, copy)

    assert found["state"] == "unknown"
    assert found["reason"] == f"this folder is a copy of {run_dir}: ask there"
    assert len(host.calls("squeue")) == asked, "its job is none of the copy's"
    assert [one["state"] for one in found["attempts"]] == ["lost"]
    assert status(host, run_dir)["state"] == "running"
    assert status(host, "4242")["run_dir"] == str(run_dir), "a job id means the run that has it"
    both = host.hpc_amp("status", "--json")
    assert sorted(entry["state"] for entry in json.loads(both.stdout)) == ["running", "unknown"]
    # What there is to read can be read.
    record_event(copy, "finished")
    assert status(host, copy)["state"] == "finished"
    (copy / "logs" / "job.log").write_text("of the copy\n")
    assert host.hpc_amp("logs", str(copy)).stdout == "of the copy\n"


def test_another_path_to_the_same_folder_is_no_copy(host: StubHost, run_dir: Path) -> None:
    real = run_dir.rename(host.folder / "elsewhere")
    run_dir.symlink_to(real)

    assert status(host, real)["state"] == "running"
    assert host.hpc_amp("cancel", str(real)).returncode == 0
    assert host.calls("scancel") == [["4242"]]


@pytest.fixture
def mounted(host: StubHost, run_dir: Path) -> Iterator[Path]:
    """The folder of the run once more, by a bind mount."""
    point = host.folder / "mounted"
    point.mkdir()
    made = subprocess.run(["mount", "--bind", run_dir, point], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no bind mounts here")
    yield point
    subprocess.run(["umount", point], check=True)


def test_a_bind_mount_is_no_copy(host: StubHost, mounted: Path) -> None:
    assert status(host, mounted)["state"] == "running"
    assert host.hpc_amp("cancel", str(mounted)).returncode == 0
    assert host.calls("scancel") == [["4242"]]


def test_nothing_is_done_to_a_copied_or_moved_sweep(host: StubHost) -> None:
    host.write_job({"name": "test", "site": "slurm", "run": ["true"], "job": {"gpus_per_node": 0}})
    made = host.hpc_amp("sweep", "job.yaml", "container.env.X=a,b", "--json")
    assert made.returncode == 0, made.stderr
    folder = Path(json.loads(made.stdout)["folder"])
    copy = shutil.copytree(folder, host.work / "copy", symlinks=True)

    for verb in ("continue", "cancel", "status"):
        assert fails(host.hpc_amp("sweep", verb, str(copy))).startswith(f"{copy} is a copy of ")
    moved = folder.rename(host.work / "moved")
    for verb in ("continue", "cancel", "status"):
        said = fails(host.hpc_amp("sweep", verb, str(moved)))
        assert said.startswith(f"{moved} was {folder} when it was submitted")

    assert (host.calls("scancel"), len(host.calls("sbatch"))) == ([], 1)


# ---- copied and moved runs that go on in their present folder ------------------------------------


def test_a_copy_continues_as_a_run_of_its_own(host: StubHost, run_dir: Path) -> None:
    """The original runs, and nothing that is done to the copy reaches it."""
    copy = shutil.copytree(run_dir, host.work / "it's a copy", symlinks=True)
    original = read_events(run_dir)

    resumed = host.hpc_amp("resume", "--here", str(copy), "job.walltime=20m")

    assert resumed.returncode == 0, resumed.stderr
    assert f"changed: run_dir {run_dir} -> {copy}" in resumed.stderr
    assert host.calls("sbatch")[1] == ["--parsable", str(copy / "launch.sh")]
    resolved = json.loads((copy / "job.json").read_text())
    assert (resolved["run_dir"], resolved["job"]["job"]["walltime"]) == (str(copy), "20m")
    script = (copy / "launch.sh").read_text()
    assert str(run_dir) not in script and shlex.quote(str(copy)) in script
    # It is a run like any other now, and its job is another one.
    record_event(copy, "started", attempt=2, job_id="4343")
    queue(host, "4242|RUNNING|None", "4343|RUNNING|None")
    assert status(host, copy)["job_id"] == "4343"
    assert status(host, copy)["attempts"][0]["state"] == "lost", "it was the original's"
    assert status(host, run_dir)["state"] == "running"
    assert host.hpc_amp("cancel", str(copy)).returncode == 0
    assert host.calls("scancel") == [["4343"]]
    assert read_events(run_dir) == original
    assert status(host, copy)["changes"][0]["command"] == (
        f"hpc-amp resume --here {shlex.quote(str(copy))} job.walltime=20m"
    )


def test_the_job_of_the_original_does_not_lead_to_its_copy(host: StubHost, run_dir: Path) -> None:
    copy = shutil.copytree(run_dir, run_dir.with_name("20250101-000000-copy"), symlinks=True)
    assert host.hpc_amp("resume", "--here", str(copy)).returncode == 0
    assert status(host, "4242")["run_dir"] == str(run_dir)


def test_a_refused_copy_stays_a_copy(host: StubHost, run_dir: Path) -> None:
    copy = shutil.copytree(run_dir, host.work / "copy", symlinks=True)
    host.fail("sbatch", "sbatch: error: no")
    assert host.hpc_amp("resume", "--here", str(copy)).returncode != 0
    assert json.loads((copy / "job.json").read_text())["run_dir"] == str(run_dir)
    assert fails(host.hpc_amp("cancel", str(copy))).startswith(f"{copy} is a copy of {run_dir}")
    assert host.calls("scancel") == []


def test_a_run_that_was_moved_continues_where_it_is(host: StubHost, run_dir: Path) -> None:
    moved = run_dir.rename(host.work / "moved")

    # Its job may work in the folder, under whatever name.
    said = fails(host.hpc_amp("resume", "--here", str(moved)))
    assert said.startswith(f"{moved} was moved from {run_dir}, and its job 4242 has not ended")
    queue(host)
    refresh(orphaned(moved))
    said = fails(host.hpc_amp("resume", "--here", str(moved)))
    assert said.startswith(f"{moved} was moved from {run_dir}, and attempt 1 gives signs of life")
    (moved / "attempts" / "1" / "ended").touch()

    assert host.hpc_amp("resume", "--here", str(moved)).returncode == 0
    assert host.calls("sbatch")[1] == ["--parsable", str(moved / "launch.sh")]
    assert host.hpc_amp("cancel", str(moved)).returncode == 0


def test_a_training_continues_after_its_project_was_renamed(
    host: StubHost, warm_python: Path
) -> None:
    """With its relative paths, its code and its checkpoint; and a copy of it trains on in the
    copy."""
    project = host.work / "project"
    (project / "code").mkdir(parents=True)
    config = {
        "name": "small",
        "site": "local",
        "code": "code",
        "job": {"gpus_per_node": 0},
        "container": {"python": str(warm_python)},
        "train": {
            "model": "fc",
            "batch_size": 32,
            "device": "cpu",
            "epochs": 1,
            "data": {"name": "synthetic", "synthetic": {"train": 64, "test": 32}},
        },
    }
    host.write_job(config, "project/job.yaml")
    assert host.hpc_amp("run", "job.yaml", cwd=project).returncode == 0
    new = project.rename(host.work / "new name")
    (run_dir,) = (new / "runs" / "small").glob("2*")

    said = fails(host.hpc_amp("resume", "small", "train.epochs=2", cwd=new))
    assert said.endswith(f"ln -s {shlex.quote(str(new))} {project}")
    resumed = host.hpc_amp("resume", "--here", "small", "train.epochs=2", "--follow", cwd=new)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert status(host, run_dir)["step"] == 4
    assert (run_dir / "attempts" / "2" / "from").read_text() == "2\n"
    resolved = json.loads((run_dir / "job.json").read_text())
    assert str(project) + "/" not in json.dumps({**resolved, "origins": {}})
    again = host.hpc_amp("run", str(run_dir))
    assert again.returncode == 0, again.stdout + again.stderr

    before = sorted((run_dir / "checkpoints").iterdir())
    copy = shutil.copytree(run_dir, host.work / "copy", symlinks=True)
    resumed = host.hpc_amp("resume", "--here", str(copy), "train.epochs=3", "--follow")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert status(host, copy)["step"] == 6
    assert sorted((run_dir / "checkpoints").iterdir()) == before
    assert status(host, run_dir)["step"] == 4


def test_the_folder_of_all_runs_was_renamed(host: StubHost, run_dir: Path) -> None:
    runs = run_dir.parents[1]
    renamed = runs.rename(runs.with_name("old runs"))
    words = ("--runs-dir", str(renamed))
    (entry,) = json.loads(host.hpc_amp("status", "--json", *words).stdout)
    assert entry["state"] == "unknown"
    assert entry["reason"].startswith(f"this folder was moved from {run_dir}, where its job looks")
    said = fails(host.hpc_amp("cancel", "test", *words))
    subprocess.run(["bash", "-c", said.rpartition("lead to it: ")[2]], check=True)
    assert host.hpc_amp("cancel", "test", *words).returncode == 0
    assert host.calls("scancel") == [["4242"]]


def test_a_path_that_is_gone_with_its_folders_is_made_again(host: StubHost, run_dir: Path) -> None:
    moved = run_dir.rename(host.work / "moved")
    shutil.rmtree(run_dir.parents[1])
    said = fails(host.hpc_amp("cancel", str(moved)))
    subprocess.run(["bash", "-c", said.rpartition("lead to it: ")[2]], check=True)
    assert host.hpc_amp("cancel", str(moved)).returncode == 0


def test_the_report_of_a_moved_sweep_can_be_made(host: StubHost) -> None:
    """Studies are copied to other machines to be looked at."""
    job = {"gpus_per_node": 0}
    host.write_job({"name": "test", "site": "local", "run": ["true"], "job": job})
    made = host.hpc_amp(
        "sweep", "job.yaml", "container.env.X=a,b", "launch.preflight=false", "--yes"
    )
    assert made.returncode == 0, made.stderr
    (folder,) = (host.work / "sweeps" / "test").glob("2*")
    moved = folder.rename(host.work / "moved")

    report = host.hpc_amp("sweep", "report", str(moved), "--metric", "world_size")

    assert report.returncode == 0, report.stdout + report.stderr
    rows = (moved / "report" / "report.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["rank", "1", "2"]
    assert all(str(moved / "points") in row for row in rows[1:])
    said = fails(host.hpc_amp("resume", str(moved / "points" / "0000")))
    assert said.startswith(f"{moved}/points/0000 was {folder}/points/0000 when it was submitted")
    assert said.endswith(f"ln -s {moved} {folder}")


# ---- removing them -------------------------------------------------------------------------------


def test_a_copy_is_removed_although_the_original_runs(host: StubHost, run_dir: Path) -> None:
    copy = shutil.copytree(run_dir, host.work / "copy", symlinks=True)
    asked = len(host.calls("squeue"))
    removed = host.hpc_amp("rm", str(copy), "--yes")
    assert removed.returncode == 0, removed.stderr
    assert (copy.exists(), run_dir.exists(), len(host.calls("squeue"))) == (False, True, asked)
    assert fails(host.hpc_amp("rm", str(run_dir), "--yes")).startswith(f"{run_dir} is running")


def test_a_run_that_was_moved_is_removed_when_its_job_has_ended(
    host: StubHost, run_dir: Path
) -> None:
    moved = run_dir.rename(host.work / "moved")
    said = fails(host.hpc_amp("rm", str(moved), "--yes"))
    assert said.startswith(f"{moved} was moved, and its job 4242 has not ended")
    queue(host)
    assert host.hpc_amp("rm", str(moved), "--yes").returncode == 0
    assert not moved.exists()


def test_a_run_on_another_disk_is_removed_with_the_link_in_its_place(
    host: StubHost, run_dir: Path
) -> None:
    older = shutil.copytree(run_dir, run_dir.with_name("20250101-000000-aaaa"), symlinks=True)
    text = (older / "job.json").read_text()
    (older / "job.json").write_text(text.replace(run_dir.name, older.name))
    record_event(older, "finished")
    record_event(run_dir, "finished")
    queue(host)
    real = run_dir.rename(host.folder / "another disk")
    run_dir.symlink_to(real)

    shown = json.loads(host.hpc_amp("status", "--json").stdout)
    assert [entry["run_dir"] for entry in shown] == [str(real), str(older)]
    removed = host.hpc_amp("rm", str(run_dir), "--yes")

    assert removed.returncode == 0, removed.stderr
    assert not real.exists() and not run_dir.is_symlink()
    assert (run_dir.parent / "latest").read_text() == f"{older.name}\n"


def test_prune_leaves_copies_alone(host: StubHost, run_dir: Path) -> None:
    """They were made on purpose, and do not count as runs of the job."""
    record_event(run_dir, "finished")
    queue(host)
    copy = shutil.copytree(run_dir, run_dir.with_name("20990101-000000-copy"), symlinks=True)
    pruned = host.hpc_amp("prune", "--keep", "1", "--yes")
    assert pruned.stdout == "there is nothing to remove\n"
    pruned = host.hpc_amp("prune", "--keep", "0", "--yes")
    assert pruned.returncode == 0
    assert (run_dir.exists(), copy.exists()) == (False, True)


# ---- attempts that outlive their job -------------------------------------------------------------


def orphaned(run_dir: Path, *, silent_for: float = 0, host: str = "n1") -> Path:
    """An attempt at work whose job the scheduler does not list."""
    folder = run_dir / "attempts" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    owner = {"job_id": "4242", "host": host, "pid": 77, "time": 1795848895}
    (folder / "owner").write_text(json.dumps(owner) + "\n")
    (folder / "alive").touch()
    then = time.time() - silent_for
    os.utime(folder / "alive", (then, then))
    record_event(run_dir, "started", attempt=1, job_id="4242")
    return folder


def refresh(folder: Path) -> None:
    """Its next sign of life, so that no test depends on how fast it is."""
    ahead = time.time() + 3600
    os.utime(folder / "alive", (ahead, ahead))


SIGNS = "its job 4242 has ended for the scheduler, but attempt 1 still gives signs of life on n1"


def test_all_verbs_agree_about_an_orphan(host: StubHost) -> None:
    run_dir = submitted(host)
    folder = orphaned(run_dir)
    refresh(folder)
    queue(host)

    assert status(host, "test")["state"] == "running"
    assert status(host, "test")["reason"] == SIGNS
    assert status(host, "test")["attempts"][0]["state"] == "running"
    assert fails(host.hpc_amp("resume", "test")).startswith(f"{run_dir} is running as job 4242")
    for _ in range(2):  # it may not listen at once
        (folder / "stop").unlink(missing_ok=True)
        cancelled = host.hpc_amp("cancel", "test")
        assert cancelled.returncode == 0, cancelled.stderr
        assert cancelled.stdout.startswith(f"asked {run_dir} to stop: {SIGNS}.")
        assert cancelled.stdout.endswith("ssh n1 kill 77\n")
        assert (folder / "stop").exists()
    # It would write into the run: nothing is started beside it, although the run is cancelled.
    assert fails(host.hpc_amp("resume", "test")).startswith(f"{run_dir} still runs: {SIGNS}")

    (folder / "ended").touch()
    assert host.hpc_amp("cancel", "test").stdout == f"{run_dir} has already ended (cancelled)\n"
    assert host.hpc_amp("resume", "test").returncode == 0


def test_an_orphan_that_really_works_is_asked_and_ends(host: StubHost) -> None:
    """A launch script that Slurm has forgotten, with a program that looks for the stop file."""
    waits = 'touch at-work; until [ -e "${HPC_AMP_OUTCOME_FILE%/*}/stop" ]; do sleep 0.05; done'
    run_dir = submitted(host, run=["bash", "-c", waits], launch="single")
    process = host.start(run_dir, job_id="4242")
    wait_for_file(host.work / "at-work")
    queue(host)
    assert status(host, "test")["state"] == "running"

    said = host.hpc_amp("cancel", "test").stdout

    assert said.startswith(f"asked {run_dir} to stop: its job 4242 has ended for the scheduler")
    assert said.endswith(f" kill {process.pid}\n")
    assert "attempt 1 ended: finished" in wait(process).output
    assert (run_dir / "attempts" / "1" / "ended").exists()
    assert host.hpc_amp("cancel", "test").stdout.endswith("has already ended (finished)\n")


def test_a_run_at_work_is_no_orphan(host: StubHost) -> None:
    """Signals reach it, and the stop file would be looked at as another request."""
    run_dir = submitted(host)
    folder = orphaned(run_dir)
    refresh(folder)
    queue(host, "4242|RUNNING|None")

    assert status(host, "test")["reason"] == ""
    assert host.hpc_amp("cancel", "test").stdout == f"cancelled job 4242 of {run_dir}\n"
    assert not (folder / "stop").exists()


def test_an_attempt_that_is_silent_is_lost(host: StubHost) -> None:
    run_dir = submitted(host)
    orphaned(run_dir, silent_for=3600)
    queue(host)

    assert status(host, "test")["state"] == "lost"
    assert host.hpc_amp("cancel", "test").stdout == f"{run_dir} has already ended (lost)\n"
    assert host.hpc_amp("resume", "test").returncode == 0


@pytest.mark.parametrize(("where", "state"), [("elsewhere", "running"), ("here", "lost")])
def test_a_local_run_of_another_machine(host: StubHost, where: str, state: str) -> None:
    """Its processes cannot be seen here; those of this machine can, whatever `alive` says."""
    run_dir = host.create({"site": "local", "run": ["true"]})
    on = socket.gethostname() if where == "here" else "n1"
    record_event(run_dir, "submitted", scheduler="local")
    refresh(orphaned(run_dir, host=on))
    with (run_dir / "state.jsonl").open("a") as out:
        event = {"time": 1, "state": "started", "attempt": 1, "job_id": "local-999999999-1"}
        out.write(json.dumps(event) + "\n")

    assert status(host, run_dir)["state"] == state


def test_a_moved_run_of_another_cluster_is_not_removed(host: StubHost, run_dir: Path) -> None:
    config = host.folder / "slurm.conf"
    config.write_text("ClusterName=alpha\n")
    record_event(run_dir, "submitted", scheduler="slurm", cluster="beta", job_id="4242")
    moved = run_dir.rename(host.work / "moved")
    queue(host)

    said = fails(host.hpc_amp("rm", str(moved), "--yes", SLURM_CONF=str(config)))

    assert said.startswith(f"{moved} was moved, and its job was submitted on the cluster beta")


def test_a_moved_run_that_has_finished_is_not_run_again(host: StubHost, run_dir: Path) -> None:
    record_event(run_dir, "finished")
    queue(host)
    moved = run_dir.rename(host.work / "moved")

    said = fails(host.hpc_amp("resume", "--here", str(moved)))

    assert said == f"{moved} has finished; there is nothing to resume"
