"""What changes in a rank's environment on its way from the host script to the program.

Host variables pass into a container as they are, except where the image sets the same name: then
the image wins, in silence. So everything that matters is set here, inside, by a process that
becomes the program. No value passes a shell, which `--env` and `APPTAINERENV_*` would make of it.

What the launch script does before: it unsets what Python and MPI would misread of the host
(PYTHONPATH, PYTHONHOME, LC_ALL, RANK, ...), and takes `APPTAINERENV_LD_LIBRARY_PATH` out of the
way, which would replace the image's own search path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Changes = dict[str, "str | None"]
"""New values of variables; None takes a variable away."""

GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
HOST_LIBRARIES = Path("/.singularity.d/libs")
"""Where Apptainer and Singularity put the driver's libraries."""


def environment_changes(
    environ: Mapping[str, str], resolved: Mapping[str, Any], run_dir: Path
) -> Changes:
    """The changes for a rank of the job that `job.json` describes.

    From weak to strong: what every rank has, MPI's and the GPUs', the network's and the site's
    settings (which `job.json` holds below the job's own), `container.env`.
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
    """What an image must not mask. Compilers' caches are this job's and this node's: on a shared
    file system they go stale under each other (Triton, Inductor)."""
    changes: Changes = {"PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}
    cores = resolved["job"].get("job", {}).get("cpus_per_gpu")
    if cores:
        changes["OMP_NUM_THREADS"] = str(cores)
    if not environ.get("HPC_AMP_CONTAINER"):
        return changes
    changes["TMPDIR"] = "/tmp"
    caches = f"/tmp/hpc-amp-{os.getuid()}-{environ.get('HPC_AMP_JOB_ID', 'job')}"
    changes["TRITON_CACHE_DIR"] = f"{caches}/triton"
    changes["TORCHINDUCTOR_CACHE_DIR"] = f"{caches}/inductor"
    if (HOST_LIBRARIES / "libcuda.so.1").exists():
        changes["TRITON_LIBCUDA_PATH"] = str(HOST_LIBRARIES)
    return changes


def _search_paths(
    given: Mapping[str, str],
    environ: Mapping[str, str],
    resolved: Mapping[str, Any],
    run_dir: Path,
) -> Changes:
    """Folders that stand before those of the image: the snapshot for Python, the host's MPI and
    what the site wanted for the dynamic loader. The image's own stay behind them."""
    libraries = [
        *_bound_libraries(environ, resolved),
        *filter(None, environ.get("HPC_AMP_LD_LIBRARY_PATH", "").split(os.pathsep)),
    ]
    changes: Changes = {
        "PYTHONPATH": _join([str(run_dir / "src")], given.get("PYTHONPATH")),
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
    """The folders of the host's MPI; `$NAME` stands for those that the site's `setup` found."""
    if _mpi_use(resolved) != "bind":
        return []
    libraries = (resolved.get("host_mpi") or {}).get("libraries") or []
    texts = (environ.get(item[1:], "") if item.startswith("$") else item for item in libraries)
    return [folder for text in texts for folder in text.split(os.pathsep) if folder]


def _mpi(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> Changes:
    """Where Open MPI and its PMIx look for their own files.

    `bind`: in the host's folder, whatever the image says of its own. `hybrid`: the image's MPI
    knows its place, or the image says it; the host's mpirun may have set its own folder, which the
    image does not have, and MPI would end without a word of why.
    """
    use = _mpi_use(resolved)
    if use == "bind":
        prefix = (resolved.get("host_mpi") or {}).get("prefix")
        return {"OPAL_PREFIX": prefix} if prefix else {}
    if use != "hybrid":
        return {}
    return {
        name: None
        for name, owner in (
            ("OPAL_PREFIX", "openmpi"),
            ("PMIX_PREFIX", "pmix"),
            ("PMIX_INSTALL_PREFIX", "pmix"),
        )
        if environ.get(name) and not Path(environ[name], "share", owner).is_dir()
    }


def _gpus(environ: Mapping[str, str], resolved: Mapping[str, Any]) -> Changes:
    """`gpu_order: reversed`: the first rank of a node takes the last of the GPUs that it sees."""
    if resolved.get("gpu_order", "as-is") != "reversed":
        return {}
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = [device.strip() for device in visible.split(",")]
    else:
        try:
            count = len(list(GPU_FOLDER.iterdir()))
        except OSError:
            count = resolved["job"]["job"]["gpus_per_node"]
        devices = [str(index) for index in range(count)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(reversed(devices))} if len(devices) > 1 else {}
