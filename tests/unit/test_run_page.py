"""docs/runs.md names the files of a run directory: all that a real run makes, and no others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from support.environment import REPOSITORY
from support.stubs import StubHost

PAGE = REPOSITORY / "docs" / "runs.md"
NOT_ALWAYS = {
    *("chain", "generate/", "shell-ID/", "attempts/N/hosts", "attempts/N/timing/"),
    "attempts/N/stop",
}
"""What only some runs have."""
_PLACES = {"N": r"\d+", "ID": r"[\w-]+", "HOST": r"[\w.-]+"}


def named() -> set[str]:
    """The paths in the first columns of the page's tables; folders end in a slash. A checkpoint's
    files are in the second column."""
    found = set()
    prefix: str | None = None
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            prefix = None
        if line.startswith("| path"):
            prefix = "attempts/N/" if "attempts/N/" in line else ""
        if prefix is None:
            continue
        row = re.match(r"\| (`[^|]*`) \| (.*) \|$", line)
        if row is None:
            continue
        paths = re.findall("`([^`]+)`", row[1])
        if paths == ["checkpoints/step-N/"]:
            paths = [f"{paths[0]}{name}" for name in re.findall("`([^`]+)`", row[2])]
        found |= {prefix + path for path in paths}
    return found - {"attempts/N/"}


def matches(name: str, path: str) -> bool:
    """Whether a name of the page is that of a path, or of a folder above it."""
    parts = re.split(r"(\bID\b|\bHOST\b|\bN\b)", name)
    pattern = "".join(_PLACES.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(pattern + (".*" if name.endswith("/") else ""), path) is not None


def test_every_file_of_a_run_is_named(host: StubHost, warm_python: Path) -> None:
    (host.work / "code").mkdir()
    (host.work / "code" / "more.py").write_text("")
    subprocess.run(["git", "init", "-q"], cwd=host.work, check=True)
    who = ("-c", "user.name=me", "-c", "user.email=me@here")
    subprocess.run(["git", "add", "code"], cwd=host.work, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "first"], cwd=host.work, check=True)
    (host.work / "code" / "more.py").write_text("changed = True\n")
    data = {"name": "synthetic", "synthetic": {"train": 64, "test": 32}}
    train = {"model": "fc", "batch_size": 32, "device": "cpu", "epochs": 1, "ema": 0.9}
    host.write_job(
        {
            "name": "small",
            "site": "local",
            "code": "code",
            "job": {"gpus_per_node": 0, "ranks_per_node": 2},
            "container": {"python": str(warm_python)},
            "train": {**train, "data": data},
        }
    )
    first = host.hpc_amp("run", "job.yaml")
    assert first.returncode == 0, first.stdout + first.stderr
    second = host.hpc_amp("resume", "small", "train.epochs=2", "--follow")
    assert second.returncode == 0, second.stdout + second.stderr
    (run_dir,) = (host.work / "runs" / "small").glob("2*")
    files = (path for path in run_dir.rglob("*") if path.is_symlink() or not path.is_dir())
    made = {str(path.relative_to(run_dir)) for path in files}

    names = named()

    unnamed = {path for path in made if not any(matches(name, path) for name in names)}
    assert unnamed == set()
    absent = {name for name in names if not any(matches(name, path) for path in made)}
    assert absent == NOT_ALWAYS
