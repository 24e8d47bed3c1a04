"""What a submission knows of the image: the architecture, and the Python in it. The container
program is a stub, so the Python in the image is one of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.commands import PATIENT
from support.container import sif
from support.stubs import StubHost
from support.waiting import wait_until

from hpc_amp.containers.image import machine
from hpc_amp.finding import Finding
from hpc_amp.jobs import image_check
from hpc_amp.jobs.image_check import check_image
from hpc_amp.schedulers.base import Client

TRAIN: dict[str, Any] = {"train": {"data": "synthetic"}}
FIX = "use another image (hpc-amp container list), or set container.python to another Python"

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on how fast the machine is, and none knows what another one has asked."""
    monkeypatch.setattr(image_check, "LOOK_SECONDS", 600.0)
    image_check._ask.cache_clear()


@pytest.fixture
def host(host: StubHost, monkeypatch: pytest.MonkeyPatch) -> StubHost:
    """This process is a shell on it."""
    for name, value in host.environ().items():
        monkeypatch.setenv(name, value)
    return host


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def says(host: StubHost) -> Make:
    """Makes a Python that answers without being one."""

    def make(body: str = "", **facts: str | None) -> Path:
        answer = json.dumps({"python": "3.11.2", "prefix": "/usr", "torch": "2.6.0", **facts})
        path = host.folder / "python"
        path.write_text(f"#!/bin/sh\n{body}\necho 'hpc-amp-image {answer}'\n")
        path.chmod(0o755)
        return path

    return make


def found(
    host: StubHost, python: Path | str, config: dict[str, Any] = TRAIN, *overrides: str
) -> list[Finding]:
    """What the check says of a job in the host's image."""
    image = str(host.image).replace("$", r"\$")
    container = {"image": image, "python": str(python), **config.get("container", {})}
    plan = host.plan({**config, "container": container}, *overrides)
    image_check._ask.cache_clear()
    return list(check_image(plan, Client(600)))


def patient(host: StubHost, *words: str) -> subprocess.CompletedProcess[str]:
    """`hpc-amp`, which waits for an image as long as it takes."""
    return commands.python(*PATIENT, *words, cwd=host.work, environ=host.environ())


def starts(host: StubHost) -> int:
    """How often the image was started."""
    return sum(words[0] == "exec" for words in host.calls("apptainer"))


def records(host: StubHost) -> list[Path]:
    return sorted((host.folder / "state-home" / "hpc-amp" / "images").iterdir())


# ---- the commands --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("submit", " (--no-check submits the job all the same)"),
        ("validate", ""),
        ("sweep train.seed=1,2,3", " (--no-check submits the job all the same)"),
        ("scale --nodes=1,2 --yes", " (--no-check submits the job all the same)"),
        ("bench --submit --yes", " (--no-check submits the job all the same)"),
    ],
)
def test_an_image_without_torch_is_refused(
    words: str, more: str, host: StubHost, bare: Path
) -> None:
    container = {"image": str(host.image), "python": str(bare)}
    host.write_job({"name": "x", "site": "slurm", "container": container, **TRAIN})
    command, *rest = words.split()
    result = patient(host, command, "job.yaml", "job.gpus_per_node=1", *rest)
    assert result.returncode == 2, result.stderr
    what = f"hpc-amp: {bare} in the image {host.image} has no torch, which training needs"
    assert result.stderr.startswith(what)
    assert result.stderr.endswith(f"; {FIX}{more}\n")
    assert len(result.stderr.splitlines()) == 1
    assert host.calls("sbatch") == []
    assert starts(host) == 1


def test_the_check_can_be_left_out(host: StubHost, bare: Path) -> None:
    container = {"image": str(host.image), "python": str(bare)}
    host.write_job({"name": "x", "site": "slurm", "container": container, **TRAIN})
    assert patient(host, "submit", "job.yaml", "--no-check").returncode == 0
    assert starts(host) == 0


def test_a_program_of_the_user_may_not_need_torch(host: StubHost, bare: Path) -> None:
    assert found(host, bare, {"run": ["python", "x.py"]}) == []
    assert starts(host) == 1
    assert [one.severity for one in found(host, bare)] == ["error"]  # what was recorded is not this


def test_without_a_container_nothing_is_started(host: StubHost) -> None:
    plan = host.plan({"container": {"image": "x.sif", "runtime": "none"}, **TRAIN})
    assert list(check_image(plan, Client(600))) == []


# ---- what the image says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"python": "3.9.18"}, "is Python 3.9.18, and hpc-amp needs 3.10 or newer"),
        ({"torch": None}, "has no torch, which training needs"),
        ({"torch": "2.0.1+cu118"}, "has torch 2.0.1+cu118, and training needs 2.1 or newer"),
        ({"torch": "2.1.0a0+32f93b1"}, None),
        ({"torch": ""}, None),
        ({"python": "3.13.0rc1"}, None),
    ],
)
def test_what_is_too_old(
    facts: dict[str, str], said: str | None, host: StubHost, says: Make
) -> None:
    findings = found(host, says(**facts))
    if said is None:
        assert findings == []
        return
    (only,) = findings
    assert (only.id, only.severity, only.fix) == ("img.python", "error", FIX)
    assert only.what == f"{host.folder}/python in the image {host.image} {said}"


def test_torch_is_found_as_a_rank_finds_it(host: StubHost, bare: Path, tmp_path: Path) -> None:
    """By a real Python, in a folder that the job adds to its search path inside."""
    package = tmp_path / "more" / "torch"
    package.mkdir(parents=True)
    env = {"env": {"PYTHONPATH": str(package.parent)}}
    (only,) = found(host, bare, {**TRAIN, "container": env})
    assert "has no torch" in only.what  # a folder without a module is none

    (package / "__init__.py").write_text("raise ImportError('this takes seconds')")
    (package / "version.py").write_text("__all__ = []\n__version__ = '1.13.1+cu117'\n")
    (only,) = found(host, bare, {**TRAIN, "container": env})
    assert "has torch 1.13.1+cu117, and" in only.what

    (package / "version.py").write_text('__version__ = "2.8.0a0+5228986c39.nv25.06"\n')
    assert found(host, bare, {**TRAIN, "container": env}) == []
    assert [one.severity for one in found(host, bare)] == ["error"]


def test_options_of_site_and_job_are_passed(host: StubHost, says: Make) -> None:
    found(host, says(), {**TRAIN, "container": {"args": ["--env=A=1", "--rocm"]}})
    (words,) = [words for words in host.calls("apptainer") if words[0] == "exec"]
    assert words[words.index(str(host.image)) - 2 :][:2] == ["--env=A=1", "--rocm"]


@pytest.mark.parametrize(
    ("said", "program", "missing"),
    [
        ('"pythonx": executable file not found in $PATH', "pythonx", True),
        ("stat /opt/x/python: no such file or directory", "/opt/x/python", True),
        ("can't execve(2): python3: No such file or directory", "python3", True),
        ("executable file `python3` not found in $PATH", "python3", True),
        ("mount source /opt/python3 not found", "python3", False),
        ("stat /opt/python3/lib: no such file or directory", "python3", False),
        ("stat /opt/x/python/lib: no such file or directory", "/opt/x/python", False),
        ("python3: error while loading shared libraries: x: not found", "python3", False),
        ("could not open image", "python3", False),
    ],
)
def test_a_program_that_the_image_does_not_have(said: str, program: str, missing: bool) -> None:
    assert image_check._names_missing(said, program) == missing


def test_an_image_without_python(host: StubHost) -> None:
    (host.state / "empty-image").touch()
    what = f"the image {host.image} has no /opt/python"
    # Modules often set APPTAINER_BIND.
    for setup, severity in (("", "error"), ("module load python", "warning"), ("ml x", "warning")):
        (only,) = found(host, "/opt/python", {"run": ["true"], "job": {"setup": setup}})
        assert (only.severity, only.what) == (severity, what)


def test_a_container_that_does_not_start_here_is_no_reason_to_refuse(
    host: StubHost, says: Make
) -> None:
    """Nor to record that the image needs no further look: the next start may succeed."""
    assert found(host, says("echo 'FATAL: no space left' >&2; exit 255")) == []
    assert [one.severity for one in found(host, says(torch=None))] == ["error"]


def test_without_the_runtime_nothing_is_known_or_recorded(host: StubHost, bare: Path) -> None:
    (host.bin / "apptainer").rename(host.folder / "apptainer")
    os.environ["PATH"] = str(host.bin)  # this machine may have the runtime, too
    assert found(host, bare) == []
    assert not (host.folder / "state-home").exists()


# ---- what this machine cannot know ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "severity"),
    [
        ("module use /x\nmodule load cuda", "error"),
        ("ml cuda; export http_proxy=x LD_LIBRARY_PATH=y", "error"),
        ("pip install --target=more torch", "warning"),
        ("source env.sh", "warning"),
        ("export PYTHONPATH=more", "warning"),
        ("export PATH=/venv/bin:$PATH", "warning"),
        ("export APPTAINERENV_PREPEND_PATH=/venv/bin", "warning"),
        ("SINGULARITY_BIND=/a:/b module load x", "warning"),
    ],
)
def test_setup_may_provide_what_is_missing(
    setup: str, severity: str, host: StubHost, says: Make
) -> None:
    # Apptainer reads the variables of Singularity, too.
    container = {"runtime": "apptainer"}
    config = {**TRAIN, "container": container, "job": {"setup": setup}}
    (only,) = found(host, says(torch=None), config)
    assert only.severity == severity
    assert only.why.endswith("unless its setup or its nodes provide it") == (severity == "warning")


def test_folders_of_the_nodes_may_provide_what_is_missing(host: StubHost, says: Make) -> None:
    config = {**TRAIN, "container": {"bind": ["/of/the/nodes"]}}
    assert [one.severity for one in found(host, says(torch=None), config)] == ["warning"]


def test_a_python_outside_of_the_image_is_not_refused(
    host: StubHost, bare: Path, says: Make
) -> None:
    config = {**TRAIN, "container": {"bind": [str(bare.parents[1])]}}
    assert [one.severity for one in found(host, bare, config)] == ["warning"]
    assert [one.severity for one in found(host, says(torch=None), config)] == ["error"]


# ---- the architecture ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "nodes", "said"),
    [
        ("04", ["x86_64"], "is for arm64, and the nodes are amd64"),
        ("02", ["aarch64"], "is for amd64, and the nodes are arm64"),
        ("06", ["aarch64", "x86_64"], "is for ppc64le, and the nodes are amd64, arm64"),
        ("04", ["x86_64", "aarch64"], None),
        ("01", ["x86_64"], None),
        ("04", [], None),
    ],
)
def test_an_image_for_none_of_the_nodes(
    code: str, nodes: list[str], said: str | None, host: StubHost, says: Make
) -> None:
    lines = [f"NodeName=n{i} Arch={name} Partitions=other" for i, name in enumerate(nodes)]
    (host.bin / "scontrol").unlink()
    (host.bin / "scontrol").write_text("#!/bin/sh\n" + "".join(f"echo '{x}'\n" for x in lines))
    (host.bin / "scontrol").chmod(0o755)
    host.image.write_bytes(sif(code))
    findings = found(host, says(), {**TRAIN, "job": {"queue": "batch"}})
    if said is None:
        assert findings == []
        assert len(records(host)) == 1  # the scheduler is not asked again
        return
    (only,) = findings
    assert (only.id, only.severity) == ("img.arch", "error")
    assert only.what == f"the image {host.image} {said}"
    assert starts(host) == 0


def test_an_image_for_this_machine_is_started(host: StubHost, says: Make) -> None:
    own = {"amd64": "02", "arm64": "04"}.get(machine())
    if own is None:
        pytest.skip(f"this machine is {machine()}")
    host.image.write_bytes(sif(own))
    assert len(found(host, says(torch=None), {**TRAIN, "site": "local"})) == 1


# ---- the record ----------------------------------------------------------------------------------


def test_an_image_is_started_once(host: StubHost, says: Make) -> None:
    python = says()
    assert found(host, python) == found(host, python) == []
    assert starts(host) == 1
    (record,) = records(host)
    assert record.read_text() == f"{host.image}\n"

    host.image.write_text("hsqs: another image in its place")
    assert found(host, says(torch=None))[0].severity == "error"
    assert starts(host) == 2


def test_jobs_in_several_folders_share_a_record(host: StubHost, says: Make) -> None:
    """Unless Python is told to look in the folder."""
    python = says()
    (host.work / "more").mkdir()
    container = {"image": str(host.image), "python": str(python)}
    for folder in (host.work, host.work / "more"):
        plan = host.plan({"container": container, **TRAIN}, cwd=folder)
        assert list(check_image(plan, Client(600))) == []
    assert starts(host) == 1
    own = {"env": {"PYTHONPATH": str(host.work / "packages")}}
    assert found(host, python, {**TRAIN, "container": own}) == []
    (_, words) = [words for words in host.calls("apptainer") if words[0] == "exec"]
    assert str(host.work) in words


def test_what_was_wrong_is_looked_at_again(host: StubHost, says: Make) -> None:
    """It may have been mended, deep in a folder."""
    assert found(host, says(torch=None)) != []
    assert found(host, says(torch=None)) != []
    assert found(host, says()) == []


def test_a_record_expires(host: StubHost, says: Make) -> None:
    found(host, says())
    (record,) = records(host)
    left_over = record.with_name(".left-over")
    left_over.touch()
    for path in (record, left_over):
        os.utime(path, (1, 1))
    found(host, says())
    assert starts(host) == 2
    assert records(host) == [record]


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null"])
def test_a_state_folder_that_cannot_be_written(
    home: str, host: StubHost, says: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", home)
    assert found(host, says()) == []
    assert found(host, says(torch=None))[0].severity == "error"


def test_an_image_that_does_not_answer_is_not_waited_for_again(
    host: StubHost, says: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_check, "LOOK_SECONDS", 3.0)
    python = says(f"echo $$ >>{host.folder}/pids; exec sleep 600")
    assert found(host, python) == found(host, python) == []
    assert starts(host) <= 1 and len(records(host)) == 1
    pids = host.folder / "pids"
    if pids.exists():  # a slow machine may not have come that far
        pid = pids.read_text().strip()
        wait_until(lambda: not Path("/proc", pid).exists(), "the end of the container")


def test_a_runtime_that_does_not_tell_its_version_is_not_waited_for_longer(
    host: StubHost, says: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_check, "LOOK_SECONDS", 0.5)
    host.before("apptainer", "exec sleep 600\n")
    assert found(host, says()) == []
    assert len(records(host)) == 1


def test_writers_at_the_same_time(host: StubHost, says: Make) -> None:
    found(host, says())
    (record,) = records(host)

    def write() -> None:
        for number in range(50):
            image_check._write(record, str(host.image))
            image_check._write(record.with_name(f"{number}"), "another")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert record.read_text() == f"{host.image}\n"
    assert len(records(host)) == 51  # and no temporary files


@pytest.mark.parametrize(
    "name", ["a b.sif", "$(touch x)'\".sif", "`x`;|&.sif", "ü  .sif", "-x.sif", "../host/i.sif"]
)
def test_names_of_images(name: str, host: StubHost, says: Make) -> None:
    host.image = host.folder / name
    host.image.write_text("hsqs: the beginning of an image")
    (only,) = found(host, says(torch=None))
    assert os.path.realpath(host.image) in only.what
    assert found(host, says()) == []
    (record,) = records(host)
    assert record.read_text() == f"{os.path.realpath(host.image)}\n"
    assert record.name.isalnum()
    assert not (host.work / "x").exists()
