"""`apptainer exec` and `singularity exec`, whose options are the same as far as we use them.

Environment values never go through `--env` or `APPTAINERENV_*`, which evaluate them as shell: the
job sets its own environment inside (`hpc_amp.distributed.exec`), where no image can mask it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_amp.containers.base import Container

if TYPE_CHECKING:
    from hpc_amp.jobs.spec import Spec


# The programs that may run an image, by what job or site want.
BINARIES = {
    "auto": ("apptainer", "singularity"),
    "apptainer": ("apptainer",),
    "singularity": ("singularity",),
}


class ExecContainer(Container):
    """Runs the image's own software on the node's kernel, network and GPUs."""

    name = "apptainer"

    def __init__(self, binaries: tuple[str, ...]) -> None:
        self.binaries = binaries

    def options(self, plan: Spec) -> list[str]:
        """`--pwd` is always given: a working directory that is not in the image is dropped in
        silence otherwise. Mounts are explicit, one `-B` each."""
        config = plan.job.container
        gpu = config.gpu if config.gpu is not None else plan.job.job.gpus_per_node > 0
        words = ["--nv"] if gpu else []
        for bind in plan.binds:
            words += ["-B", bind]
        words += ["--pwd", str(plan.run_dir)]
        return [*words, *plan.site.container_args, *config.args]
