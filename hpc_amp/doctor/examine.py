"""All checks that can be made now, in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_amp.config.checks import check_job
from hpc_amp.config.sites import find_site, load_for_site
from hpc_amp.containers import CONTAINERS, image_runtime
from hpc_amp.containers.image import machine
from hpc_amp.doctor.data import check_data
from hpc_amp.doctor.image_inside import look_inside
from hpc_amp.doctor.job import (
    CheckedRequest,
    check_elsewhere,
    check_folders,
    check_image,
    check_scheduler,
    check_secrets,
    from_config_error,
)
from hpc_amp.doctor.machine import check_leaks, check_tmp
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError
from hpc_amp.finding import Finding
from hpc_amp.jobs import rundir
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.render import render


def examine_machine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """This machine and the site that it is taken for."""
    found: list[Finding] = []
    try:
        site = find_site()
    except ConfigError as error:
        found.append(from_config_error(error))
        container = CONTAINERS.get("auto")()
    else:
        text = f"{site.name} ({site.scheduler})"
        more = f": {site.description}" if site.description else ""
        found.append(Finding("site", "good", text + more))
        container = image_runtime(site)
    found += container.check_here(needed=False)
    found += [*container.check_places(environ), *check_tmp(), *check_leaks(container, environ)]
    return found


def examine_job(
    config: Path,
    overrides: Sequence[str],
    *,
    quick: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """A job before it is submitted. Raises ConfigError for a file that cannot be read as one."""
    loaded, site = load_for_site(config, overrides)
    request = CheckedRequest(loaded, site, environ)
    found = [Finding("site", "good", f"{site.name} ({site.scheduler})")]
    plan, wrong = _plan(request)
    found += wrong
    container = request.container
    if request.image is not None:
        elsewhere = ""
        if not request.here:
            elsewhere = "the nodes may have it"
            if site.setup.strip() or loaded.job.resources.setup.strip():
                elsewhere = "the job's setup may load it on the nodes"
        found += container.check_here(needed=request.here, elsewhere=elsewhere)
        found += container.check_options(request.options, ranks=request.job.world_size)
    found += [*check_image(request), *check_folders(request), *check_data(request)]
    others = container if container.uses_image else image_runtime(site)
    found += others.check_places(environ)
    found += [*check_tmp(), *check_leaks(others, environ), *check_scheduler(request)]
    found += check_secrets(request)
    found = _without_repetitions(found)
    if request.image is not None and not quick:
        found += _inside(request, plan)
    return [*found, *check_elsewhere(request, {finding.id for finding in found})]


def examine_image(image: str, *, runtime_name: str = "auto") -> list[Finding]:
    """An image by itself, inside. Raises UsageError for what is none."""
    container = CONTAINERS.get(runtime_name)()
    shown = container.read_image(image)
    if shown is None:
        raise UsageError(f"{image} is not a file that could be looked into")
    text = f"{shown.path} ({shown.kind})"
    found = [Finding("img.local", "good", text)]
    foreign = shown.architecture not in (None, machine())
    if foreign:
        what = f"the image is for {shown.architecture}, and this machine is {machine()}"
        why = "nothing in it runs here"
        fix = "look at it on a node of its architecture, or pull it for this one"
        return [*found, Finding("img.arch", "error", what, why, fix)]
    if shown.architecture:
        found.append(Finding("img.arch", "good", f"{shown.architecture}, like this machine"))
    return [*found, *look_inside(image, container)]


def _plan(request: CheckedRequest) -> tuple[Plan | None, list[Finding]]:
    """The plan of the job, or what stands in its way."""
    found = []
    try:
        check_job(request.loaded, request.site)
    except ConfigError as error:
        found.append(from_config_error(error))
    try:
        folder = Path(request.job.runs_dir) / request.job.name / rundir.new_run_id()
        plan = make_plan(request.loaded, request.site, folder)
        if not found:
            render(plan)
            found.append(Finding("config", "good", f"{request.loaded.path} can be submitted"))
        return plan, found
    except ConfigError as error:
        return None, [*found, from_config_error(error)]


def _without_repetitions(found: list[Finding]) -> list[Finding]:
    """An error of the configuration once, although two checks see it: what the job file's own check
    says has the line."""
    first: dict[str, Finding] = {}
    for finding in found:
        if finding.status == "error":
            first.setdefault(finding.id, finding)
    return [
        finding
        for finding in found
        if finding.id not in ("img.local", "bind")
        or finding.id not in first
        or finding is first[finding.id]
    ]


def _inside(request: CheckedRequest, plan: Plan | None) -> list[Finding]:
    """A look inside the image, where this machine can have one."""
    container, why_not = request.container, ""
    try:
        image = container.read_image(str(request.image))
        if image is not None and image.architecture not in (None, machine()):
            why_not = f"the image is for {image.architecture}, and this machine is {machine()}"
        else:
            container.words_here(str(request.image))
    except UsageError:
        why_not = "the image cannot be read"
    except HpcAmpError as error:
        why_not = error.message
    if why_not:
        ids = ("img.python", "img.meta", "usersite", "env.masked")
        return [Finding(id, "unknown", f"inside the image: {why_not}", where="image") for id in ids]
    job = request.job
    env = {**request.site.env, **job.container.env}
    if plan is not None:
        env = {**plan.fabric_env, **env}
    binds = plan.binds if plan is not None else [*request.site.bind, *job.container.bind]
    return list(
        look_inside(
            str(request.image),
            container,
            python=plan.python if plan is not None else "python3",
            binds=binds,
            env=env,
            trains=job.train is not None,
            gpus=job.resources.gpus_per_node,
        )
    )
