"""`hpc-amp doctor`: what would go wrong, before it does."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpc_amp.cli.options import json_option


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--image", metavar="IMAGE", help="Look into this image, whatever the job.")
@click.option("--quick", is_flag=True, help="Leave out the look into the image.")
@click.option(
    "--network",
    is_flag=True,
    help="Submit a small job on the nodes of CONFIG that measures the network between them.",
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
    """Look for what would keep a job from running: on this machine, in the job file, in its image.

    Without CONFIG it looks at this machine alone. The nodes are looked at in the first seconds of
    every job (launch.preflight). Exits with 1 if there is an error; what cannot be checked here is
    marked with `?`. docs/doctor.md has all checks.
    """
    from hpc_amp.doctor import examine
    from hpc_amp.finding import has_error, to_text

    if network:
        if config is None or image is not None:
            raise click.UsageError("--network needs a CONFIG, and nothing else.")
        _network(config, overrides, as_json)
        return
    if image is not None:
        if config is not None:
            raise click.UsageError(
                "Give either CONFIG or --image; CONFIG's image is looked at too."
            )
        found = examine.examine_image(image)
    elif config is not None:
        found = examine.examine_job(config, overrides, quick=quick)
    else:
        found = examine.examine_machine()
    if as_json:
        click.echo(json.dumps([finding.to_plain() for finding in found], indent=1))
    else:
        click.echo(to_text(found))
    if has_error(found):
        raise SystemExit(1)


def _network(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    from hpc_amp.doctor.network import measure

    def say(text: str) -> None:
        click.echo(text, err=True)

    result = measure(config, overrides, say)
    click.echo(json.dumps(result.to_plain(), indent=1) if as_json else result.to_text())
    if result.finding.status == "error":
        raise SystemExit(1)
