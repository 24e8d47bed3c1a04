"""`hpc-amp scale`: measure how a job scales with the number of nodes."""

from __future__ import annotations

import functools
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp.cli.campaigns import (
    Limits,
    add_verbs,
    chosen_campaign,
    cost_options,
    expected_reports,
    in_allocation_option,
    limit_options,
    max_parallel_option,
    max_queued_option,
    newest_argument,
    parent_option,
    start_campaign,
    warmup_option,
)
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import (
    DefaultGroup,
    json_option,
    no_check_option,
    refuse_json_of_scripts,
)

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText
    from hpc_amp.study.view import ScaleView


_LIMITS = (max_parallel_option, max_queued_option, *cost_options)


@click.group(cls=DefaultGroup, no_args_is_help=False)
def scale() -> None:
    """Measure how a job scales with the number of nodes."""


def _view() -> ScaleView:
    from hpc_amp.study.view import SCALE

    return SCALE


def _node_counts(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """`1,2,4` as numbers."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 10**6 for word in words):
        raise click.BadParameter(f"{value!r} is not a list of numbers of nodes, such as 1,2,4.")
    return tuple(int(word) for word in words)


def _value_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """`--batch-size` or `batch-size` as the name of a value: `batch_size`."""
    from hpc_amp.draft.program import value_name

    return None if value is None else value_name(value)


@scale.command(cls=JobCommand)
@functools.partial(
    takes_job, anywhere=False, named_by=("rank_batch", "global_batch"), without=("job.nodes",)
)
@click.option(
    "-N",
    "--nodes",
    callback=_node_counts,
    metavar="LIST",
    help="Numbers of nodes to measure. Default: those of 1,2,4,8 that the queue allows, after a "
    "confirmation.",
)
@click.option(
    "--kind",
    type=click.Choice(["strong", "weak", "both"]),
    help="Keep the global batch (strong) or the batch of each rank (weak).  [default: strong; weak "
    "for your own program, unless its batch is named]",
)
@click.option(
    "--rank-batch",
    metavar="NAME",
    callback=_value_name,
    help="Your own program: the argument or value that is the batch of a rank.",
)
@click.option(
    "--global-batch",
    metavar="NAME",
    callback=_value_name,
    help="Your own program: the argument or value that is the batch of all ranks.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="Runs on each number of nodes.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Steps to measure.  [default: 100; of your own program, all]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Measure for about S seconds instead.",
)
@warmup_option
@click.option(
    "--evaluate", is_flag=True, help="Evaluate as the job says. Default: do not evaluate."
)
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Save checkpoints as the job says. Default: only at the end.",
)
@in_allocation_option
@click.option(
    "--array",
    "arrays",
    is_flag=True,
    help="Submit a job array for each number of nodes. Default: each run is a job of its own.",
)
@limit_options(*_LIMITS)
@click.option("--dry-run", is_flag=True, help="Print the runs and the scripts, and submit nothing.")
@no_check_option
@json_option
@parent_option("studies")
def start(
    config: Path | JobText,
    overrides: tuple[str, ...],
    nodes: tuple[int, ...] | None,
    kind: str | None,
    rank_batch: str | None,
    global_batch: str | None,
    repeats: int,
    steps: int | None,
    seconds: float | None,
    warmup: int,
    evaluate: bool,
    checkpoints: bool,
    in_allocation: bool,
    arrays: bool,
    dry_run: bool,
    as_json: bool,
    parent: Path,
    **limits: Any,
) -> None:
    """Submit CONFIG, a job file or a program, on each number of nodes, --repeats times.

    \b
      hpc-amp scale job.yaml --nodes 1,2,4,8
      hpc-amp scale train.py -N 1,2,4 --gpus 4 --kind both --rank-batch batch -- --batch 64

    The study gets a folder of its own. If this command is interrupted, `scale continue` submits the
    missing runs. The command asks for confirmation if the runs may take more than 100 node-hours;
    --ask-above changes this limit. See docs/scaling.md.
    """
    if steps is not None and seconds is not None:
        raise click.UsageError("Give either --steps or --seconds.")
    if arrays and in_allocation:
        raise click.UsageError("Give either --array or --in-allocation.")
    if rank_batch is not None and global_batch is not None:
        raise click.UsageError("Give either --rank-batch or --global-batch.")
    refuse_json_of_scripts(dry_run, as_json)
    from hpc_amp.campaigns.measuring import Measuring
    from hpc_amp.campaigns.submit import describe
    from hpc_amp.jobs.possible import ANSWER_SECONDS
    from hpc_amp.schedulers.base import Client
    from hpc_amp.study.batches import OwnBatch
    from hpc_amp.study.folder import KINDS
    from hpc_amp.study.plan import StudyOptions, plan_study

    name = rank_batch or global_batch
    options = StudyOptions(
        kinds=tuple(one for one in KINDS if kind in (one, "both")),
        nodes=nodes,
        repeats=repeats,
        measuring=Measuring(
            warmup=warmup,
            steps=steps,
            seconds=seconds,
            evaluate="as given" if evaluate else "never",
            checkpoints=checkpoints,
        ),
        batch=None if name is None else OwnBatch(name, of_rank=rank_batch is not None),
        in_allocation=in_allocation,
        arrays=arrays,
    )
    bounds = Limits(**limits)
    client = None if bounds.no_check else Client(ANSWER_SECONDS)
    study = plan_study(config, overrides, parent, options, client)
    campaign = describe(
        _view(),
        study.plan,
        submitting=study.submitting,
        at_once=bounds.max_parallel,
        options={**study.facts(), "command": shlex.join(["hpc-amp", *sys.argv[1:]])},
    )
    for remark in (*study.plan.remarks, *expected_reports(study.plan)):
        click.echo(f"note: {remark}", err=True)
    click.echo(study.describe(), err=as_json)
    start_campaign(
        _view(), study.plan, campaign, bounds,
        as_json=as_json, dry_run=dry_run, client=client, always_ask=nodes is None,
    )  # fmt: skip


add_verbs(scale, _view, "study", "studies", _LIMITS)


@scale.command()
@newest_argument("study")
@click.option(
    "--compare",
    "other",
    metavar="OTHER",
    help="Show a second study in the same pictures and tables.",
)
@click.option("--latex", "as_latex", is_flag=True, help="Print the table for a proposal, in LaTeX.")
@json_option
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the points to FILE.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for text, CSV, JSON, pictures and HTML. Default: `report` in the study.",
)
@parent_option("studies")
def report(
    target: str | None,
    other: str | None,
    as_latex: bool,
    as_json: bool,
    csv_file: Path | None,
    out: Path | None,
    parent: Path,
) -> None:
    """Show speedup and efficiency of a study.

    The study may still be incomplete. STUDY and OTHER are folders of studies, or names of jobs,
    whose newest studies are meant. Default: the newest study. With --latex or --json, files are
    only written if --out is given. docs/scaling.md explains the report.
    """
    from hpc_amp.errors import UsageError
    from hpc_amp.study.analysis import analyse
    from hpc_amp.study.folder import study_of

    if as_latex and as_json:
        raise click.UsageError("Give either --latex or --json.")
    studies = [study_of(chosen_campaign(_view(), target, parent))]
    if other is not None:
        studies.append(study_of(_view().find(other, parent)))
    if len(studies) == 2 and studies[0].folder == studies[1].folder:
        raise UsageError(f"{other!r} is the same study", hint="--compare another one")
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
        # In a pipe, each sentence stays on one line, for `grep`.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(to_text(analyses, width))
    if csv_file is not None:
        write_file(csv_file, to_csv(analyses).encode())
    if out is None and (as_latex or as_json):
        return
    written = write_report(analyses, out or studies[0].folder / "report")
    click.echo(written.describe(), err=as_latex or as_json)
