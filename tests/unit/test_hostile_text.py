"""Whatever text a configuration or a folder's name holds: it reaches the training process
unchanged, or it is refused with one clear line. The rendered scripts run in the real bash, with
stubs of Slurm's commands and of Apptainer around them."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.container import sif
from support.environment import working_directory
from support.stubs import RUN_ID, StubHost, read_reports, report_command

from hpc_amp.config.paths import literal
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs.submit import prepare

# Each example starts a dozen processes.
few = settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
many = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

NASTY = (
    "",
    " ",
    "a b",
    "it's",
    'say "hi"',
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME ${HOME} $$",
    "back\\slash",
    "ends\\",
    "a,b",
    "# no comment",
    "%j %% %s",
    "a;b&c|d>e<f",
    "line\nbreak\n",
    "tab\tand\rreturn",
    "-rf",
    "--help",
    "*",
    "~",
    "{a,b}",
    "!!",
    "{{ x }} {% raw %}",
    "ünï💥\u202e",
    "\x01\x7f\u0085\u2028",
)
text = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.sampled_from("'\"\\ $`()#%;,\n\té💥-=x"), max_size=12),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)
# What a folder's name can be: no slash, no NUL, not too long, and not one of the two special ones.
folder_name = (
    st.one_of(
        st.sampled_from([nasty for nasty in NASTY if nasty]),
        st.text(st.sampled_from("'\"\\ $`()#%;,:^\né💥-=x"), min_size=1, max_size=12),
    )
    .filter(lambda name: name not in (".", ".."))
    .filter(lambda name: "/" not in name)
)


@pytest.fixture(scope="module", autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where `stub_host` makes its folders: each example has one of its own."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("hosts"))
    yield
    tempfile.tempdir = before


@contextlib.contextmanager
def stub_host() -> Iterator[StubHost]:
    with tempfile.TemporaryDirectory() as folder:
        yield StubHost(Path(folder).resolve())


def carried_by_a_path(name: str) -> bool:
    """Whether a folder name is one that a batch script and a search path can carry."""
    return not any(ord(letter) < 32 or letter in ":\x7f" for letter in name)


def carried_by_a_mount(path: str) -> bool:
    """Whether Apptainer's `-B` can carry a path, by what a real 1.4.5 does."""
    trimmed = path.rstrip() == path and not path.endswith("\\")
    return carried_by_a_path(path) and trimmed and not any(letter in ",^" for letter in path)


def one_line(error: Exception) -> bool:
    return not any(letter in "\n\r\v\f" for letter in str(error))


@pytest.fixture(scope="module")
def plain_environ() -> dict[str, str]:
    """The environment of a training process whose job sets none."""
    with stub_host() as host:
        out = host.folder / "out"
        ended = host.run(host.create({"run": report_command(out), "job": {"gpus_per_node": 0}}))
        assert ended.status == 0, ended.output
        return read_reports(out)[0].environ


# Variables that jobs in a container have besides.
CONTAINER_ADDS = {"TMPDIR", "HPC_AMP_CONTAINER", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}


@pytest.mark.parametrize("site", ["slurm", "local"])
@pytest.mark.parametrize("container", [False, True], ids=["none", "apptainer"])
def test_arguments_and_environment(
    site: str, container: bool, plain_environ: dict[str, str]
) -> None:
    """Every nasty text at once, as an argument and as a value, and once more from hypothesis."""

    @few
    @given(
        arguments=st.lists(text, max_size=4),
        values=st.lists(text, max_size=4),
        image=folder_name,
    )
    @example(arguments=list(NASTY), values=list(NASTY), image="im,a:ge^ $(x)'\"\\#%j.sif")
    def check(arguments: list[str], values: list[str], image: str) -> None:
        with stub_host() as host:
            out = host.folder / "out"
            env = {f"VALUE_{index}": value for index, value in enumerate(values)}
            config: dict[str, Any] = {
                "site": site,
                "run": report_command(out, arguments),
                "container": {"env": env},
            }
            if container:
                if any(ord(letter) < 32 or letter == "\x7f" for letter in image):
                    image = "image"
                (host.folder / image).write_bytes(sif())
                config["container"] |= {
                    "image": literal(str(host.folder / image)), "python": sys.executable
                }  # fmt: skip
            ended = host.run(host.create(config))

            assert ended.status == 0, ended.output
            (report,) = read_reports(out)
            assert report.argv == arguments
            assert {name: report.environ.get(name) for name in env} == env
            assert set(report.environ) - set(plain_environ) <= {*env, *CONTAINER_ADDS}
            assert report.cwd == str(host.work)
            assert not list(host.folder.rglob("pwned"))
            if container:
                (_, call) = host.calls("apptainer")
                assert call[call.index("--pwd") + 2] == str(host.folder / image)

    check()


@pytest.mark.parametrize("container", [False, True], ids=["none", "apptainer"])
def test_working_and_run_directory(container: bool) -> None:
    """A folder's name is carried all the way, or refused before anything is written."""

    @settings(few, max_examples=12)
    @given(work=folder_name, runs=folder_name)
    @example(work="a b'c\"d\\e$(touch pwned)`touch pwned`#f%j ünï💥", runs="-x;&|<>*~{y}!")
    @example(work="a,b", runs="r")
    @example(work="w", runs="a^b")
    @example(work="blank ", runs="r")
    @example(work="back\\", runs="r")
    @example(work="a:b", runs="r")
    @example(work="line\nbreak", runs="r")
    @example(work="w", runs="a,b")
    def check(work: str, runs: str) -> None:
        with stub_host() as host:
            cwd = host.work / work
            cwd.mkdir()
            out = host.folder / "out"
            config: dict[str, Any] = {"run": report_command(out), "runs_dir": literal(f"./{runs}")}
            if container:
                config["container"] = {"image": str(host.image), "python": sys.executable}
            carried = all(carried_by_a_path(name) for name in (work, runs))
            if container:
                carried &= carried_by_a_mount(str(cwd))
                carried &= carried_by_a_mount(f"{cwd}/{runs}/test/{RUN_ID}")
            try:
                run_dir = host.create(config, cwd=cwd)
            except (ConfigError, UsageError) as error:
                assert not carried
                assert one_line(error)
                assert os.listdir(cwd) == []
                return

            assert carried
            assert run_dir == cwd / runs / "test" / RUN_ID
            ended = host.run(run_dir)
            assert ended.status == 0, ended.output
            assert read_reports(out)[0].cwd == str(cwd)
            assert not list(host.folder.rglob("pwned"))

    check()


@few
@given(source=folder_name, destination=folder_name, data=folder_name)
@example(source="a b'\"$(touch pwned)`x`#%", destination="c d'\"$(touch pwned)", data="da ta'$(x)")
@example(source="a,b", destination="d", data="data")
@example(source="s", destination="a^b", data="data")
@example(source="s", destination="d", data="a,b")
@example(source="end\\", destination="d", data="data")
def test_binds_and_data(source: str, destination: str, data: str) -> None:
    """Each bind is one word of the container's command line, as it was written."""
    with stub_host() as host:
        for name in (source, data):
            (host.folder / "x" / name).mkdir(parents=True, exist_ok=True)
        bind = f"{host.folder}/x/{source}:/inside/{destination}:ro"
        root = f"{host.folder}/x/{data}"
        config = {
            "train": {"data": {"name": "synthetic", "root": literal(root)}, "batch_size": 1},
            "container": {
                "image": str(host.image),
                "python": sys.executable,
                "bind": [literal(bind)],
            },
        }
        carried = all(
            carried_by_a_mount(path)
            for path in (f"/x/{source}", f"/inside/{destination}", f"/x/{data}")
        )
        try:
            run_dir = host.create(config)
        except ConfigError as error:
            assert not carried
            assert one_line(error)
            return

        assert carried
        # Training itself needs torch and is tested elsewhere: whatever comes of it, the container
        # was asked for the right thing.
        stop_before_the_program(host)
        host.run(run_dir)
        (_, call) = host.calls("apptainer")
        binds = [value for option, value in itertools.pairwise(call) if option == "-B"]
        assert binds == [bind, str(host.work), root]
        assert not list(host.folder.rglob("pwned"))


def stop_before_the_program(host: StubHost) -> None:
    """Make the stub image one without the program."""
    (host.state / "empty-image").touch()


@few
@given(words=st.lists(text.filter(lambda word: word.isprintable()), max_size=4))
@example(words=[word for word in NASTY if word.isprintable()])
def test_options_for_container_and_launcher(words: list[str]) -> None:
    with stub_host() as host:
        out = host.folder / "out"
        options = [f"--env=X={word}" for word in words]
        comments = [f"--comment={word}" for word in words]
        config = {
            "run": report_command(out),
            "launch": {"args": comments},
            "container": {"image": str(host.image), "python": sys.executable, "args": options},
        }
        ended = host.run(host.create(config))

        assert ended.status == 0, ended.output
        (srun,) = host.calls("srun")
        assert [word for word in srun if word.startswith("--comment=")] == comments
        (_, call) = host.calls("apptainer")
        assert call[call.index(str(host.image)) - len(options) : call.index(str(host.image))] == (
            options
        )
        assert not list(host.folder.rglob("pwned"))


@many
@given(
    key=st.sampled_from(
        ["job.queue", "job.account", "container.image", "container.python", "runs_dir", "code"]
    ),
    value=text,
)
@example(key="job.queue", value="a\nb")
@example(key="code", value="a\0b")
@example(key="container.image", value="")
def test_any_text_in_a_one_line_value_is_taken_or_refused_in_one_line(key: str, value: str) -> None:
    """Nothing but ConfigError and UsageError comes out of a bad value."""
    with tempfile.TemporaryDirectory() as folder, working_directory(Path(folder)):
        section, _, name = key.rpartition(".")
        config: dict[str, Any] = {"name": "test", "site": "slurm", "run": ["true"]}
        config |= {section: {name: value}} if section else {name: value}
        Path("job.yaml").write_text(yaml.safe_dump(config))
        try:
            prepare(Path("job.yaml"), [])
        except (ConfigError, UsageError) as error:
            assert one_line(error)
        else:
            assert not any(ord(letter) < 32 or letter == "\x7f" for letter in value)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"latin-\xe9"])
def test_a_folder_whose_name_is_not_text_is_refused(name: bytes, tmp_path: Path) -> None:
    host = StubHost(tmp_path / "host")
    cwd = Path(os.fsdecode(os.fsencode(host.work) + b"/" + name))
    cwd.mkdir()

    with pytest.raises(ConfigError, match="a byte that is not UTF-8"):
        host.create({"run": ["true"]}, cwd=cwd)


def test_setup_is_shell_and_stays_as_it_was_written(host: StubHost, tmp_path: Path) -> None:
    setup = 'greeting="$(printf "%s" "a  b")"\nexport GREETING=$greeting # {{ not jinja }}'
    out = tmp_path / "out"

    ended = host.run(host.create({"run": report_command(out), "job": {"setup": setup}}))

    assert ended.status == 0, ended.output
    assert read_reports(out)[0].environ["GREETING"] == "a  b"
