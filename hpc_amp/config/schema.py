"""Every key of a job file, with its type, its default and its meaning.

These dataclasses are the only thing that the submit side and the job side share. The submit side
validates YAML into them (`config.load`); the job side reads the resolved `job.json` back into the
same classes (`from_plain`). Standard library only.

The string under a field is its documentation: `docs/config.md` is generated from it. A class with a
`SHORTHAND` may be written as a bare value: `precision: fp16` means `precision: {mode: fp16}`.
An `Annotated` type carries a check (see `config.values`).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from hpc_amp.config.values import (
    Binds,
    Count,
    Duration,
    Fixed,
    Fraction,
    Interval,
    Natural,
    NonNegative,
    Path,
    Positive,
    Registered,
    Size,
    StepInterval,
    Word,
    Words,
    at_least,
    averaging,
    environment_names,
    no_nul,
    rank_numbers,
    run_name,
    step_range,
)

SCHEMA_VERSION = 1

# Why `resume` cannot change a key.
_FOLDER = Fixed("the run's folder and its job are named by it")
TaskName = Annotated[Word, Fixed("the checkpoints are those of this task")]
_SAMPLES = Fixed("the run has learned from these samples, in an order that follows from them")


@dataclass(kw_only=True, slots=True, frozen=True)
class Resources:
    """What is asked of the scheduler."""

    nodes: Count = 1
    """Nodes of the allocation."""
    gpus_per_node: Natural = 1
    """GPUs on each node. 0 asks for none: the ranks then compute on CPUs."""
    ranks_per_node: Count | None = None
    """Training processes on each node. Default: one a GPU, or one where `gpus_per_node` is 0."""
    cpus_per_gpu: Count = 1
    """CPU cores for each rank: data loading, compression and the threads of CPU kernels."""
    memory: Size | None = None
    """Memory of each node, such as `64GiB`. Default: the scheduler's."""
    walltime: Duration = "01:00:00"
    """Time limit of one attempt. A job that needs longer goes on in the next attempt."""
    queue: Word | None = None
    """Partition or queue. Default: the site's."""
    account: Word | None = None
    """Account or project that pays. Default: the scheduler's."""
    directives: Words = field(default_factory=list)
    """More directives, each as the scheduler reads it after its marker: `--qos=premium`."""
    skip_directives: Words = field(default_factory=list)
    """Generated directives to leave out, by option: `--gpus-per-node`."""
    setup: str = ""
    """Shell lines that run on the first node before the launch: `module load apptainer`. They are
    shell on purpose and reach the script as they are. They run as in a script of their own: a line
    that fails is named in the log and ends nothing, unless you say `set -e`."""
    stop_margin: Duration = "2m"
    """How long before the time limit the run saves a checkpoint and stops."""
    grace: Duration | None = None
    """Time between the scheduler's SIGTERM and its SIGKILL, in which a run that is preempted or
    cancelled has to save. Default: what Slurm says (KillWait); PBS 10s, Cobalt 300s, local 30s."""
    max_restarts: Natural = 10
    """How often a run that stopped at a checkpoint may go on by itself in a new attempt."""
    chain: Natural = 0
    """PBS, Cobalt and Grid Engine, where a run goes on in another job: jobs to submit beforehand,
    each waiting for the one before, where a compute node cannot submit the next one itself. 0: it
    submits it itself."""


@dataclass(kw_only=True, slots=True, frozen=True)
class ContainerOptions:
    """The image that the job runs in."""

    SHORTHAND: ClassVar[str] = "image"

    runtime: Annotated[str, Registered("hpc_amp.containers:CONTAINERS")] = "auto"
    """`auto`: none without an image, else Apptainer or Singularity, whichever is installed on the
    nodes. What another runtime needs is in [containers](containers.md#runtimes)."""
    image: Path | None = None
    """The image: for Apptainer the path of a `.sif` file or a sandbox folder, on a file system that
    every node sees. Not a URI: pull it once, then name the file. Default: no container."""
    bind: Binds = field(default_factory=list)
    """Host paths to see inside, as `path`, `source:destination` or `source:destination:ro`. The
    run directory, the working directory and the data are bound by themselves."""
    env: Annotated[dict[str, str], environment_names] = field(default_factory=dict)
    """Environment of the training process, with a container or without. Any text may stand in a
    value: it never passes through a shell. What hpc-amp sets itself is refused: `RANK`,
    `WORLD_SIZE`, `MASTER_ADDR` and the like, and names that begin with `HPC_AMP_`."""
    args: Words = field(default_factory=list)
    """More options for the runtime, such as Apptainer's `--rocm`."""
    gpu: bool | None = None
    """Give the image NVIDIA's driver (Apptainer: `--nv`). Default: where the job has GPUs."""
    python: Path | None = None
    """Python interpreter of the job. Default: `python3` in a container, the one that runs
    `hpc-amp` without."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Launch:
    """How the ranks are started on the nodes."""

    SHORTHAND: ClassVar[str] = "method"

    method: Annotated[str, Registered("hpc_amp.launchers:LAUNCHERS", ("auto",))] = "auto"
    """`srun`: one task a rank (Slurm). `mpirun`: Open MPI's. `mpiexec`: MPICH's (hydra) or Cray's
    (PALS). `torchrun`: one agent a node. `single`: one process. `auto`: the site's, else `srun` on
    Slurm; elsewhere `single` for one rank, `torchrun` on one node, `mpirun` on several."""
    mpi: Literal["none", "hybrid", "bind"] = "none"
    """Whether the program itself uses MPI. `hybrid`: the image's own MPI under the launcher of the
    host. `bind`: the host's MPI, mounted into the image (`host_mpi` of the site). Both are tried
    before the start: a program that would see a world of one is stopped with an explanation.
    `none`: the launcher only starts processes; torch needs no MPI in the image."""
    fabric: Word = "auto"
    """Settings of the network between nodes: a [fabric profile](sites.md), `none`, or `auto`: the
    site's."""
    args: Words = field(default_factory=list)
    """More options for the launcher."""
    forward_signals: bool | None = None
    """Pass SIGUSR1 and SIGUSR2 on to the ranks. Default: to built-in tasks, which save and stop; a
    program of your own that does not handle them would be killed."""
    timeout: Duration = "10m"
    """How long ranks wait for each other, at the start and in every collective operation. A rank of
    a built-in task that makes no step for so long is taken for hung: all ranks show what they are
    doing, and the attempt has failed."""
    preflight: bool = True
    """Look at every node in the first seconds of the job, before any rank starts: mounts, space,
    GPUs, network. An error ends the job there and says why. See [doctor](doctor.md)."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Restarts:
    """What happens after a failure."""

    SHORTHAND: ClassVar[str] = "on_failure"

    on_failure: Natural = 0
    """How often a run that failed is started again from its newest checkpoint."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Augment:
    """Random changes of the training images, drawn per (seed, epoch, sample)."""

    crop: Natural = 4
    """Small images: padding in pixels around the image before a crop of its size; 0 for none.
    Large images: any value but 0 means a random resized crop."""
    flip: bool = True
    """Mirror half of the images."""
    cutout: Natural = 0
    """Side in pixels of a square that is blanked; 0 for none. Small images only."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Synthetic:
    """The synthetic data set: deterministic, and learnable well above chance."""

    train: Count = 4096
    """Training images."""
    test: Count = 1024
    """Test images."""
    classes: Annotated[int, at_least(2)] = 10
    """Classes, all of equal size to within one image."""
    image_size: Annotated[int, at_least(8)] = 32
    """Side of the square images in pixels."""
    channels: Literal[1, 3] = 3
    """Colour channels."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Data:
    """The images that are trained on."""

    SHORTHAND: ClassVar[str] = "name"

    name: Annotated[
        Literal["cifar10", "cifar100", "fashion_mnist", "mnist", "imagefolder", "synthetic"],
        _SAMPLES,
    ] = "cifar10"
    """`imagefolder` reads `root/train/<class>/*` and `root/test/<class>/*` (or `val`). Of 16 bits
    the upper 8 count; images of 32 bits or floating-point numbers, whose range is not known, are
    refused."""
    root: Path = "data"
    """Folder of the files, relative to where `submit` was called."""
    if_missing: Literal["error", "synthetic"] = "error"
    """What to do when the files are absent and cannot be downloaded. `synthetic` trains on
    synthetic images instead, and every report then says SYNTHETIC."""
    download: bool = True
    """Let rank 0 download what is missing."""
    in_memory: bool | None = None
    """Keep the images as uint8 in memory and augment whole batches on the device. Default: where
    they are small (all of one size up to 64 pixels)."""
    image_size: Annotated[Count | None, _SAMPLES] = None
    """Side in pixels to which `imagefolder` images are brought. Default: as they are when small,
    else 224."""
    workers: Natural | None = None
    """Loader processes of each rank for data that is not in memory; 0 decodes in the rank itself.
    Default: the rank's cores less one, at most 8."""
    augment: Augment = field(default_factory=Augment)
    """Random changes of the training images."""
    synthetic: Annotated[Synthetic, _SAMPLES] = field(default_factory=Synthetic)
    """Size of the synthetic set, where it is used."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Optimizer:
    """How weights are updated."""

    SHORTHAND: ClassVar[str] = "name"

    name: Annotated[
        Literal["sgd", "adam", "adamw"],
        Fixed("the checkpoints hold the state of this optimizer, which another cannot use"),
    ] = "sgd"
    """`sgd` has momentum; `adamw` decouples the weight decay, `adam` adds it to the gradient."""
    lr: NonNegative = 0.1
    """Peak learning rate."""
    momentum: Fraction = 0.9
    """SGD's momentum."""
    nesterov: bool = True
    """Nesterov's form of the momentum."""
    betas: Annotated[tuple[float, float], averaging] = (0.9, 0.999)
    """Adam's averaging coefficients."""
    eps: NonNegative = 1e-8
    """Adam's term for numerical stability. Precision `O3` needs a larger one, such as 1e-4."""
    weight_decay: NonNegative = 5e-4
    """Weight decay."""
    decay_norm_and_bias: Annotated[
        bool, Fixed("the checkpoints hold the state of the optimizer in these groups of weights")
    ] = True
    """Apply the weight decay to biases and normalisation weights too."""
    fused: bool | None = None
    """One kernel for the whole update. Default: on GPUs where torch has it."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Schedule:
    """The learning rate over the run, as a function of the step."""

    SHORTHAND: ClassVar[str] = "name"

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    """`cosine` and `linear` fall to `final`; `step` multiplies by `gamma` at each milestone."""
    warmup: Fraction = 0.05
    """Part of the run in which the rate rises linearly from near zero."""
    decay_after: StepInterval | None = None
    """`cosine` and `linear`: how long the rate stays at its peak, counted from the beginning of the
    run, such as `100epochs` or `5000steps`. Default: until the warm-up is over."""
    final: Fraction = 0.0
    """`cosine` and `linear`: the last rate as a part of the peak rate."""
    milestones: list[float] = field(default_factory=lambda: [0.5, 0.75])
    """`step`: where the rate falls, as parts of the run."""
    gamma: Fraction = 0.1
    """`step`: the factor at each milestone."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Precision:
    """Number formats of the training and the loss scaler."""

    SHORTHAND: ClassVar[str] = "mode"

    mode: Annotated[
        Literal["fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"],
        Fixed(
            "O2 and O3 train weights in half precision, all others in fp32",
            free=("fp32", "tf32", "bf16", "fp16", "O0", "O1"),
        ),
    ] = "fp32"
    """`tf32`: fp32 with TF32 matrix products. `bf16`, `fp16`: autocast; weights stay fp32, and
    `fp16` scales the loss. `O0` to `O3`: the [levels of apex.amp](apex.md): fp32; autocast with
    apex's rules; fp16 weights with fp32 master weights; fp16 throughout."""
    init_scale: Annotated[
        float, at_least(1), Fixed("the loss scale goes on from where it was; static_scale sets it")
    ] = 65536.0
    """fp16: first loss scale."""
    growth_interval: Count = 2000
    """fp16: clean steps before the scale doubles."""
    min_scale: Positive = 1.0
    """fp16: floor of the scale. Overflows at the floor stop the run with an explanation."""
    max_scale: Positive = 16777216.0
    """fp16: cap of the scale."""
    static_scale: Positive | None = None
    """fp16: a fixed scale instead of a dynamic one. Overflows are still skipped."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Checkpointing:
    """When the state of the run is saved and how many checkpoints stay."""

    SHORTHAND: ClassVar[str] = "every"

    every: Interval = "5m"
    """Interval: `5m`, `200steps` or `1epoch`. The end of the run and every early stop save too."""
    keep: Annotated[int, at_least(2)] = 3
    """Newest checkpoints that stay. At least 2: the last one may be damaged."""
    keep_best: Natural = 1
    """Checkpoints with the best results that stay besides. The task names the metric: the highest
    `accuracy` of a classification, the lowest `frechet_small` of a `dcgan`. An evaluation better
    than all before is saved at once. 0: none."""
    keep_every: StepInterval | None = None
    """Interval in steps or epochs (`10epochs`) of checkpoints that stay for good."""
    background: bool = True
    """Write while the training goes on: rank 0 keeps a copy of the state in memory. `false` saves
    the memory and lets the training wait."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Timing:
    """Measurement of single steps: each rank writes `attempts/N/timing/rank-*.json`. Set by
    `hpc-amp bench` and `hpc-amp scale`."""

    SHORTHAND: ClassVar[str] = "steps"

    warmup: Natural = 20
    """Steps of an attempt before the first one that is measured."""
    steps: Count = 100
    """Steps that are measured."""
    seconds: Positive | None = None
    """Measure for about so long instead of so many `steps`, and end the training then."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Profile:
    """A recording of some steps: `attempts/N/profile` gets a trace of torch's profiler for each
    chosen rank, and where the time of a step goes. See [profiling](profiling.md)."""

    steps: Annotated[tuple[int, int], step_range] = (20, 25)
    """First and last step that is recorded."""
    ranks: Annotated[list[int], rank_numbers] = field(default_factory=lambda: [0])
    """Ranks that record."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Train:
    """The keys that every task has. A task has further ones of its own: the fields of a dataclass
    that extends this one (see `hpc_amp.tasks.registry`)."""

    UNUSED: ClassVar[tuple[str, ...]] = ()
    """Keys of this class that a task does not use. Its job file may not set them."""

    task: TaskName = "classification"
    """What is trained: `classification`, `dcgan`, a task that another package adds, or
    `package.module:Class` of [a task of your own](extending-task.md) in `code`."""
    data: Data = field(default_factory=Data)
    """The data set."""
    epochs: Count = 10
    """Passes over the training data."""
    max_steps: Count | None = None
    """End after so many steps, whichever comes first."""
    batch_size: Annotated[
        Count, Fixed("steps, and with them the place in the data, are counted in batches")
    ] = 128
    """Global batch size, over all ranks and accumulated parts. It must divide by
    world size x `accumulate`."""
    eval_batch_size: Count | None = None
    """Batch size of a rank in evaluation. Default: the rank's training batch, at least 256."""
    accumulate: Count = 1
    """Parts in which a rank works through its share of a batch before one update."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """How weights are updated."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the run."""
    precision: Precision = field(default_factory=Precision)
    """Number formats and the loss scaler."""
    channels_last: bool = True
    """Keep images and weights in channels-last order, which mixed-precision kernels prefer."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient, taken over all parameters after unscaling."""
    ema: Fraction | None = None
    """Decay of an exponential moving average of the weights, such as 0.999; it is what is
    evaluated then. With precision `O2` it is an average of the fp32 masters; with `O2` and `O3` it
    is evaluated in fp32. Default: none."""
    sync_batchnorm: bool = False
    """Share batch statistics among all ranks."""
    evaluate_every: Natural = 1
    """Epochs between two evaluations. The end of the run evaluates in any case. 0: never, not even
    there."""
    log_every: Count = 20
    """Steps between two lines of the log and two points of the curves."""
    trackers: Words = field(default_factory=lambda: ["tensorboard"])
    """Where the curves go besides `metrics.jsonl`: `tensorboard`, and the names of trackers that
    other packages add. Each has to be installed in the image of the job too."""
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    """When the state of the run is saved."""
    timing: Timing | None = None
    """Measure single steps. Default: no."""
    profile: Profile | None = None
    """Record some steps. Default: none."""
    seed: Annotated[Natural, Fixed("the order of the samples follows from it")] = 0
    """Seed of everything random."""
    deterministic: bool = False
    """Use only deterministic kernels, for runs that repeat bit by bit on GPUs too. CPU runs always
    do."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto`: CUDA; CPUs, with a warning, only where the node has no NVIDIA device at all."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Job:
    """A job file."""

    name: Annotated[str, run_name, _FOLDER]
    """Name of the job, of its folder below `runs_dir`, and for the scheduler."""
    site: Path = "auto"
    """A name from `configs/sites`, the path of a site file, or `auto`: the one that fits this
    machine."""
    runs_dir: Annotated[Path, _FOLDER] = "runs"
    """Folder of all runs, relative to where `submit` was called."""
    code: Annotated[
        Path | None, Fixed("the run has a copy, `code` in its folder, which may be edited")
    ] = None
    """Folder of your own code. It is copied into the run directory and is the working directory of
    `run`; a task of your own is imported from it. Later edits do not reach the job. `.git`,
    `.venv`, `venv`, `node_modules`, `runs` and `__pycache__` stay behind."""
    resources: Resources = field(default_factory=Resources, metadata={"key": "job"})
    """What is asked of the scheduler."""
    container: ContainerOptions = field(default_factory=ContainerOptions)
    """The image that the job runs in."""
    launch: Launch = field(default_factory=Launch)
    """How the ranks are started."""
    restarts: Restarts = field(default_factory=Restarts)
    """What happens after a failure."""
    train: Train | None = None
    """Training of a task. Either this or `run`."""
    run: Annotated[list[str], no_nul] | None = None
    """Your own command, as a list of words; each rank runs it with the standard torch.distributed
    variables. A first word `python` means the job's interpreter. [Not a
    launcher](config.md#launchers) such as `torchrun`, unless the job has one rank."""

    @property
    def ranks_per_node(self) -> int:
        """Training processes on each node."""
        return self.resources.ranks_per_node or max(1, self.resources.gpus_per_node)

    @property
    def cpus_per_node(self) -> int:
        """CPU cores of all ranks of a node."""
        return self.ranks_per_node * self.resources.cpus_per_gpu

    @property
    def world_size(self) -> int:
        """Training processes of the whole job."""
        return self.resources.nodes * self.ranks_per_node


def job_class(train: type) -> type[Job]:
    """A job file's keys where the section `train` has those of a task: a `Job` to read with. The
    job itself is a `Job` (see `as_job`)."""
    if train is Train:
        return Job
    return _job_class(train)


@functools.cache
def _job_class(train: Any) -> type[Job]:
    made = dataclasses.make_dataclass(
        "Job", [("train", train | None, None)], bases=(Job,), kw_only=True, slots=True, frozen=True
    )
    made.__module__, made.__doc__ = Job.__module__, Job.__doc__
    return made


def as_job(read: Job) -> Job:
    """What was read with `job_class`, as a `Job`: two of different tasks can then be compared."""
    return Job(**{field.name: getattr(read, field.name) for field in fields(Job)})


T = TypeVar("T")


def key_of(field: dataclasses.Field[Any]) -> str:
    """The key of a field in a job file and in `job.json`. It is the field's name, except where the
    field's metadata has a `key` of its own."""
    key: str = field.metadata.get("key", field.name)
    return key


def to_plain(value: Any) -> Any:
    """A dataclass, and all dataclasses in it, as dictionaries by key."""
    if dataclasses.is_dataclass(value):
        return {key_of(each): to_plain(getattr(value, each.name)) for each in fields(value)}
    return value


def from_plain(cls: type[T], plain: dict[str, Any]) -> T:
    """The dataclass that `to_plain` flattened. Keys must be known; values are trusted: they were
    validated when the job was submitted. Raises TypeError for an unknown key."""
    hints = typing.get_type_hints(cls)
    names = {key_of(each): each.name for each in fields(cls)}  # type: ignore[arg-type]
    values = {names.get(key, key): value for key, value in plain.items()}
    return cls(**{name: _revive(hints.get(name), value) for name, value in values.items()})


def _revive(hint: Any, value: Any) -> Any:
    """`value` as the type says: nested dataclasses and tuples are rebuilt, the rest is as it is."""
    if value is None or hint is None:
        return value
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    return value
