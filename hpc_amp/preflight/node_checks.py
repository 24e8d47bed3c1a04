"""The checks of one node, inside the container. None of them imports torch.

What an error here says would end the run, or let it wait for ever. Warnings end nothing.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.machinery
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from hpc_amp.distributed.world import WorldError
from hpc_amp.preflight.gpu_checks import check_gpus
from hpc_amp.preflight.network_checks import (
    check_infiniband,
    check_interfaces,
    check_names,
    check_port,
)
from hpc_amp.preflight.node import CheckResult, Findings, Node, listed, some

_MIB, _GIB = 2**20, 2**30

# Modules that torch and data loaders import: a file of this name beside the program comes first.
_SHADOWED = {
    *("calendar", "code", "copy", "email", "inspect", "io", "json", "logging", "numbers", "numpy"),
    *("operator", "platform", "profile", "queue", "random", "secrets", "select", "signal"),
    *("socket", "statistics", "string", "struct", "tempfile", "token", "tokenize", "torch"),
    *("torchvision", "types", "typing", "warnings"),
}
# Variables that say where something is, or what it is: the image has its own, and is right.
_DESCRIBES = re.compile(r"_(VERSION|HOME|PATH|ROOT|DIR|PREFIX|BASE|ARCH_LIST)$")
# Of an image's own settings, those that choose the network, or switch a fast way off.
_TELLING = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_COMM_ID", "FI_PROVIDER", "UCX_NET_DEVICES"),
)


def check_rank(node: Node) -> Findings:
    """Whether the launcher's variables reach the inside, and say what the script started."""
    hidden = "without its variables every process takes itself for the only one, and trains alone"
    if node.nodes * node.ranks > 1 and not node.environ.get("HPC_AMP_WORLD_SIZE"):
        fix = "leave --cleanenv, --containall and --compat out of container.args and the site's"
        yield CheckResult("rank", "error", "the script's variables do not come in", hidden, fix)
        return
    try:
        world = node.world()
    except WorldError as error:
        fix = "check that the launcher starts one task a node, and launch.args"
        yield CheckResult("rank", "error", f"{error}", hidden, fix)
        return
    yield CheckResult("rank", "good", f"one task on each of {world.size} node(s) ({world.source})")


def check_run_dir(node: Node) -> Findings:
    """Whether the run directory can be written, with room for checkpoints."""
    why = "checkpoints, curves and the log go there"
    folder = node.run_dir / "attempts"
    try:
        _write(folder)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = (
            "make room there, or set runs_dir to another file system"
            if full
            else "bind it writable, on a file system on which you may write"
        )
        what = f"nothing can be written in {node.run_dir}: {error.strerror}"
        yield CheckResult("fs", "error", what, why, fix)
        return
    yield _space("fs", node.run_dir, _GIB, why, "make room before the first checkpoint")


def check_binds(node: Node) -> Findings:
    """Whether what is to be mounted is there inside, and the working directory too."""
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
        fix = "see whether the file system is mounted on this node, and its permissions"
        what = f"cannot be read{_inside(node)}: {', '.join(missing)}"
        yield CheckResult("bind", "error", what, "the program works there", fix)
    else:
        yield CheckResult("bind", "good", "all mounts are there")


def check_data(node: Node) -> Findings:
    """Whether the data set of a built-in task can be read."""
    train = node.job.get("train")
    if not train or "data" not in train or train["data"]["name"] == "synthetic":
        return  # a task that brings its own data does not use the section
    data, root = train["data"], node.at(train["data"]["root"])
    why = "every rank reads its images there"
    if root.is_dir():
        if os.access(root, os.R_OK | os.X_OK):
            yield CheckResult("data", "good", f"{data['root']} can be read")
        else:
            fix = "see ls -ld, also of the folders above it"
            yield CheckResult("data", "error", f"{data['root']} may not be read", why, fix)
    elif data["if_missing"] == "synthetic":
        yield CheckResult("data", "good", f"there is no {data['root']}: SYNTHETIC images instead")
    elif data["download"] and data["name"] != "imagefolder":
        yield CheckResult("data", "good", f"there is no {data['root']} yet: rank 0 downloads it")
    else:
        fix = "check train.data.root"
        fix += "; a folder outside the image has to be bound" if node.in_container else ""
        yield CheckResult(
            "data", "error", f"there is no folder {data['root']}{_inside(node)}", why, fix
        )


def check_tmp(node: Node) -> Findings:
    """Whether temporary files can be written, and how much of them."""
    folder = node.program.get("TMPDIR") or "/tmp"
    why = "compilers, data loaders and sockets between processes use it"
    try:
        _write(node.at(folder))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"{folder} is full" if full else f"{folder} cannot be written: {error.strerror}"
        fix = "remove old files there, or bind a roomier folder: container.bind=[DIR:/tmp]"
        yield CheckResult("tmp", "error", what, why, fix)
        return
    fix = "bind a roomier folder: container.bind=[DIR:/tmp]"
    yield _space("tmp", node.at(folder), _GIB, why, fix, name=folder)


def check_shm(node: Node) -> Findings:
    """Whether shared memory is there: loader processes and NCCL hand over data in it."""
    why = "loader processes and NCCL hand over data there; a full one ends them by SIGBUS"
    fix = (
        "see who left files there (ls -la /dev/shm); memory that a job asks for counts for it, too"
    )
    try:
        _write(node.at("/dev/shm"))
    except OSError as error:
        what = f"/dev/shm cannot be written: {error.strerror}"
        yield CheckResult("shm", "error", what, why, fix)
        return
    yield _space("shm", node.at("/dev/shm"), node.ranks * 128 * _MIB, why, fix, name="/dev/shm")


def check_usersite(node: Node) -> Findings:
    """Whether packages in the home folder come in."""
    import site

    folder = Path(site.getusersitepackages())
    names = _modules(folder)
    if not names:
        yield CheckResult("usersite", "good", "no packages in the home folder")
    elif node.program.get("PYTHONNOUSERSITE"):
        yield CheckResult("usersite", "good", f"the packages in {folder} are kept out")
    else:
        what = f"packages in {folder} replace the image's: {some(names)}"
        why = "they were made for another Python or torch, and differ from node to node"
        fix = "do not set PYTHONNOUSERSITE to nothing in container.env"
        yield CheckResult("usersite", "warning", what, why, fix)


def check_imports(node: Node) -> Findings:
    """Where the program would get torch from, and what else comes before the image's packages."""
    added = [
        entry
        for entry in (node.program.get("PYTHONPATH") or "").split(os.pathsep)
        if entry and entry != str(node.run_dir / "src")
    ]
    before = (node.environ.get("PYTHONPATH") or "").split(os.pathsep)
    own = [entry for entry in sys.path[1:] if entry not in before]
    # Not only in name: a folder of one of these names with nothing to import counts for nothing.
    pollution = sorted(
        f"{name} ({entry})"
        for entry in added
        for name in ("torch", "torchvision", "numpy")
        if entry not in own and _find(name, [entry]) is not None
    )
    why = "it was made for another Python, or another CUDA than the image's"
    if pollution:
        what = f"PYTHONPATH replaces the image's packages: {some(pollution)}"
        fix = "take it out of container.env, or out of the image's environment"
        yield CheckResult("py.path", "warning", what, why, fix)
    else:
        yield CheckResult("py.path", "good", "PYTHONPATH replaces none of the image's packages")
    if _find("torch", [*added, *own]) is None:
        what = f"{sys.executable} has no torch"
        if node.job.get("train"):
            fix = "name an image with torch, or the Python that has it in container.python"
            yield CheckResult("img.python", "error", what, "the built-in tasks need it", fix)
        else:
            yield CheckResult("img.python", "good", f"{what}, and your program may not need it")
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        yield CheckResult("img.python", "good", f"Python {version} with torch, {sys.executable}")


def check_program(node: Node) -> Findings:
    """Whether your own program is there, and nothing beside it is taken for a library."""
    run = node.job.get("run")
    if not run:
        return
    workdir = node.at(node.resolved["workdir"])
    word, why = run[0], "each rank runs it"
    if word not in ("python", "python3"):
        path = node.program.get("PATH", os.defpath)
        there = os.access(workdir / word, os.X_OK) if "/" in word else shutil.which(word, path=path)
        if there:
            yield CheckResult("program", "good", f"{word} is there")
        else:
            fix = "check the name, and PATH in job.setup"
            if node.in_container:
                fix = "check the name; what is not in the image has to be bound"
            yield CheckResult(
                "program", "error", f"there is no program {word}{_inside(node)}", why, fix
            )
        return
    script = next((text for text in run[1:] if not text.startswith("-")), "")
    if not script.endswith(".py") or (len(run) > 1 and run[1] in ("-m", "-c")):
        folder = workdir
    elif (workdir / script).is_file():
        folder = (workdir / script).parent
    else:
        fix = f"it is looked up in the working directory, {workdir}"
        fix += "; what is elsewhere has to be bound" if node.in_container else ""
        yield CheckResult("program", "error", f"there is no file {script}{_inside(node)}", why, fix)
        return
    shadows = sorted(_SHADOWED & _modules(folder))
    if shadows and "-I" not in run:
        what = f"files in {folder} are taken for libraries: {', '.join(shadows)}"
        why = "Python looks beside the program first, also when torch imports one of this name"
        yield CheckResult("py.path", "warning", what, why, "give them other names")
    yield CheckResult("program", "good", f"{' '.join(run[:2])} is there")


def check_masked(node: Node) -> Findings:
    """Whether the image replaces settings of the script, or brings network settings of its own."""
    changes, program = node.changes, node.program
    masked = []
    for name, value in sorted(node.outside.items()):
        now = program.get(name)
        if not _DESCRIBES.search(name) and now != value and name not in changes:
            masked.append(f"{name} is {value} outside, and {now or 'not set'} inside")
    if masked:
        fix = "write them into container.env (or the site's env), which win over the image"
        why = "an image's own variables win over those of a script"
        yield CheckResult("env.masked", "warning", "; ".join(masked), why, fix)
    brought = [
        f"{name}={node.environ[name]}"
        for name in _TELLING
        if node.environ.get(name) and name not in node.outside and name not in changes
    ]
    if brought:
        what = f"the image itself sets {', '.join(brought)}"
        why = "what fits the machine that it was made on need not fit this one"
        fix = "if it does not fit, give another value, or an empty one, in container.env"
        yield CheckResult("env.masked", "warning", what, why, fix)
    if not masked and not brought:
        yield CheckResult("env.masked", "good", "the image changes nothing that the script has set")


def check_libraries(node: Node) -> Findings:
    """Whether the image's search path for libraries is still there."""
    wanted = _image_libraries(node.at("/.singularity.d/env"))
    have = (node.program.get("LD_LIBRARY_PATH") or "").split(os.pathsep)
    lost = [folder for folder in wanted if folder not in have and node.at(folder).is_dir()]
    if lost:
        what = f"LD_LIBRARY_PATH has lost the image's own folders: {', '.join(lost)}"
        why = "its torch and CUDA find their libraries through them"
        fix = "name these folders, too, where container.env or --env gives LD_LIBRARY_PATH"
        yield CheckResult("env.libs", "warning", what, why, fix)
    elif wanted:
        yield CheckResult("env.libs", "good", "the image's LD_LIBRARY_PATH is kept")


def check_cores(node: Node) -> Findings:
    """Whether the ranks have the cores that were asked for."""
    each = int(node.job["job"]["cpus_per_gpu"])
    # srun and PALS give this one task the cores of one rank.
    one = node.resolved.get("launcher") in ("srun", "mpiexec")
    asked = each if one else each * node.ranks
    have = len(os.sched_getaffinity(0))
    if have < asked:
        ranks = 1 if one else node.ranks
        what = f"{have} core(s) for {ranks} rank(s) that want {each} each"
        why = "threads and loader processes wait for one another: ten times slower is common"
        fix = "see how the launcher binds (launch.args), or ask for job.cpus_per_gpu that exist"
        yield CheckResult("cpu.affinity", "warning", what, why, fix)
    else:
        yield CheckResult("cpu.affinity", "good", f"{have} core(s), {asked} asked for")


def check_limits(node: Node) -> Findings:
    """Whether enough files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < 1024:
        what = f"only {soft} files may be open (hard limit {hard})"
        why = "loader processes hand over tensors as open files: too many open files"
        yield CheckResult("limits", "warning", what, why, "put `ulimit -n 4096` into job.setup")
    else:
        yield CheckResult("limits", "good", f"{soft} files may be open")


CHECKS: dict[str, Callable[[Node], Findings]] = {
    "rank": check_rank,
    "fs": check_run_dir,
    "bind": check_binds,
    "data": check_data,
    "tmp": check_tmp,
    "shm": check_shm,
    "usersite": check_usersite,
    "py.path": check_imports,
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
"""In the order in which they are made, each by the id of its first finding."""


def look(node: Node) -> list[CheckResult]:
    """What all checks say. One that fails by itself is one that could not be made."""
    found: list[CheckResult] = []
    for id, check in CHECKS.items():
        try:
            found += check(node)
        except Exception as error:
            found.append(CheckResult(id, "unknown", f"the check itself failed: {error!r}"))
    return found


# ---- facts ---------------------------------------------------------------------------------------


def _inside(node: Node) -> str:
    """Where something was looked for, as the end of a sentence."""
    return " inside" if node.in_container else ""


def _write(folder: Path) -> None:
    """Write a MiB and take it away again. Raises OSError: a full file system takes empty files."""
    path = folder / f".hpc-amp-{socket.gethostname()}-{os.getpid()}"
    try:
        with path.open("wb") as file:
            file.write(bytes(_MIB))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _space(id: str, path: Path, wanted: int, why: str, fix: str, name: str = "") -> CheckResult:
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    # About: what two nodes have in common shall be said once.
    shown = f"{free // _GIB} GiB" if free >= _GIB else f"{float(f'{free // _MIB:.1g}'):.0f} MiB"
    name = name or str(path)
    if free < wanted:
        return CheckResult(id, "warning", f"{name} has only about {shown} left", why, fix)
    if found.f_files and found.f_favail < 1000:
        return CheckResult(id, "warning", f"{name} has room for very few more files", why, fix)
    return CheckResult(id, "good", f"{name} has room")


def _modules(folder: Path) -> set[str]:
    """Names that could be imported from a folder."""
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
    """The folders that the image's own environment puts into LD_LIBRARY_PATH."""
    found: list[str] = []
    for name in listed(folder):
        if name.startswith(("01-", "94-", "95-", "99-")):
            continue  # the runtime's own
        try:
            text = (folder / name).read_text(errors="replace")
        except OSError:
            continue
        for line in re.findall(r"^\s*(?:export\s+)?LD_LIBRARY_PATH=(.*)$", text, re.MULTILINE):
            found += re.findall(r"(?<![\w.}])/[^\s:\"'${}]+", line)
    return [path for path in dict.fromkeys(found) if not path.startswith("/.singularity.d")]
