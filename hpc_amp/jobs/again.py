"""Submit the job of a run once more, as a new run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpc_amp.config.load import JobText, LoadedJob
from hpc_amp.config.paths import literal
from hpc_amp.errors import UsageError
from hpc_amp.jobs import change, rundir
from hpc_amp.jobs.git import read_code_state
from hpc_amp.jobs.plan import Plan


def again(run_dir: Path) -> JobText:
    """The job of a run, to be submitted once more as a new run: the job file and the overrides of
    its submission, and its copy of the code. Raises UsageError if it does not record them."""
    resolved = rundir.read_resolved(run_dir)
    rundir.refuse_without_links(run_dir)
    overrides = change.given_at_submission(run_dir, resolved)
    if resolved["job"].get("code") is not None:
        code = literal(str(run_dir.resolve() / "code")).replace("'", "''")
        overrides = [*overrides, f"code='{code}'"]
    path = run_dir / "config.yaml"
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    folder = Path(rundir.submission_folder(run_dir, resolved))
    return JobText(path, text, tuple(overrides), folder=folder, run_dir=run_dir)


def differences_to(
    run_dir: Path, plan: Plan, loaded: LoadedJob, overrides: Sequence[str]
) -> Iterator[str]:
    """What is not as in `run_dir`, whose job runs again, besides what `overrides` change: a site
    file may have changed, or the program itself."""
    changed = change.differences(run_dir, plan, loaded, overrides)
    if changed:
        yield f"not as in {run_dir}: {', '.join(map(str, changed))}"
    if plan.job.run is not None and plan.job.code is None:
        state = read_code_state(run_dir)
        then = f" (it was {state})" if state is not None else ""
        yield (
            f"{run_dir} has no copy of its program, because the key code was not set: the program "
            f"is used as it is now{then}"
        )
