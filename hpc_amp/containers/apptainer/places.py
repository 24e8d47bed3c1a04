"""Where a build or a pull keeps its temporary files: never by default in the home folder, whose
quota is small, nor in memory; and never without enough space."""

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
    """How an image is to be made, wherever it comes from."""

    force: bool = False
    """Replace an image that is there."""
    tmp_dir: Path | None = None
    cache_dir: Path | None = None
    size: float | None = None
    """Bytes of the finished image, to check the space for; None: estimated."""
    args: Sequence[str] = field(default_factory=list)
    """More options for the runtime."""


@dataclass(frozen=True, slots=True)
class Places:
    """Absolute folders of one build or pull."""

    scratch: Path
    """Made for this one, and removed behind it."""
    cache: Path
    """What may be used again, or a folder in `scratch`."""
    keeps_cache: bool


def check_output(image: Path, *, force: bool) -> Path:
    """The absolute path of an image to be made. Raises UsageError where it cannot be."""
    if "://" in str(image):
        raise UsageError(f"{image} is a URI, not a file to write", hint="name a .sif file")
    image = Path(os.path.abspath(image.expanduser()))
    folder = image.parent
    if image.is_dir():
        raise UsageError(f"{image} is a folder", hint="name a .sif file that does not exist yet")
    if image.exists() and not force:
        raise UsageError(f"{image} exists already", hint="use --force to replace it")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="make it, or choose another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written to", hint="choose another folder")
    return image


@contextlib.contextmanager
def places(
    image: Path, wanted: Making, site: Site, environ: Mapping[str, str], say: Say
) -> Iterator[Places]:
    """The folders for making `image`: those of the options, else of the runtime's own variables,
    unless they are in the home folder or in memory, else beside the image."""
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


@contextlib.contextmanager
def whole(image: Path) -> Iterator[Path]:
    """A file to make `image` as. It takes the image's place where the block ends well, and goes
    where it does not."""
    new = image.with_name(f".{image.name}.new.{os.getpid()}")
    try:
        yield new
        os.replace(new, image)
    finally:
        new.unlink(missing_ok=True)


def _choose(
    what: str, option: Path | None, variable: str, environ: Mapping[str, str], say: Say
) -> Path | None:
    if option is not None:
        chosen = Path(os.path.abspath(option.expanduser()))
        if not chosen.is_dir() or not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(
                f"--{what}-dir: {chosen} is not a folder that can be written to",
                hint="make it first",
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
            say(f"{name}={text} is not used: it is not a folder that can be written to")
        elif in_home(chosen, environ):
            say(f"{name}={text} is not used: it is in your home folder; --{what}-dir would use it")
        elif file_system(chosen) == "tmpfs":
            say(f"{name}={text} is not used: it is in memory; --{what}-dir would use it")
        else:
            return chosen
    return None


def check_space(made: Places, image: Path, size: float, *, factor: float, what: str) -> None:
    """Raises HpcAmpError where a file system has less space than an image of `size` bytes takes
    while it is made: `factor` times its size for temporary files, and itself."""
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
                hint=f"make room, go elsewhere{option}, or say the real size with --size",
            )


def child_environ(
    environ: Mapping[str, str], made: Places, site: Site, *, inside: bool = False
) -> dict[str, str]:
    """The environment of the runtime: its folders under both names, the site's proxies where none
    are set and, with `inside`, the proxies for what is built inside too, where no host variable
    reaches otherwise."""
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
    """Remove a folder even where its own folders may not be written to. Says whether it is gone."""

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
