"""The interface of container runtimes.

A runtime is a class that extends `Container`, with host code: bash that runs on the first node of a
job, outside of the image. No other code names a runtime. Callers use the methods and attributes of
this class, whose defaults fit a runtime with images in files or folders.

Host code is sourced by hpc_amp/host/container.sh and defines the function `enter_container`. The
function can read the variables

    job               the settings of the script: job[binaries], the result of `settings`, ...
    image             the image
    container_options the result of `options`, an array
    bind_sources      the host paths of the binds, an array
    run_dir           the run directory

and sets

    container         the words before a command that runs in the container, an array: a program and
                      its options, or options of the step launcher if that enters the container
    container_image   the path of the image, for the check on every node; may be empty
    container_binds   host paths that have to exist on every node, an array; may be empty
    container_says    one line for the log; may be empty

Host code may also define the function `leave_container`, which is called after a launch failed, to
remove containers that were left behind.
"""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hpc_amp.config.paths import missing_path
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.registry import code_beside
from hpc_amp.resources import Which, which

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.config.bind import Bind
    from hpc_amp.config.site import Site
    from hpc_amp.containers.image import Image
    from hpc_amp.finding import Finding, Findings, Severity
    from hpc_amp.jobs.spec import Spec

PATIENCE = 60.0
"""Seconds that a program may take to answer, such as with its version."""


class Wrapper(NamedTuple):
    """The command line of a program that starts another program."""

    values: frozenset[str] = frozenset()
    """The options whose value is the next word."""
    words: int = 0
    """The number of words between its options and the program that it starts."""
    first: tuple[str, ...] = ()
    """The allowed values of the first of those words. Empty: any word."""


class Container(ABC):
    """A container runtime. Holds no state."""

    name: ClassVar[str]
    """Its name in a job file. The host code of a run is in `host/containers/NAME.sh`."""
    title: ClassVar[str]
    """Its name in messages."""
    binaries: ClassVar[tuple[str, ...]] = ()
    """Programs that can run the image, in order of preference. The nodes need one of them."""
    uses_image: ClassVar[bool] = True
    """Whether the command runs in an image."""
    entered_by: ClassVar[str] = ""
    """The step launcher that enters the container. The words before a command are then options of
    this launcher. Empty: they are a program and its options, which any launcher can start."""
    image_forms: ClassVar[str] = "a file or a folder"
    """The allowed forms of `container.image`, for messages."""
    unmountable: ClassVar[str] = "',' and ':' cannot stand in a mount"
    """What the path of a bind may not contain, as a sentence for messages."""
    wraps: ClassVar[Mapping[str, Wrapper]] = {}
    """The programs with which a user can start a command in a container."""
    prefixes: ClassVar[tuple[str, ...]] = ()
    """With which the names of variables begin that the programs read on the host. Default: their
    own names."""
    handled: ClassVar[tuple[str, ...]] = ()
    """Variables of the user's shell that the host code removes before the ranks start."""

    # ---- the image -------------------------------------------------------------------------------

    def is_path(self, image: str) -> bool:
        """Whether an image reference is a path. A path is made absolute."""
        return True

    def check_image(self, image: str) -> None:
        """Raise UsageError if `image` is not a valid value of `container.image`. The form is
        checked, and the file if it is a path. The runtime is not used: the login node may not have
        it."""
        from hpc_amp.containers.image import URI

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
        """Read the facts about an image from its file, without running the image. Returns None if
        it is not a path. Raises UsageError if the file is not an image or is incomplete."""
        from hpc_amp.containers.image import Image

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
        """Whether this runtime can bind a path."""
        return not set(",:") & set(path)

    def check_bind(self, bind: Bind) -> str | None:
        """Why this runtime cannot mount a bind, as a message; None if it can."""
        return None

    def check(self, plan: Spec) -> None:
        """Raise ConfigError if this runtime cannot run the plan."""
        return

    @abstractmethod
    def options(self, plan: Spec) -> list[str]:
        """The words between the program and the image: binds (`plan.binds`), GPUs, working
        directory (`plan.run_dir`), the site's `container_args` and the job's `container.args`."""

    def settings(self, plan: Spec) -> dict[str, str]:
        """Further settings for the host code, as entries of its array `job`."""
        return {}

    def host_code(self) -> str:
        """Bash code that defines `enter_container`. Default: `host.sh` beside the class's
        module."""
        return code_beside(self, "host.sh")

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """The command line with which a user can run the words `inside` in the container, on a
        node."""
        program = next(filter(which, self.binaries), self.binaries[0])
        return [program, *self.options(plan), plan.job.container.image or "", *inside]

    # ---- this machine ----------------------------------------------------------------------------

    def words_here(
        self,
        image: str,
        *,
        binds: Sequence[str] = (),
        args: Sequence[str] = (),
        gpu: bool = False,
        clean: bool = False,
        seconds: float = PATIENCE,
        which: Which = which,
    ) -> list[str]:
        """The words before a command that runs in an image on this machine, in the image's root
        folder. `binds` are mounted if their sources exist. `args` are further options. `gpu`: with
        the node's GPU driver. `clean`: without this shell's environment. `seconds`: how long a
        program may take that is asked for its version, and the like. Raises HpcAmpError if this
        machine cannot run the image."""
        raise HpcAmpError(f"hpc-amp does not look into images of {self.title}")

    def explain(self, output: str) -> tuple[str, str | None]:
        """The last error message of the runtime in `output`, and its known cause, or None."""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return (lines[-1] if lines else "", None)

    def seen_here(self, clients: Clients) -> str:
        """The version and the path of the runtime, if this machine has it. Empty if not."""
        program = next(filter(clients.has, self.binaries), None)
        if program is None:
            return ""
        said = clients.output(program, "--version", with_errors=True).strip()
        return f"{said.splitlines()[0] if said else program}, {clients.which(program)}"

    # ---- doctor ----------------------------------------------------------------------------------

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which = which,
        root: Path = Path("/"),
    ) -> Findings:
        """Yield the finding `rt.found`: whether this machine has the runtime. `needed`: the job
        runs on this machine. `elsewhere`: why the nodes may have the runtime although this machine
        does not. `which` replaces the search in PATH, and `root` the root folder."""
        from hpc_amp.finding import Finding  # only for `doctor`

        program = next(filter(None, map(which, self.binaries)), None)
        if program is not None:
            yield Finding("rt.found", "good", f"{version_of(program)}, {program}")
        elif self.binaries:
            what = f"no {' or '.join(self.binaries)} on this machine's PATH"
            yield not_found(what, needed=needed, elsewhere=elsewhere)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = which
    ) -> Findings:
        """Yield the findings `rt.flags` and `env.value` on `options`, which site and job add. The
        job has `ranks` ranks. Default: none."""
        yield from ()

    def check_places(self, environ: Mapping[str, str]) -> Findings:
        """Yield the finding `cache`: whether the folders for downloads and temporary files are
        suitable. Default: none."""
        yield from ()

    def check_leaks(self, environ: Mapping[str, str]) -> Findings:
        """Yield the findings `env.leak`: variables of this shell that affect every container.
        Default: none."""
        yield from ()

    # ---- images: `hpc-amp container` -------------------------------------------------------------

    def pull(self, *, site: Site, say: Callable[[str], None], **wanted: Any) -> Path:
        """Pull an image. `wanted` are the options of `hpc-amp container pull`, and `say` is called
        with messages for the user. Returns the image's path. Raises UsageError if hpc-amp pulls no
        images for this runtime."""
        raise UsageError(
            f"hpc-amp pulls no images for {self.title}", hint="use the runtime's own commands"
        )

    def build(self, *, site: Site, say: Callable[[str], None], **wanted: Any) -> Path:
        """Build an image. `wanted` are the options of `hpc-amp container build`, and `say` is
        called with messages for the user. Returns the image's path. Raises UsageError if hpc-amp
        builds no images for this runtime."""
        raise UsageError(
            f"hpc-amp builds no images for {self.title}", hint="use the runtime's own commands"
        )


def environment_of(container: Container, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of this shell without the variables that a launch script removes."""
    removed = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LC_ALL", *container.handled}
    return {name: value for name, value in environ.items() if name not in removed}


def not_found(what: str, *, needed: bool, elsewhere: str, hint: str = "") -> Finding:
    """The finding `rt.found` if this machine does not have the runtime. `what` is its text; see
    `Container.check_here` for `needed` and `elsewhere`."""
    from hpc_amp.finding import Finding  # only for `doctor`

    if elsewhere:
        return Finding("rt.found", "unknown", f"{what}, but {elsewhere}")
    severity: Severity = "error" if needed else "warning"
    return Finding("rt.found", severity, what, "a job with an image is started with it", hint)


def version_of(program: str) -> str:
    """The first line that a program prints for `--version`, or its name if it prints none."""
    try:
        ended = subprocess.run(
            [program, "--version"], text=True, capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return os.path.basename(program)
    lines = f"{ended.stdout}\n{ended.stderr}".strip().splitlines()
    return lines[0] if lines else os.path.basename(program)
