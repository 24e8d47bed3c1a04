"""`scale` and `bench` for a user's own program: what is planned, and what its reports are worth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.stubs import StubHost
from support.studies import find_study
from support.waiting import wait_until

from hpc_amp.campaigns.reported import SILENT, read_reported
from hpc_amp.campaigns.timing import RunTiming
from hpc_amp.draft.program import with_value

OPTIONS = {"warmup": 2, "steps": None, "seconds": None}


def read(folder: Path, lines: Iterable[Any], **options: Any) -> tuple[RunTiming, str]:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    (folder / "summary.json").write_text('{"world_size": 8, "nodes": 2}')
    (folder / "job.json").write_text('{"job": {"job": {"gpus_per_node": 4}}}')
    return read_reported(folder, {**OPTIONS, **options})


def steps(
    times: Sequence[float], first: int = 1, every: int = 1, **values: float | str
) -> list[dict[str, Any]]:
    values = values or {"global_batch": 32}
    return [
        {"step": first + every * index, "time": 1e9 + time, **values}
        for index, time in enumerate(times)
    ]


def durations(timing: RunTiming) -> list[float]:
    return [round(seconds, 3) for rank in timing.ranks for seconds in rank.steps]


# ---- reports as measurements ---------------------------------------------------------------------


def test_steps_after_the_warm_up_are_measured(tmp_path: Path) -> None:
    timing, reason = read(tmp_path, steps([0, 5, 6, 7.5, 8.5]))

    assert reason == "" and timing.complete
    assert durations(timing) == [1, 1.5, 1]
    (rank,) = timing.ranks
    assert (rank.world_size, rank.nodes, rank.gpus_per_node, rank.batch_size) == (8, 2, 4, 32)
    assert rank.reported and rank.has_batch and rank.warmup_steps == 2


@pytest.mark.parametrize(
    ("reports", "seen"),
    [
        (steps([0, 9, 10, 11, 12], first=0), [1, 1, 1]),  # counted from 0
        (steps([0, 9, 10, 11, 12], first=501), [1, 1, 1]),  # from a checkpoint
        (steps([0, 20, 60], first=10, every=10), [2, 4]),  # the first 10 are the warm-up
        (steps([0, 900, 1000, 1100], first=0, every=100), [1, 1]),  # the first 100 are
        (steps([0, 990, 1090], every=100), [1]),
        (steps([0, 900, 1000], first=5000, every=100), [1]),  # from a checkpoint
        (  # the second attempt goes on behind the steps of the first one
            [
                *steps([0, 1, 2, 3], attempt="1", global_batch=8),
                *steps([93, 94, 96, 97], first=5, attempt="2", global_batch=8),
            ],
            [2, 1],
        ),
        ([{"time": 1e9 + n, "global_batch": 8} for n in range(5)], [1, 1, 1]),  # without steps
        ([*steps([0, 1, 2, 3]), *steps([50, 51, 52, 54, 56])], [1, 2, 2]),  # a second attempt
        ([*steps([0, 1, 2, 3]), {"time": 1e9 + 3.5, "accuracy": 0.5}, "{cut", "7"], [1, 1]),
        (steps([0, 1, 2, 1.5, 4, 5]), [1, 2.5, 1]),  # the clock was set back
    ],
)
def test_reports_in_other_ways(
    tmp_path: Path, reports: list[dict[str, Any]], seen: list[float]
) -> None:
    timing, _ = read(tmp_path, reports)
    assert durations(timing) == seen


def test_as_many_steps_as_are_wanted(tmp_path: Path) -> None:
    reports = steps([float(n) for n in range(20)])
    assert len(durations(read(tmp_path, reports, steps=5)[0])) == 5
    assert len(durations(read(tmp_path, reports, seconds=3.5)[0])) == 4


def test_a_last_batch_that_is_smaller_is_left_out(tmp_path: Path) -> None:
    reports = steps([0, 1, 2, 3, 4, 4.1])
    reports[-1]["global_batch"] = 3
    assert durations(read(tmp_path, reports)[0]) == [1, 1, 1]


def test_a_throughput_that_the_program_measures(tmp_path: Path) -> None:
    timing, _ = read(tmp_path, steps([0, 1, 2, 3, 4], samples_per_second=50.0))

    (rank,) = timing.ranks
    assert not rank.has_batch
    assert rank.batch_size / timing.step_seconds == pytest.approx(50)


def test_seconds_of_a_program_that_measures_its_throughput(tmp_path: Path) -> None:
    reports = steps([float(n) for n in range(20)], samples_per_second=50.0)
    assert len(durations(read(tmp_path, reports, seconds=3.5)[0])) == 4


def test_steps_between_reports_are_counted(tmp_path: Path) -> None:
    (rank,) = read(tmp_path, steps([0, 20, 60], first=10, every=10))[0].ranks
    assert (len(rank.steps), rank.measured_steps) == (2, 20)


@pytest.mark.parametrize("summary", [None, "{}"])
def test_a_run_without_a_summary_is_not_measured(tmp_path: Path, summary: str | None) -> None:
    read(tmp_path, steps([0, 1, 2, 3, 4]))
    (tmp_path / "summary.json").unlink()
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    timing, reason = read_reported(tmp_path, OPTIONS)
    assert not timing.ranks
    assert "summary.json does not say" in reason


def test_a_report_that_cannot_be_written_is_lost_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpc_amp.distributed import report

    monkeypatch.setattr(report, "_warned", False)
    monkeypatch.setenv("HPC_AMP_RUN_DIR", str(tmp_path / "missing"))
    monkeypatch.delenv("RANK", raising=False)
    report.report(1, loss=1.0)
    report.report(2, loss=1.0)
    assert capsys.readouterr().err.count("a report is lost") == 1


def test_a_report_tells_the_attempt_and_no_curve_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpc_amp.distributed.report import report
    from hpc_amp.jobs.summary import newest_metrics

    monkeypatch.setenv("HPC_AMP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("HPC_AMP_ATTEMPT", "3")
    monkeypatch.delenv("RANK", raising=False)
    report(1, loss=2.0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["attempt"] == "3"
    assert list(newest_metrics(tmp_path)) == [{"loss": 2.0}]


@pytest.mark.filterwarnings("error")
def test_a_loss_that_has_its_graph_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from hpc_amp.distributed.report import report

    monkeypatch.setenv("HPC_AMP_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    loss = (torch.ones(1, requires_grad=True) * 2).sum()
    report(1, loss=loss)
    loss.backward()
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 2.0


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ([], SILENT),
        (steps([0, 1], loss=1.0), SILENT),
        (steps([0, 1, 2], global_batch=float("nan")), SILENT),
        (steps([0, 1]), "it reported 2 steps, and 2 of them are the warm-up"),
    ],
)
def test_why_nothing_is_measured(tmp_path: Path, reports: list[dict[str, Any]], said: str) -> None:
    timing, reason = read(tmp_path, reports)
    assert said in reason
    assert not timing.complete


# ---- what is planned -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words", "overrides"),
    [
        (["--batch-size=8", "-x"], ["--batch-size={batch_size}", "-x"], ["values.batch_size=8"]),
        (["--batch-size", "8"], ["--batch-size", "{batch_size}"], ["values.batch_size=8"]),
        (["--batch", "8"], ["--batch", "8"], []),
        (["--batch-size"], ["--batch-size"], []),
        (
            ["--batch-size=8", "--batch-size", "9"],
            ["--batch-size=8", "--batch-size", "{batch_size}"],
            ["values.batch_size=9"],
        ),
    ],
)
def test_an_argument_becomes_a_value(
    given: list[str], words: list[str], overrides: list[str]
) -> None:
    assert with_value(given, "batch_size") == (words, overrides)


def planned(host: StubHost, *words: str) -> dict[str, list[str]]:
    """The command of each run of a study, with its name."""
    (host.work / "fit.py").write_text("from hpc_amp import report\n")
    options = ["--repeats=1", "--yes", "--gpus=4", "site=slurm"]
    result = host.hpc_amp("scale", "fit.py", *options, *words)
    assert result.returncode == 0, result.stderr
    study = find_study("fit", host.work / "studies")
    lines = (study.folder / "jobs.jsonl").read_text().splitlines()
    jobs = [json.loads(line)["job"] for line in lines]
    assert all(job["job"]["max_restarts"] == 0 for job in jobs)
    return {run.label: jobs[study.point(run)]["run"][2:] for run in study.planned_runs()}


def test_a_program_has_the_same_arguments_on_all_nodes(host: StubHost) -> None:
    seen = planned(host, "-N", "1,2", "--", "--batch=8")
    assert seen == {"weak-n0001-r01": ["--batch=8"], "weak-n0002-r01": ["--batch=8"]}


def test_the_batch_of_a_rank_is_divided(host: StubHost) -> None:
    seen = planned(host, "--nodes=1,2,4", "--kind=both", "--rank-batch=batch", "--", "--batch", "8")
    assert {name: words[1] for name, words in seen.items()} == {
        "strong-n0001-r01": "8", "strong-n0002-r01": "4", "strong-n0004-r01": "2",
        "weak-n0001-r01": "8", "weak-n0002-r01": "8", "weak-n0004-r01": "8",
    }  # fmt: skip


def test_the_batch_of_all_ranks_grows(host: StubHost) -> None:
    seen = planned(host, "--nodes=1,2", "--kind=both", "--global-batch=--batch", "--", "--batch=32")
    assert {name: words[0] for name, words in seen.items()} == {
        "strong-n0001-r01": "--batch=32", "strong-n0002-r01": "--batch=32",
        "weak-n0001-r01": "--batch=32", "weak-n0002-r01": "--batch=64",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank-batch=batch", "--", "--batch=6"], "divides the batch of 24 samples"),
        (["--global-batch=batch", "--", "--batch=6"], "the batch 6 of batch is not divisible by 4"),
        (["--rank-batch=batch", "--", "--batch=many"], "values.batch is 'many', which is no batch"),
        (["--evaluate"], "--evaluate and --checkpoints are for tasks"),
        (["--rank-batch=a", "--global-batch=b"], "either --rank-batch or --global-batch"),
    ],
)
def test_batches_that_do_not_fit(host: StubHost, words: list[str], said: str) -> None:
    (host.work / "fit.py").write_text("")
    result = host.hpc_amp("scale", "fit.py", "--nodes=1,5", "--gpus=4", "site=slurm", *words)
    assert (result.returncode, said in result.stderr) == (2, True), result.stderr
    assert not (host.work / "studies").exists()


# ---- from the program to the report --------------------------------------------------------------

PROGRAM = """import sys, time
from hpc_amp import report
pause = float(sys.argv[1].partition("=")[2])
for step in range(1, 31):
    time.sleep(pause)
    report(step, total_steps=30, global_batch=64, loss=1 / step)
"""
LOCAL = ("--gpus=0", "site=local", "launch.preflight=false")


def test_a_program_is_compared_with_itself(host: StubHost) -> None:
    (host.work / "fit.py").write_text(PROGRAM)
    shown = host.hpc_amp(
        "bench", "fit.py", *LOCAL, "--repeats=1", "--warmup=5", "--json", "--",
        "--pause=0.02,0.002",
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    plain = json.loads(shown.stdout)
    slow, fast = plain["settings"]
    assert (slow["setting"], fast["setting"]) == ("pause=0.02", "pause=0.002")
    assert slow["step_seconds"] >= 0.02 and fast["step_seconds"] >= 0.002
    assert slow["samples_per_second"] == pytest.approx(64 / slow["step_seconds"])
    assert slow["metrics"] == {"loss": pytest.approx(1 / 30)}
    assert slow["data_wait"] is None
    text = host.hpc_amp("bench", "report", "fit").stdout
    assert "own program, batch of 64 on 1 rank, throughput as rank 0 reports it" in text
    assert "5 steps of warm-up, 25 reports measured" in text
    run = host.hpc_amp("status", slow["runs"][0]["run_dir"]).stdout
    assert "step 30" in run


def test_a_study_of_a_program(host: StubHost) -> None:
    (host.work / "fit.py").write_text(PROGRAM)
    started = host.hpc_amp(
        "scale", "fit.py", "--nodes=1", *LOCAL, "--repeats=1", "--warmup=5", "--", "--pause=0.01"
    )
    assert started.returncode == 0, started.stdout + started.stderr
    wait_until(lambda: "1 measured" in host.hpc_amp("scale", "status", "fit").stdout, "the run")
    text = host.hpc_amp("scale", "report", "fit").stdout
    assert "own program, throughput as rank 0 reports it" in text
    assert "where a step's time goes" not in text
    (study,) = json.loads(host.hpc_amp("scale", "report", "fit", "--json").stdout)["studies"]
    (point,) = study["curves"][0]["points"]
    assert point["batch_size"] == 64 and point["step_seconds"] >= 0.01
    assert point["shares"] == {"compute": None, "communication": None, "data_wait": None}


def test_a_program_that_reports_nothing_is_told_what_to_add(host: StubHost) -> None:
    (host.work / "quiet.py").write_text("print('done')\n")
    shown = host.hpc_amp("bench", "quiet.py", *LOCAL, "--repeats=1")
    assert shown.returncode == 1
    assert "note: quiet.py does not import hpc_amp." in shown.stderr
    assert "silent: it reported no throughput" in shown.stdout
    for line in (
        "from hpc_amp import report",
        "report(step, global_batch=len(batch) * world_size)",
    ):
        assert line in shown.stdout and line in shown.stderr


def test_a_program_that_measures_itself(host: StubHost) -> None:
    """Without its batch, the time of a step is not known."""
    (host.work / "fit.py").write_text(
        "from hpc_amp import report\nfor step in range(1, 31):\n"
        "    report(step, samples_per_second=500)\n"
    )
    shown = host.hpc_amp("bench", "fit.py", *LOCAL, "--repeats=1", "--json")
    (row,) = json.loads(shown.stdout)["settings"]
    assert row["samples_per_second"] == pytest.approx(500)
    assert row["step_seconds"] is None and row["runs"][0]["step_seconds"] is None
    assert "run 0 (as given) measured" in shown.stderr
    assert " ms a step" not in shown.stderr
    summary = host.hpc_amp("compare", *[row["runs"][0]["run_dir"]] * 2, "--json").stdout
    assert json.loads(summary)["results"]["samples_per_second"] == [500, 500]


def test_a_program_has_no_precisions_of_ours(host: StubHost) -> None:
    (host.work / "fit.py").write_text(PROGRAM)
    refused = host.hpc_amp("bench", "fit.py", *LOCAL, "--precisions=fp32")
    assert refused.returncode == 2
    assert "vary an argument of the program" in refused.stderr
