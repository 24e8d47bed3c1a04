"""`hpc-amp lint`: check launch scripts."""

from __future__ import annotations

import json

import click

from hpc_amp.cli.options import json_option


@click.command()
@click.argument("scripts", nargs=-1, required=True, metavar="SCRIPT...")
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings too.")
@json_option
def lint(scripts: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Check launch scripts for common errors.

    SCRIPT is any job script, also one that hpc-amp did not write; `-` is standard input. lint reads
    the directives as the scheduler reads them. The exit status is 1 if there is an error.
    docs/lint.md explains all rules.
    """
    from hpc_amp.finding import exit_status
    from hpc_amp.lint.files import check_files, summary

    checked = check_files(scripts)
    findings = [finding for one in checked for finding in one.findings]
    if as_json:
        click.echo(json.dumps([finding.to_plain() for finding in findings], indent=1))
    else:
        click.echo("\n".join(str(one) for one in checked))
        if findings:
            click.echo(summary(checked))
    raise SystemExit(exit_status(findings, strict=strict))
