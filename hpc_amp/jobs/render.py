"""A plan as a launch script: the only place that joins scheduler, launcher, container and site."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hpc_amp.config.units import parse_duration
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.shell import ShellText, comment, quote, templates, verbatim, words
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
    script = templates("jobs").get_template("launch.sh.j2").render(template_context(plan))
    _check_directives(plan, script)
    return script


def render_session(
    plan: Plan, folder: Path, command: Sequence[str], *, watched: bool, limited: bool
) -> str:
    """The script of `hpc-amp shell`: a shell, or a command, as the only rank. `watched`: it says
    itself how it ended; `limited`: its time is the job's walltime, from now on."""
    about = {"watched": _yes(watched), "ends": _yes(limited)}
    if plan.scheduler.allocation:
        about["allocation"] = plan.scheduler.allocation
    context = template_context(plan, session=True)
    context = {
        **context,
        "settings": [*context["settings"], *_setting_lines([about])],
        "session_dir": quote(str(folder)),
        "session_comment": comment(str(folder)),
        "inside": words(["--", *command] if command else ["--shell"]),
    }
    return templates("jobs").get_template("shell.sh.j2").render(context)


def _check_directives(plan: Plan, script: str) -> None:
    """Refuse lines of site and user that the scheduler would misread. Ours are not suspected: a `$`
    in them is one that somebody's path has."""
    grammar = plan.scheduler.grammar
    if grammar is None:
        return
    lines = script.splitlines()
    ours = set(plan.scheduler.directives(_without_additions(plan)))
    for finding in header_errors(script, grammar):
        line = lines[finding.line - 1]
        if line.removeprefix(f"{grammar.marker} ") not in ours:
            raise ConfigError(f"the directive `{line}`: {finding.message}", hint=finding.fix)
    # Some schedulers read the whole script. A value may have lines of its own.
    written = len(plan.scheduler.directives(plan))
    for directive in grammar.read(lines).directives[written:]:
        raise ConfigError(
            f"{plan.scheduler.title} would take a line of the script for a directive: "
            f"{lines[directive.line - 1]!r}",
            hint=f"no line of setup or of a value may begin with {grammar.marker}",
        )


def _without_additions(plan: Plan) -> Plan:
    request = dataclasses.replace(plan.job.resources, directives=[])
    return dataclasses.replace(
        plan,
        job=dataclasses.replace(plan.job, resources=request),
        site=dataclasses.replace(plan.site, directives=[]),
    )


def template_context(plan: Plan, *, session: bool = False) -> dict[str, Any]:
    """What the templates in `jobs/` know of a job. `session`: its script is not a batch script."""
    job = plan.job
    sources = [bind.split(":")[0] for bind in plan.binds] if plan.container.uses_image else []
    return {
        "marker": verbatim(plan.scheduler.marker),
        "directives": [verbatim(line) for line in plan.scheduler.directives(plan)],
        "name_comment": comment(job.name),
        "version": verbatim(plan.version),
        "scheduler": verbatim(plan.scheduler.name),
        "run_dir": quote(str(plan.run_dir)),
        "settings": _setting_lines(_settings(plan, session=session)),
        "walltime": plan.walltime,
        "stop_margin": plan.stop_margin,
        "fabric_comments": [comment(line) for line in plan.fabric.comments()]
        if plan.fabric is not None
        else [],
        "fabric_env": [(verbatim(name), quote(value)) for name, value in plan.fabric_env.items()],
        "expanded": [quote(line) for line in plan.expanded],
        "site_env": [(verbatim(name), quote(value)) for name, value in plan.site.env.items()],
        "setups": [
            (verbatim(origin), verbatim(lines.strip("\n")))
            for origin, lines in (
                ("site.setup", plan.site.setup),
                ("job.setup", job.resources.setup),
            )
            if lines.strip()
        ],
        "image": quote(job.container.image or ""),
        "uses_image": plan.container.uses_image,
        "container_options": _option_lines(plan.container.options(plan)),
        "bind_sources": [quote(source) for source in sources],
        "node_launch": plan.launcher.node_command(plan, verbatim('"$@"')),
        "launch": plan.launcher.command(plan),
    }


def _settings(plan: Plan, *, session: bool) -> list[dict[str, str]]:
    """What hpc_amp/host has to know of a job, as the groups in which they are read best."""
    job, request = plan.job, plan.job.resources
    groups: list[dict[str, Any]] = [
        {
            "name": job.name,
            "scheduler": plan.scheduler.name,
            "launcher": plan.launcher.name,
            "container": plan.container.name,
            "program": "task" if job.run is None else "own",
        },
        {
            "nodes": request.nodes,
            "ranks_per_node": job.ranks_per_node,
            "cpus_per_rank": request.cpus_per_gpu,
            "step_cpus": plan.launcher.step_cpus(plan),
        },
        {
            "walltime": plan.walltime,
            "limited": _yes(plan.scheduler.limits),
            "stop_margin": plan.stop_margin,
            "grace": _grace(plan),
            "launch_timeout": parse_duration(job.launch.timeout),
        },
        {
            "max_restarts": request.max_restarts,
            "retries": job.restarts.on_failure,
            "preflight": _yes(job.launch.preflight and not session),
            "mpi": _yes(job.launch.mpi != "none"),
        },
        {"python": plan.python},
    ]
    if plan.container.binaries:
        groups[-1]["binaries"] = " ".join(plan.container.binaries)
    if plan.container.entered_by:
        groups[-1]["container_by_step"] = "yes"
    if plan.site.address is not None:
        groups[-1]["address"] = plan.site.address
    if request.grace is None:
        groups[2]["ask_grace"] = "yes"
        if plan.launcher.longest_grace is not None:
            groups[2]["longest_grace"] = _grace(plan)
    groups.append({f"forward_{got}": sent for got, sent in plan.launcher.forwards(plan).items()})
    groups.append(plan.container.settings(plan))
    groups.append(plan.launcher.settings(plan))
    return [{key: str(value) for key, value in group.items()} for group in groups if group]


def _setting_lines(groups: list[dict[str, str]]) -> list[ShellText]:
    return [
        verbatim(" ".join(f"[{key}]={quote(value)}" for key, value in group.items()))
        for group in groups
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _grace(plan: Plan) -> int:
    """Seconds between SIGTERM and SIGKILL, which the launcher may send earlier."""
    longest = plan.launcher.longest_grace
    return plan.grace if longest is None else min(plan.grace, longest)


def _option_lines(options: list[str]) -> list[ShellText]:
    """Options for reading: one a line, with their values."""
    lines: list[list[str]] = []
    for word in options:
        if word.startswith("-") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [verbatim(" ".join(map(_array_word, line))) for line in lines]


def _array_word(word: str) -> ShellText:
    """A word of an array. A comma is quoted, lest it be taken for a separator."""
    quoted = quote(word)
    return verbatim(f"'{word}'") if "," in word and quoted == word else quoted
