"""Convert scalars to numbers and booleans by the core schema of YAML 1.2
(https://yaml.org/spec/1.2.2/).

The functions `to_*` raise ValueError with a message for the user.
"""

from __future__ import annotations

import math
import re

from hpc_amp.config.tree import Scalar, describe

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_YES_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def is_number(text: str) -> bool:
    """Whether the text, unquoted, is a number in YAML."""
    return any(form.fullmatch(text) for form in (_INT, _FLOAT, _NOT_FINITE))


def is_bool(text: str) -> bool:
    """Whether the text, unquoted, is a boolean in YAML."""
    return text in _BOOLS


def to_bool(scalar: Scalar) -> bool:
    """Convert `true` or `false`."""
    if scalar.quoted or scalar.text not in _BOOLS:
        plain = _YES_NO.get(scalar.text.lower())
        advice = f"; write {plain}" if plain else _unquote(scalar, is_bool(scalar.text))
        raise ValueError(f"must be true or false, not {describe(scalar)}{advice}")
    return _BOOLS[scalar.text]


def to_int(scalar: Scalar) -> int:
    """Convert a whole number: `12`, `-3`, `0x1f`, `0o17`."""
    matches = bool(_INT.fullmatch(scalar.text))
    if scalar.quoted or not matches:
        advice = _unquote(scalar, matches)
        raise ValueError(f"must be a whole number, not {describe(scalar)}{advice}")
    # A number that does not fit 64 bits is a mistake. Python also limits the digits that it reads.
    if len(scalar.text) > 19:
        raise ValueError(f"{describe(scalar)} is too large a number")
    base = {"0x": 16, "0o": 8}.get(scalar.text[:2], 10)
    return int(scalar.text, base)


def to_float(scalar: Scalar) -> float:
    """Convert a finite number: `0.1`, `1e-3`, `5`."""
    matches = bool(_FLOAT.fullmatch(scalar.text))
    if not scalar.quoted and matches:
        number = float(scalar.text)
        if math.isfinite(number):
            return number
    if not scalar.quoted and (matches or _NOT_FINITE.fullmatch(scalar.text)):
        raise ValueError(f"must be a finite number, not {describe(scalar)}")
    raise ValueError(f"must be a number, not {describe(scalar)}{_unquote(scalar, matches)}")


def _unquote(scalar: Scalar, would_fit: bool) -> str:
    return "; remove the quotes" if scalar.quoted and would_fit else ""
