"""When one rank fails, all are gone soon, and the first error is the one that is shown."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from chaos.ranks import Attempt, Run, Zygote, mishap

pytestmark = pytest.mark.ranks

SIZE = 3
FAILURES: dict[str, dict[str, Any]] = {
    "rank 0 raises": mishap("step", "raise", "the data is upside down", at=7, rank=0),
    "rank 1 raises": mishap("step", "raise", "the data is upside down", at=7, rank=1),
    "rank 2 raises while others evaluate": mishap(
        "evaluation", "raise", "the data is upside down", at=1, rank=2
    ),
    "rank 0 is killed": mishap("step", "signal", "SIGKILL", at=7, rank=0),
    "rank 1 is killed": mishap("step", "signal", "SIGKILL", at=7, rank=1),
}


@pytest.fixture(scope="module")
def failures(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attempt]:
    """All of them at once: most of it is waiting."""
    attempts = {}
    for name, failure in FAILURES.items():
        train = {"epochs": 10**6, "batch_size": 6, "checkpoint": "3steps"}
        run = Run(zygote, tmp_path_factory.mktemp("failure") / "run", train)
        attempts[name] = run.start(failure, size=SIZE, task="Even")
    return attempts


@pytest.mark.parametrize("name", FAILURES)
def test_the_first_error_is_told_and_all_ranks_end(failures: dict[str, Attempt], name: str) -> None:
    attempt = failures[name]
    statuses = attempt.wait()
    rank = int(name.split()[1])
    outcome, said = attempt.outcome, attempt.said()
    assert outcome["outcome"] == "failed"
    others = [status for other, status in enumerate(statuses) if other != rank]
    assert others == [1] * (SIZE - 1)
    if "killed" in name:
        assert statuses[rank] == -signal.SIGKILL
        named = rf"rank {rank} \(\S+, process {attempt.pids[rank]}, step \d+: dead\); rank \d lost"
        assert re.match(named, outcome["reason"])
        assert "Traceback" not in said, "lines, not tracebacks, where only contact was lost"
    else:
        assert statuses[rank] == 1
        assert outcome["reason"] == f"rank {rank}: Upset: the data is upside down"
        lines = said.splitlines()
        first = next(line for line in lines if not line.startswith("["))
        assert first.startswith("Traceback"), "the cause comes first"
        assert said.count("Traceback") == 1
        assert said.index("Upset: the data") < said.index("lost contact")
    assert said.count("lost contact to another rank") == SIZE - 1
    assert attempt.run.checkpoints()[-1] in (3, 5, 6), "what was being written is there"


def test_a_loss_that_is_no_number_on_one_rank_is_explained(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Run(zygote, tmp_path_factory.mktemp("nan") / "run", {"log_every": 4})
    attempt = run.start(size=2, task="Diverging")
    assert attempt.wait() == [1, 1]
    reason = attempt.outcome["reason"]
    assert "the loss `loss` is nan since step 6: the weights are lost" in reason
    assert "Traceback" not in attempt.said()
    assert "no checkpoint" in attempt.said() or run.checkpoints() == []


def test_a_loss_scale_at_its_floor_is_explained(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> None:
    precision = {"mode": "fp16", "init_scale": 4.0, "min_scale": 1.0}
    run = Run(
        zygote, tmp_path_factory.mktemp("floor") / "run", {"precision": precision, "epochs": 9}
    )
    attempt = run.start(size=2, task="Diverging")
    assert attempt.wait() == [1, 1]
    # From step 6 on every step overflows; twice the scale is halved, then 18 times it is at 1.
    assert "step 25: the gradients of train/loss overflowed 20 times" in attempt.outcome["reason"]
    assert "loss scale at its floor of 1" in attempt.outcome["reason"]
    assert "Traceback" not in attempt.said()
