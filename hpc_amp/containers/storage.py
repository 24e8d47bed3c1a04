"""Facts about the file systems of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")


def in_home(path: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a path is in the home folder, where quotas are usually small."""
    home = environ.get("HOME")
    return bool(home) and home != "/" and path.resolve().is_relative_to(Path(home or "").resolve())


def file_system(path: Path) -> str:
    """The type of the file system of a path, such as `tmpfs`. Empty if it is unknown."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    target = str(path.resolve())
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split(" ")[0]
    return kind


def gib(size: float) -> str:
    """Format a size in bytes as GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
