"""Images in a tar file, which are read where they are. Standard library only.

A million small files are slow on a shared file system, and may be more than a quota allows. One
tar file is opened once, and each image is one read at a known place in it.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import tarfile
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, overload

from hpc_amp.data.errors import DataError
from hpc_amp.data.names import SUFFIXES, is_hidden, suffix_of
from hpc_amp.files import read_json, write_atomically

log = logging.getLogger(__name__)

KEPT_FROM = 10_000
"""The list of an archive with so many images is kept beside it, because finding them means a read
for each."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}
_BLOCK = 512
_LINKS = 40


class Member(NamedTuple):
    """A file in an archive: its name there, and where its bytes are."""

    archive: str
    name: str
    begin: int
    size: int

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def content(self) -> bytes:
        """The bytes of the file. Called in threads. Raises OSError."""
        content = os.pread(_opened(self.archive), self.size, self.begin)
        if len(content) < self.size:
            raise OSError(f"{self.archive} ends in it")
        return content


class Members(Sequence[Member]):
    """Files in an archive. A million of them take little more memory than their names."""

    def __init__(
        self, archive: str, names: list[str], begins: array[int], sizes: array[int]
    ) -> None:
        self.archive, self.names, self.begins, self.sizes = archive, names, begins, sizes

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Member: ...
    @overload
    def __getitem__(self, at: slice) -> Members: ...
    def __getitem__(self, at: int | slice) -> Member | Members:
        if isinstance(at, slice):
            return Members(self.archive, self.names[at], self.begins[at], self.sizes[at])
        return Member(self.archive, self.names[at], self.begins[at], self.sizes[at])

    def chosen(self, numbers: Sequence[int]) -> Members:
        """The files with these numbers, in this order."""
        return Members(
            self.archive,
            [self.names[number] for number in numbers],
            array("q", (self.begins[number] for number in numbers)),
            array("q", (self.sizes[number] for number in numbers)),
        )


def images_in(archive: Path) -> Members:
    """The images in an archive, sorted by name. What is hidden is left out, as in folders.

    If there are `KEPT_FROM` or more, the list is kept beside the archive, and used while the
    archive has the same size and time of change. Raises DataError if the file is no tar file, is
    compressed or cut off, or cannot be read.
    """
    try:
        status = os.stat(archive)
        state = {"size": status.st_size, "changed": status.st_mtime_ns}
        kept = archive.with_name(f"{archive.name}.list.json")
        members = _read_list(kept, archive, state)
        if members is None:
            members = _find_images(archive)
            if len(members) >= KEPT_FROM:
                _keep_list(kept, members, state)
        return members
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{archive} cannot be read: {error}") from error


def problem_of(archive: Path) -> str | None:
    """Why a file cannot be an archive of images, as a message, or None. Only looks at its
    beginning."""
    try:
        with archive.open("rb") as file:
            start = file.read(_BLOCK)
        tarfile.TarInfo.frombuf(start, tarfile.ENCODING, "surrogateescape")
    except OSError as error:
        return f"{archive} cannot be read: {error.strerror}"
    except tarfile.HeaderError:
        how = _COMPRESSED.get(start[:2])
        if how is None:
            return f"{archive} is not a tar file"
        return (
            f"{archive} is compressed ({how}): unpack it to a tar file, since no part of a "
            "compressed file can be read alone"
        )
    return None


def _find_images(archive: Path) -> Members:
    """Read the headers of all members. Raises DataError, OSError or tarfile.TarError."""
    problem = problem_of(archive)
    if problem is not None:
        raise DataError(problem)
    log.info("finding the images in %s", archive)
    places: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # or it would keep a kB of each
            name = _place(member.name)
            if member.issparse():
                raise DataError(f"{archive}/{name} is stored as a sparse file: use tar without -S")
            places.pop(name, None)  # the last file of a name counts
            links.pop(name, None)
            if member.isreg():
                places[name] = (member.offset_data, member.size)
            elif member.islnk():
                links[name] = _place(member.linkname)
            elif member.issym():
                above = posixpath.dirname(name)
                links[name] = posixpath.normpath(posixpath.join(above, member.linkname))
        file.seek(tar.offset)  # tarfile takes what it cannot read for the end
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise DataError(f"{archive} is cut off or damaged at byte {tar.offset:,}")
        while rest := file.read(1 << 20):
            if rest.strip(b"\0"):
                raise DataError(
                    f"{archive} has more after its end at byte {tar.offset:,}: it is damaged, or "
                    "archives were joined with `cat`, and `tar -A` joins them"
                )
    names, begins, sizes = [], array("q"), array("q")
    for name in sorted((*places, *links)):
        if any(map(is_hidden, name.split("/"))):
            continue
        goal, followed = name, 0
        while goal in links and followed < _LINKS:
            goal, followed = links[goal], followed + 1
        if goal not in places:  # it may have been a folder of images
            raise DataError(
                f"{archive}/{name} is a link to {goal}, which is no file in the archive: pack the "
                "folder with `tar -h`, which follows links"
            )
        if suffix_of(name) in SUFFIXES:
            names.append(name)
            begins.append(places[goal][0])
            sizes.append(places[goal][1])
    return Members(str(archive), names, begins, sizes)


def _place(name: str) -> str:
    """Where tar would unpack a member: below the folder, also where its name begins with a /."""
    return posixpath.normpath(name).lstrip("/")


def _read_list(path: Path, archive: Path, state: dict[str, int]) -> Members | None:
    """The list of an archive in this state, or None if there is none."""
    content = read_json(path)
    if content.get("archive") != state:
        return None
    begins, sizes = array("q", content["begins"]), array("q", content["sizes"])
    return Members(str(archive), content["names"], begins, sizes)


def _keep_list(path: Path, members: Members, state: dict[str, int]) -> None:
    begins, sizes = members.begins.tolist(), members.sizes.tolist()
    content = {"archive": state, "names": members.names, "begins": begins, "sizes": sizes}
    try:
        write_atomically(path, json.dumps(content))
    except OSError as error:
        log.warning(
            "the list of its %d images cannot be kept: %s; each training of %s makes it anew",
            *(len(members), error, members.archive),
        )


@lru_cache(maxsize=16)
def _opened(archive: str) -> int:
    """The number of the archive as an open file, which stays open: a shared file system would be
    asked about each opening."""
    return os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
