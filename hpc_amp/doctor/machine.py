"""Checks of this machine that do not depend on a job: temporary files and the environment."""

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
    """Check that temporary files can be written, which pulling and building images need.

    `folder` is /tmp by default.
    """
    folder = folder or Path("/tmp")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
    except OSError as error:
        what = f"{folder} is not writable: {error.strerror}"
        why = "the container runtime, compilers and hpc-amp need temporary files"
        yield Finding("tmp", "error", what, why, f"remove old files from it: ls -la {folder}")
        return
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < _GIB:
        what = f"{folder} has only {gib(free)} of free space"
        why = "the container runtime and compilers write their temporary files there"
        yield Finding("tmp", "warning", what, why, f"remove old files from it: ls -la {folder}")
    else:
        yield Finding("tmp", "good", f"{folder} has {gib(free)} of free space")


# Variables that the launch script removes before the container starts.
_HANDLED = ("PYTHONPATH", "PYTHONHOME", "LC_ALL", "CONDA_PREFIX")


def check_leaks(container: Container, environ: Mapping[str, str] = os.environ) -> Findings:
    """Check for variables of this shell that would disturb programs in the container.

    They are not submitted with the job, but shell start-up files may set them on the nodes again.
    """
    why = "a shell start-up file or module that sets it here may also set it on the nodes"
    found = []
    if environ.get("LD_PRELOAD"):
        what = f"LD_PRELOAD={environ['LD_PRELOAD']}"
        fix = "the image does not have this library: unload the module that sets it (XALT, Darshan)"
        found.append(Finding("env.leak", "warning", what, why, fix))
    if environ.get("OPAL_PREFIX"):
        what = f"OPAL_PREFIX={environ['OPAL_PREFIX']}"
        fix = "unset it in job.setup: Open MPI in the image would look for its files there"
        found.append(Finding("env.leak", "warning", what, why, fix))
    found += container.check_leaks(environ)
    yield from found
    handled = [name for name in (*_HANDLED, *container.handled) if environ.get(name)]
    if handled:
        what = f"{', '.join(handled)} set in this shell; the launch script removes them"
        yield Finding("env.leak", "good", what)
    elif not found:
        what = "no variable of this shell would disturb a container"
        yield Finding("env.leak", "good", what)
