"""The checks of one node, made inside the container without importing torch.

A check reports an error only for a problem that would end the run or make it hang. After a warning
the job starts.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from hpc_amp.distributed.world import WorldError
from hpc_amp.errors import FULL_DISK
from hpc_amp.finding import Finding, Findings
from hpc_amp.preflight.gpu_checks import check_gpus
from hpc_amp.preflight.network_checks import (
    check_infiniband,
    check_interfaces,
    check_names,
    check_port,
)
from hpc_amp.preflight.node import Node, listed, some
from hpc_amp.trackers.registry import missing

_MIB, _GIB = 2**20, 2**30

# Modules that torch and data loaders import. A file with such a name beside the program would be
# imported instead.
_SHADOWED = {
    *("calendar", "code", "copy", "email", "inspect", "io", "json", "logging", "numbers", "numpy"),
    *("operator", "platform", "profile", "queue", "random", "secrets", "select", "signal"),
    *("socket", "statistics", "string", "struct", "tempfile", "token", "tokenize", "torch"),
    *("torchvision", "types", "typing", "warnings"),
}
# Variables that describe a place or a version. The image's own values are the right ones.
_DESCRIBES = re.compile(r"_(VERSION|HOME|PATH|ROOT|DIR|PREFIX|BASE|ARCH_LIST)$")
# Variables that choose the network or disable a fast transport.
_NETWORK_VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_COMM_ID", "FI_PROVIDER", "UCX_NET_DEVICES"),
)


def check_rank(node: Node) -> Findings:
    """Check that the launcher's variables are visible and agree with what the script started."""
    hidden = "without them every process would train alone, as the only rank"
    if node.nodes * node.ranks > 1 and not node.environ.get("HPC_AMP_WORLD_SIZE"):
        what = "the variables of the script are not visible in the container"
        fix = "remove --cleanenv, --containall and --compat from container.args of job and site"
        yield Finding("rank", "error", what, hidden, fix)
        return
    try:
        world = node.world()
    except WorldError as error:
        fix = "check that the launcher starts one task on each node, and check launch.args"
        yield Finding("rank", "error", f"{error}", hidden, fix)
        return
    yield Finding("rank", "good", f"one task on each of {world.size} node(s) ({world.source})")


def check_run_dir(node: Node) -> Findings:
    """Check that the run directory is writable and has space for checkpoints."""
    why = "checkpoints, metrics and the log are written there"
    folder = node.run_dir / "attempts"
    try:
        _write(folder)
    except OSError as error:
        fix = "use a file system that you can write, and do not bind it read-only"
        if error.errno in FULL_DISK:
            fix = "free some space, or set runs_dir to another file system"
        what = f"{node.run_dir} is not writable: {error.strerror}"
        yield Finding("fs", "error", what, why, fix)
        return
    yield _space("fs", node.run_dir, _GIB, why, "free some space before the first checkpoint")


def check_binds(node: Node) -> Findings:
    """Check that the binds and the working directory are visible in the container."""
    missing = []
    for bind in node.resolved.get("binds", []):
        source, destination = (*bind.split(":"), "")[:2]
        inside = node.at(destination or source)
        try:
            if inside.is_dir():
                os.listdir(inside)
            else:
                inside.stat()
        except OSError as error:
            missing.append(f"{destination or source} ({error.strerror})")
    workdir = node.resolved["workdir"]
    if not node.at(workdir).is_dir():
        missing.append(f"the working directory {workdir} (No such file or directory)")
    if missing:
        fix = "check that the file system is mounted on this node, and the permissions"
        what = f"cannot be read{_inside(node)}: {', '.join(missing)}"
        yield Finding("bind", "error", what, "the program may need it", fix)
    else:
        yield Finding("bind", "good", "all binds are visible")


def check_data(node: Node) -> Findings:
    """Check that the data set of a built-in task can be read."""
    train = node.job.get("train")
    if not train or "data" not in train or train["data"]["name"] == "synthetic":
        return  # a task with its own data does not use this section
    data, root = train["data"], node.at(train["data"]["root"])
    why = "every rank reads its images from it"
    try:  # a folder, or a tar file of one
        exists, right = root.exists(), os.R_OK | os.X_OK if root.is_dir() else os.R_OK
    except PermissionError:  # to look into a folder above it
        exists, right = True, os.R_OK
    if exists:
        if os.access(root, right):
            yield Finding("data", "good", f"{data['root']} can be read")
        else:
            what = f"you have no permission to read {data['root']}"
            fix = "check the permissions with ls -ld, also of the folders above it"
            yield Finding("data", "error", what, why, fix)
    elif data["if_missing"] == "synthetic":
        what = f"{data['root']} does not exist: the job will train on SYNTHETIC images"
        yield Finding("data", "good", what)
    elif data["download"] and data["name"] != "imagefolder":
        what = f"{data['root']} does not exist yet: rank 0 will download the data"
        yield Finding("data", "good", what)
    else:
        fix = "check train.data.root"
        if node.in_container:
            fix += "; a folder outside the image must be bound (container.bind)"
        what = f"the folder {data['root']} does not exist{_inside(node)}"
        yield Finding("data", "error", what, why, fix)


def check_tmp(node: Node) -> Findings:
    """Check that temporary files can be written, and how much space there is."""
    folder = node.program.get("TMPDIR") or "/tmp"
    why = "compilers, data loaders and sockets between processes use it"
    try:
        _write(node.at(folder))
    except OSError as error:
        what = f"{folder} is not writable: {error.strerror}"
        if error.errno in FULL_DISK:
            what = f"{folder} is full"
        fix = "remove old files from it, or bind a larger folder: container.bind=[DIR:/tmp]"
        yield Finding("tmp", "error", what, why, fix)
        return
    fix = "bind a larger folder: container.bind=[DIR:/tmp]"
    yield _space("tmp", node.at(folder), _GIB, why, fix, name=folder)


def check_shm(node: Node) -> Findings:
    """Check that there is enough shared memory for loader processes and NCCL."""
    why = "loader processes and NCCL exchange data in it; if it is full, SIGBUS kills them"
    fix = (
        "look for files of other jobs (ls -la /dev/shm); files in it also count as memory of the "
        "job"
    )
    try:
        _write(node.at("/dev/shm"))
    except OSError as error:
        what = f"/dev/shm is not writable: {error.strerror}"
        yield Finding("shm", "error", what, why, fix)
        return
    yield _space("shm", node.at("/dev/shm"), node.ranks * 128 * _MIB, why, fix, name="/dev/shm")


def check_usersite(node: Node) -> Findings:
    """Check that Python does not import packages from the home folder."""
    import site

    folder = Path(site.getusersitepackages())
    names = _modules(folder)
    if not names:
        yield Finding("usersite", "good", "there are no packages in the home folder")
    elif node.program.get("PYTHONNOUSERSITE"):
        yield Finding("usersite", "good", f"Python ignores the packages in {folder}")
    else:
        what = f"packages in {folder} replace those of the image: {some(names)}"
        why = "they were installed for another Python or torch"
        fix = "do not set PYTHONNOUSERSITE to an empty value in container.env"
        yield Finding("usersite", "warning", what, why, fix)


def check_imports(node: Node) -> Findings:
    """Check that Python has torch, and that PYTHONPATH does not replace packages of the image."""
    added = [
        entry
        for entry in (node.program.get("PYTHONPATH") or "").split(os.pathsep)
        if entry and entry != str(node.run_dir / "src")
    ]
    before = (node.environ.get("PYTHONPATH") or "").split(os.pathsep)
    own = [entry for entry in sys.path[1:] if entry not in before]
    # Only what can be imported counts: a folder may have the name of a package by chance.
    pollution = sorted(
        f"{name} ({entry})"
        for entry in added
        for name in ("torch", "torchvision", "numpy")
        if entry not in own and _find(name, [entry]) is not None
    )
    why = "they may be built for another Python or CUDA"
    if pollution:
        what = f"PYTHONPATH replaces packages of the image: {some(pollution)}"
        fix = "remove it from container.env, or from the environment of the image"
        yield Finding("py.path", "warning", what, why, fix)
    else:
        yield Finding("py.path", "good", "PYTHONPATH replaces no package of the image")
    if _find("torch", [*added, *own]) is None:
        what = f"{sys.executable} has no torch"
        if node.job.get("train"):
            fix = "use an image with torch, or set container.python to a Python that has it"
            yield Finding("img.python", "error", what, "the built-in tasks need it", fix)
        else:
            yield Finding("img.python", "good", f"{what}; your program may not need it")
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        yield Finding("img.python", "good", f"Python {version} with torch, {sys.executable}")


def check_trackers(node: Node) -> Findings:
    """Check that the packages of the trackers are there."""
    train = node.job.get("train") or {}
    names = train.get("trackers", [])
    if importlib.util.find_spec("torch") is None:
        return  # the training cannot begin, as another check says
    problems = [problem for problem in map(missing, names) if problem is not None]
    for problem in problems:
        why = "the run has its curves in metrics.jsonl alone"
        fix = "use an image that has it, or send the curves later: hpc-amp export"
        yield Finding("trackers", "warning", problem, why, fix)
    if names and not problems:
        yield Finding("trackers", "good", f"the packages of {', '.join(names)} are there")


def check_program(node: Node) -> Findings:
    """Check that the program of `run` exists, and that no file beside it hides a library."""
    run = node.job.get("run")
    if not run:
        return
    workdir = node.at(node.resolved["workdir"])
    word, why = run[0], "every rank runs it"
    if word not in ("python", "python3"):
        path = node.program.get("PATH", os.defpath)
        there = os.access(workdir / word, os.X_OK) if "/" in word else shutil.which(word, path=path)
        if there:
            yield Finding("program", "good", f"{word} exists")
        else:
            what = f"the program {word} does not exist{_inside(node)}"
            fix = "check the name, and PATH in job.setup"
            if node.in_container:
                fix = "check the name; a program that is not in the image must be bound"
            yield Finding("program", "error", what, why, fix)
        return
    script = next((text for text in run[1:] if not text.startswith("-")), "")
    if not script.endswith(".py") or (len(run) > 1 and run[1] in ("-m", "-c")):
        folder = workdir
    elif (workdir / script).is_file():
        folder = (workdir / script).parent
    else:
        what = f"the file {script} does not exist{_inside(node)}"
        fix = f"a relative path starts from the working directory, {workdir}"
        fix += "; other folders must be bound (container.bind)" if node.in_container else ""
        yield Finding("program", "error", what, why, fix)
        return
    shadows = sorted(_SHADOWED & _modules(folder))
    if shadows and "-I" not in run:
        what = f"files in {folder} hide libraries of the same name: {', '.join(shadows)}"
        why = "torch would import them, because Python searches the program's folder first"
        yield Finding("py.path", "warning", what, why, "rename them")
    yield Finding("program", "good", f"{' '.join(run[:2])} exists")


def check_masked(node: Node) -> Findings:
    """Check that the image does not replace variables of the script or set the network."""
    changes, program = node.changes, node.program
    masked = []
    for name, value in sorted(node.outside.items()):
        now = program.get(name)
        if not _DESCRIBES.search(name) and now != value and name not in changes:
            masked.append(f"{name} is {value} outside and {now or 'not set'} in the container")
    if masked:
        fix = "set them in container.env or in env of the site, which override the image"
        why = "the variables of an image override those of the script"
        yield Finding("env.masked", "warning", "; ".join(masked), why, fix)
    set_by_image = [
        f"{name}={node.environ[name]}"
        for name in _NETWORK_VARIABLES
        if node.environ.get(name) and name not in node.outside and name not in changes
    ]
    if set_by_image:
        what = f"the image itself sets {', '.join(set_by_image)}"
        why = "the value is for the network of another machine and may be wrong here"
        fix = "set the variable in container.env, to the right value or to an empty one"
        yield Finding("env.masked", "warning", what, why, fix)
    if not masked and not set_by_image:
        yield Finding("env.masked", "good", "the image changes no variable of the script")


def check_libraries(node: Node) -> Findings:
    """Check that LD_LIBRARY_PATH still has the folders of the image."""
    wanted = _image_libraries(node.at("/.singularity.d/env"))
    have = (node.program.get("LD_LIBRARY_PATH") or "").split(os.pathsep)
    lost = [folder for folder in wanted if folder not in have and node.at(folder).is_dir()]
    if lost:
        what = f"LD_LIBRARY_PATH does not have these folders of the image: {', '.join(lost)}"
        why = "torch and CUDA find their libraries in them"
        fix = "add them to LD_LIBRARY_PATH in container.env or --env, which replaced the image's"
        yield Finding("env.libs", "warning", what, why, fix)
    elif wanted:
        yield Finding("env.libs", "good", "LD_LIBRARY_PATH of the image is kept")


def check_cores(node: Node) -> Findings:
    """Check that the ranks may use the requested cores."""
    each = int(node.job["job"]["cpus_per_gpu"])
    # srun and PALS give this task only the cores of one rank.
    one = node.resolved.get("launcher") in ("srun", "mpiexec")
    asked = each if one else each * node.ranks
    have = len(os.sched_getaffinity(0))
    if have < asked:
        ranks = 1 if one else node.ranks
        what = f"{have} core(s) are available for {ranks} rank(s) with {each} requested for each"
        why = "threads and loader processes share cores, which can make training ten times slower"
        fix = "check how the launcher binds tasks (launch.args), or reduce job.cpus_per_gpu"
        yield Finding("cpu.affinity", "warning", what, why, fix)
    else:
        yield Finding("cpu.affinity", "good", f"{have} core(s), {asked} requested")


def check_limits(node: Node) -> Findings:
    """Check the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 1024:
        what = f"the limit of open files is only {soft} (hard limit {hard})"
        why = "loader processes pass tensors as open files: `Too many open files`"
        yield Finding("limits", "warning", what, why, "add `ulimit -n 4096` to job.setup")
    else:
        yield Finding("limits", "good", f"the limit of open files is {soft}")


CHECKS: dict[str, Callable[[Node], Findings]] = {
    "rank": check_rank,
    "fs": check_run_dir,
    "bind": check_binds,
    "data": check_data,
    "tmp": check_tmp,
    "shm": check_shm,
    "usersite": check_usersite,
    "py.path": check_imports,
    "trackers": check_trackers,
    "program": check_program,
    "env.masked": check_masked,
    "env.libs": check_libraries,
    "cpu.affinity": check_cores,
    "limits": check_limits,
    "gpu.count": check_gpus,
    "net.name": check_names,
    "net.port": check_port,
    "net.if": check_interfaces,
    "net.ib": check_infiniband,
}
"""All checks in the order in which they are made. The key is the id of a check's first finding."""


def look(node: Node) -> list[Finding]:
    """Make all checks. A check that raises an exception gives a finding of severity `unknown`."""
    found: list[Finding] = []
    for id, check in CHECKS.items():
        try:
            found += check(node)
        except Exception as error:
            found.append(Finding(id, "unknown", f"the check itself failed: {error!r}"))
    return found


# ---- facts ---------------------------------------------------------------------------------------


def _inside(node: Node) -> str:
    """The end of a sentence that says where something was looked for."""
    return " in the container" if node.in_container else ""


def _write(folder: Path) -> None:
    """Write and remove a file of 1 MiB. Raises OSError if that fails.

    An empty file is not enough: it can be created on a full file system.
    """
    path = folder / f".hpc-amp-{socket.gethostname()}-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.write(bytes(_MIB))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _space(id: str, path: Path, wanted: int, why: str, fix: str, name: str = "") -> Finding:
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    # Rounded, so that nodes with about the same free space have the same finding.
    shown = f"{free // _GIB} GiB" if free >= _GIB else f"{float(f'{free // _MIB:.1g}'):.0f} MiB"
    name = name or str(path)
    if free < wanted:
        what = f"{name} has only about {shown} of free space"
        return Finding(id, "warning", what, why, fix)
    if found.f_files and found.f_favail < 1000:
        what = f"{name} has almost no free inodes: only a few more files can be created"
        return Finding(id, "warning", what, why, fix)
    return Finding(id, "good", f"{name} has enough space")


def _modules(folder: Path) -> set[str]:
    """The names of the modules that can be imported from a folder."""
    return {
        entry.removesuffix(".py")
        for entry in listed(folder)
        if entry.endswith(".py") or (entry.isidentifier() and (folder / entry).is_dir())
    } - {"__pycache__"}


def _find(name: str, folders: list[str]) -> str | None:
    """The file of a module, found without importing anything."""
    try:
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec else None


def _image_libraries(folder: Path) -> list[str]:
    """The folders that the image itself adds to LD_LIBRARY_PATH."""
    found: list[str] = []
    for name in listed(folder):
        if name.startswith(("01-", "94-", "95-", "99-")):
            continue  # written by the container runtime
        try:
            text = (folder / name).read_text(errors="replace")
        except OSError:
            continue
        for line in re.findall(r"^\s*(?:export\s+)?LD_LIBRARY_PATH=(.*)$", text, re.MULTILINE):
            found += re.findall(r"(?<![\w.}])/[^\s:\"'${}]+", line)
    return [path for path in dict.fromkeys(found) if not path.startswith("/.singularity.d")]
