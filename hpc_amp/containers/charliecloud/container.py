"""Charliecloud: `ch-run` runs a command in a folder or a SquashFS file, without any privileges.

`ch-run` passes on the environment of the node unchanged, and does not evaluate values.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpc_amp.clients import run_in_time
from hpc_amp.config.bind import parse_bind
from hpc_amp.containers.base import PATIENCE, Container, Wrapper
from hpc_amp.containers.image import Image, image_at, squashfs_file
from hpc_amp.errors import HpcAmpError
from hpc_amp.finding import Finding, Findings
from hpc_amp.resources import Which, which

if TYPE_CHECKING:
    from hpc_amp.clients import Clients
    from hpc_amp.config.bind import Bind
    from hpc_amp.jobs.spec import Spec

_VALUES = (
    "-b --bind -c --cd -g --gid -m --mount -s --storage -u --uid --join-ct --join-pid --join-tag"
)
# ch-run needs the variable USER, which a batch job may not have.
_WITH_USER = ("env", f"USER={os.environ.get('USER') or os.getuid()}")
_ERROR = re.compile(r"(?:ch-run\[\d+\]: error: )(.*?)(?: \(\w+\.c:\d+.*\))?$")


class Charliecloud(Container):
    """Charliecloud: runs the image's software with the node's kernel, network and devices."""

    name = "charliecloud"
    title = "Charliecloud"
    binaries = ("ch-run",)
    image_forms = "a folder or a SquashFS file"
    unmountable = "':' cannot stand in a mount"
    wraps: Mapping[str, Wrapper] = {"ch-run": Wrapper(frozenset(_VALUES.split()), words=1)}  # type: ignore[misc]

    def read_image(self, image: str) -> Image:
        """Read the root folder of a system, or a SquashFS file."""
        return image_at(image, _squashfs)

    def mountable(self, path: str) -> bool:
        """`--bind` splits at the first colon."""
        return ":" not in path

    def check_bind(self, bind: Bind) -> str | None:
        """Refuse read-only binds: `ch-run` would read `:ro` as a part of the path."""
        return "ch-run cannot mount a folder read-only" if bind.read_only else None

    def options(self, plan: Spec) -> list[str]:
        """See `Container.options`. GPUs need no option: the node's devices are visible, and
        NVIDIA's libraries have to be in the image (`ch-fromhost --nvidia`)."""
        words = []
        for text in plan.binds:
            bind = parse_bind(text)
            if bind is not None:
                words.append(f"--bind={bind.source}:{bind.destination}")
        words.append(f"--cd={plan.run_dir}")
        return [*words, *plan.site.container_args, *plan.job.container.args]

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """See `Container.command`. `--` ends the options of `ch-run`."""
        return ["ch-run", *self.options(plan), plan.job.container.image or "", "--", *inside]

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
        """See `Container.words_here`. Variables in the image's `/ch/environment` are set.

        Raises HpcAmpError if there is no `ch-run`, or if the image has no folders for the binds and
        `ch-run` is too old to create them. The host code of a job creates them, but looking into an
        image should not change it.
        """
        program = which("ch-run")
        if program is None:
            raise HpcAmpError(
                "no ch-run on this machine's PATH",
                hint="load its module (module load charliecloud), or use a node that has it",
            )
        root = self.read_image(image).path.resolve()
        words = [*_WITH_USER, program]
        words += ["--unset-env=*"] if clean else []
        words += ["--set-env"] if (root / "ch" / "environment").is_file() else []
        wanted = [bind for bind in map(parse_bind, binds) if bind and os.path.exists(bind.source)]
        words += [f"--bind={bind.source}:{bind.destination}" for bind in wanted]
        missing = [bind.destination for bind in wanted if not _has_place(root, bind.destination)]
        if missing and "--write-fake" in _ask(program, "--help", seconds):
            words.append("--write-fake")
        elif missing and root.is_dir():
            raise HpcAmpError(
                f"the image has no {', '.join(missing)} to bind to; the job will create it"
            )
        return [*words, "--cd=/", *args, str(root), "--"]

    def explain(self, output: str) -> tuple[str, str | None]:
        """The last error of `ch-run` itself, without its process id and its source line."""
        found = [match[1] for line in output.splitlines() if (match := _ERROR.match(line.strip()))]
        return (found[-1], None) if found else super().explain(output)

    def seen_here(self, clients: Clients) -> str:
        """`ch-run` needs the variable USER, and prints only a number."""
        program = clients.which("ch-run")
        if program is None:
            return ""
        version = clients.output(*_WITH_USER, program, "--version", with_errors=True).strip()
        return f"Charliecloud {version.partition(' ')[0]}, {program}".replace(" ,", ",")

    def check_here(
        self,
        *,
        needed: bool,
        elsewhere: str = "",
        which: Which = which,
        root: Path = Path("/"),
    ) -> Findings:
        """See `Container.check_here`. `ch-run --version` prints only a number, so the name is
        added."""
        program = which("ch-run")
        if program is None:
            yield from super().check_here(
                needed=needed, elsewhere=elsewhere, which=which, root=root
            )
            return
        version = _ask(program, "--version") or "of an unknown version"
        yield Finding("rt.found", "good", f"Charliecloud {version}, {program}")

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = which
    ) -> Findings:
        """Warn about options that hide variables from the ranks."""
        hiding = [word for word in options if word.startswith("--unset-env=") and "*" in word]
        if hiding and ranks > 1:
            what = f"{', '.join(hiding)} may keep the launcher's variables out of the container"
            why = "each rank would be in a world of its own, and train alone"
            fix = "name single variables"
            yield Finding("rt.flags", "warning", what, why, fix)
        else:
            yield Finding("rt.flags", "good", "no option hides variables from the ranks")


def _ask(program: str, option: str, seconds: float = PATIENCE) -> str:
    """The output of ch-run for an option, from both of its streams. Empty if it does not run, or
    does not end in `seconds`."""
    try:
        status, output, errors = run_in_time([*_WITH_USER, program, option], seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{output}{errors}".strip() if status == 0 else ""


def _has_place(root: Path, destination: str) -> bool:
    """Whether an image has a folder at `destination`, or the node's `/tmp` will contain it. False
    for an image in a file, whose folders are unknown."""
    inside = root / destination.lstrip("/")
    return root.is_dir() and (inside.exists() or destination.startswith("/tmp/"))


def _squashfs(path: Path, file: BinaryIO) -> Image:
    return squashfs_file(path, file, "make a folder or a squashfs file of the image: ch-convert")
