"""How the process of a rank ends."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End at once, with what was said on its way. Other ranks may be waiting for this one, and an
    orderly exit would wait for them in turn; gloo's threads may also hang or abort it."""
    for stream in (sys.stdout, sys.stderr):
        # A log that cannot be written, on a full disk, must not change the exit status.
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)
