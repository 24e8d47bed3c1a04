"""What a command is given as its job: a job file or a program, and changes of its keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpc_amp.cli.options import FILE

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText

F = TypeVar("F", bound=Callable[..., Any])
_ARGUMENTS, _OVERRIDES = "hpc_amp.arguments", "hpc_amp.overrides"


class JobCommand(click.Command):
    """A command whose line may end in `-- ARGUMENT...`, the arguments of a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments of the program away from click."""
        ctx.meta[_ARGUMENTS] = []
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_ARGUMENTS] = args[:at], args[at + 1 :]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from difflib import get_close_matches  # only for the error

            known = [name for option in self.get_params(ctx) for name in option.opts]
            near = get_close_matches(error.option_name, known, n=1, cutoff=0.75)
            hint = "Arguments of a program follow after --."
            if near:
                hint = f"Did you mean '{near[0]}'?"
            raise click.UsageError(f"No such option '{error.option_name}'. {hint}", ctx) from None


def _sets(key: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """The callback of an option that is a short form of `key`."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_OVERRIDES, []).append(f"{key}={value}")

    return callback


_SHORT_FORMS = (
    (("-N", "--nodes"), "N", "job.nodes"),
    (("--gpus",), "N", "job.gpus_per_node"),
    (("-t", "--time"), "TIME", "job.walltime"),
    (("-q", "--queue"), "QUEUE", "job.queue"),
    (("-A", "--account"), "ACCOUNT", "job.account"),
    (("--image",), "FILE", "container.image"),
    (("--name",), "NAME", "name"),
)


def takes_job(
    command: F,
    *,
    varies: bool = False,
    anywhere: bool = True,
    named_by: Sequence[str] = (),
    without: Sequence[str] = (),
) -> F:
    """Give a command the arguments CONFIG and KEY=VALUE, and short forms of the usual keys. The
    command, a `JobCommand`, gets `config`, a path or a `JobText`, and `overrides`, a tuple.

    `varies`: arguments of a program may have several values, `--lr=0.1,0.2`. `anywhere`: the job of
    a run may be given in another folder than that of its submission, because the command changes
    to it (`hpc_amp.jobs.submit.prepare`). `named_by`: parameters of the command that name an
    argument of the program, which becomes a value of the job. `without`: keys without a short form.
    """

    @functools.wraps(command)
    def with_job(config: Path, overrides: tuple[str, ...], **others: Any) -> Any:
        from hpc_amp.draft.program import job_or_program, varied, with_value

        meta = click.get_current_context().meta
        arguments, several = varied(meta[_ARGUMENTS]) if varies else (meta[_ARGUMENTS], [])
        for name in filter(None, (others[parameter] for parameter in named_by)):
            arguments, value = with_value(arguments, name)
            several = [*several, *value]
        job: Path | JobText = job_or_program(config, arguments)
        if not anywhere and not isinstance(job, Path) and job.folder not in (None, Path.cwd()):
            raise click.UsageError(
                f"{config} was submitted in {job.folder}: change to that folder."
            )
        # A key that is written out counts more than a short form.
        given = (*meta.get(_OVERRIDES, ()), *overrides, *several)
        return command(config=job, overrides=given, **others)

    for names, metavar, key in reversed(_SHORT_FORMS):
        if key in without:
            continue
        with_job = click.option(
            *names, metavar=metavar, help=f"Short for {key}={metavar}.", callback=_sets(key),
            expose_value=False,
        )(with_job)  # fmt: skip
    values = "VALUE[,VALUE]..." if varies else "VALUE"
    follows = f"[KEY={values}]... [-- ARGUMENT...]"
    with_job = click.argument("overrides", nargs=-1, metavar=follows)(with_job)
    return click.argument("config", type=FILE)(with_job)  # type: ignore[return-value]
