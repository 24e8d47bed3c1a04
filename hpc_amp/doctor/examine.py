"""`hpc-amp doctor` for a machine, a job or an image: which checks are made, in which order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import JobText
from hpc_amp.config.site import Site
from hpc_amp.config.sites import find_site, host_names, load_for_site, path_of, site_files
from hpc_amp.containers import CONTAINERS, image_runtime
from hpc_amp.containers.image import machine
from hpc_amp.doctor.data import check_data
from hpc_amp.doctor.image_inside import look_inside
from hpc_amp.doctor.job import (
    CheckedRequest,
    check_binds,
    check_elsewhere,
    check_folders,
    check_image,
    check_log_folders,
    check_run,
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
from hpc_amp.schedulers import SCHEDULERS


def examine_machine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check this machine and find its site."""
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
    config: Path | JobText,
    overrides: Sequence[str],
    *,
    quick: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Check a job before it is submitted.

    `overrides` are KEY=VALUE words. With `quick`, nothing is started in the image. The last
    findings, of severity `unknown`, name the checks that only the nodes can make. Raises
    ConfigError if the job file cannot be read; errors in its values become findings.
    """
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
    found += check_run(request)
    others = container if container.uses_image else image_runtime(site)
    found += others.check_places(environ)
    found += [*check_tmp(), *check_leaks(others, environ), *check_scheduler(request)]
    found += check_secrets(request)
    found = _without_repetitions(found)
    if request.image is not None and not quick:
        found += _inside(request, plan)
    return [*found, *check_elsewhere(request, {finding.id for finding in found})]


def examine_site(
    name: str, overrides: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Check a site, given by its name or path, as far as that is possible without a job.

    A job with the site's defaults, changed by `overrides`, is planned and not submitted. Errors of
    the site file become findings. Raises ConfigError if there is no such site.
    """
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    exists = (
        Path(name).is_file() if is_path else name in ("auto", *site_files(), *SCHEDULERS.names())
    )
    try:
        site = find_site(name)
        where = path_of(site, name)
        text = f"name: doctor\nsite: {json.dumps(str(where or site.name))}\nrun: ['true']\n"
        loaded, site = load_for_site(JobText(where or Path(name), text), overrides)
    except ConfigError as error:
        if not exists:
            raise
        return [from_config_error(error)]
    title = f"{site.name} ({site.scheduler})"
    found = [Finding("site", "good", title + (f": {where}" if where else ", without a file"))]
    request = CheckedRequest(loaded, site, environ)
    found += _check_hosts(site)
    found += [
        finding
        if finding.severity != "good"
        else replace(finding, what="a job with the site's defaults can be submitted")
        for finding in _plan(request)[1]
    ]
    container = image_runtime(site)
    elsewhere = ""
    if not request.here:
        elsewhere = "the site's setup may load it on the nodes"
        if not site.setup.strip():
            elsewhere = "the nodes may have it: hpc-amp site draft --on-node looks"
    found += container.check_here(needed=request.here, elsewhere=elsewhere)
    found += container.check_options(site.container_args, ranks=2)
    found += [*check_binds(request), *check_log_folders(request), *check_secrets(request)]
    scheduler = list(check_scheduler(request))
    if all(finding.severity != "error" for finding in scheduler) and not request.here:
        more = list(request.scheduler.check_site(loaded.job, site))
        scheduler = more if more and scheduler[0].severity == "good" else [*scheduler, *more]
    found += scheduler
    what = "a job checks the nodes: hpc-amp site draft --on-node, or launch.preflight of any job"
    ids = ("gpu.count", "net.if", "net.reach")
    return found if request.here else [*found, *(Finding(id, "unknown", what) for id in ids)]


def _check_hosts(site: Site) -> Iterator[Finding]:
    """Whether `site: auto` chooses the site on this machine."""
    try:
        here = find_site()
    except ConfigError:
        return  # another site's file is wrong, which does not concern this one
    if here.name == site.name:
        yield Finding("site", "good", "site: auto is this site on this machine")
    elif site.hosts:
        what = f"site: auto is {here.name} on this machine, whose name is {host_names()[0]}"
        why = f"its hosts are {', '.join(site.hosts)}"
        fix = "if this is a login node of the site, correct hosts in the site file"
        yield Finding("site", "warning", what, why, fix)


def examine_image(image: str, *, runtime_name: str = "auto") -> list[Finding]:
    """Check an image, also inside. Raises UsageError if `image` is not an image file."""
    container = CONTAINERS.get(runtime_name)()
    shown = container.read_image(image)
    if shown is None:
        raise UsageError(f"{image} is not an image file, so it cannot be checked")
    text = f"{shown.path} ({shown.kind})"
    found = [Finding("img.local", "good", text)]
    foreign = shown.architecture not in (None, machine())
    if foreign:
        what = f"the image is for {shown.architecture}, and this machine is {machine()}"
        why = "its programs do not run on this machine"
        fix = f"check it on a machine that is {shown.architecture}, or pull it for {machine()}"
        return [*found, Finding("img.arch", "error", what, why, fix)]
    if shown.architecture:
        found.append(Finding("img.arch", "good", f"{shown.architecture}, like this machine"))
    return [*found, *look_inside(image, container)]


def _plan(request: CheckedRequest) -> tuple[Plan | None, list[Finding]]:
    """Make the plan of the job. Errors of the configuration are returned as findings."""
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
    """Report an error of the configuration only once, although two checks find it.

    The first finding is kept, because it names the line of the job file.
    """
    first: dict[str, Finding] = {}
    for finding in found:
        if finding.severity == "error":
            first.setdefault(finding.id, finding)
    return [
        finding
        for finding in found
        if finding.id not in ("img.local", "bind")
        or finding.id not in first
        or finding is first[finding.id]
    ]


def _inside(request: CheckedRequest, plan: Plan | None) -> list[Finding]:
    """The checks inside the image, if this machine can start it."""
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
        what = f"the image cannot be checked inside: {why_not}"
        return [Finding(id, "unknown", what, where="image") for id in ids]
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
            args=request.options,
            env=env,
            trains=job.train is not None,
            gpus=job.resources.gpus_per_node,
        )
    )
