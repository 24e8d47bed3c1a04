"""Every key of a job file, with its type, its default and its meaning.

The submit side and the job side share these dataclasses. The submit side converts YAML to them
(`config.load`). The job side reads the resolved `job.json` into the same classes (`from_plain`).
Standard library only.

The string under a field is its documentation: `docs/config.md` is generated from it. A section with
a `SHORTHAND` may be written as a bare value: `precision: fp16` means `precision: {mode: fp16}`.
An `Annotated` type carries checks and marks (see `config.values`).
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from hpc_amp.config.values import (
    READ_AT_BEGIN,
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
    Section,
    Size,
    StepInterval,
    WeightsSource,
    Word,
    Words,
    at_least,
    averaging,
    environment_names,
    no_nul,
    rank_numbers,
    renaming,
    run_name,
    section,
    step_range,
    value_names,
)
from hpc_amp.errors import KeyProblem

SCHEMA_VERSION = 1

# Reasons why `resume` cannot change a key.
_FOLDER = Fixed("the run's folder and its job are named by it")
TaskName = Annotated[Word, Fixed("the checkpoints are those of this task")]
_SAMPLES = Fixed("the run has learned from these samples, in an order that follows from them")


@section(kw_only=True, slots=True, frozen=True)
class Resources(Section):
    """The resources that are requested from the scheduler."""

    nodes: Count = 1
    """Nodes of the allocation."""
    gpus_per_node: Natural = 1
    """GPUs on each node. 0: no GPUs; the ranks then compute on CPUs."""
    ranks_per_node: Count | None = None
    """Training processes on each node. Default: one for each GPU, or one if `gpus_per_node` is
    0."""
    cpus_per_gpu: Count = 1
    """CPU cores for each rank: data loading, compression and the threads of CPU kernels."""
    memory: Size | None = None
    """Memory of each node, such as `64GiB`. Default: the scheduler's."""
    exclusive: bool | None = None
    """Request whole nodes, which no other job shares, so that nothing else disturbs the run. The
    site may charge for the whole nodes. Default: false; in `scale` and in `bench --submit` true
    where the scheduler has such a request."""
    walltime: Duration = "01:00:00"
    """Time limit of one attempt. A job that needs longer continues in the next attempt."""
    queue: Word | None = None
    """Partition or queue. Default: the site's."""
    account: Word | None = None
    """Account or project that is charged. Default: the scheduler's."""
    directives: Words = field(default_factory=list)
    """Further directives, each as the scheduler reads it after its marker: `--qos=premium`."""
    skip_directives: Words = field(default_factory=list)
    """Generated directives to leave out, by option: `--gpus-per-node`."""
    setup: str = ""
    """Shell lines that run on the first node before the launch: `module load apptainer`. They are
    copied into the script unchanged. A line that fails is named in the log and does not end the
    job, except after `set -e`."""
    stop_margin: Duration = "2m"
    """How long before the time limit the run saves a checkpoint and stops."""
    grace: Duration | None = None
    """Time between the scheduler's SIGTERM and its SIGKILL. A run that is preempted or cancelled
    has to save a checkpoint in this time. Default: on Slurm its setting KillWait; PBS 10s, Cobalt
    300s, local 30s."""
    max_restarts: Natural = 10
    """How often a run that stopped at a checkpoint continues by itself in a new attempt."""
    chain: Natural = 0
    """PBS, Cobalt and Grid Engine, where a run continues in another job: the number of jobs to
    submit in advance, each waiting for the one before. For sites whose compute nodes cannot submit
    jobs. 0: each job submits the next one."""


@section(kw_only=True, slots=True, frozen=True)
class ContainerOptions(Section):
    """The image that the job runs in."""

    SHORTHAND: ClassVar[str] = "image"

    runtime: Annotated[str, Registered("hpc_amp.containers:CONTAINERS")] = "auto"
    """`auto`: no container without an image, else Apptainer or Singularity, whichever is installed
    on the nodes. [Containers](containers.md#runtimes) says what other runtimes need."""
    image: Path | None = None
    """The image. For Apptainer: the path of a `.sif` file or a sandbox folder, on a file system
    that every node can read; a URI has to be pulled first. Default: no container."""
    bind: Binds = field(default_factory=list)
    """Host paths to mount into the container, as `path`, `source:destination` or
    `source:destination:ro`. The run directory, the working directory and the data are mounted
    automatically."""
    env: Annotated[dict[str, str], environment_names] = field(default_factory=dict)
    """Environment variables of the training process, with or without a container. A value may be
    any text: it does not pass through a shell. Variables that hpc-amp sets itself are refused:
    `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and others, and names that begin with `HPC_AMP_`."""
    args: Words = field(default_factory=list)
    """Further options for the runtime, such as Apptainer's `--rocm`."""
    gpu: bool | None = None
    """Make NVIDIA's driver available in the container (Apptainer: `--nv`). Default: if the job has
    GPUs."""
    python: Path | None = None
    """Python interpreter of the job. Default: `python3` in a container, the one that runs
    `hpc-amp` without."""


@section(kw_only=True, slots=True, frozen=True)
class Launch(Section):
    """How the ranks are started on the nodes."""

    SHORTHAND: ClassVar[str] = "method"

    method: Annotated[str, Registered("hpc_amp.launchers:LAUNCHERS", ("auto",))] = "auto"
    """`srun`: one task for each rank (Slurm). `mpirun`: Open MPI's. `mpiexec`: MPICH's (hydra) or
    Cray's (PALS). `torchrun`: one agent on each node. `processes`: the ranks of one node, without
    another program. `single`: one process. `auto`: the site's, else `srun` on Slurm; elsewhere
    `single` for one rank, on one node `processes` (`torchrun` if `args` is set), `mpirun` on
    several."""
    mpi: Literal["none", "hybrid", "bind"] = "none"
    """Whether the program itself uses MPI. `hybrid`: it uses the image's MPI under the launcher of
    the host. `bind`: it uses the host's MPI, mounted into the image (`host_mpi` of the site). Both
    are tested before the start: if each process would be in a world of its own, the job ends with
    an explanation. `none`: the launcher only starts processes; torch needs no MPI in the image."""
    fabric: Word = "auto"
    """Settings of the network between nodes: a [fabric profile](sites.md), `none`, or `auto`: the
    site's."""
    args: Words = field(default_factory=list)
    """Further options for the launcher. `processes` and `single` have none."""
    label: bool = True
    """Begin each line of the output with its rank, as in `[rank3]: loss 0.5`, if the job has
    several ranks. It is the same under every launcher."""
    forward_signals: bool | None = None
    """Forward SIGUSR1 and SIGUSR2 to the ranks. Default: only to built-in tasks, which save and
    stop. These signals would kill a program that does not handle them."""
    timeout: Duration = "10m"
    """How long ranks wait for each other, at the start and in every collective operation. If a rank
    of a built-in task makes no step in this time, all ranks print their stacks and the attempt
    fails."""
    preflight: bool = True
    """Check every node before any rank starts: mounts, space, GPUs, network. An error ends the job
    with an explanation. See [doctor](doctor.md)."""


@section(kw_only=True, slots=True, frozen=True)
class Restarts(Section):
    """What happens after a failure."""

    SHORTHAND: ClassVar[str] = "on_failure"

    on_failure: Natural = 0
    """How often a failed run is started again from its newest checkpoint."""


@section(kw_only=True, slots=True, frozen=True)
class Augment(Section):
    """Random changes of the training images. They depend on seed, epoch and sample only."""

    crop: Natural = 4
    """Small images: padding in pixels around the image before a crop to its size; 0: no crop. Large
    images: any value above 0 means a random resized crop."""
    flip: bool = True
    """Mirror half of the images."""
    cutout: Natural = 0
    """Side in pixels of a square that is set to zero; 0: none. Small images only."""


@section(kw_only=True, slots=True, frozen=True)
class Synthetic(Section):
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


@section(kw_only=True, slots=True, frozen=True)
class Data(Section):
    """The training and test images."""

    SHORTHAND: ClassVar[str] = "name"

    name: Annotated[
        Literal["cifar10", "cifar100", "fashion_mnist", "mnist", "imagefolder", "synthetic"],
        _SAMPLES,
    ] = "cifar10"
    """`imagefolder` reads `root/train/<class>/*` and `root/test/<class>/*` (or `val`). Images are
    turned upright as their EXIF data say. Images of 16 bits are reduced to the upper 8 bits. Images
    of 32 bits or floating-point numbers are refused, because their range is unknown."""
    root: Path = "data"
    """Folder of the files, relative to where `submit` was called. For `imagefolder`, also a tar
    file of the folder, which is read where it is."""
    if_missing: Literal["error", "synthetic"] = "error"
    """What to do if the files are missing and cannot be downloaded. `synthetic`: train on synthetic
    images; every report then says SYNTHETIC."""
    download: bool = True
    """Let rank 0 download missing files."""
    in_memory: bool | None = None
    """Keep the images as uint8 in memory and augment whole batches on the device. Default: if the
    images are small (all of one size up to 64 pixels)."""
    image_size: Annotated[Count | None, _SAMPLES] = None
    """Side in pixels to which `imagefolder` images are resized. Default: small images keep their
    size, others are resized to 224."""
    workers: Natural | None = None
    """Threads of each rank that decode data that is not in memory. 0: decodes while the training
    waits. Default: the rank's cores minus one, at most 8."""
    decoder: Literal["auto", "pillow", "dali"] = "pillow"
    """What decodes images that are not in memory. `dali`: NVIDIA's DALI, on the GPU if the training
    has one; pixels differ from `pillow`'s by rounding. `auto`: DALI on a GPU where it is installed
    and decodes a test image correctly, and otherwise Pillow."""
    augment: Augment = field(default_factory=Augment)
    """Random changes of the training images."""
    synthetic: Annotated[Synthetic, _SAMPLES] = field(default_factory=Synthetic)
    """Size of the synthetic data set, if it is used."""


@section(kw_only=True, slots=True, frozen=True)
class Optimizer(Section):
    """The optimizer."""

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
    """Use one kernel for the whole update. Default: if torch has this kernel."""


@section(kw_only=True, slots=True, frozen=True)
class Schedule(Section):
    """The learning rate over the run, as a function of the step."""

    SHORTHAND: ClassVar[str] = "name"

    name: Literal["cosine", "linear", "step", "constant"] = "cosine"
    """`cosine` and `linear` decay to `final`; `step` multiplies by `gamma` at each milestone."""
    warmup: Fraction = 0.05
    """Fraction of the run in which the rate rises linearly from near zero."""
    decay_after: StepInterval | None = None
    """`cosine` and `linear`: when the decay begins, counted from the beginning of the run, such as
    `100epochs` or `5000steps`. Default: at the end of the warm-up."""
    final: Fraction = 0.0
    """`cosine` and `linear`: the last rate as a fraction of the peak rate."""
    milestones: list[float] = field(default_factory=lambda: [0.5, 0.75])
    """`step`: when the rate falls, as fractions of the run."""
    gamma: Fraction = 0.1
    """`step`: the factor at each milestone."""


@section(kw_only=True, slots=True, frozen=True)
class Precision(Section):
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


@section(kw_only=True, slots=True, frozen=True)
class Checkpointing(Section):
    """When checkpoints are saved and which are kept."""

    SHORTHAND: ClassVar[str] = "every"

    every: Interval = "5m"
    """Interval: `5m`, `200steps` or `1epoch`. A checkpoint is also saved at the end of the run and
    at every early stop."""
    keep: Annotated[int, at_least(2)] = 3
    """Number of newest checkpoints to keep. At least 2: the last one may be damaged."""
    keep_best: Natural = 1
    """Number of checkpoints with the best results to keep in addition. The task defines the metric:
    the highest `accuracy` of a classification, the lowest `frechet_random` of a `dcgan`. A new best
    result is saved at once. 0: none."""
    keep_every: StepInterval | None = None
    """Interval in steps or epochs (`10epochs`) of checkpoints that are never removed."""
    background: bool = True
    """Write checkpoints while the training continues. Rank 0 then keeps a copy of the state in
    memory. `false` saves this memory, and the training waits."""


@section(kw_only=True, slots=True, frozen=True)
class StartFrom(Section):
    """Weights of another run, or of a file, that a new run begins with. Its steps, optimizers,
    schedule and loss scales begin anew; to continue a run with all of them is `hpc-amp resume`."""

    SHORTHAND: ClassVar[str] = "path"

    path: WeightsSource
    """A run directory (its newest checkpoint), a checkpoint in one, or a file with a state dict."""
    weights: Annotated[Literal["auto", "average", "networks"], READ_AT_BEGIN] = "auto"
    """Of a run or checkpoint: the moving average, the networks themselves, or `auto`: the average
    where there is one."""
    networks: Annotated[Words, READ_AT_BEGIN] = field(default_factory=list)
    """Networks that get the weights, such as `[generator]`. Default: all networks of the task."""
    names: Annotated[dict[str, str], renaming, READ_AT_BEGIN] = field(default_factory=dict)
    """Regular expressions and their replacements, for a file of another program. They are applied
    to the name of each tensor one after another (`re.sub`), to make it NETWORK.NAME as in
    `networks.pt`. A tensor whose name becomes empty is left out. See [an
    example](gan-own.md#weights-of-other-programs)."""
    partial: Annotated[bool, READ_AT_BEGIN] = False
    """Leave tensors that are missing, or have another shape, as they were initialised, and report
    them. Default: they are an error."""


@section(kw_only=True, slots=True, frozen=True)
class Timing(Section):
    """Measurement of single steps: each rank writes `attempts/N/timing/rank-*.json`. `hpc-amp
    bench` and `hpc-amp scale` set it."""

    SHORTHAND: ClassVar[str] = "steps"

    warmup: Natural = 20
    """Steps of an attempt before the first measured step."""
    steps: Count = 100
    """Number of measured steps."""
    seconds: Positive | None = None
    """Measure for about this many seconds instead of `steps`, then end the training."""


@section(kw_only=True, slots=True, frozen=True)
class Profile(Section):
    """A recording of some steps with torch's profiler: `attempts/N/profile` gets a trace of each
    chosen rank and a summary of the time of a step. See [profiling](profiling.md)."""

    steps: Annotated[tuple[int, int], step_range] = (20, 25)
    """First and last recorded step."""
    ranks: Annotated[list[int], rank_numbers] = field(default_factory=lambda: [0])
    """Ranks that are recorded."""


@section(kw_only=True, slots=True, frozen=True)
class Train(Section):
    """The keys that every task has. A task adds keys with a dataclass that extends this one (see
    `hpc_amp.tasks.registry`)."""

    UNUSED: ClassVar[tuple[str, ...]] = ()
    """Keys of this class that a task does not use. Its job file may not set them."""

    task: TaskName = "classification"
    """The task: `classification`, `dcgan`, a task that another package adds, or
    `package.module:Class` of [a task of your own](extending-task.md) in `code`."""
    data: Data = field(default_factory=Data)
    """The data set."""
    start_from: StartFrom | None = None
    """Weights that a new run begins with. Default: random ones."""
    epochs: Count = 10
    """Passes over the training data."""
    max_steps: Count | None = None
    """End after this many steps, if they come before the end of `epochs`."""
    batch_size: Annotated[
        Count, Fixed("steps, and with them the place in the data, are counted in batches")
    ] = 128
    """Global batch size, over all ranks and accumulated parts. It must be a multiple of
    world size x `accumulate`."""
    eval_batch_size: Count | None = None
    """Batch size of a rank in evaluation. Default: the rank's training batch, at least 256."""
    accumulate: Count = 1
    """Number of parts into which a rank divides its share of a batch. One update follows after all
    parts."""
    optimizer: Optimizer = field(default_factory=Optimizer)
    """The optimizer."""
    schedule: Schedule = field(default_factory=Schedule)
    """The learning rate over the run."""
    precision: Precision = field(default_factory=Precision)
    """Number formats and the loss scaler."""
    channels_last: bool = True
    """Keep images and weights in channels-last order, which mixed-precision kernels prefer."""
    compile: bool = False
    """Compile each network for training with torch.compile. The first steps take minutes. The image
    needs a C++ compiler. See [compiled networks](profiling.md#compiled-networks)."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient over all parameters, after unscaling. Larger gradients are
    scaled down to it."""
    ema: Fraction | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The average is then
    evaluated instead of the weights. With precision `O2` it is an average of the fp32 masters; with
    `O2` and `O3` it is evaluated in fp32. Default: no average."""
    ema_start: Natural = 0
    """Updates before the average begins. Until then it is a copy of the weights."""
    ema_batch_norm: Natural = 30
    """Training batches from which the statistics of batch norms of the averaged network are
    estimated before each evaluation: those of the first steps of the run. A network without batch
    norms does not read them. 0: the running statistics are averaged like the weights."""
    sync_batchnorm: bool = False
    """Share batch statistics among all ranks."""
    evaluate_every: Natural = 1
    """Epochs between two evaluations. The run is also evaluated at its end. 0: no evaluation at
    all."""
    log_every: Count = 20
    """Steps between two lines of the log and two points of the curves."""
    trackers: Words = field(default_factory=lambda: ["tensorboard"])
    """Where curves are written in addition to `metrics.jsonl`: `tensorboard`, `wandb`, `mlflow`,
    and the names of trackers that other packages add. Each has to be installed in the image of the
    job too. See [tracking](tracking.md)."""
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    """When checkpoints are saved."""
    timing: Timing | None = None
    """Measure single steps. Default: no measurement."""
    profile: Profile | None = None
    """Record some steps. Default: none."""
    seed: Annotated[Natural, Fixed("the order of the samples follows from it")] = 0
    """Seed of all random numbers."""
    deterministic: bool = False
    """Use only deterministic kernels, so that runs on GPUs are reproducible bit by bit. Runs on
    CPUs always are."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto`: CUDA. If the node has no NVIDIA device, CPUs with a warning."""

    def check_keys(self) -> None:
        """Check keys of the task against each other. This is called before a job is submitted, and
        where the task is made. Raises KeyProblem."""
        if self.compile and self.sync_batchnorm:
            raise KeyProblem(
                "compile",
                "batch norms that exchange statistics cannot be compiled",
                "set train.sync_batchnorm or train.compile to false",
            )
        if self.compile and self.precision.mode == "O1":
            raise KeyProblem(
                "compile",
                "precision O1 patches functions of torch, which compiled networks do not call",
                "use precision fp16, which needs no patches",
            )

    def unknown_names(self) -> Iterator[KeyProblem]:
        """Yield a problem for each name, such as that of a network, that this version does not
        know. The image of the job may know it. This is called before a job is submitted."""
        yield from ()

    def generation_options(self) -> Mapping[str, bool] | None:
        """The options of `hpc-amp generate` that the task uses, of `style`, `instances`, `points`,
        `direction`, `fps` and `finetune`, and whether it needs them; None if it makes no images
        from files."""
        return None


@section(kw_only=True, slots=True, frozen=True)
class Job(Section):
    """A job file."""

    name: Annotated[str, run_name, _FOLDER]
    """Name of the job in the scheduler, and of its folder below `runs_dir`."""
    site: Path = "auto"
    """A name from `configs/sites`, the path of a site file, or `auto`: the site of this machine."""
    runs_dir: Annotated[Path, _FOLDER] = "runs"
    """Folder of all runs, relative to where `submit` was called."""
    code: Annotated[
        Path | None, Fixed("the run has a copy, `code` in its folder, which may be edited")
    ] = None
    """Folder of your own code. It is copied into the run directory. The copy is the working
    directory of `run`, and a task of your own is imported from it. Later edits of the folder do not
    affect the job. `.git`, `.venv`, `venv`, `node_modules` and `__pycache__` are not copied, nor
    are folders named `runs`, `sweeps`, `studies`, `benches` or `functions` that have no `.py` file
    in them."""
    resources: Resources = field(default_factory=Resources, metadata={"key": "job"})
    """The resources that are requested from the scheduler."""
    container: ContainerOptions = field(default_factory=ContainerOptions)
    """The image that the job runs in."""
    launch: Launch = field(default_factory=Launch)
    """How the ranks are started."""
    restarts: Restarts = field(default_factory=Restarts)
    """What happens after a failure."""
    train: Train | None = None
    """Training of a task. Either this or `run`."""
    values: Annotated[dict[str, str], value_names] = field(default_factory=dict)
    """Values for `{NAME}` in the words of `run`: `run: [python, train.py, "--lr={lr}"]` with
    `values: {lr: 0.1}`. `hpc-amp sweep job.yaml values.lr=0.1,0.2` varies them."""
    run: Annotated[list[str], no_nul] | None = None
    """Your own command, as a list of words. Each rank runs it with the standard torch.distributed
    variables. A first word `python` stands for the job's interpreter. It may not be a
    [launcher](config.md#launchers) such as `torchrun`, except if the job has one rank."""

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
    """A subclass of `Job` whose section `train` is the configuration class `train` of a task. It is
    only used to read a job file; `as_job` converts the result to a `Job`."""
    if train is Train:
        return Job
    return _job_class(train)


@functools.cache
def _job_class(train: Any) -> type[Job]:
    made = dataclasses.make_dataclass(
        "Job",
        [("train", train | None, None)],
        bases=(Job,),
        init=False,  # that of `Job` has the same fields
        slots=True,
        frozen=True,
        eq=False,
        repr=False,
    )
    made.__module__, made.__doc__ = Job.__module__, Job.__doc__
    return made


_JOB_FIELDS = tuple(field.name for field in fields(Job))


def as_job(read: Job) -> Job:
    """Convert an instance of `job_class` to a `Job`, so that jobs of different tasks can be
    compared."""
    return Job(**{name: getattr(read, name) for name in _JOB_FIELDS})


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
    """Restore a dataclass from the result of `to_plain`. Values are not checked: they were
    validated when the job was submitted. Raises TypeError for an unknown key."""
    hints = _hints_of(cls)  # type: ignore[arg-type]
    names = {key_of(each): each.name for each in fields(cls)}  # type: ignore[arg-type]
    values = {names.get(key, key): value for key, value in plain.items()}
    return cls(**{name: _revive(hints.get(name), value) for name, value in values.items()})


@functools.cache
def _hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name. Python compiles each of them anew."""
    return typing.get_type_hints(cls)


def _revive(hint: Any, value: Any) -> Any:
    """Convert a JSON value to a type hint: restore nested dataclasses and tuples, and return any
    other value unchanged."""
    if value is None or hint is None:
        return value
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    return value
