"""Rules about the resources of each rank: GPUs and cores, and how many ranks are started."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings
from hpc_amp.lint.job import LaunchLine, LintedJob, option_in
from hpc_amp.schedulers.grammar import number


def check_resources(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    if job.is_batch and job.is_distributed:
        _gpus_per_task(job, report)
        _cpus_per_task(job, report)
        _ranks_and_gpus(job, report)
    for launch in job.launches:
        _torchrun_per_rank(job, launch, report)


def _several_on_a_node(job: LintedJob, launch: LaunchLine) -> bool:
    per_node = job.tasks_per_node_of(launch)
    if per_node is not None:
        return per_node > 1
    tasks = number(launch.options.get("ntasks")) or job.ntasks
    return tasks is not None and tasks > (job.nodes or 1)


def _gpus_per_task(job: LintedJob, report: FileFindings) -> None:
    """Check for --gpus-per-task: each task only sees one GPU, so NCCL cannot copy peer-to-peer."""
    options = job.options.get("slurm")
    header = options.all("gpus-per-task")[-1:] if options else []
    bound = [options.last(name) for name in ("gpu-bind", "tres-bind")] if options else []
    launches = [one for one in job.launches if one.kind == "srun"]
    for launch in launches:
        bound += [launch.options.get("gpu-bind"), launch.options.get("tres-bind")]
        if "--gpu-bind=" in launch.text or "$" in "".join(launch.argv[1:2]):
            bound += re.findall(r"--gpu-bind=(\S+)", launch.text)
    if any(re.search(r"none|closest|map_gpu|mask_gpu", one) for one in bound if one):
        return
    message = (
        "with --gpus-per-task, each task only sees its own GPU: NCCL cannot copy directly between "
        "the GPUs of a node, and cuda:LOCAL_RANK does not exist"
    )
    fix = "use --gpus-per-node=N with --ntasks-per-node=N, or add --gpu-bind=none"
    for launch in launches:
        own = launch.options.get("gpus-per-task")
        if own and own != "0" and _several_on_a_node(job, launch):
            report.add("gpus-per-task", launch.line, message, fix)
            return
    if header and header[0].value != "0":
        many = any(_several_on_a_node(job, launch) for launch in launches)
        if not launches:
            many = (job.tasks_per_node or job.ntasks or 1) > 1
        if many:
            report.add("gpus-per-task", header[0].line, message, fix)


def _cpus_per_task(job: LintedJob, report: FileFindings) -> None:
    """Check that the script requests cores: by default each task gets one."""
    if "slurm" not in job.options or not job.asks_for_gpus:
        return
    options = job.options["slurm"]
    given = options.all("cpus-per-task") or options.all("cpus-per-gpu")
    whole = options.all("exclusive") or options.all("cores-per-socket")
    launches = [one for one in job.launches if one.kind == "srun"]
    exported = {name for command in job.commands for name, _ in command.assignments}
    if "SRUN_CPUS_PER_TASK" in exported or "SLURM_CPUS_PER_TASK" in exported:
        return
    for launch in launches:
        if _says_cpus(launch):
            return
    if not given and not whole:
        line = next(iter(_multi_rank_lines(job, launches)), None)
        if line is not None:
            report.add(
                "missing-cpus-per-task",
                line,
                "the script requests no CPUs: each task gets one core for its rank and all its "
                "data loaders",
                "add #SBATCH --cpus-per-task=N, and --cpus-per-task=N to srun",
            )
        return
    count = number(options.last("cpus-per-task"))
    if count is None or count < 2:
        return
    for launch in launches:
        restated = {"ntasks", "ntasks-per-node"} & set(launch.options)
        small = not job.starts_many(launch) or launch.payload[:1] == ["hostname"]
        if restated and not small and _is_training(launch):
            report.add(
                "missing-cpus-per-task",
                launch.line,
                "with Slurm 22.05 to 23.02, srun ignores --cpus-per-task of the header: each task "
                "gets one core",
                'add --cpus-per-task="$SLURM_CPUS_PER_TASK" to srun',
            )
            return


def _says_cpus(launch: LaunchLine) -> bool:
    names = ("cpus-per-task", "cpu-bind", "exclusive", "cpus-per-gpu", "cores-per-socket", "hint")
    if any(name in launch.options for name in names):
        return True
    return re.search(r"\$\{?\w*(?:ARGS|OPT|FLAGS|SRUN)", launch.text, re.IGNORECASE) is not None


def _is_training(launch: LaunchLine) -> bool:
    if re.search(r"\bray start\b", launch.text):
        return False
    return re.search(r"python|torchrun|accelerate|deepspeed", launch.text) is not None


_AGENT_ALONE = re.compile(
    r"(?:\S*/)?(?:torchrun|python\S* -m torch\.distributed\.(?:run|launch))\s"
)


def _multi_rank_lines(job: LintedJob, launches: list[LaunchLine]) -> list[int]:
    """The lines that start several ranks on a node."""
    found = [
        launch.line
        for launch in launches
        if _is_training(launch)
        and (_several_on_a_node(job, launch) or _agent_ranks(job, launch.text) not in (None, 1))
    ]
    for command in job.commands:
        text = " ".join(job.argv(command.program))
        if _AGENT_ALONE.match(text) and _agent_ranks(job, text) not in (None, 1):
            found.append(command.line)
    return found


def _agent_ranks(job: LintedJob, text: str) -> int | None:
    """The number of ranks that torchrun starts (--nproc_per_node); 2 means several."""
    value = option_in(text, "nproc-per-node")
    if value is None:
        return None
    if value in ("gpu", "auto"):
        return job.gpus_per_node or 2
    if number(value) is not None:
        return number(value)
    if re.search(r"SLURM_GPUS(?:_ON_NODE|_PER_NODE)?\b", value):
        return job.gpus_per_node
    return None


# Shows that each task is a rank, not one process for a whole node.
_RANK_OF_ITS_OWN = re.compile(r"SLURM_(?:PROCID|LOCALID)\b|WORLD_SIZE=\S*SLURM_N")
_NODE_RANK = re.compile(
    r"(?:node|machine|group)[-_]?rank[=\s]+[\"']?\\?\$\{?SLURM_PROCID\}?", re.IGNORECASE
)
# Shows that a task starts the processes for the GPUs of its node: a server, or a program with an
# option for their number.
_STARTS_PROCESSES = re.compile(
    r"launch|\bserve|sglang|vllm|trtllm|tensorrt_llm|\bray\b|spawn|multiprocessing|torchrun"
    r"|--?(?:n?proc|num[-_]?(?:proc|gpu|worker)|n?gpus?|gpus[-_]per|tp|tensor[-_]parallel|devices)",
    re.IGNORECASE,
)


def _is_rank(launch: LaunchLine) -> bool:
    """Whether the tasks of srun seem to be ranks that train and start no other processes."""
    if launch.agent or not re.search(r"python", launch.text):
        return False
    # Not for short checks, such as python -c 'import torch; ...'.
    if re.search(r"python[\d.]*\s+(?:-\w+\s+)*(?:-c\b|-V\b|--version)", launch.text):
        return False
    return _STARTS_PROCESSES.search(launch.text) is None


def _ranks_and_gpus(job: LintedJob, report: FileFindings) -> None:
    """Check that there is one task for each GPU, if each task is a rank."""
    gpus = job.gpus_per_node
    if not gpus or "slurm" not in job.options:
        return
    by_rank = _RANK_OF_ITS_OWN.search(_NODE_RANK.sub("", job.body)) is not None
    for launch in job.launches:
        if launch.kind != "srun" or not _is_rank(launch):
            continue
        per_node = job.tasks_per_node_of(launch)
        if per_node is None or per_node == gpus or not job.starts_many(launch):
            continue
        if launch.options.get("gpus-per-task") or launch.options.get("gres"):
            continue
        if per_node > gpus:
            message = f"{per_node} tasks on each node share {gpus} GPU(s)"
        elif by_rank:
            message = f"{per_node} task(s) on each node with {gpus} GPUs: the other GPUs are idle"
        else:
            continue
        fix = f"request one task for each GPU: --ntasks-per-node={gpus}"
        report.add("ranks-and-gpus", launch.line, message, fix)
        return


def _torchrun_per_rank(job: LintedJob, launch: LaunchLine, report: FileFindings) -> None:
    """Check for several torchruns on a node. One is enough, because it starts all ranks there."""
    if launch.agent is None:
        return
    per_node = job.tasks_per_node_of(launch)
    ranks = _agent_ranks(job, launch.text)
    if launch.agent.startswith("accelerate"):
        ranks = None
    if per_node is None or per_node < 2 or ranks is None or ranks < 2:
        return
    report.add(
        "torchrun-per-rank",
        launch.line,
        f"each of {per_node} tasks on a node starts {launch.agent} with {ranks} ranks: there are "
        f"{per_node * ranks} ranks on a node",
        "start one torchrun on each node: --ntasks-per-node=1",
    )
