"""What a launch script does from its first line to its last, in the real bash, with stubs of
Slurm's commands and of Apptainer around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.stubs import (
    Ended,
    StubHost,
    events,
    read_reports,
    report_command,
    wait,
    write_outcome,
)
from support.waiting import wait_for_file

from hpc_amp.config.paths import literal
from hpc_amp.jobs.events import read_events, record_event


def shell(text: str) -> list[str]:
    """A `run` that is a few lines of bash."""
    return ["bash", "-c", text]


def last_reason(run_dir: Path) -> str:
    return str(read_events(run_dir)[-1]["reason"])


def requeues(host: StubHost) -> list[list[str]]:
    """What Slurm was asked to start again."""
    return [call for call in host.calls("scontrol") if call[0] == "requeue"]


def run_again(host: StubHost, run_dir: Path, times: int) -> list[Ended]:
    """What Slurm does with a job that is requeued."""
    return [host.run(run_dir) for _ in range(times)]


# ---- how an attempt ends -------------------------------------------------------------------------


def test_finished(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})

    ended = host.run(run_dir)

    assert ended.status == 0
    assert events(run_dir) == ["started", "finished"]
    assert ended.output.splitlines()[-1] == "attempt 1 ended: finished (status 0)"
    assert requeues(host) == []


def test_an_own_program_gets_a_summary(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "job": {"nodes": 2}})
    begun = time.time()

    host.run(run_dir, nodes="n1,n2")

    summary = json.loads((run_dir / "summary.json").read_text())
    assert {key: value for key, value in summary.items() if value is not None} == {
        "outcome": "finished",
        "name": "test",
        "world_size": 2,
        "nodes": 2,
        "seconds": summary["seconds"],
    }
    assert 0 <= summary["seconds"] <= time.time() - begun + 1  # it counts whole seconds


def test_every_event_names_attempt_and_job(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})

    host.run(run_dir, job_id="77")

    assert [(event["attempt"], event["job_id"]) for event in read_events(run_dir)] == [
        (1, "77"),
        (1, "77"),
    ]


def test_a_stop_at_a_checkpoint_is_requeued(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 75")})

    ended = host.run(run_dir)

    assert requeues(host) == [["requeue", "42"]]
    assert events(run_dir) == ["started", "continued"]
    assert ended.status == 0  # of a script that Slurm ended on its way to the next attempt


def test_requeueing_is_bounded(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 75"), "job": {"max_restarts": 2}})

    *_, last = run_again(host, run_dir, 3)

    assert events(run_dir) == ["started", "continued"] * 2 + ["started", "checkpointed"]
    assert last_reason(run_dir) == "job.max_restarts reached"
    assert last.status == 75
    assert len(requeues(host)) == 2


def test_submitting_again_counts_anew(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 75"), "job": {"max_restarts": 1}})
    run_again(host, run_dir, 2)
    record_event(run_dir, "submitted")

    host.run(run_dir)

    assert events(run_dir)[-2:] == ["started", "continued"]


@pytest.mark.parametrize(("outcome", "status", "state"), [("checkpointed", 75, "checkpointed"),
                                                          ("failed", 3, "failed")])  # fmt: skip
def test_slurm_does_not_requeue(host: StubHost, outcome: str, status: int, state: str) -> None:
    run_dir = host.create({"run": shell(f"exit {status}"), "restarts": 1})
    (host.state / "fail-requeue").write_text("Requeue denied")

    ended = host.run(run_dir)

    assert ended.status == status
    assert events(run_dir)[-1] == state
    assert last_reason(run_dir) == "Slurm did not requeue the job"


def test_a_failure_is_final(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 3")})

    ended = host.run(run_dir)

    assert ended.status == 3
    assert events(run_dir) == ["started", "failed"]
    assert last_reason(run_dir) == "exit status 3"
    assert requeues(host) == []


def test_a_failure_is_retried_as_often_as_asked(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit 3"), "restarts": {"on_failure": 2}})

    *_, last = run_again(host, run_dir, 3)

    assert events(run_dir) == ["started", "retried"] * 2 + ["started", "failed"]
    assert last.status == 3


def test_a_failure_here_is_retried_by_the_script_itself(host: StubHost) -> None:
    run_dir = host.create({"site": "local", "run": shell("exit 3"), "restarts": 2})

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", "retried"] * 2 + ["started", "failed"]
    assert ended.status == 3
    assert len({event["job_id"] for event in read_events(run_dir)}) == 1
    assert [event["attempt"] for event in read_events(run_dir)] == [1, 1, 2, 2, 3, 3]


def test_going_on_here_is_bounded(host: StubHost) -> None:
    run_dir = host.create(
        {"site": "local", "run": shell("exit 75"), "job": {"max_restarts": 2, "gpus_per_node": 0}}
    )

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", "continued"] * 2 + ["started", "checkpointed"]
    assert ended.status == 75


@pytest.mark.parametrize(
    ("content", "status", "state"),
    [
        ('{\n "outcome": "finished",\n "reason": "3 checks failed"\n}', 1, "finished"),
        ('{"reason": "failed, then checkpointed", "outcome": "finished"}', 0, "finished"),
        ('{"outcome":"failed"}', 0, "failed"),
        ('{"outcome": "checkpointed", "cause": "NONE"}', 1, "continued"),
        ('{"outcome": "checkpointed", "cause": "TERMINATED"}', 1, "preempted"),
        ('{"outcome": "something else"}', 0, "finished"),
        ("", 4, "failed"),
        ("not JSON: failed", 0, "finished"),
    ],
)
def test_the_outcome_file_says_more_than_the_status(
    host: StubHost, content: str, status: int, state: str
) -> None:
    command = f'printf "%s" "$0" >"$HPC_AMP_OUTCOME_FILE"; exit {status}'
    run_dir = host.create({"run": [*shell(command), content]})

    ended = host.run(run_dir)

    assert events(run_dir) == ["started", state]
    if state == "failed":
        assert ended.status == max(status, 1)


def test_preemption_does_not_use_up_restarts(host: StubHost) -> None:
    run_dir = host.create({"run": write_outcome("checkpointed", "TERMINATED"),
                           "job": {"max_restarts": 0}})  # fmt: skip

    run_again(host, run_dir, 3)

    assert events(run_dir) == ["started", "preempted"] * 3


def test_the_highest_status_of_the_ranks_counts(host: StubHost) -> None:
    run_dir = host.create({"run": shell("exit $((RANK == 1 ? 5 : 0))"), "job": {"nodes": 2}})

    assert host.run(run_dir, nodes="n1,n2").status == 5


# ---- attempts ------------------------------------------------------------------------------------


def test_attempts_are_numbered_on(host: StubHost) -> None:
    run_dir = host.create({"run": shell('echo "$HPC_AMP_ATTEMPT $MASTER_PORT" >>numbers')})
    (run_dir / "attempts" / "1").mkdir()
    (run_dir / "attempts" / "2").mkdir()

    run_again(host, run_dir, 2)

    assert (host.work / "numbers").read_text() == "3 61549\n4 61550\n"
    assert sorted(path.name for path in (run_dir / "attempts").iterdir()) == list("1234")


def refuse_to_write(run_dir: Path) -> None:
    """What a full disk or a lost permission looks like, also to root."""
    (run_dir / "attempts").rmdir()
    (run_dir / "attempts").touch()


def test_a_run_directory_that_cannot_be_written_ends_the_script(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    refuse_to_write(run_dir)

    ended = host.run(run_dir)

    assert ended.status == 2
    assert ended.output == (f"hpc-amp: cannot write in {run_dir}: no space, or no permission\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_somebody_elses_run_directory_ends_the_script(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    # The way to the directory is open; it is not.
    for folder in (host.folder, *host.folder.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and "/pytest-of-" in str(folder):
            folder.chmod(0o755)
    (host.state / "calls").chmod(0o777)
    script = ["bash", str(run_dir / "launch.sh")]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    result = subprocess.run(
        [*nobody, *script],
        env=host.environ(SLURM_JOB_ID="42", SLURM_JOB_NODELIST="n1"),
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert result.returncode == 2
    assert f"hpc-amp: cannot write in {run_dir}/attempts: no space, or no permission" in (
        result.stderr.splitlines()
    )


# ---- signals -------------------------------------------------------------------------------------

# Says when it is ready, notes what it gets, and stops at a checkpoint.
LISTENER = """
trap 'echo USR1 >>got; exit 75' USR1
trap 'echo TERM >>got; exit 75' TERM
touch ready
stop=$(dirname "$HPC_AMP_OUTCOME_FILE")/stop
for i in {1..2000}; do sleep 0.05; [ ! -e "$stop" ] || exit 75; done
exit 9
"""


def signalled(host: StubHost, config: dict[str, Any], number: signal.Signals) -> tuple[Path, Ended]:
    """The end of a run that got a signal while its program was at work."""
    launch = {"forward_signals": True}
    run_dir = host.create({"run": shell(LISTENER), "launch": launch, **config})
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    os.kill(process.pid, number)
    return run_dir, wait(process)


def received(host: StubHost) -> str:
    got = host.work / "got"
    return got.read_text() if got.exists() else ""


def test_a_warning_saves_and_goes_on(host: StubHost) -> None:
    run_dir, ended = signalled(host, {}, signal.SIGUSR1)

    assert events(run_dir) == ["started", "continued"]
    assert received(host) == "USR1\n"
    assert (run_dir / "attempts" / "1" / "stop").exists()
    assert requeues(host) == [["requeue", "42"]]
    assert ended.status == 0


def test_a_warning_is_none_less_where_setup_chose_posix_mode(host: StubHost) -> None:
    """There bash's `read` returns at a signal, and the script would leave its ranks alone."""
    job = {"setup": "export POSIXLY_CORRECT=1"}
    run_dir, ended = signalled(host, {"job": job}, signal.SIGUSR1)

    assert events(run_dir) == ["started", "continued"]
    assert received(host) == "USR1\n"
    assert ended.status == 0


def test_a_program_that_did_not_ask_for_it_gets_no_warning(host: StubHost) -> None:
    """It would be killed by it, long before its time is up."""
    run_dir, _ = signalled(host, {"launch": "srun"}, signal.SIGUSR1)

    assert received(host) == ""
    assert events(run_dir) == ["started", "continued"]  # it looks for the stop file


def test_a_warning_reaches_ranks_of_a_launcher_that_does_not_forward_it(host: StubHost) -> None:
    """torchrun would die of USR1; its ranks look for the stop file."""
    python = fake_torchrun(host)
    run_dir, _ = signalled(
        host, {"launch": "torchrun", "container": {"python": python}}, signal.SIGUSR1
    )

    assert events(run_dir) == ["started", "continued"]
    assert received(host) == ""


def fake_torchrun(host: StubHost) -> str:
    """A python whose `-m torch.distributed.run` is one rank without torch, which takes seconds."""
    python = host.folder / "python"
    python.write_text(
        "#!/usr/bin/env bash\n# Stub of torchrun with one rank a node: options, then the script.\n"
        "if [[ ${1-} == -m ]]; then shift 2; while [[ $1 == --* ]]; do shift; done; fi\n"
        "export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def test_termination_is_not_requeued(host: StubHost) -> None:
    run_dir, ended = signalled(host, {"launch": "single"}, signal.SIGTERM)

    assert events(run_dir) == ["started", "terminated"]
    assert last_reason(run_dir) == "saved at SIGTERM"
    assert received(host) == "TERM\n"
    assert ended.status == 75
    assert requeues(host) == []


def test_termination_leaves_srun_to_slurm(host: StubHost) -> None:
    """srun kills the step when it gets SIGTERM, so the script must not send it one."""
    run_dir, ended = signalled(host, {}, signal.SIGTERM)

    assert events(run_dir) == ["started", "terminated"]
    assert received(host) == ""
    assert ended.status == 75


def test_the_script_waits_for_the_ranks_however_often_it_is_asked(host: StubHost) -> None:
    """They may still be saving when the next signal comes."""
    patient = """
trap 'echo USR1 >>got' USR1
touch ready
until [ -e go ]; do sleep 0.05; done
exit 75
"""
    launch = {"method": "single", "forward_signals": True}
    run_dir = host.create({"run": shell(patient), "launch": launch})
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    for count in range(1, 4):
        os.kill(process.pid, signal.SIGUSR1)
        while received(host) != "USR1\n" * count:
            assert process.poll() is None
            time.sleep(0.02)
    assert events(run_dir) == ["started"]
    (host.work / "go").touch()
    wait(process)

    assert events(run_dir) == ["started", "continued"]


def test_a_failure_after_a_signal_is_not_retried(host: StubHost) -> None:
    failing = LISTENER.replace("exit 75", "exit 3")

    run_dir, ended = signalled(host, {"run": shell(failing), "restarts": 5}, signal.SIGTERM)

    assert events(run_dir) == ["started", "failed"]
    assert ended.status == 3


@pytest.mark.parametrize(("outcome", "status"), [("exit 75", 0), ("exit 3", 3)])
def test_a_cancelled_run_does_not_start_again(host: StubHost, outcome: str, status: int) -> None:
    program = f"touch ready; until [ -e go ]; do sleep 0.05; done; {outcome}"
    run_dir = host.create({"run": shell(program), "restarts": 5})
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    record_event(run_dir, "cancelled")
    (host.work / "go").touch()
    ended = wait(process)

    assert events(run_dir) == ["started", "cancelled"]
    assert ended.status == status
    assert requeues(host) == []


def test_a_stop_file_by_hand_stops_for_good(host: StubHost) -> None:
    run_dir = host.create({"run": shell(LISTENER)})
    process = host.start(run_dir)
    wait_for_file(host.work / "ready")
    (run_dir / "attempts" / "1" / "stop").touch()
    ended = wait(process)

    assert events(run_dir) == ["started", "checkpointed"]
    assert last_reason(run_dir) == "a stop was asked for"
    assert ended.status == 75


def test_the_time_limit_is_asked_for_and_baked_in(host: StubHost) -> None:
    run_dir = host.create({"run": shell('echo "$HPC_AMP_STOP_AT" >at'),
                           "job": {"walltime": "10m", "stop_margin": "1m"}})  # fmt: skip
    host.run(run_dir)
    asked = int((host.work / "at").read_text()) - time.time()
    host.fail("squeue", "Unable to contact slurm controller")
    host.run(run_dir)
    baked_in = int((host.work / "at").read_text()) - time.time()

    assert 3600 - 60 - 30 < asked <= 3600 - 60  # the stub's answer is one hour
    assert 600 - 60 - 30 < baked_in <= 600 - 60


# ---- what is wrong with the node or the allocation -----------------------------------------------


@pytest.mark.parametrize("nodes", ["n1", "n1,n2,n3"])
def test_another_number_of_nodes_is_refused(host: StubHost, nodes: str) -> None:
    run_dir = host.create({"run": ["touch", "ran"], "job": {"nodes": 2}})

    ended = host.run(run_dir, nodes=nodes)

    count = nodes.count(",") + 1
    assert ended.output == f"hpc-amp: the job has {count} nodes, but was made for 2\n"
    assert ended.status == 2
    assert events(run_dir) == ["failed"]
    assert not (host.work / "ran").exists()


def test_outside_slurm_a_batch_script_is_refused(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})

    ended = host.run(run_dir, job_id="")

    assert ended.output == (f"hpc-amp: this script runs under Slurm: sbatch {run_dir}/launch.sh\n")
    assert ended.status == 2


def test_scontrol_does_not_answer(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"]})
    host.fail("scontrol", "Unable to contact slurm controller")

    ended = host.run(run_dir)

    assert ended.output.splitlines()[-1] == "hpc-amp: scontrol does not name the nodes"
    assert ended.status == 2
    assert events(run_dir) == ["failed"]


def in_container(host: StubHost, **more: Any) -> dict[str, Any]:
    return {
        "run": ["true"],
        "container": {"image": str(host.image), "python": sys.executable, **more},
    }


def test_no_image_on_the_node(host: StubHost) -> None:
    run_dir = host.create(in_container(host))
    host.image.unlink()

    ended = host.run(run_dir)

    (line,) = ended.output.splitlines()
    assert line.startswith(f"hpc-amp: the image {host.image} is not readable on ")
    assert ended.status == 2
    assert events(run_dir)[-1] == "failed"
    assert host.calls("srun") == []


def test_no_container_program_on_the_node(host: StubHost) -> None:
    run_dir = host.create(in_container(host))
    # The machine may have a real one: leave the script only what it needs.
    tools = host.folder / "tools"
    tools.mkdir()
    names = "awk basename bash cat date dirname env find head mkdir mv realpath rm sed sort stat"
    for name in f"{names} tail timeout touch tr wc".split():
        (tools / name).symlink_to(f"/usr/bin/{name}")
    for name in ("apptainer", "singularity"):
        (host.bin / name).unlink(missing_ok=True)

    ended = host.run(run_dir, PATH=f"{host.bin}:{tools}")

    (line,) = ended.output.splitlines()
    assert line.startswith("hpc-amp: no apptainer or singularity on ")
    assert line.endswith(": load its module in job.setup")
    assert ended.status == 2


def test_a_bind_that_the_node_does_not_have(host: StubHost) -> None:
    scratch = host.folder / "it's $(touch pwned)"
    scratch.mkdir()
    run_dir = host.create(in_container(host, bind=[literal(str(scratch))]))
    scratch.rmdir()

    ended = host.run(run_dir)

    said = f"hpc-amp: {scratch} is to be bound into the container, but does not exist on "
    assert ended.output.splitlines()[-1].startswith(said)
    assert ended.status == 2


def test_no_python_on_the_node(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "container": {"python": "/nope/python"}})

    ended = host.run(run_dir)

    (line,) = ended.output.splitlines()
    assert line.startswith("hpc-amp: no Python at /nope/python on ")
    assert ended.status == 2


# ---- containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "no_eval"),
    [
        ("apptainer", "apptainer version 1.0.3-1.el8", False),
        ("apptainer", "apptainer version 1.1.0-rc.1", True),
        ("apptainer", "apptainer version 1.4.5", True),
        ("apptainer", "apptainer version 1.10.0", True),
        ("singularity", "apptainer version 1.3.2", True),
        ("singularity", "apptainer version 1.0.0", False),
        ("singularity", "singularity version 3.5.2", False),
        ("singularity", "singularity version 3.8.7-1.el8", False),
        ("singularity", "singularity-ce version 3.9.5", False),
        ("singularity", "singularity-pro version 3.9-4.el8", False),
        ("singularity", "singularity-ce version 3.10.0", True),
        ("singularity", "singularity-ce version 3.11.4-focal", True),
        ("singularity", "singularity-ce version 4.1.1-noble", True),
        ("singularity", "singularity-ce version 10.0.0", True),
    ],
)
def test_no_eval_follows_what_the_program_says_it_is(
    host: StubHost, name: str, version: str, no_eval: bool
) -> None:
    host.install_container(name, version)
    run_dir = host.create(in_container(host, runtime=name))

    ended = host.run(run_dir)

    assert ended.status == 0, ended.output
    (_, call) = host.calls(name)
    assert ("--no-eval" in call) == no_eval
    assert f"container: {version}, {host.image}" in ended.output.splitlines()


def test_the_program_is_the_first_word_of_its_choice(host: StubHost) -> None:
    host.install_container("singularity", "singularity-ce version 4.1.1")
    run_dir = host.create(in_container(host, runtime="singularity"))

    host.run(run_dir)

    assert len(host.calls("singularity")) == 2
    assert host.calls("apptainer") == []


def test_gpus_reach_the_image(host: StubHost) -> None:
    for gpus, gpu, expected in [(2, None, True), (0, None, False), (2, False, False)]:
        config = in_container(host, gpu=gpu)
        plan = host.plan({**config, "job": {"gpus_per_node": gpus}})
        assert ("--nv" in plan.container.options(plan)) == expected


def test_what_the_container_sees(host: StubHost) -> None:
    """A folder that is bound elsewhere, or read-only, does not make the run's own visible."""
    at = str(host.folder)

    def binds(*wanted: str) -> list[str]:
        return host.plan(in_container(host, bind=list(wanted))).binds

    assert binds() == [f"{at}/work"]
    assert binds(at) == [at]
    assert binds(f"{at}:{at}") == [f"{at}:{at}"]
    assert binds(f"{at}:/elsewhere") == [f"{at}:/elsewhere", f"{at}/work"]
    assert binds(f"{at}:{at}:ro") == [f"{at}:{at}:ro", f"{at}/work"]
    assert binds("../bin") == [f"{at}/bin", f"{at}/work"]


def test_a_bind_keeps_its_name_where_it_is_a_link(host: StubHost) -> None:
    (host.folder / "scratch").symlink_to(host.folder / "bin")

    plan = host.plan(in_container(host, bind=[f"{host.folder}/scratch"]))

    assert plan.binds[0] == f"{host.folder}/scratch"


@pytest.mark.parametrize("python", ["venv/bin/python", "./venv/bin/python"])
def test_a_relative_interpreter_is_found_from_where_submit_was_called(
    host: StubHost, python: str
) -> None:
    (host.work / "venv/bin").mkdir(parents=True)
    (host.work / "venv/bin/python").symlink_to(sys.executable)

    assert host.plan({"run": ["true"]}, f"container.python={python}").python == (
        f"{host.work}/venv/bin/python"
    )


# ---- launchers -----------------------------------------------------------------------------------


def test_every_rank_gets_its_place(host: StubHost) -> None:
    out = host.folder / "out"
    run_dir = host.create({"run": report_command(out), "job": {"nodes": 2, "ranks_per_node": 2}})

    host.run(run_dir, nodes="n1,n2", RANK="7", MASTER_ADDR="elsewhere", PYTHONPATH="/nope")

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
    places = [tuple(report.environ[name] for name in names) for report in read_reports(out)]
    assert places == [
        ("0", "4", "0", "2", "0", "n1"),
        ("1", "4", "1", "2", "0", "n1"),
        ("2", "4", "0", "2", "1", "n1"),
        ("3", "4", "1", "2", "1", "n1"),
    ]
    assert {report.environ["MASTER_PORT"] for report in read_reports(out)} == {"61547"}
    assert {report.environ["PYTHONPATH"] for report in read_reports(out)} == {f"{run_dir}/src"}


@pytest.mark.ranks
def test_torchrun_really_starts_the_ranks(host: StubHost) -> None:
    """On this machine; over several nodes: tests/cluster/test_hostile.py."""
    pytest.importorskip("torch")
    out = host.folder / "out"
    run = report_command(out, ["a b", "$(touch pwned)"])
    run_dir = host.create(
        {"site": "local", "run": run, "launch": "torchrun", "job": {"ranks_per_node": 2}}
    )

    ended = wait(host.start(run_dir), timeout=300)

    assert ended.status == 0, ended.output
    reports = read_reports(out)
    assert [report.environ["RANK"] for report in reports] == ["0", "1"]
    assert all(report.argv == ["a b", "$(touch pwned)"] for report in reports)


def test_a_launcher_that_starts_fewer_ranks_is_an_error(host: StubHost) -> None:
    """A world of one instead of the job's: refused by every rank, not trained through."""
    (host.bin / "srun").unlink()
    (host.bin / "srun").write_text(
        '#!/usr/bin/env bash\n# Stub of a broken srun\nwhile [[ $1 == -* ]]; do shift; done\n"$@"\n'
    )
    (host.bin / "srun").chmod(0o755)
    run_dir = host.create({"run": ["touch", "ran"], "job": {"nodes": 2}})

    ended = host.run(run_dir, nodes="n1,n2")

    assert ended.status == 2
    assert "hpc-amp: the job was started for 2 ranks, but this process sees 1" in ended.output
    assert not (host.work / "ran").exists()


def test_a_login_shell_that_is_not_ours_to_choose(host: StubHost) -> None:
    """The batch system starts the script by its first line, as a login shell: whatever the user's
    profile does, the job's own variables stand."""
    out = host.folder / "out"
    home = host.folder / "home"
    home.mkdir()
    (home / ".bash_profile").write_text(
        f"export PATH={host.bin}:$PATH PYTHONPATH=/nope RANK=5 LC_ALL=xx_XX\nfalse\n"
    )
    run_dir = host.create({"run": report_command(out), "job": {"cpus_per_gpu": 3}})

    result = subprocess.run(
        [run_dir / "launch.sh"],
        env=host.environ(HOME=str(home), SLURM_JOB_ID="42", SLURM_JOB_NODELIST="n1"),
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    (report,) = read_reports(out)
    assert report.environ["OMP_NUM_THREADS"] == "3"
    assert report.environ["PYTHONPATH"] == f"{run_dir}/src"
    assert report.environ["RANK"] == "0"
    assert "LC_ALL" not in report.environ
