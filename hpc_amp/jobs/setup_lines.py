"""The `setup` of a job or a site: shell lines that the launch script contains as they are."""

from __future__ import annotations

import re
import subprocess

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.site import Site
from hpc_amp.errors import ConfigError


def check_setup(loaded: LoadedJob, site: Site) -> None:
    """Raises ConfigError for lines that bash cannot read, or that would go on into the lines of the
    script behind them: an open quote, a here-document without its end, a backslash at the end."""
    for key, lines, where in (
        (f"setup of the site {site.name}", site.setup, None),
        ("job.setup", loaded.job.resources.setup, loaded.where("job.setup")),
    ):
        problem = _syntax_error(lines) if lines.strip() else None
        if problem is not None:
            raise ConfigError(
                f"{key}: {problem}",
                where=where,
                hint="the lines become part of the launch script, and have to be complete",
            )


def _syntax_error(lines: str) -> str | None:
    """What bash says of the lines without running them; None where nothing is wrong."""
    ending = lines.rstrip("\n")
    if (len(ending) - len(ending.rstrip("\\"))) % 2:
        return "its last line ends with a backslash"
    # Extended patterns are read as such: the lines may switch them on.
    checked = subprocess.run(
        ["bash", "--norc", "-O", "extglob", "-n"],
        input=lines + "\n",
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
    )
    said = checked.stderr.strip().splitlines()
    return re.sub(r"^bash: ", "", said[0]) if said else None
