"""`hpc-amp bench`: what follows from the runs, and how it is shown."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import ID, group, make_campaign
from support.rank_times import rank_file
from support.stubs import StubHost
from support.studies import write_timing

from hpc_amp.bench.comparison import Comparison, compare
from hpc_amp.bench.plan import MODE
from hpc_amp.bench.report import to_json, to_text, write_report
from hpc_amp.bench.sentences import CPU
from hpc_amp.bench.view import BENCH
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.files import finite

A100 = {
    "device_type": "cuda",
    "channels_last": True,
    "task": "classification",
    "model": "resnet50",
    "environment": {"torch": "2.6.0", "cuda": "12.4", "cudnn": 90100, "python": "3.11.7"},
}


def make_bench(
    folder: Path, precisions: Sequence[str], repeats: int = 3, gpus: bool = True
) -> Campaign:
    """A benchmark whose runs were submitted and measured nothing yet."""
    bench = make_campaign(
        folder / "benches" / "small" / ID, [MODE], [(name,) for name in precisions],
        name="small", view="bench", repeats=repeats, resumes=False, submitting="one job",
        groups=(group(*range(repeats * len(precisions)), gpus=4 if gpus else 0),),
        options={"warmup": 20, "steps": 30},
    )  # fmt: skip
    for point in bench.points:
        run_dir = bench.point_dir(point.index)
        run_dir.mkdir(parents=True)
        (run_dir / "job.json").write_text(json.dumps({"scheduler": "local", "job": {}}))
    return bench


def run_dir_of(bench: Campaign, precision: str, repeat: int) -> Path:
    (index,) = (p.index for p in bench.points if (p.values, p.repeat) == ((precision,), repeat))
    return bench.point_dir(index)


def ended(run_dir: Path, state: str, reason: str = "") -> None:
    event = {"time": 1, "state": state, "attempt": 1, "reason": reason}
    (run_dir / "state.jsonl").write_text(json.dumps(event) + "\n")


def measure(
    bench: Campaign, precision: str, repeat: int, steps: float | list[float], **changes: Any
) -> Path:
    """A finished run on four GPUs, whose steps took so long."""
    run_dir = run_dir_of(bench, precision, repeat)
    ended(run_dir, "finished")
    facts = {**A100, "precision": precision, "tf32": {"matmul": False, "convolution": False}}
    facts |= {"peak_memory_bytes": 2**30, **changes}
    seconds = steps if isinstance(steps, list) else [steps] * 30
    write_timing(run_dir, [rank_file(rank, 1, seconds, **facts) for rank in range(4)])
    metrics = {"accuracy": 0.5, "loss": 1.5}
    summary = {"metrics": metrics, "skipped_steps": 0, "synthetic": False}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def compared(bench: Campaign) -> Comparison:
    return compare(bench, BENCH.statuses(bench))


def test_figures_are_medians_over_steps_ranks_and_runs(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32"])
    for repeat, seconds in enumerate(([0.1] * 29 + [9.0], [0.3] * 30, [0.2] * 30), 1):
        measure(bench, "fp32", repeat, seconds)
    (row,) = compared(bench).rows
    assert row.step_seconds == 0.2
    assert row.run_spread == (0.1, 0.3)
    assert row.step_spread == (0.1, pytest.approx(0.3))
    assert row.samples_per_second == pytest.approx(512 / 0.2)
    assert (row.metrics, row.skipped_steps) == ({"accuracy": 0.5, "loss": 1.5}, 0)
    assert row.peak_memory == 2**30
    assert row.data_wait == pytest.approx(0.02)
    assert row.communication == pytest.approx(0.08)


def test_a_speedup_is_that_of_runs_in_one_round(tmp_path: Path) -> None:
    """The machine became slower and slower; both precisions met it alike."""
    bench = make_bench(tmp_path, ["fp32", "fp16"])
    for repeat, slowness in enumerate((1, 3, 10), 1):
        measure(bench, "fp32", repeat, 0.4 * slowness)
        measure(bench, "fp16", repeat, 0.2 * slowness)
    fp32, fp16 = compared(bench).rows
    assert (fp32.speedup, fp32.speedup_spread) == (1.0, (1.0, 1.0))
    assert fp16.speedup == pytest.approx(2.0)
    assert fp16.speedup_spread == (pytest.approx(2.0), pytest.approx(2.0))


def test_without_a_common_round_there_is_no_speedup(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32", "fp16"], repeats=2)
    measure(bench, "fp32", 1, 0.4)
    measure(bench, "fp16", 2, 0.2)
    ended(run_dir_of(bench, "fp32", 2), "failed", "out of memory")
    ended(run_dir_of(bench, "fp16", 1), "failed")
    comparison = compared(bench)
    assert [row.speedup for row in comparison.rows] == [1.0, None]
    text = to_text(comparison)
    assert "fp32: 1 run not measured (failed: out of memory)" in text
    assert "fp16: 1 run not measured (failed)" in text


def test_the_first_precision_that_is_measured_is_the_reference(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["tf32", "fp32", "bf16"], repeats=1)
    ended(run_dir_of(bench, "tf32", 1), "failed", "precision tf32 is a mode of NVIDIA GPUs")
    measure(bench, "fp32", 1, 0.2)
    measure(bench, "bf16", 1, 0.1)
    rows = compared(bench).rows
    assert [(row.label, row.speedup) for row in rows] == [("fp32", 1.0), ("bf16", 2.0)]


def test_a_finished_run_without_all_of_its_files_is_damaged(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32", "bf16", "fp16"], repeats=1)
    ended(run_dir_of(bench, "fp32", 1), "finished")
    lost = measure(bench, "bf16", 1, 0.1)
    (lost / "attempts" / "1" / "timing" / "rank-00002.json").unlink()
    torn = measure(bench, "fp16", 1, 0.1)
    (torn / "attempts" / "1" / "timing" / "rank-00000.json").write_text("{")
    statuses = BENCH.statuses(bench)
    assert [status.state for status in statuses] == ["silent", "partial", "partial"]
    assert [status.reason for status in statuses] == [
        "it wrote no measurements",
        "3 of 4 ranks wrote their times",
        "3 of 4 ranks wrote their times",
    ]


# -- words -----------------------------------------------------------------------------------------


def test_the_table_says_what_it_was_measured_with(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32", "fp16"])
    for repeat in (1, 2, 3):
        measure(bench, "fp32", repeat, 0.4)
        measure(bench, "fp16", repeat, 0.1, tf32={"matmul": True, "convolution": True})
    text = to_text(compared(bench))
    assert "classification: resnet50 on synthetic, batch of 512 on 4 ranks" in text
    assert "20 steps of warm-up, 30 steps measured, 3 repeats" in text
    assert "NVIDIA A100-SXM4-40GB, host n1" in text
    assert "torch 2.6.0, CUDA 12.4, cuDNN 90100, Python 3.11.7" in text
    assert "channels-last (NHWC); TF32 off in fp32, on in fp16" in text
    (row,) = (line for line in text.splitlines() if line.startswith("fp16"))
    assert row.split() == [
        "fp16", "3/3", "100", "100-100", "5,120", "4.00", "1,024", "0.5000", "1.5000", "0",
    ]  # fmt: skip
    assert "warnings" not in text


def test_on_a_cpu_it_says_that_speed_means_nothing_there(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32"], gpus=False)
    assert CPU in to_text(compared(bench)), "whatever is measured"
    for repeat in (1, 2, 3):
        measure(bench, "fp32", repeat, 0.4, device_type="cpu", tf32=None)
    comparison = compared(bench)
    assert CPU in to_text(comparison)
    assert json.loads(to_json(comparison))["speed_says_nothing_for_gpus"] is True
    gpu = make_bench(tmp_path / "gpu", ["fp32"])
    measure(gpu, "fp32", 1, 0.4)
    assert CPU not in to_text(compared(gpu))


def test_doubtful_figures_are_doubted(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32", "bf16"], repeats=1)
    run_dir = measure(bench, "fp32", 1, 0.4, data_wait=[0.2] * 30)
    (run_dir / "summary.json").write_text(json.dumps({"synthetic": True}))
    measure(bench, "bf16", 1, [0.4] * 12, data_wait=[0.0] * 12, communication=None,
            device="another", channels_last=False)  # fmt: skip
    text = to_text(compared(bench))
    assert "not the same hardware in all runs: NVIDIA A100-SXM4-40GB and another" in text
    assert "memory order differs between runs" in text
    assert "only 1 repeat, so the scatter of runs is not well known" in text
    assert "steps wait for data (50 % in fp32)" in text
    assert "synthetic data" in text
    assert "1 run with fewer measured steps than planned" in text


def test_json_has_every_run(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, ["fp32", "fp16"], repeats=2)
    measure(bench, "fp32", 1, 0.4)
    measure(bench, "fp32", 2, 0.2)
    measure(bench, "fp16", 1, 0.1, tf32={"matmul": True, "convolution": False})
    ended(run_dir_of(bench, "fp16", 2), "failed", "out of memory")
    content = json.loads(to_json(compared(bench)))
    fp32, fp16 = content["settings"]
    assert [run["step_seconds"] for run in fp32["runs"]] == [0.4, 0.2]
    assert fp16["tf32"] == {"matmul": True, "convolution": False}
    assert content["conditions"]["device"] == "NVIDIA A100-SXM4-40GB"
    assert content["conditions"]["environment"]["cudnn"] == 90100
    (missing,) = content["not_measured"]
    assert (missing["setting"], missing["repeat"], missing["reason"]) == (
        "fp16", 2, "out of memory",
    )  # fmt: skip


def test_the_report_has_a_picture_that_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench = make_bench(tmp_path, ["fp32", "fp16"], repeats=1)
    measure(bench, "fp32", 1, 0.4)
    measure(bench, "fp16", 1, 0.1, peak_memory_bytes=2**29)
    comparison = compared(bench)
    written = write_report(comparison, tmp_path / "a")
    assert written.names == ("bench.txt", "bench.json", "bench.png", "bench.svg", "bench.pdf")
    assert (tmp_path / "a" / "bench.png").read_bytes().startswith(b"\x89PNG")
    write_report(comparison, tmp_path / "b")
    for name in written.names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    empty = make_bench(tmp_path / "empty", ["fp32"], repeats=1)
    ended(run_dir_of(empty, "fp32", 1), "failed")
    assert write_report(compared(empty), tmp_path / "c").names == ("bench.txt", "bench.json")


# -- the command -----------------------------------------------------------------------------------


def test_a_job_is_measured_here_in_each_precision(host: StubHost, warm_python: Path) -> None:
    """Real runs, a precision that cannot be had among them: the others are measured all the same,
    and the status tells."""
    host.write_job(
        {
            "name": "small",
            "site": "slurm",
            "job": {"gpus_per_node": 0},
            "container": {"python": str(warm_python)},
            "train": {
                "model": "fc",
                "batch_size": 32,
                "device": "cpu",
                "data": {"name": "synthetic", "synthetic": {"train": 64, "test": 32}},
            },
        }
    )
    ended = host.hpc_amp(
        "bench", "job.yaml", "--yes", "--precisions", "fp32,tf32", "--steps", "4", "--warmup", "2",
        "--repeats", "2", "--json",
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    content = json.loads(ended.stdout)
    (row,) = content["settings"]
    assert (row["setting"], len(row["runs"]), row["skipped_steps"]) == ("fp32", 2, 0)
    assert len({run["metrics"]["loss"] for run in row["runs"]}) == 1, "the same job"
    assert [entry["reason"] for entry in content["not_measured"]] == [
        "precision tf32 is a mode of NVIDIA GPUs; on a CPU use fp32",
        "not tried: a run with the same settings failed before",
    ]
    assert content["conditions"]["device_type"] == "cpu"
    assert content["speed_says_nothing_for_gpus"] is True
    assert "(train.precision.mode=fp32, repeat 2) " in ended.stderr

    again = host.hpc_amp("bench", "report", "small")
    assert again.returncode == 1
    assert CPU in again.stdout
    assert "fp32        2/2" in again.stdout
    # As the benchmark of somebody else: it is shown, though no file can be written.
    refused = host.hpc_amp("bench", "report", "small", "--out", "job.yaml")
    assert refused.returncode == 2
    assert "fp32        2/2" in refused.stdout
    assert "; choose another folder (for a report: --out)" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "report", "none"], "there is no benchmark 'none'"),
        (["bench", "job.yaml", "--precisions", "fp32,"], "--precisions needs names"),
        (["bench", "job.yaml", "--precisions", "fp61"], "'fp61' is not one of"),
        (["bench", "other.yaml"], "other.yaml: there is no such job file"),
    ],
)
def test_bad_input_is_one_line(host: StubHost, words: list[str], said: str) -> None:
    host.write_job({"name": "x", "site": "local", "train": {}, "job": {"gpus_per_node": 0}})
    ended = host.hpc_amp(*words)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("hpc-amp: ")
    assert said in line


def test_a_signal_ends_it_and_shows_what_is_measured(host: StubHost, warm_python: Path) -> None:
    data = {"name": "synthetic", "synthetic": {"train": 64, "test": 32}}
    train = {"model": "fc", "batch_size": 32, "device": "cpu", "data": data}
    container = {"python": str(warm_python)}
    config = {"name": "x", "job": {"gpus_per_node": 0}, "container": container, "train": train}
    host.write_job({**config, "site": "local"})
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "bench", "job.yaml", "--precisions", "fp32",
         "--repeats", "5", "--steps", "2", "--warmup", "1"],
        cwd=host.work, env=host.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "=fp32, repeat 1) " in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "ending the current run" in err
    assert re.search(r"^fp32 +[1-4]/5 ", out, re.MULTILINE)
    before = json.loads(host.hpc_amp("bench", "status", "x", "--json").stdout)["points"]
    measured = [point["run_dir"] for point in before if point["state"] == "measured"]
    assert 1 <= len(measured) <= 4
    (_, hpc_amp, *words) = shlex.split(err.splitlines()[-1].replace("stopped; to continue:", "_"))
    assert (hpc_amp, words[:2]) == ("hpc-amp", ["bench", "continue"])
    again = host.hpc_amp(*words)
    assert again.returncode == 0, again.stderr
    assert "fp32        5/5" in again.stdout
    after = json.loads(host.hpc_amp("bench", "status", "x", "--json").stdout)["points"]
    assert [point["state"] for point in after] == ["measured"] * 5
    assert [point["run_dir"] for point in after][: len(measured)] == measured
    assert "all runs are measured" in host.hpc_amp("bench", "continue", "x").stdout
    assert "not measured" in out


def test_a_benchmark_can_be_left_to_the_scheduler(host: StubHost) -> None:
    host.write_job({"name": "x", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})
    ended = host.hpc_amp("bench", "job.yaml", "--submit", "--json", "--repeats", "1",
        "--precisions=fp32,tf32,bf16,fp16",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert len(host.calls("sbatch")) == 1
    folder = Path(said["folder"])
    assert (folder / "array-1.sh").is_file()

    waits = host.hpc_amp("bench", "status", "x")
    assert waits.stdout.splitlines()[0].endswith(" runs: 4 pending")
    twice = host.hpc_amp("bench", "continue", "x")
    assert twice.returncode == 0
    assert "4 runs are under way; there is nothing to continue" in twice.stdout
    cancelled = host.hpc_amp("bench", "cancel", "x")
    assert cancelled.stdout.startswith("cancelled 4 runs of ")
    assert [call[-1] for call in host.calls("scancel")] == said["job_ids"]

    (host.state / "queue").write_text("")
    again = host.hpc_amp("bench", "continue", "x")
    assert again.returncode == 0, again.stderr
    assert len(host.calls("sbatch")) == 2
    assert (folder / "array-2.sh").read_text().count("\nrun ") == 4


def test_a_benchmark_that_is_refused_once_more_keeps_what_it_has(host: StubHost) -> None:
    host.write_job({"name": "x", "site": "slurm", "train": {}, "job": {"gpus_per_node": 0}})
    host.hpc_amp("bench", "job.yaml", "--submit", "--precisions=fp32", "--repeats=1")
    host.hpc_amp("bench", "cancel", "x")
    host.before("sbatch", "echo 'sbatch: error: no' >&2; exit 1\n")

    refused = host.hpc_amp("bench", "continue", "x")

    assert refused.returncode == 1
    assert "sbatch: error: no" in refused.stderr
    (line,) = host.hpc_amp("bench", "status", "x").stdout.splitlines()[2:]
    assert "cancelled" in line, "it is what it was"


def test_a_folder_of_an_older_version_is_one_line(host: StubHost) -> None:
    folder = host.work / "benches" / "x" / "20261127-223455-kqzf"
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text("{}")
    for verb in ("status", "report", "continue", "cancel"):
        ended = host.hpc_amp("bench", verb, "x")
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert "made by an older hpc-amp, and this one does not read bench.json" in line


# -- further keys ----------------------------------------------------------------------------------


def test_settings_differ_in_any_key_and_speedups_count_samples(tmp_path: Path) -> None:
    bench = make_campaign(
        tmp_path / "benches" / "small" / ID, [MODE, "train.batch_size"],
        [("fp32", "32"), ("fp32", "64"), ("bf16", None)],
        name="small", view="bench", resumes=False, options={"warmup": 20, "steps": 30},
    )  # fmt: skip
    for index, (seconds, batch) in enumerate(((0.1, 32), (0.1, 64), (0.05, 32))):
        run_dir = bench.point_dir(index)
        run_dir.mkdir(parents=True)
        (run_dir / "job.json").write_text(json.dumps({"scheduler": "local", "job": {}}))
        ended(run_dir, "finished")
        write_timing(run_dir, [rank_file(r, 1, [seconds] * 30, batch_size=batch) for r in range(4)])
    comparison = compared(bench)
    assert [(row.label, row.speedup) for row in comparison.rows] == [
        ("fp32 batch_size=32", 1.0),
        ("fp32 batch_size=64", 2.0),
        ("bf16", 2.0),
    ]
    text = to_text(comparison)
    head, *rows = (line.split() for line in text.splitlines() if "/1" in line or "middle" in line)
    assert head[:2] == ["precision", "batch_size"]
    assert [row[:2] for row in rows] == [["fp32", "32"], ["fp32", "64"], ["bf16", "-"]]
    assert "not the same batch" not in text


def test_numbers_that_json_does_not_have_are_null() -> None:
    content = {"a": float("nan"), "b": [1.5, float("inf")], "c": "x"}
    assert finite(content) == {"a": None, "b": [1.5, None], "c": "x"}
