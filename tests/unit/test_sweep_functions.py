"""`hpc_amp.executor`: Python functions as jobs, through a real submitit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.environment import REPOSITORY, require_program, working_directory

import hpc_amp
from hpc_amp.distributed.interpreter import environment
from hpc_amp.errors import ConfigError, SchedulerError, UsageError

submitit = pytest.importorskip("submitit")

JOB: dict[str, Any] = {"name": "fn", "site": "local", "job": {"gpus_per_node": 0}}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path) -> Any:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    with working_directory(tmp_path):
        yield


def describe_world(word: str) -> dict[str, Any]:
    """Runs in the job; by value, so it needs nothing of this file there."""
    import os
    import sys

    import submitit

    there = submitit.JobEnvironment()
    return {
        "word": word,
        "env": {key: os.environ.get(key) for key in ("WORD", "RANK", "WORLD_SIZE", "HPC_AMP_JOB")},
        "rank": there.global_rank,
        "ranks": there.num_tasks,
        "submitit": submitit.__file__,
        "python": sys.executable,
        "cwd": os.getcwd(),
    }


def by_value(function: Any) -> Any:
    """A function as one of a script is pickled: with its code."""
    function.__module__ = "__main__"
    return function


def test_a_function_runs_with_the_environment_of_the_job(tmp_path: Path) -> None:
    text = "it's $HOME, `ls`\nand more"

    made = hpc_amp.executor("job.yaml", container={"env": {"WORD": text}})
    said = made.submit(by_value(describe_world), "hello").result()

    folder = made.folder.parent
    assert said["word"] == "hello"
    assert said["env"] == {
        "WORD": text,
        "RANK": None,
        "WORLD_SIZE": None,
        "HPC_AMP_JOB": str(folder / "job.json"),
    }
    assert said["submitit"].startswith(str(folder / "lib" / "submitit"))
    assert said["cwd"] == str(tmp_path)
    assert folder.parent == tmp_path / "functions" / "fn"


def test_a_job_has_as_many_ranks_as_the_job_file_says() -> None:
    made = hpc_amp.executor("job.yaml", **{"job.ranks_per_node": 2})

    said = made.submit(by_value(describe_world), "hello").results()

    assert [(one["rank"], one["ranks"]) for one in said] == [(0, 2), (1, 2)]


def test_an_error_of_the_function_arrives() -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    made = hpc_amp.executor("job.yaml")

    with pytest.raises(submitit.core.utils.FailedJobError, match="no such luck"):
        made.submit(by_value(fail)).result()


def test_a_signal_that_comes_twice_is_one_checkpoint(tmp_path: Path) -> None:
    """From Slurm, and through the container's runtime."""
    saves = str(tmp_path / "saves")

    class Count:
        def __init__(self, attempt: int) -> None:
            self.attempt = attempt

        def __call__(self) -> int:
            import os
            import signal
            import time

            if self.attempt == 0:
                os.kill(os.getpid(), signal.SIGUSR2)
                time.sleep(60)
            return self.attempt

        def checkpoint(self) -> Any:
            import os
            import signal

            import submitit

            with open(saves, "a") as file:
                file.write("x")
            if os.stat(saves).st_size == 1:
                os.kill(os.getpid(), signal.SIGUSR2)
            return submitit.helpers.DelayedSubmission(by_name(self.attempt + 1))

    by_name = by_value(Count)
    made = hpc_amp.executor("job.yaml")

    assert made.submit(Count(0)).result() == 1
    assert Path(saves).read_text() == "x"


def test_code_that_another_python_pickled_is_refused(tmp_path: Path) -> None:
    made = hpc_amp.executor("job.yaml")
    program = made.folder.parent / "python"
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    program.write_text(program.read_text().replace(f"interpreter {own}", "interpreter 3.9"))

    ended = subprocess.run([program, "-c", "print(1)"], text=True, capture_output=True, timeout=300)

    assert ended.returncode == 1
    assert ended.stderr.startswith("hpc-amp: the function was pickled by Python 3.9")
    assert len(ended.stderr.splitlines()) == 1


def test_what_the_image_has_of_typing_extensions_stays(tmp_path: Path) -> None:
    """torch needs one that fits it; submitit takes any."""
    changed = environment({"PATH": "/bin", "RANK": "3", "PYTHONPATH": "/src"}, Path("/run"))

    assert changed["PYTHONPATH"] == "/run/lib/submitit:/run/lib/cloudpickle:/src"
    assert changed["PATH"] == "/run/commands:/bin"
    assert "RANK" not in changed


def test_the_interpreter_passes_shellcheck() -> None:
    require_program("shellcheck")
    folder = hpc_amp.executor("job.yaml").folder.parent

    result = subprocess.run(
        ["shellcheck", folder / "python", folder / "commands" / "scontrol"],
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert result.returncode == 0, result.stdout


# ---- Slurm: the script that submitit writes ------------------------------------------------------


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something that looks like a login node."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def batch_script(made: Any) -> str:
    return str(made._make_submission_file_text(made._submitit_command_str, "uid"))


def effective(script: str) -> dict[str, str]:
    """The options of a batch script as sbatch reads them: the last of its kind counts."""
    found = {}
    for line in script.splitlines():
        if not line.startswith("#") and line:
            break
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH ").partition("=")
            found[name] = value
    return found


def test_slurm_gets_the_header_of_the_job(srun: Path) -> None:
    made = hpc_amp.executor(
        "job.yaml", site="slurm",
        job={"nodes": 2, "gpus_per_node": 4, "cpus_per_gpu": 3, "walltime": "02:00:00",
             "account": "my project", "directives": ["--constraint='a b'"], "stop_margin": "3m"},
    )  # fmt: skip

    options = effective(batch_script(made))

    assert options["--nodes"] == "2"
    assert options["--ntasks-per-node"] == "4"
    assert options["--gpus-per-node"] == "4"
    assert options["--cpus-per-task"] == "3"
    assert options["--time"] == "02:00:00"
    assert options["--account"] == "'my project'"
    assert options["--constraint"] == "'a b'"
    assert options["--signal"] == "USR2@180"
    assert options["--job-name"] == "fn"
    assert options["--output"] == f"{made.folder}/%j_0_log.out"
    assert "--wckey" not in options
    assert made.parameters["time"] == 120


def test_srun_starts_our_interpreter_and_the_host_requeues(srun: Path, tmp_path: Path) -> None:
    made = hpc_amp.executor("job.yaml", site="slurm", folder=tmp_path / "a b")
    folder = made.folder.parent

    lines = batch_script(made).splitlines()

    (start,) = (line for line in lines if line.startswith("srun "))
    assert "--cpus-per-task=1" in start
    assert f"'{folder}/python' -u -m submitit.core._submit '{made.folder}'" in start
    assert lines.index(start) < next(
        i for i, line in enumerate(lines) if "scontrol requeue" in line
    )


@pytest.mark.parametrize("asks", [True, False])
def test_only_what_this_attempt_asked_for_is_done(srun: Path, tmp_path: Path, asks: bool) -> None:
    """A wish that an attempt left behind which was killed would start a finished job once more."""
    made = hpc_amp.executor("job.yaml", site="slurm", folder=tmp_path / "a b")
    wish = made.folder.parent / "requeue-41"
    wish.write_text("requeue 41\n")
    srun.write_text(f"#!/bin/sh\n{f'touch {str(wish)!r}' if asks else ''}\n")
    for name in ("scontrol", "sleep"):
        (srun.parent / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/called\n')
        (srun.parent / name).chmod(0o755)

    environ = {**os.environ, "SLURM_JOB_ID": "41"}
    subprocess.run(["bash", "-c", batch_script(made)], env=environ, check=True, timeout=300)

    assert (tmp_path / "called").exists() is asks
    assert not wish.exists()


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SchedulerError, match="`srun` is not on this machine's PATH"):
        hpc_amp.executor("job.yaml", site="slurm")


def test_submitit_knows_neither_pbs_nor_cobalt(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="submitit has no executor for PBS"):
        hpc_amp.executor("job.yaml", site="pbs")

    assert not (tmp_path / "functions").exists()


def test_a_wrong_key_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"did you mean job\.nodes"):
        hpc_amp.executor("job.yaml", job={"node": 2})


def test_without_submitit_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "submitit.py").write_text("raise ImportError('not here')\n")
    code = (
        "import hpc_amp, hpc_amp.errors\n"
        "try: hpc_amp.executor('job.yaml')\n"
        "except hpc_amp.errors.UsageError as error: print(error)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert ended.stdout == ("hpc_amp.executor needs submitit; pip install 'hpc-amp[submitit]'\n"), (
        ended.stderr
    )


def test_the_package_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'exekutor'"):
        _ = hpc_amp.exekutor


def test_importing_the_package_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import hpc_amp; print(*set(sys.modules) - before)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True, capture_output=True, check=True, timeout=300,
    )  # fmt: skip

    names = {name.partition(".")[0] for name in ended.stdout.split()}
    assert names - sys.stdlib_module_names == {"hpc_amp"}
    assert "hpc_amp.functions" not in ended.stdout
