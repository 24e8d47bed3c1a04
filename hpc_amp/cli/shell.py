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
    """Takes all words after the first `--` as a command, including its options."""

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
@click.option("--here", is_flag=True, help="Use this machine, without a scheduler.")
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the command lines instead of running them.",
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
    """Open a shell in the job's container on a compute node.

    \b
      hpc-amp shell                              use job.yaml, if it exists
      hpc-amp shell job.yaml job.walltime=30m    change a value of the job file
      hpc-amp shell my_run -- nvidia-smi         run one command, like a rank of the batch job

    The shell has the environment and the resources of the job. It requests one node, or uses the
    allocation that it is started in. The exit status is that of the shell or the command. RUN is a
    run directory, a job id, or the name of a job (its newest run).
    """
    from hpc_amp.jobs.session import lines_to_copy, start

    command: list[str] | None = ctx.meta.get(_COMMAND)
    if command is not None and not command:
        raise click.UsageError("There is no command after '--'.")
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
            f"note: {run_dir} is {status.state} as job {status.job_id}: training in this shell "
            "would write to the same files",
            err=True,
        )


def _session(words: tuple[str, ...], runs_dir: Path, command: list[str]) -> Session:
    from hpc_amp.errors import UsageError
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.places import follow_latest
    from hpc_amp.jobs.session import of_config, of_run

    target: str | None = None
    if words and ("=" not in words[0] or os.path.exists(words[0])):
        target, words = words[0], words[1:]
    for word in words:
        if "=" not in word:
            raise UsageError(
                f"{word!r} does not have the form KEY=VALUE", hint="put a command after `--`"
            )
    if target is None:
        config = _DEFAULT_CONFIG if _DEFAULT_CONFIG.is_file() else None
        return of_config(config, words, command)
    path = follow_latest(Path(target))
    if os.path.isfile(path) or target.endswith((".yaml", ".yml")):
        return of_config(path, words, command)
    return of_run(rundir.find_run(target, runs_dir), words, command)
