"""Python functions as jobs: `hpc_amp.executor`.

    executor = hpc_amp.executor("job.yaml", job={"nodes": 2})
    job = executor.submit(train, lr=0.1)
    print(job.result())

It is submitit's executor, set up by a job file: resources, site, container, environment. The
functions run inside the container; what they need of submitit is taken along.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import read_job
from hpc_amp.config.overrides import apply_overrides
from hpc_amp.config.schema import Job
from hpc_amp.config.sites import find_site
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs import render, rundir
from hpc_amp.jobs.code import copy_package
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.shell import templates, verbatim
from hpc_amp.launchers import get_launcher

if TYPE_CHECKING:
    import submitit

_TAKEN_ALONG = ("submitit", "cloudpickle", "typing_extensions")
# There is no scontrol in an image. What submitit asks of it there (`scontrol requeue ID`) is
# written down, and done by the batch script on the host.
_SCONTROL = """#!/bin/sh
echo "$@" >"$HPC_AMP_REQUEUE"
"""


def executor(
    config: str | Path, *, folder: str | Path = "functions", **overrides: Any
) -> submitit.Executor:
    """A submitit executor for the job of a job file.

    `overrides` are keys of the job file, as sections (`job={"nodes": 2}`) or with dots
    (`**{"job.nodes": 2}`). What is written goes to `folder`/<name>/<UTC time>-<4 letters>/. The
    ranks of a function are those of the job; `submitit.JobEnvironment()` knows them, and
    `submitit.helpers.TorchDistributedEnvironment().export()` tells torch.

    Raises ConfigError for a job file that is wrong, UsageError where submitit is not installed or
    has nothing for the site's scheduler: it knows Slurm and the machine at hand.
    """
    try:
        import submitit  # noqa: F401  heavy, and optional
    except ImportError:
        raise UsageError(
            "hpc_amp.executor needs submitit", hint="pip install 'hpc-amp[submitit]'"
        ) from None
    plan = _plan(Path(config), [*_flat(overrides)], Path(folder))
    if plan.step_launcher:
        plan = replace(plan, launcher=get_launcher(plan.step_launcher))
    plan.scheduler.check(plan)
    made = plan.scheduler.submitit_executor(plan)
    _write(plan)
    return made


def _flat(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Keyword arguments as overrides of a command line."""
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{name}={text}"


def _plan(config: Path, overrides: list[str], folder: Path) -> Plan:
    source = read_job(config, overrides)
    if source.tree.get("train") is None and source.tree.get("run") is None:
        # The function is what runs.
        tree = apply_overrides(source.tree, ["run=[python]"], Job)
        source = replace(source, tree=tree)  # no override: nobody set it
    node = source.tree.get("site")
    site = find_site(source.site, where=node.where if node else str(config))
    loaded = source.validate(site.defaults)
    check_job(loaded, site)
    where = Path(os.path.expanduser(folder)) / loaded.job.name / rundir.new_run_id()
    plan = make_plan(loaded, site, where)
    if plan.container.entered_by:
        raise ConfigError(
            f"container.runtime: {plan.container.title} is entered by options of "
            f"{plan.container.entered_by}, which submitit does not give",
            where=loaded.where("container.runtime"),
            hint="choose another runtime",
        )
    return plan


def _write(plan: Plan) -> None:
    """The folder of the executor: the interpreter that submitit starts, and what it needs inside.
    Raises UsageError where it cannot be written; nothing stays behind then."""
    folder = plan.run_dir
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    context = {**render.template_context(plan, session=True), "pickled_by": verbatim(version)}
    variable = plan.scheduler.allocation
    context["allocation"] = verbatim(f"${{{variable}:-$$}}" if variable else "$$")
    script = templates("jobs").get_template("python.sh.j2").render(context)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # submitit has made its own below
        try:
            copy_package(folder, plan)
            for name in _TAKEN_ALONG:
                _copy_module(name, folder / "lib" / name)
            rundir.write_resolved(plan, folder)
            _write_program(folder / "python", script)
            _write_program(folder / "commands" / "scontrol", _SCONTROL)
        except BaseException:
            rundir.discard(folder)
            raise
    except OSError as error:
        raise UsageError(f"the executor's folder cannot be written: {error}") from None


def _copy_module(name: str, folder: Path) -> None:
    """A module or package of this Python into a folder of its own."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"submitit needs {name}"
    assert spec.origin is not None, f"{name} is not a module"
    source = Path(spec.origin)
    folder.mkdir(parents=True)
    if spec.submodule_search_locations is None:
        shutil.copy(source, folder)
    else:
        ignored = shutil.ignore_patterns("__pycache__", "test_*", "conftest.py")
        shutil.copytree(source.parent, folder / name, ignore=ignored)


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
