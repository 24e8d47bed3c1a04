"""Checks of settings that a program made. Those of a job file are checked when it is submitted."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal

from hpc_amp.config.keys import Key, keys_of
from hpc_amp.config.schema import Train
from hpc_amp.distributed.world import World
from hpc_amp.train.errors import SettingError as SettingError


def check_settings(train: Train, world: World) -> None:
    """Raise SettingError for the first value that the schema does not allow, and for a batch size
    that is not divisible by the number of ranks times `accumulate`."""
    _check_section(train, "train")
    parts = world.size * train.accumulate
    if train.batch_size % parts:
        below = train.batch_size // parts * parts
        sizes = " or ".join(str(size) for size in (below, below + parts) if size)
        raise SettingError(
            f"train.batch_size: {train.batch_size} is not divisible by {world.size} ranks x "
            f"{train.accumulate} parts; {sizes} is"
        )


def _check_section(section: object, path: str) -> None:
    """Raise SettingError for the first value in `section` that its class does not allow. `path` is
    the path of its key, for messages."""
    kind: type = type(section)
    for name, key in keys_of(kind).items():
        value, where = getattr(section, name), f"{path}.{name}"
        if value is None and key.optional:
            continue
        if not _is_a(value, key):
            if typing.get_origin(key.type) is Literal:
                allowed = f"one of {', '.join(map(str, typing.get_args(key.type)))}"
            else:
                allowed = f"of the type {getattr(key.type, '__name__', key.type)}"
            raise SettingError(f"{where}: {value!r} is not {allowed}")
        if dataclasses.is_dataclass(value):
            _check_section(value, where)
        for check in key.checks:
            try:
                check(value)
            except ValueError as error:
                raise SettingError(f"{where}: {error}") from None


def _is_a(value: Any, key: Key) -> bool:
    """Whether `value` has the type of `key`. A whole number is allowed for a float."""
    origin = typing.get_origin(key.type)
    if origin is Literal:
        return value in typing.get_args(key.type)
    kind = origin or key.type
    if kind is float:
        return type(value) in (int, float)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
