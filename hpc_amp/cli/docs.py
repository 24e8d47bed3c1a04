"""`hpc-amp docs`: the documentation, also without a network."""

from __future__ import annotations

import re
from pathlib import Path

import click


def complete_pages(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of pages that begin with `incomplete`, for the shell's completion."""
    return [name for name in _pages() if name.startswith(incomplete)]


@click.command()
@click.argument("page", required=False, shell_complete=complete_pages)
@click.option(
    "--html",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write all pages as HTML into this new folder. They need no network.",
)
def docs(page: str | None, folder: Path | None) -> None:
    """Print a page of the documentation, or list all pages.

    \b
      hpc-amp docs                   list the pages
      hpc-amp docs sweeps            print a page
      hpc-amp docs submit            print the options of a command
      hpc-amp docs --html manual     all pages for a browser

    The HTML is made by mkdocs: pip install 'hpc-amp[docs]'. A browser shows the files as they are;
    the search in them needs a server, such as python -m http.server -d manual.
    """
    from hpc_amp.config.suggest import nearest
    from hpc_amp.errors import UsageError

    if folder is not None:
        if page is not None:
            raise UsageError("--html writes all pages: leave out the name of a page")
        _write_html(folder)
        click.echo(f"wrote {folder / 'index.html'}")
        return
    pages = _pages()
    if page is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            click.echo(f"{name:<{width}}  {_title(path)}")
        return
    page = page.removesuffix(".md").removeprefix("docs/")
    if page in pages:
        text = pages[page].read_text()
    else:
        commands = _commands(pages["commands"])
        near = nearest(page, [*pages, *commands])
        if page not in commands:
            raise UsageError(
                f"there is no page {page!r}",
                hint=f"did you mean {near}?" if near else "hpc-amp docs lists all pages",
            )
        text = commands[page]
    click.echo_via_pager(text.rstrip())


def _pages() -> dict[str, Path]:
    """The pages by name; the index is first."""
    from hpc_amp.resources import resource_folder

    found = {path.stem: path for path in sorted(resource_folder("docs").glob("*.md"))}
    return {"index": found.pop("index"), **found}


def _title(path: Path) -> str:
    with path.open() as lines:
        return next(lines, "").lstrip("# ").rstrip()


def _commands(page: Path) -> dict[str, str]:
    """The sections of the page about all commands, by the name of the command."""
    parts = re.split(r"^(?=####? )", page.read_text(), flags=re.MULTILINE)
    return {part.split("\n", 1)[0].lstrip("# "): part for part in parts[1:]}


def _write_html(folder: Path) -> None:
    """Make the HTML in `folder`, which must not exist. Raises UsageError, also without mkdocs."""
    import logging

    from hpc_amp.errors import UsageError
    from hpc_amp.resources import resource_folder

    try:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException
    except ImportError as error:
        raise UsageError(
            f"the HTML needs mkdocs ({error})", hint="pip install 'hpc-amp[docs]'"
        ) from None
    if folder.exists():
        raise UsageError(f"{folder} already exists", hint="choose another name")
    pages = resource_folder("docs")
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    try:
        settings = load_config(
            str(pages.parent / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(folder.absolute())
        )
        build(settings)
    except (MkDocsException, OSError) as error:
        raise UsageError(f"the HTML cannot be made: {error}") from None
