"""Pyxis: a plugin that gives srun options for containers of Enroot.

There is no program in front of the command: the step that srun makes is inside. The batch script
runs outside, and each check before the launch is a step with the same options.

An image's own variables win over those of the step. A rank's environment is set inside, by
`hpc_amp.distributed.exec`, so no `--container-env` is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpc_amp.config.bind import Bind, parse_bind
from hpc_amp.containers.base import Container, Which
from hpc_amp.containers.image import URI, Image, image_at, squashfs_file
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.finding import Finding, Findings

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

_FILES = (".sqsh", ".squashfs", ".sqfs")
# [USER@][REGISTRY#]IMAGE[:TAG], as Enroot reads it behind docker://.
_REFERENCE = re.compile(
    r"([^@#/\s]+@)?([\w.-]+(:\d+)?#)?[a-z0-9][a-z0-9._/-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?"
)
# Pyxis splits mounts at ',' and ':'; Enroot reads them as lines of fstab and expands variables.
_NOT_IN_MOUNTS = re.compile(r"""[,:$"'\\\s]""")
_FLAGS = re.compile(r"[a-z-]+([+,][a-z-]+)*")
# What a plan gives unless site or job say otherwise, by the option that says so.
_DEFAULTS = {
    "--container-mount-home": "--no-container-mount-home",
    "--container-remap-root": "--no-container-remap-root",
    "--container-entrypoint": "--no-container-entrypoint",
}
_OURS = ("--container-image", "--container-mounts", "--container-workdir", "--container-name")


class Pyxis(Container):
    """Options of srun, for squashfs files and images of registries."""

    name = "pyxis"
    title = "Pyxis"
    entered_by = "srun"
    image_forms = "a squashfs file or an image of a registry"
    unmountable = "',', ':', '$', quotes, backslashes and blanks cannot stand in a mount"
    handled = tuple(
        f"PYXIS_CONTAINER_{name}"
        for name in ("IMAGE", "MOUNTS", "WORKDIR", "NAME", "SAVE", "ENV", "WRITABLE", "READONLY")
    )

    def is_path(self, image: str) -> bool:
        """Pyxis itself takes for a path what begins with `/` or `.`; here also the name of a
        squashfs file is one, which becomes absolute."""
        return image.startswith(("/", ".")) or image.endswith(_FILES)

    def check_image(self, image: str) -> None:
        """A whole squashfs file, or the name of an image as Enroot writes it."""
        if self.is_path(image):
            self.read_image(image)
            return
        if URI.fullmatch(image):
            transport, _, rest = image.partition("://")
            hint = f"write image: {_as_enroot(rest)}" if transport == "docker" else ""
            raise UsageError(
                f"{image} is a URI, and Pyxis takes {self.image_forms}",
                hint=hint or "import it once with enroot import, and name the squashfs file",
            )
        if _as_enroot(image) != image:
            raise UsageError(
                f"{image}: Enroot would look for all of it on Docker Hub, since a registry's name "
                "ends at '#'",
                hint=f"write image: {_as_enroot(image)}",
            )
        if not _REFERENCE.fullmatch(image):
            raise UsageError(
                f"{image!r} is neither a squashfs file nor the name of an image",
                hint="write a path that ends in .sqsh, or registry#image:tag",
            )

    def read_image(self, image: str) -> Image | None:
        """A squashfs file. What an image of a registry is, only the nodes see."""
        if not self.is_path(image):
            return None
        if os.path.isdir(image):
            raise UsageError(
                f"{image} is a folder, and Pyxis takes {self.image_forms}",
                hint="make a squashfs file of it: enroot export, or mksquashfs",
            )
        return image_at(image, _read_squashfs)

    def mountable(self, path: str) -> bool:
        """What neither Pyxis nor Enroot takes apart."""
        return not _NOT_IN_MOUNTS.search(path)

    def check_bind(self, bind: Bind) -> str | None:
        """The flags are Enroot's: options of mount(8)."""
        if bind.options and not _FLAGS.fullmatch(bind.options):
            return "its flags are words such as ro, joined by '+'"
        return None

    def check(self, plan: Spec) -> None:
        """The directives must not put the batch script into a container, which has no srun; and
        what the plan itself says must be said once."""
        for key, lines in (
            (f"directives of site {plan.site.name}", plan.site.directives),
            ("job.directives", plan.job.resources.directives),
        ):
            for line in lines:
                if line.startswith("--container-"):
                    raise ConfigError(
                        f"{key}: {line!r} would put the batch script itself into the container",
                        hint="leave it out: the steps of the job get these options",
                    )
        for key, words in (
            (f"container_args of site {plan.site.name}", plan.site.container_args),
            ("container.args", plan.job.container.args),
        ):
            for word in words:
                if word.partition("=")[0] in _OURS:
                    raise ConfigError(
                        f"{key}: {word} cannot be given: hpc-amp gives it itself",
                        hint="use container.image and container.bind",
                    )

    def options(self, plan: Spec) -> list[str]:
        """All binds are one option. Without it the home folder would be mounted, whose Python
        packages would come before the image's, and an entry point would run in every rank."""
        more = [*plan.site.container_args, *plan.job.container.args]
        words = [f"--container-mounts={','.join(map(_mount, plan.binds))}"]
        words.append(f"--container-workdir={plan.run_dir}")
        words += [off for on, off in _DEFAULTS.items() if on not in more and off not in more]
        return [*words, *more]

    def settings(self, plan: Spec) -> dict[str, str]:
        """Enroot's hook mounts the driver for a variable."""
        return {"gpu": "yes" if plan.gpu_inside else "no"}

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """A step of one process in the allocation that the user is in."""
        image = f"--container-image={plan.job.container.image}"
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--pty"]
        return [*step, image, *self.options(plan), *inside]

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which | None = None,
        root: Path = Path("/"),
    ) -> Findings:
        """The plugin is there where srun's help has its options."""
        what = "whether srun has the options of Pyxis: srun --help | grep container-image"
        yield Finding("rt.found", "unknown", what)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which | None = None
    ) -> Findings:
        """Options that say the opposite of each other are refused by Pyxis."""
        wrong = list(_contradictions(options))
        if wrong:
            what = f"{' and '.join(wrong[0])} contradict each other"
            fix = "leave one out of container.args or of the site's container_args"
            yield Finding("rt.flags", "error", what, "srun starts no rank", fix)
        else:
            yield Finding("rt.flags", "good", "no options that contradict each other")

    def check_leaks(self, environ: Mapping[str, str]) -> Findings:
        """The folder of Enroot's configuration changes every container."""
        name = "ENROOT_CONFIG_PATH"
        if environ.get(name):
            what = f"{name}={environ[name]} chooses the mounts and hooks of every container"
            fix = "unset it, unless its files are meant for this job"
            yield Finding("env.leak", "warning", what, "Pyxis hands it to Enroot on each node", fix)


def _as_enroot(image: str) -> str:
    """The name of an image with `#` behind its registry, where Docker has a `/`."""
    first, slash, rest = image.partition("/")
    is_registry = "." in first or ":" in first or first == "localhost"
    return f"{first}#{rest}" if slash and is_registry and "#" not in image else image


def _mount(text: str) -> str:
    """A bind as Pyxis writes it: always with its destination, which older versions need."""
    bind = parse_bind(text) or Bind(text, text)
    flags = f":{bind.options.replace(',', '+')}" if bind.options else ""
    return f"{bind.source}:{bind.destination}{flags}"


def _contradictions(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    pairs = [*_DEFAULTS.items(), ("--container-writable", "--container-readonly")]
    for one, other in pairs:
        if one in options and other in options:
            yield one, other


def _read_squashfs(path: Path, file: BinaryIO) -> Image:
    return squashfs_file(
        path, file, f"import the image: enroot import -o {path.stem}.sqsh docker://..."
    )
