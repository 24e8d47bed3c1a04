"""Pyxis: a plug-in that gives srun options for containers of Enroot.

No program is put before the command: the step that srun creates runs in the container. The batch
script runs outside, and each check before the launch is a step with the same options.

The image's variables override those of the step. `hpc_amp.distributed.exec` sets a rank's
environment in the container, so `--container-env` is not needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpc_amp.config.bind import Bind, parse_bind
from hpc_amp.containers.base import Container
from hpc_amp.containers.image import URI, Image, image_at, squashfs_file
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.finding import Finding, Findings
from hpc_amp.resources import Which

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.jobs.spec import Spec

_FILES = (".sqsh", ".squashfs", ".sqfs")
# [USER@][REGISTRY#]IMAGE[:TAG], as Enroot reads it after docker://.
_REFERENCE = re.compile(
    r"([^@#/\s]+@)?([\w.-]+(:\d+)?#)?[a-z0-9][a-z0-9._/-]*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?"
)
# Pyxis splits mounts at ',' and ':'. Enroot reads them as lines of fstab and expands variables.
_NOT_IN_MOUNTS = re.compile(r"""[,:$"'\\\s]""")
_FLAGS = re.compile(r"[a-z-]+([+,][a-z-]+)*")
# Default options, by the options of site and job that replace them.
_DEFAULTS = {
    "--container-mount-home": "--no-container-mount-home",
    "--container-remap-root": "--no-container-remap-root",
    "--container-entrypoint": "--no-container-entrypoint",
}
_OURS = ("--container-image", "--container-mounts", "--container-workdir", "--container-name")


class Pyxis(Container):
    """Pyxis: options of srun, for squashfs files and images of registries."""

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
        """Whether the image begins with `/` or `.`, as in Pyxis itself, or ends like a squashfs
        file. Such a name is made absolute."""
        return image.startswith(("/", ".")) or image.endswith(_FILES)

    def check_image(self, image: str) -> None:
        """Accept a complete squashfs file, or the name of an image in Enroot's form."""
        if self.is_path(image):
            self.read_image(image)
            return
        if URI.fullmatch(image):
            transport, _, rest = image.partition("://")
            hint = f"write image: {_as_enroot(rest)}" if transport == "docker" else ""
            raise UsageError(
                f"{image} is a URI, and Pyxis needs {self.image_forms}",
                hint=hint or "import it once with enroot import, and name the squashfs file",
            )
        if _as_enroot(image) != image:
            raise UsageError(
                f"{image}: Enroot would search for the whole name on Docker Hub, because '#' has "
                "to follow a registry's name",
                hint=f"write image: {_as_enroot(image)}",
            )
        if not _REFERENCE.fullmatch(image):
            raise UsageError(
                f"{image!r} is neither a squashfs file nor the name of an image",
                hint="write a path that ends in .sqsh, or registry#image:tag",
            )

    def read_image(self, image: str) -> Image | None:
        """Read a squashfs file. Returns None for an image of a registry, which only the nodes
        download."""
        if not self.is_path(image):
            return None
        if os.path.isdir(image):
            raise UsageError(
                f"{image} is a folder, and Pyxis needs {self.image_forms}",
                hint="make a squashfs file of it: enroot export, or mksquashfs",
            )
        return image_at(image, _read_squashfs)

    def mountable(self, path: str) -> bool:
        """Whether the path has no character that Pyxis or Enroot would split or expand."""
        return not _NOT_IN_MOUNTS.search(path)

    def check_bind(self, bind: Bind) -> str | None:
        """The flags are options of mount(8)."""
        if bind.options and not _FLAGS.fullmatch(bind.options):
            return "its flags are words such as ro, joined by '+'"
        return None

    def check(self, plan: Spec) -> None:
        """Refuse directives that would put the batch script into a container, which has no srun,
        and options that hpc-amp itself gives."""
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
                        f"{key}: {word} cannot be used: hpc-amp sets it itself",
                        hint="use container.image and container.bind",
                    )

    def options(self, plan: Spec) -> list[str]:
        """See `Container.options`. All binds are one option. `_DEFAULTS` prevents that the home
        folder is mounted, whose Python packages would be found before the image's, and that an
        entry point runs in every rank."""
        more = [*plan.site.container_args, *plan.job.container.args]
        words = [f"--container-mounts={','.join(map(_mount, plan.binds))}"]
        words.append(f"--container-workdir={plan.run_dir}")
        words += [off for on, off in _DEFAULTS.items() if on not in more and off not in more]
        return [*words, *more]

    def settings(self, plan: Spec) -> dict[str, str]:
        """Whether the ranks get the driver. The host code sets a variable, and Enroot's hook then
        mounts the driver."""
        return {"gpu": "yes" if plan.gpu_inside else "no"}

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """See `Container.command`: a step of one process in the present allocation."""
        image = f"--container-image={plan.job.container.image}"
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--pty"]
        return [*step, image, *self.options(plan), *inside]

    def seen_here(self, clients: Clients) -> str:
        """The plug-in adds options to srun."""
        if not clients.has("srun"):
            return ""
        shown = clients.output("srun", "--help", with_errors=True, quiet=True)
        found = "--container-image" in shown
        return "srun --help has --container-image" if found else ""

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which | None = None,
        root: Path = Path("/"),
    ) -> Findings:
        """Unknown on this machine: the plug-in may be installed on the nodes only."""
        what = "whether srun has the options of Pyxis: srun --help | grep container-image"
        yield Finding("rt.found", "unknown", what)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which | None = None
    ) -> Findings:
        """Refuse options that contradict each other, as Pyxis does."""
        wrong = list(_contradictions(options))
        if wrong:
            what = f"{' and '.join(wrong[0])} contradict each other"
            fix = "leave one out of container.args or of the site's container_args"
            yield Finding("rt.flags", "error", what, "srun starts no rank", fix)
        else:
            yield Finding("rt.flags", "good", "no options that contradict each other")

    def check_leaks(self, environ: Mapping[str, str]) -> Findings:
        """Warn about a variable that selects Enroot's configuration, which affects every
        container."""
        name = "ENROOT_CONFIG_PATH"
        if environ.get(name):
            what = f"{name}={environ[name]} selects the mounts and hooks of every container"
            fix = "unset it, unless its files are meant for this job"
            yield Finding(
                "env.leak", "warning", what, "Pyxis passes it to Enroot on each node", fix
            )


def _as_enroot(image: str) -> str:
    """Convert the name of an image to Enroot's form, with `#` after the registry instead of `/`."""
    first, slash, rest = image.partition("/")
    is_registry = "." in first or ":" in first or first == "localhost"
    return f"{first}#{rest}" if slash and is_registry and "#" not in image else image


def _mount(text: str) -> str:
    """A bind in Pyxis's form. The destination is always written, because older versions need
    it."""
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
