"""What mkdocs does with each page: links to files outside docs/ become names of files, because the
HTML does not contain these files."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of a page."""
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    return text if path in text else f"{text} (`{path}`)"
