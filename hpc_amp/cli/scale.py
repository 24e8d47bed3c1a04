"""`hpc-amp scale`: how a job scales over nodes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import DefaultGroup, json_option, say_that_it_waits

if TYPE_CHECKING:
    from hpc_amp.study.cost import Cost
    from hpc_amp.study.folder import Study
    from hpc_amp.study.progress import Progress
    from hpc_amp.study.recipe import Measurement, Recipe

studies_dir_option = click.option(
    "--studies-dir",
    type=click.Path(path_type=Path),
    default=Path("studies"),
    envvar="HPC_AMP_STUDIES",
    show_default=True,
    help="Folder of all studies.",
)


@click.group(cls=DefaultGroup, no_args_is_help=False)
def scale() -> None:
    """Measure how a job scales over nodes, and show it."""


def _node_counts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 10**6 for word in words):
        raise click.BadParameter(f"{value!r} is not a list of numbers of nodes, such as 1,2,4.")
    return tuple(int(word) for word in words)


max_queued_option = click.option(
    "--max-queued",
    type=click.IntRange(min=1),
    metavar="N",
    help="Have no more than N runs in the queue, and wait here until all are submitted.",
)
ask_above_option = click.option(
    "--ask-above",
    type=click.FloatRange(min=0),
    metavar="NODE-HOURS",
    default=100,
    show_default=True,
    help="Ask before more than so much may be spent.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@scale.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--nodes",
    callback=_node_counts,
    metavar="LIST",
    default="1,2,4,8",
    show_default=True,
    help="Numbers of nodes to measure.",
)
@click.option(
    "--kind",
    type=click.Choice(["strong", "weak", "both"]),
    default="strong",
    show_default=True,
    help="What stays the same: the whole batch (strong), or that of a rank (weak).",
)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Steps to measure.  [default: 100]"
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Measure for about so long instead.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    metavar="N",
    default=20,
    show_default=True,
    help="Steps before the first one measured.",
)
@click.option("--evaluate", is_flag=True, help="Evaluate as the job says; without it, do not.")
@click.option(
    "--checkpoints", is_flag=True, help="Save as the job says; without it, only at the end."
)
@click.option(
    "--in-allocation",
    is_flag=True,
    help="One job of the largest size makes all runs, one after the other.",
)
@max_queued_option
@ask_above_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Say what would be submitted, and stop.")
@json_option
@studies_dir_option
def start(
    config: Path,
    overrides: tuple[str, ...],
    nodes: tuple[int, ...],
    kind: str,
    repeats: int,
    steps: int | None,
    seconds: float | None,
    warmup: int,
    evaluate: bool,
    checkpoints: bool,
    in_allocation: bool,
    max_queued: int | None,
    ask_above: float,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    studies_dir: Path,
) -> None:
    """Submit CONFIG on each number of nodes, --repeats times.

    The study gets a folder of its own. Whatever interrupts this command, `scale continue` submits
    what is missing. docs/scaling.md has the rest.
    """
    if steps is not None and seconds is not None:
        raise click.UsageError("Give either --steps or --seconds.")
    from hpc_amp.study.cost import estimate
    from hpc_amp.study.draft import StudyOptions, draft_study
    from hpc_amp.study.folder import KINDS
    from hpc_amp.study.overview import describe_draft
    from hpc_amp.study.recipe import measurements

    options = StudyOptions(
        kinds=tuple(one for one in KINDS if kind in (one, "both")),
        nodes=nodes,
        repeats=repeats,
        warmup=warmup,
        steps=steps or (100 if seconds is None else None),
        seconds=seconds,
        evaluate=evaluate,
        checkpoints=checkpoints,
        in_allocation=in_allocation,
    )
    draft = draft_study(config, overrides, studies_dir, options)
    _refuse_bound(draft.recipe.in_allocation, max_queued)
    wanted = measurements(draft.study)
    for remark in draft.plan.remarks:
        click.echo(f"note: {remark}", err=True)
    click.echo(describe_draft(draft), err=as_json)
    cost = estimate(wanted, draft.plan, in_allocation=draft.recipe.in_allocation)
    click.echo(str(cost), err=as_json)
    if dry_run:
        return
    _ask(cost, ask_above, yes)
    draft.write()
    with _interruptible(draft.study), _exclusive(draft.study):
        _submit(draft.study, draft.recipe, wanted, max_queued, as_json)


@scale.command("continue")
@click.argument("target", metavar="STUDY")
@max_queued_option
@ask_above_option
@yes_option
@json_option
@studies_dir_option
def continue_(
    target: str,
    max_queued: int | None,
    ask_above: float,
    yes: bool,
    as_json: bool,
    studies_dir: Path,
) -> None:
    """Submit the runs of STUDY that are missing, have failed, or ended too early.

    Its job file and settings are those of its start; what is queued, runs or is measured stays as
    it is.
    """
    from hpc_amp.campaigns.lock import refuse_elsewhere
    from hpc_amp.campaigns.unsettled import settle
    from hpc_amp.jobs.rundir import working_in
    from hpc_amp.study.cost import estimate
    from hpc_amp.study.folder import find_study
    from hpc_amp.study.progress import progress, to_be_made
    from hpc_amp.study.recipe import read_recipe
    from hpc_amp.study.submission import base_plan, share_runs

    study = find_study(target, studies_dir)
    refuse_elsewhere(study.folder, study.run_dirs())
    recipe = read_recipe(study)
    _refuse_bound(recipe.in_allocation, max_queued)
    with (
        _interruptible(study),
        _exclusive(study),
        working_in(recipe.workdir, "the study was started"),
    ):
        settle(study.run_dirs, say_that_it_waits)
        items = progress(study)
        share_runs(study, items)
        wanted = to_be_made(items)
        if not wanted:
            click.echo(_nothing_to_do(items), err=as_json)
        else:
            plan, _ = base_plan(study, recipe)
            cost = estimate(wanted, plan, in_allocation=recipe.in_allocation, before=items)
            click.echo(str(cost), err=as_json)
            _ask(cost, ask_above, yes)
        _submit(study, recipe, wanted, max_queued, as_json)


@scale.command()
@click.argument("target", metavar="STUDY")
@json_option
@studies_dir_option
def status(target: str, as_json: bool, studies_dir: Path) -> None:
    """Show which runs of STUDY are measured, under way, or missing."""
    import json

    from hpc_amp.study.folder import find_study
    from hpc_amp.study.overview import describe, to_plain
    from hpc_amp.study.progress import progress

    study = find_study(target, studies_dir)
    items = progress(study)
    click.echo(json.dumps(to_plain(study, items), indent=1) if as_json else describe(study, items))


@scale.command()
@click.argument("target", metavar="STUDY")
@json_option
@studies_dir_option
def cancel(target: str, as_json: bool, studies_dir: Path) -> None:
    """End all runs of STUDY that are queued or running. `scale continue` makes them again."""
    import json

    from hpc_amp.campaigns.ending import cancel_runs
    from hpc_amp.campaigns.lock import refuse_elsewhere
    from hpc_amp.campaigns.unsettled import settle
    from hpc_amp.campaigns.words import count
    from hpc_amp.study.folder import find_study
    from hpc_amp.study.progress import progress

    study = find_study(target, studies_dir)
    refuse_elsewhere(study.folder, study.run_dirs())
    with _exclusive(study):
        settle(study.run_dirs, say_that_it_waits)
        runs = [one.run.status for one in progress(study) if one.run.status is not None]
        ended = cancel_runs(runs, by="hpc-amp scale cancel")
    if as_json:
        click.echo(json.dumps({"study": str(study.folder), "cancelled": ended}))
    else:
        click.echo(f"cancelled {count(ended, 'run')} of {study.folder}")


def _refuse_bound(in_allocation: bool, max_queued: int | None) -> None:
    if in_allocation and max_queued is not None:
        raise click.UsageError("The runs share a single job: leave --max-queued out.")


def _ask(cost: Cost, ask_above: float, yes: bool) -> None:
    """Let the user confirm what is expensive. Raises UsageError where nobody can answer."""
    if yes or cost.most <= ask_above:
        return
    if not sys.stdin.isatty():
        from hpc_amp.errors import UsageError

        raise UsageError(
            f"{cost.most_in_words} are above --ask-above {ask_above:g}, and nobody can be asked",
            hint="give --yes",
        )
    if not click.confirm("Submit?", err=True):
        click.echo("nothing was submitted", err=True)
        raise SystemExit(1)


@contextmanager
def _interruptible(study: Study) -> Iterator[None]:
    """Ctrl-C ends the submitting, not what was submitted."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(
            f"\nno longer submitting; the rest: hpc-amp scale continue {study.folder}", err=True
        )
        raise SystemExit(130) from None


def _exclusive(study: Study) -> AbstractContextManager[None]:
    """No other command submits runs of the study meanwhile."""
    from hpc_amp.campaigns.lock import holding

    return holding(study.folder / "study.json", "runs")


def _nothing_to_do(items: Sequence[Progress]) -> str:
    from hpc_amp.campaigns.words import under_way

    number = sum(one.is_under_way for one in items)
    return under_way(number, "run") if number else "all runs are measured"


def _submit(
    study: Study,
    recipe: Recipe,
    wanted: Sequence[Measurement],
    max_queued: int | None,
    as_json: bool,
) -> None:
    """Submit runs, and say what was submitted."""
    import json

    from hpc_amp.study.allocation import submit_allocation
    from hpc_amp.study.submission import submit_runs

    job_ids: list[str] = []

    def tell(measurement: Measurement, job_id: str) -> None:
        job_ids.append(job_id)
        click.echo(f"{measurement.first.folder_name}: submitted job {job_id}", err=as_json)

    if wanted and recipe.in_allocation:
        job_ids.append(submit_allocation(study, recipe, wanted).job_id)
        click.echo(f"submitted job {job_ids[0]}, which makes them all", err=as_json)
    else:
        submit_runs(study, recipe, wanted, max_queued=max_queued, tell=tell)
    if as_json:
        click.echo(json.dumps({"study": str(study.folder), "job_ids": job_ids}))
    else:
        click.echo(f"study {study.folder}; see hpc-amp scale status, then hpc-amp scale report")


@scale.command()
@click.argument("study")
@click.option(
    "--compare", "other", metavar="OTHER", help="A second study in the same pictures and tables."
)
@click.option("--latex", "as_latex", is_flag=True, help="Print the table for a proposal, in LaTeX.")
@json_option
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the points to FILE, too.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Where table, CSV, JSON, pictures and page go. Without it: `report` in the study.",
)
@studies_dir_option
def report(
    study: str,
    other: str | None,
    as_latex: bool,
    as_json: bool,
    csv_file: Path | None,
    out: Path | None,
    studies_dir: Path,
) -> None:
    """Show speedup and efficiency of a study, as far as it is measured.

    STUDY and OTHER are a study's folder, or a name: then its newest study. With --latex or --json
    only that is printed, and no files are written unless --out names a folder. docs/scaling.md says
    how to read it.
    """
    from hpc_amp.errors import UsageError
    from hpc_amp.study.analysis import analyse
    from hpc_amp.study.folder import find_study

    if as_latex and as_json:
        raise click.UsageError("Give either --latex or --json.")
    studies = [find_study(name, studies_dir) for name in (study, other) if name is not None]
    if len(studies) == 2 and studies[0].folder == studies[1].folder:
        raise UsageError(f"{other!r} is the study {study!r} itself", hint="--compare another one")
    analyses = [analyse(one) for one in studies]

    from hpc_amp.campaigns.output import write_file
    from hpc_amp.study.export import to_csv, to_json
    from hpc_amp.study.latex import to_latex
    from hpc_amp.study.output import write_report
    from hpc_amp.study.text import to_text

    if as_latex:
        click.echo("\n".join(to_latex(one) for one in analyses), nl=False)
    elif as_json:
        click.echo(to_json(analyses), nl=False)
    else:
        # What is piped stays one line a sentence, for `grep`.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(to_text(analyses, width))
    if csv_file is not None:
        write_file(csv_file, to_csv(analyses).encode())
    if out is None and (as_latex or as_json):
        return
    written = write_report(analyses, out or studies[0].folder / "report")
    click.echo(written.describe(), err=as_latex or as_json)
