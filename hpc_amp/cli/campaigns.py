"""What the commands of all views of campaigns share: `status`, `continue`, `drop`, `cancel`, and
everything from a planned campaign to its submission."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpc_amp.cli.options import json_option
from hpc_amp.errors import to_type

if TYPE_CHECKING:
    from hpc_amp.campaigns.folder import Campaign
    from hpc_amp.campaigns.parts import Part
    from hpc_amp.campaigns.plan import CampaignPlan
    from hpc_amp.campaigns.status import PointStatus
    from hpc_amp.campaigns.view import View
    from hpc_amp.schedulers.base import Client

F = TypeVar("F", bound=Callable[..., Any])
_POLL_SECONDS = 1.0


def expected_reports(plan: CampaignPlan) -> list[str]:
    """A remark if the user's own program seems to report nothing that can be measured."""
    from hpc_amp.campaigns.reported import expect_reports

    remark = expect_reports(plan.plan.workdir, plan.plan.job.run)
    return [] if remark is None else [remark]


points_option = click.option(
    "--points",
    "table",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read points from a CSV file: the first line names the keys, each other line is a point.",
)
warmup_option = click.option(
    "--warmup",
    type=click.IntRange(min=0),
    metavar="N",
    default=20,
    show_default=True,
    help="Steps before the first measured step.",
)
in_allocation_option = click.option(
    "--in-allocation",
    is_flag=True,
    help="Submit one job that makes all runs, one after the other.",
)


def parent_option(parent: str) -> Callable[[F], F]:
    """The option for the folder of all campaigns of a view. `parent` is the default."""
    return click.option(
        f"--{parent}-dir",
        "parent",
        type=click.Path(path_type=Path),
        default=Path(parent),
        envvar=f"HPC_AMP_{parent.upper()}",
        show_default=True,
        help=f"The folder that contains all {parent}.",
    )


def newest_argument(noun: str) -> Callable[[F], F]:
    """The argument `target` for a campaign, which may be left out: see `chosen_campaign`."""
    return click.argument("target", metavar=f"[{noun.upper()}]", required=False)


def chosen_campaign(view: View, target: str | None, parent: Path) -> Campaign:
    """The campaign that a command is about: `target`, or without it the newest one, which is then
    named on standard error. Raises UsageError if there is none."""
    if target is not None:
        return view.find(target, parent)
    campaign = view.newest(parent)
    click.echo(f"{view.noun} {campaign.folder}", err=True)
    return campaign


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a submission."""

    max_parallel: int | None = None
    max_queued: int | None = None
    ask_above: float | None = None
    yes: bool = False
    no_check: bool = False


max_parallel_option = click.option(
    "--max-parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run at most N points of the campaign at once. For points that are submitted as arrays, "
    "or run on this machine. Default: as many as the scheduler, or the GPUs or cores of this "
    "machine, allow.",
)
max_queued_option = click.option(
    "--max-queued",
    type=click.IntRange(min=1),
    metavar="N",
    help="Have at most N runs in the queue, and wait until all are submitted. For runs that are "
    "jobs of their own.",
)
cost_options = (
    click.option(
        "--ask-above",
        type=click.FloatRange(min=0),
        metavar="NODE-HOURS",
        help="Ask for confirmation if the runs may take more node-hours than this.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)


def limit_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Add options to a command, which passes their values to `Limits`."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def start_campaign(
    view: View,
    plan: CampaignPlan,
    campaign: Campaign,
    limits: Limits,
    *,
    as_json: bool,
    dry_run: bool = False,
    client: Client | None = None,
    always_ask: bool = False,
) -> None:
    """Write a new campaign and submit all of its points. If `dry_run`, print the points and the
    scripts instead. `client` has answers of the scheduler about its limits. `always_ask`: ask for
    confirmation whatever the runs cost, because the user has not chosen the points."""
    from hpc_amp.campaigns.cost import estimate
    from hpc_amp.campaigns.folder import holding
    from hpc_amp.campaigns.submit import parts_of, write

    _check_limits(campaign, limits)
    wanted = range(len(campaign.points))
    parts = parts_of(campaign, wanted, _at_once(campaign))
    if dry_run:
        _print_plan(plan, campaign, parts)
        if view.ask_above is not None:
            click.echo(f"\n{estimate(campaign, wanted)}")
        return
    if not limits.no_check:
        _refuse_impossible(plan, campaign, client)
    _ask(view, campaign, wanted, limits, (), as_json, always=always_ask)
    write(campaign, plan)
    with ExitStack() as held:
        held.enter_context(holding(campaign, f"{view.runs}s"))
        _begin(view, campaign, parts, limits, held, as_json=as_json, is_new=True)


def add_verbs(
    group: click.Group,
    load: Callable[[], View],
    noun: str,
    parent: str,
    limits: Sequence[Callable[[Any], Any]] = (max_parallel_option, *cost_options),
) -> None:
    """Add the commands `status`, `continue`, `drop` and `cancel` to the group of a view.

    `load` returns the view. It is called when a command runs, so that the command line starts
    quickly. `noun` is the word for a campaign of the view, `parent` the default folder of its
    campaigns, and `limits` are the options of `continue` that limit a submission.
    """
    target = click.argument("target", metavar=noun.upper())
    folder = parent_option(parent)
    newest = newest_argument(noun)

    @group.command(
        help=f"Show the state of each run.\n\n{noun.upper()} is the folder of a {noun}, or the "
        f"name of a job, whose newest {noun} is meant. Default: the newest {noun}.",
    )
    @newest
    @json_option
    @folder
    def status(target: str | None, as_json: bool, parent: Path) -> None:
        _status(load(), target, parent, as_json)

    @group.command(
        "continue",
        help="Submit the runs that are missing, have failed, or ended too early.\n\nThe job file, "
        "the settings and the code are those of the first submission. Runs that are done, queued "
        "or running are not changed.",
    )
    @target
    @limit_options(*limits)
    @json_option
    @folder
    def continue_(target: str, as_json: bool, parent: Path, **limits: Any) -> None:
        _continue(load(), target, parent, Limits(**limits), as_json)

    @group.command(
        help=f"Leave runs out of a {noun}.\n\nPOINTS are their numbers in `{group.name} status`, "
        f"such as 3,7-9. `{group.name} continue` no longer submits them, jobs of theirs that wait "
        "in the queue are ended, and the report names them as dropped. Runs that are done stay.",
    )
    @target
    @click.argument("points")
    @json_option
    @folder
    def drop(target: str, points: str, as_json: bool, parent: Path) -> None:
        _drop(load(), target, points, parent, as_json)

    @group.command(
        help=f"End all runs that are queued or running. `{group.name} continue` submits them again."
    )
    @target
    @json_option
    @folder
    def cancel(target: str, as_json: bool, parent: Path) -> None:
        _cancel(load(), target, parent, as_json)


def _status(view: View, target: str | None, parent: Path, as_json: bool) -> None:
    from hpc_amp.campaigns.folder import refuse_elsewhere
    from hpc_amp.campaigns.overview import describe_status, status_to_plain

    campaign = chosen_campaign(view, target, parent)
    refuse_elsewhere(campaign)
    statuses, labels = view.statuses(campaign), view.labels(campaign)
    if as_json:
        click.echo(json.dumps(status_to_plain(campaign, statuses, labels), indent=1))
    else:
        click.echo(describe_status(campaign, statuses, labels, view.runs))


def _continue(view: View, target: str, parent: Path, limits: Limits, as_json: bool) -> None:
    from hpc_amp.campaigns.folder import holding, refuse_elsewhere
    from hpc_amp.campaigns.interrupted import settle
    from hpc_amp.campaigns.overview import facts, nothing_to_continue
    from hpc_amp.campaigns.submit import parts_of

    campaign = view.find(target, parent)
    refuse_elsewhere(campaign)
    if limits.max_parallel is not None:
        campaign = replace(campaign, at_once=limits.max_parallel)
    _check_limits(campaign, limits)
    with ExitStack() as held:
        held.enter_context(holding(campaign, f"{view.runs}s"))
        settle(campaign, _say_that_it_waits)
        statuses = view.statuses(campaign)
        wanted = view.unfinished(statuses)
        if wanted:
            _refuse_while_ending(view, campaign, statuses)
            _refuse_to_share(view, campaign, statuses)
            _ask(view, campaign, wanted, limits, statuses, as_json)
            parts = parts_of(campaign, wanted, _at_once(campaign), statuses)
            _begin(view, campaign, parts, limits, held, as_json=as_json, is_new=False)
            return
    click.echo(nothing_to_continue(statuses, view.runs, view.done), err=as_json)
    if as_json and (_runs_here(campaign) or _waits_for(view, campaign)):
        click.echo(view.summary(campaign, as_json=True))
    elif as_json:
        click.echo(json.dumps({**facts(campaign), "submitted": 0, "job_ids": []}))


def _drop(view: View, target: str, points: str, parent: Path, as_json: bool) -> None:
    from hpc_amp.campaigns.control import drop
    from hpc_amp.campaigns.folder import holding, refuse_elsewhere
    from hpc_amp.campaigns.overview import facts
    from hpc_amp.campaigns.ranges import from_text
    from hpc_amp.campaigns.words import count

    try:
        numbers = sorted(set(from_text(points)))
    except ValueError:
        raise click.UsageError(f"{points!r} is not a list of points, such as 3,7-9.") from None
    campaign = view.find(target, parent)
    refuse_elsewhere(campaign)
    with holding(campaign, f"{view.runs}s"):
        statuses = view.statuses(campaign)
        drop(campaign, statuses, numbers)
    done = {status.index for status in statuses if status.state == view.done}
    dropped = [number for number in numbers if number not in done]
    if as_json:
        click.echo(json.dumps({**facts(campaign), "dropped": dropped}))
        return
    click.echo(f"dropped {count(len(dropped), view.runs)} of {campaign.folder}")
    for number in sorted(done.intersection(numbers)):
        click.echo(f"{view.runs} {number} is {view.done}, and stays", err=True)


def _cancel(view: View, target: str, parent: Path, as_json: bool) -> None:
    from hpc_amp.campaigns.control import cancel
    from hpc_amp.campaigns.folder import holding, refuse_elsewhere
    from hpc_amp.campaigns.interrupted import settle
    from hpc_amp.campaigns.overview import facts
    from hpc_amp.campaigns.words import count
    from hpc_amp.jobs.control import SAVE_SECONDS

    def say_that_ranks_save() -> None:
        click.echo(
            f"asked the ranks to save; waiting up to {SAVE_SECONDS} s (Ctrl-C: do not wait)",
            err=True,
        )

    campaign = view.find(target, parent)
    refuse_elsewhere(campaign)
    with holding(campaign, f"{view.runs}s"):
        settle(campaign, _say_that_it_waits)
        before = cancel(campaign, say_that_ranks_save)
    if as_json:
        plain = [status.to_plain(campaign.keys) for status in before]
        click.echo(json.dumps({**facts(campaign), "cancelled": plain}, indent=1))
    elif before:
        click.echo(f"cancelled {count(len(before), view.runs)} of {campaign.folder}")
    else:
        click.echo(f"no {view.runs} of {campaign.folder} is queued or running")


def _refuse_while_ending(view: View, campaign: Campaign, statuses: Sequence[PointStatus]) -> None:
    """Raise UsageError if jobs of cancelled runs are still in the queue. Otherwise two jobs could
    make the same run at the same time."""
    from hpc_amp.campaigns.control import left_in_queue
    from hpc_amp.campaigns.words import count
    from hpc_amp.errors import UsageError

    left = left_in_queue(campaign, statuses)
    if left:
        raise UsageError(
            f"the scheduler has not ended the job of {count(len(left), f'cancelled {view.runs}')}",
            hint=f"wait, or {to_type(view.name, 'cancel', campaign.folder)}",
        )


def _refuse_to_share(view: View, campaign: Campaign, statuses: Sequence[PointStatus]) -> None:
    """Raise UsageError if runs of the campaign are under way on this machine: new runs would use
    the same GPUs, or more cores than --max-parallel allows."""
    from hpc_amp.campaigns.status import UNDER_WAY
    from hpc_amp.campaigns.words import under_way
    from hpc_amp.errors import UsageError
    from hpc_amp.schedulers import get_scheduler

    number = sum(status.state in UNDER_WAY for status in statuses)
    one_machine = get_scheduler(campaign.scheduler).one_machine
    if number and one_machine:
        raise UsageError(
            under_way(number, view.runs),
            hint=f"wait, or {to_type(view.name, 'cancel', campaign.folder)}",
        )


def _say_that_it_waits() -> None:
    click.echo(
        "a submission was interrupted: waiting until it is known whether its job was accepted",
        err=True,
    )


def _runs_here(campaign: Campaign) -> bool:
    """Whether the command itself runs the points, on this machine."""
    from hpc_amp.campaigns.parts import arrays_of

    return arrays_of(campaign).in_foreground


def _at_once(campaign: Campaign) -> int | None:
    """The limit for arrays. Points that run on this machine are not in arrays."""
    return None if _runs_here(campaign) else campaign.at_once


def _check_limits(campaign: Campaign, limits: Limits) -> None:
    from hpc_amp.campaigns.submit import check_bound

    check_bound(campaign, limits.max_parallel)
    if limits.max_queued is not None and campaign.submitting != "jobs":
        raise click.UsageError(
            "--max-queued only works for runs that are jobs of their own: leave it out."
        )


def _refuse_impossible(
    plan: CampaignPlan, campaign: Campaign, client: Client | None = None
) -> None:
    """Raise ConfigError if a job of the campaign can never run. Prints warnings."""
    from hpc_amp.campaigns.points import setting_in_words
    from hpc_amp.errors import ConfigError
    from hpc_amp.jobs.possible import ANSWER_SECONDS, refuse_impossible
    from hpc_amp.schedulers.base import Client

    groups = list(plan.groups)
    if campaign.submitting == "one job":  # the job has the nodes of its largest run
        groups = [max(groups, key=lambda group: group.plan.job.resources.nodes)]
    client = client or Client(ANSWER_SECONDS)
    warnings: dict[str, None] = {}
    for group in groups:
        try:
            warnings |= dict.fromkeys(refuse_impossible(group.plan, client))
        except ConfigError as error:
            point = campaign.points[group.points[0]]
            settings = setting_in_words(campaign.keys, point)
            raise ConfigError(
                f"{error.message} (point {point.index}: {settings})", hint=error.hint
            ) from None
    for warning in warnings:
        click.echo(f"note: {warning}", err=True)


def _ask(
    view: View,
    campaign: Campaign,
    wanted: Sequence[int],
    limits: Limits,
    before: Sequence[PointStatus],
    as_json: bool,
    *,
    always: bool = False,
) -> None:
    """Print the cost of the runs, and ask for confirmation if it is above the limit, or `always`.
    Raises UsageError if no terminal can answer."""
    bound = view.ask_above if limits.ask_above is None else limits.ask_above
    if bound is None:
        return
    from hpc_amp.campaigns.cost import estimate

    cost = estimate(campaign, wanted, before)
    click.echo(str(cost), err=as_json)
    if limits.yes or (cost.most <= bound and not always):
        return
    if not sys.stdin.isatty():
        from hpc_amp.errors import UsageError

        if always:
            raise UsageError(
                "without --nodes, the runs have to be confirmed, and there is no terminal to ask",
                hint="give --nodes 1,2,4, or confirm with --yes",
            )
        raise UsageError(
            f"{cost.most_in_words} are above --ask-above {bound:g}, and there is no terminal "
            "to ask",
            hint="confirm with --yes",
        )
    if not click.confirm("Submit?", err=True):
        click.echo("nothing was submitted", err=True)
        raise SystemExit(1)


def _print_plan(plan: CampaignPlan, campaign: Campaign, parts: Sequence[Part]) -> None:
    from hpc_amp.campaigns.overview import points_table
    from hpc_amp.campaigns.parts import render_part
    from hpc_amp.campaigns.tables import as_text

    click.echo("\n".join(as_text(points_table(campaign.keys, campaign.points))))
    scripts = [(part.script_name, render_part(campaign, part)) for part in parts]
    scripts += [
        (group.script, planned.launch_script())
        for group, planned in zip(campaign.groups, plan.groups, strict=True)
    ]
    for name, text in scripts:
        # As bytes, so that the encoding of the terminal does not change the script.
        click.echo(f"\n==== {campaign.folder / name}\n".encode() + text.encode(), nl=False)


def _begin(
    view: View,
    campaign: Campaign,
    parts: Sequence[Part],
    limits: Limits,
    held: ExitStack,
    *,
    as_json: bool,
    is_new: bool,
) -> None:
    """Submit the parts, or run them on this machine. `held` is the lock of the campaign; it is
    released when the points are on record and the command waits for them."""
    from hpc_amp.campaigns.overview import facts
    from hpc_amp.campaigns.submit import submit, was_taken
    from hpc_amp.campaigns.words import count
    from hpc_amp.errors import HpcAmpError
    from hpc_amp.jobs import rundir

    if _runs_here(campaign):
        _run_here(view, campaign, parts, held, as_json=as_json)
        return
    try:
        job_ids = submit(campaign, parts, max_queued=limits.max_queued)
    except KeyboardInterrupt:
        click.echo(
            f"\nstopped submitting; to submit the rest: "
            f"{to_type(view.name, 'continue', campaign.folder)}",
            err=True,
        )
        raise SystemExit(130) from None
    except HpcAmpError:
        if is_new and not was_taken(campaign):
            rundir.discard(campaign.folder)
        raise
    runs = sum(len(part.points) for part in parts)
    if _waits_for(view, campaign):
        held.close()  # other commands may cancel the runs
        _follow(view, campaign, {point for part in parts for point in part.points}, as_json)
    elif as_json:
        click.echo(json.dumps({**facts(campaign), "submitted": runs, "job_ids": job_ids}))
    else:
        shown = ", ".join(job_ids[:4]) + (", ..." if len(job_ids) > 4 else "")
        click.echo(
            f"submitted {count(runs, view.runs)} as {count(len(job_ids), 'job')} "
            f"({campaign.scheduler}): {shown}\n{view.noun} {campaign.folder}"
        )


def _waits_for(view: View, campaign: Campaign) -> bool:
    from hpc_amp.schedulers import get_scheduler

    return view.follows and get_scheduler(campaign.scheduler).one_machine


def _run_here(
    view: View, campaign: Campaign, parts: Sequence[Part], held: ExitStack, *, as_json: bool
) -> None:
    from hpc_amp.campaigns.here import CampaignInterrupted, gpus_here, run_here, slots_here
    from hpc_amp.campaigns.words import count

    slots = slots_here(campaign, gpus_here(), os.cpu_count() or 1)
    runs = sum(len(part.points) for part in parts)
    click.echo(
        f"{view.noun} {campaign.folder}: {count(runs, view.runs)}, {len(slots)} at once",
        err=as_json,
    )
    ended = 0

    def say(index: int) -> None:
        nonlocal ended
        ended += 1
        (status,) = view.statuses(campaign, index)
        click.echo(f"[{ended}/{runs}] {_told(view, campaign, status)}", err=as_json)

    again = to_type(view.name, "continue", campaign.folder)
    try:
        run_here(campaign, parts, slots, held.close, say)
    except (CampaignInterrupted, KeyboardInterrupt):
        click.echo(f"stopped; to continue: {again}", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        click.echo(f"stopped, because the output was closed; to continue: {again}", err=True)
        raise SystemExit(1) from None
    _end(view, campaign, as_json)


def _follow(view: View, campaign: Campaign, points: set[int], as_json: bool) -> None:
    """Wait until `points` have ended. Ctrl-C, SIGTERM, SIGHUP and a closed output cancel them."""
    from hpc_amp.campaigns.control import cancel
    from hpc_amp.campaigns.status import UNDER_WAY
    from hpc_amp.campaigns.words import count
    from hpc_amp.signals import interrupted_by_all

    click.echo(f"{count(len(points), view.runs)} in {campaign.folder}", err=True)
    told: set[int] = set()
    with interrupted_by_all():
        try:
            while told != points:
                for status in view.statuses(campaign):
                    if status.index in points - told and status.state not in UNDER_WAY:
                        told.add(status.index)
                        click.echo(_told(view, campaign, status), err=True)
                time.sleep(_POLL_SECONDS)
        except (KeyboardInterrupt, BrokenPipeError):
            with suppress(OSError):  # the terminal may be closed
                click.echo("\nending the current run", err=True)
            cancel(campaign, lambda: None)
            with suppress(OSError):
                click.echo(view.summary(campaign, as_json=as_json))
                again = to_type(view.name, "continue", campaign.folder)
                click.echo(f"stopped; to continue: {again}", err=True)
            raise SystemExit(130) from None
    _end(view, campaign, as_json)


def _end(view: View, campaign: Campaign, as_json: bool) -> None:
    from hpc_amp.campaigns.status import DROPPED

    click.echo(view.summary(campaign, as_json=as_json))
    if any(status.state not in (view.done, DROPPED) for status in view.statuses(campaign)):
        raise SystemExit(1)


def _told(view: View, campaign: Campaign, status: PointStatus) -> str:
    """The result of a point, in one line."""
    from hpc_amp.campaigns.words import milliseconds, one_line

    settings = " ".join(campaign.overrides_of(status.index)) or "as given"
    if campaign.repeats > 1:
        settings += f", repeat {status.point.repeat}"
    said = f"{status.state}: {one_line(status.reason)}" if status.reason else status.state
    if status.step_seconds is not None:
        said = f"{milliseconds(status.step_seconds)} ms a step"
    return f"{view.runs} {status.index} ({one_line(settings)}) {said}"
