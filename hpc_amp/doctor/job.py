"""Check a job and its site, as far as this machine can."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.units import format_duration, parse_duration
from hpc_amp.containers import Container, get_container
from hpc_amp.containers.image import go_name, machine
from hpc_amp.containers.storage import IN_MEMORY, file_system, gib
from hpc_amp.doctor.catalogue import CATALOGUE
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError
from hpc_amp.finding import Finding, Findings
from hpc_amp.jobs.places import follow_latest
from hpc_amp.jobs.possible import check_names, check_program
from hpc_amp.schedulers import Scheduler, get_scheduler
from hpc_amp.schedulers.base import Client

_GIB = 2**30
_ANSWER_SECONDS = 60.0
_OWN_DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "zfs")
# Every image has these folders, so the plan never binds them.
_SYSTEM = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/mnt", "/opt", "/proc"),
    *("/root", "/run", "/sbin", "/sys", "/usr", "/var"),
)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The job to check, its site, and the environment of this process."""

    loaded: LoadedJob
    site: Site
    environ: Mapping[str, str]

    @property
    def job(self) -> Job:
        """The job itself."""
        return self.loaded.job

    @property
    def here(self) -> bool:
        """Whether the job will run on this machine."""
        return self.scheduler.one_machine

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the site."""
        return get_scheduler(self.site.scheduler)

    @property
    def container(self) -> Container:
        """The job's container runtime."""
        return get_container(self.job, self.site)

    @property
    def image(self) -> str | None:
        """The image reference, or None if the job runs without an image."""
        return self.job.container.image if self.container.uses_image else None

    @property
    def options(self) -> list[str]:
        """Options for the container runtime from the site and the job."""
        return [*self.site.container_args, *self.job.container.args]


# ---- what the configuration's own checks say -----------------------------------------------------


def from_config_error(error: ConfigError) -> Finding:
    """Turn an error of the configuration into a finding of the check that it belongs to."""
    text = f"{error.where}: {error.message}" if error.where else error.message
    for key, id, why in (
        ("container.image:", "img.local", "every node starts the image"),
        ("container.bind:", "bind", "the container does not start if a source is missing"),
    ):
        if error.message.startswith(key):
            return Finding(id, "error", text, why, error.hint or "")
    return Finding("config", "error", text, "the job cannot be submitted", error.hint or "")


# ---- the image -----------------------------------------------------------------------------------


def check_image(request: CheckedRequest) -> Findings:
    """Check that the image is complete and on a file system that all nodes see."""
    if request.image is None:
        return
    try:
        image = request.container.read_image(request.image)
    except UsageError as error:
        why = "every node starts the image"
        yield Finding("img.local", "error", error.message, why, error.hint or "")
        return
    if image is None:
        title = request.container.title
        what = f"{request.image} is not a file: only the nodes can check that {title} can pull it"
        yield Finding("img.local", "unknown", what)
        return
    path = image.path
    kind = file_system(path)
    shown = f"{path} ({image.kind}, {image.architecture or 'architecture not known'}"
    shown += f", {gib(image.size)})" if image.size else ")"
    if request.here:
        yield Finding("img.local", "good", shown)
    elif kind in IN_MEMORY or path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp"):
        fix = "copy it to a file system that the compute nodes see"
        yield own_place("img.local", path, kind, fix)
    elif kind in _OWN_DISK:
        what = f"{shown} is on {kind}: only the nodes can check that they see it"
        yield Finding("img.local", "unknown", what)
    else:
        yield Finding("img.local", "good", shown)
    yield from check_architecture(request, image.architecture)


def own_place(id: str, path: Path, kind: str, fix: str) -> Finding:
    """A finding for a path that other machines cannot see (error) or probably cannot (warning).

    `kind` is the type of the path's file system.
    """
    if kind in IN_MEMORY:
        what = f"{path} is in the memory of this machine ({kind})"
        return Finding(id, "error", what, "the nodes do not see it", fix)
    what = f"{path} is in a folder for temporary files, which most machines do not share"
    return Finding(id, "warning", what, "the nodes may not see it", fix)


def check_architecture(request: CheckedRequest, architecture: str | None) -> Findings:
    """Compare the architecture of the image with that of the nodes, if the scheduler knows it."""
    if architecture is None:
        yield Finding("img.arch", "unknown", "the architecture of the image is not known")
        return
    nodes = {machine()}
    if not request.here:
        client = Client(_ANSWER_SECONDS)
        found = request.scheduler.node_architectures(request.job, client)
        nodes = {go_name(name) for name in found}
    why = "programs for one architecture do not run on another"
    fix = "pull or build the image for the nodes: hpc-amp container pull --arch"
    if not nodes:
        here = machine()
        if architecture == here:
            yield Finding("img.arch", "good", f"{architecture}, like this machine")
        else:
            what = f"the image is for {architecture}, and this machine is {here}"
            fix = f"if the compute nodes are not {architecture} either, {fix}"
            yield Finding("img.arch", "warning", what, why, fix)
    elif architecture not in nodes:
        what = f"the image is for {architecture}, and the nodes are {', '.join(sorted(nodes))}"
        yield Finding("img.arch", "error", what, why, fix)
    elif len(nodes) > 1:
        what = f"only some of the nodes are {architecture} ({', '.join(sorted(nodes))})"
        fix = f"choose a queue or a constraint whose nodes are {architecture}"
        yield Finding("img.arch", "warning", what, why, fix)
    else:
        yield Finding("img.arch", "good", f"{architecture}, like the nodes")


# ---- folders -------------------------------------------------------------------------------------


def check_folders(request: CheckedRequest) -> Findings:
    """Check the binds, the working directory, the run directory and the folders of logs."""
    if request.image is not None:
        yield from check_binds(request)
        yield from _check_workdir(request)
    yield from check_run_folder(request)
    yield from check_log_folders(request)


def check_binds(request: CheckedRequest) -> Findings:
    """Check that the host paths to be mounted exist."""
    job, site = request.job, request.site
    missing = [bind for bind in job.container.bind if not os.path.exists(_source(bind))]
    # Binds of the site may exist only on its compute nodes.
    elsewhere = [bind for bind in site.bind if not os.path.exists(_source(bind))]
    why = "the container does not start if a source is missing"
    if missing:
        what = f"{', '.join(map(_source, missing))} does not exist on this machine"
        fix = "check the paths in container.bind"
        yield Finding("bind", "error" if request.here else "warning", what, why, fix)
    elif elsewhere:
        what = f"{', '.join(map(_source, elsewhere))} in the site's bind is not on this machine"
        if request.here:
            yield Finding("bind", "error", what, why, "remove it from bind in the site file")
        else:
            yield Finding("bind", "unknown", f"{what}: only the nodes can check it")
    else:
        count = len(job.container.bind) + len(site.bind)
        yield Finding("bind", "good", f"{count} bind(s) of job and site exist")


def _source(bind: str) -> str:
    return os.path.abspath(follow_latest(Path(bind.split(":")[0])))


def _check_workdir(request: CheckedRequest) -> Findings:
    workdir = str(Path.cwd().resolve())
    home = request.environ.get("HOME", "")
    if workdir in _SYSTEM:
        what = f"the working directory {workdir} is not mounted: the image has a folder of its own"
        why = "relative paths would refer to files of the image"
        yield Finding("cwd", "error", what, why, "submit from another folder")
    elif "--no-home" in request.options and workdir == home:
        what = "your home folder is the working directory, so --no-home does not keep it out"
        fix = "submit from another folder"
        yield Finding("cwd", "warning", what, "its files are visible in the container", fix)
    else:
        yield Finding("cwd", "good", f"{workdir} can be mounted")


def check_log_folders(request: CheckedRequest) -> Findings:
    """Check the folders of the log files that directives of site and job name.

    Some schedulers open the log on the node before the job starts, and fail if they cannot.
    """
    scheduler = request.scheduler
    directives = (*request.site.directives, *request.job.resources.directives)
    for written, path in scheduler.log_files(directives):
        folder = path if path.is_dir() else path.parent
        if path.is_absolute() and not os.access(folder, os.W_OK | os.X_OK):
            what = f"{written}: {folder} is not writable"
            fix = "create the folder, or remove the directive: the run directory has a log"
            yield Finding("fs", "error", what, scheduler.lost_log, fix)


def check_run_folder(request: CheckedRequest) -> Findings:
    """Check that a run directory can be created, with space for checkpoints."""
    wanted = Path(os.path.abspath(request.job.runs_dir))
    folder = next(path for path in (wanted, *wanted.parents) if path.exists())
    why = "the code, the log and the checkpoints of every run are written there"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**20))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        what = f"{folder} is not writable: {error.strerror}"
        yield Finding("fs", "error", what, why, "free some space, or choose another runs_dir")
        return
    kind, found = file_system(folder), os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if not request.here and (kind in IN_MEMORY or folder.is_relative_to("/tmp")):
        fix = "work on a file system that the compute nodes see"
        yield own_place("fs", folder, kind, fix)
    elif request.scheduler.lost_log and kind in _OWN_DISK:
        what = f"{folder} is on {kind}: only the nodes can check that they see it"
        fix = f"run `df {folder}` on a node"
        yield Finding("fs", "unknown", what, request.scheduler.lost_log, fix)
    elif free < _GIB:
        what = f"{folder} has only {gib(free)} of free space"
        yield Finding("fs", "warning", what, why, "free some space, or choose another runs_dir")
    else:
        yield Finding("fs", "good", f"{folder} has {gib(free)} of free space")


def check_run(request: CheckedRequest) -> Findings:
    """Check that the user's own program exists, and that the names of networks are known."""
    yield from check_program(request.job, request.site, Path.cwd())
    yield from check_names(request.job)


# ---- the scheduler -------------------------------------------------------------------------------


def check_scheduler(
    request: CheckedRequest, which: Callable[[str], str | None] = shutil.which
) -> Findings:
    """Check that the scheduler answers and that its limits allow the job.

    `which` finds a program on PATH, or returns None.
    """
    scheduler = request.scheduler
    if request.here:
        yield Finding("sched", "good", "no scheduler: the job runs on this machine")
        return
    why = "jobs cannot be submitted without it"
    if scheduler.command and which(scheduler.command) is None:
        what = f"{scheduler.command} is not on this machine's PATH"
        fix = "submit from a login node, or use site=local to run on this machine"
        yield Finding("sched", "error", what, why, fix)
        return
    try:
        scheduler.query([scheduler.absent_job])
    except HpcAmpError as error:
        fix = "try again later; the site's status page may name a problem"
        yield Finding("sched", "error", error.message, why, error.hint or fix)
        return
    client = Client(_ANSWER_SECONDS)
    found = [
        *scheduler.check_limits(request.job, request.site, client),
        *scheduler.check_configuration(client),
    ]
    margin = parse_duration(request.job.resources.stop_margin)
    if request.job.train is not None and margin < 30:
        what = f"job.stop_margin is {format_duration(margin)}"
        why = (
            "the checkpoint must be written in this time, and some schedulers send their signal "
            "up to 30 s late"
        )
        found.append(Finding("sched", "warning", what, why, "set it to 1m or more"))
    if not found:
        found = [Finding("sched", "good", f"{scheduler.title} answers")]
    yield from found


# ---- secrets -------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|API_KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(_|$)"
    r"|_KEY$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|nvapi-[\w-]{30,}"
    r"|sk-[A-Za-z0-9_-]{30,}|AKIA[0-9A-Z]{16}|glpat-[\w-]{18,}|xox[abprs]-[\w-]{10,})"
)
_NO_SECRET = re.compile(r"|[\d.]+|true|false|none|~?[./][^\s]*|\$\{?\w+\}?", re.IGNORECASE)


def check_secrets(request: CheckedRequest) -> Findings:
    """Look for tokens and passwords in the job and its site. Their values are never printed."""
    job, site = request.job, request.site
    places = []
    for where, values in (("container.env", job.container.env), ("the site's env", site.env)):
        places += [
            f"{where}.{name}"
            for name, value in values.items()
            if (_SECRET_NAME.search(name) and not _NO_SECRET.fullmatch(value))
            or _SECRET_VALUE.search(value)
        ]
    texts = {
        "job.setup": job.resources.setup,
        "the site's setup": site.setup,
        "run": " ".join(job.run or []),
        "container.args": " ".join(request.options),
        "launch.args": " ".join(job.launch.args),
        "job.directives": " ".join(job.resources.directives),
    }
    places += [where for where, text in texts.items() if _SECRET_VALUE.search(text)]
    if places:
        what = f"{', '.join(places)} looks like a password or a token"
        why = "it is written to the script and to job.json, which others may be able to read"
        fix = "store it in a file that only you can read, and let your program read the file"
        yield Finding("secrets", "warning", what, why, fix)
    else:
        yield Finding("secrets", "good", "no token or password found")


# ---- what only the nodes can check ---------------------------------------------------------------


def check_elsewhere(request: CheckedRequest, made: set[str]) -> Findings:
    """Findings of severity `unknown` for the checks that this machine cannot make.

    `made` has the ids of the checks that were made.
    """
    on = request.job.launch.preflight
    for check in CATALOGUE:
        if check.id in made:
            continue
        if "node" in check.places and check.id != "mpi":
            what = "checked on the nodes when the job starts"
            if not on:
                what = "not checked: only the nodes can do it, and launch.preflight is false"
            yield Finding(check.id, "unknown", what)
        elif check.id == "net.nccl":
            what = "only a job can measure it: hpc-amp doctor CONFIG --network submits one"
            yield Finding(check.id, "unknown", what)
        elif check.id == "mpi" and request.job.launch.mpi != "none":
            what = "checked on the nodes before the program starts"
            yield Finding(check.id, "unknown", what)
