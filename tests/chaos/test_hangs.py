"""A rank that does not move is found, all ranks show what they are doing, and all are gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.ranks import Attempt, Run, Zygote, mishap

pytestmark = pytest.mark.ranks

LIMIT = 15  # seconds; a busy machine must not look like a hang
HANGS: dict[str, dict[str, Any]] = {
    "rank 1 is stopped": mishap("step", "signal", "SIGSTOP", at=7, rank=1),
    "rank 0 is stopped": mishap("step", "signal", "SIGSTOP", at=7, rank=0),
    "rank 1 sleeps": mishap("step", "sleep", 1e5, at=7, rank=1),
    "rank 1 waits for what nobody sends": mishap("step", "receive", at=7, rank=1),
    "rank 1 keeps Python's lock": mishap("step", "hold", at=7, rank=1),
    "rank 1 sleeps in an evaluation": mishap("evaluation", "sleep", 1e5, at=1, rank=1),
}
SILENT = {"rank 1 is stopped": 1, "rank 0 is stopped": 0, "rank 1 keeps Python's lock": 1}
"""Those in which not even the thread that watches gives a sign of life."""
DOING = {
    "rank 1 sleeps": 'mishaps.py", line [0-9]+ in after',
    "rank 1 waits for what nobody sends": "in _receive_what_nobody_sends",
    "rank 1 keeps Python's lock": "in _hold_the_lock",
    "rank 1 sleeps in an evaluation": 'mishaps.py", line [0-9]+ in counted',
}
"""Where the stack of the rank that hangs ends. One that was stopped goes on when it is woken."""


@pytest.fixture(scope="module")
def hangs(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attempt]:
    """All of them at once: most of it is waiting."""
    attempts = {}
    for name, hang in HANGS.items():
        folder: Path = tmp_path_factory.mktemp("hang")
        run = Run(zygote, folder / "run", {"epochs": 10**6, "checkpoint": "3steps"}, f"{LIMIT}s")
        attempts[name] = run.start(hang, mishap("step", "sleep", 0.02, rank=None), size=2)
    return attempts


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_found_and_shown_and_ended(hangs: dict[str, Attempt], name: str) -> None:
    attempt = hangs[name]
    statuses = attempt.wait()
    said, outcome = attempt.said(), attempt.outcome
    assert outcome["outcome"] == "failed"
    found = re.match(
        r"no progress for (\d+) s in step (\d+) \((\w+)\), seen by rank", outcome["reason"]
    )
    assert found, outcome["reason"]
    assert int(found[1]) >= LIMIT
    assert (int(found[2]), found[3]) == (
        (5, "evaluation") if "evaluation" in name else (7, "training")
    )

    silent = SILENT.get(name)
    assert statuses == [-9 if rank == silent else 1 for rank in (0, 1)]
    for rank in {0, 1} - {silent}:
        assert re.search(rf"hpc-amp: rank {rank}: +File .* in fit", said), "its stack"
    if silent is not None:
        state = "since" if "lock" in name else "stopped"
        named = rf"silent: rank {silent} \(\S+, process {attempt.pids[silent]}, step \d+: {state}"
        assert re.search(named, outcome["reason"])
        assert re.search(rf"the stacks of rank {silent} ", said)
        assert re.search(r"^  File .* in fit", said, re.MULTILINE), "its stack"
    assert re.search(DOING.get(name, "in fit"), said), "the place where it hangs"
    assert attempt.run.checkpoints()[-1] >= 3, "what was saved before is there"


@pytest.mark.chaos
def test_a_rank_that_waits_for_a_longer_evaluation_has_not_hung(
    new_run: Callable[..., Run],
) -> None:
    """Rank 1 evaluates for much longer than the limit, and the others wait for it."""
    run = new_run(timeout=f"{LIMIT}s", epochs=1)
    attempt = run.start(mishap("evaluation", "sleep", 0.2, rank=1), size=2, task="Uneven")
    assert attempt.wait() == [0, 0], attempt.said()
