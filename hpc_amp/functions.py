"""Python functions as jobs: `hpc_amp.executor`.

    executor = hpc_amp.executor("job.yaml", job={"nodes": 2})
    job = executor.submit(train, lr=0.1)
    print(job.result())

The result is an executor of submitit that takes its resources, site, container and environment from
a job file. The functions run inside the container. submitit and its dependencies are copied into
the executor's folder, so the image does not need them.
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
from hpc_amp.config.sites import site_of
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs import render, rundir
from hpc_amp.jobs.code import copy_package
from hpc_amp.jobs.plan import Plan, make_plan
from hpc_amp.jobs.shell import fill, verbatim
from hpc_amp.launchers import get_launcher

if TYPE_CHECKING:
    import submitit

_COPIED_MODULES = ("submitit", "cloudpickle", "typing_extensions")
# An image has no scontrol. This substitute writes the arguments of submitit's call
# (`scontrol requeue ID`) to a file, and the batch script on the host executes the call.
_SCONTROL = """#!/bin/sh
echo "$@" >"$HPC_AMP_REQUEUE"
"""


def executor(
    config: str | Path, *, folder: str | Path = "functions", **overrides: Any
) -> submitit.Executor:
    """Create a submitit executor for the job that a job file describes.

    `config` is the path of the job file. `overrides` are keys of the job file, as sections
    (`job={"nodes": 2}`) or with dots (`**{"job.nodes": 2}`). The executor writes its files to
    `folder`/<name>/<UTC time>-<4 letters>/. Each function runs on all ranks of the job. In the
    function, `submitit.JobEnvironment()` returns the ranks, and
    `submitit.helpers.TorchDistributedEnvironment().export()` sets torch's variables.

    Raises ConfigError if the job file is wrong, and UsageError if submitit is not installed or does
    not support the site's scheduler. submitit supports Slurm and local execution.
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
    """Convert keyword arguments to overrides in the form of the command line."""
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield f"{prefix}{name}={text}"


def _plan(config: Path, overrides: list[str], folder: Path) -> Plan:
    source = read_job(config, overrides)
    if source.tree.get("train") is None and source.tree.get("run") is None:
        # The job runs the function, so the file needs neither key. `run` is set in the tree only:
        # as an override it would appear among those of the user.
        tree = apply_overrides(source.tree, ["run=[python]"], Job)
        source = source._replace(tree=tree)
    site = site_of(source)
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
    """Write the executor's folder: the program that submitit starts as its interpreter, and the
    modules that it needs in the container. Raises UsageError if the folder cannot be written, and
    removes the files that were written until then."""
    folder = plan.run_dir
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    values = {**render.script_values(plan, session=True), "pickled_by": verbatim(version)}
    variable = plan.scheduler.allocation
    values["allocation"] = verbatim(f"${{{variable}:-$$}}" if variable else "$$")
    script = fill("python.sh.in", values)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # submitit has already created `jobs` in it
        try:
            copy_package(folder, plan)
            for name in _COPIED_MODULES:
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
    """Copy an installed module or package into `folder`, which is created."""
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
