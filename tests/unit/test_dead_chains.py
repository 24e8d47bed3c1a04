"""Jobs that stay in the queue although they can never start: what `status` says of their run, and
that `cancel` and `resume` take them out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.stubs import StubHost, command_that_says

from hpc_amp.jobs.control import cancel
from hpc_amp.jobs.events import read_events, record_event
from hpc_amp.jobs.resume import resume
from hpc_amp.jobs.status import run_statuses

HEAD = "JobID  State\n==============\n"


def pbs_job(job_id: str, state: str, *more: str) -> str:
    """As `qstat -f` shows it."""
    return "\n".join([f"Job Id: {job_id}", f"    job_state = {state}", *more, "", ""])


WAITS = ("    Hold_Types = s", "    depend = afterany:6.head@head")
GONE = "qstat: Unknown Job Id 6.head\n"


def run_of(host: StubHost, scheduler: str, *chain: str) -> Path:
    """A run whose first job is the first of the chain."""
    site = host.folder / f"{scheduler}.yaml"
    site.write_text(yaml.safe_dump({"scheduler": scheduler}))
    run_dir = host.create({"site": str(site), "run": ["true"]})
    record_event(run_dir, "submitted", scheduler=scheduler)
    record_event(run_dir, "queued", job_id=chain[0])
    if len(chain) > 1:
        (run_dir / "chain").write_text("".join(f"{job_id}\n" for job_id in chain))
    return run_dir


def state(run_dir: Path) -> tuple[str, str]:
    (status,) = run_statuses([run_dir])
    return status.state, status.reason


def test_a_chain_on_cobalt_whose_first_job_was_deleted(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "cobalt", "6", "7", "8")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}7      dep_fail\n8      dep_hold\n")
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "logs" / "6.cobaltlog").write_text("Info: user delete requested; removing job\n")

    assert state(run_dir) == (
        "cancelled",
        "cancelled with qdel; still in the queue, where it can never start: job 7, 8 "
        "(hpc-amp cancel deletes it)",
    )


def test_it_is_dead_before_cobalt_says_so(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For a minute it is `dep_hold` still; one whose first job ended well would be queued."""
    run_dir = run_of(host, "cobalt", "6", "7", "8")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}7      dep_hold\n8      dep_hold\n")

    assert state(run_dir)[0] == "lost"


def test_a_link_that_takes_over_is_alive(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "cobalt", "6", "7", "8")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}7      queued\n8      dep_hold\n")

    assert state(run_dir) == ("pending", "")


def test_links_wait_while_the_job_before_them_is_there(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "cobalt", "6", "7")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}6      user_hold\n7      dep_hold\n")

    assert state(run_dir) == ("pending", "held by its user")


def test_a_chain_on_pbs_whose_first_job_was_deleted_while_it_waited(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "pbs", "6.head", "7.head", "8.head")
    held = pbs_job("7.head", "H", *WAITS) + pbs_job("8.head", "H", *WAITS)
    command_that_says(monkeypatch, tmp_path, "qstat", held, GONE, 153)

    found, reason = state(run_dir)
    assert found == "lost"
    assert "still in the queue, where it can never start: job 7.head, 8.head" in reason


def test_cancel_takes_a_dead_chain_out_of_the_queue(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "cobalt", "6", "7", "8")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}7      dep_fail\n8      dep_hold\n")
    deleted = command_that_says(monkeypatch, tmp_path, "qdel", "")

    assert cancel(run_dir).state == "pending"

    assert deleted() == ["8", "7"]
    assert read_events(run_dir)[-1]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("recorded", "shown"), [("terminated", "checkpointed"), ("killed", "failed")]
)
def test_a_link_that_stays_behind_a_job_that_was_deleted(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: str, shown: str
) -> None:
    """The job could say what became of it, but left its links to whoever ended it."""
    run_dir = run_of(host, "cobalt", "6", "7")
    record_event(run_dir, recorded, attempt=1, job_id="6", reason="SIGTERM")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}7      dep_fail\n")
    deleted = command_that_says(monkeypatch, tmp_path, "qdel", "")

    left = "; still in the queue, where it can never start: job 7 (hpc-amp cancel deletes it)"
    assert state(run_dir) == (shown, f"SIGTERM{left}")
    assert cancel(run_dir).state == "pending"
    assert deleted() == ["7"]
    command_that_says(monkeypatch, tmp_path, "qstat", HEAD)
    assert state(run_dir) == (shown, "SIGTERM")
    assert cancel(run_dir).state == shown


def test_a_job_on_pbs_that_others_wait_for_waits_for_none(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that was started in vain too often."""
    run_dir = run_of(host, "pbs", "6.head", "7.head")
    held = ("    Hold_Types = s", "    depend = beforeany:7.head@head", "    comment = job held")
    command_that_says(monkeypatch, tmp_path, "qstat", pbs_job("6.head", "H", *held))

    assert state(run_dir) == ("pending", "job held")


def test_a_job_on_pbs_that_its_user_holds_waits(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "pbs", "6.head")
    command_that_says(monkeypatch, tmp_path, "qstat", pbs_job("6.head", "H", "    Hold_Types = u"))

    assert state(run_dir) == ("pending", "held")


@pytest.mark.parametrize(
    ("scheduler", "listing", "deleted_by"),
    [
        ("cobalt", f"{HEAD}6      dep_fail\n", "qdel"),
        ("slurm", "6|PENDING|DependencyNeverSatisfied\n", "scancel"),
    ],
)
def test_a_job_whose_own_dependency_failed_is_lost_and_can_be_cancelled(
    host: StubHost,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    scheduler: str,
    listing: str,
    deleted_by: str,
) -> None:
    run_dir = run_of(host, scheduler, "6")
    command = {"cobalt": "qstat", "slurm": "squeue"}[scheduler]
    command_that_says(monkeypatch, tmp_path, command, listing)
    deleted = command_that_says(monkeypatch, tmp_path, deleted_by, "")

    found, reason = state(run_dir)
    assert found == "lost"
    assert "can never start" in reason and "job 6 (hpc-amp cancel deletes it)" in reason
    assert cancel(run_dir).state == "pending"
    assert deleted() == ["6"]
    assert read_events(run_dir)[-1]["state"] == "cancelled"


def test_a_job_that_waits_in_slurm_for_another_one_is_pending(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "slurm", "6")
    command_that_says(monkeypatch, tmp_path, "squeue", "6|PENDING|Dependency\n")

    assert state(run_dir) == ("pending", "Dependency")


def test_resume_takes_dead_jobs_out_of_the_queue(
    host: StubHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = run_of(host, "cobalt", "6", "7")
    command_that_says(monkeypatch, tmp_path, "qstat", f"{HEAD}6      dep_fail\n7      dep_hold\n")
    deleted = command_that_says(monkeypatch, tmp_path, "qdel", "")
    command_that_says(monkeypatch, tmp_path, "qsub", "9\n")

    assert resume(run_dir).submission.job_id == "9"
    assert sorted({*deleted()}) == ["6", "7"]
