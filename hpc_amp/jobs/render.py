"""Render the launch script of a plan. Only this module combines scheduler, launcher, container and
site."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hpc_amp.config.units import parse_duration
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.shell import ShellText, Values, comment, fill, quote, verbatim, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpc_amp.jobs.plan import Plan


def render(plan: Plan) -> str:
    """Render the launch script of a plan, exactly as it is submitted. Reads no state besides the
    plan and the files in `jobs/`.

    Raises ConfigError if the scheduler cannot run the plan, or would misread a directive of the
    site or the user.
    """
    plan.scheduler.check(plan)
    script = fill("launch.sh.in", script_values(plan))
    _check_directives(plan, script)
    return script


def render_session(
    plan: Plan, folder: Path, command: Sequence[str], *, records_status: bool, limited: bool
) -> str:
    """Render the script of `hpc-amp shell`, which runs a shell, or `command`, as the only rank.
    `folder` is the session's folder. `records_status`: the script writes its exit status
    there. `limited`: its time limit is the job's walltime, from its start."""
    about = {"records_status": _yes(records_status), "ends": _yes(limited)}
    if plan.scheduler.allocation:
        about["allocation"] = plan.scheduler.allocation
    values = script_values(plan, session=True)
    values = {
        **values,
        "settings": [*values["settings"], *_setting_lines([about])],
        "session_dir": quote(str(folder)),
        "session_comment": comment(str(folder)),
        "inside": words(["--", *command] if command else ["--shell"]),
    }
    return fill("shell.sh.in", values)


def _check_directives(plan: Plan, script: str) -> None:
    """Raise ConfigError for lines of the site or the user that the scheduler would misread.
    Generated directives are not checked: a `$` in them comes from a path and is meant literally."""
    grammar = plan.scheduler.grammar
    if grammar is None:
        return
    from hpc_amp.lint.header import header_errors  # not for a scheduler without directives

    lines = script.splitlines()
    ours = set(plan.scheduler.directives(_without_additions(plan)))
    for finding in header_errors(script, grammar):
        line = lines[finding.line - 1]
        if line.removeprefix(f"{grammar.marker} ") not in ours:
            raise ConfigError(f"the directive `{line}`: {finding.what}", hint=finding.fix)
    # Some schedulers search the whole script for directives, also lines of `setup` and of values.
    written = len(plan.scheduler.directives(plan))
    for directive in grammar.read(lines).directives[written:]:
        raise ConfigError(
            f"{plan.scheduler.title} would read a line of the script as a directive: "
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


def script_values(plan: Plan, *, session: bool = False) -> dict[str, Any]:
    """The values of the fields in `jobs/` (`fill`). `session`: the script is not a batch script,
    and makes no preflight."""
    return {
        "marker": verbatim(plan.scheduler.marker),
        "directives": [verbatim(line) for line in plan.scheduler.directives(plan)],
        "name_comment": comment(plan.job.name),
        "version": verbatim(plan.version),
        "run_dir": quote(str(plan.run_dir)),
        "settings": _setting_lines(_settings(plan, session=session)),
        "fabric": _fabric_part(plan),
        "site": _site_part(plan),
        "setups": _setup_parts(plan),
        "expanded": [quote(line) for line in plan.expanded],
        "image": _image_part(plan),
        "node_launch": plan.launcher.node_command(plan, verbatim('"$@"')),
        "launch": plan.launcher.command(plan),
    }


def _fabric_part(plan: Plan) -> list[ShellText]:
    if plan.fabric is None or not plan.fabric_env:
        return []
    comments = [comment(line) for line in plan.fabric.comments()]
    values = {"fabric_comments": comments, "fabric_env": _assignments(plan.fabric_env)}
    return [fill("parts/fabric.sh.in", values)]


def _site_part(plan: Plan) -> list[ShellText]:
    env = _assignments(plan.site.env)
    return [fill("parts/site.sh.in", {"site_env": env})] if env else []


def _assignments(env: Mapping[str, str]) -> list[ShellText]:
    return [verbatim(f"{name}={quote(value)}") for name, value in env.items()]


def _setup_parts(plan: Plan) -> list[ShellText]:
    setups = {"site.setup": plan.site.setup, "job.setup": plan.job.resources.setup}
    return [
        fill(
            "parts/setup.sh.in", {"origin": verbatim(origin), "lines": verbatim(lines.strip("\n"))}
        )
        for origin, lines in setups.items()
        if lines.strip()
    ]


def _image_part(plan: Plan) -> list[ShellText]:
    if not plan.container.uses_image:
        return []
    values: Values = {
        "image": quote(plan.job.container.image or ""),
        "container_options": _option_lines(plan.container.options(plan)),
        "bind_sources": words(bind.split(":")[0] for bind in plan.binds),
    }
    return [fill("parts/image.sh.in", values)]


def _settings(plan: Plan, *, session: bool) -> list[dict[str, str]]:
    """The settings of a job that hpc_amp/host reads. Each group becomes one line of the script."""
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
    """Seconds between SIGTERM and SIGKILL. The launcher may send SIGKILL before the scheduler."""
    longest = plan.launcher.longest_grace
    return plan.grace if longest is None else min(plan.grace, longest)


def _option_lines(options: list[str]) -> list[ShellText]:
    """The lines of an array of options: each option with its values on a line of its own."""
    lines: list[list[str]] = []
    for word in options:
        if word.startswith("-") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [verbatim(" ".join(map(_array_word, line))) for line in lines]


def _array_word(word: str) -> ShellText:
    """A word of a bash array. Words with a comma are quoted for readers, who might take the comma
    for a separator."""
    quoted = quote(word)
    return verbatim(f"'{word}'") if "," in word and quoted == word else quoted
