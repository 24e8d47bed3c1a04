"""Addresses of servers without the passwords in them, for messages."""

from __future__ import annotations

import re

_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#]*@")


def without_passwords(text: str) -> str:
    """Text in which `user:password@` is removed from each URL."""
    return _USER.sub(r"\1", text)
