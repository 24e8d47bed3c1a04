"""`hpc-amp doctor`: check a machine, a job and an image before the job is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpc_amp.cli.options import json_option

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText
    from hpc_amp.finding import Finding


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--image", metavar="IMAGE", help="Check only this image.")
@click.option("--quick", is_flag=True, help="Skip the checks inside the image.")
@click.option(
    "--network",
    is_flag=True,
    help="Submit a small job that measures the network between the nodes. It uses as many nodes as "
    "CONFIG.",
)
@json_option
def doctor(
    config: Path | None,
    overrides: tuple[str, ...],
    image: str | None,
    quick: bool,
    network: bool,
    as_json: bool,
) -> None:
    """Check this machine, a job and its image for problems.

    Without CONFIG, only this machine is checked. `site=NAME` in its place checks a site file: what
    can be checked without a job. The compute nodes are checked at the start of
    every job (launch.preflight). `?` marks what cannot be checked here. The exit status is 1 if
    there is an error. docs/doctor.md lists all checks.
    """
    from hpc_amp.doctor import examine

    if config is not None and str(config).startswith("site=") and not config.exists():
        if network or image is not None:
            raise click.UsageError("site=NAME alone checks a site: leave out the other options.")
        found = examine.examine_site(str(config).removeprefix("site="), overrides)
        _report(found, as_json)
    if network:
        if config is None or image is not None:
            raise click.UsageError("--network needs CONFIG and does not work with --image.")
        _network(_job(config), overrides, as_json)
        return
    if image is not None:
        if config is not None:
            raise click.UsageError(
                "Give either CONFIG or --image; with CONFIG, the image of the job is checked too."
            )
        found = examine.examine_image(image)
    elif config is not None:
        found = examine.examine_job(_job(config), overrides, quick=quick)
    else:
        found = examine.examine_machine()
    _report(found, as_json)


def _job(config: Path) -> Path | JobText:
    """The job file `config`, or the job of a program or a run."""
    from hpc_amp.draft.program import job_or_program

    job = job_or_program(config, ())
    if not isinstance(job, Path) and job.folder not in (None, Path.cwd()):
        raise click.UsageError(f"{config} was submitted in {job.folder}: change to that folder.")
    return job


def _report(found: list[Finding], as_json: bool) -> NoReturn:
    from hpc_amp.finding import exit_status, to_text

    if as_json:
        click.echo(json.dumps([finding.to_plain() for finding in found], indent=1))
    else:
        click.echo(to_text(found))
    raise SystemExit(exit_status(found))


def _network(config: Path | JobText, overrides: tuple[str, ...], as_json: bool) -> None:
    from hpc_amp.doctor.network import measure
    from hpc_amp.finding import exit_status

    def say(text: str) -> None:
        click.echo(text, err=True)

    result = measure(config, overrides, say)
    click.echo(json.dumps(result.to_plain(), indent=1) if as_json else result.to_text())
    raise SystemExit(exit_status([result.finding]))
