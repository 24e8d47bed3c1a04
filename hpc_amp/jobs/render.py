"""A plan as a launch script: the only place that joins scheduler, launcher, container and site."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hpc_amp.config.units import parse_duration
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.shell import ShellText, comment, quote, templates, verbatim, words
from hpc_amp.lint.directives import SCHEDULERS
from hpc_amp.lint.header import header_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpc_amp.jobs.plan import Plan


def render(plan: Plan) -> str:
    """The launch script: the very bytes that are submitted. Pure, and the same for the same plan.

    Raises ConfigError where the scheduler cannot do what the plan asks, or would misread a
    directive that site or user added."""
    plan.scheduler.check(plan)
    script = templates("jobs").get_template(plan.scheduler.template).render(template_context(plan))
    _check_directives(plan, script)
    return script


def render_session(
    plan: Plan, folder: Path, command: Sequence[str], *, watched: bool, limited: bool
) -> str:
    """The script of `hpc-amp shell`: a shell, or a command, as the only rank. `watched`: it says
    itself how it ended; `limited`: its time is the job's walltime, from now on."""
    variable = plan.scheduler.allocation
    context = {
        **template_context(plan),
        "session": True,
        "session_dir": quote(str(folder)),
        "session_comment": comment(str(folder)),
        "allocation": verbatim(f"${{{variable}:-}}" if variable else ""),
        "watched": watched,
        "limited": limited,
        "inside": words(["--", *command] if command else ["--shell"]),
    }
    return templates("jobs").get_template("shell.sh.j2").render(context)


def _check_directives(plan: Plan, script: str) -> None:
    """Refuse lines of site and user that the scheduler would misread. Ours are not suspected: a `$`
    in them is one that somebody's path has."""
    if plan.scheduler.name not in SCHEDULERS:
        return
    lines = script.splitlines()
    ours = set(plan.scheduler.directives(_without_additions(plan)))
    for finding in header_errors(script, plan.scheduler.name):
        line = lines[finding.line - 1]
        if line.removeprefix(f"{plan.scheduler.marker} ") not in ours:
            raise ConfigError(f"the directive `{line}`: {finding.message}", hint=finding.fix)


def _without_additions(plan: Plan) -> Plan:
    request = dataclasses.replace(plan.job.job, directives=[])
    return dataclasses.replace(
        plan,
        job=dataclasses.replace(plan.job, job=request),
        site=dataclasses.replace(plan.site, directives=[]),
    )


def template_context(plan: Plan) -> dict[str, Any]:
    """What the templates in `jobs/` know of a job."""
    job = plan.job
    sources = [bind.split(":")[0] for bind in plan.binds] if plan.container.binaries else []
    return {
        "marker": verbatim(plan.scheduler.marker),
        "directives": [verbatim(line) for line in plan.scheduler.directives(plan)],
        "name": quote(job.name),
        "name_comment": comment(job.name),
        "version": verbatim(plan.version),
        "scheduler": verbatim(plan.scheduler.name),
        "launcher": verbatim(plan.launcher.name),
        "container_name": verbatim(plan.container.name),
        "run_dir": quote(str(plan.run_dir)),
        "nodes": job.job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "world_size": job.world_size,
        "cpus_per_rank": job.job.cpus_per_gpu,
        "step_cpus": plan.launcher.step_cpus(job),
        "walltime": plan.walltime,
        "stop_margin": plan.stop_margin,
        "address": _address(plan),
        "fabric_comments": [comment(line) for line in plan.fabric.comments()]
        if plan.fabric is not None
        else [],
        "fabric_env": [(verbatim(name), quote(value)) for name, value in plan.fabric_env.items()],
        "expanded": [quote(line) for line in plan.expanded],
        "site_env": [(verbatim(name), quote(value)) for name, value in plan.site.env.items()],
        "setups": [
            (verbatim(origin), verbatim(lines.strip("\n")))
            for origin, lines in (("site.setup", plan.site.setup), ("job.setup", job.job.setup))
            if lines.strip()
        ],
        "python": quote(plan.python),
        "image": quote(job.container.image or ""),
        "container_binaries": [verbatim(name) for name in plan.container.binaries],
        "container_binaries_text": verbatim(" or ".join(plan.container.binaries)),
        "container_options": _option_lines(plan.container.options(plan)),
        "bind_sources": [quote(source) for source in sources],
        "bind_messages": [quote(f"{source} is to be bound, but not here") for source in sources],
        "preflight": job.launch.preflight,
        "node_launch": plan.launcher.node_command(plan, verbatim('"${preflight[@]}"')),
        "prepare": plan.launcher.prepare(plan),
        "launch": plan.launcher.command(plan),
        "launch_timeout": parse_duration(job.launch.timeout),
        "mpi": job.launch.mpi != "none",
        "version_command": verbatim(plan.launcher.version_command),
        "forwards": [(verbatim(a), verbatim(b)) for a, b in plan.launcher.forwards(plan).items()],
        "limited_by_scheduler": plan.scheduler.limits,
        "grace": _grace(plan),
        "grace_is_given": job.job.grace is not None,
        "session": False,
        "own_command": job.run is not None,
        "max_restarts": job.job.max_restarts,
        "retries": job.restarts.on_failure,
    }


def _address(plan: Plan) -> ShellText:
    """The first node's name in the site's form; nothing where it stays as it is."""
    if plan.site.address is None:
        return verbatim("")
    before, after = (words(filter(None, [part])) for part in plan.site.address.split("{host}"))
    return verbatim(f"{before}${{master_addr%%.*}}{after}")


def _grace(plan: Plan) -> int:
    """Seconds between SIGTERM and SIGKILL. torchrun kills its ranks by itself after 30."""
    return min(plan.grace, 30) if plan.launcher.name == "torchrun" else plan.grace


def _option_lines(options: list[str]) -> list[ShellText]:
    """Options for reading: one a line, with their values."""
    lines: list[list[str]] = []
    for word in options:
        if word.startswith("-") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [words(line) for line in lines]
