"""The tests' side of a process that has imported torch and forks others: `support.warm`,
`chaos.zygote`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.environment import REPOSITORY, clean_environ


class Zygote:
    """`python -m MODULE WORDS`, which answers each line of its input, a request in JSON, with a
    line. `python` begins its command line: `WarmPython.fork` makes it a fork."""

    def __init__(
        self,
        module: str,
        environ: Mapping[str, str],
        *words: str,
        python: Sequence[str | Path] = (sys.executable,),
    ) -> None:
        self._one_at_a_time = threading.Lock()
        environ = clean_environ(**environ)
        environ["PYTHONPATH"] += f":{REPOSITORY / 'tests'}"
        self._process = subprocess.Popen(
            [*python, "-m", module, *words],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, verb: str, given: Any) -> Any:
        """The answer to a request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            print(json.dumps({verb: given}), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; what it does to its forks at the end of its input is its own."""
        self._process.communicate()
