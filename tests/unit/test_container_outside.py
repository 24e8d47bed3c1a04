"""A container runtime of another package: the example of docs/extending-container.md, from its very
text, with every verb. `shifter` is a stand-in that reads the options and runs the command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import commands
from support.environment import REPOSITORY, clean_environ
from support.warm_python import WarmPython

PAGE = (REPOSITORY / "docs" / "extending-container.md").read_text()
SHIFTER = """\
#!/bin/bash
# Stand-in of shifter: options as --name=value, then the command.
for needed in --image=docker: --workdir=/; do
  [[ " $*" == *" $needed"* ]] || { echo "shifter: no $needed" >&2; exit 1; }
done
while [[ ${1-} == -* ]]; do
  case $1 in
    --image=* | --module=gpu) ;;
    --workdir=*) cd "${1#*=}" || exit 1 ;;
    --volume=/*:/*) ;;
    *) echo "shifter: unknown option $1" >&2; exit 1 ;;
  esac
  shift
done
IN_SHIFTER=yes exec "$@"
"""


def block(language: str) -> str:
    """The only code block of the page in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


class Newcomer:
    """A folder to work in, and a folder of installed packages with the runtime of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages, self.bin = folder / "work", folder / "packages", folder / "bin"
        for made in (self.folder, self.packages / "shifter-1.0.dist-info", self.bin):
            made.mkdir(parents=True)
        (self.packages / "shifter_runtime.py").write_text(block("python"))
        facts = self.packages / "shifter-1.0.dist-info"
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: shifter\nVersion: 1.0\n")
        entry = re.search(r'entry-points\."([\w.]+)"\]\n(\w+) = "(.*)"', block("text"))
        assert entry is not None
        (facts / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
        (self.bin / "shifter").write_text(SHIFTER)
        (self.bin / "shifter").chmod(0o755)
        self.write()

    def write(self, **more: object) -> None:
        """The job file of the page. The image of the stand-in has this Python."""
        job = yaml.safe_load(block("yaml"))
        job["container"]["python"] = sys.executable
        (self.folder / "job.yaml").write_text(yaml.safe_dump({**job, **more}))

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`hpc-amp WORDS`."""
        environ = clean_environ(PYTHONPATH=f"{self.packages}:{REPOSITORY}")
        environ["PATH"] = f"{self.bin}:{environ['PATH']}"
        return commands.hpc_amp(*words, cwd=self.folder, environ=environ, timeout=600)


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def test_validate(newcomer: Newcomer) -> None:
    result = newcomer("validate", "job.yaml")

    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip().endswith("container docker:python:3.12")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "container.image=python.sif",
            "container.image: 'python.sif' is not an image of Shifter; write image: "
            "docker:NAME:TAG or id:HASH",
        ),
        ("container.image=null", "container.runtime: shifter needs an image, and container.image"),
        ("container.runtime=shiftr", "'shiftr' is not one of auto, apptainer, "),
        ("container.bind=[/tmp:/a,b]", "cannot be mounted: ',' and ':' cannot stand in a mount"),
    ],
)
def test_an_error_is_one_line(newcomer: Newcomer, override: str, message: str) -> None:
    if "bind" in override:
        newcomer.write(container={"runtime": "shifter", "image": "docker:x", "bind": ["/tmp:/a,b"]})
        override = "name=inside"

    result = newcomer("validate", "job.yaml", override)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_a_name_is_unknown_without_its_package(newcomer: Newcomer) -> None:
    (newcomer.packages / "shifter-1.0.dist-info" / "entry_points.txt").unlink()

    result = newcomer("validate", "job.yaml")

    assert result.returncode == 2
    assert "container.runtime: 'shifter' is not one of auto," in result.stderr


def test_a_package_that_cannot_be_imported_is_named(newcomer: Newcomer) -> None:
    (newcomer.packages / "shifter_runtime.py").write_text("import no_such_module\n")

    result = newcomer("validate", "job.yaml")

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "shifter_runtime:Shifter, which cannot be imported: No module named 'no_such" in line
    other = newcomer("validate", "job.yaml", "container.runtime=none")
    assert other.returncode == 0, other.stderr


def test_the_script_and_its_host_code(newcomer: Newcomer) -> None:
    result = newcomer("submit", "job.yaml", "--dry-run")

    assert result.returncode == 0, result.stderr
    assert "[container]=shifter" in result.stdout and "[binaries]=shifter" in result.stdout
    assert "image=docker:python:3.12" in result.stdout
    assert re.search(r"^  --volume=(/\S+):\1$", result.stdout, re.MULTILINE)


def test_doctor(newcomer: Newcomer) -> None:
    result = newcomer("doctor", "job.yaml")

    assert "Traceback" not in result.stderr
    assert "ok    config" in result.stdout, result.stdout + result.stderr
    assert re.search(r"ok +rt.found +.*/bin/shifter", result.stdout)
    assert (
        "docker:python:3.12 is not a file: only the nodes can check that Shifter can pull it"
        in (result.stdout)
    )


def test_a_job_runs_inside(newcomer: Newcomer, warm_pythons: WarmPython, tmp_path: Path) -> None:
    python = warm_pythons.interpreter(tmp_path / "env", "*--preflight*")
    newcomer.write(
        run=["bash", "-c", "echo rank $RANK $IN_SHIFTER $OWN"],
        job={"gpus_per_node": 0, "ranks_per_node": 2, "walltime": "10m"},
        launch={"method": "torchrun", "preflight": True},
        container={
            "runtime": "shifter",
            "image": "docker:python:3.12",
            "python": str(python),
            "env": {"OWN": "$(no shell)"},
        },
    )

    result = newcomer("submit", "job.yaml", "--follow")

    assert result.returncode == 0, result.stdout + result.stderr
    (run_dir,) = (newcomer.folder / "runs" / "inside").glob("2*")
    log = (run_dir / "logs" / "job.log").read_text()
    assert "container: Shifter, docker:python:3.12" in log
    for rank in (0, 1):
        assert f"rank {rank} yes $(no shell)" in log
    assert (run_dir / "attempts" / "1" / "preflight.json").exists()


def test_the_line_to_copy(newcomer: Newcomer) -> None:
    result = newcomer("shell", "--print", "job.yaml")

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("shifter --image=docker:python:3.12 --workdir")


def test_a_session(newcomer: Newcomer) -> None:
    result = newcomer("shell", "job.yaml", "--", "printenv", "IN_SHIFTER")

    assert (result.returncode, result.stdout) == (0, "yes\n"), result.stderr


def test_a_sweep(newcomer: Newcomer) -> None:
    newcomer.write(run=["bash", "-c", 'echo "point $A $IN_SHIFTER"'], launch={"preflight": False})

    result = newcomer("sweep", "job.yaml", "container.env.A=1,2")

    assert result.returncode == 0, result.stdout + result.stderr
    logs = "".join(path.read_text() for path in newcomer.folder.rglob("job.log"))
    assert "point 1 yes" in logs and "point 2 yes" in logs


def test_hpc_amp_container_says_that_it_cannot(newcomer: Newcomer) -> None:
    (newcomer.folder / "own.yaml").write_text("scheduler: local\nruntime: shifter\n")

    result = newcomer("container", "pull", "docker://a/b:c", "--site", "./own.yaml")

    assert result.returncode == 2
    assert "hpc-amp pulls no images for Shifter; use the runtime's own commands" in result.stderr
