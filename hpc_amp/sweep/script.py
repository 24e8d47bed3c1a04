"""The script that is submitted for many points at once."""

from __future__ import annotations

from hpc_amp import __version__
from hpc_amp.jobs.shell import comment, quote, templates, verbatim
from hpc_amp.schedulers import get_scheduler
from hpc_amp.sweep import ranges
from hpc_amp.sweep.cut import ArrayPart
from hpc_amp.sweep.folder import Sweep


def render_array(sweep: Sweep, part: ArrayPart) -> str:
    """The very bytes that are submitted, or that run here, for the points of a part."""
    scheduler = get_scheduler(sweep.scheduler)
    arrays = scheduler.arrays()
    directives = arrays.header(part.group.directives, len(part.points), part.at_once)
    context = {
        "marker": verbatim(scheduler.marker),
        "directives": [verbatim(line) for line in directives],
        "name_comment": comment(sweep.name),
        "version": verbatim(__version__),
        "array": part.number,
        "tasks": len(part.points),
        "sweep_dir": quote(str(sweep.folder)),
        "points": verbatim(ranges.to_bash(part.points)),
        "task": verbatim(arrays.task),
        "scheduler": verbatim(sweep.scheduler),
        "own_code": verbatim("yes" if sweep.own_code else "no"),
        "launch_script": verbatim(part.group.script),
        "shell": verbatim(arrays.shell),
    }
    return templates("jobs").get_template("sweep.sh.j2").render(context)
