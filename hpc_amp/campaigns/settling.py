"""Submissions of which the command was killed before it had the scheduler's answer.

Whoever settles them holds the campaign (`lock`), so no such command is still at it. But the
scheduler's own command outlives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 3.0


def settle_all(
    is_open: Callable[[], bool], look: Callable[[], None], on_wait: Callable[[], object]
) -> None:
    """Call `look`, which finds out what has become of such submissions, until none `is_open`.
    `on_wait` is told when that takes a while."""
    told = False
    while is_open():
        look()
        if is_open():
            if not told:
                on_wait()
                told = True
            time.sleep(POLL_SECONDS)
