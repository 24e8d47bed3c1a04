"""The commands of `hpc-amp`, and its help."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from hpc_amp import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The commands by the sections of the help, in the order in which one uses them. For each: the
# module in `hpc_amp.cli`, which is imported when the command is called, and what the help says of
# it (the first sentence of its own help).
SECTIONS = {
    "A job": {
        "init": ("init", "Write a job file, as a starting point."),
        "validate": ("job", "Check a job file (CONFIG) without submitting it."),
        "config": ("job", "Print all keys of a job (CONFIG) with their values."),
        "render": ("job", "Print the launch script of a job file (CONFIG)."),
        "submit": ("submit", "Submit a job (CONFIG); print its id and run directory."),
        "run": ("job", "Run a job file (CONFIG) on this machine and wait for it."),
    },
    "Runs": {
        "status": (
            "status",
            "Show the state of runs, sweeps, studies and benchmarks, the newest first.",
        ),
        "logs": ("runs", "Print the log of a run; without RUN, of the newest one."),
        "wait": (
            "runs",
            "Wait until a run, or all points of a sweep, study or benchmark, have ended.",
        ),
        "compare": ("status", "Show runs side by side: the settings that differ, and the results."),
        "explain": ("explain", "Explain why a job failed."),
        "export": ("export", "Send the curves of runs to a tracker."),
        "cancel": ("runs", "Cancel runs."),
        "resume": ("runs", "Submit a run again; it continues from its newest checkpoint."),
        "shell": ("shell", "Open a shell in the job's container on a compute node."),
        "generate": ("generate", "Make images with the trained generator of a run."),
        "rm": ("remove", "Remove runs with all their files, and symbolic links to them."),
        "prune": ("remove", "Remove old runs that have ended."),
    },
    "Many runs": {
        "sweep": ("sweep", "Run a job file with many settings, and rank the results."),
        "scale": ("scale", "Measure how a job scales with the number of nodes."),
        "bench": ("bench", "Measure the speed of a job with several settings."),
    },
    "Machines and images": {
        "doctor": ("doctor", "Check this machine, a job and its image for problems."),
        "site": ("site", "Site files: what hpc-amp knows about clusters."),
        "container": ("container", "Pull, build and inspect container images."),
    },
    "Scripts of your own": {
        "lint": ("lint", "Check launch scripts for common errors."),
        "migrate": ("migrate", "Update scripts with apex.amp, torch.cuda.amp or manual fp16."),
    },
    "This program": {
        "docs": ("docs", "Print a page of the documentation, or list all pages."),
        "completion": (
            "completion",
            "Print the completion of commands, options and runs for a shell.",
        ),
    },
}
COMMANDS = {name: known for section in SECTIONS.values() for name, known in section.items()}

ENVIRONMENT = {
    "HPC_AMP_RUNS": "The default of --runs-dir, where runs are looked for. `submit` makes them in "
    "the folder of the key runs_dir. Also HPC_AMP_SWEEPS, HPC_AMP_STUDIES and HPC_AMP_BENCHES.",
    "HPC_AMP_SITES": "A folder with site files, searched before ~/.config/hpc-amp/sites.",
}
"""The environment variables that the commands read, with their meanings."""

# What people type by the habit of other programs, and the command that does it here.
MEANT = {
    "cat": "logs RUN",
    "clean": "prune, or hpc-amp rm RUN",
    "delete": "rm RUN, or hpc-amp cancel RUN",
    "del": "rm RUN, or hpc-amp cancel RUN",
    "diff": "compare RUN RUN",
    "info": "status RUN",
    "jobs": "status",
    "kill": "cancel RUN",
    "list": "status",
    "ls": "status",
    "new": "init",
    "output": "logs RUN",
    "ps": "status",
    "queue": "status",
    "remove": "rm RUN",
    "rerun": "submit RUN, or hpc-amp resume RUN",
    "restart": "resume RUN",
    "retry": "resume RUN",
    "runs": "status",
    "scancel": "cancel RUN",
    "show": "status RUN",
    "sites": "site list",
    "squeue": "status",
    "start": "submit",
    "stop": "cancel RUN, or hpc-amp cancel --save RUN",
    "tail": "logs --follow RUN",
    "train": "run, or hpc-amp submit",
    "view": "status RUN",
    "watch": "status --watch",
}


class Commands(click.Group):
    """The group of all commands. It imports a command when it is called, and shows them in
    sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of a name. None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"hpc_amp.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError; for a word of `MEANT`, or a misspelt
        command, with the command that is meant."""
        meant = MEANT.get(args[0])
        if meant is not None:
            raise click.UsageError(f"No such command '{args[0]}'. Try: hpc-amp {meant}.", ctx)
        if args[0] not in COMMANDS:
            from hpc_amp.cli.options import refuse_misspelt

            refuse_misspelt(args[0], self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with `incomplete`. Imports no command."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section. Imports no command."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(name, text) for name, (_, text) in commands.items()]
                formatter.write_dl(rows, col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the environment variables."""
        with formatter.section("Environment variables"):
            formatter.write_dl(list(ENVIRONMENT.items()), col_max=18)


@click.group(cls=Commands, context_settings=_SETTINGS)
@click.version_option(__version__, message="hpc-amp %(version)s")
def app() -> None:
    """Run multi-node mixed-precision PyTorch jobs from one YAML file.

    `hpc-amp init` writes a job file. `hpc-amp render job.yaml` prints the launch script, and
    `hpc-amp submit job.yaml` submits it.

    CONFIG is a job file. Instead, submit, run, sweep, render, validate, config and doctor also take
    a program, or a run directory, whose job runs again. KEY=VALUE replaces one value. RUN is a run
    directory, a job id, or the name of a job (its newest run).
    """
