"""`hpc-amp shell`: an interactive container on a compute node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_amp.cli.options import runs_dir_option

if TYPE_CHECKING:
    from hpc_amp.jobs.session import Session

_COMMAND = "hpc_amp.shell.command"
_DEFAULT_CONFIG = Path("job.yaml")


class _WithCommand(click.Command):
    """Everything behind the first `--` is a command, with its own options and any words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command(cls=_WithCommand)
@click.argument("words", nargs=-1, metavar="[CONFIG|RUN] [KEY=VALUE]...")
@click.option("--here", is_flag=True, help="On this machine, without asking a scheduler.")
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the container's command line for copying, and stop.",
)
@click.option("--image", metavar="PATH", help="Short for container.image=PATH.")
@runs_dir_option
@click.pass_context
def shell(
    ctx: click.Context,
    words: tuple[str, ...],
    here: bool,
    only_print: bool,
    image: str | None,
    runs_dir: Path,
) -> None:
    """Open a shell on a compute node, in the job's container, with its environment and resources.

    \b
      hpc-amp shell                        the job of job.yaml, if there is one here
      hpc-amp shell job.yaml job.walltime=30m
      hpc-amp shell my_run -- python -m hpc_amp.train    one command, as the batch job's rank

    It asks for one node. Inside an allocation it uses that. The exit code is the shell's or the
    command's. RUN is a run directory, a run's name (its newest run) or a job id.
    """
    from hpc_amp.jobs.session import lines_to_copy, start

    command: list[str] | None = ctx.meta.get(_COMMAND)
    if command is not None and not command:
        raise click.UsageError("No command behind '--'.")
    if image is not None:
        words = (*words, f"container.image={image}")
    session = _session(words, runs_dir, command or [])
    if only_print:
        click.echo("\n".join(lines_to_copy(session, here=here, environ=os.environ)))
        return
    for remark in session.plan.remarks:
        click.echo(f"note: {remark}", err=True)
    if session.config_text is None:
        _note_if_under_way(session.plan.run_dir)
    status = start(
        session, here=here, environ=os.environ, say=lambda text: click.echo(text, err=True)
    )
    raise SystemExit(status)


def _note_if_under_way(run_dir: Path) -> None:
    from hpc_amp.jobs.status import run_statuses

    (status,) = run_statuses([run_dir])
    if status.state in ("pending", "running"):
        click.echo(
            f"note: {run_dir} is {status.state} as job {status.job_id}: a training of this shell "
            "would write to the same files",
            err=True,
        )


def _session(words: tuple[str, ...], runs_dir: Path, command: list[str]) -> Session:
    from hpc_amp.errors import UsageError
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.session import of_config, of_run

    target: str | None = None
    if words and ("=" not in words[0] or os.path.exists(words[0])):
        target, words = words[0], words[1:]
    for word in words:
        if "=" not in word:
            raise UsageError(f"{word!r} is not a KEY=VALUE", hint="put a command behind `--`")
    if target is None:
        config = _DEFAULT_CONFIG if _DEFAULT_CONFIG.is_file() else None
        return of_config(config, words, command)
    if os.path.isfile(target) or target.endswith((".yaml", ".yml")):
        return of_config(Path(target), words, command)
    return of_run(rundir.find_run(target, runs_dir), words, command)
