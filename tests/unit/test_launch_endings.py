"""What a launch script does at the end of an attempt where things go wrong around it: a scheduler
that is away, nodes that are taken away, crash loops, a stop that was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.stubs import Ended, StubHost, events, wait, write_outcome
from support.waiting import is_running, wait_for_file, wait_until

from hpc_amp.jobs.code import host_folder
from hpc_amp.jobs.events import read_events, record_event

LISTENER = "trap 'exit 75' TERM; touch ready; while :; do sleep 0.05; done"
REPORT = 'echo "$HPC_AMP_GRACE $((HPC_AMP_END_AT - HPC_AMP_STOP_AT))" >grace'


def shell(text: str) -> list[str]:
    return ["bash", "-c", text]


def reason(run_dir: Path) -> str:
    return str(read_events(run_dir)[-1]["reason"])


def requeues(host: StubHost) -> int:
    return [call[0] for call in host.calls("scontrol")].count("requeue")


def edit(run_dir: Path, name: str, old: str, new: str) -> None:
    """Change a line of the run's copy of `hpc_amp/host`."""
    path = host_folder(run_dir) / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def terminated(host: StubHost, run_dir: Path) -> Ended:
    """The end of a run whose whole job got SIGTERM while its program was at work."""
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    os.kill(process.pid, signal.SIGTERM)
    return wait(process)


# ---- a controller that is away -------------------------------------------------------------------


def test_a_controller_that_does_not_answer_is_asked_again(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 75")})
    silence = "Unexpected message received\nUnable to contact slurm controller (connect failure)\n"
    (host.state / "fail-requeue").write_text(silence)

    ended = host.run(run_dir)

    assert requeues(host) == 3
    assert events(run_dir) == ["started", "continued"]
    assert "scontrol: error: Unexpected message received" in ended.output
    assert ended.status == 0


def test_a_job_that_slurm_has_requeued_already_is_left_to_it(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 75")})
    (host.state / "fail-requeue").write_text("Job is pending execution for job 42")

    ended = host.run(run_dir)

    assert (requeues(host), ended.status) == (1, 0)
    assert events(run_dir) == ["started", "continued"]


# ---- a launcher that is killed -------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["launcher", "shell above it"])
def test_no_rank_outlives_the_attempt_of_a_launcher_that_was_killed(
    killed: str, host: StubHost
) -> None:
    """One that saves in the grace time may do so, and one that ignores SIGTERM is killed."""
    ranks = (
        "case $RANK in 0) trap 'sleep 1; touch saved; exit 75' TERM ;; 1) trap '' TERM ;; esac; "
        "echo $$ >pid-$RANK.part; mv pid-$RANK.part pid-$RANK; while :; do sleep 0.05; done"
    )
    job = {"ranks_per_node": 2, "grace": "4s"}
    run_dir = host.create({"run": shell(ranks), "launch": "processes", "job": job})
    process = host.start(run_dir)
    wait_until(lambda: len(list(host.work.glob("pid-?"))) == 2, "both ranks run")
    attempt = run_dir / "attempts" / "1"

    launcher = (attempt / "launcher").read_text().strip()
    above = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(launcher if killed == "launcher" else above), signal.SIGKILL)
    wait_for_file(attempt / "ended")

    assert (host.work / "saved").exists()
    assert not any(is_running(int((host.work / f"pid-{rank}").read_text())) for rank in (0, 1))
    assert wait(process).status == 137


def test_the_grace_after_a_killed_launcher_ends_before_the_time_limit(host: StubHost) -> None:
    """Cobalt's is five minutes. A job that is killed at its limit could not continue the run."""
    ranks = "trap '' TERM; echo $$ >pid.part; mv pid.part pid; while :; do sleep 0.05; done"
    (host.state / "end").write_text("+17 seconds")
    job = {"grace": "1h", "stop_margin": "1s"}
    run_dir = host.create({"run": shell(ranks), "launch": "processes", "job": job})
    process = host.start(run_dir)
    wait_for_file(host.work / "pid")

    os.kill(int((run_dir / "attempts" / "1" / "launcher").read_text()), signal.SIGKILL)

    assert wait(process).status == 137


# ---- nodes that are taken away -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "content"), [("restarts", "1"), ("job-state", "PENDING")])
@pytest.mark.parametrize("program", ["exit 1", "exit 143"])
def test_a_failure_of_a_job_that_slurm_starts_again_is_none(
    host: StubHost, name: str, content: str, program: str
) -> None:
    """A node has died; srun ended before the script heard of it."""
    run_dir = host.create({"run": shell(program)})
    (host.state / name).write_text(content)

    host.run(run_dir)

    assert events(run_dir) == ["started", "requeued"]
    assert requeues(host) == 0


def test_a_launch_that_fails_because_of_that_is_none_either(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "job": {"nodes": 2}})
    (host.state / "restarts").write_text("1")

    assert host.run(run_dir).status == 2

    assert events(run_dir) == ["requeued"]


def test_slurm_counts_from_the_start_of_this_attempt(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 1")})
    (host.state / "restarts").write_text("3")

    host.run(run_dir, SLURM_RESTART_COUNT="3")

    assert events(run_dir) == ["started", "failed"]


@pytest.mark.parametrize("status", [143, 75])
def test_a_program_that_is_preempted_is_requeued(host: StubHost, status: int) -> None:
    """Whether it dies of that or stops at a checkpoint: it cannot tell why it was terminated. The
    script has to ask for the requeue: its own end would be the job's."""
    run_dir = host.create({"run": shell(f"exit {status}"), "job": {"max_restarts": 0}})
    (host.state / "preempt-time").write_text("2026-11-27T22:40:00")

    host.run(run_dir)

    assert events(run_dir) == ["started", "preempted"]
    assert requeues(host) == 1


def test_a_deleted_job_is_not_brought_back_by_a_preemption(host: StubHost) -> None:
    run_dir = host.create({"run": shell(LISTENER.replace("75", "3")), "launch": "single"})
    (host.state / "preempt-time").write_text("2026-11-27T22:40:00")

    terminated(host, run_dir)

    assert events(run_dir) == ["started", "failed"]
    assert requeues(host) == 0


def test_a_job_that_is_terminated_to_start_again_says_so(host: StubHost) -> None:
    run_dir = host.create({"run": shell(LISTENER), "launch": "single"})
    (host.state / "restarts").write_text("1")

    terminated(host, run_dir)

    assert events(run_dir) == ["started", "requeued"]
    assert reason(run_dir) == "saved at SIGTERM"


# ---- the time limit ------------------------------------------------------------------------------


def test_at_the_limit_slurm_terminates_like_a_deletion(host: StubHost) -> None:
    run_dir = host.create({"run": shell(LISTENER), "launch": "single"})
    (host.state / "end").write_text("-1 minute")

    terminated(host, run_dir)

    assert events(run_dir) == ["started", "continued"]
    assert requeues(host) == 1


def test_a_warning_before_the_launch_does_not_end_the_launcher(host: StubHost) -> None:
    """It comes during the checks; the launcher would get it before it listens."""
    pid = """$(sed -nE 's/.*"pid": ([0-9]+).*/\\1/p' attempts/1/owner)"""
    host.before("scontrol", f'[ "$1" != show ] || kill -s USR1 "{pid}"\n')
    launch = {"method": "single", "forward_signals": True}
    run_dir = host.create({"run": shell("sleep 0.3"), "launch": launch})

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    assert (run_dir / "attempts/1/stop").exists()  # the signal came


def test_a_failure_at_the_limit_is_a_failure(host: StubHost) -> None:
    config = {"run": shell(LISTENER.replace("75", "3")), "launch": "single", "restarts": 1}
    run_dir = host.create(config)
    (host.state / "end").write_text("-1 minute")

    terminated(host, run_dir)

    assert events(run_dir) == ["started", "retried"]


def test_a_local_run_has_no_limit_that_somebody_enforces(host: StubHost) -> None:
    job = {"walltime": "2s", "stop_margin": "1s"}
    config = {"site": "local", "run": shell(LISTENER), "launch": "single", "job": job}
    run_dir = host.create(config)
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    time.sleep(3)
    os.kill(process.pid, signal.SIGTERM)
    wait(process)

    assert events(run_dir) == ["started", "terminated"]


@pytest.mark.parametrize(
    ("config", "grace"),
    [
        ({}, 20),  # the stub's KillWait
        ({"job": {"grace": "90s"}}, 90),
        ({"site": "local"}, 30),
    ],
)
def test_the_ranks_know_how_long_they_have(
    host: StubHost, config: dict[str, Any], grace: int
) -> None:
    job = {"stop_margin": "50s", **config.get("job", {})}
    run_dir = host.create({"run": shell(REPORT), **config, "job": job})

    host.run(run_dir)

    assert (host.work / "grace").read_text() == f"{grace} 50\n"


def test_torchrun_leaves_its_ranks_no_more_than_30_s(host: StubHost) -> None:
    config = {"run": ["true"], "launch": "torchrun", "job": {"ranks_per_node": 2}}

    scripts = [
        (host.create({**config, "name": name, "job": {**config["job"], **more}}) / "launch.sh")
        for name, more in (("short", {"grace": "9s"}), ("long", {"grace": "9m"}))
    ]

    assert " [grace]=9 " in scripts[0].read_text()
    assert " [grace]=30 " in scripts[1].read_text()


# ---- crash loops ---------------------------------------------------------------------------------


def built_in(host: StubHost, *ends: str, **more: Any) -> Path:
    """A run of a built-in task, with a stub in the place of Python: an attempt an end, each `STEP
    OUTCOME CAUSE STATUS` with the step of its newest checkpoint, 0 for none."""
    python = host.folder / "python"
    python.write_text(
        "#!/usr/bin/env bash\n# Stub of a built-in task.\n"
        f"end=$(sed -n ${{HPC_AMP_ATTEMPT}}p {host.folder}/ends)\n"
        'read -r step outcome cause status <<<"$end"\n'
        'run_dir=$(dirname "$1")\n'
        '[ "$step" = 0 ] || mkdir -p "$run_dir/checkpoints/step-$(printf %08d "$step")"\n'
        '[ "$outcome" = none ] ||\n'
        '  printf \'{\\n "outcome": "%s",\\n "cause": "%s"\\n}\\n\' "$outcome" "$cause" '
        '>"$HPC_AMP_OUTCOME_FILE"\n'
        'exit "$status"\n'
    )
    python.chmod(0o755)
    (host.folder / "ends").write_text("".join(f"{end}\n" for end in ends))
    return host.create(
        {
            "train": {"data": "synthetic", "batch_size": 8},
            "container": {"python": str(python)},
            "launch": "single",
            "restarts": 9,
            **more,
        }
    )


def run_to_the_end(host: StubHost, run_dir: Path) -> list[str]:
    """As often as Slurm is asked for another attempt."""
    while True:
        before = requeues(host)
        host.run(run_dir)
        if requeues(host) == before:
            return events(run_dir)


def test_failures_without_progress_end_the_run(host: StubHost) -> None:
    run_dir = built_in(host, *["120 none NONE 1"] * 9)

    states = run_to_the_end(host, run_dir)

    # The first attempt came from 0 to 120, the second and the third to nothing.
    assert states == ["started", "retried"] * 2 + ["started", "failed"]
    assert reason(run_dir) == (
        "no progress in 2 attempts: still at step 120; the cause is in the log"
    )


def test_failures_with_progress_do_not(host: StubHost) -> None:
    ends = [f"{step} failed NONE 1" for step in (10, 10, 20, 20, 30, 30)]
    run_dir = built_in(host, *ends, "40 finished NONE 0")

    assert run_to_the_end(host, run_dir) == ["started", "retried"] * 6 + ["started", "finished"]


def test_a_damaged_checkpoint_ahead_does_not_hide_progress(host: StubHost) -> None:
    """The job has passed over that of step 90, and comes nearer to it again in each attempt."""
    ends = [f"{step} checkpointed DEADLINE 75" for step in (60, 70, 80)]
    run_dir = built_in(host, *ends, "100 finished NONE 0", job={"max_restarts": 9})
    (run_dir / "checkpoints" / "step-00000090").mkdir(parents=True)
    os.utime(run_dir / "checkpoints" / "step-00000090", (0, 0))

    assert run_to_the_end(host, run_dir) == ["started", "continued"] * 3 + ["started", "finished"]


@pytest.mark.parametrize(("cause", "state"), [("DEADLINE", "continued"),
                                              ("TERMINATED", "preempted")])  # fmt: skip
def test_stops_without_a_checkpoint_end_the_run(host: StubHost, cause: str, state: str) -> None:
    run_dir = built_in(host, *[f"0 checkpointed {cause} 75"] * 9)

    assert run_to_the_end(host, run_dir) == ["started", state, "started", "failed"]


def test_a_person_who_resumes_a_run_may_try_again(host: StubHost) -> None:
    run_dir = built_in(host, *["0 failed NONE 1"] * 3)
    assert run_to_the_end(host, run_dir)[-1] == "failed"
    record_event(run_dir, "submitted")

    host.run(run_dir)

    assert events(run_dir)[-2:] == ["started", "retried"]


def test_a_program_of_ones_own_may_have_checkpoints_elsewhere(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 3"), "restarts": 3})

    assert run_to_the_end(host, run_dir) == ["started", "retried"] * 3 + ["started", "failed"]


# ---- a stop that was asked for -------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["ASKED", "TERMINATED", "DEADLINE"])
def test_a_run_that_is_to_stop_does_not_go_on(host: StubHost, cause: str) -> None:
    run_dir = host.create({"run": write_outcome("checkpointed", cause)})
    record_event(run_dir, "stopping")

    ended = host.run(run_dir)

    assert ended.status == 75
    assert events(run_dir) == ["stopping", "checkpointed"]
    assert reason(run_dir) == "a stop was asked for"
    assert not list((run_dir / "attempts").iterdir())


@pytest.mark.parametrize(
    ("program", "expected"), [("exit 75", "checkpointed"), ("exit 3", "failed")]
)
def test_nor_does_one_that_is_asked_while_it_works(
    host: StubHost, program: str, expected: str
) -> None:
    run = shell(f"touch ready; until [ -e go ]; do sleep 0.05; done; {program}")
    run_dir = host.create({"run": run, "restarts": 5})
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    record_event(run_dir, "stopping")
    (host.work / "go").touch()
    wait(process)

    assert events(run_dir) == ["started", "stopping", expected]
    assert requeues(host) == 0


@pytest.mark.parametrize("site", ["slurm", "local"])
def test_a_cancelled_run_does_not_go_on_by_itself(host: StubHost, site: str) -> None:
    """The cancellation came when the script was just asking for its next start."""
    record = 'echo \'{"time": 0, "state": "cancelled"}\' >>"$run_dir/state.jsonl"'
    run_dir = host.create({"site": site, "run": shell("echo >>ran; exit 75"), "launch": "single"})
    edit(run_dir, f"schedulers/{site}.sh", "go_on() {\n", f"go_on() {{\n  {record}\n")
    for _ in range(2 if site == "slurm" else 1):  # a local script starts itself
        assert host.run(run_dir).status == 0

    assert (host.work / "ran").read_text() == "\n"
    assert events(run_dir)[-1] == "cancelled"
    record_event(run_dir, "submitted")  # by `resume`
    (host.work / "ran").unlink()
    host.run(run_dir, job_id="43")
    assert (host.work / "ran").exists()


def test_a_launch_that_ends_with_its_cancellation_has_not_failed(host: StubHost) -> None:
    """What is deleted during the preflight finds that no node has answered."""
    run_dir = host.create({"run": ["true"], "job": {"nodes": 2}})
    record_event(run_dir, "cancelled")

    assert host.run(run_dir).status == 2

    assert events(run_dir) == ["cancelled"]


# ---- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(host: StubHost) -> Iterator[Path]:
    """A folder with little space."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = host.folder / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "test", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_does_not_keep_a_run_from_going_on(host: StubHost, small_disk: Path) -> None:
    fill = f"cat /dev/zero >{small_disk}/all 2>/dev/null; exit 75"
    run_dir = host.create({"run": shell(fill), "runs_dir": str(small_disk / "runs")})

    ended = host.run(run_dir)

    assert small_disk in run_dir.parents
    assert "No space left on device" in ended.output
    assert (requeues(host), ended.status) == (1, 0)


def test_nor_does_it_end_an_attempt_that_begins(host: StubHost) -> None:
    """What is only for people to read is not worth a run."""
    run_dir = host.create({"run": ["true"]})
    full = [f'ln -s /dev/full "attempts/$attempt/{name}"\n' for name in ("from", "end_at")]
    claimed = "own=attempts/$attempt\n"
    edit(run_dir, "attempt.sh", claimed, claimed + "".join(full))

    ended = host.run(run_dir)

    assert ended.output.count("No space left on device") == 2
    assert (events(run_dir), ended.status) == (["started", "finished"], 0)


KILLED = {"launch": "processes", "job": {"ranks_per_node": 2}, "run": shell("kill -9 $PPID $$")}


@pytest.mark.parametrize(
    ("config", "end", "status"),
    [
        ({"run": shell("exit 75")}, "continued", 0),
        (KILLED, "failed", 137),
        ({"run": ["true"], "container": {"python": "/no/python"}}, "failed", 2),
    ],
    ids=["continued", "killed", "not started"],
)
def test_a_log_that_takes_no_line_changes_nothing_else(
    config: dict[str, Any], end: str, status: int, host: StubHost
) -> None:
    """As a rule, the log is on the disk that is full."""
    run_dir = host.create(config)

    with open("/dev/full", "w") as full:
        process = host.start(run_dir, log=full)

    assert process.wait(timeout=120) == status
    assert events(run_dir) == ["started", end]


# ---- the next job of a chain ---------------------------------------------------------------------


AWAY = "qsub: cannot connect to server head (errno=15010)"
COBALT_AWAY = "Proxy.py     :L#422:cn:queue-manager"
OWN = "Job Id: 7.head\n    job_state = R\n    Output_Path = head:{run_dir}/logs/job.log\n"
# As the real one folds long values.
NEXT = (
    "Job Id: 8.head\n    job_state = Q\n    Output_Path = head:{parent}/\n\t{name}/logs/job.log\n"
)
STUCK = (
    "Job Id: 6.head\n    job_state = H\n    depend = afterany:5.head@head\n"
    "    Output_Path = {run_dir}/logs/job.log\n"
)
OTHER = "Job Id: 9.head\n    job_state = Q\n    Output_Path = head:{run_dir}0/logs/job.log\n"


@dataclass
class Queue:
    """A run that stops at a checkpoint, and the stubs of its scheduler."""

    host: StubHost
    scheduler: str
    walltime: str = "00:10:00"

    def __post_init__(self) -> None:
        site = self.host.folder / "queue.yaml"
        site.write_text(yaml.safe_dump({"scheduler": self.scheduler}))
        (self.host.bin / "sleep").write_text(
            "#!/bin/sh\nexec /bin/sleep 0.2 # instead of seconds\n"
        )
        (self.host.bin / "sleep").chmod(0o755)
        run = shell("touch began; exit 75")
        self.run_dir = self.host.create({"site": str(site), "run": run, "launch": "single"})

    def run(
        self,
        *answers: str,
        listing: str = "",
        silent: int = 0,
        away: str = AWAY,
        on_look: str = "",
    ) -> Ended:
        """Run its script to the end. `answers` are qsub's, in turn, each `out|err`; `listing` is
        what qstat says when the job wants to go on, after `silent` calls with the error `away`;
        `on_look` are lines of shell that it runs before."""
        folder = self.host.folder
        paths = {
            "run_dir": self.run_dir,
            "parent": self.run_dir.parent,
            "name": self.run_dir.name,
        }
        (folder / "listing").write_text(listing.format(**paths))
        (folder / "silent").write_text("x\n" * silent)
        limits = {"pbs": "    Resource_List.walltime = {}", "cobalt": "WallTime\n====\n{}"}
        self._stub(
            "qstat",
            f"if [ ! -e {self.host.work}/began ]; then\n"
            f"echo '{limits[self.scheduler].format(self.walltime)}'; exit 0\nfi\n"
            f"{on_look}"
            f"if [ -s silent ]; then sed -i 1d silent; echo '{away}' >&2; exit 1; fi\n"
            "cat listing\n",
        )
        (folder / "answers").write_text("".join(f"{answer}\n" for answer in answers))
        self._stub(
            "qsub",
            'echo >>asked\nIFS="|" read -r out err <answers; sed -i 1d answers\n'
            'echo "$err" >&2; [ -z "$out" ] || { echo "$out"; exit 0; }; exit 1\n',
        )
        (folder / "nodes").write_text("n1\n")
        own = {"pbs": "7.head", "cobalt": "7"}[self.scheduler]
        prefix = self.scheduler.upper()
        variables = {f"{prefix}_JOBID": own, f"{prefix}_NODEFILE": str(folder / "nodes")}
        return wait(self.host.start(self.run_dir, **variables))

    def _stub(self, name: str, text: str) -> None:
        path = self.host.bin / name
        path.write_text(
            f"#!/usr/bin/env bash\n# Stub of {self.scheduler}'s.\ncd {self.host.folder}\n{text}"
        )
        path.chmod(0o755)


def asked(host: StubHost) -> int:
    return len((host.folder / "asked").read_text().splitlines())


@pytest.mark.parametrize(
    ("scheduler", "away", "next_job"),
    [
        ("pbs", AWAY, "8.head"),
        ("cobalt", COBALT_AWAY, "8"),
        ("cobalt", "<Fault 20: 'Server Failure'>", "8"),
        ("cobalt", "words that nobody knows", "8"),
    ],
)
def test_a_server_that_is_away_is_asked_again(
    host: StubHost, scheduler: str, away: str, next_job: str
) -> None:
    """qsub only when the queue answers again."""
    queue = Queue(host, scheduler)

    ended = queue.run(f"|{away}", f"{next_job}|", silent=2, away=away)

    assert asked(host) == 2
    assert f"> {away}" in ended.output
    assert events(queue.run_dir) == ["started", "continued", "queued"]
    assert read_events(queue.run_dir)[-1]["job_id"] == next_job
    assert ended.status == 0


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("pbs", "qsub: Unauthorized Request"),
        ("pbs", "qsub: Unknown queue"),
        ("cobalt", "<Fault 1001: \"The 'default' queue is dead\">"),
        ("cobalt", "bash: qsub: command not found"),
    ],
)
def test_a_refusal_is_not_asked_for_again(host: StubHost, scheduler: str, said: str) -> None:
    queue = Queue(host, scheduler)

    ended = queue.run(f"|{said}")

    assert asked(host) == 1
    assert events(queue.run_dir) == ["started", "continued", "checkpointed"]
    assert "could not submit the next job" in reason(queue.run_dir)
    assert ended.status == 75


def chained_on_pbs(host: StubHost, program: str, qstat: str) -> Path:
    """A run in the first of three jobs of a chain, 7, 8 and 9. qstat runs these lines for another
    job than the first; `deleted` lists what qdel got."""
    for name, lines in (
        ("qstat", f'case $* in *7.head) echo "job_state = R" ;; *) {qstat} ;; esac'),
        ("qsub", "echo 10.head"),
        ("qdel", f'echo "$@" >>{host.folder}/deleted'),
    ):
        (host.bin / name).write_text(f"#!/usr/bin/env bash\n# Stub of PBS's {name}.\n{lines}\n")
        (host.bin / name).chmod(0o755)
    (host.folder / "nodes").write_text("n1\n")
    site = host.folder / "pbs.yaml"
    site.write_text(yaml.safe_dump({"scheduler": "pbs"}))
    run_dir = host.create({"site": str(site), "run": shell(program), "launch": "single"})
    record_event(run_dir, "submitted")
    (run_dir / "chain").write_text("7.head\n8.head\n9.head\n")
    return run_dir


def start_chained(host: StubHost, run_dir: Path) -> subprocess.Popen[str]:
    return host.start(run_dir, PBS_JOBID="7.head", PBS_NODEFILE=str(host.folder / "nodes"))


def deleted(host: StubHost) -> list[str]:
    path = host.folder / "deleted"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize(
    "gone",
    [
        "echo qstat: Unknown Job Id 8.head >&2; exit 153",
        "echo qstat: 8.head Job has finished, use -x >&2; exit 35",
        "echo '    job_state = F'",
    ],
)
def test_a_link_that_has_left_the_queue_is_replaced(host: StubHost, gone: str) -> None:
    run_dir = chained_on_pbs(host, "exit 75", gone)

    ended = wait(start_chained(host, run_dir))

    assert read_events(run_dir)[-1]["job_id"] == "10.head"
    assert deleted(host) == ["8.head", "9.head"]  # the last one would wait for ever
    assert ended.status == 0


@pytest.mark.parametrize("answer", ["echo '    job_state = H'", f"echo '{AWAY}' >&2; exit 255"])
def test_a_link_that_waits_takes_over(host: StubHost, answer: str) -> None:
    """Also where nobody says that it does not."""
    run_dir = chained_on_pbs(host, "exit 75", answer)

    wait(start_chained(host, run_dir))

    assert read_events(run_dir)[-1]["job_id"] == "8.head"
    assert deleted(host) == []


@pytest.mark.parametrize("program", [LISTENER, "touch ready; sleep 600"])
def test_a_job_that_pbs_may_start_again_keeps_its_links(host: StubHost, program: str) -> None:
    """`qrerun` sends the signal that `qdel` sends; the job goes on in its links later."""
    run_dir = chained_on_pbs(host, program, "echo '    job_state = H'")
    process = start_chained(host, run_dir)
    wait_for_file(host.work / "ready")
    os.killpg(process.pid, signal.SIGTERM)
    wait(process)

    assert deleted(host) == []
    assert events(run_dir)[-1] == ("terminated" if program == LISTENER else "killed")
    # The links find that nothing is left to do if it was `qdel`.
    after = host.run(run_dir, PBS_JOBID="8.head", PBS_NODEFILE=str(host.folder / "nodes"))
    assert "job 8.head has nothing to do: the run has ended" in after.output


def test_the_links_of_a_cancelled_run_are_deleted(host: StubHost) -> None:
    run_dir = chained_on_pbs(host, "touch ready; sleep 600", "echo '    job_state = H'")
    process = start_chained(host, run_dir)
    wait_for_file(host.work / "ready")
    record_event(run_dir, "cancelled")
    os.killpg(process.pid, signal.SIGTERM)
    wait(process)

    assert deleted(host) == ["8.head", "9.head"]


@pytest.mark.parametrize(("late", "taken"), [(0, True), (7, True), (5000, False), (-60, False)])
def test_the_limit_counts_from_when_pbs_started_the_job(
    host: StubHost, late: int, taken: bool
) -> None:
    """Not from when the script began, seconds later. Another clock may be wrong."""
    run_dir = chained_on_pbs(host, "echo $HPC_AMP_END_AT >end", "true")
    qstat = host.bin / "qstat"
    started = int(time.time()) - late
    qstat.write_text(
        "#!/usr/bin/env bash\n# Stub of PBS's qstat.\n"
        f"echo '    stime = {time.ctime(started)}'\necho '    Resource_List.walltime = 00:10:00'\n"
    )

    before = int(time.time())
    ended = wait(start_chained(host, run_dir))
    after = int(time.time())

    end = int((host.work / "end").read_text())
    assert ended.status == 0, ended.output
    assert end == started + 600 if taken else before <= end - 600 <= after


def test_a_limit_that_has_been_reached_may_be_so_no_longer(host: StubHost) -> None:
    queue = Queue(host, "cobalt")
    limit = "<Fault 1001: \"The limit of 3 jobs per user in the 'default' queue has been reached\">"

    queue.run(f"|{limit}", "8|")

    assert asked(host) == 2
    assert events(queue.run_dir) == ["started", "continued", "queued"]


def test_nobody_is_asked_beyond_the_end_of_the_job(host: StubHost) -> None:
    queue = Queue(host, "pbs", walltime="00:00:22")

    ended = queue.run(*[f"|{AWAY}"] * 9, silent=99)

    assert asked(host) == 1
    assert events(queue.run_dir) == ["started", "continued", "checkpointed"]
    assert ended.status == 75


def test_a_node_that_was_never_answered_gives_up(host: StubHost) -> None:
    queue = Queue(host, "pbs", walltime="unknown")

    queue.run(f"|{AWAY}", "8.head|")

    assert asked(host) == 1
    assert events(queue.run_dir) == ["started", "continued", "checkpointed"]


@pytest.mark.parametrize(
    ("scheduler", "listing", "next_job"),
    [
        ("pbs", OWN + NEXT + STUCK + OTHER, "8.head"),
        (
            "cobalt",
            "JobID  State    Command\n====\n7  running  {run_dir}/launch.sh\n"
            "9  queued  {run_dir}0/launch.sh\n6  dep_fail  {run_dir}/launch.sh\n"
            "8  queued  {run_dir}/launch.sh\n",
            "8",
        ),
    ],
)
def test_a_job_whose_id_was_lost_is_found_in_the_queue(
    host: StubHost, scheduler: str, listing: str, next_job: str
) -> None:
    queue = Queue(host, scheduler)

    ended = queue.run("|qsub: End of File", listing=listing)

    assert asked(host) == 1
    assert events(queue.run_dir) == ["started", "continued", "queued"]
    assert read_events(queue.run_dir)[-1]["job_id"] == next_job
    assert ended.status == 0


def test_a_job_whose_id_was_lost_may_have_begun(host: StubHost) -> None:
    """It is not taken for one that is over, nor is another one submitted."""
    queue = Queue(host, "pbs")
    attempt = f"{queue.run_dir}/attempts"
    owner = '{"job_id": "8.head", "host": "n2"}'
    begins = (
        f"mkdir {attempt}/.2; echo '{owner}' >{attempt}/.2/owner; mv {attempt}/.2 {attempt}/2\n"
    )

    ended = queue.run("|qsub: End of File", "9.head|", silent=1, on_look=begins)

    assert asked(host) == 1
    assert read_events(queue.run_dir)[-1]["job_id"] == "8.head"
    assert "continuing in job 8.head" in ended.output
    assert ended.status == 0


def test_a_job_that_is_not_in_the_queue_is_submitted_again(host: StubHost) -> None:
    queue = Queue(host, "pbs")

    queue.run("|qsub: End of File", "8.head|", listing=OWN + OTHER)

    assert asked(host) == 2
    assert read_events(queue.run_dir)[-1]["job_id"] == "8.head"


def test_a_cancelled_run_does_not_wait_for_a_server(host: StubHost) -> None:
    """On Cobalt the job hears nothing of it."""
    queue = Queue(host, "cobalt")
    line = '{"time": 1, "state": "cancelled", "attempt": 1, "job_id": "7", "reason": ""}'

    ended = queue.run(
        f"|{COBALT_AWAY}", silent=99, on_look=f"echo '{line}' >>{queue.run_dir}/state.jsonl\n"
    )

    assert events(queue.run_dir)[-1] == "cancelled"
    assert ended.status == 0
