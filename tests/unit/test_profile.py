"""`train.profile`: traces, and where the time of a step goes."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.environment import REPOSITORY
from support.ports import free_ports
from support.training import CPU, Regression, fit_until, settings
from support.warm import Warm

from hpc_amp.config.build import build
from hpc_amp.config.schema import Profile
from hpc_amp.config.source import parse
from hpc_amp.distributed.world import World
from hpc_amp.errors import ConfigError
from hpc_amp.train.engine import Engine
from hpc_amp.train.profile import profilers
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.settings import SettingError
from hpc_amp.train.state import weights_digest
from hpc_amp.train.stopping import StopWatch
from hpc_amp.train.trace import PARTS, NoSteps, break_down

# ---- traces with known answers -------------------------------------------------------------------


def event(cat: str, name: str, begin: float, end: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "args": args}


def marks(begin: float, *, data: float, forward: float, end: float) -> list[dict[str, Any]]:
    """A step of the host: data until `data`, forward until `forward`, the rest until `end`."""
    note = "user_annotation"
    return [
        event(note, "hpc_amp::step", begin, end),
        event(note, "hpc_amp::data", begin, data),
        event(note, "hpc_amp::update", data, end),
        event(note, "hpc_amp::forward", data, forward),
    ]


def kernel(name: str, launched: float, begin: float, end: float) -> list[dict[str, Any]]:
    number = round(1000 * begin)
    return [
        event("cuda_runtime", "cudaLaunchKernel", launched, launched + 1, correlation=number),
        event("kernel", name, begin, end, correlation=number),
    ]


def milliseconds(trace: list[dict[str, Any]]) -> dict[str, float]:
    found = break_down({"traceEvents": trace})
    assert sum(found.parts.values()) == pytest.approx(found.step)
    rounded = {part: round(1e6 * seconds, 6) for part, seconds in found.parts.items()}
    return {
        **rounded,
        "step": round(1e6 * found.step, 6),
        "exchange": round(1e6 * found.exchange, 6),
    }


def test_a_gpu_works_behind_the_host() -> None:
    """Work counts for the part of the host that launched it, and as the time that it takes on the
    device; an exchange counts only as far as nothing else runs."""
    gradient = "autograd::engine::evaluate_function: AddmmBackward0"
    trace = [
        *marks(0, data=100, forward=200, end=400),
        event("gpu_user_annotation", "hpc_amp::step", 0, 900),
        event("cpu_op", gradient, 210, 300),
        event("cpu_op", "aten::add", 110, 190),
        *kernel("sgemm", 120, 150, 250),  # forward
        *kernel("sgemm_backward", 220, 250, 500),
        *kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 230, 400, 650),  # 150 alone
        *kernel("multi_tensor_apply", 350, 700, 800),  # optimizer, after 50 of nothing
    ]
    assert milliseconds(trace) == {
        "data": 100,
        "forward": 100,
        "backward": 250,
        "communication": 150,
        "optimizer": 100,
        "idle": 100,  # 100-150, 650-700
        "step": 800,
        "exchange": 250,
    }


def test_a_copy_for_the_batch_is_data_and_two_kernels_at_once_count_once() -> None:
    trace = [
        *marks(0, data=100, forward=200, end=400),
        event("cuda_runtime", "cudaMemcpyAsync", 10, 20, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD", 50, 140, correlation=1),
        *kernel("one", 120, 140, 300),
        *kernel("other stream", 130, 200, 360),
    ]
    found = milliseconds(trace)
    assert (found["data"], found["forward"], found["idle"], found["step"]) == (140, 220, 40, 400)


def test_steps_are_averaged_and_what_lies_between_them_is_idle() -> None:
    trace = [
        *marks(0, data=10, forward=60, end=100),
        *marks(100, data=130, forward=180, end=200),
        event("cpu_op", "aten::conv2d", 10, 60),
        event("cpu_op", "aten::conv2d", 130, 180),
        event("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", 60, 90),
        event("cpu_op", "aten::conv_backward", 62, 88),
        event("user_annotation", "gloo:all_reduce", 80, 95),  # 5 are not hidden
        event("cpu_op", "aten::mul_", 96, 98),
        event("cpu_op", "before", -50, -10),
        event("user_annotation", "hpc_amp::step", 200, 300),  # given up for an evaluation
        event("cpu_op", "evaluation", 210, 290),
        {"ph": "M", "name": "process_name"},
    ]
    assert milliseconds(trace) == {
        "data": 20,
        "forward": 50,
        "backward": 15,
        "communication": 2.5,
        "optimizer": 1,
        "idle": 11.5,  # 95-96, 98-100, 180-200
        "step": 100,
        "exchange": 7.5,
    }


def test_accumulated_parts_and_several_phases() -> None:
    """forward, backward, forward, backward, optimizer: what follows the last gradient of each."""
    gradient = "autograd::engine::evaluate_function: X"
    trace = [
        event("user_annotation", "hpc_amp::step", 0, 100),
        event("user_annotation", "hpc_amp::update", 0, 100),
        event("user_annotation", "hpc_amp::forward", 10, 20),
        event("user_annotation", "hpc_amp::forward", 40, 50),
        event("cpu_op", "zero_grad", 2, 8),
        event("cpu_op", "aten::a", 10, 20),
        event("cpu_op", gradient, 20, 38),
        event("cpu_op", "aten::b", 40, 50),
        event("cpu_op", gradient, 50, 70),
        event("cpu_op", "step", 72, 99),
    ]
    found = milliseconds(trace)
    assert {part: found[part] for part in ("forward", "backward", "optimizer", "idle")} == {
        "forward": 20,
        "backward": 38,
        "optimizer": 33,
        "idle": 9,
    }


def test_a_trace_of_many_steps_takes_no_more_for_each() -> None:
    """Counted, not timed: 50 steps of a real network took minutes, for which all ranks waited."""

    def looked_at(steps: int) -> int:
        trace = []
        for at in range(0, 100 * steps, 100):
            trace += marks(at, data=at + 5, forward=at + 50, end=at + 100)
            trace += [event("cpu_op", "aten::add", t, t + 4) for t in range(at + 5, at + 95, 5)]
            trace += [event("user_annotation", "gloo:all_reduce", at + 80, at + 97)]
        lines = 0

        def count(*_: Any) -> Any:
            nonlocal lines
            lines += 1
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            break_down({"traceEvents": trace})
        finally:
            sys.settrace(before)
        return lines

    assert looked_at(40) < 6 * looked_at(10)


def test_a_trace_without_a_step() -> None:
    with pytest.raises(NoSteps):
        break_down({"traceEvents": [event("cpu_op", "aten::add", 0, 1)]})


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [0, 3]", "[0, 3] is not a first and a last step"),
        ("steps: [5, 4]", "[5, 4] is not a first and a last step"),
        ("steps: [5]", "steps"),
        ("ranks: []", "[] is not a list of ranks"),
        ("ranks: [-1]", "[-1] is not a list of ranks"),
        ("step: [1, 2]", "did you mean steps?"),
    ],
)
def test_bad_settings_name_themselves(text: str, said: str) -> None:
    tree = parse(text, lambda line: f"job.yaml:{line}")
    with pytest.raises(ConfigError) as caught:
        build(Profile, tree)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_a_rank_that_does_not_exist(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, 1)
    train = settings(profile={"ranks": [0, 2]})
    with pytest.raises(SettingError, match=r"train\.profile\.ranks: there is no rank 2"):
        profilers(train, World(size=2), run)
    assert len(profilers(train, World(size=3), run)) == 1
    assert profilers(settings(), World(), run) == ()


# ---- one rank ------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.tracker.close()


def engine(folder: Path, made: list[Engine], attempt: int = 1, **train: Any) -> Engine:
    config = settings(**train)
    run = RunDirectory(folder, attempt)
    run.attempt_path.mkdir(parents=True)
    watch = StopWatch(stop_at=None, stop_file=run.stop_file)
    task = Regression(config, World(), CPU)
    observers = profilers(config, World(), run)
    made.append(Engine(task, config, World(), CPU, run, watch, observers=observers))
    return made[-1]


def test_it_records_what_it_should_and_changes_nothing(
    tmp_path: Path, made: list[Engine], capfd: pytest.CaptureFixture[str]
) -> None:
    plain = engine(tmp_path / "plain", made, accumulate=2)
    plain.fit()
    profiled = engine(tmp_path / "profiled", made, profile={"steps": (4, 8)}, accumulate=2)
    profiled.fit()

    assert weights_digest(profiled.networks) == weights_digest(plain.networks)
    folder = tmp_path / "profiled" / "attempts" / "1" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank-00000.json.gz",
        "summary.json",
        "summary.txt",
    ]
    trace = json.loads(gzip.decompress((folder / "rank-00000.json.gz").read_bytes()))
    names = [one["name"] for one in trace["traceEvents"] if one.get("ph") == "X"]
    # After step 5 an epoch ends, which takes a look for one batch more, and is evaluated, which
    # gives up the step that had begun.
    assert [names.count(f"hpc_amp::{name}") for name in ("step", "update", "data")] == [6, 5, 6]
    assert any(name.startswith("Optimizer.step#") for name in names)
    summary = json.loads((folder / "summary.json").read_text())
    (rank,) = summary["ranks"]
    assert (summary["first_step"], summary["last_step"], rank["steps"]) == (4, 8, 5)
    assert sum(rank["parts"].values()) == pytest.approx(rank["step"])
    for part in ("forward", "backward", "optimizer"):
        assert rank["parts"][part] > 0
    assert rank["parts"]["communication"] == 0
    said = capfd.readouterr()
    text = (folder / "summary.txt").read_text()
    assert [line.split()[0] for line in text.splitlines()[2:9]] == [*PARTS, "step"]
    for line in text.splitlines():
        assert f"] {line}\n" in said.out
    assert "gpuGetDeviceCount" not in said.err
    for owner in (profiled, profiled.data, profiled.task):
        assert not {"train_step", "epoch", "losses"} & vars(owner).keys()


def test_a_training_that_ends_before(
    tmp_path: Path, made: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    short = engine(tmp_path, made, profile={"steps": (9, 12)})
    short.fit()
    assert short.step == 10
    assert "profile: the training ended before step 12\n" in capsys.readouterr().out
    assert not (tmp_path / "attempts" / "1" / "profile").exists()
    assert "train_step" not in vars(short)


def test_a_resume_behind_the_first_step(
    tmp_path: Path, made: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    fit_until(engine(tmp_path, made, profile={"steps": (1, 2)}), 3)
    assert (tmp_path / "attempts" / "1" / "profile" / "summary.json").exists()
    engine(tmp_path, made, attempt=2, profile={"steps": (1, 2)}).fit()
    assert "no profile: step 1 was done before this attempt\n" in capsys.readouterr().out
    assert not (tmp_path / "attempts" / "2" / "profile").exists()


def test_a_disk_that_takes_no_trace_costs_the_trace(
    tmp_path: Path, made: list[Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    full = engine(tmp_path, made, profile={"steps": (2, 3)})
    (full.run.attempt_path / "profile").write_text("in the way")
    full.fit()
    said = capsys.readouterr().out
    assert full.step == 10
    assert "WARNING: profile of rank 0: " in said
    assert "WARNING: the profile's summary cannot be written: " in said


# ---- two ranks -----------------------------------------------------------------------------------

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[2])
from hpc_amp.train import fit, run_program
from support.training import Regression, settings

def main():
    train = settings(device="cpu", profile={"steps": (3, 7), "ranks": json.loads(sys.argv[3])})
    return fit(train, sys.argv[1], task=Regression).exit_status

run_program(main)
"""


@pytest.mark.ranks
def test_two_ranks_share_a_summary(warm: Warm, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ranks = []
    for rank in (0, 1):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        place |= {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        words = ("-c", _PROGRAM, tmp_path / "run", REPOSITORY / "tests", "[0, 1]")
        ranks.append(warm.start(*words, environ=place))
    ended = [rank.wait() for rank in ranks]
    said = [rank.stdout + rank.stderr for rank in ended]

    assert [rank.returncode for rank in ended] == [0, 0], "\n".join(said)
    folder = tmp_path / "run" / "attempts" / "1" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank-00000.json.gz",
        "rank-00001.json.gz",
        "summary.json",
        "summary.txt",
    ]
    summaries = json.loads((folder / "summary.json").read_text())["ranks"]
    assert [summary["rank"] for summary in summaries] == [0, 1]
    for summary in summaries:
        assert summary["steps"] == 5
        assert summary["exchange"] > 0
        assert summary["parts"]["communication"] <= summary["exchange"] + 1e-9
        assert sum(summary["parts"].values()) == pytest.approx(summary["step"])
    assert "rank 0 on" in said[0] and "rank 1 on" in said[0]
    assert "profile" not in said[1]
