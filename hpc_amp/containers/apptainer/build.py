"""Build an image from a definition file. Temporary files are not in the home folder, the free space
is checked, and the image's file appears only when it is complete."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.site import Site
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
from hpc_amp.containers.ngc import REPOSITORY, table
from hpc_amp.containers.storage import gib
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.files import replacing

NGC_SIZE = 10 * 2**30
"""The typical size of an NGC PyTorch image as .sif, in bytes. They have 8 to 12 GB; 26.06 has 9.53
GiB."""
OTHER_SIZE = 2**30
BUILD_FACTOR = 3.0
"""The space for layers, the unpacked tree and the finished image, as a multiple of the image's
size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Making):
    """The options of `hpc-amp container build`."""

    definition: Path
    image: Path
    fakeroot: bool | None = None
    """None: if the site's `container_args` have `--fakeroot`."""


def build_image(
    wanted: Build,
    runtime: Runtime,
    site: Site,
    *,
    say: Say,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Build an image and return its path. `say` is called with messages for the user. Raises
    UsageError for wrong options, and HpcAmpError if the build fails."""
    refuse_many_ranks("build the image", environ)
    text = _read(wanted.definition)
    image = check_output(wanted.image, force=wanted.force)
    base = _base(text)
    size = wanted.size if wanted.size is not None else estimate(base)
    fakeroot = "--fakeroot" in site.container_args if wanted.fakeroot is None else wanted.fakeroot
    with places(image, wanted, site, environ, say) as made:
        check_space(made, image, size, factor=BUILD_FACTOR, what="the build")
        child = child_environ(environ, made, site, inside=True)
        secrets = credentials(base, child)
        command = [runtime.program, "build", *(["--fakeroot"] if fakeroot else []), *wanted.args]
        say(f"building {image} with {runtime.text}; temporary files in {made.scratch}")
        with replacing(image) as new:
            status, output = run(
                [*command, str(new), str(wanted.definition)],
                child,
                secrets=secrets,
                still=lambda seconds: going_on("building", seconds, made.scratch),
            )
            if status != 0:
                raise _failure(wanted.definition, status, output, secrets)
            read_image(str(new))
    return image


def going_on(what: str, seconds: float, folder: Path) -> str:
    """A message for a step that has printed nothing for a minute. `what` is "pulling" or
    "building", and `seconds` the time since its start."""
    free = shutil.disk_usage(folder).free
    return f"still {what}, {round(seconds)} s so far; {gib(free)} free in {folder.parent}"


def estimate(base: str) -> float:
    """The estimated size in bytes of a .sif image that is built on `base`, or pulled from it."""
    match = re.search(rf"{re.escape(REPOSITORY)}:?(.*)", base)
    if match is None:
        return OTHER_SIZE
    row = table().find(match[1])
    return row.gib * 2**30 if row is not None and row.gib is not None else NGC_SIZE


def _read(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        hint = "create one: hpc-amp container def ngc -o FILE"
        raise UsageError(f"there is no definition file {path}", hint=hint) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if "\0" in text or not re.search(r"^\s*bootstrap\s*:", text, re.IGNORECASE | re.MULTILINE):
        raise UsageError(
            f"{path} is not a definition file: it has no Bootstrap line",
            hint="for an image that is ready, use hpc-amp container pull",
        )
    return text


def _base(text: str) -> str:
    """The base image of a definition (its lines Bootstrap and From), as a URI."""

    def value(key: str) -> str:
        match = re.search(rf"^\s*{key}\s*:\s*(\S+)", text, re.IGNORECASE | re.MULTILINE)
        return match[1] if match else ""

    return f"{value('bootstrap').lower()}://{value('from')}"


def _failure(definition: Path, status: int, output: str, secrets: Sequence[str]) -> HpcAmpError:
    message, cause = explain(output)
    for secret in secrets:
        message = message.replace(secret, "***")
    return HpcAmpError(f"the build of {definition} failed (status {status}): {message}", hint=cause)
