"""Definition files, byte for byte, and what may stand in them.

The ready-made ones in `containers` are the golden files of the default options. After a change that
is meant: `python -m pytest tests/unit/test_container_definition.py --update-golden`.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.environment import REPOSITORY, require_program

from hpc_amp.cli.container import container
from hpc_amp.containers.apptainer.definition import Definition, debian, ngc
from hpc_amp.errors import UsageError

SHIPPED = REPOSITORY / "containers"
GOLDEN = REPOSITORY / "tests" / "golden_def"
DIGEST = "sha256:" + "0123456789abcdef" * 4
CASES = {
    SHIPPED / "ngc-pytorch.def": ["ngc"],
    SHIPPED / "ngc-pytorch-mpi4py.def": ["ngc", "--mpi4py"],
    SHIPPED / "debian-cpu.def": ["debian"],
    GOLDEN / "ngc-packages.def": [
        *("ngc", "--tag", "24.05", "--digest", DIGEST, "--pip", "wandb>=0.17,<1"),
        *("--pip", "webdataset[all] ~= 0.2", "--bind-point", "/lus/eagle"),
    ],
    GOLDEN / "ngc-from-file.def": ["ngc", "--base", "images/pytorch 25.06.sif", "--mpi4py"],
    GOLDEN / "debian-mirror.def": [
        *("debian", "--mirror", "http://deb.debian.org/debian", "--mpi4py", "--apt", "procps"),
    ],
}


def written(arguments: list[str]) -> str:
    result = CliRunner().invoke(container, ["def", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_the_definition_is_the_golden_one(path: Path, pytestconfig: pytest.Config) -> None:
    text = written(CASES[path])
    if pytestconfig.getoption("update_golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no {path}: see the top of {__file__}"
    assert text == path.read_text(), f"{path} is not what is written now: see {__file__}"


def test_there_is_no_golden_definition_without_a_case() -> None:
    assert {*SHIPPED.glob("*.def"), *GOLDEN.glob("*")} == set(CASES)


def sections(text: str) -> dict[str, str]:
    """The sections of a definition, as builders find them: by lines that begin with `%`."""
    parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return {"header": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name)
def test_every_version_can_build_it(path: Path) -> None:
    text = path.read_text()
    found = sections(text)
    assert "{{" not in text
    assert "arguments" not in found
    assert text.startswith("Bootstrap: ")
    assert {"labels", "help", "environment", "post", "test", "runscript"} <= set(found)
    assert "bash" not in text
    for name in ("environment", "post", "test", "runscript"):
        subprocess.run(["sh", "-n"], input=found[name], text=True, check=True, timeout=300)


def test_its_shell_passes_shellcheck() -> None:
    require_program("shellcheck")
    for path in CASES:
        for name, text in sections(path.read_text()).items():
            if name not in ("environment", "post", "test", "runscript"):
                continue
            result = subprocess.run(
                # 1090: what the image has is not here.
                ["shellcheck", "--shell=sh", "--exclude=SC1090", "-"],
                input=text,
                text=True,
                capture_output=True,
                timeout=300,
            )
            assert result.returncode == 0, f"{path.name} %{name}:\n{result.stdout}"


def test_packages_reach_pip_as_they_are() -> None:
    packages = ["wandb>=0.17,<1", "webdataset[all] ~= 0.2", "a-b_c.d"]
    text = ngc(Definition(base="docker://nvcr.io/nvidia/pytorch:24.05-py3", packages=packages))
    (line,) = re.findall(r"python3 -m pip install (.*)", text)
    assert shlex.split(line) == packages


def test_the_base_is_told_by_its_tag_and_its_digest() -> None:
    text = written(["ngc", "--tag", "24.05", "--digest", DIGEST])
    assert f"From: nvcr.io/nvidia/pytorch@{DIGEST}\n" in text
    assert f"org.hpc-amp.base nvcr.io/nvidia/pytorch:24.05-py3@{DIGEST}\n" in text


def test_a_release_that_is_too_old_for_training_is_told() -> None:
    result = CliRunner().invoke(container, ["def", "ngc", "--tag", "22.04-py3"])
    assert result.exit_code == 0
    assert "release 22.04 has torch 1.12.0a0+bd13bc6; built-in training needs 2.1" in result.stderr


@pytest.mark.parametrize(
    ("base", "header"),
    [
        ("docker://debian:trixie", "Bootstrap: docker\nFrom: debian:trixie\n"),
        ("oras://r.example:5000/a/b:c", "Bootstrap: oras\nFrom: r.example:5000/a/b:c\n"),
        ("docker-archive://x/y.tar", "Bootstrap: docker-archive\nFrom: x/y.tar\n"),
        ("/images/a b.sif", "Bootstrap: localimage\nFrom: /images/a b.sif\n"),
    ],
)
def test_a_base_of_another_kind(base: str, header: str) -> None:
    assert debian(Definition(base=base)).startswith(header)


HOSTILE = [
    "a\nb",
    "a\n%post\ntrue",
    "{{ x }}",
    "$(id)",
    "a;b",
    "'",
    '"',
    "a b c",
    "",
    "-r",
    "--x",
    "`",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_could_break_out_is_refused(text: str) -> None:
    def refused(arguments: list[str]) -> None:
        result = CliRunner().invoke(container, ["def", *arguments])
        assert isinstance(result.exception, UsageError), (arguments, result.output)
        assert result.output == ""

    refused(["ngc", f"--pip={text}"])
    refused(["ngc", f"--tag={text}"])
    refused(["ngc", f"--digest={text}"])
    refused(["ngc", f"--bind-point={text}"])
    refused(["ngc", f"--base=docker://{text}"])
    refused(["debian", f"--apt={text}"])
    refused(["debian", f"--mirror={text}"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ngc", "--pip", "torch==2.7"], "torch comes with the image, as NVIDIA built it"),
        (["ngc", "--pip", "Torch_Vision"], None),
        (["ngc", "--pip", "torchvision"], "choose another --tag"),
        (["ngc", "--pip", "git+https://x/y"], "'git+https://x/y' is not a package"),
        (["ngc", "--base", "ftp://x/y"], "no definition can begin with ftp://"),
        (["ngc", "--base", "docker://user:pw@host/x"], "not the reference of an image"),
        (["debian", "--mirror", "http://u:p@host/debian"], "which would stay in the image"),
        (["debian", "--mirror", "deb.debian.org"], "not the address of an archive"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], message: str | None) -> None:
    result = CliRunner().invoke(container, ["def", *arguments])
    if message is None:
        assert result.exit_code == 0
        return
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "x.def"
    path.write_text("mine")
    arguments = ["def", "debian", "-o", str(path)]
    refused = CliRunner().invoke(container, arguments)
    assert isinstance(refused.exception, UsageError)
    assert path.read_text() == "mine"
    forced = CliRunner().invoke(container, [*arguments, "--force"])
    assert forced.exit_code == 0
    assert path.read_text().startswith("Bootstrap: docker\n")
