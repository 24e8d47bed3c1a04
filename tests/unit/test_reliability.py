"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import re

import pytest
from support.environment import REPOSITORY

TEXT = (REPOSITORY / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT)))


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_exists(named: str) -> None:
    file, _, name = named.partition("::")
    assert f"\ndef {name}(" in (REPOSITORY / file).read_text()


def test_every_guarantee_is_numbered_and_named() -> None:
    guarantees = re.split(r"\n\*\*(?=G\d+\.)", TEXT)[1:]
    numbers = [int(re.match(r"G(\d+)", text)[1]) for text in guarantees]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 10
    for number, text in zip(numbers, guarantees, strict=True):
        assert re.search(r"`(tests/[^`]+::test_|benchmarks/)", text), f"G{number} names no test"
