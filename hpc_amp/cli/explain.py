"""`hpc-amp explain`: why a job failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import json_option, runs_dir_option

if TYPE_CHECKING:
    from hpc_amp.explain.answer import Answer


@click.command()
@click.argument("target", metavar="LOG|RUN", required=False)
@click.option("--list", "as_list", is_flag=True, help="Print all known failures.")
@runs_dir_option
@json_option
def explain(target: str | None, as_list: bool, runs_dir: Path, as_json: bool) -> None:
    """Explain why a job failed.

    Prints the cause, the line of the log that shows it, and how to fix it. LOG is a log of any job,
    `-` is standard input. RUN is a run directory, a job id, or the name of a job (its newest run).
    The exit status is 0 if the cause is found. Otherwise it is 1, and the first error is printed.
    """
    if as_list:
        _print_list(as_json)
        return
    if target is None:
        raise click.UsageError("Missing argument 'LOG|RUN'.")
    answer = _answer(target, runs_dir)
    click.echo(json.dumps(answer.to_plain(), indent=1) if as_json else answer.to_text())
    if not answer.named:
        raise SystemExit(1)


def _answer(target: str, runs_dir: Path) -> Answer:
    from hpc_amp.explain.run import explain_log, explain_run
    from hpc_amp.jobs.places import follow_latest

    if target == "-":
        return explain_log(None)
    path = follow_latest(Path(target))
    if path.is_file():
        return explain_log(path)
    from hpc_amp.errors import UsageError
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.status import run_statuses

    try:
        run_dir = rundir.find_run(target, runs_dir)
    except UsageError as error:
        raise UsageError(f"{error.message}, nor a log file", hint=error.hint) from None
    (status,) = run_statuses([run_dir])
    return explain_run(status)


def _print_list(as_json: bool) -> None:
    from hpc_amp.explain.document import without_braces
    from hpc_amp.explain.failures import known_failures

    shown = [f for f in known_failures() if f.level != "noise"]
    if as_json:
        facts = [
            {
                "failure": f.id,
                "area": f.area,
                "level": f.level,
                "cause": without_braces(f.cause),
                "fix": without_braces(f.fix),
                "source": f.source,
            }
            for f in shown
        ]
        click.echo(json.dumps(facts, indent=1))
        return
    width = max(len(f.id) for f in shown)
    for failure in shown:
        click.echo(f"{failure.id:<{width}}  {without_braces(failure.cause)}")
