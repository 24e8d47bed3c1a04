"""The checks of `hpc-amp doctor` on Apptainer and Singularity on this machine."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_amp.containers.apptainer.program import PREFIXES, Runtime, find_runtime
from hpc_amp.containers.base import not_found
from hpc_amp.containers.storage import IN_MEMORY, file_system, in_home
from hpc_amp.errors import HpcAmpError
from hpc_amp.finding import Finding, Findings
from hpc_amp.resources import Which, which


def check_here(
    binaries: Sequence[str],
    *,
    needed: bool,
    elsewhere: str = "",
    which: Which = which,
    root: Path = Path("/"),
) -> Findings:
    """See `Container.check_here`. Also checks whether this machine can start containers for an
    ordinary user without unpacking them."""
    try:
        runtime = find_runtime(binaries, which=which)
    except HpcAmpError as error:
        hint = error.hint or ""
        yield not_found(error.message, needed=needed, elsewhere=elsewhere, hint=hint)
        return
    how = "setuid" if _is_setuid(runtime) else "user namespaces"
    if how == "user namespaces" and os.geteuid() != 0:
        hindrance = _no_namespaces(root)
        if hindrance:
            what = f"{runtime.text} is not setuid, and {hindrance}"
            why = "ordinary users can then start no container"
            fix = "administrators can enable user namespaces, or install apptainer-suid"
            yield Finding("rt.found", "error", what, why, fix)
            return
    fuse = root / "dev" / "fuse"
    if how == "user namespaces" and not os.access(fuse, os.R_OK | os.W_OK):
        what = f"{runtime.text} is not setuid, and /dev/fuse cannot be used"
        why = "it then unpacks a .sif file into a folder at every start, which takes minutes"
        fix = "administrators can load the module `fuse` and permit /dev/fuse; or use a sandbox"
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
    """Why ordinary users cannot create user namespaces; empty if they can."""
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


def check_places(environ: Mapping[str, str]) -> Findings:
    """Yield the finding `cache`: whether the folders for downloads and temporary files are
    suitable."""
    bad = []
    for prefix in PREFIXES:
        for name in (f"{prefix}_CACHEDIR", f"{prefix}_TMPDIR"):
            text = environ.get(name)
            if not text:
                continue
            path = Path(text)
            if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
                bad.append(f"{name}={text} is not a folder with write permission")
            elif in_home(path, environ):
                bad.append(f"{name}={text} is in your home folder")
            elif file_system(path) in IN_MEMORY:
                bad.append(f"{name}={text} is in memory")
            elif name.endswith("TMPDIR") and os.statvfs(path).f_flag & os.ST_NOEXEC:
                bad.append(f"{name}={text} is mounted noexec")
    if bad:
        why = "pulling or building an image of 10 GB needs 30 GB"
        fix = "name folders on a large file system; hpc-amp container pull has --cache-dir"
        yield Finding("cache", "warning", "; ".join(bad), why, fix)
    else:
        yield Finding("cache", "good", "no cache in the home folder or in memory")


def check_leaks(environ: Mapping[str, str], handled: Sequence[str]) -> Findings:
    """Yield the findings `env.leak`: variables of the shell that set variables and binds in every
    container. Those in `handled` are left out, because the host code removes them."""
    why = "a shell start-up file or a module that sets it does so on the nodes too"
    for prefix in PREFIXES:
        names = [
            name
            for name in environ
            if name.startswith(f"{prefix}ENV_") and name not in handled and environ[name]
        ]
        if names:
            what = f"{', '.join(sorted(names))} set variables in every container"
            fix = "unset them; container.env sets variables without a shell evaluating them"
            yield Finding("env.leak", "warning", what, why, fix)
        for name in (f"{prefix}_BIND", f"{prefix}_BINDPATH"):
            sources = [part.split(":")[0] for part in environ.get(name, "").split(",") if part]
            missing = [source for source in sources if not os.path.exists(source)]
            if missing:
                what = f"{name} names {', '.join(missing)}, which does not exist here"
                fix = f"remove it from {name}: no container starts if a source is missing"
                yield Finding("env.leak", "warning", what, why, fix)


# Options and the first version of Apptainer that has them. SingularityCE has its own numbers.
_SINCE = {"--no-eval": (1, 1), "--unsquash": (1, 1), "--sharens": (1, 3), "--no-env": (1, 5)}
_HIDES = {"--cleanenv", "-e", "--containall", "-C", "--compat"}


def check_options(
    binaries: Sequence[str], options: Sequence[str], *, ranks: int, which: Which = which
) -> Findings:
    """Yield the findings `rt.flags` and `env.value`: options that this version does not have, and
    options that prevent the ranks from working."""
    runtime: Runtime | None
    try:
        runtime = find_runtime(binaries, which=which)
    except HpcAmpError:
        runtime = None
    good = True
    names = [word.partition("=")[0] for word in options]
    hides = sorted(_HIDES & set(names))
    if hides and ranks > 1:
        good = False
        what = f"{', '.join(hides)} keeps the launcher's variables out of the container"
        why = "each rank would be in a world of its own, and train alone"
        fix = "leave it out of container.args; hpc-amp sets PYTHONNOUSERSITE itself"
        yield Finding("rt.flags", "error", what, why, fix)
    if "--writable-tmpfs" in names or "--containall" in names or "-C" in names:
        good = False
        what = "--writable-tmpfs and --containall have 64 MB for files, in memory"
        why = "caches of compilers and data loaders can fill them"
        yield Finding("rt.flags", "warning", what, why, "bind a folder for files that are written")
    for name in names:
        if name not in _SINCE or runtime is None or runtime.flavour != "apptainer":
            continue
        if runtime.version and runtime.version < _SINCE[name]:
            good = False
            since = ".".join(map(str, _SINCE[name]))
            what = f"{name} came with Apptainer {since}, and here is {runtime.text}"
            fix = "leave it out, or load a newer module in job.setup"
            yield Finding("rt.flags", "error", what, "the container does not start", fix)
    if good:
        says = "an unknown version" if runtime is None else runtime.text
        yield Finding("rt.flags", "good", f"{says} has all options of job and site")
    yield from _check_values(options)


def _check_values(options: Sequence[str]) -> Findings:
    """The runtime splits `--env A=1,B=x,y` at commas, and ignores parts without `=`."""
    values = [word[len("--env=") :] for word in options if word.startswith("--env=")]
    values += [after for word, after in itertools.pairwise(options) if word == "--env"]
    bad = [
        value
        for value in values
        if ("," in value and value.count("=") > 1) or re.search(r"`|\$\(|\n", value)
    ]
    if bad:
        names = ", ".join(value.partition("=")[0] for value in bad)
        what = f"--env {names}: the runtime splits values at commas and evaluates them as shell"
        fix = "write them into container.env, where values are not changed"
        yield Finding("env.value", "error", what, "parts of it get lost without a message", fix)
    else:
        yield Finding("env.value", "good", "no value is split or evaluated by the runtime")
