"""The interface of container runtimes.

A runtime is a class that extends `Container`, and its host code: bash that runs on the first node
of a job, outside of the image. Nothing else names a runtime; what a caller has to know is a method
or an attribute here, with a default that fits a runtime whose images are files or folders.

Host code is sourced by hpc_amp/host/container.sh and defines the function `enter_container`. That
finds in its environment

    job               the settings of the script: job[binaries], what `settings` returns, ...
    image             the image
    container_options what `options` returns, an array
    bind_sources      the host paths that are to be bound, an array
    run_dir           the run directory

and sets

    container         the words before a command that is to run inside, an array: a program and its
                      options, or options of the step launcher where that enters the container
    container_image   the path of the image, for the check on every node; may stay empty
    container_binds   host paths that have to exist on every node, an array; may stay empty
    container_says    one line for the log; may stay empty

It may define the function `leave_container` too, which is called when a launch has failed, for
containers that are left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpc_amp.config.paths import missing_path
from hpc_amp.containers.image import URI, Image
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.finding import Finding, Findings, Status
from hpc_amp.registry import code_beside
from hpc_amp.resources import Which

if TYPE_CHECKING:
    from hpc_amp.config.bind import Bind
    from hpc_amp.config.site import Site
    from hpc_amp.jobs.spec import Spec


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How a command line starts another program behind its own options."""

    values: frozenset[str] = frozenset()
    """Options whose value is the next word."""
    words: int = 0
    """How many words stand between its options and the program."""
    first: tuple[str, ...] = ()
    """What the first of those words may be; empty: anything."""


class Container(ABC):
    """A container runtime. Holds no state."""

    name: ClassVar[str]
    """Its name in a job file. The host code of a run is in `host/containers/NAME.sh`."""
    title: ClassVar[str]
    """Its name in messages."""
    binaries: ClassVar[tuple[str, ...]] = ()
    """Programs that can run the image, in order of preference. The nodes need one of them."""
    uses_image: ClassVar[bool] = True
    """Whether the command runs inside an image."""
    entered_by: ClassVar[str] = ""
    """The step launcher that enters the container: the words before a command are options of it.
    Empty: those words are a program and its options, which any launcher can start."""
    image_forms: ClassVar[str] = "a file or a folder"
    """What `container.image` may be, for messages."""
    unmountable: ClassVar[str] = "',' and ':' cannot stand in a mount"
    """What cannot be part of a path that is bound, for messages."""
    wraps: ClassVar[Mapping[str, Wrapper]] = {}
    """Programs with which a user could start a command in a container, and how."""
    handled: ClassVar[tuple[str, ...]] = ()
    """Variables of a user's shell which the host code keeps from the ranks."""

    # ---- the image -------------------------------------------------------------------------------

    def is_path(self, image: str) -> bool:
        """Whether an image reference is a path of this machine. Such a path becomes absolute."""
        return True

    def check_image(self, image: str) -> None:
        """Raise UsageError where `container.image` cannot be this: by its form, and by what the
        login node sees of it without the runtime."""
        if not self.is_path(image):
            return
        if URI.fullmatch(image):
            raise UsageError(
                f"{image} is a URI, and {self.title} runs {self.image_forms}",
                hint="get the image once, and name the file",
            )
        if not os.path.exists(image):
            message, hint = missing_path(image, "file or folder")
            raise UsageError(message, hint=hint)
        if not os.access(image, os.R_OK):
            raise UsageError(f"{image} cannot be read", hint="check its permissions with ls -l")
        if os.path.isfile(image):
            self.read_image(image)

    def read_image(self, image: str) -> Image | None:
        """What an image is, from its bytes alone; None where it is not a path of this machine.
        Raises UsageError for what is not an image, or only a part of one."""
        if not self.is_path(image):
            return None
        path = Path(os.path.abspath(image))
        if path.is_dir():
            return Image(path, "folder", None, None)
        try:
            return Image(path, "file", None, path.stat().st_size)
        except OSError as error:
            raise UsageError(f"the image {path} cannot be read: {error.strerror}") from None

    # ---- the job ---------------------------------------------------------------------------------

    def mountable(self, path: str) -> bool:
        """Whether a bind of this runtime can carry a path."""
        return not set(",:") & set(path)

    def check_bind(self, bind: Bind) -> str | None:
        """What the runtime cannot do of a bind; None where it can."""
        return None

    def check(self, plan: Spec) -> None:
        """Raise ConfigError for what this runtime cannot do."""
        return

    @abstractmethod
    def options(self, plan: Spec) -> list[str]:
        """The words between the program and the image: binds (`plan.binds`), GPUs, working
        directory (`plan.run_dir`), and what the site's `container_args` and the job's
        `container.args` add."""

    def settings(self, plan: Spec) -> dict[str, str]:
        """What the host code has to know besides, as entries of its array `job`."""
        return {}

    def host_code(self) -> str:
        """Bash that defines `enter_container`. Default: `host.sh` beside the class's module."""
        return code_beside(self, "host.sh")

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """The command line with which a user runs the words `inside` on a node."""
        program = next(filter(shutil.which, self.binaries), self.binaries[0])
        return [program, *self.options(plan), plan.job.container.image or "", *inside]

    # ---- this machine ----------------------------------------------------------------------------

    def words_here(
        self,
        image: str,
        *,
        binds: Sequence[str] = (),
        gpu: bool = False,
        clean: bool = False,
        which: Which = shutil.which,
    ) -> list[str]:
        """The words before a command that is to run inside on this machine, in the image's root
        folder. `clean`: without this shell's environment. Raises HpcAmpError where this machine
        cannot."""
        raise HpcAmpError(f"hpc-amp does not look into images of {self.title}")

    def explain(self, output: str) -> tuple[str, str | None]:
        """What the runtime said last in `output`, and the known cause of it."""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return (lines[-1] if lines else "", None)

    # ---- doctor ----------------------------------------------------------------------------------

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which = shutil.which,
        root: Path = Path("/"),
    ) -> Findings:
        """The finding `rt.found`: whether this machine has the runtime. `needed`: whether the job
        runs on this machine; `elsewhere`: why the nodes may have what this machine has not."""
        program = next(filter(None, map(which, self.binaries)), None)
        if program is not None:
            yield Finding("rt.found", "good", f"{version_of(program)}, {program}")
        elif self.binaries:
            what = f"no {' or '.join(self.binaries)} on this machine's PATH"
            yield not_found(what, needed=needed, elsewhere=elsewhere)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = shutil.which
    ) -> Findings:
        """The findings `rt.flags` and `env.value`: options that site and job add to those of a job
        of `ranks` ranks. Here: nothing."""
        yield from ()

    def check_places(self, environ: Mapping[str, str]) -> Findings:
        """The finding `cache`: where the runtime puts what it downloads and unpacks. Here:
        nothing."""
        yield from ()

    def check_leaks(self, environ: Mapping[str, str]) -> Findings:
        """Findings `env.leak`: variables of this shell that change every container. Here:
        nothing."""
        yield from ()

    # ---- images: `hpc-amp container` -------------------------------------------------------------

    def pull(self, *, site: Site, say: Callable[[str], None], **wanted: Any) -> Path:
        """Pull an image with the options of `hpc-amp container pull`, and return its path. Raises
        UsageError where hpc-amp cannot."""
        raise UsageError(
            f"hpc-amp pulls no images for {self.title}", hint="use the runtime's own commands"
        )

    def build(self, *, site: Site, say: Callable[[str], None], **wanted: Any) -> Path:
        """Build an image with the options of `hpc-amp container build`, and return its path. Raises
        UsageError where hpc-amp cannot."""
        raise UsageError(
            f"hpc-amp builds no images for {self.title}", hint="use the runtime's own commands"
        )


def not_found(what: str, *, needed: bool, elsewhere: str, hint: str = "") -> Finding:
    """The finding `rt.found` for a runtime that this machine has not."""
    if elsewhere:
        return Finding("rt.found", "unknown", f"{what}, but {elsewhere}")
    status: Status = "error" if needed else "warning"
    return Finding("rt.found", status, what, "a job with an image is started with it", hint)


def version_of(program: str) -> str:
    """The first line that a program answers to `--version`; its name where it does not answer."""
    try:
        ended = subprocess.run(
            [program, "--version"], text=True, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return os.path.basename(program)
    lines = f"{ended.stdout}\n{ended.stderr}".strip().splitlines()
    return lines[0] if lines else os.path.basename(program)
