"""Job files as validated jobs, and every way in which one is refused."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import pytest

from hpc_amp.config.keys import keys_of
from hpc_amp.config.load import load_job, read_job
from hpc_amp.config.schema import Augment, Data, Job, to_plain
from hpc_amp.config.source import parse
from hpc_amp.config.values import Section
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.classification.config import ClassificationConfig, Model
from hpc_amp.tasks.registry import TASKS, config_class, job_from_plain


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def load(text, *overrides, defaults=None):
    Path("job.yaml").write_text(text)
    beneath = parse(defaults, lambda line: f"site.yaml:{line}") if defaults else None
    return load_job(Path("job.yaml"), overrides, defaults=beneath)


def error_of(text, *overrides, defaults=None):
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, defaults=defaults)
    assert caught.value.exit_code == 2
    return str(caught.value)


RUN = "name: x\nrun: [python, a.py]\n"
TRAIN = "name: x\ntrain:\n"


def test_a_small_job_has_the_defaults_of_the_schema():
    assert load(RUN).job == Job(name="x", run=["python", "a.py"])
    assert load("name: x\ntrain: {}\n").job == Job(name="x", train=ClassificationConfig())


def test_a_job_survives_the_way_through_json():
    job = load(TRAIN + "  model: resnet20\n  optimizer: {betas: [0.8, 0.9]}\n").job
    assert job_from_plain(to_plain(job)) == job


def test_sections_are_equal_if_all_their_keys_are():
    assert Data(augment=Augment(crop=2)) == Data(augment=Augment(crop=2))
    assert Data(augment=Augment(crop=2)) != Data(augment=Augment(crop=3))
    assert Augment() != Data()
    assert Model() != "resnet18"
    assert repr(Augment(crop=2)) == "Augment(crop=2, flip=True, cutout=0)"
    with pytest.raises(AttributeError, match="cannot assign to field 'crop'"):
        Augment().crop = 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Augment())


def test_a_section_is_made_with_its_keys_only():
    assert Augment(crop=2, flip=False).crop == 2
    assert Data().augment is not Data().augment
    with pytest.raises(TypeError, match="Augment has no field krop"):
        Augment(krop=2)
    with pytest.raises(TypeError, match="Job needs a value for name"):
        Job()


@dataclass(kw_only=True, slots=True, frozen=True)
class OwnData(Data):
    """As a user's own task extends a section."""

    extra: int = 1


@pytest.mark.parametrize("data", [Data(name="mnist"), OwnData(name="mnist", extra=2)])
def test_sections_cannot_be_changed_but_copied(data):
    for change in (
        lambda: setattr(data, "name", "cifar10"),
        lambda: delattr(data, "name"),
    ):
        with pytest.raises(FrozenInstanceError):
            change()
    for same in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert (same, type(same)) == (data, type(data))
    assert replace(data, name="cifar10").name == "cifar10"


@pytest.mark.parametrize("task", TASKS.own())
def test_sections_have_no_methods_of_dataclasses(task):
    """A section that inherited a generated `__init__` would have the fields of its base only."""
    sections = [config_class(task)]
    for section in sections:
        assert section.__init__ is Section.__init__, section
        assert section.__eq__ is Section.__eq__, section
        assert section.__setattr__ is Section.__setattr__, section
        sections += [key.type for key in keys_of(section).values() if key.is_section]


def test_the_file_is_kept_as_given():
    loaded = load(RUN + "# a comment\n")
    assert loaded.text == RUN + "# a comment\n"
    assert loaded.path == Path("job.yaml")


def test_where_names_the_line_that_set_a_key():
    loaded = load(TRAIN + "  optimizer:\n    lr: 1\n", "job.nodes=2")
    assert loaded.where("train.optimizer.lr") == "job.yaml:4"
    assert loaded.where("train.optimizer") == "job.yaml:3"
    assert loaded.where("train.optimizer.momentum") == "job.yaml:3"
    assert loaded.where("train.batch_size") == "job.yaml:2"
    assert loaded.where("job.nodes") == "override 'job.nodes=2'"
    assert loaded.where("container.image") == "job.yaml"
    assert loaded.where("name.x") == "job.yaml:1"
    error = loaded.error("job.nodes", "2 is odd", "use 3")
    assert str(error) == "override 'job.nodes=2': job.nodes: 2 is odd; use 3"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("lr: 1", 1.0),
        ("lr: 1e-3", 0.001),
        ("lr: .5", 0.5),
        ("lr: 1E+2", 100.0),
        ("lr: 3.", 3.0),
        ("lr: 0.10", 0.1),
    ],
)
def test_numbers(written, read):
    value = load(TRAIN + f"  optimizer: {{{written}}}\n").job.train.optimizer.lr
    assert (value, type(value)) == (read, float)


@pytest.mark.parametrize(("written", "read"), [("0x10", 16), ("0o17", 15), ("+3", 3), ("007", 7)])
def test_whole_numbers(written, read):
    assert load(RUN + f"job: {{nodes: {written}}}\n").job.resources.nodes == read


@pytest.mark.parametrize(("written", "read"), [("true", True), ("False", False), ("TRUE", True)])
def test_booleans(written, read):
    assert load(TRAIN + f"  channels_last: {written}\n").job.train.channels_last is read


def test_yaml_1_1_traps_are_text():
    job = load(RUN + "site: no\njob: {walltime: 01:00:00, queue: on, account: 2024-01-31}\n").job
    assert (job.site, job.resources.walltime, job.resources.queue) == ("no", "01:00:00", "on")
    assert job.resources.account == "2024-01-31"


def test_words_of_a_command_and_an_environment_are_the_source_text():
    text = "name: x\nrun: [python, 0.10, 1e-3, 007, true, yes, '~', \"\"]\n"
    assert load(text).job.run == ["python", "0.10", "1e-3", "007", "true", "yes", "~", ""]
    text = RUN + "container:\n  env: {A: 1, B: 0.10, C: off, D: 'null', E: 1_000}\n"
    assert load(text).job.container.env == {
        "A": "1", "B": "0.10", "C": "off", "D": "null", "E": "1_000",
    }  # fmt: skip


def test_a_bare_value_is_short_for_a_section():
    job = load(
        "name: x\ncontainer: a.sif\nlaunch: srun\nrestarts: 2\n"
        "train:\n  model: resnet20\n  data: synthetic\n  optimizer: adamw\n  schedule: step\n"
        "  precision: fp16\n  checkpoint: 10m\n"
    ).job
    assert (job.container.image, job.launch.method, job.restarts.on_failure) == ("a.sif", "srun", 2)
    assert job.train.model == Model(name="resnet20")
    assert job.train.data == Data(name="synthetic")
    assert (job.train.optimizer.name, job.train.schedule.name) == ("adamw", "step")
    assert (job.train.precision.mode, job.train.checkpoint.every) == ("fp16", "10m")


def test_null_is_a_value_or_the_defaults_of_a_section():
    job = load(
        "name: x\njob:\ncontainer: {env: , bind: ~}\ncode: null\nrun: null\n"
        "train:\n  data: {augment: , workers: null}\n"
    ).job
    assert job == Job(name="x", train=ClassificationConfig(data=Data(augment=Augment())))


def test_an_anchor_can_serve_two_sections():
    job = load(
        "name: x\ntrain:\n  model: &m {name: resnet8}\n  data: {synthetic: {train: 8}}\n"
    ).job
    assert job.train.model.name == "resnet8"
    text = RUN + "job: {<<: &base {nodes: 2, queue: a}, queue: b}\n"
    job = load(text).job
    assert (job.resources.nodes, job.resources.queue) == (2, "b")


class TestDefaultsOfASite:
    DEFAULTS = (
        "job: {queue: gpu, nodes: 2, directives: [--a]}\n"
        "container: {env: {A: 1, B: 1}}\n"
        "train: {precision: fp16, model: resnet8}\n"
    )

    def test_lie_beneath_the_file(self):
        text = "name: x\njob: {nodes: 4, directives: [--b]}\ncontainer: {env: {B: 2}}\n"
        job = load(text + "train: {model: {norm: group}}\n", defaults=self.DEFAULTS).job
        assert (job.resources.queue, job.resources.nodes, job.resources.directives) == (
            "gpu",
            4,
            ["--b"],
        )
        assert job.container.env == {"A": "1", "B": "2"}
        assert job.train.precision.mode == "fp16"
        assert job.train.model == Model(name="resnet8", norm="group")

    @pytest.mark.parametrize("train", ["", "train: null\n"])
    def test_for_training_reach_only_jobs_that_train(self, train):
        assert load(RUN + train, defaults=self.DEFAULTS).job.train is None

    def test_are_hidden_by_null(self):
        assert load(RUN + "job: null\n", defaults=self.DEFAULTS).job.resources.queue is None
        assert load(RUN + "container: {env: }\n", defaults=self.DEFAULTS).job.container.env == {}

    def test_keep_their_place(self):
        assert load(RUN, defaults=self.DEFAULTS).where("job.queue") == "site.yaml:1"
        assert error_of(RUN, defaults="job:\n  nodes: 0\n") == (
            "site.yaml:2: job.nodes: 0 is too small: it must be at least 1"
        )


def test_the_site_is_known_before_the_job_is_validated():
    Path("job.yaml").write_text("site: polaris\njob: {nodes: wrong}\n")
    assert read_job(Path("job.yaml")).site == "polaris"
    assert read_job(Path("job.yaml"), ["site=local"]).site == "local"
    Path("job.yaml").write_text("name: x\n")
    assert read_job(Path("job.yaml")).site == "auto"
    Path("job.yaml").write_text("name: x\nsite: [a]\n")
    with pytest.raises(ConfigError) as caught:
        print(read_job(Path("job.yaml")).site)
    assert str(caught.value) == (
        "job.yaml:2: site: must be text, not a list; put a text with brackets or ': ' in quotes"
    )


TOP_KEYS = "name, site, runs_dir, code, job, container, launch, restarts, train, values, run"
CASES = {
    # unknown keys
    TRAIN + "  batchsize: 3": "job.yaml:3: unknown key train.batchsize; did you mean "
    "train.batch_size?",
    TRAIN + "  Batch-Size: 3": "job.yaml:3: unknown key train.Batch-Size; did you mean "
    "train.batch_size?",
    RUN + "nam: y": "job.yaml:3: unknown key nam; did you mean name?",
    RUN + "nodes: 3": "job.yaml:3: unknown key nodes; `nodes` belongs under job",
    RUN + "image: x": "job.yaml:3: unknown key image; `image` belongs under container",
    RUN + "job:\n  name: y": "job.yaml:4: unknown key job.name; `name` belongs at the top level or "
    "under train.data or under train.optimizer or under train.schedule or under train.model",
    TRAIN + "  walltime: 1h": "job.yaml:3: unknown key train.walltime; `walltime` belongs under "
    "job",
    RUN + "zzz: 3": f"job.yaml:3: unknown key zzz; the keys at the top level are {TOP_KEYS}",
    RUN + "launch:\n  qq: 3": "job.yaml:4: unknown key launch.qq; the keys of launch are method, "
    "mpi, fabric, args, label, forward_signals, timeout, preflight",
    RUN
    + '"a\\nb": 3': f"job.yaml:3: unknown key 'a\\nb'; the keys at the top level are {TOP_KEYS}",
    # null and missing
    "run: [a]": "job.yaml: name is missing; add a line name: ...",
    "name:\nrun: [a]": "job.yaml:1: name: may not be null; give a value",
    RUN + "job: {nodes: ~}": "job.yaml:3: job.nodes: may not be null; give a value, or leave the "
    "key out for its default",
    RUN + "container: {env: {A: }}": "job.yaml:3: container.env.A: must be text, not null; write "
    '"" for no text, or quotes around the word null',
    "name: x\nrun:\n- python\n- null": 'job.yaml:4: run[1]: must be text, not null; write "" for '
    "no text, or quotes around the word null",
    # the wrong type
    RUN + "job: {nodes: '3'}": "job.yaml:3: job.nodes: must be a whole number, not the text '3'; "
    "remove the quotes",
    RUN + "job: {nodes: true}": "job.yaml:3: job.nodes: must be a whole number, not 'true'",
    RUN + "job: {nodes: 3.0}": "job.yaml:3: job.nodes: must be a whole number, not '3.0'",
    RUN + "job: {nodes: 1_000}": "job.yaml:3: job.nodes: must be a whole number, not '1_000'",
    RUN + "job: {nodes: [3]}": "job.yaml:3: job.nodes: must be a whole number, not a list",
    RUN + "job: {nodes: 99999999999999999999}": "job.yaml:3: job.nodes: '99999999999999999999' is "
    "too large a number",
    TRAIN + "  optimizer: {lr: fast}": "job.yaml:3: train.optimizer.lr: must be a number, not "
    "'fast'",
    TRAIN + "  optimizer: {lr: '0.1'}": "job.yaml:3: train.optimizer.lr: must be a number, not the "
    "text '0.1'; remove the quotes",
    TRAIN + "  optimizer: {lr: true}": "job.yaml:3: train.optimizer.lr: must be a number, not "
    "'true'",
    TRAIN + "  optimizer: {lr: .nan}": "job.yaml:3: train.optimizer.lr: must be a finite number, "
    "not '.nan'",
    TRAIN + "  optimizer: {lr: 1e999}": "job.yaml:3: train.optimizer.lr: must be a finite number, "
    "not '1e999'",
    TRAIN + "  optimizer: {betas: [0.9]}": "job.yaml:3: train.optimizer.betas: must be a list of 2 "
    "values, not of 1",
    TRAIN + "  schedule: {milestones: [0.5, x]}": "job.yaml:3: train.schedule.milestones[1]: must "
    "be a number, not 'x'",
    TRAIN + "  deterministic: yes": "job.yaml:3: train.deterministic: must be true or false, not "
    "'yes'; write true",
    TRAIN + "  deterministic: Off": "job.yaml:3: train.deterministic: must be true or false, not "
    "'Off'; write false",
    TRAIN + "  deterministic: 'true'": "job.yaml:3: train.deterministic: must be true or false, "
    "not the text 'true'; remove the quotes",
    TRAIN + "  deterministic: 1": "job.yaml:3: train.deterministic: must be true or false, not '1'",
    "name: 123\nrun: [a]": 'job.yaml:1: name: must be text, not the number 123; write "123" in '
    "quotes",
    "name: true\nrun: [a]": 'job.yaml:1: name: must be text, not the boolean true; write "true" in '
    "quotes",
    RUN + "job: {account: 1e3}": "job.yaml:3: job.account: must be text, not the number 1e3; write "
    '"1e3" in quotes',
    RUN + "job: {queue: {a: b}}": "job.yaml:3: job.queue: must be text, not a mapping; put a text "
    "with brackets or ': ' in quotes",
    RUN + "job: 4": "job.yaml:3: job: must be a section with keys, not '4'; its keys are nodes, "
    "gpus_per_node, ranks_per_node, cpus_per_gpu, memory, exclusive, walltime, queue, account, "
    "directives, "
    "skip_directives, setup, stop_margin, grace, max_restarts, chain",
    RUN + "launch: [srun]": "job.yaml:3: launch: must be a section with keys, not a list; its keys "
    "are method, mpi, fabric, args, label, forward_signals, timeout, preflight",
    "name: x\nrun: python a.py": "job.yaml:2: run: must be a list, not 'python a.py'; write "
    "[first, second]",
    RUN + "container:\n  bind: /scratch": "job.yaml:4: container.bind: must be a list, not "
    "'/scratch'; write [/scratch]",
    "name: x\nrun:\n  - python\n  - --lr: 1": "job.yaml:4: run[1]: must be text, not a mapping; "
    "put a text with brackets or ': ' in quotes",
    RUN + "container: {env: [A]}": "job.yaml:3: container.env: must be a mapping, not a list; "
    "write {KEY: value}",
    # choices
    TRAIN + "  precision: FP16": "job.yaml:3: train.precision.mode: 'FP16' is not one of fp32, "
    "tf32, bf16, fp16, O0, O1, O2, O3; did you mean fp16?",
    TRAIN + "  data: {name: imagenet}": "job.yaml:3: train.data.name: 'imagenet' is not one of "
    "cifar10, cifar100, fashion_mnist, mnist, imagefolder, synthetic; did you mean imagefolder?",
    TRAIN + "  device: 3": "job.yaml:3: train.device: '3' is not one of auto, cuda, cpu",
    TRAIN + "  data: {synthetic: {channels: '3'}}": "job.yaml:3: train.data.synthetic.channels: "
    "the text '3' is not one of 1, 3; did you mean 3?",
    # checks of the schema
    RUN + "job: {walltime: 90}": "job.yaml:3: job.walltime: '90' is not a duration: write it with "
    'a unit, such as "01:30:00", 90m or 1h30m',
    RUN + "job: {walltime: 5:30}": "job.yaml:3: job.walltime: '5:30' is not a duration: write it "
    'with a unit, such as "01:30:00", 90m or 1h30m',
    RUN + "job: {memory: 64}": "job.yaml:3: job.memory: '64' is not a size: write it with a unit, "
    "such as 64GiB or 500MB",
    TRAIN + "  checkpoint: often": "job.yaml:3: train.checkpoint.every: 'often' is not an "
    "interval: write 5m, 01:00:00, 200steps or 1epoch",
    TRAIN + "  epochs: 0": "job.yaml:3: train.epochs: 0 is too small: it must be at least 1",
    # weights that nothing uses would have no gradients, and DDP waits for those of each weight
    TRAIN + "  task: wc_vid2vid\n  wc_vid2vid: {warped_stages: 0}": "job.yaml:4: "
    "train.wc_vid2vid.warped_stages: 0 is too small: it must be at least 1",
    TRAIN + "  task: fs_vid2vid\n  fs_vid2vid: {warped_stages: 0}": "job.yaml:4: "
    "train.fs_vid2vid.warped_stages: 0 is too small: it must be at least 1",
    TRAIN + "  task: fs_vid2vid\n  fs_vid2vid: {references: {blocks: 0}}": "job.yaml:4: "
    "train.fs_vid2vid.references.blocks: 0 is too small: it must be at least 1",
    TRAIN + "  ema: 2": "job.yaml:3: train.ema: 2.0 is outside 0 to 1",
    TRAIN + "  precision: {static_scale: 0}": "job.yaml:3: train.precision.static_scale: 0.0 is "
    "too small: it must be above 0",
    TRAIN + "  optimizer: {betas: [0.9, 1]}": "job.yaml:3: train.optimizer.betas: [0.9, 1.0] must "
    "each be at least 0 and below 1",
    "name: a b\nrun: [a]": "job.yaml:1: name: 'a b' cannot name a run: use 1 to 64 letters, "
    "digits, '.', '_' and '-', starting with a letter or a digit",
    "name: x\nrun: []": "job.yaml:2: run: it is empty: write the command and its arguments as a "
    "list",
    'name: x\nrun: ["a\\0"]': "job.yaml:2: run[0]: holds a NUL character, which no program can "
    "receive",
    RUN + "container:\n  env:\n    1A: x": "job.yaml:4: container.env: '1A' cannot be the name of "
    "an environment variable",
    RUN + 'container: {bind: ["a\\nb"]}': "job.yaml:3: container.bind: 'a\\nb' has a newline or "
    "another control character",
    # train and run
    "name: x": "job.yaml: neither train nor run is given; add train: {} for a built-in task, or "
    "run: [python, train.py] for your command",
    RUN + "train: {}": "job.yaml:2: both train and run are given (train: job.yaml:3); keep one: "
    "train is a built-in task, run is your own command",
    # the first of several
    "name: x\nzzz: 1\nnodes: 2\nrun: 3": "job.yaml:2: unknown key zzz; the keys at the top level "
    f"are {TOP_KEYS}",
}


@pytest.mark.parametrize("text", CASES)
def test_errors_are_one_line_with_place_and_remedy(text):
    assert error_of(text) == CASES[text]


def test_very_long_values_are_cut_in_errors():
    assert error_of(RUN + f"job: {{nodes: {'x' * 5000}}}") == (
        f"job.yaml:3: job.nodes: must be a whole number, not '{'x' * 57}...'"
    )


@pytest.mark.parametrize("text", ["cifar_resnet", "byo"])
def test_the_examples_are_valid(text):
    path = Path(__file__).parents[2] / "configs" / f"{text}.yaml"
    assert load_job(path).job.name == text


SET_BY_HPC_AMP = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "HPC_AMP_WORLD_SIZE", "HPC_AMP_ANYTHING"),
]


@pytest.mark.parametrize("name", SET_BY_HPC_AMP)
def test_variables_that_hpc_amp_sets_itself_are_refused_with_their_line(name):
    text = RUN + f"container:\n  env:\n    A: b\n    {name}: '1'\n"
    refused = f"job.yaml:6: container.env.{name}: hpc-amp sets it itself; leave it out: "
    assert error_of(text).startswith(refused)
    refused = f"override 'container.env.{name}=1': container.env.{name}: hpc-amp sets it itself; "
    assert error_of(RUN, f"container.env.{name}=1").startswith(refused)
    assert f"container.env.{name}: hpc-amp sets it itself" in error_of(
        RUN, defaults=f"container: {{env: {{{name}: x}}}}"
    )


def test_every_variable_that_a_rank_gets_anyway_is_refused():
    from hpc_amp.distributed.world import World, standard_variables

    assert set(standard_variables(World(), {})) <= set(SET_BY_HPC_AMP)


def test_variables_whose_value_counts_are_not_refused():
    names = [
        "OMP_NUM_THREADS",
        "PYTHONPATH",
        "TMPDIR",
        "CUDA_VISIBLE_DEVICES",
        "RANKS",
        "NCCL_DEBUG",
    ]
    job = load(RUN, *(f"container.env.{name}=1" for name in names)).job
    assert list(job.container.env) == names
