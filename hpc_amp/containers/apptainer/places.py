"""The folders for temporary files of a build or a pull. By default they are neither in the home
folder, whose quota is small, nor in memory, and their free space is checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_amp.config.site import Site
from hpc_amp.containers.apptainer.program import PREFIXES
from hpc_amp.containers.storage import file_system, gib, in_home
from hpc_amp.errors import HpcAmpError, UsageError

Say = Callable[[str], None]

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_EVALUATED = set("$`\"\\'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """The options that pulling and building an image have in common."""

    force: bool = False
    """Replace an existing image."""
    tmp_dir: Path | None = None
    cache_dir: Path | None = None
    size: float | None = None
    """The size of the finished image in bytes, for the check of free space. None: estimated."""
    args: Sequence[str] = field(default_factory=list)
    """Further options for the runtime."""


@dataclass(frozen=True, slots=True)
class Places:
    """Absolute folders of one build or pull."""

    scratch: Path
    """A temporary folder, which is removed afterwards."""
    cache: Path
    """The runtime's cache: a permanent folder, or one in `scratch`."""
    keeps_cache: bool
    """Whether the cache is a permanent folder."""


def check_output(image: Path, *, force: bool) -> Path:
    """The absolute path of an image that will be written. Raises UsageError if it cannot be
    written, or exists and `force` is false."""
    if "://" in str(image):
        raise UsageError(f"{image} is a URI, not a file to write", hint="name a .sif file")
    image = Path(os.path.abspath(image.expanduser()))
    folder = image.parent
    if image.is_dir():
        raise UsageError(f"{image} is a folder", hint="name a .sif file that does not exist yet")
    if image.exists() and not force:
        raise UsageError(f"{image} exists already", hint="use --force to replace it")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="create it, or choose another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written to", hint="choose another folder")
    return image


@contextlib.contextmanager
def places(
    image: Path, wanted: Making, site: Site, environ: Mapping[str, str], say: Say
) -> Iterator[Places]:
    """The folders for making `image`: those of the options, else those of the runtime's variables
    if they are neither in the home folder nor in memory, else a folder beside the image. Temporary
    files are removed after the block. Raises UsageError or HpcAmpError if a folder is not
    suitable."""
    environ = {**site.env, **environ}
    parent = _choose("tmp", wanted.tmp_dir, "TMPDIR", environ, say) or image.parent
    executable = not os.statvfs(parent).f_flag & os.ST_NOEXEC
    if not executable:
        raise UsageError(
            f"nothing in {parent} may be executed (it is mounted noexec)",
            hint="choose another place with --tmp-dir",
        )
    cache = _choose("cache", wanted.cache_dir, "CACHEDIR", environ, say)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{image.name}.", dir=parent))
    except OSError as error:
        raise HpcAmpError(
            f"{parent} cannot be written to: {error.strerror}",
            hint="choose another place with --tmp-dir",
        ) from None
    try:
        for name in ("tmp", "cache"):
            (scratch / name).mkdir()
        yield Places(scratch, cache or scratch / "cache", cache is not None)
    finally:
        if not remove(scratch):
            say(f"not everything in {scratch} could be removed; remove it yourself")


def _choose(
    what: str, option: Path | None, variable: str, environ: Mapping[str, str], say: Say
) -> Path | None:
    if option is not None:
        chosen = Path(os.path.abspath(option.expanduser()))
        if not chosen.is_dir() or not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(
                f"--{what}-dir: {chosen} is not a folder with write permission",
                hint="create it first",
            )
        if file_system(chosen) == "tmpfs":
            say(f"{chosen} is in memory, which everything on this node shares")
        return chosen
    for prefix in PREFIXES:
        name = f"{prefix}_{variable}"
        text = environ.get(name)
        if not text:
            continue
        chosen = Path(os.path.abspath(text))
        if not chosen.is_dir() or not os.access(chosen, os.W_OK | os.X_OK):
            say(f"{name}={text} is not used: it is not a folder with write permission")
        elif in_home(chosen, environ):
            say(f"{name}={text} is not used: it is in your home folder; --{what}-dir would use it")
        elif file_system(chosen) == "tmpfs":
            say(f"{name}={text} is not used: it is in memory; --{what}-dir would use it")
        else:
            return chosen
    return None


def check_space(made: Places, image: Path, size: float, *, factor: float, what: str) -> None:
    """Raise HpcAmpError if a file system has too little space for making an image of `size` bytes:
    `factor` times the size for temporary files, and once for the image. `what` is "the pull" or
    "the build"."""
    wanted: dict[int, tuple[Path, float]] = {}
    for folder, need in ((made.scratch.parent, factor * size), (image.parent, size)):
        device = os.stat(folder).st_dev
        before = wanted.get(device, (folder, 0.0))
        wanted[device] = (before[0], max(before[1], need))
    for folder, need in wanted.values():
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
        if free < need:
            option = " or with --tmp-dir" if folder == made.scratch.parent else ""
            raise HpcAmpError(
                f"{folder} has {gib(free)} free, and {what} needs about {gib(need)} there (for an "
                f"image of about {gib(size)})",
                hint=f"free some space, choose another folder{option}, or give the real size with "
                "--size",
            )


def child_environ(
    environ: Mapping[str, str], made: Places, site: Site, *, inside: bool = False
) -> dict[str, str]:
    """The environment of the runtime: `environ`, the folders under both names of the runtime, and
    the site's proxies if `environ` has none. `inside`: proxies are also set for the programs in the
    container of a build, which get no other variables of the host."""
    child = dict(environ)
    for name in _PROXIES:
        value = environ.get(name) or environ.get(name.upper())
        value = value or site.env.get(name) or site.env.get(name.upper())
        if not value:
            continue
        child[name] = child[name.upper()] = value
        if not inside:
            continue
        if _EVALUATED & set(value):
            raise UsageError(
                f"{name} has a character that the runtime would evaluate as shell",
                hint="percent-encode it: $ is %24",
            )
        for prefix in PREFIXES:
            child[f"{prefix}ENV_{name}"] = child[f"{prefix}ENV_{name.upper()}"] = value
    for prefix in PREFIXES:
        child[f"{prefix}_TMPDIR"] = str(made.scratch / "tmp")
        child[f"{prefix}_CACHEDIR"] = str(made.cache)
    child["TMPDIR"] = str(made.scratch / "tmp")
    return child


def remove(folder: Path) -> bool:
    """Remove a folder, even if folders in it have no write permission. Returns whether it is
    gone."""

    def unlock(function: object, path: str, error: object) -> None:
        with contextlib.suppress(OSError):
            for one in (os.path.dirname(path), path):
                if not os.path.islink(one) and os.path.isdir(one):
                    os.chmod(one, stat.S_IRWXU)

    for _ in range(20):
        shutil.rmtree(folder, onerror=unlock)
        if not folder.exists():
            return True
    return False
