"""Podman as a container runtime: names of images, options, what doctor says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_amp.containers.podman import Podman
from hpc_amp.errors import HpcAmpError, UsageError

PODMAN = Podman()


@pytest.mark.parametrize(
    "name",
    [
        "pytorch",
        "nvcr.io/nvidia/pytorch:25.06-py3",
        "localhost/me/train:1",
        "registry:5000/a/b_c--d",
        "nersc/pytorch:25.06.01",
        f"docker.io/library/debian:trixie@sha256:{'0' * 64}",
        "3063c51c79e1",
    ],
)
def test_names_of_images(name: str) -> None:
    PODMAN.check_image(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("docker://nvcr.io/nvidia/pytorch:25.06-py3", "write image: nvcr.io/nvidia/pytorch:25.06"),
        ("docker-archive:///tmp/a", "podman images"),
        ("/scratch/pytorch.sif", "podman load"),
        ("pytorch.sif", "podman load"),
        ("--privileged", "not the name of an image"),
        ("a b", "not the name of an image"),
        ("Me/Train", "not the name of an image"),
        ("a:b:c", "not the name of an image"),
        ("a@sha256:12", "not the name of an image"),
        ("", "not the name of an image"),
        ("a\n", "not the name of an image"),
    ],
)
def test_what_is_no_name(name: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        PODMAN.check_image(name)

    assert says in f"{raised.value.message}; {raised.value.hint}"


def test_an_image_is_no_path() -> None:
    assert not PODMAN.is_path("pytorch")
    assert PODMAN.read_image("pytorch") is None


def test_binds() -> None:
    assert PODMAN.mountable("/lus/a b,c^d")
    assert not PODMAN.mountable("/lus/a:b")


def test_it_is_told_what_it_says() -> None:
    said = 'Resolved ...\nError: workdir "/x" does not exist on container 7\n'

    assert PODMAN.explain(said) == ('workdir "/x" does not exist on container 7', None)


def client(folder: Path, *, known: str = "") -> Path:
    """A stand-in for podman-hpc that knows the image `known`, and the options of its help."""
    path = folder / "podman-hpc"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in "images --quiet {known}") echo 3063c51c79e1 ;;\n'
        '"run --help") echo "  --gpu  Enable"; echo "  -v, --volume stringArray  Bind" ;; esac\n'
    )
    path.chmod(0o755)
    return path


def test_words_for_this_machine(tmp_path: Path) -> None:
    program = client(tmp_path, known="a:1")

    def which(name: str) -> str | None:
        return str(program) if name == "podman-hpc" else None

    words = PODMAN.words_here("a:1", gpu=True, binds=["/b:/c:ro"], which=which)
    assert words[:3] == [str(program), "run", "--rm"]
    assert words[-4:] == ["--gpu", "--volume=/b:/c:ro", "--workdir=/", "a:1"]
    assert "--env-host" in words
    assert "--env-host" not in PODMAN.words_here("a:1", clean=True, which=which)
    with pytest.raises(HpcAmpError, match="no image b:1"):
        PODMAN.words_here("b:1", which=which)
    with pytest.raises(HpcAmpError, match="no podman-hpc or podman"):
        PODMAN.words_here("a:1", which=lambda name: None)


def test_options(tmp_path: Path) -> None:
    program = client(tmp_path)

    def said(*options: str, ranks: int = 4) -> tuple[str, str]:
        (found,) = PODMAN.check_options(options, ranks=ranks, which=lambda name: str(program))
        return found.severity, found.what

    assert said("--gpu", "--volume=/a:/b")[0] == "good"
    assert said("--gpus") == ("error", f"{program} run has no --gpus")
    assert said("--network=none")[0] == "error"
    assert said("--ipc=host")[0] == "error"  # the stand-in has no such option
    assert "isolates" in said("--network", "slirp4netns")[1]


@pytest.mark.cluster
def test_the_options_of_every_job_are_podman_s() -> None:
    """Held to the help of the real one, which comes with the test cluster."""
    found = set(re.findall(r"(?<=[\s(\"])--[a-z-]+", PODMAN.host_code()))
    own = found - {"--quiet", "--version", "--filter", "--force", "--time", "--gpu"}

    assert {"--env-host", "--log-driver", "--tty"} < own
    for option in sorted(own):
        (found,) = PODMAN.check_options([f"{option}=host"], ranks=4)
        assert found.severity == "good", found.what
