"""The threads that read samples, as one rank uses them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from itertools import chain

import pytest

from hpc_amp.data import readers as module
from hpc_amp.data.errors import DataError
from hpc_amp.data.readers import AHEAD, Readers, reader_count
from hpc_amp.distributed.world import World


@pytest.fixture(params=[0, 1, 3])
def readers(request: pytest.FixtureRequest) -> Iterator[Readers]:
    made = Readers(request.param)
    yield made
    made.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("hpc-amp-reader")]


def batches(numbers: range, size: int) -> list[range]:
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


def square(number: int) -> int:
    if number < 0:
        raise DataError(f"{number} cannot be read")
    return number * number


def test_batches_come_whole_and_in_order(readers: Readers) -> None:
    for size in (1, 2, 7):
        for _ in range(2):
            seen = list(readers.read(square, batches(range(60), size)))
            assert seen == [[n * n for n in batch] for batch in batches(range(60), size)]
    assert list(readers.read(square, [])) == []


def test_passes_may_alternate_and_end_early(readers: Readers) -> None:
    """An evaluation in the middle of an epoch, one that is given up, a pass that is never begun."""
    outer = readers.read(square, batches(range(40), 5))
    readers.read(square, batches(range(60), 5))
    seen = [next(outer), next(outer)]
    given_up = readers.read(square, batches(range(40, 60), 3))
    assert next(given_up) == [1600, 1681, 1764]
    seen.append(next(outer))
    del given_up
    assert list(chain(*seen, *outer)) == [n * n for n in range(40)]


def test_an_error_is_raised_with_its_batch_and_the_others_are_not_lost(readers: Readers) -> None:
    steps = readers.read(square, [[1, 2], [3, 4], [5, -6], [7]])
    assert [next(steps), next(steps)] == [[1, 4], [9, 16]]
    with pytest.raises(DataError, match="-6 cannot be read"):
        next(steps)
    assert list(readers.read(square, [[1]])) == [[1]]


@pytest.mark.parametrize(("count", "ahead"), [(0, 0), (1, AHEAD), (3, AHEAD)])
def test_so_many_batches_are_read_ahead_and_no_more(count: int, ahead: int) -> None:
    taken = []

    def source() -> Iterator[range]:
        for batch in batches(range(60), 3):
            taken.append(batch)
            yield batch

    readers = Readers(count)
    steps = readers.read(square, source())
    next(steps)
    assert len(taken) == 1 + ahead
    next(steps)
    assert len(taken) == 2 + ahead
    readers.close()


def test_a_file_system_that_is_silent_is_told(
    monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    answers = threading.Event()

    class Answer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            answers.set()

    def read(path: str) -> str:
        if path != "/fast":
            assert answers.wait(60)
        return path

    module.log.addHandler(handler := Answer())
    readers = Readers(1)
    try:
        assert list(readers.read(read, [["/fast"], ["/fast", "/slow", "/last"]])) == [
            ["/fast"],
            ["/fast", "/slow", "/last"],
        ]
    finally:
        module.log.removeHandler(handler)
        readers.close()
    said = "\n".join(logged)
    assert "2 of 3 samples of a batch are not there after 0 s" in said
    assert "The first one is /slow" in said


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not bound to cores share those of their node."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    shared = World(size=4, local_size=4)
    assert [reader_count(None, World()), reader_count(None, shared)] == [8, 2]
    assert reader_count(5, shared) == 5
    monkeypatch.setattr("os.cpu_count", lambda: 48)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert reader_count(None, shared) == 0
