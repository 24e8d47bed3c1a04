"""Properties of loading that must hold for every text."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import LoadedJob, load_job
from hpc_amp.errors import ConfigError

EXAMPLE = (Path(__file__).parents[2] / "configs" / "cifar_resnet.yaml").read_text()
fast = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Everything that an argument of a process can hold: no NUL, no lone surrogates.
arguments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nrun: [python]\n")
    return path


def refuses_or_loads(path, overrides=()):
    """Loads, and asserts that what goes wrong is one line for the user."""
    try:
        check_job(load_job(path, overrides))
    except ConfigError as error:
        told = str(error)
        assert error.where and told.startswith(error.where)
        assert len(told.splitlines()) == 1, told
        return told
    return None


@fast
@given(text=arguments)
def test_any_text_round_trips_through_an_override_and_through_quotes(path, text):
    quoted = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=10**6)
    loaded = load_job(path, [f"job.setup={quoted.rstrip()}"])
    assert loaded.job.resources.setup == text
    if text[:1] not in ("'", '"'):
        loaded = load_job(path, [f"job.setup={text}", f"container.env.A={text}"])
        assert loaded.job.resources.setup == text
        assert loaded.job.container.env["A"] == text


@fast
@given(word=arguments)
def test_any_word_of_a_command_arrives_as_it_is(path, word):
    quoted = yaml.safe_dump([word], default_style='"', default_flow_style=True, width=10**6)
    assert load_job(path, [f"run=[python, {quoted.strip()[1:-1]}]"]).job.run == ["python", word]


@fast
@given(content=st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
def test_any_file_loads_or_is_refused_in_one_line(path, content):
    path.write_bytes(content)
    assert refuses_or_loads(path) is not None  # no such file has a name and a train or run


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "job", "nodes", "train", "model", "run", "env", "container"])
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@fast
@given(tree=st.dictionaries(st.sampled_from(["name", "job", "train", "run", "container"]), trees))
def test_any_tree_loads_or_is_refused_in_one_line(path, tree):
    path.write_text(yaml.safe_dump(tree, allow_unicode=True))
    refuses_or_loads(path)


@fast
@given(
    at=st.integers(0, len(EXAMPLE)),
    cut=st.integers(0, 12),
    put=st.text("abn01.:-[]{}'\"#&*!|>%@,?~ \n\t\\", max_size=4) | arguments.filter(lambda t: t),
)
def test_a_damaged_example_loads_or_is_refused_in_one_line(path, at, cut, put):
    path.write_text(EXAMPLE[:at] + put + EXAMPLE[at + cut :])
    refuses_or_loads(path)


KEYS = [
    "name", "site", "code", "job", "job.nodes", "job.walltime", "job.memory", "job.directives",
    "container", "container.image", "container.env", "container.env.A", "train", "train.model",
    "train.checkpoint", "train.optimizer.lr", "train.optimizer.betas", "train.schedule.milestones",
    "train.precision.init_scale", "run", "restarts", "zzz", "job.nodes.x",
]  # fmt: skip


@fast
@given(
    override=st.text()
    | st.builds("{}={}".format, st.sampled_from(KEYS), st.text() | st.from_regex(r"[\[{'\"]?.*")),
)
@example("code=\x85")
@example("code=\u2028")
def test_any_override_loads_or_is_refused_in_one_line(path, override):
    refuses_or_loads(path, [override])


@fast
@given(nodes=st.integers(1, 10**6), lr=st.floats(0, 10**9))
def test_numbers_round_trip(path, nodes, lr):
    path.write_text("name: x\ntrain: {}\n")
    loaded: LoadedJob = load_job(path, [f"job.nodes={nodes}", f"train.optimizer.lr={lr!r}"])
    assert loaded.job.resources.nodes == nodes
    assert loaded.job.train.optimizer.lr == lr
