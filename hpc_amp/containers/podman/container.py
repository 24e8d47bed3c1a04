"""Podman, and `podman-hpc`, with which NERSC makes it fit for clusters: a container for each rank.

The client stays while its container runs, hands on the signals that it gets, and ends with the
status of the command. The image's variables win over those of the node, which `--env-host` passes
on as they are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_amp.config.bind import parse_bind
from hpc_amp.containers.base import Container, Wrapper
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError
from hpc_amp.finding import Finding, Findings
from hpc_amp.resources import Which

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

_VALUES = (
    "-v --volume --mount -e --env --env-file -w --workdir --device --name -u --user --userns "
    "--network --net --ipc --pid --ulimit -l --label --entrypoint --hostname -h --shm-size --tmpfs"
)
_RUN = Wrapper(frozenset(_VALUES.split()), words=2, first=("run", "shared-run"))

# [host[:port]/]path[:tag][@digest]. Paths have small letters, as registries want them.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:\d+|localhost)"
_REFERENCE = re.compile(
    rf"(?:{_HOST}(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
# Modules of podman-hpc with which it starts one container a node, and every rank by `exec` in it.
_SHARED = ("--mpi", "--cuda-mpi", "--openmpi-pmi2")
# What the ranks of a node have in common with the node and with each other.
_OF_THE_NODE = ("--network=host", "--ipc=host", "--pid=host")


class Podman(Container):
    """Whichever of the two the nodes have. Images are named as in Podman's own storage."""

    name = "podman"
    title = "Podman"
    binaries = ("podman-hpc", "podman")
    image_forms = "the name of an image in Podman's storage"
    unmountable = "':' cannot stand in a mount"
    wraps: Mapping[str, Wrapper] = {"podman": _RUN, "podman-hpc": _RUN}  # type: ignore[misc]

    def is_path(self, image: str) -> bool:
        """Never: images are in Podman's storage, which the nodes have and this machine may not."""
        return False

    def check_image(self, image: str) -> None:
        """A name as registries know them, with a tag or a digest, or without."""
        if image.startswith(("/", "./", "../", "~")) or image.endswith((".sif", ".sqfs", ".tar")):
            raise UsageError(
                f"{image} is a file, and Podman runs images by name",
                hint="import it (podman load, podman import), and write the name that podman "
                "images shows",
            )
        transport, separator, name = image.partition("://")
        if separator:
            raise UsageError(
                f"{image} is a URI, and Podman runs images by name",
                hint=f"pull it once, and write image: {name}"
                if transport == "docker"
                else "pull it once, and write the name that podman images shows",
            )
        if not _REFERENCE.fullmatch(image):
            raise UsageError(
                f"{image!r} is not the name of an image",
                hint="write host/path:tag, as in nvcr.io/nvidia/pytorch:25.06-py3",
            )

    def mountable(self, path: str) -> bool:
        """`--volume` splits at colons."""
        return ":" not in path

    def check(self, plan: Spec) -> None:
        """Raises ConfigError for options that change how ranks are started."""
        for word in (*plan.site.container_args, *plan.job.container.args):
            if word in _SHARED:
                raise ConfigError(
                    f"container.args {word}: podman-hpc then starts one container a node, in which "
                    "signals do not reach the ranks",
                    hint="leave it out; the ranks need no MPI, and --openmpi-pmix starts a "
                    "container for each of them",
                )

    def options(self, plan: Spec) -> list[str]:
        """Binds and working directory. What every job has stands in the host code."""
        words = []
        for text in plan.binds:
            bind = parse_bind(text)
            if bind is not None:
                more = f":{bind.options}" if bind.options else ""
                words.append(f"--volume={bind.source}:{bind.destination}{more}")
        words.append(f"--workdir={plan.run_dir}")
        return [*words, *plan.site.container_args, *plan.job.container.args]

    def settings(self, plan: Spec) -> dict[str, str]:
        """Whether the ranks get NVIDIA's driver, for which the two programs have other options."""
        return {"gpu": "yes" if plan.gpu_inside else "no"}

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """One container, as the ranks have them."""
        program = next(filter(shutil.which, self.binaries), self.binaries[-1])
        words = [program, "run", "--rm", *_OF_THE_NODE, "--env-host"]
        words += _gpu_options(program) if plan.gpu_inside else []
        return [*words, *self.options(plan), plan.job.container.image or "", *inside]

    def words_here(
        self,
        image: str,
        *,
        binds: Sequence[str] = (),
        gpu: bool = False,
        clean: bool = False,
        which: Which = shutil.which,
    ) -> list[str]:
        """Raises HpcAmpError where there is no Podman, or its storage has no such image."""
        program = next(filter(None, map(which, self.binaries)), None)
        if program is None:
            raise HpcAmpError(
                f"no {' or '.join(self.binaries)} on this machine's PATH",
                hint="do this on a node that has it",
            )
        if not _known(program, image):
            raise HpcAmpError(
                f"{program} has no image {image} here", hint=f"pull it: {program} pull {image}"
            )
        words = [program, "run", "--rm", "--interactive", "--pull=never", *_OF_THE_NODE]
        words += [] if clean else ["--env-host"]
        words += _gpu_options(program) if gpu else []
        for text in binds:
            words.append(f"--volume={text}")
        return [*words, "--workdir=/", image]

    def explain(self, output: str) -> tuple[str, str | None]:
        """The last error of Podman itself."""
        errors = [line for line in output.splitlines() if line.startswith("Error: ")]
        return (errors[-1].removeprefix("Error: "), None) if errors else super().explain(output)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = shutil.which
    ) -> Findings:
        """Options that cut a rank off from the others, or that this version does not have."""
        own = [word for word in options if re.match(r"--(network|net|ipc|pid)(=(?!host)|$)", word)]
        if own and ranks > 1:
            what = f"{', '.join(own)} takes from the ranks what they share"
            why = "they find each other through the node's network and shared memory"
            yield Finding("rt.flags", "error", what, why, "leave it out of container.args")
            return
        program = next(filter(None, map(which, self.binaries)), None)
        known = _options_of(program) if program is not None else None
        names = [word.partition("=")[0] for word in options if word.startswith("--")]
        unknown = [name for name in names if known is not None and name not in known]
        if unknown:
            what = f"{program} run has no {', '.join(unknown)}"
            fix = "leave it out, or load a newer module in job.setup"
            yield Finding("rt.flags", "error", what, "the container does not start", fix)
        else:
            yield Finding("rt.flags", "good", "no option of job or site that Podman has not")


def _gpu_options(program: str) -> list[str]:
    """NVIDIA's driver: a module of podman-hpc; for Podman the CDI specification of the node."""
    name = program.rpartition("/")[2]
    return ["--gpu"] if name == "podman-hpc" else ["--device=nvidia.com/gpu=all"]


def _known(program: str, image: str) -> bool:
    """Whether the storage has an image. `images` also looks into podman-hpc's squashed images."""
    said = _say(program, "images", "--quiet", image)
    return bool(said and said.strip())


def _options_of(program: str) -> set[str] | None:
    """The long options of `run`, as its help shows them; None where it shows none."""
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", _say(program, "run", "--help") or "")) or None


def _say(*command: str) -> str | None:
    try:
        ended = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None
