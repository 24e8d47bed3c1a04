"""`hpc-amp init`: write a job file."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_amp.cli.options import FILE
from hpc_amp.errors import to_type


@click.command()
@click.argument("source", metavar="[FILE]", type=FILE, required=False)
@click.option(
    "--output",
    "-o",
    type=FILE,
    help="Name of the job file. Without it: job.yaml, or the name of the program.",
)
def init(source: Path | None, output: Path | None) -> None:
    """Write a job file, as a starting point.

    \b
      hpc-amp init                 a job file with comments
      hpc-amp init train.py        for your own program
      hpc-amp init old.sbatch      from a script for Slurm, PBS, Cobalt or Grid Engine

    From a script come its directives, its set-up, its container and its program. Comments say what
    could not be taken over, and what `hpc-amp lint` found in the script.
    """
    from hpc_amp.draft.program import draft_from_program, is_job_script, name_of
    from hpc_amp.draft.script import draft_from_script
    from hpc_amp.errors import UsageError
    from hpc_amp.resources import resource_folder

    if source is None or source.suffix in (".yaml", ".yml"):
        if source is not None and output is not None:
            raise UsageError("give either a job file or --output")
        path = output or source or Path("job.yaml")
        text = (resource_folder("configs") / "starter.yaml").read_text()
    else:
        path = output or Path(f"{name_of(source)}.yaml")
        if not source.is_file():
            raise UsageError(f"there is no file {source}")
        drafts = draft_from_script if is_job_script(source) else draft_from_program
        text = drafts(source)
    write_new(path, text)
    click.echo(f"wrote {path}; next: {to_type('validate', path)}")


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises UsageError."""
    from hpc_amp.errors import UsageError

    content = text.encode()
    try:
        out = path.open("xb")
    except FileExistsError:
        raise UsageError(f"{path} already exists", hint="choose another file name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with out:
            out.write(content)
    except OSError as error:  # a full disk: nothing is left that looks like a job file
        path.unlink()
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
