"""Check the `setup` lines of a job and a site, which are copied into the launch script."""

from __future__ import annotations

import re
import subprocess

from hpc_amp.config.load import LoadedJob
from hpc_amp.config.site import Site
from hpc_amp.errors import ConfigError


def check_setup(loaded: LoadedJob, site: Site) -> None:
    """Raise ConfigError if bash cannot parse the `setup` lines, or if they would continue into the
    next line of the script: an open quote, a here-document without end, a backslash at the end."""
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
    """The error that bash reports when it parses the lines without running them; None if it
    reports none."""
    ending = lines.rstrip("\n")
    if (len(ending) - len(ending.rstrip("\\"))) % 2:
        return "its last line ends with a backslash"
    # Extended patterns are accepted, because the lines may enable them.
    checked = subprocess.run(
        ["bash", "--norc", "-O", "extglob", "-n"],
        input=lines + "\n",
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=False,
    )
    errors = checked.stderr.strip().splitlines()
    return re.sub(r"^bash: ", "", errors[0]) if errors else None
