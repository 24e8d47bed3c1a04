"""`hpc-amp generate`: make images with the trained generator of a run."""

from __future__ import annotations

from pathlib import Path

import click

from hpc_amp.cli.follow import report_submission, say_remarks, wait_here
from hpc_amp.cli.options import FILE, json_option, overrides_argument, runs_dir_option


@click.command()
@click.argument("run")
@overrides_argument
@click.option(
    "--input",
    "inputs",
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="Folder of label maps or images, or one file.",
)
@click.option("--output", required=True, type=FILE, help="Folder for the images.")
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
    say_remarks(plan)
    submission = submit_plan(plan, loaded.text)
    if as_job:
        report_submission(submission, plan.run_dir, plan.scheduler.name, as_json=as_json)
    else:
        wait_here(plan, submission, as_json=as_json)
