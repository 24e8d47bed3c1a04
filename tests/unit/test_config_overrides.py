"""`key=value` on the command line."""

from pathlib import Path

import pytest

from hpc_amp.config.load import load_job, read_job
from hpc_amp.config.schema import to_plain
from hpc_amp.errors import ConfigError
from hpc_amp.tasks.classification.config import Model

TEXT = """\
name: x
job: {nodes: 1, queue: gpu}
container: {env: {A: a, B: b}, bind: [/old]}
train:
  model: resnet20
  precision: {mode: bf16, growth_interval: 5}
"""


@pytest.fixture(autouse=True)
def job_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(TEXT)


def load(*overrides):
    return load_job(Path("job.yaml"), overrides).job


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("job.nodes=4", "job.nodes", 4),
        ("job.nodes= 4 ", "job.nodes", 4),
        ("job.queue=null", "job.queue", None),
        ("job.queue=", "job.queue", ""),
        ("job.queue=~", "job.queue", "~"),
        ("job.queue='null'", "job.queue", "null"),
        ("job.queue=on", "job.queue", "on"),
        ("job.account=123", "job.account", "123"),
        ("job.walltime=01:00:00", "job.walltime", "01:00:00"),
        ("job.setup=a=b # c: {d}", "job.setup", "a=b # c: {d}"),
        ("job.setup= two ", "job.setup", " two "),
        ('job.setup="a\\tb"', "job.setup", "a\tb"),
        ("job.setup='it''s'", "job.setup", "it's"),
        ("job.setup=\"a\" and \"b\"", "job.setup", '"a" and "b"'),
        ("job.setup='a' # b", "job.setup", "'a' # b"),
        ("job.setup='open", "job.setup", "'open"),
        ("job.setup=null", "job.setup", "null"),
        ("job.directives=['--a=b', \"--c\", -d]", "job.directives", ["--a=b", "--c", "-d"]),
        ("job.directives=[]", "job.directives", []),
        ("job={nodes: 3}", "job.nodes", 3),
        ("job={nodes: 3}", "job.queue", "gpu"),
        ("job=null", "job.queue", None),
        ("container.bind=[/a,/b]", "container.bind", ["/a", "/b"]),
        ("container.bind=null", "container.bind", []),
        ("container.env={A: \"x y\"}", "container.env", {"A": "x y", "B": "b"}),
        ("container.env.MY_VAR=hello world", "container.env",
         {"A": "a", "B": "b", "MY_VAR": "hello world"}),
        ("container.env.A=null", "container.env", {"A": "null", "B": "b"}),
        ("container.env.A=", "container.env", {"A": "", "B": "b"}),
        ("container.env=null", "container.env", {}),
        ("container=/images/a b: c.sif", "container.image", "/images/a b: c.sif"),
        ("restarts=2", "restarts.on_failure", 2),
        ("restarts.on_failure=2", "restarts.on_failure", 2),
        ("train.optimizer.lr=1e-2", "train.optimizer.lr", 0.01),
        ("train.optimizer.betas=[0.8, 0.9]", "train.optimizer.betas", (0.8, 0.9)),
        ("train.deterministic=true", "train.deterministic", True),
        ("train.ema=~", "train.ema", None),
        ("train.precision=fp16", "train.precision.mode", "fp16"),
        ("train.precision=fp16", "train.precision.growth_interval", 5),
        ("train.model=resnet8", "train.model", Model(name="resnet8")),
        ("train.model.norm=group", "train.model", Model(name="resnet20", norm="group")),
        ("train.model={norm: group}", "train.model", Model(name="resnet20", norm="group")),
        ("train.data=synthetic", "train.data.name", "synthetic"),
        ("train.checkpoint=1epoch", "train.checkpoint.every", "1epoch"),
    ],
)  # fmt: skip
def test_values(override, key, value):
    found = to_plain(load(override))
    for name in key.split("."):
        found = found[name]
    expected = to_plain(value)
    assert found == expected and type(found) is type(expected)


def test_the_last_one_wins_and_sections_merge():
    job = load("job.nodes=2", "train.model=resnet8", "train.model.norm=group", "job.nodes=3")
    assert job.resources.nodes == 3
    assert job.train.model == Model(name="resnet8", norm="group")


def test_a_command_in_place_of_the_task():
    job = load("train=null", "run=[python, train.py, --lr, 0.10]")
    assert (job.train, job.run) == (None, ["python", "train.py", "--lr", "0.10"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("job.nodes", "this has no '='; write key=value: job.nodes=4"),
        ("", "this has no '='; write key=value: job.nodes=4"),
        ("=4", "there is no key before the '='; write key=value without spaces before the '=': "
         "job.nodes=4"),
        ("job.nodes =4", "'job.nodes ' cannot be a key; write key=value without spaces before the "
         "'=': job.nodes=4"),
        ("job..nodes=4", "'job..nodes' cannot be a key; write key=value without spaces before the "
         "'=': job.nodes=4"),
        ("job.nodes+=4", "'job.nodes+' cannot be a key; write key=value without spaces before the "
         "'=': job.nodes=4"),
        ("job.node=4", "unknown key job.node; did you mean job.nodes?"),
        ("job.gpus-per-node=4", "unknown key job.gpus-per-node; did you mean job.gpus_per_node?"),
        ("nodes=4", "unknown key nodes; `nodes` belongs under job"),
        ("train.job.nodes=4", "unknown key train.job; `job` belongs at the top level"),
        ("job.nodes=four", "job.nodes: must be a whole number, not 'four'"),
        ("job.nodes='4'", "job.nodes: must be a whole number, not the text '4'; remove the quotes"),
        ("job.nodes=", "job.nodes: may not be null; give a value, or leave the key out for its "
         "default"),
        ("job.nodes.x=1", "job.nodes: must be a whole number, not a mapping"),
        ("name.x=1", "name: must be text, not a mapping; put a text with brackets or ': ' in "
         "quotes"),
        ("container.env.A.B=1", "container.env.A: must be text, not a mapping; put a text with "
         "brackets or ': ' in quotes"),
        ("job.directives=--a", "job.directives: must be a list, not '--a'; write [--a]"),
        ("job=4", "job: must be a section with keys, not '4'; its keys are nodes, gpus_per_node, "
         "ranks_per_node, cpus_per_gpu, memory, exclusive, walltime, queue, account, directives, "
         "skip_directives, setup, stop_margin, grace, max_restarts, chain"),
        ("job={nodes: 4", "not valid YAML: while parsing a flow mapping, did not find expected ',' "
         "or '}'; close the bracket, and quote a text that holds '[', ']', '{', '}' or ','"),
        ("job={nodes: 1, nodes: 2}", "the key 'nodes' is here for the second time, after override "
         "'job={nodes: 1, nodes: 2}'; keep one of them"),
        ("train.precision=FP16", "train.precision.mode: 'FP16' is not one of fp32, tf32, bf16, "
         "fp16, O0, O1, O2, O3; did you mean fp16?"),
        ("run=[a]", "both train and run are given (train: job.yaml:4); keep one: train is a "
         "built-in task, run is your own command"),
        ("name=a/b", "name: 'a/b' cannot name a run: use 1 to 64 letters, digits, '.', '_' and "
         "'-', starting with a letter or a digit"),
    ],
)  # fmt: skip
def test_errors(override, message):
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert str(caught.value) == f"override {override!r}: {message}"


def test_bytes_that_are_not_utf_8():
    with pytest.raises(ConfigError) as caught:
        load("job.setup=\udcff")
    assert str(caught.value) == "override 'job.setup=\\udcff': the value is not UTF-8 text"


@pytest.mark.parametrize(
    "more",
    [
        ["train.precision=fp16", "container.env={B: c}"],
        ["train={model: resnet32}"],
        ["train.task=dcgan", "train.gan.latent=32"],
        ["train=null", "run=[python, x.py]"],
    ],
)
def test_overrides_that_are_added_later_count_like_those_of_the_same_call(more):
    """A sweep adds those of each point to a job file that was read once. They may choose a task."""
    first = ["job.nodes=2", "train.precision=O1"]
    at_once = read_job(Path("job.yaml"), [*first, *more])

    added = read_job(Path("job.yaml"), first).with_overrides(more)

    assert (added.tree, added.schema, added.overrides) == (
        at_once.tree, at_once.schema, at_once.overrides
    )  # fmt: skip
