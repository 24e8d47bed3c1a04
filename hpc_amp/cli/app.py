"""The commands of `hpc-amp`."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_amp import __version__
from hpc_amp.cli.job_options import JobCommand, takes_job
from hpc_amp.cli.options import (
    SectionGroup,
    complete_runs,
    json_option,
    no_check_option,
    runs_dir_option,
)

if TYPE_CHECKING:
    from hpc_amp.config.load import JobText
    from hpc_amp.jobs.plan import Plan
    from hpc_amp.jobs.status import RunStatus
    from hpc_amp.schedulers import Submission

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
run_id_option = click.option(
    "--run-id", metavar="ID", help="Use this run id, for example 20261127-223455-kqzf."
)


# The commands of other modules, which are imported when they are called: their places, and what
# the help says of them (the first sentence of their own).
_ELSEWHERE = {
    "bench": ("hpc_amp.cli.bench:bench", "Measure the speed of a job with several settings."),
    "compare": (
        "hpc_amp.cli.status:compare",
        "Show runs side by side: the settings that differ, and the results.",
    ),
    "container": ("hpc_amp.cli.container:container", "Pull, build and inspect container images."),
    "docs": ("hpc_amp.cli.docs:docs", "Print a page of the documentation, or list all pages."),
    "doctor": (
        "hpc_amp.cli.doctor:doctor",
        "Check this machine, a job and its image for problems.",
    ),
    "explain": ("hpc_amp.cli.explain:explain", "Explain why a job failed."),
    "export": ("hpc_amp.cli.export:export", "Send the curves of runs to a tracker."),
    "migrate": (
        "hpc_amp.cli.migrate:migrate",
        "Update scripts with apex.amp, torch.cuda.amp or manual fp16.",
    ),
    "prune": ("hpc_amp.cli.remove:prune", "Remove old runs that have ended."),
    "rm": (
        "hpc_amp.cli.remove:rm",
        "Remove runs with all their files, and symbolic links to them.",
    ),
    "scale": ("hpc_amp.cli.scale:scale", "Measure how a job scales with the number of nodes."),
    "shell": ("hpc_amp.cli.shell:shell", "Open a shell in the job's container on a compute node."),
    "site": ("hpc_amp.cli.site:site", "Site files: what hpc-amp knows about clusters."),
    "status": (
        "hpc_amp.cli.status:status",
        "Show the state of runs, sweeps, studies and benchmarks, the newest first.",
    ),
    "sweep": (
        "hpc_amp.cli.sweep:sweep",
        "Run a job file with many settings, and rank the results.",
    ),
}


@click.group(cls=SectionGroup, elsewhere=_ELSEWHERE, context_settings=_SETTINGS)
@click.version_option(__version__, message="hpc-amp %(version)s")
def app() -> None:
    """Run multi-node mixed-precision PyTorch jobs from one YAML file.

    `hpc-amp init` writes a job file. `hpc-amp render job.yaml` prints the launch script, and
    `hpc-amp submit job.yaml` submits it.

    CONFIG is a job file. submit, run, sweep, render, validate, config and doctor also take a
    program, or a run directory, whose job runs again. KEY=VALUE replaces one value. RUN is a run
    directory, a job id, or the name of a job (its newest run).
    """


@app.command()
@click.argument("source", metavar="[FILE]", type=click.Path(path_type=Path), required=False)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
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
    click.echo(f"wrote {path}; next: hpc-amp validate {path}")


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


@app.command()
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


@app.command(cls=JobCommand)
@functools.partial(takes_job, anywhere=False)
@json_option
def validate(config: Path | JobText, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a job file (CONFIG) without submitting it."""
    from hpc_amp.config.checks import find_data
    from hpc_amp.errors import ConfigError
    from hpc_amp.jobs.image_check import check_image
    from hpc_amp.jobs.possible import ANSWER_SECONDS
    from hpc_amp.jobs.render import render
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.schedulers.base import Client

    plan, loaded = prepare(config, overrides)
    render(plan)
    _say_remarks(plan)
    data = list(find_data(plan.job.train))
    for found in data:
        if not found.usable and plan.scheduler.one_machine:
            raise loaded.error(found.key, found.text)
        if not found.usable:
            click.echo(f"note: on this machine, {found.key}: {found.text}", err=True)
    for finding in check_image(plan, Client(ANSWER_SECONDS)):
        if finding.severity == "error":
            raise ConfigError(finding.what, hint=finding.fix)
        click.echo(f"note: {finding.what}: {finding.why}", err=True)
    facts = {
        "config": str(config),
        "name": plan.job.name,
        "site": plan.site.name,
        "scheduler": plan.scheduler.name,
        "launcher": plan.launcher.name,
        "container": plan.job.container.image if plan.container.uses_image else None,
        "nodes": plan.job.resources.nodes,
        "world_size": plan.job.world_size,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    where = f"site {facts['site']}, {facts['scheduler']}, {facts['launcher']}"
    container = f"container {facts['container']}" if facts["container"] else "no container"
    click.echo(
        f"{config} is valid: {facts['name']}, {facts['world_size']} rank(s) on {facts['nodes']} "
        f"node(s), {where}, {container}"
    )
    for found in data:
        if found.usable:
            click.echo(f"{found.key}: {found.text}")


@app.command(cls=JobCommand)
@functools.partial(takes_job, anywhere=False)
@click.option("--origin", is_flag=True, help="Show where each value is from.")
def config(config: Path | JobText, overrides: tuple[str, ...], origin: bool) -> None:
    """Print all keys of a job (CONFIG) with their values.

    They are from the job file, the overrides, the site's file and the defaults. The output is a job
    file of the same job.
    """
    from hpc_amp.config.sites import load_for_site
    from hpc_amp.config.write import job_text

    loaded, _ = load_for_site(config, overrides)
    click.echo(job_text(loaded, origins=origin), nl=False)


@app.command()
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


@app.command(cls=JobCommand)
@takes_job
@click.option(
    "--create", is_flag=True, help="Create the run directory, so that you can submit the script."
)
@run_id_option
def render(
    config: Path | JobText, overrides: tuple[str, ...], create: bool, run_id: str | None
) -> None:
    """Print the launch script of a job file (CONFIG).

    \b
      hpc-amp render job.yaml
      hpc-amp render job.yaml --create > job.sh      then: sbatch job.sh

    The script needs its run directory, which `submit` and --create make.
    """
    if not create:
        _print_script(config, overrides, run_id)
        if not sys.stdout.isatty():
            click.echo(
                "note: to submit this script yourself, add --create: it needs its run directory",
                err=True,
            )
        return
    from hpc_amp.jobs.submit import create as create_run
    from hpc_amp.jobs.submit import prepare

    plan, loaded = prepare(config, overrides, run_id=run_id)
    _say_remarks(plan)
    script = create_run(plan, loaded.text)
    click.echo(f"run directory {plan.run_dir}", err=True)
    click.echo(script.encode(), nl=False)


def _print_script(config: Path | JobText, overrides: tuple[str, ...], run_id: str | None) -> None:
    from hpc_amp.jobs.render import render as render_plan
    from hpc_amp.jobs.submit import prepare

    plan, _ = prepare(config, overrides, run_id=run_id)
    # As bytes: the output is the script byte for byte, whatever the terminal's encoding.
    click.echo(render_plan(plan).encode(), nl=False)


@app.command(cls=JobCommand)
@takes_job
@click.option("--dry-run", is_flag=True, help="Print the launch script and submit nothing.")
@click.option("--follow", is_flag=True, help="Print the log until the run ends, then a summary.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the job file to FILE too.",
)
@no_check_option
@json_option
@run_id_option
def submit(
    config: Path | JobText,
    overrides: tuple[str, ...],
    dry_run: bool,
    follow: bool,
    save: Path | None,
    no_check: bool,
    as_json: bool,
    run_id: str | None,
) -> None:
    """Submit a job (CONFIG); print its id and run directory.

    \b
      hpc-amp submit job.yaml job.nodes=4 train.optimizer.lr=0.2
      hpc-amp submit train.py -N 2 --gpus 4 --image pytorch.sif -t 1h -- --lr 0.1
      hpc-amp submit runs/cifar/latest train.seed=2

    The last one runs a run's job again, as a new run with the same settings and the same code.
    KEY=VALUE replaces a value of the job file. Words after -- are arguments of the program.
    """
    if dry_run:
        _print_script(config, overrides, run_id)
        _save_job(save, config, overrides)
        return
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.jobs.submit import submit as submit_plan

    plan, loaded = prepare(config, overrides, run_id=run_id)
    _say_remarks(plan)
    if not no_check:
        _refuse_impossible(plan)
    _save_job(save, config, overrides)
    submit_plan(
        plan,
        loaded.text,
        tell=lambda submission: _report_submission(
            submission, plan.run_dir, plan.scheduler.name, as_json=as_json
        ),
    )
    if follow:
        _follow_until_interrupted(plan.run_dir, as_json=as_json)


def _save_job(path: Path | None, config: Path | JobText, overrides: tuple[str, ...]) -> None:
    """Write a job that was found to be valid as a job file, if that is wanted."""
    if path is None:
        return
    from hpc_amp.config.load import read_job
    from hpc_amp.config.write import tree_text
    from hpc_amp.errors import UsageError

    if not isinstance(config, Path) and config.folder not in (None, Path.cwd()):
        raise UsageError(f"the paths in {config} start in {config.folder}: change to that folder")
    write_new(path, tree_text(read_job(config, overrides).tree))


def _refuse_impossible(plan: Plan) -> None:
    """Raise ConfigError for a job that can never run. Prints warnings."""
    from hpc_amp.jobs.possible import ANSWER_SECONDS, refuse_impossible
    from hpc_amp.schedulers.base import Client

    for warning in refuse_impossible(plan, Client(ANSWER_SECONDS)):
        click.echo(f"note: {warning}", err=True)


def _say_remarks(plan: Plan) -> None:
    for remark in plan.remarks:
        click.echo(f"note: {remark}", err=True)


def _report_submission(
    submission: Submission, run_dir: Path, scheduler: str, *, as_json: bool
) -> None:
    if submission.remarks:
        click.echo(submission.remarks, err=True)
    if as_json:
        facts = {"job_id": submission.job_id, "run_dir": str(run_dir), "scheduler": scheduler}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"submitted job {submission.job_id} ({scheduler})\nrun directory {run_dir}")


@app.command(cls=JobCommand)
@takes_job
def run(config: Path | JobText, overrides: tuple[str, ...]) -> None:
    """Run a job file (CONFIG) on this machine and wait for it.

    Ctrl-C, SIGTERM and a closed terminal save a checkpoint and stop the job. After `nohup`, a
    closed terminal does not.
    """
    from hpc_amp.config.sites import HERE
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.jobs.submit import submit as submit_plan

    plan, loaded = prepare(config, overrides, site=HERE)
    _say_remarks(plan)
    submission = submit_plan(plan, loaded.text)
    _report_submission(submission, plan.run_dir, plan.scheduler.name, as_json=False)
    _wait_here(plan)


def _wait_here(plan: Plan, *, as_json: bool = False) -> None:
    """Show a job of this machine until it ends. Ctrl-C, SIGTERM, SIGHUP and a closed output stop
    it."""
    from hpc_amp.jobs.control import cancel as cancel_run
    from hpc_amp.signals import interrupted_by_all

    with interrupted_by_all():
        try:
            _follow(plan.run_dir, as_json=as_json)
        except (KeyboardInterrupt, BrokenPipeError):
            where = "" if plan.job.train is None else " at a checkpoint"
            with contextlib.suppress(OSError):  # the terminal may be closed
                click.echo(
                    f"\nstopping{where}; press Ctrl-C again to return without waiting for it",
                    err=as_json,
                )
            cancel_run(plan.run_dir)
            try:
                _follow(plan.run_dir, as_json=as_json, from_end=True)
            except OSError:
                raise SystemExit(1) from None


@app.command()
@click.argument("run")
@overrides_argument
@click.option(
    "--input",
    "inputs",
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Folder of label maps or images, or one file.",
)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="Folder for the images."
)
@click.option(
    "--checkpoint",
    default="newest",
    show_default=True,
    metavar="WHICH",
    help="newest, best (by the metric of the task), or a step.",
)
@click.option(
    "--weights",
    type=click.Choice(["auto", "average", "networks"]),
    default="auto",
    show_default=True,
    help="The moving average of the weights, or the weights themselves. auto: the average if "
    "the run has one.",
)
@click.option(
    "--style",
    type=click.Path(path_type=Path, exists=True),
    help="Image whose style the outputs get, or a folder of images of one class.",
)
@click.option(
    "--instances",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of instance maps, with the names of the label maps.",
)
@click.option(
    "--points",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of the points that the label maps show, with their names and the ending .npy.",
)
@click.option(
    "--direction",
    type=click.Choice(["a2b", "b2a"]),
    help="Translate from domain A to B, or from B to A.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of what is drawn, such as styles."
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Images that a rank makes at once.",
)
@click.option(
    "--fps",
    type=click.IntRange(min=1),
    help="Models of video: also write the frames of each folder as video.mp4 beside them, with so "
    "many frames a second. Needs PyAV.",
)
@click.option(
    "--finetune",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Few-shot vid2vid: first train a copy of the generator for so many steps, such as 100, on "
    "the references of each sequence.",
)
@click.option("--submit", "as_job", is_flag=True, help="Submit a job instead of running it here.")
@runs_dir_option
@json_option
def generate(
    run: str,
    overrides: tuple[str, ...],
    inputs: Path,
    output: Path,
    checkpoint: str,
    weights: str,
    style: Path | None,
    instances: Path | None,
    points: Path | None,
    direction: str | None,
    seed: int,
    batch_size: int,
    fps: int | None,
    finetune: int | None,
    as_job: bool,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Make images with the trained generator of a run.

    \b
      hpc-amp generate spade --input maps --output images
      hpc-amp generate munit --input cats --output dogs --direction a2b --style dog.png
      hpc-amp generate funit --input cats --output foxes --style fox_photos --submit

    Each image in the input folder, and in the folders in it, becomes a PNG file of the same name.
    Existing files are replaced. The job has the container of the run and the resources of one of
    its nodes. KEY=VALUE sets keys of the job file, such as job.nodes=2 or job.walltime=10m. Equal
    seeds give equal images, for every number of ranks. See docs/gan-generate.md.
    """
    from hpc_amp.config.sites import HERE
    from hpc_amp.errors import UsageError
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.generation import check_request, write_job_file
    from hpc_amp.jobs.submit import prepare
    from hpc_amp.jobs.submit import submit as submit_plan

    options: dict[str, Path | str | None] = {
        "input": inputs.resolve(),
        "output": output.resolve(),
        "checkpoint": checkpoint,
        "weights": weights,
        "style": style and style.resolve(),
        "instances": instances and instances.resolve(),
        "points": points and points.resolve(),
        "direction": direction,
        "seed": str(seed),
        "batch-size": str(batch_size),
        "fps": None if fps is None else str(fps),
        "finetune": None if finetune is None else str(finetune),
    }
    run_dir = rundir.find_run(run, runs_dir)
    check_request(run_dir, options)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be created: {error.strerror}") from None
    job_file = write_job_file(run_dir, options)
    plan, loaded = prepare(job_file, overrides, site=None if as_job else HERE)
    _say_remarks(plan)
    submission = submit_plan(plan, loaded.text)
    _report_submission(submission, plan.run_dir, plan.scheduler.name, as_json=as_json)
    if not as_job:
        _wait_here(plan, as_json=as_json)


def _follow(run_dir: Path, *, as_json: bool, from_end: bool = False) -> None:
    """Print the log until the run ends, then a summary; exit with 1 unless the run finished."""
    from hpc_amp.jobs.follow import follow as follow_run
    from hpc_amp.jobs.summary import describe, read_summary

    log = run_dir / "logs" / "job.log"
    offset = log.stat().st_size if from_end and log.exists() else 0
    out = sys.stderr if as_json else sys.stdout

    def write(text: str) -> None:
        out.write(text)
        out.flush()

    status = follow_run(run_dir, write, offset=offset, on_wait=_say_why_it_waits)
    if as_json:
        click.echo(json.dumps({**status.to_plain(), "summary": read_summary(run_dir)}))
    else:
        click.echo("\n" + describe(status))
    if status.state != "finished":
        raise SystemExit(1)


def _follow_until_interrupted(run_dir: Path, *, as_json: bool, from_end: bool = False) -> None:
    """Like `_follow`, but Ctrl-C only ends this command; the run continues."""
    try:
        _follow(run_dir, as_json=as_json, from_end=from_end)
    except KeyboardInterrupt:
        click.echo(
            f"\nthe run continues. To print its log: hpc-amp logs -f {run_dir}   "
            f"To end it: hpc-amp cancel {run_dir}",
            err=True,
        )
        raise SystemExit(130) from None


def _say_why_it_waits(text: str) -> None:
    click.echo(text, err=True)


@app.command()
@click.argument("target", metavar="[RUN]", required=False, shell_complete=complete_runs)
@runs_dir_option
@json_option
def wait(target: str | None, runs_dir: Path, as_json: bool) -> None:
    """Wait until a run, or all points of a sweep, study or benchmark, have ended.

    Without RUN, wait for the newest run. The exit status is 0 if all have finished, else 1. Ctrl-C
    ends this command; the runs continue.
    """
    from hpc_amp.campaigns.found import find
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.follow import follow as follow_run

    folder, is_campaign = (
        (rundir.newest_run(runs_dir), False) if target is None else find(target, runs_dir)
    )
    if target is None:
        click.echo(f"run {folder}", err=True)
    try:
        if is_campaign:
            _wait_for_campaign(folder, as_json)
            return
        rundir.refuse_elsewhere(folder)
        status = follow_run(folder, lambda text: None, on_wait=_say_why_it_waits)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    reason = f" ({status.reason})" if status.reason else ""
    plain = f"{status.name}: {status.state}{reason}"
    click.echo(json.dumps(status.to_plain()) if as_json else plain)
    if status.state != "finished":
        raise SystemExit(1)


def _wait_for_campaign(folder: Path, as_json: bool) -> None:
    """Wait until no point of a campaign is under way; exit with 1 unless all are done."""
    import time

    from hpc_amp.campaigns.folder import read_campaign, refuse_elsewhere
    from hpc_amp.campaigns.overview import in_words, status_to_plain
    from hpc_amp.campaigns.status import UNDER_WAY
    from hpc_amp.campaigns.views import view_of
    from hpc_amp.schedulers import get_scheduler

    campaign = read_campaign(folder)
    refuse_elsewhere(campaign)
    view, scheduler = view_of(campaign.view), get_scheduler(campaign.scheduler)
    while True:
        statuses = view.statuses(campaign)
        if not any(status.state in UNDER_WAY for status in statuses):
            break
        time.sleep(1.0 if scheduler.one_machine else scheduler.ask_seconds)
    if as_json:
        click.echo(json.dumps(status_to_plain(campaign, statuses, view.labels(campaign))))
    else:
        click.echo(f"{campaign.name}: {in_words(statuses, view.runs)}")
    if any(status.state != view.done for status in statuses):
        raise SystemExit(1)


@app.command()
@click.argument("target", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Print new lines until the run ends."
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines."
)
@runs_dir_option
def logs(target: str | None, following: bool, lines: int | None, runs_dir: Path) -> None:
    """Print the log of a run; without RUN, of the newest one."""
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.follow import follow as follow_run

    if target is None:
        run_dir = rundir.newest_run(runs_dir)
        click.echo(f"log of {run_dir}", err=True)
    else:
        run_dir = rundir.find_run(target, runs_dir)
    if following:
        rundir.refuse_elsewhere(run_dir)
    log = run_dir / "logs" / "job.log"
    data = log.read_bytes() if log.exists() else b""
    text = data.decode(errors="replace")
    if lines is not None:
        text = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    click.echo(text, nl=False)
    if not following:
        if not data:
            click.echo(f"the job has written nothing yet ({log})", err=True)
        return

    def write(piece: str) -> None:
        click.echo(piece, nl=False)
        sys.stdout.flush()

    try:
        follow_run(run_dir, write, offset=len(data), on_wait=_say_why_it_waits)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _say_that_ranks_save() -> None:
    from hpc_amp.jobs.control import SAVE_SECONDS

    click.echo(
        f"asked the ranks to save a checkpoint; the job is cancelled when they have saved, at the "
        f"latest in {SAVE_SECONDS} s (Ctrl-C cancels it now)",
        err=True,
    )


@app.command()
@click.argument("targets", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--save", is_flag=True, help="Wait until the ranks have saved a checkpoint and stopped."
)
@runs_dir_option
@json_option
def cancel(targets: tuple[str, ...], save: bool, runs_dir: Path, as_json: bool) -> None:
    """Cancel runs.

    The ranks save a checkpoint if the scheduler gives them enough time between its signal and the
    kill. With --save they have as much time as they need. `hpc-amp resume` continues the run.
    """
    from hpc_amp.jobs import rundir

    facts: list[dict[str, Any]] = []
    for target in targets:
        run_dir = rundir.find_run(target, runs_dir)
        before, text = _save(run_dir) if save else _cancel(run_dir)
        facts.append({"run_dir": str(run_dir), "job_id": before.job_id, "state": before.state})
        if not as_json:
            click.echo(text)
    if as_json:
        click.echo(json.dumps(facts, indent=1))


def _cancel(run_dir: Path) -> tuple[RunStatus, str]:
    """End a run; return its previous status and a line for the user."""
    from hpc_amp.jobs.attempts import Orphan
    from hpc_amp.jobs.control import cancel as cancel_run
    from hpc_amp.jobs.events import read_events

    events = read_events(run_dir)
    asked_before = bool(events) and events[-1]["state"] == "cancelled"
    found: list[Orphan] = []
    before = cancel_run(run_dir, on_wait=_say_that_ranks_save, on_orphan=found.append)
    for orphan in found:
        by_hand = f"ssh {orphan.host} kill {orphan.pid}"
        return before, (
            f"asked {run_dir} to stop: {orphan}. If it does not stop (your own program may ignore "
            f"the stop file): {by_hand}"
        )
    if before.state not in ("pending", "running", "unknown"):
        return before, f"{run_dir} has already ended ({before.state})"
    if asked_before:
        return before, (
            f"job {before.job_id} of {run_dir} was cancelled before, and has not ended; asked the "
            "scheduler again"
        )
    return before, f"cancelled job {before.job_id} of {run_dir}"


def _save(run_dir: Path) -> tuple[RunStatus, str]:
    """Let a run save a checkpoint and stop; return its previous status and a line for the user."""
    from hpc_amp.jobs.control import save_and_stop

    def say_that_it_was_asked(status: RunStatus) -> None:
        click.echo(
            f"asked job {status.job_id} to save and stop; it will not restart by itself (Ctrl-C "
            "returns without waiting)",
            err=True,
        )

    try:
        stopped = save_and_stop(run_dir, on_wait=say_that_it_was_asked)
    except KeyboardInterrupt:
        click.echo(f"not waiting any more; see hpc-amp status {run_dir}", err=True)
        raise SystemExit(130) from None
    before, after = stopped.before, stopped.after
    if stopped.how == "ended before":
        return before, f"{run_dir} has already ended ({before.state})"
    if stopped.how == "cancelled":
        saved = "its checkpoints are kept" if before.attempt else "there was nothing to save"
        return before, f"cancelled job {before.job_id} of {run_dir}, which was not running: {saved}"
    if stopped.how == "asked":
        return before, (
            f"{run_dir} runs your own program: it stops when it sees the file attempts/"
            f"{before.attempt}/stop, or at its time limit, and does not restart after that"
        )
    step = f" at step {after.step}" if after.step is not None else ""
    return before, f"{run_dir} is {after.state}{step}: {after.reason}"


def _without_secret(override: str) -> str:
    """The override for a log: without its value if that may contain a password."""
    key = override.partition("=")[0]
    may_be_secret = key == "container" or key.startswith("container.env")
    return f"{key}=..." if may_be_secret else override


@app.command()
@click.argument("target", metavar="RUN", shell_complete=complete_runs)
@overrides_argument
@click.option("--follow", is_flag=True, help="Print the log until the run ends, then a summary.")
@click.option(
    "--here", is_flag=True, help="Continue a run that was copied or moved, in its present folder."
)
@runs_dir_option
@json_option
def resume(
    target: str,
    overrides: tuple[str, ...],
    follow: bool,
    here: bool,
    runs_dir: Path,
    as_json: bool,
) -> None:
    """Submit a run again; it continues from its newest checkpoint.

    KEY=VALUE changes a value of its job: train.epochs=20 job.walltime=4h. A finished run continues
    if the change gives it more steps. docs/reliability.md lists the keys that cannot change.
    """
    from hpc_amp.jobs import rundir
    from hpc_amp.jobs.resume import Resumed
    from hpc_amp.jobs.resume import resume as resume_run

    run_dir = rundir.find_run(target, runs_dir)
    log = run_dir / "logs" / "job.log"
    words = [*(["--here"] if here else []), target, *map(_without_secret, overrides)]
    command = shlex.join(["hpc-amp", "resume", *words])

    def tell(resumed: Resumed) -> None:
        for remark in resumed.remarks:
            click.echo(f"note: {remark}", err=True)
        for one in resumed.changed:
            click.echo(f"changed: {one}", err=True)
        _report_submission(resumed.submission, run_dir, resumed.scheduler, as_json=as_json)

    resume_run(run_dir, overrides, command, tell, here=here)
    if follow:
        _follow_until_interrupted(run_dir, as_json=as_json, from_end=log.exists())
