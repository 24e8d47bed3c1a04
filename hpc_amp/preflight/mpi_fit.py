"""Judge whether the MPI of the image works with the host's launcher, and explain why not."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpc_amp.distributed.world import World

TIMEOUT = "HPC_AMP_MPI_TIMEOUT"
"""The environment variable that sets the time limit of the check, in seconds."""
_NO_MPI_NEEDED = "`launch.mpi: none` (torch needs no MPI)"


@dataclass(frozen=True, slots=True)
class Library:
    """An MPI library or launcher, as it describes itself."""

    text: str = ""
    """The name for messages: `Open MPI v4.1.4`."""
    family: str = ""
    """`Open MPI`, `MPICH` (also Cray MPICH, Intel MPI and MVAPICH, which are derived from it),
    `Slurm`, or empty if unknown."""
    version: str = ""
    """`4.1.4`, or empty if unknown."""

    @property
    def major(self) -> int:
        """The first number of the version, or 0 if it is unknown."""
        found = re.match(r"\d+", self.version)
        return int(found[0]) if found else 0


@dataclass(slots=True)
class ProbeAnswer:
    """The result of the process that initialises mpi4py."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What it found: `stage`, `library`, `size`, `rank`, `total`, and others."""
    status: int | None = None
    """Its exit status, negative for a signal, or None if it was killed at the time limit."""
    output: str = ""
    """The output of MPI."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The reason why the program must not start."""

    kind: str
    """The kind of failure, as one word."""
    text: str
    """One line: what is wrong and what to do."""


class MpiCheck:
    """Both sides of the check, with their names for messages."""

    def __init__(
        self,
        job: Mapping[str, Any],
        world: World,
        environment: Mapping[str, str],
        answer: ProbeAnswer,
    ) -> None:
        self.world = world
        self.environment = environment
        self.answer = answer
        self.bound = job.get("launch", {}).get("mpi") == "bind"
        self.inside = "image" if job.get("container", {}).get("image") else "program"
        self.host = host_library(environment)
        self.library = image_library(answer.facts.get("library", ""), environment)

    @property
    def their_library(self) -> str:
        """The library of the image as the subject of a sentence."""
        if not self.library.text:
            return f"the MPI of the {self.inside}"
        return f"the {self.inside}'s {self.library.text}"

    @property
    def their_host(self) -> str:
        """The launcher as the object of a sentence."""
        if not self.host.text:
            return "the host's launcher (HPC_AMP_HOST_MPI does not say which)"
        return f"the host's {self.host.text}"

    @property
    def both(self) -> str:
        """The versions of both sides."""
        return f"host: {self.host.text or 'unknown'}, {self.inside}: {self.library.text}"


def host_library(environment: Mapping[str, str]) -> Library:
    """The host's launcher, from HPC_AMP_HOST_MPI (set by the script) or its own variables."""
    text = " ".join(environment.get("HPC_AMP_HOST_MPI", "").split())
    if text == "unknown":
        text = ""
    if not text and environment.get("OMPI_VERSION"):  # mpirun of Open MPI 5
        text = f"mpirun (Open MPI) {environment['OMPI_VERSION']}"
    found = re.search(r"\d+(?:\.\d+)+\w*", text)
    version = found[0] if found else ""
    if re.match(r"slurm|srun", text, re.IGNORECASE):
        return Library(text, "Slurm", version)
    if re.search(r"Open ?MPI|OpenRTE", text, re.IGNORECASE):
        return Library(text, "Open MPI", version)
    if re.search(r"PRRTE", text, re.IGNORECASE):  # Open MPI's launcher, with a version of its own
        return Library(text, "Open MPI")
    if re.search(r"HYDRA", text, re.IGNORECASE):
        return Library(f"mpiexec (HYDRA) {version}".strip(), "MPICH", version)
    if re.search(r"MPICH|MVAPICH|Intel\(R\) MPI|PALS", text, re.IGNORECASE):
        return Library(text, "MPICH", version)
    return Library(text)


def image_library(said: str, environment: Mapping[str, str]) -> Library:
    """The library of the image.

    `said` is the text of `MPI_Get_library_version`, which may be long. If it is empty, the variable
    OPENMPI_VERSION of NVIDIA's images is used.
    """
    if not said and environment.get("OPENMPI_VERSION"):
        version = environment["OPENMPI_VERSION"]
        return Library(f"Open MPI v{version}", "Open MPI", version)
    flat = " ".join(said.split())
    for pattern, name, family in (
        (r"Open MPI v([^\s,]+)", "Open MPI v", "Open MPI"),
        (r"CRAY MPICH version (\S+)", "Cray MPICH ", "MPICH"),
        (r"Intel\(R\) MPI Library (\S+)", "Intel MPI ", "MPICH"),
        (r"MVAPICH2? Version ?: ?(\S+)", "MVAPICH ", "MPICH"),
        (r"MPICH Version ?: ?(\S+)", "MPICH ", "MPICH"),
    ):
        found = re.search(pattern, flat, re.IGNORECASE)
        if found:
            return Library(name + found[1], family, found[1])
    return Library(flat[:60])


def judge(setting: MpiCheck, limit: float) -> Mismatch | None:
    """Return what is wrong, or None. `limit` is the time limit of the check, in seconds."""
    answer, world = setting.answer, setting.world
    facts = answer.facts
    if "absent" in facts:
        return Mismatch(
            "absent",
            f"the {setting.inside} has no mpi4py ({sys.executable}), which launch.mpi needs. "
            f"Install it, or use {_NO_MPI_NEEDED}",
        )
    if "unloadable" in facts:
        return Mismatch("unloadable", _unloadable(setting, facts["unloadable"]))
    if "size" in facts and facts["size"] != world.size:
        return Mismatch(
            "size",
            f"rank {world.rank} sees a world of {facts['size']} in MPI, but the launcher started "
            f"{world.size} (from {world.source}): {_why(setting)}",
        )
    if "size" in facts and facts["rank"] != world.rank:
        return Mismatch(
            "rank",
            f"rank {world.rank} is rank {facts['rank']} in MPI, but the launcher's variables say "
            f"{world.rank} of {world.size} (from {world.source}; {setting.both}): variables of a "
            "second launcher are set. Remove them from job.setup and container.env, or set "
            "launch.method to the right launcher",
        )
    if answer.status is None:
        return Mismatch("timeout", _too_long(setting, limit))
    if "total" in facts and facts["total"] != world.size * (world.size - 1) // 2:
        return Mismatch(
            "sum",
            f"the sum of the ranks 0 to {world.size - 1} is {facts['total']} in MPI "
            f"({setting.both}), which is wrong. Use another library, or "
            f"{_NO_MPI_NEEDED}",
        )
    if answer.status != 0 or facts.get("stage") != "done":
        return Mismatch("crash", _crashed(setting))
    return None


def _unloadable(setting: MpiCheck, said: str) -> str:
    """mpi4py cannot load a library. It tries many names and reports why each one failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = "; ".join(lines[-3:]) or "it gives no reason"
    what = f"mpi4py in the {setting.inside} cannot load an MPI library ({reason[:400]})"
    if "GLIBC_" in said:
        cure = (
            "the host's library needs a newer C library than the image has: use "
            "`launch.mpi: hybrid` with an MPI in the image"
        )
    elif setting.bound:
        cure = "check host_mpi.libraries and host_mpi.bind of the site"
    else:
        cure = (
            f"install the MPI that mpi4py was built for in the {setting.inside}, or bind the MPI "
            "of the host with `launch.mpi: bind`"
        )
    sides = f"host: {setting.host.text}; " if setting.host.text else ""
    if setting.library.text:
        sides += f"{setting.inside}: {setting.library.text}, by OPENMPI_VERSION; "
    return f"{what}. {sides}{cure}, or use {_NO_MPI_NEEDED}"


def _too_long(setting: MpiCheck, limit: float) -> str:
    stage = setting.answer.facts.get("stage", "import")
    doing = {
        "import": "the import of mpi4py",
        "load": "loading the MPI library",
        "start": "MPI_Init",
        "talk": f"the first exchange among the {setting.world.size} ranks",
    }.get(stage, "MPI_Finalize")
    late = f"{doing} did not end within {limit:g} s"
    if stage in ("import", "load"):
        return (
            f"{late}: its file system is slow or does not answer. To wait longer, export a larger "
            f"{TIMEOUT} in job.setup"
        )
    return f"{late} (to wait longer, export {TIMEOUT} in job.setup): {_why(setting)}"


def _crashed(setting: MpiCheck) -> str:
    """The process failed. Quote the last useful line of its output.

    The very last line is rarely useful: Open MPI frames its messages and adds general ones.
    """
    status = setting.answer.status or 0
    ended = f"ended with status {status}"
    if status < 0:
        ended = f"was killed by signal {-status} ({signal.strsignal(-status) or 'unknown'})"
    doing = "MPI_Init"
    if "size" in setting.answer.facts:
        doing = "MPI_Finalize" if "total" in setting.answer.facts else "the first exchange"
    lines = [line.strip() for line in setting.answer.output.splitlines()]
    telling = [
        line
        for line in lines
        if line.strip("-*= ") and not re.match(r"\*\*\*|\[[^]]*\] Local abort|PMIX stopped", line)
    ]
    said = f" ({telling[-1][:200]})" if telling else ""
    return f"the process {ended} in {doing}{said}: {_why(setting)}"


def _why(setting: MpiCheck) -> str:
    """The likely cause and the fix, with the versions of both sides."""
    host, image = setting.host, setting.library
    complaint = f"{setting.their_library} cannot talk to {setting.their_host}"
    bind_or_none = f"or `launch.mpi: bind`, or {_NO_MPI_NEEDED}"
    families = {host.family, image.family}
    if setting.bound and host.family in ("Open MPI", "MPICH"):
        if len(families) > 1 or (host.family == "Open MPI" and host.version != image.version):
            cure = (
                "it is not the host's library. Set host_mpi.libraries of the site to the folder of "
                "the host's libmpi.so (an mpi4py from a wheel searches its own environment first: "
                "set MPI4PY_LIBMPI in container.env to the file)"
            )
        else:
            cure = "check host_mpi of the site: prefix, and the libraries that the host's MPI needs"
        return f"{complaint}: {cure}, or use {_NO_MPI_NEEDED}"
    if families == {"Open MPI", "MPICH"}:
        launcher = "mpirun" if image.family == "Open MPI" else "mpiexec"
        return (
            f"{complaint}: Open MPI and MPICH do not work together. Use an image with "
            f"{host.family}, or launch.method: {launcher} with {image.family} on the host, "
            f"{bind_or_none}"
        )
    if families == {"Open MPI"} and host.major > image.major > 0:
        return (
            f"{complaint}: its major version must not be newer than that of the {setting.inside}. "
            f"Use an image with Open MPI {host.major} or newer, {bind_or_none}"
        )
    lost = re.search(r"(\S+)/share/(?:openmpi|pmix)/help-\S+: No such file", setting.answer.output)
    if lost:
        return (
            f"{complaint}: it searches its own files in {lost[1]}, which does not exist in the "
            f"{setting.inside}. Set OPAL_PREFIX in container.env to the folder of this MPI, or use "
            f"{_NO_MPI_NEEDED}"
        )
    # PMIx needs files of its server, in a folder of the node.
    missing = setting.environment.get("PMIX_SERVER_TMPDIR")
    if missing and not os.path.isdir(missing):
        return (
            f"{complaint}: the launcher's folder {missing} is not visible in the container. Add a "
            f"parent of it, such as {os.path.dirname(missing)}, to container.bind, or use "
            f"{_NO_MPI_NEEDED}"
        )
    if host.family == "Slurm":
        return f"{complaint}: {_why_slurm(setting)}, or use {_NO_MPI_NEEDED}"
    return (
        f"{complaint}, although their versions should work together. Remove --cleanenv and "
        f"--containall from container.args, use an image with the host's version, {bind_or_none}"
    )


def _why_slurm(setting: MpiCheck) -> str:
    """The cause under srun. The variables of the step show which plugin srun uses."""
    mpich = setting.library.family == "MPICH"
    if setting.environment.get("PMIX_RANK"):
        if mpich:
            return "MPICH needs PMI. Set `srun_mpi: pmi2` in the site (see `srun --mpi=list`)"
        return (
            "its PMIx is not compatible with that of Slurm. Try PMIX_MCA_psec=^munge and "
            "PMIX_MCA_gds=hash in container.env, or an image with a newer library"
        )
    if setting.environment.get("PMI_RANK") and not mpich:
        return "Open MPI needs PMIx. Set `srun_mpi: pmix` in the site (see `srun --mpi=list`)"
    if setting.environment.get("PMI_RANK"):
        return "its PMI is not compatible with that of Slurm. Use an image with a newer library"
    plugin = "pmi2" if mpich else "pmix"
    return (
        "srun starts the ranks without MPI (`--mpi=none`). Set "
        f"`srun_mpi: {plugin}` in the site (see `srun --mpi=list`)"
    )
