"""Pull an image from a registry or a web address. Concurrent pulls of one image wait for each
other, and the image's file appears only when it is complete."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.site import Site
from hpc_amp.containers.apptainer.build import estimate as estimate_size
from hpc_amp.containers.apptainer.build import going_on
from hpc_amp.containers.apptainer.credentials import credentials
from hpc_amp.containers.apptainer.image import read_image
from hpc_amp.containers.apptainer.places import (
    Making,
    Say,
    check_output,
    check_space,
    child_environ,
    places,
)
from hpc_amp.containers.apptainer.program import Runtime, explain, refuse_many_ranks, run
from hpc_amp.containers.image import machine
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.files import replacing
from hpc_amp.locks import UnsupportedLocksError, lock

TRANSPORTS = ("docker", "docker-archive", "oci", "oci-archive", "oras", "library", "https", "http")
_BUILT = ("docker", "docker-archive", "oci", "oci-archive")  # unpacked and packed again locally


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull(Making):
    """The options of `hpc-amp container pull`."""

    uri: str
    image: Path | None = None
    """The file to write. None: a name made from the URI, in the working directory."""
    architecture: str | None = None
    """The architecture in Go's form; None: this machine's."""


def pull_image(
    wanted: Pull,
    runtime: Runtime,
    site: Site,
    *,
    say: Say,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Pull an image and return its path. An existing image is kept, unless `wanted.force` is set.
    `say` is called with messages for the user. Raises UsageError for wrong options, and HpcAmpError
    if the pull fails."""
    refuse_many_ranks("pull the image", environ)
    transport = check_uri(wanted.uri)
    target = wanted.image or Path(file_name(wanted.uri))
    # Whether the image exists is checked below, when the lock is held.
    image = check_output(target, force=True)
    with pulling(image, say):
        if image.exists() and not wanted.force:
            found = read_image(str(image))
            say(f"{image} exists already ({found.architecture}); --force pulls it again")
            return image
        _pull(wanted, transport, image, runtime, site, say, environ)
    return image


def _pull(
    wanted: Pull,
    transport: str,
    image: Path,
    runtime: Runtime,
    site: Site,
    say: Say,
    environ: Mapping[str, str],
) -> None:
    size = wanted.size if wanted.size is not None else estimate_size(wanted.uri)
    with places(image, wanted, site, environ, say) as made:
        factor = 3.0 if transport in _BUILT else 2.0
        check_space(made, image, size, factor=factor, what="the pull")
        child = child_environ(environ, made, site)
        secrets = credentials(wanted.uri, child)
        command = [runtime.program, "pull"]
        # A temporary cache would only store the image twice.
        command += [] if made.keeps_cache else ["--disable-cache"]
        command += ["--arch", wanted.architecture] if wanted.architecture else []
        say(f"pulling {wanted.uri} with {runtime.text}; temporary files in {made.scratch}")
        with replacing(image) as new:
            status, output = run(
                [*command, *wanted.args, str(new), wanted.uri],
                child,
                secrets=secrets,
                still=lambda seconds: going_on("pulling", seconds, made.scratch),
            )
            if status != 0 or not new.exists():
                message, cause = explain(output)
                raise HpcAmpError(
                    f"{wanted.uri} could not be pulled (status {status}): {message}", hint=cause
                )
            found = read_image(str(new))
            _check_architecture(wanted, found.architecture, say)


def _check_architecture(wanted: Pull, found: str | None, say: Say) -> None:
    if found is None:
        return
    if wanted.architecture is not None and found != wanted.architecture:
        raise HpcAmpError(
            f"{wanted.uri} is an image for {found}, not for {wanted.architecture}",
            hint="pull another one",
        )
    if found != machine():
        say(f"the image is for {found}, and this machine is {machine()}: it runs on {found} nodes")


def check_uri(uri: str) -> str:
    """The transport of a URI, such as `docker`. Raises UsageError if the URI is not valid, cannot
    be pulled, or contains a user or a password."""
    transport, separator, rest = uri.partition("://")
    if not separator:
        raise UsageError(
            f"{uri!r} is not a URI", hint=f"write the transport too: docker://{uri.lstrip('/')}"
        )
    if transport not in TRANSPORTS:
        raise UsageError(
            f"{transport}:// cannot be pulled",
            hint=f"use one of {', '.join(f'{name}://' for name in TRANSPORTS)}",
        )
    if not rest or any(ord(letter) <= 32 or ord(letter) == 127 for letter in uri):
        raise UsageError(f"{uri!r} is not a URI: it has a blank, or names nothing")
    if "@" in rest.partition("/")[0]:
        raise UsageError(
            "the URI has a user or a password in it, which every process list would show",
            hint="put them into APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD",
        )
    return transport


def file_name(uri: str) -> str:
    """A file name for the image of a URI, such as `pytorch_25.06-py3.sif`."""
    last = re.sub(r"[?#].*", "", uri).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", last.partition("@")[0]).strip("._") or "image"
    return name if name.endswith((".sif", ".simg")) else f"{name}.sif"


@contextlib.contextmanager
def pulling(image: Path, say: Say) -> Iterator[None]:
    """Hold a lock file beside `image` during the block, so that one process at a time pulls the
    image. Without locks in the file system, concurrent pulls only cost time: each works in a folder
    of its own, and the finished image is renamed."""
    path = image.with_name(f".{image.name}.lock")
    descriptor = _acquire(path, image, say)
    try:
        yield
    finally:
        if descriptor is not None:
            # Removed before it is unlocked: a process that waits for the lock then notices that the
            # file is gone, and creates a new one.
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _acquire(path: Path, image: Path, say: Say) -> int | None:
    """Lock the file at `path`. Returns its descriptor, or None if the file system has no locks."""
    has_told = False
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HpcAmpError(
                f"{path} cannot be locked: {error.strerror}", hint="choose another folder"
            ) from None
        try:
            if not lock(descriptor, wait=False):
                if not has_told:
                    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    say(f"{image} is being pulled by {holder or 'another process'}; waiting for it")
                    has_told = True
                lock(descriptor, wait=True)
            if _still_there(path, descriptor):
                os.ftruncate(descriptor, 0)
                note = f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n"
                os.pwrite(descriptor, note.encode(), 0)
                return descriptor
        except UnsupportedLocksError:
            say(f"{image.parent} has no locks: avoid another pull of {image.name} at this time")
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process before this one removed the file: try again


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
