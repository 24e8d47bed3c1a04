"""Texts that the stand-ins share."""

from __future__ import annotations


def hours(seconds: float) -> str:
    """`HH:MM:SS`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
