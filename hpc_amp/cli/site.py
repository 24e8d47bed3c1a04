"""`hpc-amp site`: draft, list and show site files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpc_amp.cli.options import json_option, runs_dir_option
from hpc_amp.errors import to_type


@click.group()
def site() -> None:
    """Site files: what hpc-amp knows about clusters.

    \b
      hpc-amp site draft                 write a site file for this cluster
      hpc-amp doctor site=NAME           check one
      hpc-amp site list                  the known ones
    """


@site.command()
@click.argument("name", required=False)
@click.option("--queue", "-q", metavar="QUEUE", help="The partition or queue to describe.")
@click.option(
    "--on-node",
    is_flag=True,
    help="Submit a small job too, which looks at a node: GPUs and driver, devices, network "
    "interfaces, container runtimes, local disks.",
)
@click.option("--account", "-A", metavar="ACCOUNT", help="The account for that job, and for all.")
@click.option("--scheduler", metavar="NAME", help="The scheduler. Default: the configured one.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write to FILE; - prints. Default: ~/.config/hpc-amp/sites/NAME.yaml.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@runs_dir_option
def draft(
    name: str | None,
    queue: str | None,
    on_node: bool,
    account: str | None,
    scheduler: str | None,
    output: Path | None,
    force: bool,
    runs_dir: Path,
) -> None:
    """Write a site file for this cluster, from what its commands report.

    Comments in the file say where each value was read. Lines that begin with `#?` are questions
    that only a node or you can answer. NAME is the site's name; default: the cluster's.
    """
    from hpc_amp.clients import Clients
    from hpc_amp.draft import site as drafts

    given = None if name is None else drafts.checked_name(name)
    to_file = output is None or str(output) != "-"
    known = output if output is not None else drafts.place_of(given, None) if given else None
    if to_file and known is not None and not force:
        drafts.refuse_existing(known)  # before the commands are asked
    clients = Clients()
    found = drafts.read_cluster(clients, scheduler, queue)
    if account is not None:
        found.add("defaults.job.account", account, "given with --account")
    given = given or drafts.name_of_cluster(found)
    path = drafts.place_of(given, output)
    if to_file and not force:
        drafts.refuse_existing(path)
    made = drafts.finish(found, given)
    if on_node:
        from hpc_amp.draft.node import look

        look(found, made.text, given, runs_dir, lambda text: click.echo(text, err=True))
        made = drafts.finish(found, given)
    if not to_file:
        click.echo(made.text, nl=False)
        return
    drafts.write(path, made.text, force=force)
    click.echo(f"wrote {path}")
    click.echo(f"{made.questions} line(s) of it begin with #? and are for you to decide")
    hiding = drafts.hides(given, path)
    if output is None and hiding is not None:
        click.echo(f"note: site={given} is {hiding}, which is found first", err=True)
    reference = given if output is None and hiding is None else str(path)
    click.echo(f"next: {to_type('doctor', f'site={reference}')}")


@site.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """List the known sites, and which one `site: auto` is on this machine."""
    from hpc_amp.config.sites import KnownSite, known_sites

    found = known_sites()
    if as_json:
        click.echo(json.dumps([one.to_plain() for one in found], indent=1))
        return
    width = max((len(one.name) for one in found), default=0)
    kinds = max((len(one.scheduler) for one in found), default=0)
    folder = None

    def line(one: KnownSite) -> str:
        mark = "*" if one.is_here else " "
        return f"{mark} {one.name:<{width}}  {one.scheduler:<{kinds}}  {one.text}".rstrip()

    for one in found:
        if one.folder != folder:
            folder = one.folder
            click.echo(f"{folder}:" if folder else "without a file:")
        click.echo(line(one))
    if any(one.is_here for one in found):
        click.echo("* site: auto on this machine")


@site.command()
@click.argument("name", default="auto")
@json_option
def show(name: str, as_json: bool) -> None:
    """Print the file of a site. NAME is its name or path; default: the site of this machine.

    With --json: all keys with their values, and the path of the file.
    """
    from hpc_amp.config.schema import to_plain
    from hpc_amp.config.sites import find_site, path_of
    from hpc_amp.config.tree import plain as plain_tree

    found = find_site(name)
    path = path_of(found, name)
    if as_json:
        plain = to_plain(found)
        plain["defaults"] = plain_tree(found.defaults)
        plain.pop("expanded")
        click.echo(json.dumps({"path": None if path is None else str(path), **plain}, indent=1))
    elif path is None:
        click.echo(f"# {found.name} has no file: all keys have their defaults")
        click.echo(f"scheduler: {found.scheduler}")
    else:
        click.echo(f"# {path}")
        click.echo(path.read_text(), nl=False)
