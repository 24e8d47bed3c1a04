"""`hpc-amp completion`: the completion of a shell."""

from __future__ import annotations

import click

from hpc_amp.cli.app import app


@click.command()
@click.argument("shell_name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell_name: str) -> None:
    """Print the completion of commands, options and runs for a shell.

    \b
      eval "$(hpc-amp completion bash)"            in ~/.bashrc
      eval "$(hpc-amp completion zsh)"             in ~/.zshrc
      hpc-amp completion fish | source             in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell_name)
    assert found is not None
    click.echo(found(app, {}, "hpc-amp", "_HPC_AMP_COMPLETE").source())
