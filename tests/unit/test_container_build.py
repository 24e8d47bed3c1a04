"""`hpc-amp container build` and `pull` with a container program that notes how it is called.
tests/cluster/test_containers.py does it with the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support import commands
from support.container import MAKES, FakeRuntime, fake_runtime, sif
from support.environment import REPOSITORY, clean_environ
from support.waiting import wait_until

from hpc_amp.containers.apptainer import places as places_module
from hpc_amp.containers.apptainer.program import explain, find_runtime, run
from hpc_amp.containers.apptainer.pull import file_name, pulling

DEFINITION = "Bootstrap: docker\nFrom: debian:trixie-slim\n\n%post\n    true\n"
NGC = "docker://nvcr.io/nvidia/pytorch:25.06-py3"
SECRET = "nvapi-s3cr3t"


class Desk:
    """A folder to work in, a home folder and a container program."""

    def __init__(self, folder: Path) -> None:
        self.runtime: FakeRuntime = fake_runtime(folder / "runtime")
        self.work = folder / "work"
        self.home = folder / "home"
        for made in (self.work, self.home):
            made.mkdir()
        (self.work / "x.def").write_text(DEFINITION)
        self.image = self.work / "x.sif"

    def environ(self, **more: str) -> dict[str, str]:
        clean = clean_environ(HOME=str(self.home), **more)
        clean = {name: value for name, value in clean.items() if "proxy" not in name.lower()}
        return {**clean, "PATH": f"{self.runtime.bin}:/usr/bin:/bin", **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "hpc_amp", "container", *arguments],
            cwd=self.work,
            env=self.environ(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = ("container", *arguments)
        return commands.hpc_amp(*words, cwd=self.work, environ=self.environ(**more))

    def build(self, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("build", "x.def", "x.sif", "--site=local", *options, **more)

    def pull(self, uri: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("pull", uri, "--site=local", *options, **more)

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.work.iterdir()}


@pytest.fixture
def tmp_path(disk: Path) -> Path:
    """Nothing is built in memory."""
    return disk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_image_appears_whole_and_nothing_else_stays(desk: Desk) -> None:
    ended = desk.build()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == str(desk.image)
    assert desk.image.read_bytes() == sif()
    assert desk.left == {"x.def", "x.sif"}
    argv, environ = desk.runtime.call["argv"], desk.runtime.call["env"]
    assert argv[0] == "build"
    assert argv[-1] == "x.def"
    assert Path(argv[-2]).parent == desk.work  # a rename away from its place
    assert "--fakeroot" not in argv
    for name in ("TMPDIR", "CACHEDIR"):
        folder = environ[f"APPTAINER_{name}"]
        assert folder == environ[f"SINGULARITY_{name}"]
        assert Path(folder).parent.parent == desk.work
    assert environ["TMPDIR"] == environ["APPTAINER_TMPDIR"]
    assert "INFO: working with None\n" in ended.stderr


def test_options_reach_the_runtime(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "tmp").mkdir()
    ended = desk.build(
        *("--fakeroot", "--arg=--no-https", "--arg=--mksquashfs-args", "--arg=-comp gzip"),
        *("--cache-dir", str(tmp_path / "cache"), "--tmp-dir", str(tmp_path / "tmp")),
    )
    assert ended.returncode == 0, ended.stderr
    argv, environ = desk.runtime.call["argv"], desk.runtime.call["env"]
    assert argv[1:5] == ["--fakeroot", "--no-https", "--mksquashfs-args", "-comp gzip"]
    assert environ["APPTAINER_CACHEDIR"] == str(tmp_path / "cache")
    assert Path(environ["APPTAINER_TMPDIR"]).parent.parent == tmp_path / "tmp"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_site_gives_fakeroot_proxies_and_places(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    proxy = "http://proxy.example.org:3128"
    (desk.work / "site.yaml").write_text(
        "scheduler: local\ncontainer_args: [--fakeroot]\n"
        f"env: {{https_proxy: '{proxy}', APPTAINER_TMPDIR: {tmp_path / 'scratch'}}}\n"
    )
    ended = desk.run("build", "x.def", "x.sif", "--site=./site.yaml")
    assert ended.returncode == 0, ended.stderr
    argv, environ = desk.runtime.call["argv"], desk.runtime.call["env"]
    assert argv[1] == "--fakeroot"
    assert environ["https_proxy"] == environ["HTTPS_PROXY"] == proxy
    # What is built gets them too: nothing else of the host's environment is seen there.
    assert environ["APPTAINERENV_https_proxy"] == environ["SINGULARITYENV_https_proxy"] == proxy
    assert Path(environ["APPTAINER_TMPDIR"]).parent.parent == tmp_path / "scratch"
    no = desk.run("build", "x.def", "y.sif", "--site=./site.yaml", "--no-fakeroot")
    assert no.returncode == 0
    assert "--fakeroot" not in desk.runtime.calls[1]["argv"]


def test_a_proxy_that_would_be_evaluated_is_refused(desk: Desk) -> None:
    ended = desk.build(http_proxy="http://me:$(id)@proxy:1")
    assert (ended.returncode, desk.runtime.calls) == (2, [])
    assert "http_proxy has a character that the runtime would evaluate as shell" in ended.stderr


def test_the_home_folder_and_memory_are_avoided(desk: Desk) -> None:
    ended = desk.build(
        SINGULARITY_CACHEDIR=str(desk.home), APPTAINER_TMPDIR="/dev/shm", APPTAINER_CACHEDIR="/no"
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        f"SINGULARITY_CACHEDIR={desk.home} is not used: it is in your home folder" in ended.stderr
    )
    assert "APPTAINER_CACHEDIR=/no is not used: it is not a folder" in ended.stderr
    assert "APPTAINER_TMPDIR=/dev/shm is not used: it is in memory" in ended.stderr
    environ = desk.runtime.call["env"]
    for name in ("APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR", "APPTAINER_TMPDIR"):
        assert Path(environ[name]).is_relative_to(desk.work)


def test_too_little_space_is_found_before_anything_is_fetched(desk: Desk) -> None:
    ended = desk.build("--size", "900TiB")
    assert (ended.returncode, desk.runtime.calls) == (1, [])
    assert f"{desk.work} has " in ended.stderr
    assert "and the build needs about 2764800.0 GiB there" in ended.stderr
    assert "--tmp-dir" in ended.stderr
    assert desk.left == {"x.def"}


def test_a_full_place_for_temporary_files_is_named(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    made = places_module.Places(full / ".x", full / ".x", False)
    for folder in (full, full / ".x"):
        folder.mkdir()
    real = os.statvfs

    def statvfs(path: object) -> object:
        if Path(str(path)).is_relative_to(full):
            return type("Full", (), {"f_bavail": 100, "f_frsize": 4096})
        return real(str(path))

    monkeypatch.setattr(places_module.os, "statvfs", statvfs)
    with pytest.raises(
        Exception, match=rf"^{full} has 0 MiB free, and the pull needs about 90 MiB"
    ):
        places_module.check_space(made, full / "x.sif", 30 * 2**20, factor=3.0, what="the pull")


@pytest.mark.parametrize(("place", "status"), [("/proc", 1), ("/proc/absent", 2)])
def test_a_place_that_cannot_be_used_is_refused(desk: Desk, place: str, status: int) -> None:
    ended = desk.build("--tmp-dir", place)
    assert (ended.returncode, desk.runtime.calls) == (status, [])
    assert place in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_image_is_not_replaced_unasked(desk: Desk) -> None:
    desk.image.write_text("precious")
    refused = desk.build()
    assert (refused.returncode, desk.runtime.calls) == (2, [])
    assert "exists already; use --force" in refused.stderr
    assert desk.image.read_text() == "precious"
    desk.runtime.fails("FATAL: no\n")
    assert desk.build("--force").returncode == 1
    assert desk.image.read_text() == "precious"
    desk.runtime.does(MAKES)
    assert desk.build("--force").returncode == 0
    assert desk.image.read_bytes() == sif()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "FATAL:   could not use fakeroot: no mapping entry found in /etc/subuid for me",
            "ids for you",
        ),
        ("FATAL:   newuidmap was not found in PATH", "needs newuidmap here"),
        (
            "faked: /lib/libc.so.6: version `GLIBC_2.38' not found (required by faked)",
            "ignore-fakeroot",
        ),
        ("FATAL: While making image: write /x: no space left on device", "--tmp-dir"),
        (
            "ERROR: Requesting capability set 0x1 while permitted",
            "as an ordinary user with --fakeroot",
        ),
        ("FATAL: reading manifest: unauthorized: authentication required", "NGC_API_KEY"),
        ("FATAL: pinging registry: dial tcp: lookup nvcr.io: no such host", "https_proxy"),
        ("FATAL: initializing source: manifest unknown", "no such image or tag"),
        ("FATAL: toomanyrequests: You have reached your pull rate limit", "anonymous pulls"),
        ("FATAL: http: server gave HTTP response to HTTPS client", "--arg=--no-https"),
        ("hpc-amp: torch has changed while\nFATAL: While running %post", "replaced files"),
        ("ERROR: ResolutionImpossible: for help\nFATAL: %post section", "wants another torch"),
        ("Downloading 401 MiB / 404 MiB\nFATAL: something new", None),
        ("FATAL: invalid status code from registry 401 (Unauthorized)", "NGC_API_KEY"),
        ("FATAL: received unexpected HTTP status: 404 Not Found", "no such image or tag"),
        ("FATAL: something new", None),
    ],
)
def test_a_failure_with_a_known_cause_is_explained(
    desk: Desk, said: str, cause: str | None
) -> None:
    desk.runtime.fails(said + "\n")
    ended = desk.build()
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("hpc-amp: the build of x.def failed (status 255): ")
    assert (cause in last) if cause else last.endswith(": something new")
    assert desk.left == {"x.def"}


def test_what_is_not_an_image_takes_no_place(desk: Desk) -> None:
    (desk.runtime.state / "image").write_bytes(sif(missing=5))
    ended = desk.build()
    assert ended.returncode != 0
    assert "is cut off" in ended.stderr
    assert desk.left == {"x.def"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing(desk: Desk, number: signal.Signals) -> None:
    desk.runtime.does(
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(1))\n"
        "open(sys.argv[-2], 'w').write('half'); print('begun', flush=True); time.sleep(600)"
    )
    process = desk.start("build", "x.def", "x.sif", "--site=local")
    assert process.stderr is not None
    for line in process.stderr:
        if line == "begun\n":
            break
    process.send_signal(number)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130
    assert "stopped; no image was made" in said
    assert desk.left == {"x.def"}


def test_folders_without_write_permission_are_removed_too(desk: Desk) -> None:
    desk.runtime.does(
        "t = os.environ['APPTAINER_TMPDIR']; os.makedirs(t + '/a/b'); open(t + '/a/b/c', 'w')\n"
        "os.chmod(t + '/a/b', 0o500); os.chmod(t + '/a', 0o500); sys.exit(1)"
    )
    assert desk.build().returncode == 1
    assert desk.left == {"x.def"}


def test_output_comes_line_by_line(desk: Desk) -> None:
    desk.runtime.does(
        "print('one', flush=True)\nwhile not os.path.exists(state + '/go'): time.sleep(0.01)\n"
        + MAKES
    )
    process = desk.start("build", "x.def", "x.sif", "--site=local")
    assert process.stderr is not None
    assert "building" in process.stderr.readline()
    assert process.stderr.readline() == "one\n"  # while the build still runs
    (desk.runtime.state / "go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_on_a_terminal_the_runtime_sees_one(desk: Desk) -> None:
    desk.runtime.does("print('terminal', sys.stdout.isatty(), sys.stderr.isatty())\n" + MAKES)
    command = f"{sys.executable} -m hpc_amp container build x.def x.sif --site=local"
    shown = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=desk.work, env=desk.environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout
    assert "terminal True True" in shown.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "there is no definition file x.def"), ("FROM debian\n", "it has no Bootstrap line")],
)
def test_a_file_that_is_no_definition(desk: Desk, text: str | None, message: str) -> None:
    (desk.work / "x.def").unlink()
    if text:
        (desk.work / "x.def").write_text(text)
    ended = desk.build()
    assert (ended.returncode, desk.runtime.calls) == (2, [])
    assert message in ended.stderr


RANKS = {
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "mpiexec": {"PMI_RANK": "0", "PMI_SIZE": "2"},
}


@pytest.mark.parametrize("launcher", RANKS)
def test_ranks_do_not_pull(desk: Desk, launcher: str) -> None:
    ended = desk.pull(NGC, "--size=1MB", **RANKS[launcher])
    assert (ended.returncode, desk.runtime.calls) == (2, [])
    rank, size = sorted(RANKS[launcher].items())[0][1], sorted(RANKS[launcher].items())[1][1]
    assert f"this is rank {rank} of {size}, and each would pull the image" in ended.stderr


def test_a_batch_script_may_pull(desk: Desk) -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}
    assert desk.pull(NGC, "--size=1MB", **batch).returncode == 0


def test_the_key_goes_to_nvidia_and_nowhere_else(desk: Desk, tmp_path: Path) -> None:
    ended = desk.pull(NGC, "--size=1MB", NGC_API_KEY=SECRET)
    assert ended.returncode == 0, ended.stderr
    call = desk.runtime.call
    for prefix in ("APPTAINER", "SINGULARITY"):
        assert call["env"][f"{prefix}_DOCKER_USERNAME"] == "$oauthtoken"
        assert call["env"][f"{prefix}_DOCKER_PASSWORD"] == SECRET
    assert SECRET not in " ".join(call["argv"])
    # The stand-in prints it, as no real one should.
    assert "INFO: working with ***\n" in ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
    others = (
        "docker://debian:trixie",
        "oras://nvcr.io.example.org/a:b",
        "https://x.example/nvcr.io/a.sif",
    )
    for uri in others:
        desk.pull(uri, "--size=1MB", NGC_API_KEY=SECRET)
        assert SECRET not in json.dumps(desk.runtime.calls[-1])
    (desk.runtime.state / "calls").unlink()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_credentials_of_another_registry_are_passed_under_both_names(desk: Desk) -> None:
    mine = {"SINGULARITY_DOCKER_USERNAME": "me", "SINGULARITY_DOCKER_PASSWORD": "pw-1234"}
    ended = desk.pull(NGC, "--size=1MB", NGC_API_KEY=SECRET, **mine)
    assert ended.returncode == 0
    environ = desk.runtime.call["env"]
    assert environ["APPTAINER_DOCKER_USERNAME"] == "me"
    assert environ["APPTAINER_DOCKER_PASSWORD"] == "pw-1234"
    assert "pw-1234" not in ended.stderr


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nvcr.io/nvidia/pytorch:25.06-py3", "docker://nvcr.io/nvidia/pytorch:25.06-py3"),
        ("shub://a/b", "shub:// cannot be pulled"),
        ("docker://", "names nothing"),
        ("docker://a b", "has a blank"),
        ("docker://me:pw@host/a", "the URI has a user or a password"),
    ],
)
def test_what_cannot_be_pulled(desk: Desk, uri: str, message: str) -> None:
    ended = desk.pull(uri)
    assert (ended.returncode, desk.runtime.calls) == (2, [])
    assert message in ended.stderr
    assert "me:pw" not in ended.stderr


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        (NGC, "pytorch_25.06-py3.sif"),
        ("docker://debian", "debian.sif"),
        ("docker://a/b@sha256:00", "b.sif"),
        ("https://x.example/a/b.sif?token=1", "b.sif"),
        ("oras://h:5000/x:1", "x_1.sif"),
    ],
)
def test_an_image_is_named_after_its_source(uri: str, name: str) -> None:
    assert file_name(uri) == name


def test_an_image_that_is_there_is_not_pulled_again(desk: Desk) -> None:
    assert desk.pull(NGC, "--size=1MB").returncode == 0
    again = desk.pull(NGC)
    assert again.returncode == 0
    assert "exists already" in again.stderr
    assert len(desk.runtime.calls) == 1
    assert desk.pull(NGC, "--size=1MB", "--force").returncode == 0
    assert len(desk.runtime.calls) == 2


def test_parallel_pulls_fetch_once(desk: Desk) -> None:
    desk.runtime.does("while not os.path.exists(state + '/go'): time.sleep(0.01)\n" + MAKES)
    pulls = [desk.start("pull", NGC, "--site=local", "--size=1MB") for _ in range(4)]
    wait_until(lambda: desk.runtime.calls, "the first pull")
    time.sleep(0.5)  # for the others to come to the lock
    (desk.runtime.state / "go").touch()
    said = [process.communicate(timeout=300)[1] for process in pulls]
    assert [process.returncode for process in pulls] == [0] * 4
    assert len(desk.runtime.calls) == 1
    assert sum("exists already" in text for text in said) == 3
    assert desk.left == {"x.def", "pytorch_25.06-py3.sif"}


def test_a_lock_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    """Who waits for a lock gets the file that the holder has removed in the meantime."""
    image = tmp_path / "x.sif"
    inside: list[str] = []
    said: list[str] = []

    def work(name: str) -> None:
        with pulling(image, said.append):
            inside.append(name)
            time.sleep(0.05)
            assert inside[-1] == name
            inside.append(name)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside[0::2] == inside[1::2]
    assert len(inside) == 16
    assert any("is being pulled by process" in text for text in said)
    assert list(tmp_path.iterdir()) == []


def test_an_image_for_another_architecture(desk: Desk) -> None:
    (desk.runtime.state / "image").write_bytes(
        sif("04" if os.uname().machine == "x86_64" else "02")
    )
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    ended = desk.pull(NGC, "--size=1MB")
    assert ended.returncode == 0
    assert f"the image is for {other}, and this machine is" in ended.stderr
    wanted = desk.pull(NGC, "--size=1MB", "--force", "--arch", os.uname().machine)
    assert wanted.returncode == 1
    assert f"is an image for {other}, not for " in wanted.stderr
    argv = desk.runtime.calls[1]["argv"]
    assert argv[argv.index("--arch") + 1] in ("amd64", "arm64")


def test_a_machine_without_a_container_program(desk: Desk) -> None:
    ended = desk.run("build", "x.def", "x.sif", "--site=local", PATH="/nonexistent")
    assert ended.returncode == 1
    assert "no apptainer or singularity on this machine's PATH; load its module" in ended.stderr


@pytest.mark.parametrize(
    ("text", "flavour", "no_eval"),
    [
        ("apptainer version 1.4.5", "apptainer", ["--no-eval"]),
        ("apptainer version 1.0.3", "apptainer", []),
        ("singularity-ce version 4.1.0", "singularity-ce", ["--no-eval"]),
        ("singularity-ce version 3.9.9", "singularity-ce", []),
        ("singularity version 3.8.7-1.el8", "singularity", []),
        ("2.6.1-dist", "singularity", []),
    ],
)
def test_a_program_is_what_it_says(
    tmp_path: Path, text: str, flavour: str, no_eval: list[str]
) -> None:
    fake = fake_runtime(tmp_path, name="singularity", version=text)
    found = find_runtime(which=lambda name: str(fake.bin / name) if name[0] == "s" else None)
    assert (found.flavour, found.no_eval) == (flavour, no_eval)


def test_a_secret_that_comes_in_pieces_is_hidden(tmp_path: Path) -> None:
    out = (tmp_path / "out").open("wb")
    code = "import time\nfor c in 'a nvapi-s3cr3t b': print(end=c, flush=True); time.sleep(.01)"
    status, tail = run([sys.executable, "-c", code], dict(os.environ), secrets=[SECRET], out=out)
    out.close()
    assert status == 0
    assert tail == (tmp_path / "out").read_text() == "a *** b"


def test_the_last_word_of_a_failure_is_the_runtimes() -> None:
    said = "\x1b[31mFATAL:   While x: bad\x1b[0m\nINFO: cleaning up\n"
    assert explain(said) == ("While x: bad", None)


def test_containers_ship_with_the_package() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    assert 'containers = "hpc_amp/_share/containers"' in text
