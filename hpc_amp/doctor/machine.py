"""This machine, whatever the job: its container program, its folders, its environment."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hpc_amp.containers.runtime import (
    PREFIXES,
    Runtime,
    file_system,
    find_runtime,
    gib,
    in_home,
)
from hpc_amp.errors import HpcAmpError
from hpc_amp.finding import Finding, Findings, Status

IN_MEMORY = ("tmpfs", "ramfs")
_GIB = 2**30
Which = Callable[[str], "str | None"]


def check_runtime(
    wanted: str,
    *,
    needed: bool,
    elsewhere: str = "",
    which: Which = shutil.which,
    root: Path = Path("/"),
) -> Findings:
    """The container program. `needed`: whether the job has an image and runs on this machine;
    `elsewhere`: why it may come only on the nodes."""
    try:
        runtime = find_runtime(wanted, which=which)
    except HpcAmpError as error:
        if elsewhere:
            yield Finding("rt.found", "unknown", f"{error.message}, but {elsewhere}")
            return
        why = "a job with an image is started with it"
        status: Status = "error" if needed else "warning"
        yield Finding("rt.found", status, error.message, why, error.hint or "")
        return
    how = "setuid" if _is_setuid(runtime) else "user namespaces"
    if how == "user namespaces" and os.geteuid() != 0:
        hindrance = _no_namespaces(root)
        if hindrance:
            what = f"{runtime.text} is not setuid, and {hindrance}"
            why = "it can start no container for an ordinary user then"
            fix = "ask for user namespaces, or for the setuid package (apptainer-suid)"
            yield Finding("rt.found", "error", what, why, fix)
            return
    fuse = root / "dev" / "fuse"
    if how == "user namespaces" and not os.access(fuse, os.R_OK | os.W_OK):
        what = f"{runtime.text} is not setuid, and /dev/fuse cannot be used"
        why = "it unpacks a .sif file into a folder at every start then, which takes minutes"
        fix = "ask for the module `fuse` and permissions on /dev/fuse, or use a sandbox folder"
        yield Finding("rt.found", "warning", what, why, fix)
        return
    yield Finding("rt.found", "good", f"{runtime.text}, {how}, {runtime.program}")


def _is_setuid(runtime: Runtime) -> bool:
    prefix = Path(runtime.program).resolve().parents[1]
    names = [f"libexec/{name}/bin/starter-suid" for name in ("apptainer", "singularity")]
    names += [f"lib/*/{name}/bin/starter-suid" for name in ("apptainer", "singularity")]
    starters = [path for name in names for path in prefix.glob(name)]
    return any(path.stat().st_mode & stat.S_ISUID for path in starters)


def _no_namespaces(root: Path) -> str:
    """What keeps ordinary users from making namespaces; empty where nothing does."""
    for name, what in (
        ("user.max_user_namespaces", "user namespaces are switched off"),
        ("kernel.unprivileged_userns_clone", "user namespaces are for root alone"),
    ):
        try:
            value = (root / "proc" / "sys" / name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if value == "0":
            return f"{what} ({name} is 0)"
    return ""


def check_places(environ: Mapping[str, str] = os.environ) -> Findings:
    """Where the runtime puts what it downloads and unpacks."""
    bad = []
    for prefix in PREFIXES:
        for name in (f"{prefix}_CACHEDIR", f"{prefix}_TMPDIR"):
            text = environ.get(name)
            if not text:
                continue
            path = Path(text)
            if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
                bad.append(f"{name}={text} is no folder that can be written to")
            elif in_home(path, environ):
                bad.append(f"{name}={text} is in your home folder")
            elif file_system(path) in IN_MEMORY:
                bad.append(f"{name}={text} is in memory")
            elif name.endswith("TMPDIR") and os.statvfs(path).f_flag & os.ST_NOEXEC:
                bad.append(f"{name}={text} is mounted noexec")
    if bad:
        why = "an image of 10 GB takes 30 while it is pulled or built; quotas and memory end it"
        fix = "name folders on a large file system; hpc-amp container pull has --cache-dir"
        yield Finding("cache", "warning", "; ".join(bad), why, fix)
    else:
        yield Finding("cache", "good", "no cache in the home folder or in memory")


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
_HANDLED = (
    *("PYTHONPATH", "PYTHONHOME", "LC_ALL", "CONDA_PREFIX"),
    *(f"{prefix}ENV_LD_LIBRARY_PATH" for prefix in PREFIXES),
)


def check_leaks(environ: Mapping[str, str] = os.environ) -> Findings:
    """Variables of this shell. Submission leaves them behind, but shell start-up files may set them
    on the nodes again."""
    why = "a shell start-up file or a module that sets it does so on the nodes, too"
    found = False
    if environ.get("LD_PRELOAD"):
        found = True
        what = f"LD_PRELOAD={environ['LD_PRELOAD']}"
        fix = "its library is not in the image: unload the module that sets it (XALT, Darshan)"
        yield Finding("env.leak", "warning", what, why, fix)
    if environ.get("OPAL_PREFIX"):
        found = True
        what = f"OPAL_PREFIX={environ['OPAL_PREFIX']}"
        fix = "the image's Open MPI would look for its files there: unset it in job.setup"
        yield Finding("env.leak", "warning", what, why, fix)
    for prefix in PREFIXES:
        names = [
            name
            for name in environ
            if name.startswith(f"{prefix}ENV_") and name not in _HANDLED and environ[name]
        ]
        if names:
            found = True
            what = f"{', '.join(sorted(names))} set variables in every container"
            fix = "unset them; container.env sets variables without a shell evaluating them"
            yield Finding("env.leak", "warning", what, why, fix)
        for name in (f"{prefix}_BIND", f"{prefix}_BINDPATH"):
            sources = [part.split(":")[0] for part in environ.get(name, "").split(",") if part]
            missing = [source for source in sources if not os.path.exists(source)]
            if missing:
                found = True
                what = f"{name} names {', '.join(missing)}, which does not exist here"
                fix = f"take it out of {name}: a missing source stops every container"
                yield Finding("env.leak", "warning", what, why, fix)
    handled = [name for name in _HANDLED if environ.get(name)]
    if handled:
        what = f"{', '.join(handled)}: set here; the launch script keeps them from the ranks"
        yield Finding("env.leak", "good", what)
    elif not found:
        yield Finding("env.leak", "good", "nothing in this shell that would reach into a container")
