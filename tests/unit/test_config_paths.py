"""Variables of the submitting shell in paths: which keys, what of them, and what is refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.campaigns import planned_sweep

from hpc_amp.campaigns.measuring import Measuring
from hpc_amp.campaigns.submit import describe, write
from hpc_amp.cli.app import app
from hpc_amp.config.checks import check_job
from hpc_amp.config.keys import keys_of
from hpc_amp.config.load import load_job
from hpc_amp.config.paths import as_overrides, expand_path, literal
from hpc_amp.config.schema import job_class
from hpc_amp.config.site import Site
from hpc_amp.config.sites import find_site, load_for_site, load_site
from hpc_amp.config.tree import Scalar
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.plan import make_plan
from hpc_amp.jobs.render import render
from hpc_amp.study.plan import StudyOptions, plan_study
from hpc_amp.study.view import SCALE
from hpc_amp.tasks.registry import TASKS, config_class

RUN = "name: x\nrun: [python]\njob: {gpus_per_node: 0}\n"


@pytest.fixture(autouse=True)
def shell(tmp_path, monkeypatch):
    """A shell with some variables, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("NUMBER", "007")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOT_HERE", raising=False)
    monkeypatch.delenv("HPC_AMP_SITES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def load(text, *overrides):
    Path("job.yaml").write_text(text)
    return load_job(Path("job.yaml"), overrides)


def paths_in(section, prefix=""):
    for name, key in keys_of(section).items():
        if key.is_section:
            yield from paths_in(key.type, f"{prefix}{name}.")
        elif key.is_path:
            yield f"{prefix}{name}"


def job_paths():
    """The keys of a job with any of the built-in tasks, and the task of each."""
    schemas = {name: job_class(config_class(name)) for name in TASKS.names()}
    return {key: name for name, schema in schemas.items() for key in paths_in(schema)}


def test_the_schema_says_which_keys_hold_paths():
    assert set(job_paths()) == {
        *("site", "runs_dir", "code", "train.data.root"),
        *("container.image", "container.bind", "container.python"),
        *("train.model.weights", "train.gan.generator_weights", "train.gan.discriminator_weights"),
        *("train.images.root", "train.images.unseen_file", "train.start_from.path"),
        *(f"train.{model}.perceptual_weights" for model in ("unit", "munit")),
        *(
            f"train.{model}.losses.perceptual_weights"
            for model in ("spade", "pix2pixhd", "vid2vid", "fs_vid2vid", "wc_vid2vid")
        ),
        *(f"train.evaluation.{metric}.weights" for metric in ("fid", "lpips")),
    }
    assert set(paths_in(Site)) == {"bind", "host_mpi.prefix", "host_mpi.bind"}


@pytest.mark.parametrize("key", sorted({*job_paths()} - {"container.bind", "site"}))
def test_every_key_with_a_path_is_expanded(key, shell):
    train = f"name: x\ntrain: {{task: {job_paths()[key]}}}\n"
    run = train if key.startswith("train.") else RUN
    value = load(run, f"{key}=$SCRATCH/a").job
    for name in key.split("."):
        value = getattr(value, name)
    assert value == f"{shell}/scratch/a"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$SCRATCH/runs", "{scratch}/runs"),
        ("${SCRATCH}runs", "{scratch}runs"),
        ("a/$SCRATCH-$NUMBER", "a/{scratch}-007"),
        ("$NUMBER", "007"),
        ("~", "/home/me"),
        ("~/runs", "/home/me/runs"),
        ("~root/runs", "/root/runs"),
        ("a/~", "a/~"),
        ("./~x", "./~x"),
        (r"\$SCRATCH", "$SCRATCH"),
        (r"a\$\$b", "a$$b"),
        (r"a\b", r"a\b"),
        (r"a\\$b", r"a\$b"),
    ],
)
def test_variables_and_home_in_a_path(written, read, shell):
    value = load(RUN, f"runs_dir='{written}'").job.runs_dir
    assert value == read.format(scratch=shell / "scratch")


def test_of_a_bind_both_sides_are_paths(shell):
    job = load(RUN + "container: {bind: ['$SCRATCH', '~/a:/a:ro', '$SCRATCH:$SCRATCH/b']}\n").job
    scratch = shell / "scratch"
    assert job.container.bind == [f"{scratch}", "/home/me/a:/a:ro", f"{scratch}:{scratch}/b"]


def test_nothing_but_paths_is_expanded():
    text = 'name: x\nrun: [sh, -c, "echo $SCRATCH ~"]\ncontainer: {env: {A: $SCRATCH}}\n'
    job = load(text + "job: {setup: cd $SCRATCH, directives: [--comment=$SCRATCH]}\n").job
    assert job.run == ["sh", "-c", "echo $SCRATCH ~"]
    assert job.container.env == {"A": "$SCRATCH"}
    assert (job.resources.setup, job.resources.directives) == (
        "cd $SCRATCH",
        ["--comment=$SCRATCH"],
    )


REFUSED = {
    "$NOT_HERE/runs": "the environment of this shell has no variable NOT_HERE; export it, or write "
    r"\$NOT_HERE for a folder of that name",
    "$EMPTY/runs": "the variable EMPTY is empty in this shell; set it, or write the path out",
    "${NOT_HERE:-a}": "no variable name follows the $; "
    r"write \$ for a dollar sign in a name",
    "a$": r"no variable name follows the $; write \$ for a dollar sign in a name",
    "$(pwd)": r"no variable name follows the $; write \$ for a dollar sign in a name",
    "~no-such-user/a": "this machine knows no home folder ~no-such-user; write ./~no-such-user for "
    "a folder of that name",
}


@pytest.mark.parametrize("written", REFUSED)
@pytest.mark.parametrize("key", ["runs_dir: {}", "container: {{bind: [/a, '{}']}}", "code: {}"])
def test_what_cannot_be_expanded_is_refused_with_its_line(key, written):
    with pytest.raises(ConfigError) as caught:
        load(RUN + key.format(written) + "\n")
    name = {"runs_dir": "runs_dir", "container": "container.bind[1]", "code": "code"}
    told = name[key.partition(":")[0]]
    assert str(caught.value) == f"job.yaml:4: {told}: {written!r}: {REFUSED[written]}"


def test_a_value_that_no_path_can_hold_is_refused(monkeypatch):
    monkeypatch.setenv("SCRATCH", "/a\nb")
    with pytest.raises(ConfigError, match="a newline or another control character"):
        load(RUN, "runs_dir=$SCRATCH")
    monkeypatch.setenv("SCRATCH", "/a\udcff")
    with pytest.raises(ConfigError, match="the value of the variable SCRATCH is not UTF-8"):
        load(RUN, "runs_dir=$SCRATCH")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_a_literal_path_stays_what_it_is(path):
    (scalar, expansions) = expand_path(Scalar(literal(path), "here", quoted=True), "runs_dir")
    assert scalar.text.removeprefix("./") == path.removeprefix("./")
    assert expansions == []


def test_submit_and_log_say_what_was_expanded_and_the_program_gets_it(shell):
    Path("job.yaml").write_text(
        "name: x\nsite: local\nruns_dir: $SCRATCH/runs\njob: {gpus_per_node: 0}\n"
        "train: {data: {name: synthetic, root: ~/pictures}}\n"
    )
    notes = [
        f"runs_dir: $SCRATCH/runs is {shell}/scratch/runs",
        "train.data.root: ~/pictures is /home/me/pictures",
    ]
    validated = CliRunner().invoke(app, ["validate", "job.yaml"])
    assert validated.exit_code == 0, validated.output
    assert validated.stderr.splitlines() == [f"note: {note}" for note in notes]
    rendered = CliRunner().invoke(app, ["render", "job.yaml"]).stdout
    for note in notes:
        assert f"say '{note}'\n" in rendered
    assert f"run_dir={shell}/scratch/runs/x/" in rendered


def plan_of(*overrides):
    loaded, site = load_for_site(Path("job.yaml"), overrides)
    check_job(loaded, site)
    return make_plan(loaded, site, Path("runs/x/20261127-223455-kqzf"))


def test_a_script_without_variables_says_nothing():
    Path("job.yaml").write_text(RUN + "site: local\n")
    plan = plan_of()
    assert (plan.expanded, plan.remarks) == ((), ())
    assert "is /home/me" not in render(plan)


def test_paths_of_a_site_are_expanded_when_it_is_the_one(shell):
    own = shell / "config" / "hpc-amp" / "sites"
    own.mkdir(parents=True)
    (own / "lake.yaml").write_text(
        "scheduler: slurm\nhosts: [lake1]\nbind: ['$SCRATCH']\nhost_mpi: {prefix: ~/mpi}\n"
    )
    (own / "moor.yaml").write_text(
        "scheduler: pbs\nhosts: [moor1]\nbind: ['$NOT_HERE']\n"
        "defaults: {train: {data: {root: $NOT_HERE/data}}}\n"
    )
    lake = find_site(hostname="lake1")
    assert (lake.bind, lake.host_mpi.prefix) == ([f"{shell}/scratch"], "/home/me/mpi")
    assert list(map(str, lake.expanded)) == [
        f"bind[0]: $SCRATCH is {shell}/scratch", "host_mpi.prefix: ~/mpi is /home/me/mpi",
    ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        find_site(hostname="moor1")
    assert str(caught.value).startswith(f"{own}/moor.yaml:3: bind[0]: '$NOT_HERE': ")
    Path("job.yaml").write_text(RUN + "site: lake\n")
    assert f"bind[0]: $SCRATCH is {shell}/scratch" in plan_of().remarks


def test_a_default_of_the_site_is_expanded_where_the_job_does_not_replace_it(shell):
    Path("moor.yaml").write_text(
        "scheduler: slurm\ndefaults:\n  train:\n    data: {root: $NOT_HERE/data}\n"
    )
    load_site(Path("moor.yaml"))
    Path("job.yaml").write_text("name: x\nsite: ./moor.yaml\ntrain: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_for_site(Path("job.yaml"))
    assert str(caught.value).startswith("moor.yaml:4: train.data.root: '$NOT_HERE/data': ")
    loaded, _ = load_for_site(Path("job.yaml"), ["train.data.root=$SCRATCH/data"])
    assert loaded.job.train.data.root == f"{shell}/scratch/data"


def test_the_path_of_a_site_file_is_a_path(shell):
    (shell / "scratch").mkdir()
    (shell / "scratch" / "moor.yaml").write_text("scheduler: pbs\n")
    Path("job.yaml").write_text(RUN + "site: $SCRATCH/moor.yaml\n")
    loaded, site = load_for_site(Path("job.yaml"))
    assert (site.name, loaded.job.site) == ("moor", f"{shell}/scratch/moor.yaml")


def test_the_script_of_a_sweep_tells_what_is_so_for_all_its_points(shell):
    Path("job.yaml").write_text(
        "name: x\nsite: slurm\njob: {gpus_per_node: 0}\n"
        "train: {task: dcgan, data: {name: synthetic, root: $SCRATCH/data}}\n"
    )
    (shell / "scratch").mkdir()
    for name in ("a", "b"):
        (shell / "scratch" / name).touch()
    planned = planned_sweep(Path("job.yaml"), "train.gan.generator_weights=$SCRATCH/a,$SCRATCH/b")
    (group,) = planned.groups
    assert group.plan.expanded == (f"train.data.root: $SCRATCH/data is {shell}/scratch/data",)
    jobs = planned.jobs
    weights = [json.loads(job)["job"]["train"]["gan"]["generator_weights"] for job in jobs]
    assert weights == [f"{shell}/scratch/a", f"{shell}/scratch/b"]


def test_a_job_file_that_is_read_again_later_has_the_paths_of_its_first_time(shell, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/a $b")
    text = (
        "name: x\ntrain: {data: {root: $SCRATCH/c}}\ncontainer: {bind: ['~', '$SCRATCH:/d', /e]}\n"
    )
    first = load(text, r"code=\$f")
    monkeypatch.delenv("SCRATCH")
    monkeypatch.setenv("HOME", "/home/you")
    pinned = as_overrides(first.job, first.expanded)
    again = load(text, r"code=\$f", *pinned)
    assert again.job == first.job
    assert again.expanded == ()
    assert first.job.container.bind == ["/home/me", "/a $b:/d", "/e"]


def test_a_study_that_goes_on_in_another_shell_has_its_paths(shell, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    Path("job.yaml").write_text(
        "name: x\nsite: slurm\njob: {gpus_per_node: 0}\n"
        "train: {data: {name: synthetic, root: $SCRATCH/c}}\n"
    )
    options = StudyOptions(
        kinds=("strong",), nodes=(1,), repeats=1, measuring=Measuring(warmup=1, steps=2)
    )
    study = plan_study(Path("job.yaml"), [], Path("studies"), options)
    campaign = describe(SCALE, study.plan, submitting="jobs", options=study.facts())
    write(campaign, study.plan)
    monkeypatch.delenv("SCRATCH")
    (line,) = (campaign.folder / "jobs.jsonl").read_text().splitlines()
    assert json.loads(line)["job"]["train"]["data"]["root"] == "/scratch/me/c"
