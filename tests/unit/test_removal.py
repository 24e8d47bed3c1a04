"""`hpc-amp rm` and `hpc-amp prune`."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from support import commands
from support.stubs import StubHost

from hpc_amp.jobs.events import record_event

# `hpc-amp` where run `a` is resumed while the sizes of all are determined.
RESUMED_MEANWHILE = """\
from hpc_amp.jobs import removal
from hpc_amp.jobs.events import record_event
size_of = removal.size_of
def resumed(folder):
    if folder.parent.name == "a":
        record_event(folder, "submitted")
    return size_of(folder)
removal.size_of = resumed
from hpc_amp.cli import main
main()
"""
# `hpc-amp` of a user to whom no run here belongs.
SOMEBODY_ELSE = """\
import os
mine = os.geteuid()
os.geteuid = lambda: mine + 1
from hpc_amp.cli import main
main()
"""
JOB = "name: {}\nsite: slurm\nrun: ['true']\njob: {{gpus_per_node: 0}}\n"


def submitted(host: StubHost, name: str, day: int, state: str | None = "finished") -> Path:
    """A run that was submitted on that day of January, and ended as `state` says."""
    (host.work / "job.yaml").write_text(JOB.format(name))
    run_id = f"202601{day:02d}-000000-aaaa"
    result = host.hpc_amp("submit", "job.yaml", f"--run-id={run_id}")
    assert result.returncode == 0, result.stderr
    run_dir = host.work / "runs" / name / run_id
    if state is not None:
        record_event(run_dir, state)
        rows = (host.state / "queue").read_text().splitlines(keepends=True)
        ended = f"{rows[-1].partition('|')[0]}|COMPLETED|None\n"
        (host.state / "queue").write_text("".join([*rows[:-1], ended]))
    return run_dir


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2 and result.stdout == ""
    return result.stderr.splitlines()[-1]


def test_a_run_is_removed_with_its_files(host: StubHost) -> None:
    first, second = submitted(host, "a", 1), submitted(host, "a", 2)
    outside = host.folder / "outside"
    outside.write_text("stays")
    (first / "link").symlink_to(outside)
    assert "there is no terminal to ask for confirmation; give --yes" in refused(
        host.hpc_amp("rm", "a")
    )
    result = host.hpc_amp("rm", "a", "--yes")  # the newest of that name
    assert result.stdout == "removed 1 run\n", result.stderr
    assert not second.exists() and first.exists()
    assert (first.parent / "latest").read_text() == f"{first.name}\n"
    (first.parent / ".compiled" / "torch").mkdir(parents=True)
    assert host.hpc_amp("rm", str(first), str(first), "--yes").stdout == "removed 1 run\n"
    assert not first.parent.exists() and outside.read_text() == "stays"
    assert "there is no run 'a'" in refused(host.hpc_amp("rm", "a", "--yes"))


def test_rm_without_a_question_removes_no_run_of_another_folder(host: StubHost) -> None:
    run_dir = submitted(host, "a", 1)
    other = host.work / "other"
    other.mkdir()

    message = refused(host.hpc_amp("rm", "a", "--yes", cwd=other))

    assert "there is no run 'a'" in message and f" in {other}/runs;" in message
    assert run_dir.is_dir()
    assert str(run_dir) in host.hpc_amp("rm", "a", cwd=other).stderr, "it would ask"
    assert host.hpc_amp("rm", str(run_dir), "--yes", cwd=other).stdout == "removed 1 run\n"


@pytest.mark.parametrize(("command", "status"), [("rm a b", 1), ("prune --keep 0", 0)])
def test_a_run_that_is_resumed_before_its_removal_is_kept(
    host: StubHost, command: str, status: int
) -> None:
    resumed, other = submitted(host, "a", 1), submitted(host, "b", 1)

    words = ("-c", RESUMED_MEANWHILE, *command.split(), "--yes")
    result = commands.python(*words, cwd=host.work, environ=host.environ())

    assert (result.returncode, result.stdout) == (status, "removed 1 run\n"), result.stderr
    assert f"note: {resumed} has changed meanwhile, and is kept\n" in result.stderr
    assert resumed.exists() and not other.exists()


def test_runs_that_wait_or_belong_to_a_sweep_are_kept(host: StubHost) -> None:
    waiting, ended = submitted(host, "a", 1, state=None), submitted(host, "b", 2)
    message = refused(host.hpc_amp("rm", "b", "a", "--yes"))
    assert f"{waiting} is pending; hpc-amp cancel {waiting}" in message
    assert ended.exists()
    (host.work / "runs" / "campaign.json").write_text("{}")
    assert "is a point of" in refused(host.hpc_amp("rm", "b", "--yes"))
    assert ended.exists()


def test_prune_keeps_the_newest_of_each_name_and_what_is_young(host: StubHost) -> None:
    runs = {day: submitted(host, "a", day) for day in (1, 2, 3)}
    other = submitted(host, "b", 1)
    waiting = submitted(host, "c", 1, state=None)
    old = time.time() - 40 * 86400
    for run_dir in (runs[1], runs[3], other, waiting):
        os.utime(run_dir / "state.jsonl", (old, old))

    shown = host.hpc_amp("prune", "--keep", "0", "--older", "30d", "--dry-run").stdout
    for run_dir, is_shown in ((runs[1], True), (runs[2], False), (runs[3], True), (other, True)):
        assert (str(run_dir) in shown) == is_shown
    assert str(waiting) not in shown and runs[1].exists()
    assert host.hpc_amp("prune", "--dry-run").stdout == "there is nothing to remove\n"
    before = len(host.calls("squeue"))
    result = host.hpc_amp("prune", "a", "--keep", "0", "--dry-run")
    assert len(host.calls("squeue")) == before + 1, "one query for all runs"
    result = host.hpc_amp("prune", "a", "--keep", "1", "--older", "30d", "--yes")
    assert result.stdout == "removed 1 run\n", result.stderr
    assert not runs[1].exists() and runs[2].exists() and runs[3].exists() and other.exists()
    assert host.hpc_amp("prune", "--keep", "9", "--yes").stdout == "there is nothing to remove\n"
    assert host.hpc_amp("prune", "--yes").stdout == "there is nothing to remove\n"
    assert "no run of none in runs" in refused(host.hpc_amp("prune", "none", "--yes"))
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout == "removed 3 runs\n"
    assert [path.name for path in (host.work / "runs").glob("[!.]*")] == ["c"]
    assert "is not a duration" in refused(host.hpc_amp("prune", "--older", "5"))


@pytest.mark.parametrize("command", [["rm", "b"], ["prune", "--keep=0"]])
def test_a_run_with_a_damaged_description_is_removed_too(
    host: StubHost, command: list[str]
) -> None:
    """As a full disk leaves it. Its events say who its scheduler is."""
    submitted(host, "a", 1)
    damaged = submitted(host, "b", 2)
    (damaged / "job.json").write_text('{"run_dir": ')
    result = host.hpc_amp(*command, "--yes")
    assert result.returncode == 0, result.stderr
    assert not damaged.exists()


def test_prune_leaves_the_runs_of_other_users(host: StubHost) -> None:
    run_dir = submitted(host, "a", 1)

    result = host.python("-c", SOMEBODY_ELSE, "prune", "--keep", "0", "--yes")

    assert (result.returncode, result.stdout) == (0, "there is nothing to remove\n"), result.stderr
    assert run_dir.exists()
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout == "removed 1 run\n"


def test_a_run_that_is_found_twice_is_counted_once(host: StubHost) -> None:
    first, second = submitted(host, "a", 1), submitted(host, "a", 2)
    (host.work / "runs" / "b").symlink_to("a")
    assert host.hpc_amp("prune", "--keep", "2", "--yes").stdout == "there is nothing to remove\n"
    assert host.hpc_amp("prune", "--keep", "1", "--yes").stdout == "removed 1 run\n"
    assert not first.exists() and second.exists()


def moved(run_dir: Path, folder: Path) -> Path:
    """Move a run to `folder`, and leave a link to it in its place."""
    folder.mkdir(exist_ok=True)
    target = folder / run_dir.name
    run_dir.rename(target)
    run_dir.symlink_to(target)
    return target


@pytest.mark.parametrize(
    "command",
    [
        ["rm", "runs/a/20260102-000000-aaaa"],
        ["rm", "a"],
        ["rm", "runs/a/latest"],
        ["prune", "--keep", "1"],
    ],
)
def test_the_link_to_a_run_is_removed_with_it(host: StubHost, command: list[str]) -> None:
    first, second = submitted(host, "a", 1), submitted(host, "a", 2)
    if command[0] == "prune":
        first, second = second, first
    target = moved(second, host.folder / "scratch")

    result = host.hpc_amp(*command, "--yes")

    assert result.stdout == "removed 1 run\n", result.stderr
    assert not target.exists() and not os.path.lexists(second) and first.exists()
    assert (first.parent / "latest").read_text() == f"{first.name}\n"

    assert host.hpc_amp("rm", "a", "--yes").returncode == 0
    assert not first.parent.exists()


def test_a_link_outside_of_the_runs_is_removed_if_it_is_named(host: StubHost) -> None:
    run_dir = submitted(host, "a", 1)
    named, other = host.work / "named", host.work / "other"
    named.symlink_to(run_dir)
    other.symlink_to(run_dir)
    assert host.hpc_amp("rm", "named", "--yes").returncode == 0
    assert not run_dir.exists() and not os.path.lexists(named)
    assert os.path.islink(other), "nobody can find all links on a machine"


def test_the_folder_of_a_name_stays_if_a_link_leads_to_it(host: StubHost) -> None:
    """The link would lead nowhere, and the next submission could not create its folder."""
    (host.folder / "scratch").mkdir()
    (host.work / "runs").mkdir(exist_ok=True)
    (host.work / "runs" / "a").symlink_to(host.folder / "scratch")
    submitted(host, "a", 1)
    assert host.hpc_amp("rm", "a", "--yes").returncode == 0
    assert list((host.folder / "scratch").iterdir()) == []
    assert submitted(host, "a", 2).exists()


def test_points_of_a_sweep_are_not_pruned(host: StubHost) -> None:
    run_dir = submitted(host, "a", 1)
    (host.work / "runs" / "campaign.json").write_text("{}")
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout == "there is nothing to remove\n"
    assert run_dir.exists()


def test_a_cancelled_run_whose_job_is_still_there_is_kept(host: StubHost) -> None:
    """`cancel` records the end before the scheduler has ended the job."""
    run_dir = submitted(host, "a", 1, state=None)
    record_event(run_dir, "cancelled")
    message = refused(host.hpc_amp("rm", "a", "--yes"))
    assert "is still ending; try again when it has ended" in message
    assert host.hpc_amp("prune", "--keep", "0", "--yes").stdout == "there is nothing to remove\n"
    assert run_dir.exists()
