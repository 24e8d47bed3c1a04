"""This machine, whatever the job: its folders, its environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hpc_amp.containers.base import Container
from hpc_amp.containers.storage import gib
from hpc_amp.finding import Finding, Findings

_GIB = 2**30


def check_tmp(folder: Path | None = None) -> Findings:
    """Temporary files of this machine: pulling and building use them."""
    folder = folder or Path("/tmp")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
    except OSError as error:
        what = f"{folder} cannot be written: {error.strerror}"
        why = "the runtime, compilers and this program need temporary files"
        yield Finding("tmp", "error", what, why, f"remove old files there: ls -la {folder}")
        return
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < _GIB:
        what = f"{folder} has only {gib(free)} left"
        why = "the runtime and compilers put their temporary files there"
        yield Finding("tmp", "warning", what, why, f"remove old files there: ls -la {folder}")
    else:
        yield Finding("tmp", "good", f"{folder} has {gib(free)}")


# What the launch script and submission take care of, and what they cannot.
_HANDLED = ("PYTHONPATH", "PYTHONHOME", "LC_ALL", "CONDA_PREFIX")


def check_leaks(container: Container, environ: Mapping[str, str] = os.environ) -> Findings:
    """Variables of this shell. Submission leaves them behind, but shell start-up files may set them
    on the nodes again."""
    why = "a shell start-up file or a module that sets it does so on the nodes, too"
    found = []
    if environ.get("LD_PRELOAD"):
        what = f"LD_PRELOAD={environ['LD_PRELOAD']}"
        fix = "its library is not in the image: unload the module that sets it (XALT, Darshan)"
        found.append(Finding("env.leak", "warning", what, why, fix))
    if environ.get("OPAL_PREFIX"):
        what = f"OPAL_PREFIX={environ['OPAL_PREFIX']}"
        fix = "the image's Open MPI would look for its files there: unset it in job.setup"
        found.append(Finding("env.leak", "warning", what, why, fix))
    found += container.check_leaks(environ)
    yield from found
    handled = [name for name in (*_HANDLED, *container.handled) if environ.get(name)]
    if handled:
        what = f"{', '.join(handled)}: set here; the launch script keeps them from the ranks"
        yield Finding("env.leak", "good", what)
    elif not found:
        yield Finding("env.leak", "good", "nothing in this shell that would reach into a container")
