"""What a report warns about, and that it does not where there is no reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.studies import (
    make_study,
    measure,
    rank_file,
    read_study,
    run_dir_of,
    share,
    submit_run,
    write_timing,
)

from hpc_amp.study.analysis import analyse

Change = Callable[[Path], object]


def good_study(
    parent: Path, *, kind: str = "strong", repeats: int = 3, more: tuple[int, ...] = ()
) -> Path:
    """Complete, on 1, 2 and 4 nodes, with 2 % of a step serial. `more` nodes are not measured."""
    study = make_study(parent, kind=kind, nodes=(1, 2, 4, *more), repeats=repeats)
    for nodes in (1, 2, 4):
        for repeat in range(1, repeats + 1):
            seconds = 0.1 * (0.02 + 0.98 / nodes) if kind == "strong" else 0.1 + 0.001 * nodes
            measure(study, kind, nodes, repeat, seconds * (1 + 0.001 * repeat))
    return study


def caveats(study: Path) -> list[tuple[str, str]]:
    return [(caveat.topic, caveat.text) for caveat in analyse(read_study(study)).caveats]


def timing_of(study: Path, point: str) -> Path:
    return run_dir_of(study, point) / "attempts" / "1" / "timing"


def fail(study: Path, point: str) -> None:
    event = {"time": 1, "state": "failed", "reason": "out of memory"}
    (run_dir_of(study, point) / "state.jsonl").write_text(json.dumps(event) + "\n")


def rewrite(study: Path, point: str, **changes: object) -> None:
    """Replace keys in the files of all ranks of a run."""
    for path in timing_of(study, point).glob("rank-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_good_study_has_none(tmp_path: Path, kind: str) -> None:
    assert caveats(good_study(tmp_path, kind=kind)) == []


def slow_rank(study: Path) -> None:
    path = timing_of(study, "strong-n0002-r02") / "rank-00005.json"
    content = json.loads(path.read_text())
    # 92 % of a step is its own on all other ranks.
    content["communication"] = [0.0 for _ in content["steps"]]
    content["data_wait"] = [0.0 for _ in content["steps"]]
    for name in ("rank-00000.json", "rank-00001.json", "rank-00002.json", "rank-00003.json",
                 "rank-00004.json", "rank-00006.json", "rank-00007.json"):  # fmt: skip
        other = timing_of(study, "strong-n0002-r02") / name
        waiting = json.loads(other.read_text())
        waiting["communication"] = [0.2 * step for step in waiting["steps"]]
        other.write_text(json.dumps(waiting))
    path.write_text(json.dumps(content))


def all_reduce(study: Path) -> None:
    written = {"bytes": 1000, "seconds": [0.1], "world_size": 4, "nodes": 1}
    (timing_of(study, "strong-n0001-r01") / "allreduce.json").write_text(json.dumps(written))


def four_steps(study: Path) -> None:
    rewrite(study, "strong-n0004-r01", steps=[0.0265] * 4, data_wait=[0] * 4, communication=None)


def stalls(study: Path) -> None:
    """Every tenth step takes six times as long: the median does not see it."""
    for repeat in (1, 2, 3):
        steps = [0.0265] * 30
        steps[::10] = [0.16] * 3
        rewrite(study, f"strong-n0004-r0{repeat}", steps=steps)


@pytest.mark.parametrize(
    ("change", "topic", "text"),
    [
        (
            lambda s: rewrite(s, "strong-n0004-r02", device="NVIDIA H100"),
            "mixed",
            "not the same hardware in all runs: NVIDIA A100-SXM4-40GB (on 1, 2 and 4 nodes) and "
            "NVIDIA H100 (on 4 nodes)",
        ),
        (
            lambda s: rewrite(s, "strong-n0001-r01", torch="2.5.1"),
            "mixed",
            "not the same version of torch in all runs: 2.5.1 (on 1 node) and 2.6.0 (on 1, 2 and 4 "
            "nodes)",
        ),
        (
            lambda s: rewrite(s, "strong-n0001-r01", precision="fp32"),
            "mixed",
            "not the same precision in all runs: fp16 (on 1, 2 and 4 nodes) and fp32 (on 1 node)",
        ),
        (
            lambda s: rewrite(s, "strong-n0002-r03", gradient_bytes=1),
            "mixed",
            "not the same size of the gradients (is it the same model?) in all runs: 1 (on 2 "
            "nodes) and 44700000 (on 1, 2 and 4 nodes)",
        ),
        (
            lambda s: rewrite(s, "strong-n0004-r01", batch_size=1024),
            "batch",
            "strong: the global batch is not the same in all runs: 512 and 1024",
        ),
        (
            lambda s: rewrite(s, "strong-n0004-r01", nodes=2),
            "layout",
            "strong, 4 nodes: ran on 2 nodes instead",
        ),
        (
            lambda s: rewrite(s, "strong-n0004-r01", host="n1"),
            "layout",
            "strong, 4 nodes: all ranks were on 1 machine, so the figures are not those of more "
            "nodes",
        ),
        (
            four_steps,
            "steps",
            "strong, 4 nodes: only 4 steps measured in a run",
        ),
        (
            lambda s: rewrite(s, "strong-n0004-r01", warmup_steps=0),
            "warm-up",
            "strong, 4 nodes: the first steps of a run are measured, without warm-up",
        ),
        (
            lambda s: [rewrite(s, f"strong-n0004-r0{r}", data_wait=[0.03] * 30) for r in (1, 2, 3)],
            "shares",
            "strong, 4 nodes: data wait and communication together are longer than the step",
        ),
        (
            slow_rank,
            "straggler",
            "strong, 2 nodes: rank 5 on n2 takes 25 % longer than the median rank (run 2); all "
            "others wait for it",
        ),
        (
            lambda s: rewrite(s, "strong-n0004-r03", steps=[0.04] * 30),
            "noisy",
            "strong, 4 nodes: of the median step, the middle half of all steps spans 51 %, "
            "its runs differ by 51 % and the mean step is 17 % longer, so some steps take much "
            "longer than most",
        ),
        (
            stalls,
            "noisy",
            "strong, 4 nodes: of the median step, the mean step is 50 % longer, so some steps take "
            "much longer than most",
        ),
        (
            all_reduce,
            "all-reduce",
            "strong, 1 node: the all-reduce carried 1,000 bytes, the gradients have 44,700,000",
        ),
        (
            lambda s: fail(s, "strong-n0004-r01"),
            "incomplete",
            "strong, 4 nodes: 2 of 3 runs measured (1 failed)",
        ),
        (
            lambda s: (timing_of(s, "strong-n0002-r01") / "rank-00006.json").unlink(),
            "incomplete",
            "strong, 2 nodes: 2 of 3 runs measured (1 partial)",
        ),
    ],
)  # fmt: skip
def test_each_warning(tmp_path: Path, change: Change, topic: str, text: str) -> None:
    study = good_study(tmp_path)
    change(study)
    assert (topic, text) in caveats(study)


def test_superlinear_points(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4), repeats=3)
    for nodes, seconds in ((1, 0.1), (2, 0.0505), (4, 0.02)):
        for repeat in (1, 2, 3):
            measure(study, "strong", nodes, repeat, seconds * (1 + 0.001 * repeat))
    found = caveats(study)
    assert [topic for topic, _ in found if topic == "superlinear"] == ["superlinear"]
    (text,) = [text for topic, text in found if topic == "superlinear"]
    assert text.startswith("strong, 4 nodes: faster than ideal, efficiency 125.0 ± 0.5 %.")
    assert "the point on 1 node" in text


def test_superlinear_within_the_uncertainty_is_none(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2), repeats=3)
    for nodes, seconds in ((1, 0.1), (2, 0.048)):
        for repeat in (1, 2, 3):
            measure(study, "strong", nodes, repeat, seconds * (1 + 0.02 * repeat))
    assert "superlinear" not in {topic for topic, _ in caveats(study)}


def test_weak_scaling_wants_one_batch_a_node(tmp_path: Path) -> None:
    study = good_study(tmp_path, kind="weak")
    for repeat in (1, 2, 3):
        rewrite(study, f"weak-n0004-r0{repeat}", batch_size=128)
    assert (
        "batch",
        "weak: the batch of a node is not the same in all runs: 32 and 128",
    ) in caveats(study)


def test_ranks_a_node_have_to_be_the_same(tmp_path: Path) -> None:
    study = good_study(tmp_path, more=(8,))
    for repeat in (1, 2, 3):
        run_dir = submit_run(study, "strong", 8, repeat)
        steps = [0.1 * (0.02 + 0.98 / 8)] * 30
        ranks = [rank_file(rank, 8, steps, gpus_per_node=2) for rank in range(16)]
        write_timing(run_dir, ranks)
    assert caveats(study) == [
        ("layout", "strong: not the same number of ranks a node in all runs: 2 and 4")
    ]


def test_a_missing_reference_and_single_runs(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4), repeats=1)
    measure(study, "strong", 2, 1, 0.05)
    measure(study, "strong", 4, 1, 0.026)
    assert caveats(study) == [
        ("incomplete", "strong, 1 node: 0 of 1 run measured (1 missing)"),
        (
            "reference",
            "strong: 1 node not measured yet, so speedup and efficiency are relative to 2 nodes",
        ),
        ("repeats", "strong: one run on 2 and 4 nodes, so the scatter of runs is unknown"),
    ]


def test_a_law_that_does_not_fit(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4, 8), repeats=2)
    for nodes, seconds in ((1, 0.1), (2, 0.055), (4, 0.04), (8, 0.06)):
        for repeat in (1, 2):
            measure(study, "strong", nodes, repeat, seconds * (1 + 0.001 * repeat))
    (text,) = [text for topic, text in caveats(study) if topic == "fit"]
    assert text.startswith("strong: Amdahl's law does not describe these points: one deviates by ")


def test_what_is_the_same_of_several_points_is_told_once(tmp_path: Path) -> None:
    """Strong and weak scaling share their runs on one node, and all points were on one machine."""
    study = make_study(tmp_path, kind="both", nodes=(1, 2, 4), repeats=2)
    for kind, nodes in (("strong", 1), ("strong", 2), ("weak", 2), ("strong", 4)):
        for repeat in (1, 2):
            seconds = 0.1 / nodes if kind == "strong" else 0.1
            warmup = 0 if nodes == 1 else 20
            measure(study, kind, nodes, repeat, seconds, host="n1", warmup_steps=warmup)
    share(study, 1)
    told = [text for topic, text in caveats(study) if topic in ("layout", "warm-up")]
    assert told == [
        "strong, 2 and 4 nodes; weak, 2 nodes: all ranks were on 1 machine, so the figures are not "
        "those of more nodes",
        "strong and weak, 1 node: the first steps of a run are measured, without warm-up",
    ]
