"""Read the output of scontrol and sinfo."""

from __future__ import annotations

import re


def records(text: str) -> list[dict[str, str]]:
    """The objects in the output of `scontrol --oneliner show ...`, as their fields by name. A value
    ends at a blank. If a name comes twice, the first one counts, because free text such as `Reason`
    is at the end."""
    found = []
    for line in text.split("\n"):
        fields: dict[str, str] = {}
        for part in line.split():
            name, equals, value = part.partition("=")
            if equals:
                fields.setdefault(name, value)
        if fields:
            found.append(fields)
    return found


def settings(text: str) -> dict[str, str]:
    """The settings in the output of `scontrol show config`, which has one in each line."""
    found = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found


def rows(text: str, columns: int) -> list[list[str]]:
    """The rows in the output of `sinfo --noheader` with a format of columns between `|`. A row with
    another number of columns is left out."""
    found = [line.split("|") for line in text.split("\n")]
    return [row for row in found if len(row) == columns]


def seconds(text: str) -> int | None:
    """Convert a time limit of Slurm, such as `1-00:00:00` or `30:00`, to seconds. None for
    `infinite` and any other text."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, left = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + left


def gpus(gres: str) -> dict[str, int]:
    """The GPUs of a node by type, from `Gres`: `gpu:a100:4(S:0-1),nvme:1`. The type is empty if it
    has no name."""
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        match = re.fullmatch(r"gpu(?::([^:]+))?:(\d+)", part.strip())
        if match is not None:
            kind = match[1] or ""
            found[kind] = found.get(kind, 0) + int(match[2])
    return found


def mpi_types(text: str) -> list[str]:
    """The types in the output of `srun --mpi=list`. Older versions write `srun: ` before each."""
    found = []
    for line in text.split("\n"):
        word = line.removeprefix("srun:").strip()
        if re.fullmatch(r"[a-z][a-z0-9_]*", word):
            found.append(word)
        elif "pmix plugin versions available:" in word:
            found += [one.strip() for one in word.rpartition(":")[2].split(",")]
    return list(dict.fromkeys(filter(None, found)))
