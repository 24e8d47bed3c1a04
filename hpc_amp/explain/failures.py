"""Reads and checks the known failures, which are the entries in `failures/*.yaml`."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpc_amp.errors import HpcAmpError

FOLDER = Path(__file__).resolve().parent / "failures"

LEVELS = ("cause", "likely", "symptom", "hint", "noise")
"""The meaning of a match.

cause      it ends a run, and it is the first thing that failed
likely     it ends a run, but explains it only in part; named if the log has no cause
symptom    it follows from something else; named as a symptom if the log has nothing better
hint       it is useful to know, but it is not a failure; never named as the cause
noise      launchers print it after any failure; it only shows that something failed
"""
CONFIDENCES = ("high", "medium", "low")
_KEYS = {
    "id", "cause", "fix", "why", "level", "confidence", "any", "not", "also", "without", "source",
    "samples", "near", "times", "otherwise",
}  # fmt: skip
_NEEDED = ("id", "cause", "fix", "any", "samples")


class FailureFileError(HpcAmpError):
    """An entry in a file of failures is not valid."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A known failure. docs/explain.md explains each field."""

    id: str
    area: str
    cause: str
    fix: str
    why: str
    level: str
    confidence: str
    patterns: tuple[re.Pattern[str], ...]
    excluded: tuple[re.Pattern[str], ...]
    also: tuple[re.Pattern[str], ...]
    without: tuple[re.Pattern[str], ...]
    source: str
    samples: tuple[str, ...]
    near: tuple[str, ...]
    times: int
    otherwise: bool

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match of the first pattern that fits a line, or None.

        Also returns None if one of the `excluded` patterns fits the line.
        """
        for pattern in self.patterns:
            found = pattern.search(text)
            if found:
                if any(other.search(text) for other in self.excluded):
                    return None
                return found
        return None


def fill(text: str, captured: dict[str, str]) -> str:
    """Replace the placeholders of a cause or a fix by the groups that its pattern captured."""
    return text.format_map(captured)


@functools.lru_cache(maxsize=1)
def known_failures() -> tuple[Failure, ...]:
    """Return all entries, sorted by file and by their order in it.

    Raises FailureFileError if an entry is not valid or if two have the same id.
    """
    found: list[Failure] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        found += read_failures(path)
    if not found:
        raise FailureFileError(f"this installation of hpc-amp has no {FOLDER}; install it again")
    seen: set[str] = set()
    for failure in found:
        if failure.id in seen:
            raise FailureFileError(f"there are two failures {failure.id!r}")
        seen.add(failure.id)
    return tuple(found)


def read_failures(path: Path) -> list[Failure]:
    """Return the entries of one file.

    Raises FailureFileError with the file, the entry and the key if an entry is not valid.
    """
    # PyYAML's C loader is ten times faster, but not always installed.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FailureFileError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(entries, list):
        raise FailureFileError(f"{path.name}: this is not a list of failures")
    return [_Entry(path, number, entry).build() for number, entry in enumerate(entries, 1)]


class _Entry:
    """Checks one entry and builds its Failure."""

    def __init__(self, path: Path, number: int, content: Any) -> None:
        self.path = path
        self.name = f"{path.name}: entry {number}"
        if not isinstance(content, dict):
            raise FailureFileError(f"{self.name}: this is not a mapping")
        self.content = content
        if isinstance(content.get("id"), str):
            self.name = f"{path.name}: {content['id']}"

    def build(self) -> Failure:
        unknown = sorted(str(key) for key in set(self.content) - _KEYS)
        if unknown:
            raise self.wrong(f"unknown key {unknown[0]!r}; the keys are {', '.join(sorted(_KEYS))}")
        missing = [key for key in _NEEDED if not self.content.get(key)]
        if missing:
            raise self.wrong(f"the key {missing[0]!r} is missing or empty")
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.text("id")):
            raise self.wrong("an id consists of small letters, digits and single dashes")
        patterns = self.patterns("any")
        for key in ("cause", "fix"):
            self.check_placeholders(key, patterns)
        return Failure(
            id=self.text("id"),
            area=self.path.stem,
            cause=self.text("cause"),
            fix=self.text("fix"),
            why=self.text("why"),
            level=self.choice("level", LEVELS),
            confidence=self.choice("confidence", CONFIDENCES),
            patterns=patterns,
            excluded=self.patterns("not"),
            also=self.patterns("also"),
            without=self.patterns("without"),
            source=self.text("source"),
            samples=self.texts("samples"),
            near=self.texts("near"),
            times=self.times(),
            otherwise=self.flag("otherwise"),
        )

    def wrong(self, what: str) -> FailureFileError:
        return FailureFileError(f"{self.name}: {what}")

    def text(self, key: str) -> str:
        value = self.content.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(f"{key} is not a text")
        return " ".join(value.split())

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.content.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.wrong(f"{key} is not a list of texts")
        return tuple(values)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.content.get(key, choices[0])
        if value not in choices:
            raise self.wrong(f"{key} is {value!r}; it must be one of {', '.join(choices)}")
        return str(value)

    def flag(self, key: str) -> bool:
        value = self.content.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{key} is {value!r}; it must be true or false")
        return value

    def times(self) -> int:
        value = self.content.get("times", 1)
        if not isinstance(value, int) or not 1 <= value <= 9:
            raise self.wrong(f"times is {value!r}; it must be a number from 1 to 9")
        return value

    def patterns(self, key: str) -> tuple[re.Pattern[str], ...]:
        patterns = []
        for text in self.texts(key):
            try:
                patterns.append(re.compile(text))
            except re.error as error:
                raise self.wrong(f"{key}: {text!r} is not a regular expression: {error}") from None
        return tuple(patterns)

    def check_placeholders(self, key: str, patterns: tuple[re.Pattern[str], ...]) -> None:
        try:
            names = set(_placeholders(self.text(key)))
        except ValueError as error:
            raise self.wrong(f"{key}: {error}") from None
        for name in sorted(names):
            for pattern in patterns:
                if name not in pattern.groupindex:
                    raise self.wrong(
                        f"{key} uses {{{name}}}, but {pattern.pattern!r} has no such group"
                    )


def _placeholders(text: str) -> Iterator[str]:
    for _, name, format_spec, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if not name.isidentifier() or format_spec or conversion:
            raise ValueError(f"{{{name}}} is not the name of a group")
        yield name
