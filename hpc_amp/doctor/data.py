"""Check the data set of a built-in task from this machine."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_amp.config.checks import find_data
from hpc_amp.config.schema import Data
from hpc_amp.containers.storage import IN_MEMORY, file_system
from hpc_amp.data.errors import DataError
from hpc_amp.data.names import folders_in, readable, test_folder
from hpc_amp.data.tars import problem_of
from hpc_amp.doctor.job import CheckedRequest, own_place
from hpc_amp.finding import Finding, Findings

# The files that the job looks for below `train.data.root` (`hpc_amp.data.sources`). One of them is
# enough. `root` may also be the first of them itself.
PUBLIC_FILES = {
    "cifar10": ("cifar-10-batches-py",),
    "cifar100": ("cifar-100-python",),
    "fashion_mnist": ("FashionMNIST/raw/train-images-idx3-ubyte*", "train-images-idx3-ubyte*"),
    "mnist": ("MNIST/raw/train-images-idx3-ubyte*", "train-images-idx3-ubyte*"),
}
_WHY = "every rank reads its images from it"


def check_data(request: CheckedRequest) -> Findings:
    """Check that the folders of the data contain what the job needs.

    The compute nodes may see other file systems than this machine. So missing data is an error only
    if the job runs on this machine, and a warning otherwise.
    """
    train = request.job.train
    for found in find_data(train):
        if found.usable:
            yield Finding("data", "good", f"{found.key}: {found.text}")
        else:
            yield _wrong(request, f"{found.key}: {found.text}", f"check {found.key}")
    if train is None or "data" in train.UNUSED:
        return
    data, root = train.data, Path(os.path.abspath(train.data.root))
    if data.name == "synthetic":
        yield Finding("data", "good", "synthetic images need no files")
        return
    try:
        with readable(root):
            archive = data.name == "imagefolder" and root.is_file()
            obstacle = problem_of(root) if archive else _obstacle(root)
    except DataError as error:
        archive, obstacle = False, str(error)
    if obstacle is not None:
        yield _wrong(request, obstacle, "check train.data.root and its permissions (ls -ld)")
        return
    missing = None if archive else _missing(data, root)
    if missing is None:
        yield _found(request, data.name, root, archive)
    elif data.if_missing == "synthetic":
        what = f"{missing}: the job would train on synthetic images"
        why = "train.data.if_missing is synthetic"
        yield Finding("data", "warning", what, why, "check train.data.root")
    elif data.download and data.name != "imagefolder":
        yield _download(request, root, missing)
    else:
        yield _wrong(request, missing, "check train.data.root")


def _obstacle(root: Path) -> str | None:
    """Why `root` exists but cannot be read as a folder."""
    if root.is_dir():
        if os.access(root, os.R_OK | os.X_OK):
            return None
        return f"you have no permission to read {root}"
    if os.path.lexists(root):
        return f"{root} is not a folder"
    return None


def _missing(data: Data, root: Path) -> str | None:
    """Describe the part of the data set that is missing, or return None if nothing is."""
    if not root.is_dir():
        return f"the folder {root} does not exist"
    if data.name != "imagefolder":
        names = PUBLIC_FILES[data.name]
        if root.name == names[0] or any(any(root.glob(name)) for name in names):
            return None
        return f"{data.name} is not in {root}: {names[0].removesuffix('*')} is missing"
    try:
        test = test_folder(root)
        if not (root / "train").is_dir() or test is None:
            return (
                f"{root} is not an image folder: expected train/<class>/* and test/<class>/* "
                "(or val)"
            )
        for folder in (root / "train", test):
            if not folders_in(folder):
                return f"{folder} contains no folder of a class"
    except DataError as error:
        return str(error)
    return None


def _found(request: CheckedRequest, name: str, root: Path, archive: bool) -> Finding:
    """The data set was found. Warn if it is in a place that other machines do not see."""
    kind = file_system(root)
    if not request.here and (kind in IN_MEMORY or root.is_relative_to("/tmp")):
        return own_place("data", root, kind, "copy it to a file system that the nodes see")
    return Finding("data", "good", f"{root} is a tar file" if archive else f"{name} is in {root}")


def _download(request: CheckedRequest, root: Path, missing: str) -> Finding:
    """The data set is missing, and rank 0 will download it if it can write the folder."""
    above = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        what = f"{missing}, and it cannot be downloaded because {above} is not writable"
        return _wrong(request, what, "check train.data.root, or choose a folder that you can write")
    if request.here:
        return Finding("data", "good", f"{missing}: rank 0 will download it")
    what = f"{missing}: rank 0 will download it, if its node has access to the internet"
    return Finding("data", "unknown", what)


def _wrong(request: CheckedRequest, what: str, fix: str) -> Finding:
    if request.here:
        return Finding("data", "error", what, _WHY, fix)
    return Finding("data", "warning", f"{what} (on this machine)", f"{_WHY}, on the nodes", fix)
