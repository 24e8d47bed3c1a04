"""The programs in examples/, as modules and as users start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.environment import REPOSITORY, clean_environ
from support.warm import Warm

EXAMPLES = REPOSITORY / "examples"


@contextmanager
def modules_of(example: str) -> Iterator[None]:
    """Within, the modules beside an example's main.py can be imported by their names, as it does;
    behind, they are forgotten: two examples may use one name."""
    folder = str(EXAMPLES / example)
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(folder):
                del sys.modules[name]


NOWHERE = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def train_example(
    warm: Warm, example: str, words: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """`run_example` for one that trains, in a process that has torch already."""
    return warm.run(EXAMPLES / example / "main.py", *words, cwd=folder, environ=NOWHERE)


def run_example(
    example: str, words: Sequence[str], folder: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """`python main.py WORDS` in a folder, without a terminal and without a network."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / example / "main.py"), *words],
        cwd=folder,
        env=clean_environ(OMP_NUM_THREADS="1", **NOWHERE, **environ),
        stdin=subprocess.DEVNULL,
        text=True,
        capture_output=True,
        timeout=300,
        start_new_session=True,
    )
