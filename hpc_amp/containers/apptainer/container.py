"""Apptainer and Singularity: `apptainer exec` and `singularity exec`. The options that hpc-amp uses
are the same.

Environment values are not passed by `--env` or `APPTAINERENV_*`, which evaluate them as shell code.
The job sets its environment in the container (`hpc_amp.distributed.exec`), where it overrides the
image's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hpc_amp.containers.apptainer import doctor
from hpc_amp.containers.apptainer.image import read_image
from hpc_amp.containers.apptainer.program import PREFIXES, explain, find_runtime
from hpc_amp.containers.base import PATIENCE, Container, Wrapper
from hpc_amp.containers.image import URI, Image
from hpc_amp.errors import UsageError
from hpc_amp.finding import Findings
from hpc_amp.resources import Which, which

if TYPE_CHECKING:
    from hpc_amp.config.site import Site
    from hpc_amp.containers.apptainer.places import Say
    from hpc_amp.jobs.spec import Spec

_OPTIONS = (
    "-B --bind --mount --env --env-file --pwd --cwd -H --home -W --workdir -S --scratch -o "
    "--overlay --network --security"
)
_EXEC = Wrapper(frozenset(_OPTIONS.split()), words=2, first=("exec",))


class Apptainer(Container):
    """Apptainer: runs the image's software with the node's kernel, network and GPUs."""

    name = "apptainer"
    title = "Apptainer"
    binaries: ClassVar[tuple[str, ...]] = ("apptainer",)
    image_forms = "a .sif file or a sandbox folder"
    unmountable = "',', ':', '^', and a blank or a backslash at the end cannot stand in a mount"
    wraps: ClassVar[Mapping[str, Wrapper]] = {"apptainer": _EXEC, "singularity": _EXEC}
    prefixes = PREFIXES
    handled = tuple(f"{prefix}ENV_LD_LIBRARY_PATH" for prefix in PREFIXES)

    def check_image(self, image: str) -> None:
        """Accept a file or a folder, but no URI, which every node would download."""
        if URI.fullmatch(image):
            file = re.sub(r"[^A-Za-z0-9._-]+", "-", image.rstrip("/").rpartition("/")[2]) or "image"
            raise UsageError(
                f"{image} is a URI, which every node would download again",
                hint=f"pull it once with `hpc-amp container pull {image} {file}.sif` and write "
                f"image: {file}.sif",
            )
        super().check_image(image)

    def read_image(self, image: str) -> Image:
        """Read a SIF file, an older image, or a root folder."""
        return read_image(image)

    def mountable(self, path: str) -> bool:
        """Apptainer's parser splits at `,`, `:` and `^`, removes blanks at the end, and reads a
        backslash before the colon as an escape (`ParseBindPath`; observed with 1.4.5)."""
        return not set(",:^") & set(path) and path == path.rstrip() and not path.endswith("\\")

    def options(self, plan: Spec) -> list[str]:
        """See `Container.options`. `--pwd` is always given, because a working directory that is not
        in the image would be ignored without a message. Each bind has its own `-B`."""
        words = ["--nv"] if plan.gpu_inside else []
        for bind in plan.binds:
            words += ["-B", bind]
        words += ["--pwd", str(plan.run_dir)]
        return [*words, *plan.site.container_args, *plan.job.container.args]

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """See `Container.command`. `--no-eval` is only given if a word has special characters,
        because the oldest versions do not have it."""
        runtime = next(filter(which, self.binaries), self.binaries[0])
        no_eval = ["--no-eval"] if any(re.search(r'[$`"\\]', word) for word in inside) else []
        image = plan.job.container.image or ""
        return [runtime, "exec", *self.options(plan), *no_eval, image, *inside]

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
        """See `Container.words_here`. Raises HpcAmpError if the program is missing or does not
        run."""
        runtime = find_runtime(self.binaries, seconds=seconds, which=which)
        cleanenv = ["--cleanenv"] if clean else []
        words = [runtime.program, "exec", *cleanenv, *runtime.no_eval, "--pwd", "/"]
        words += ["--nv"] if gpu else []
        for bind in binds:
            if os.path.exists(bind.split(":")[0]):
                words += ["-B", bind]
        return [*words, *args, str(read_image(image).path.resolve())]

    def explain(self, output: str) -> tuple[str, str | None]:
        """See `program.explain`."""
        return explain(output)

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which = which,
        root: Path = Path("/"),
    ) -> Findings:
        """See `doctor.check_here`: also whether this machine can start containers without unpacking
        them."""
        return doctor.check_here(
            self.binaries, needed=needed, elsewhere=elsewhere, which=which, root=root
        )

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = which
    ) -> Findings:
        """See `doctor.check_options`."""
        return doctor.check_options(self.binaries, options, ranks=ranks, which=which)

    def check_places(self, environ: Mapping[str, str]) -> Findings:
        """See `doctor.check_places`."""
        return doctor.check_places(environ)

    def check_leaks(self, environ: Mapping[str, str]) -> Findings:
        """See `doctor.check_leaks`."""
        return doctor.check_leaks(environ, self.handled)

    def pull(self, *, site: Site, say: Say, **wanted: Any) -> Path:
        """See `pull.pull_image`."""
        from hpc_amp.containers.apptainer.pull import Pull, pull_image

        return pull_image(Pull(**wanted), find_runtime(self.binaries), site, say=say)

    def build(self, *, site: Site, say: Say, **wanted: Any) -> Path:
        """See `build.build_image`."""
        from hpc_amp.containers.apptainer.build import Build, build_image

        return build_image(Build(**wanted), find_runtime(self.binaries), site, say=say)


class Singularity(Apptainer):
    """Singularity, and Apptainer under its older name."""

    name = "singularity"
    title = "Singularity"
    binaries = ("singularity",)


class Either(Apptainer):
    """The runtime `auto`: Apptainer or Singularity, whichever the nodes have."""

    title = "Apptainer or Singularity"
    binaries = ("apptainer", "singularity")
