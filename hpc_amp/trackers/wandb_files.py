"""Reads the offline files of wandb. Its package writes them with a program of its own, and has no
reader for Python."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_MAGIC, _HEADER = b":W&B", 7
_BLOCK = 32768
"""The format is that of LevelDB's log. A record does not cross the end of a block: it is divided,
and its parts are marked. A part has a checksum, its length and its mark in front."""
_PART = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


def rows(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """The rows of all offline files of a run in the folder `wandb`, oldest first. A picture is a
    row with a value that describes the picture. Raises ValueError if a file has another format."""
    for file in sorted(folder.glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")):
        for text in _records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(text)
            if record.WhichOneof("record_type") != "history":
                continue
            row: dict[str, Any] = {}
            for item in record.history.item:
                name = item.nested_key[0] if item.nested_key else item.key
                row[name] = json.loads(item.value_json)
            if "step" in row and "_step" in row:  # others are no rows of this package
                yield row


def _records(file: Path) -> Iterator[bytes]:
    """The records of a file. One that was not written completely is left out."""
    data = file.read_bytes()
    if data and not data.startswith(_MAGIC):
        raise ValueError(f"{file} is not a file of wandb as it is known here")
    at, parts = _HEADER, b""
    while at + _PART.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PART.size:
            at += left  # filled with zeros
            continue
        _, length, mark = _PART.unpack_from(data, at)
        at += _PART.size
        if mark == 0 or at + length > len(data):
            return
        parts += data[at : at + length]
        at += length
        if mark in (_FULL, _LAST):
            yield parts
            parts = b""
