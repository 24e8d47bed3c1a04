"""The entries of known failures: each is tested by its own samples, through the whole machinery."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from support.environment import REPOSITORY

from hpc_amp.explain.document import with_table
from hpc_amp.explain.failures import (
    FOLDER,
    Failure,
    FailureFileError,
    known_failures,
    read_failures,
)
from hpc_amp.explain.match import Scan, Verdict

FAILURES = known_failures()


def verdict_of(text: str) -> tuple[Verdict, Scan]:
    """What a log says, and the scan that read it."""
    scan = Scan(FAILURES)
    scan.read(io.BytesIO(text.encode()), "job.log")
    return scan.verdict(), scan


def cases(field: str) -> list[object]:
    return [
        pytest.param(failure, sample, id=f"{failure.id}-{number}")
        for failure in FAILURES
        for number, sample in enumerate(getattr(failure, field))
    ]


@pytest.mark.parametrize(("failure", "sample"), cases("samples"))
def test_a_sample_leads_to_its_entry_and_to_no_other(failure: Failure, sample: str) -> None:
    verdict, scan = verdict_of(f"{sample.rstrip()}\n")

    named = verdict.finding.failure.id if verdict.finding else None
    if failure.level == "noise":
        assert named is None
        assert scan._first_sign
    elif failure.level == "hint":
        assert named is None
        assert [found.failure.id for found in verdict.noticed] == [failure.id]
    else:
        assert named == failure.id
        # An entry that knows several lines of a sample stands before those that know one of them.
        fitting = [found.failure for found in scan._complete(scan._active)]
        assert [f.id for f in fitting if f.also or not failure.also] == [failure.id]


@pytest.mark.parametrize(("failure", "line"), cases("near"))
def test_lines_that_look_alike_do_not_fit(failure: Failure, line: str) -> None:
    verdict, _ = verdict_of(f"{line}\n")

    assert verdict.finding is None
    assert failure.id not in [found.failure.id for found in verdict.noticed]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_each_pattern_has_a_sample(failure: Failure) -> None:
    lines = [line for sample in failure.samples for line in sample.splitlines()]

    for pattern in failure.patterns:
        assert any(pattern.search(line) for line in lines), pattern.pattern


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_texts_are_sentences(failure: Failure) -> None:
    assert failure.cause.endswith(".") and failure.fix.endswith(".")
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|seen with .+ [\d.]+|", failure.source)


def test_there_are_many_and_the_document_lists_all() -> None:
    document = (REPOSITORY / "docs" / "explain.md").read_text()

    assert len(FAILURES) > 200
    assert document == with_table(document), "python -m hpc_amp.explain.document"
    assert all(f"`{failure.id}`" in document for failure in FAILURES if failure.level != "noise")


def test_patterns_do_not_explode() -> None:
    """A line made to hurt each pattern: twice its length may cost some times more, not hundreds."""
    for failure in FAILURES:
        for pattern in (*failure.patterns, *failure.excluded, *failure.also, *failure.without):
            hurting = [failure.samples[0][:60] * 20, "a" * 2000, "error: " * 300, "/x." * 700]
            begin = time.process_time()
            for line in hurting:
                pattern.search(line)
            short = time.process_time() - begin
            begin = time.process_time()
            for line in hurting:
                pattern.search(line * 2)
            assert time.process_time() - begin < 40 * short + 0.2, (failure.id, pattern.pattern)


GOOD = (
    "- {id: a-b, cause: 'It is {x}.', fix: Do., any: ['e(?P<x>.)'], source: a/b#1, samples: [ef]}"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("fix: Do.", "fxi: Do."), "a-b: unknown key 'fxi'; the keys are also, any,"),
        (GOOD.replace("samples: [ef]", "samples: []"), "a-b: the key 'samples' is missing or"),
        (GOOD.replace("id: a-b", "id: A_b"), "A_b: an id consists of small letters"),
        (GOOD.replace("{x}", "{y}"), "a-b: cause uses {y}, but 'e(?P<x>.)' has no such group"),
        (GOOD.replace("{x}", "{0}"), "a-b: cause: {0} is not the name of a group"),
        (GOOD.replace("(?P<x>.)", "(?P<x>."), "a-b: any: 'e(?P<x>.' is not a regular expression"),
        (GOOD.replace("[ef]", "ef"), "a-b: samples is not a list of texts"),
        (GOOD.replace("fix: Do.", "fix: [Do]"), "a-b: fix is not a text"),
        (GOOD[:-1] + ", level: bad}", "a-b: level is 'bad'; it must be one of cause, likely,"),
        (GOOD[:-1] + ", times: 0}", "a-b: times is 0; it must be a number from 1 to 9"),
        ("- text", "entry 1: this is not a mapping"),
        ("a: b", "this is not a list of failures"),
        ("- [", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "area.yaml"
    path.write_text(GOOD)
    assert [failure.id for failure in read_failures(path)] == ["a-b"]
    path.write_text(text)

    with pytest.raises(FailureFileError) as caught:
        read_failures(path)

    assert message in str(caught.value)
    assert "area.yaml" in str(caught.value)


def test_every_file_of_the_folder_is_read() -> None:
    assert {failure.area for failure in FAILURES} == {path.stem for path in FOLDER.glob("*")}
