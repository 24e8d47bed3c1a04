"""`hpc-amp explain` as users call it, and what a failed run's summary says by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.stubs import StubHost

from hpc_amp.explain.run import explain_run
from hpc_amp.jobs.status import RunStatus
from hpc_amp.jobs.summary import describe

FATAL = (
    "FATAL:   container creation failed: mount /lus->/lus error: mount source /lus doesn't exist\n"
)
KEYS = {
    "subject", "failure", "cause", "evidence", "fix", "confidence", "consequence", "why",
    "first_error", "led_to", "words", "ended_well", "noticed", "remarks",
}  # fmt: skip


def status_of(run_dir: Path, state: str, reason: str = "") -> RunStatus:
    return RunStatus(str(run_dir), "test", "7", "slurm", state, reason, 1, None, None, None)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


def test_a_cause_is_named_with_its_line_and_its_fix(host: StubHost) -> None:
    (host.work / "job.log").write_text("one\n" + FATAL)

    result = host.hpc_amp("explain", "job.log")

    assert result.returncode == 0, result.stderr
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert rows["cause"].startswith("The folder /lus, which should be bound")
    assert rows["evidence"] == f"job.log:2: {FATAL.strip()}"
    assert rows["fix"].startswith("Remove it from container.bind")
    assert rows["confidence"] == "high"


def test_json(host: StubHost) -> None:
    (host.work / "job.log").write_text("one\n" + FATAL)
    facts = json.loads(host.hpc_amp("explain", "job.log", "--json").stdout)
    assert set(facts) == KEYS
    assert facts["failure"] == "bind-source-missing"
    assert facts["evidence"] == {"file": "job.log", "line": 2, "rank": None, "text": FATAL.strip()}

    (host.work / "other.log").write_text(
        "[rank2]: Traceback (most recent call last):\n[rank2]: KeyError: 1\n"
    )
    result = host.hpc_amp("explain", "other.log", "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == 1
    assert (facts["cause"], facts["fix"], facts["confidence"]) == (None, None, None)
    assert (facts["first_error"]["rank"], facts["first_error"]["line"]) == (2, 2)


def test_a_launcher_that_says_no_more_is_no_cause(host: StubHost) -> None:
    (host.work / "job.log").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    result = host.hpc_amp("explain", "job.log")
    assert result.returncode == 1
    assert "not known; the log only says that something failed" in result.stdout
    assert "job.log:1: srun: error: n1: task 0: Exited" in result.stdout


def test_nothing_fits(host: StubHost) -> None:
    (host.work / "job.log").write_text("all is well\n")
    result = host.hpc_amp("explain", "job.log")
    assert result.returncode == 1
    assert result.stdout == "cause  not known; the log contains no error\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument 'LOG|RUN'."),
        (
            ["nope"],
            "there is no run 'nope': neither a run directory, nor a name or job id in runs, nor a "
            "log file; ",
        ),
        (["."], "there is no run '.'"),
    ],
)
def test_bad_input_is_one_line(host: StubHost, words: list[str], message: str) -> None:
    result = host.hpc_amp("explain", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hpc-amp: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_the_list(host: StubHost) -> None:
    text = host.hpc_amp("explain", "--list").stdout
    facts = json.loads(host.hpc_amp("explain", "--list", "--json").stdout)
    assert [line.split()[0] for line in text.splitlines()] == [entry["failure"] for entry in facts]
    assert "bind-source-missing" in text


def test_a_failed_run_is_explained_by_its_summary(host: StubHost) -> None:
    host.write_job(
        {
            "name": "test",
            "site": "local",
            "run": ["python3", "-c", "raise RuntimeError('CUDA error: no kernel image is available"
                    " for execution on the device')"],
            "job": {"gpus_per_node": 0},
        }
    )  # fmt: skip

    result = host.hpc_amp("run", "job.yaml")

    assert result.returncode == 1
    summary = result.stdout[result.stdout.index("test: failed") :]
    assert "cause " in summary and "has no code for the GPU of this node" in summary
    assert "\n  fix " in summary
    explained = host.hpc_amp("explain", "test")
    assert explained.returncode == 0, explained.stdout + explained.stderr
    assert "job.log:" in explained.stdout


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        ("OUT_OF_MEMORY", "oom-killed"),
        ("TIMEOUT", "slurm-time-limit"),
        ("NODE_FAIL", "slurm-node-failure"),
        ("PBS ended it at its time limit", "pbs-walltime"),
        ("Cobalt ended it at its time limit", "cobalt-time-limit"),
        ("exit status 137", "killed-by-launcher-or-kernel"),
        ("exit status 1", None),
        ("it is not in the queue", None),
    ],
)
def test_what_the_scheduler_says_counts(run_dir: Path, reason: str, failure: str | None) -> None:
    (run_dir / "logs" / "job.log").write_text("nothing special\n")
    answer = explain_run(status_of(run_dir, "lost", reason))
    assert answer.to_plain()["failure"] == failure


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        ("DependencyNeverSatisfied", "slurm-pending-never"),
        ("job held, too many failed attempts to run", "pbs-log-folder"),
        ("Can Never Run: Insufficient amount of resource: ngpus", "pbs-never-runs"),
        ("Priority", None),
        ("", None),
    ],
)
def test_why_a_job_waits_that_can_never_start(
    run_dir: Path, reason: str, failure: str | None
) -> None:
    """Such a run has no log."""
    answer = explain_run(status_of(run_dir, "pending", reason))
    assert answer.to_plain()["failure"] == failure
    assert "the run is pending" in answer.remarks


def test_a_chain_of_exceptions_is_shown_by_both_its_ends(host: StubHost) -> None:
    (host.work / "job.log").write_text(
        "Traceback (most recent call last):\n  x\ndb.Locked: busy\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  y\napp.Failed: giving up\n"
    )
    rows = host.hpc_amp("explain", "job.log").stdout.splitlines()
    assert rows[1:] == [
        "first error  job.log:3: db.Locked: busy",
        "led to       job.log:9: app.Failed: giving up",
    ]
    facts = json.loads(host.hpc_amp("explain", "job.log", "--json").stdout)
    assert (facts["first_error"]["line"], facts["led_to"]["line"]) == (3, 9)


def test_a_finished_run_has_no_cause(run_dir: Path) -> None:
    (run_dir / "logs" / "job.log").write_text(FATAL)
    answer = explain_run(status_of(run_dir, "finished"))
    assert not answer.named
    assert "nothing failed" in answer.to_text()


def test_a_summary_reads_the_ends_of_a_large_log(run_dir: Path) -> None:
    filler = b"step 1 of many, and so on and on\n" * 300_000
    log = run_dir / "logs" / "job.log"
    log.write_bytes(filler + FATAL.encode())
    assert log.stat().st_size > 8 * 2**20
    assert "The folder /lus" in describe(status_of(run_dir, "failed", "exit status 255"))
    log.write_bytes(filler[: 4 * 2**20] + FATAL.encode() + filler)
    assert "The folder /lus" not in describe(status_of(run_dir, "failed", "exit status 1"))


def test_a_summary_appears_whatever_happens(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "test: failed" in describe(status_of(run_dir, "failed", "no log at all"))

    def broken(*_: object, **__: object) -> None:
        raise OSError("the log is gone")

    monkeypatch.setattr("hpc_amp.explain.run.explain_run", broken)
    assert "test: failed" in describe(status_of(run_dir, "failed", "exit status 1"))
