"""Rules about Apptainer and Singularity under a launcher."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.job import LaunchLine, LintedJob


def check_containers(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    for launch in job.launches:
        _containers(job, launch, report)


_RUNTIME = r"(?:apptainer|singularity)"


def _containers(job: LintedJob, launch: LaunchLine, report: FileFindings) -> None:
    """Check one launch that starts Apptainer or Singularity."""
    text = launch.text
    if not re.search(rf"{_RUNTIME}\S*\s+(?:-\S+\s+)*(?:exec|run)\b|\bexec\b|\brun\b", text):
        return
    many = job.starts_many(launch)
    image = re.search(rf"{_RUNTIME}.*?\b((?:docker|oras|library|shub)://\S*)", text, re.DOTALL)
    if image is not None and many:
        report.add(
            "image-per-rank",
            launch.line,
            f"every rank pulls and converts {shown(image[1])}, all at the same time",
            "pull it once, before the job: apptainer pull image.sif URI",
        )
    if re.search(rf"{_RUNTIME}\S*\s+(?:exec|run)\b", text):
        for word in launch.command.program:
            inside = re.search(
                r"\$\(\s*scontrol\b|`\s*scontrol\b|(?:^|[;&|]\s*)scontrol\b", word.text
            )
            if inside and "scontrol" not in word.live and " " in word.text:
                report.add(
                    "scontrol-in-container",
                    word.line,
                    "scontrol is called in the container, where it does not exist",
                    "call it in the batch script, and pass the result in MASTER_ADDR",
                )
    cut = [flag for flag in _runtime_flags(launch) if flag in _CUTTING]
    if cut and many:
        _cut_off(job, launch, cut[0], report)


_CUTTING = {"--cleanenv", "-e", "--containall", "-C"}
_WITH_VALUE = {
    *("-B", "--bind", "--env", "--env-file", "--pwd", "--cwd", "-W", "--workdir", "-H", "--home"),
    *("-o", "--overlay", "-S", "--scratch", "--mount", "--network", "--hostname", "--app"),
}


def _runtime_flags(launch: LaunchLine) -> list[str]:
    """The options between `apptainer exec` and the image."""
    argv = launch.argv
    start = next(
        (
            index + 2
            for index in range(len(argv) - 1)
            if re.search(rf"{_RUNTIME}$", argv[index]) and argv[index + 1] in ("exec", "run")
        ),
        len(argv),
    )
    flags: list[str] = []
    while start < len(argv) and argv[start].startswith("-"):
        flags.append(argv[start])
        start += 2 if argv[start] in _WITH_VALUE else 1
    return flags


def _cut_off(job: LintedJob, launch: LaunchLine, flag: str, report: FileFindings) -> None:
    if not job.is_distributed or launch.agent is not None:
        return
    everything = job.body + launch.text
    if re.search(r"(?:APPTAINERENV|SINGULARITYENV)_\w*(?:RANK|PROCID|SLURM)", everything):
        return
    if re.search(r"--env(?:-file)?[=\s]+\S*(?:RANK|PROCID|\S+\.env|\S*file)", launch.text):
        return
    report.add(
        "ranks-cut-off",
        launch.line,
        f"{flag} removes SLURM_*, OMPI_* and PMI_*: every process becomes rank 0 of 1",
        "remove the option, or pass the variables with --env",
    )
