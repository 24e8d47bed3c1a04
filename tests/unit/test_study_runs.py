"""Studies that are half done, and files that are damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.studies import (
    find_study,
    make_study,
    measure,
    rank_file,
    read_study,
    submit_run,
    write_timing,
)

from hpc_amp.campaigns.timing import DamagedTiming, read_allreduce, read_rank
from hpc_amp.errors import UsageError
from hpc_amp.study.analysis import analyse
from hpc_amp.study.runs import StudyRun, read_runs
from hpc_amp.study.text import to_text


def runs_of(study: Path) -> dict[str, StudyRun]:
    return {run.planned.label: run for run in read_runs(read_study(study))}


def test_every_state_of_a_run(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2), repeats=4)
    measure(study, "strong", 1, 1, 0.1)
    submit_run(study, "strong", 1, 2, state="failed")
    submit_run(study, "strong", 1, 3)
    shutil.rmtree(submit_run(study, "strong", 1, 4))
    write_timing(
        submit_run(study, "strong", 2, 1), [rank_file(rank, 2, [0.05] * 30) for rank in (0, 3, 7)]
    )
    submit_run(study, "strong", 2, 2, state="cancelled")
    runs = runs_of(study)
    assert {name: (run.state, run.reason) for name, run in runs.items()} == {
        "strong-n0001-r01": ("measured", ""),
        "strong-n0001-r02": ("failed", "out of memory"),
        "strong-n0001-r03": ("silent", "it wrote no measurements"),
        "strong-n0001-r04": ("missing", "it was not submitted"),
        "strong-n0002-r01": ("partial", "3 of 8 ranks wrote their times"),
        "strong-n0002-r02": ("cancelled", ""),
        "strong-n0002-r03": ("missing", "it was not submitted"),
        "strong-n0002-r04": ("missing", "it was not submitted"),
    }
    analysis = analyse(read_study(study))
    (curve,) = analysis.curves
    assert [(s.point.nodes, len(s.point.runs)) for s in curve.points] == [(1, 1), (2, 1)]
    assert curve.points[1].efficiency == pytest.approx(1)


@pytest.mark.parametrize("state", ["cancelled", "failed", "checkpointed"])
def test_a_run_that_was_ended_early_is_no_point(tmp_path: Path, state: str) -> None:
    """It leaves what its ranks had measured until then; `scale status` does not call it measured
    either."""
    study = make_study(tmp_path, nodes=(1, 2), repeats=1)
    measure(study, "strong", 1, 1, 0.1)
    timing = measure(study, "strong", 2, 1, 0.05)
    event = {"time": 1, "state": state, "reason": ""}
    (timing.parents[2] / "state.jsonl").write_text(json.dumps(event) + "\n")
    (timing / "allreduce.json").write_text(
        json.dumps({"bytes": 44_700_000, "seconds": [0.004], "world_size": 8, "nodes": 2})
    )
    run = runs_of(study)["strong-n0002-r01"]
    assert (run.state, run.ranks, run.allreduce) == (state, (), None)
    analysis = analyse(read_study(study))
    assert [s.point.nodes for s in analysis.curves[0].points] == [1]
    assert "1 of 2 runs measured" in to_text([analysis])


def test_reasons_cannot_move_a_cursor(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    run_dir = submit_run(study, "strong", 1, 1)
    event = {"time": 1, "state": "failed", "reason": "killed\n\x1b[2Jby\ttest"}
    (run_dir / "state.jsonl").write_text(json.dumps(event) + "\n")
    text = to_text([analyse(read_study(study))])
    assert "killed [2Jby test" in text
    assert "\x1b" not in text


def test_a_study_of_nothing_has_no_curve(tmp_path: Path) -> None:
    analysis = analyse(read_study(make_study(tmp_path, kind="both")))
    assert analysis.curves == ()
    assert len(analysis.unmeasured) == 24


def test_the_newest_complete_attempt_counts(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    run_dir = submit_run(study, "strong", 1, 1)
    for attempt, ranks, seconds in ((1, 4, 1.0), (2, 4, 2.0), (10, 3, 3.0)):
        files = [rank_file(rank, 1, [seconds] * 30) for rank in range(ranks)]
        write_timing(run_dir, files, attempt=attempt)
    (run,) = runs_of(study).values()
    assert (run.state, run.ranks[0].steps[0]) == ("measured", 2.0)


@pytest.mark.parametrize("ranks", [4, 3])
def test_damage_in_a_newer_attempt_is_told(tmp_path: Path, ranks: int) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    run_dir = submit_run(study, "strong", 1, 1)
    write_timing(run_dir, [rank_file(rank, 1, [0.1] * 30) for rank in range(ranks)])
    damaged = write_timing(run_dir, [], attempt=2) / "rank-00000.json"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_text("{")

    analysis = analyse(read_study(study))

    assert len(analysis.runs[0].ranks) == ranks
    (told,) = [caveat.text for caveat in analysis.caveats if caveat.topic == "damaged"]
    assert told == f"1 file cannot be used; the first one: {damaged}: it is not JSON"


NAN, INFINITY = float("nan"), float("inf")
GOOD = rank_file(0, 1, [0.1, 0.2], gpus_per_node=1)


def changed(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON"),
        (changed()[:-40], "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ("{}", "steps is not a list with durations"),
        (changed(steps=[]), "steps is not a list with durations"),
        (changed(steps=[0.1, 0.0]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, -1]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, NAN]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, INFINITY]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, True]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, 10**400]), "steps contains a value that is not a duration above 0"),
        (changed(steps=[0.1, 1e-320]), "steps contains a value that is not a duration above 0"),
        (changed(data_wait=[0.1]), "data_wait is not a list with one number for each of 2 steps"),
        (changed(data_wait=[0, None]), "data_wait contains a value that is not a duration"),
        (
            changed(communication=[0]),
            "communication is not a list with one number for each of 2 steps",
        ),
        (changed(communication=["a", 0]), "communication contains a value that is not a duration"),
        (changed(rank=True), "rank is not a whole number of at least 0"),
        (changed(rank=1), "rank 1 does not exist in a run of 1 ranks"),
        (changed(batch_size=0), "batch_size is not a whole number of at least 1"),
        (changed(batch_size=10**400), "batch_size is too large"),
        (changed(gpus_per_node=1.5), "gpus_per_node is not a whole number of at least 0"),
        (changed(host="a\nb"), "host is not a printable text"),
        (changed(device="\x1b[31m"), "device is not a printable text"),
        (changed(torch=2.6), "torch is not a printable text"),
    ],
)  # fmt: skip
def test_damaged_rank_files_say_why(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "rank-00000.json"
    path.write_text(text)
    with pytest.raises(DamagedTiming) as caught:
        read_rank(path)
    assert str(caught.value) == reason


@pytest.mark.parametrize("key", sorted(set(GOOD) - {"gpus_per_node", "communication"}))
def test_a_rank_file_without_a_key_is_damaged(tmp_path: Path, key: str) -> None:
    path = tmp_path / "rank-00000.json"
    path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != key}))
    with pytest.raises(DamagedTiming, match=key):
        read_rank(path)


def test_a_rank_file_may_have_more_or_leave_out_what_is_optional(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.json"
    plain = {**GOOD, "new": [1], "communication": None}
    del plain["gpus_per_node"]
    path.write_text(json.dumps(plain))
    rank = read_rank(path)
    assert (rank.gpus_per_node, rank.communication, rank.steps) == (None, None, (0.1, 0.2))


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"bytes": 0, "seconds": [1], "world_size": 1, "nodes": 1}',
     '{"bytes": 1, "seconds": [], "world_size": 1, "nodes": 1}', b"\xff\xfe".decode("latin-1")],
)  # fmt: skip
def test_damaged_all_reduces(tmp_path: Path, text: str) -> None:
    path = tmp_path / "allreduce.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedTiming):
        read_allreduce(path)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 400), byte=st.integers(0, 255), at=st.integers(0, 400))
def test_no_damage_to_a_file_ends_a_report(
    tmp_path_factory: pytest.TempPathFactory, cut: int, byte: int, at: int
) -> None:
    """One rank of four has a file that is cut off and has a wrong byte."""
    study = make_study(tmp_path_factory.mktemp("damage"), nodes=(1,), repeats=1)
    timing = measure(study, "strong", 1, 1, 0.1)
    path = timing / "rank-00002.json"
    content = bytearray(path.read_bytes())
    content[at] = byte
    path.write_bytes(content[: len(content) - cut])
    analysis = analyse(read_study(study))
    (run,) = analysis.runs
    if len(run.ranks) == 4:
        assert run.state == "measured"
    else:
        assert (run.state, run.reason) == ("partial", "3 of 4 ranks wrote their times")
        assert len(run.damaged) == 1
        assert {caveat.topic for caveat in analysis.caveats} >= {"incomplete", "damaged"}


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    timing = measure(study, "strong", 1, 1, 0.1)
    (timing / "rank-00001.json").write_text(json.dumps(rank_file(1, 2, [0.1] * 30)))
    (timing / "rank-00003.json").write_text(json.dumps(rank_file(2, 1, [0.1] * 30)))
    (run,) = runs_of(study).values()
    assert (run.state, run.reason) == ("partial", "2 of 4 ranks wrote their times")
    assert run.damaged == (
        f"{timing / 'rank-00001.json'}: world_size is 8, and rank 0 says 4",
        f"{timing / 'rank-00003.json'}: it is the file of rank 2",
    )


def test_a_study_is_found_by_folder_and_by_name(tmp_path: Path) -> None:
    old = make_study(tmp_path, study_id="20261127-223455-aaaa")
    new = make_study(tmp_path, study_id="20261128-000000-aaaa")
    studies = tmp_path / "studies"
    assert find_study(str(old), studies).folder == old
    assert find_study("cifar", studies).folder == new
    assert find_study("cifar", studies).id == "20261128-000000-aaaa"
    for name in ("nope", "", "a" * 5000, "\0", str(tmp_path)):
        with pytest.raises(UsageError, match="there is no study"):
            find_study(name, studies)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ["odd"]}, "kinds or nodes are wrong"),
        ({"kinds": 1}, "not iterable"),
        ({"nodes": [0]}, "kinds or nodes are wrong"),
        ({"nodes": []}, "kinds or nodes are wrong"),
        ({"nodes": 4}, "not iterable"),
        ({"settings": {}}, "'strong' is missing"),
        ({"settings": {"strong": [0]}}, "settings do not fit its points"),
        ({"settings": {"strong": [0, 9]}}, "settings do not fit its points"),
    ],
)
def test_a_damaged_study_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = make_study(tmp_path, nodes=(1, 2), repeats=1)
    path = folder / "campaign.json"
    content = json.loads(path.read_text())
    content["options"] |= changes
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError) as caught:
        read_study(folder)
    assert str(caught.value).startswith(f"{path} does not describe a study: ")
    assert message in str(caught.value)
