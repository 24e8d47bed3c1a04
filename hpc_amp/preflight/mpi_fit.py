"""Whether host and image fit each other in MPI, from what both say, and why not."""

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
"""The variable with the limit of the check, in seconds."""
_NO_MPI_NEEDED = "`launch.mpi: none` (torch needs no MPI)"


@dataclass(frozen=True, slots=True)
class Library:
    """An MPI library or launcher, by what it says of itself."""

    text: str = ""
    """As people write it: `Open MPI v4.1.4`."""
    family: str = ""
    """`Open MPI`, `MPICH` (also Cray's, Intel's and MVAPICH, which are made from it), `Slurm`, or
    empty where unknown."""
    version: str = ""
    """`4.1.4`, or empty where unknown."""

    @property
    def major(self) -> int:
        """The first number of the version, 0 where it is unknown."""
        found = re.match(r"\d+", self.version)
        return int(found[0]) if found else 0


@dataclass(slots=True)
class ProbeAnswer:
    """What the process that asked mpi4py found out."""

    facts: dict[str, Any] = field(default_factory=dict)
    status: int | None = None
    """Exit status, negative for a signal; None where it had to be ended."""
    output: str = ""
    """What MPI wrote meanwhile."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why the program must not start."""

    kind: str
    """A word for all failures of this sort."""
    text: str
    """One line: what is wrong and what to do."""


class MpiCheck:
    """Both sides of the check, and how to call them."""

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
        """Both versions."""
        return f"host: {self.host.text or 'unknown'}, {self.inside}: {self.library.text}"


def host_library(environment: Mapping[str, str]) -> Library:
    """The host's launcher: what the script has asked it, else what it left in the environment."""
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
    """The image's library: what `MPI_Get_library_version` says, which may be pages long. Where it
    cannot be asked, what NVIDIA's images have in their environment."""
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
    """What is wrong, None where nothing is."""
    answer, world = setting.answer, setting.world
    facts = answer.facts
    if "absent" in facts:
        return Mismatch(
            "absent",
            f"no mpi4py in the {setting.inside} ({sys.executable}): launch.mpi needs it. Install "
            f"it there, or use {_NO_MPI_NEEDED}",
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
            f"{world.rank} of {world.size} (from {world.source}; {setting.both}): a second "
            "launcher's are among them. Keep them out of job.setup and container.env, or set "
            "launch.method to the launcher that is meant",
        )
    if answer.status is None:
        return Mismatch("timeout", _too_long(setting, limit))
    if "total" in facts and facts["total"] != world.size * (world.size - 1) // 2:
        return Mismatch(
            "sum",
            f"the ranks 0 to {world.size - 1} add up to {facts['total']} in MPI "
            f"({setting.both}): its messages cannot be trusted. Use another library, or "
            f"{_NO_MPI_NEEDED}",
        )
    if answer.status != 0 or facts.get("stage") != "done":
        return Mismatch("crash", _crashed(setting))
    return None


def _unloadable(setting: MpiCheck, said: str) -> str:
    """mpi4py tries many names, and says why each failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = "; ".join(lines[-3:]) or "it gives no reason"
    what = f"mpi4py in the {setting.inside} cannot load an MPI library ({reason[:400]})"
    if "GLIBC_" in said:
        cure = (
            "the host's library is made for a newer system than the image's: use "
            "`launch.mpi: hybrid` with an MPI in the image"
        )
    elif setting.bound:
        cure = "see to host_mpi.libraries and host_mpi.bind of the site"
    else:
        cure = (
            f"install the MPI that mpi4py was made for in the {setting.inside}, or bind the "
            "host's with `launch.mpi: bind`"
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
    late = f"{doing} did not come to an end within {limit:g} s"
    if stage in ("import", "load"):
        return (
            f"{late}: the file system that it is read from is slow, or does not answer. A larger "
            f"{TIMEOUT}, exported in job.setup, waits longer"
        )
    return f"{late} ({TIMEOUT}, exported in job.setup, sets the time): {_why(setting)}"


def _crashed(setting: MpiCheck) -> str:
    """The last line is seldom the one that says it: Open MPI frames its messages, and ends with
    what it could not do about it."""
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
    """The likely cause and the cure, with the versions of both sides."""
    host, image = setting.host, setting.library
    complaint = f"{setting.their_library} cannot talk to {setting.their_host}"
    bind_or_none = f"or `launch.mpi: bind`, or {_NO_MPI_NEEDED}"
    families = {host.family, image.family}
    if setting.bound and host.family in ("Open MPI", "MPICH"):
        if len(families) > 1 or (host.family == "Open MPI" and host.version != image.version):
            cure = (
                "it is not the host's. Let host_mpi.libraries of the site name the folder of the "
                "host's libmpi.so (a wheel of mpi4py looks in its own environment first: "
                "MPI4PY_LIBMPI in container.env names the file)"
            )
        else:
            cure = "see to host_mpi of the site: its prefix, and what its libraries need"
        return f"{complaint}: {cure}, or use {_NO_MPI_NEEDED}"
    if families == {"Open MPI", "MPICH"}:
        launcher = "mpirun" if image.family == "Open MPI" else "mpiexec"
        return (
            f"{complaint}: they are of two families. Use an image with {host.family}, or "
            f"launch.method: {launcher} of a host's {image.family}, {bind_or_none}"
        )
    if families == {"Open MPI"} and host.major > image.major > 0:
        return (
            f"{complaint}: the host's major version may not be newer than the {setting.inside}'s. "
            f"Use an image with Open MPI {host.major} or newer, {bind_or_none}"
        )
    lost = re.search(r"(\S+)/share/(?:openmpi|pmix)/help-\S+: No such file", setting.answer.output)
    if lost:
        return (
            f"{complaint}: it looks for its own files in {lost[1]}, which the {setting.inside} "
            "does not have. Name the folder that it is in as OPAL_PREFIX in container.env, or use "
            f"{_NO_MPI_NEEDED}"
        )
    missing = _missing_folder(setting.environment)
    if missing:
        return (
            f"{complaint}: the launcher's folder {missing} is not visible inside. Add the part of "
            f"it that lasts, such as {os.path.dirname(missing)}, to container.bind, or use "
            f"{_NO_MPI_NEEDED}"
        )
    if host.family == "Slurm":
        return f"{complaint}: {_why_slurm(setting)}, or use {_NO_MPI_NEEDED}"
    return (
        f"{complaint}, although their versions do not exclude it. Keep --cleanenv and "
        f"--containall out of container.args, use an image with the host's version, {bind_or_none}"
    )


def _missing_folder(environment: Mapping[str, str]) -> str | None:
    """PMIx meets its server through files of the node."""
    folder = environment.get("PMIX_SERVER_TMPDIR")
    return folder if folder and not os.path.isdir(folder) else None


def _why_slurm(setting: MpiCheck) -> str:
    """What srun offers shows in the variables of the step."""
    mpich = setting.library.family == "MPICH"
    if setting.environment.get("PMIX_RANK"):
        if mpich:
            return "MPICH wants PMI. Set `srun_mpi: pmi2` in the site (see `srun --mpi=list`)"
        return (
            "its PMIx does not understand that of Slurm. Try PMIX_MCA_psec=^munge and "
            "PMIX_MCA_gds=hash in container.env, or an image with a newer library"
        )
    if setting.environment.get("PMI_RANK") and not mpich:
        return "Open MPI wants PMIx. Set `srun_mpi: pmix` in the site (see `srun --mpi=list`)"
    if setting.environment.get("PMI_RANK"):
        return "its PMI does not understand that of Slurm. Use an image with a newer library"
    plugin = "pmi2" if mpich else "pmix"
    return (
        "srun offers the ranks no MPI (`--mpi=none`). Set "
        f"`srun_mpi: {plugin}` in the site (see `srun --mpi=list`)"
    )
