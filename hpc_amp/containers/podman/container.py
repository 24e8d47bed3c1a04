"""Podman, and NERSC's extension `podman-hpc` for clusters. Each rank has a container of its own.

The client runs as long as its container, forwards signals, and exits with the command's status.
`--env-host` passes on the node's variables unchanged; the image's variables override them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpc_amp.clients import run_in_time
from hpc_amp.config.bind import parse_bind
from hpc_amp.containers.base import PATIENCE, Container, Wrapper
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError
from hpc_amp.finding import Finding, Findings
from hpc_amp.resources import Which, which

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec

_VALUES = (
    "-v --volume --mount -e --env --env-file -w --workdir --device --name -u --user --userns "
    "--network --net --ipc --pid --ulimit -l --label --entrypoint --hostname -h --shm-size --tmpfs"
)
_RUN = Wrapper(frozenset(_VALUES.split()), words=2, first=("run", "shared-run"))

# [host[:port]/]path[:tag][@digest]. Registries require lower-case paths.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:\d+|localhost)"
_REFERENCE = re.compile(
    rf"(?:{_HOST}(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
# Modules of podman-hpc that start one container on each node, and every rank by `exec` in it.
_SHARED = ("--mpi", "--cuda-mpi", "--openmpi-pmi2")
# The namespaces that ranks share with the node and with each other.
_OF_THE_NODE = ("--network=host", "--ipc=host", "--pid=host")


class Podman(Container):
    """Podman or podman-hpc, whichever the nodes have. Images are given by their names in Podman's
    storage."""

    name = "podman"
    title = "Podman"
    binaries = ("podman-hpc", "podman")
    image_forms = "the name of an image in Podman's storage"
    unmountable = "':' cannot stand in a mount"
    wraps: Mapping[str, Wrapper] = {"podman": _RUN, "podman-hpc": _RUN}  # type: ignore[misc]

    def is_path(self, image: str) -> bool:
        """False: images are in Podman's storage, which only the nodes may have."""
        return False

    def check_image(self, image: str) -> None:
        """Accept a name as in registries, with or without a tag or a digest."""
        if image.startswith(("/", "./", "../", "~")) or image.endswith((".sif", ".sqfs", ".tar")):
            raise UsageError(
                f"{image} is a file, and Podman runs images by name",
                hint="import it (podman load, podman import), and write the name that podman "
                "images shows",
            )
        transport, separator, name = image.partition("://")
        if separator:
            written = f"image: {name}"
            if transport != "docker":
                written = "the name that podman images shows"
            raise UsageError(
                f"{image} is a URI, and Podman runs images by name",
                hint=f"pull it once, and write {written}",
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
        """Refuse options that change how ranks are started."""
        for word in (*plan.site.container_args, *plan.job.container.args):
            if word in _SHARED:
                raise ConfigError(
                    f"container.args {word}: podman-hpc then starts one container on each node, "
                    "where signals do not reach the ranks",
                    hint="leave it out; the ranks need no MPI, and --openmpi-pmix starts a "
                    "container for each of them",
                )

    def options(self, plan: Spec) -> list[str]:
        """See `Container.options`. The host code adds the options that all jobs have."""
        words = []
        for text in plan.binds:
            bind = parse_bind(text)
            if bind is not None:
                more = f":{bind.options}" if bind.options else ""
                words.append(f"--volume={bind.source}:{bind.destination}{more}")
        words.append(f"--workdir={plan.run_dir}")
        return [*words, *plan.site.container_args, *plan.job.container.args]

    def settings(self, plan: Spec) -> dict[str, str]:
        """Whether the ranks get NVIDIA's driver. The two programs have different options for it,
        which the host code adds."""
        return {"gpu": "yes" if plan.gpu_inside else "no"}

    def command(self, plan: Spec, inside: Sequence[str]) -> list[str]:
        """See `Container.command`. The container is like that of a rank."""
        program = next(filter(which, self.binaries), self.binaries[-1])
        words = [program, "run", "--rm", *_OF_THE_NODE, "--env-host"]
        words += _gpu_options(program) if plan.gpu_inside else []
        return [*words, *self.options(plan), plan.job.container.image or "", *inside]

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
        """See `Container.words_here`. Raises HpcAmpError if there is no Podman, or if its storage
        does not have the image."""
        program = next(filter(None, map(which, self.binaries)), None)
        if program is None:
            raise HpcAmpError(
                f"no {' or '.join(self.binaries)} on this machine's PATH",
                hint="use a node that has it",
            )
        if not _known(program, image, seconds):
            raise HpcAmpError(
                f"{program} has no image {image} here", hint=f"pull it: {program} pull {image}"
            )
        words = [program, "run", "--rm", "--interactive", "--pull=never", *_OF_THE_NODE]
        words += [] if clean else ["--env-host"]
        words += _gpu_options(program) if gpu else []
        words += [f"--volume={text}" for text in binds]
        return [*words, "--workdir=/", *args, image]

    def explain(self, output: str) -> tuple[str, str | None]:
        """The last error of Podman itself."""
        errors = [line for line in output.splitlines() if line.startswith("Error: ")]
        return (errors[-1].removeprefix("Error: "), None) if errors else super().explain(output)

    def check_options(
        self, options: Sequence[str], *, ranks: int, which: Which = which
    ) -> Findings:
        """Refuse options that isolate a rank from the others, and options that this version does
        not have."""
        own = [word for word in options if re.match(r"--(network|net|ipc|pid)(=(?!host)|$)", word)]
        if own and ranks > 1:
            what = f"{', '.join(own)} isolates the ranks from each other"
            why = "they communicate through the node's network and shared memory"
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
            yield Finding("rt.flags", "good", "Podman has all options of job and site")


def _gpu_options(program: str) -> list[str]:
    """The options for NVIDIA's driver: a module of podman-hpc; for Podman, the CDI specification of
    the node."""
    name = program.rpartition("/")[2]
    return ["--gpu"] if name == "podman-hpc" else ["--device=nvidia.com/gpu=all"]


def _known(program: str, image: str, seconds: float) -> bool:
    """Whether the storage has an image. `images` also lists podman-hpc's squashed images."""
    output = _output(program, "images", "--quiet", image, seconds=seconds)
    return bool(output and output.strip())


def _options_of(program: str) -> set[str] | None:
    """The long options of `run`, from its help. None if the help shows none."""
    output = _output(program, "run", "--help") or ""
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", output)) or None


def _output(*command: str, seconds: float = PATIENCE) -> str | None:
    """The output of a command; None if it fails, or does not end in `seconds`."""
    try:
        status, output, _ = run_in_time(command, seconds)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return output if status == 0 else None
