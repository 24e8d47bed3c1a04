"""`hpc-amp bench`: what is run, in which order, and the script that runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.environment import require_program, working_directory
from support.stubs import StubHost

from hpc_amp.bench.folder import PrecisionRun, find_bench
from hpc_amp.bench.points import (
    PreparedBench,
    prepare_bench,
    render_bench,
    start_bench,
    usual_precisions,
)
from hpc_amp.config.units import parse_interval
from hpc_amp.errors import ConfigError, SchedulerError, UsageError
from hpc_amp.jobs.code import copy_package
from hpc_amp.jobs.events import read_events
from hpc_amp.schedulers.slurm import Slurm

JOB: dict[str, Any] = {
    "name": "small",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "walltime": "10m"},
    "train": {"batch_size": 32, "epochs": 9, "checkpoint": {"keep_every": "2epochs"}},
}


def prepared(host: StubHost, *overrides: str, **changes: Any) -> PreparedBench:
    path = host.write_job({**JOB, **changes.pop("config", {})})
    settings = {"precisions": ["fp32", "bf16"], "repeats": 2, "warmup": 3, "steps": 7, "site": None}
    with working_directory(host.work):
        return prepare_bench(path, overrides, Path("benches"), **{**settings, **changes})


def script_of(made: PreparedBench) -> Path:
    return made.bench.folder / "allocations" / "1" / "launch.sh"


def test_every_round_has_every_precision_once(host: StubHost) -> None:
    plans = prepared(host).plans
    order = [("fp32", 1), ("bf16", 1), ("fp32", 2), ("bf16", 2)]
    assert [(point.precision, point.repeat) for point in plans] == order
    modes = [plan.job.train.precision.mode for plan in plans.values() if plan.job.train]
    assert modes == ["fp32", "bf16", "fp32", "bf16"]
    assert len({plan.run_dir for plan in plans.values()}) == 4


def test_points_differ_in_their_precision_alone(host: StubHost) -> None:
    plans = list(prepared(host, "train.precision.init_scale=512").plans.values())
    for plan in plans:
        train = plan.job.train
        assert train is not None
        assert train.timing is not None
        assert (train.timing.warmup, train.timing.steps, train.max_steps) == (3, 7, 10)
        assert train.precision.init_scale == 512
        assert train.batch_size == 32
        # Nothing but steps, until the evaluation at the end.
        assert train.log_every == train.epochs == 10
        assert train.evaluate_every > train.epochs
        every = parse_interval(train.checkpoint.every)
        assert (every.unit, every.count) == ("steps", 11)
        assert (train.checkpoint.keep_best, train.checkpoint.keep_every) == (0, None)
        assert plan.job.resources.max_restarts == 0
    preflights = [plan.job.launch.preflight for plan in plans]
    assert preflights == [True, False, False, False], "the nodes are the same"


def test_a_rate_that_falls_after_the_measured_steps_is_no_error(host: StubHost) -> None:
    schedule = ("train.epochs=200", "train.schedule={name: linear, decay_after: 130epochs}")
    plans = prepared(host, *schedule).plans
    rates = [plan.job.train.schedule for plan in plans.values() if plan.job.train]
    assert {(rate.name, rate.decay_after) for rate in rates} == {("linear", None)}


def test_a_job_s_own_measurements_do_not_change_those_of_the_benchmark(host: StubHost) -> None:
    made = prepared(host, "train.profile.steps=[2,3]", "train.timing.seconds=5")
    for plan in made.plans.values():
        train = plan.job.train
        assert train is not None
        assert train.timing is not None
        assert (train.profile, train.timing.seconds, train.timing.steps) == (None, None, 7)


def test_tf32_and_gpus(host: StubHost) -> None:
    assert "tf32" not in usual_precisions(gpus=False)
    assert usual_precisions(gpus=True)[:4] == ("fp32", "tf32", "bf16", "fp16")
    assert prepared(host, precisions=None).bench.precisions == usual_precisions(gpus=False)
    assert prepared(host, precisions=["fp16", "fp16"]).bench.precisions == ("fp16",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precisions": ["fp32", "fp61"]}, "'fp61' is not one of fp32, tf32, bf16, fp16"),
        ({"config": {"run": ["true"], "train": None}}, "bench compares precisions of a built-in"),
        ({"config": {"train": {"batch_size": 0}}}, "train.batch_size: 0 is too small"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    host: StubHost, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        prepared(host, **changes)
    assert not (host.work / "benches").exists()


# -- the script --------------------------------------------------------------------------------


def test_one_job_is_submitted_for_all_points(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    made = prepared(host)
    submission = start_bench(made)
    ((*_, script),) = host.calls("sbatch")
    folder = made.bench.folder / "allocations" / "1"
    assert script == str(folder / "launch.sh")
    text = Path(script).read_text()
    assert text == render_bench(made, folder)
    assert f"#SBATCH --chdir={folder}\n" in text
    assert "#SBATCH --time=00:10:00\n" in text
    for plan in made.plans.values():
        first, second = read_events(plan.run_dir)
        assert (first["state"], second["state"]) == ("submitted", "queued")
        assert second["job_id"] == submission.job_id
    with working_directory(host.work):
        assert find_bench("small", Path("benches")) == made.bench
    assert made.bench.run_dir(PrecisionRun("bf16", 2)) == list(made.plans.values())[3].run_dir


def test_where_the_job_is_refused_nothing_stays_behind(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", host.environ()["PATH"])

    def refuse(*arguments: Any, **more: Any) -> Any:
        raise SchedulerError("no")

    monkeypatch.setattr(Slurm, "submit", refuse)
    with pytest.raises(SchedulerError):
        start_bench(prepared(host))
    assert list((host.work / "benches").iterdir()) == []


def test_a_job_in_the_queue_keeps_its_folders(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full just when sbatch has taken the job."""
    host.before(
        "sbatch",
        'find "$(dirname "$2")/../.." -name state.jsonl | while read -r state; do\n'
        'rm "$state"; mkdir "$state"; done\n',
    )
    monkeypatch.setenv("PATH", host.environ()["PATH"])
    made = prepared(host)

    with pytest.raises(UsageError, match=r"state\.jsonl cannot be written"):
        start_bench(made)

    assert script_of(made).exists()
    assert all((plan.run_dir / "launch.sh").exists() for plan in made.plans.values())


def test_the_script_passes_shellcheck(host: StubHost) -> None:
    require_program("shellcheck")
    config = {"name": "x", "site": "slurm"}
    made = prepared(host, config=config)
    script = render_bench(made, script_of(made).parent)
    result = subprocess.run(
        ["shellcheck", "-"], input=script, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stdout


def run_script(
    made: PreparedBench, statuses: dict[PrecisionRun, int]
) -> subprocess.CompletedProcess[str]:
    """Run the script with launch scripts that only say that they ran, and end so."""
    made.bench.write("", {point: plan.run_dir for point, plan in made.plans.items()})
    script_of(made).parent.mkdir(parents=True)
    (script_of(made).parent / "logs").mkdir()
    script_of(made).write_text(render_bench(made, script_of(made).parent))
    for point, plan in made.plans.items():
        (plan.run_dir / "logs").mkdir(parents=True, exist_ok=True)
        if not (plan.run_dir / "src").exists():
            copy_package(plan.run_dir, plan)
        (plan.run_dir / "checkpoints").mkdir(exist_ok=True)
        (plan.run_dir / "state.jsonl").touch()
        status = statuses.get(point, 0)
        done = "finished" if status == 0 else "failed"
        (plan.run_dir / "launch.sh").write_text(
            f'echo ran\necho \'{{"state": "{done}"}}\' >>{plan.run_dir}/state.jsonl\n'
            f"exit {status}\n"
        )
    return started(made)


def started(made: PreparedBench) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script_of(made)], text=True, capture_output=True, timeout=300, check=False
    )


def said(made: PreparedBench) -> list[str]:
    """What the launch scripts said, by point."""
    logs = [plan.run_dir / "logs" / "job.log" for plan in made.plans.values()]
    return [log.read_text() if log.exists() else "" for log in logs]


def test_the_script_runs_all_points_and_keeps_no_weights(host: StubHost) -> None:
    made = prepared(host)
    assert run_script(made, {}).returncode == 0
    assert said(made) == ["ran\n"] * 4
    assert not any((plan.run_dir / "checkpoints").exists() for plan in made.plans.values())


def test_a_precision_that_fails_is_not_tried_again(host: StubHost) -> None:
    made = prepared(host)
    assert run_script(made, {PrecisionRun("fp32", 1): 2}).returncode == 1
    assert said(made) == ["ran\n", "ran\n", "", "ran\n"]
    (event,) = read_events(made.bench.run_dir(PrecisionRun("fp32", 2)))
    assert (event["state"], event["reason"]) == (
        "failed", "not tried: this precision failed before",
    )  # fmt: skip


def test_a_job_that_is_started_again_does_the_rest(host: StubHost) -> None:
    made = prepared(host)
    run_script(made, {})
    (made.bench.run_dir(PrecisionRun("bf16", 1)) / "state.jsonl").write_text("")
    assert started(made).returncode == 0
    assert said(made) == ["ran\n", "ran\nran\n", "ran\n", "ran\n"]


def test_a_signal_reaches_the_point_and_no_other_one_begins(host: StubHost) -> None:
    made = prepared(host)
    run_script(made, {})
    for plan in made.plans.values():
        (plan.run_dir / "state.jsonl").write_text("")
    first = made.bench.run_dir(PrecisionRun("fp32", 1))
    (first / "launch.sh").write_text(
        "trap 'echo warned; exit 75' USR1\n"
        # Its parent is the shell that waits for it.
        "kill -s USR1 $(awk '/^PPid/ { print $2 }' /proc/$PPID/status)\n"
        "while :; do sleep 0.1; done\n"
    )
    assert started(made).returncode == 75
    assert said(made) == ["ran\nwarned\n", "ran\n", "ran\n", "ran\n"]


# -- the folder --------------------------------------------------------------------------------


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark 'x'"):
        find_bench("x", tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "bench.json").write_text(json.dumps({"precisions": []}))
    with pytest.raises(UsageError, match="does not describe a benchmark: precisions is not"):
        find_bench("x", tmp_path)
    (tmp_path / "x" / "bench.json").write_text("{")
    with pytest.raises(UsageError, match="does not describe a benchmark"):
        find_bench(str(tmp_path / "x"), tmp_path)
