"""The draft of a site file: what a cluster's commands and this machine report."""

from __future__ import annotations

import datetime
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpc_amp.clients import Clients
from hpc_amp.config.folders import own_folder
from hpc_amp.config.site_draft import Entry, SiteDraft
from hpc_amp.config.sites import host_names, load_site, site_files
from hpc_amp.draft.machine import draft_machine
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.files import without_surrogates, write_atomically
from hpc_amp.schedulers import SCHEDULERS, configured, get_scheduler
from hpc_amp.signals import uninterrupted

_HEADING = """\
Site file of {name}, drafted by `hpc-amp site draft` on {date}, on {host}.

The comment above each key says where its value was read. Lines that begin with `#?` are \
questions that only a compute node or you can answer: remove the `#` of the key below them, or \
leave it.
docs/sites.md explains every key. Next: hpc-amp doctor site={site}"""


@dataclass(frozen=True)
class DraftedSite:
    """A drafted site file that can be read."""

    name: str
    text: str
    questions: int
    """The number of keys that somebody has to decide."""


def scheduler_here(clients: Clients, wanted: str | None = None) -> tuple[str, str]:
    """The scheduler to describe, and why it is this one. `wanted` is its name, if the user gave it.
    Raises UsageError if there is none."""
    here = [one.name for one in configured(clients.which)]
    if wanted is not None:
        if wanted not in SCHEDULERS:
            names = ", ".join(SCHEDULERS.names())
            raise UsageError(f"there is no scheduler {wanted!r}", hint=f"known are: {names}")
        return wanted, "Given with --scheduler."
    if not here:
        raise UsageError(
            "no scheduler is configured on this machine, so there is no cluster to describe",
            hint="call it on a login node; --scheduler NAME asks that scheduler all the same",
        )
    source = f"{get_scheduler(here[0]).title} is configured on this machine."
    if len(here) > 1:
        source += f" So is {', '.join(here[1:])}, which --scheduler chooses."
    return here[0], source


def read_cluster(clients: Clients, wanted: str | None, queue: str | None) -> SiteDraft:
    """Read what the commands of the scheduler and this machine report. `wanted` is the scheduler,
    or None for the one that is configured here. Raises UsageError if there is none, or if it has no
    such queue."""
    scheduler, source = scheduler_here(clients, wanted)
    draft = SiteDraft()
    draft.add("scheduler", scheduler, source)
    get_scheduler(scheduler).draft_site(draft, clients, queue)
    draft_machine(draft, clients, host_names())
    draft.unread = clients.unread
    return draft


def checked_name(given: str) -> str:
    """The name of a site as the user gave it. Raises UsageError if it cannot be one."""
    name = given.removesuffix(".yaml")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name == "auto":
        raise UsageError(
            f"{given!r} cannot be the name of a site",
            hint="use letters, digits, '.', '_' and '-'; --output names a file",
        )
    return name


def name_of_cluster(draft: SiteDraft) -> str:
    """A name for the site: that of the cluster in its scheduler, else a part of this machine's
    name."""
    host = max(host_names(), key=len, default="").split(".")
    fallback = host[1] if len(host) > 1 else re.sub(r"[-_]?\d+$", "", host[0])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", draft.name or fallback).strip("-._").lower()
    # The name of a scheduler is that of its generic site.
    return f"{name or 'my'}-cluster" if name in ("", "auto", *SCHEDULERS.names()) else name


def finish(draft: SiteDraft, name: str) -> DraftedSite:
    """The text of the site file. A value that a site file cannot have, such as a name with a line
    feed, becomes a comment with the reason."""
    heading = _HEADING.format(
        name=draft.name or "this cluster",
        date=datetime.date.today().isoformat(),
        host=max(host_names(), key=len, default="this machine"),
        site=name,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        while True:
            text = draft.text(heading)
            path.write_text(text, encoding="utf-8", errors="replace")
            try:
                load_site(path)
            except ConfigError as error:
                entry = _entry_at(draft, error)
                entry.is_open = True
                entry.source += f"\nNot usable as it is: {error.message}"
                continue
            break
    questions = sum(entry.is_open for entry in draft.entries.values())
    return DraftedSite(name, without_surrogates(text), questions)


def _entry_at(draft: SiteDraft, error: ConfigError) -> Entry:
    """The entry in whose lines the error is. Raises the error if it is in none."""
    found = re.search(r":(\d+)$", error.where or "")
    line = int(found[1]) if found else 0
    before = [one for one in draft.entries.values() if one.line <= line and not one.is_open]
    if not before:
        raise error
    return max(before, key=lambda one: one.line)


def place_of(name: str, output: Path | None) -> Path:
    """Where the file is written: `output`, or the user's folder of sites."""
    return output if output is not None else own_folder("sites") / f"{name}.yaml"


def refuse_existing(path: Path) -> None:
    """Raise UsageError if the file exists."""
    if os.path.lexists(path):
        raise UsageError(
            f"{path} already exists",
            hint="--force replaces it; another name: hpc-amp site draft NAME",
        )


def write(path: Path, text: str, *, force: bool) -> None:
    """Write the file in one step. Raises UsageError if it exists and `force` is not set, or if it
    cannot be written."""
    if not force:
        refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with uninterrupted():
            write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def hides(name: str, path: Path) -> Path | None:
    """A site file of the same name that is found first, so that `site=NAME` would not be `path`."""
    found = site_files().get(name)
    return found if found is not None and found.resolve() != path.resolve() else None
