"""The changes to a rank's environment between the host script and the program.

Host variables pass into a container unchanged, unless the image sets the same name: then the image
wins without a message. So everything that matters is set inside, by a process that becomes the
program. No value passes through a shell, as values of `--env` and `APPTAINERENV_*` do.

Before that, the launch script unsets what Python and MPI would misread from the host (PYTHONPATH,
PYTHONHOME, LC_ALL, RANK, ...), and APPTAINERENV_LD_LIBRARY_PATH, which would replace the image's
own search path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

Changes = dict[str, "str | None"]
"""New values of variables. None removes a variable."""

GPU_FOLDER = "/proc/driver/nvidia/gpus"
HOST_LIBRARIES = "/.singularity.d/libs"
"""Where Apptainer and Singularity mount the libraries of the GPU driver."""


def environment_changes(
    environ: Mapping[str, str], resolved: Mapping[str, Any], run_dir: str | Path
) -> Changes:
    """The changes for a rank.

    `environ`: the environment of this process.
    `resolved`: the content of `job.json`.
    `run_dir`: the run directory.

    Later ones override earlier ones: what every rank needs, MPI's variables, the GPUs', those of
    the network and the site (which are in the `container.env` of `job.json`, below the job's own),
    and the job's `container.env`.
    """
    own: dict[str, str] = resolved["job"]["container"]["env"]
    return {
        **_common(environ, resolved),
        **_mpi(environ, resolved),
        **_gpus(environ, resolved),
        **own,
        **_search_paths({**environ, **own}, environ, resolved, run_dir),
    }


def _common(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> Changes:
    """What an image must not override. Caches of compilers (Triton, Inductor) belong to this job
    and node: on a shared file system, jobs would use stale files of each other. With
    `train.compile`, the engine chooses a folder beside the runs (`hpc_amp.train.compiling`)."""
    changes: Changes = {"PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}
    cores = resolved["job"].get("job", {}).get("cpus_per_gpu")
    if cores:
        changes["OMP_NUM_THREADS"] = str(cores)
    if not environ.get("HPC_AMP_CONTAINER"):
        return changes
    changes["TMPDIR"] = "/tmp"
    caches = f"/tmp/hpc-amp-{os.getuid()}-{environ.get('HPC_AMP_JOB_ID', 'job')}"
    compiles = bool((resolved["job"].get("train") or {}).get("compile"))
    changes["TRITON_CACHE_DIR"] = None if compiles else f"{caches}/triton"
    changes["TORCHINDUCTOR_CACHE_DIR"] = None if compiles else f"{caches}/inductor"
    if os.path.exists(os.path.join(HOST_LIBRARIES, "libcuda.so.1")):
        changes["TRITON_LIBCUDA_PATH"] = HOST_LIBRARIES
    return changes


def _search_paths(
    given: Mapping[str, str],
    environ: Mapping[str, str],
    resolved: Mapping[str, Any],
    run_dir: str | Path,
) -> Changes:
    """Folders in front of those of the image: the run's copy of hpc_amp for Python, and for the
    dynamic loader the host's MPI and the folders that the site asks for."""
    libraries = [
        *_bound_libraries(environ, resolved),
        *filter(None, environ.get("HPC_AMP_LD_LIBRARY_PATH", "").split(os.pathsep)),
    ]
    changes: Changes = {
        "PYTHONPATH": _join([os.path.join(run_dir, "src")], given.get("PYTHONPATH")),
        "HPC_AMP_LD_LIBRARY_PATH": None,
    }
    if libraries:
        changes["LD_LIBRARY_PATH"] = _join(libraries, given.get("LD_LIBRARY_PATH"))
    return changes


def _join(folders: list[str], rest: str | None) -> str:
    return os.pathsep.join([*folders, *([rest] if rest else [])])


def _mpi_use(resolved: Mapping[str, Any]) -> str:
    use: str = resolved["job"].get("launch", {}).get("mpi", "none")
    return use


def _bound_libraries(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> list[str]:
    """The folders of the host's MPI. `$NAME` means those that the site's `setup` lines found."""
    if _mpi_use(resolved) != "bind":
        return []
    libraries = (resolved.get("host_mpi") or {}).get("libraries") or []
    texts = (environ.get(item[1:], "") if item.startswith("$") else item for item in libraries)
    return [folder for text in texts for folder in text.split(os.pathsep) if folder]


def _mpi(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> Changes:
    """Variables that say where Open MPI and PMIx find their own files.

    `bind`: in the folder of the host's MPI; the image's variables are overridden. `hybrid`: the
    image's MPI knows its own folder. The host's mpirun may have set a folder that the image does
    not have, and MPI would end without a message, so such variables are removed.
    """
    use = _mpi_use(resolved)
    if use == "bind":
        prefix = (resolved.get("host_mpi") or {}).get("prefix")
        return {"OPAL_PREFIX": prefix} if prefix else {}
    if use != "hybrid":
        return {}
    owners = {"OPAL_PREFIX": "openmpi", "PMIX_PREFIX": "pmix", "PMIX_INSTALL_PREFIX": "pmix"}
    changes: Changes = {}
    for name, owner in owners.items():
        if environ.get(name) and not os.path.isdir(os.path.join(environ[name], "share", owner)):
            changes[name] = None
    return changes


def _gpus(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> Changes:
    """With `gpu_order: reversed`, the first rank of a node uses the last visible GPU."""
    if resolved.get("gpu_order", "as-is") != "reversed":
        return {}
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = [device.strip() for device in visible.split(",")]
    else:
        try:
            count = len(os.listdir(GPU_FOLDER))
        except OSError:
            count = resolved["job"]["job"]["gpus_per_node"]
        devices = [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(reversed(devices))} if len(devices) > 1 else {}
