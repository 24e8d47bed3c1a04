"""Inspect an image: its software, whether hpc-amp can train in it, and whether this node's driver
supports it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_amp.containers.base import Container
from hpc_amp.containers.image import Image, machine
from hpc_amp.containers.ngc import (
    OLDEST_PYTHON,
    OLDEST_TORCH,
    Support,
    support,
    table,
    version,
)
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.resources import resource_folder

_TIMEOUT = 600
_MARK = "hpc-amp-facts "

# Variables of an image that hide those that a job's script exports on the host: the image's values
# override them. `container.env` of a job file always overrides the image's values.
_MASKING = re.compile(
    r"(NCCL|FI|UCX|OMPI|PMIX|PRTE|MPICH|TORCH|TORCHINDUCTOR|TRITON|CUDA|OMP|GLOO|MKL|HF)_.*"
    r"|OPAL_PREFIX|LD_PRELOAD|PYTHON.*|TMPDIR|MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK"
)
# Variables that only describe the image's software.
_DESCRIPTIVE = re.compile(r"\w+_VERSION|CUDA_HOME|(TORCH_)?CUDA_ARCH_LIST|PYTHONIOENCODING")
_TRAPS = {
    "BASH_ENV": "every bash in it reads this file first; in NGC images the file runs nvidia-smi, "
    "which takes seconds: do not wrap programs in bash",
    "PIP_CONSTRAINT": "pip in it applies the constraints in this file",
    "LD_LIBRARY_PATH": "its own libraries are found through this: add to it, never replace it",
}


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that an image lacks."""

    what: str
    why: str
    needed: bool
    """Whether built-in training cannot run without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """The facts about an image. Unknown facts are None."""

    image: str
    kind: str
    architecture: str | None
    machine: str
    size: int | None
    labels: dict[str, str]
    looked_inside: bool
    """Whether a program in the image could be run. False if the image is for another
    architecture."""
    python: str | None = None
    torch: str | None = None
    torchvision: str | None = None
    tensorboard: str | None = None
    mpi4py: str | None = None
    openmpi: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    libc: str | None = None
    cuda_architectures: list[str] = field(default_factory=list)
    ngc_release: str | None = None
    driver_native: str | None = None
    driver_floor: str | None = None
    driver_here: str | None = None
    driver_support: Support | None = None
    masks: dict[str, str] = field(default_factory=dict)
    """Variables of the image that override those that a launch script exports."""
    traps: dict[str, str] = field(default_factory=dict)
    """Variables of the image with surprising effects, each with its effect."""
    lacks: list[Lack] = field(default_factory=list)

    @property
    def usable(self) -> bool | None:
        """Whether built-in training can run in it; None if that is unknown."""
        return not any(lack.needed for lack in self.lacks) if self.looked_inside else None

    def to_plain(self) -> dict[str, Any]:
        """The facts as a dictionary of JSON values."""
        return {**asdict(self), "usable": self.usable}


def inspect_image(where: str, container: Container) -> ImageFacts:
    """Read the facts about an image: from its file and, if this machine can run it, from a program
    in the container. `where` is its path. Raises UsageError if it is not an image, and HpcAmpError
    if no program runs in it."""
    image = container.read_image(where)
    if image is None:
        raise UsageError(f"{where} is not a file that can be inspected")
    here = machine()
    if image.architecture not in (None, here):
        wrong = Lack(
            f"{here} programs",
            f"it is for {image.architecture} nodes, and this machine is {here}: nothing in it runs "
            "here",
            True,
        )
        return _report(image, looked_inside=False, lacks=[wrong])
    facts = _ask(image, container)
    return _describe(image, facts, driver_here())


def _report(image: Image, **more: Any) -> ImageFacts:
    return ImageFacts(
        image=str(image.path),
        kind=image.kind,
        architecture=image.architecture,
        machine=machine(),
        size=image.size,
        labels=image.labels,
        **more,
    )


def _ask(image: Image, container: Container) -> dict[str, Any]:
    """Run the probe in the container and return its facts. Python is started without a shell,
    because an image may configure its bash to run other programs first."""
    command = container.words_here(str(image.path), clean=True)
    command += ["python3", "-B", "-s", "-"]
    try:
        ended = subprocess.run(
            command,
            input=(resource_folder("containers") / "probe.py").read_bytes(),
            capture_output=True,
            timeout=_TIMEOUT,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HpcAmpError(
            f"{image.path}: the probe did not end within {_TIMEOUT} s",
            hint="its file system may be slow; try again, or copy it to a faster one",
        ) from None
    for line in ended.stdout.decode(errors="replace").splitlines():
        if line.startswith(_MARK):
            facts: dict[str, Any] = json.loads(line[len(_MARK) :])
            return facts
    output = (ended.stderr + b"\n" + ended.stdout).decode(errors="replace")
    message, cause = container.explain(output)
    if re.search(r'"?python3"?.*(executable file not found|no such file)', message, re.IGNORECASE):
        return {"python": None, "environ": {}}
    raise HpcAmpError(
        f"{image.path}: no program runs in it (status {ended.returncode}): {message}", hint=cause
    )


def _describe(image: Image, facts: Mapping[str, Any], driver: str | None) -> ImageFacts:
    environ: dict[str, str] = facts["environ"]
    torch, torchvision = facts.get("torch"), facts.get("torchvision")
    cuda = facts.get("torch_cuda") or environ.get("CUDA_VERSION")
    made_for = environ.get("CUDA_DRIVER_VERSION")
    release = environ.get("NVIDIA_PYTORCH_VERSION")
    row = table().find(release) if release else None
    floor = table().floor(cuda) if cuda else None
    made_for = made_for or (row.driver if row else None)
    supported = None
    if driver is not None and floor is not None:
        supported = support(driver, made_for, floor, row.compat if row else None)
    return _report(
        image,
        looked_inside=True,
        python=facts["python"],
        torch=_said(torch),
        torchvision=_said(torchvision),
        tensorboard=_said(facts.get("tensorboard")),
        mpi4py=_said(facts.get("mpi4py")),
        openmpi=facts.get("openmpi"),
        cuda=environ.get("CUDA_VERSION") or cuda,
        cudnn=_text(facts.get("cudnn")) or environ.get("CUDNN_VERSION"),
        nccl=facts.get("nccl") or environ.get("NCCL_VERSION"),
        libc=facts.get("libc"),
        cuda_architectures=facts.get("cuda_architectures") or [],
        ngc_release=release,
        driver_native=made_for,
        driver_floor=floor,
        driver_here=driver,
        driver_support=supported,
        masks=_masks(environ),
        traps={name: text for name, text in _TRAPS.items() if _sets(environ, name)},
        lacks=list(_lacks(facts, supported, driver, floor)),
    )


def _masks(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if _MASKING.fullmatch(name)
        and not _DESCRIPTIVE.fullmatch(name)
        and (name, value) != ("PYTHONNOUSERSITE", "1")
    }


def _sets(environ: Mapping[str, str], name: str) -> bool:
    """Whether an image sets a variable. The folder that Apptainer adds to LD_LIBRARY_PATH does not
    count."""
    return environ.get(name, "").strip(":") not in ("", "/.singularity.d/libs")


def _lacks(
    facts: Mapping[str, Any], supported: Support | None, driver: str | None, floor: str | None
) -> list[Lack]:
    lacks = []
    oldest = ".".join(map(str, OLDEST_PYTHON))
    python, torch = facts["python"], facts.get("torch")
    if python is None:
        return [Lack("python3", "there is no Python in it", True)]
    if version(python) < OLDEST_PYTHON:
        lacks.append(Lack(f"Python {oldest}", f"it has {python}", True))
    if not isinstance(torch, str):
        lacks.append(Lack("torch", _why(torch, "it has none"), True))
    elif version(torch)[:2] < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        lacks.append(Lack(f"torch {wanted}", f"it has {torch}", True))
    elif not facts.get("gloo"):
        lacks.append(Lack("gloo", "its torch cannot connect ranks without GPUs", True))
    if isinstance(torch, str) and not isinstance(facts.get("torchvision"), str):
        why = "built-in training reads and changes images with it"
        lacks.append(Lack("torchvision", _why(facts.get("torchvision"), why), True))
    if isinstance(torch, str) and facts.get("torch_cuda") is None:
        lacks.append(Lack("CUDA", "its torch computes on CPUs only", False))
    if not isinstance(facts.get("tensorboard"), str):
        why = "a run writes its metrics without it, but no curves for TensorBoard"
        lacks.append(Lack("tensorboard", _why(facts.get("tensorboard"), why), False))
    if not isinstance(facts.get("mpi4py"), str):
        why = "only programs of your own with launch.mpi use it"
        lacks.append(Lack("mpi4py", _why(facts.get("mpi4py"), why), False))
    if supported == "too-old":
        why = f"this node has {driver}, which its compatibility libraries do not know"
        lacks.append(Lack(f"a driver from {floor} on", why, True))
    return lacks


def _why(found: Any, otherwise: str) -> str:
    return f"it does not import: {found['error']}" if isinstance(found, dict) else otherwise


def _said(found: Any) -> str | None:
    return found if isinstance(found, str) else None


def _text(found: Any) -> str | None:
    return None if found is None else str(found)


def driver_here() -> str | None:
    """The version of this node's NVIDIA driver. None if it has no driver, as on most login
    nodes."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"\b(\d{3,4}\.\d+(\.\d+)?)\b", text)
        if match:
            return match[1]
    except OSError:
        pass
    try:
        ended = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = ended.stdout.strip().splitlines()[:1]
    return first[0] if first and re.fullmatch(r"\d{3,4}(\.\d+){1,2}", first[0]) else None


SUPPORT: dict[Support, str] = {
    "native": "as it was made for",
    "minor-version": "by minor-version compatibility: no PTX newer than the driver is compiled",
    "forward": "on data-centre GPUs only, with the image's /usr/local/cuda/compat in "
    "LD_LIBRARY_PATH",
    "too-old": "not at all: the driver is too old",
    "unknown": "if at all, on data-centre GPUs with the image's /usr/local/cuda/compat",
}
