"""`python -m hpc_amp.distributed.exec`: any command as one rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environment import clean_environ
from support.waiting import is_running, wait_for_file, wait_until

from hpc_amp.distributed import environment
from hpc_amp.jobs.code import MAIN, PACKAGE

USAGE = (
    "usage: python -m hpc_amp.distributed.exec "
    "(--job JOB_JSON [--mpi-probe | --preflight FOLDER | --shell | --ranks N | "
    "-- COMMAND ...] "
    "| -m MODULE [ARGUMENT ...] | -- COMMAND [ARGUMENT ...])"
)
SHOW = (
    "import json, os, sys; json.dump([sys.executable, sys.argv[1:], os.getcwd(), "
    "dict(os.environ)], sys.stdout)"
)


def execute(
    *arguments: str, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpc_amp.distributed.exec", *arguments],
        cwd=cwd,
        env=clean_environ(**environ),
        text=True,
        capture_output=True,
        timeout=300,
    )


def write_job(folder: Path, *, beside: dict[str, Any] | None = None, **job: Any) -> str:
    """A run directory with nothing but the job, as one of an older version: without the keys that
    have come since. `beside` is what job.json has besides the job."""
    content = {"container": {"env": {}}, "run": None, **job}
    path = folder / "job.json"
    resolved = {"job": content, "workdir": str(folder / "work"), **(beside or {})}
    path.write_text(json.dumps(resolved))
    (folder / "work").mkdir()
    return str(path)


def environ_of(job: str, **environ: str) -> dict[str, str]:
    """The environment that the program of a job gets; its `run` must be SHOW."""
    result = execute("--job", job, **environ)
    assert result.returncode == 0, result.stderr
    inside: dict[str, str] = json.loads(result.stdout)[3]
    return inside


def test_a_command_becomes_one_rank() -> None:
    result = execute("--", "python", "-c", SHOW, "a b", "--", "", "$(x)")

    assert result.returncode == 0, result.stderr
    program, arguments, _, environ = json.loads(result.stdout)
    assert program == sys.executable
    assert arguments == ["a b", "--", "", "$(x)"]
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("0", "1", "0")


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_is_the_interpreter_that_runs_this(word: str, tmp_path: Path) -> None:
    (tmp_path / word).write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / word).chmod(0o755)

    assert execute("--", word, "-c", "", PATH=f"{tmp_path}:/usr/bin:/bin").returncode == 0
    assert execute("--", f"{tmp_path}/{word}").returncode == 9


def test_exit_codes_and_signals_are_the_program_s_own() -> None:
    assert execute("--", "sh", "-c", "exit 75").returncode == 75
    assert execute("--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


@pytest.mark.parametrize("words", [["--"], ["--job"]])
def test_no_signal_is_ignored_that_python_ignores(words: list[str], tmp_path: Path) -> None:
    show = ["sh", "-c", "grep SigIgn /proc/$$/status"]
    arguments = [*words, *show] if words == ["--"] else [*words, write_job(tmp_path, run=show)]

    ignored = int(execute(*arguments).stdout.split()[1], 16)

    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_signals_that_were_blocked_outside_reach_the_program() -> None:
    """What serves the container's files has them blocked, and so has all that it starts."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGTERM); print('went on')"
    result = subprocess.run(
        ["env", "--block-signal=TERM", sys.executable, "-m", "hpc_amp.distributed.exec", "--",
         "python", "-c", program],
        env=clean_environ(), text=True, capture_output=True, timeout=300,
    )  # fmt: skip

    assert result.returncode == -signal.SIGTERM, result.stderr
    assert result.stdout == ""


def test_a_job_brings_command_environment_and_folder(tmp_path: Path) -> None:
    env = {"PLAIN": "a b", "RANK": "99", "TEXT": "$(x)\n'\"", "PYTHONPATH": "/more"}
    job = write_job(tmp_path, run=["python", "-c", SHOW, "x y"], container={"env": env})

    result = execute("--job", job, PLAIN="from outside")

    assert result.returncode == 0, result.stderr
    _, arguments, folder, environ = json.loads(result.stdout)
    assert arguments == ["x y"]
    assert folder == str(tmp_path / "work")
    assert (environ["PLAIN"], environ["TEXT"]) == ("a b", "$(x)\n'\"")
    assert environ["RANK"] == "0"  # the world is not the configuration's to set
    assert environ["PYTHONPATH"] == f"{tmp_path}/src:/more"


def test_a_relative_command_is_looked_up_in_the_job_s_folder(tmp_path: Path) -> None:
    job = write_job(tmp_path, run=["./mine"])
    (tmp_path / "work" / "mine").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "work" / "mine").chmod(0o755)

    assert execute("--job", job).returncode == 7


def test_a_command_is_looked_up_on_the_job_s_path(tmp_path: Path) -> None:
    job = write_job(
        tmp_path, run=["mine"], container={"env": {"PATH": f"{tmp_path}/work:/usr/bin:/bin"}}
    )
    (tmp_path / "work" / "mine").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "work" / "mine").chmod(0o755)

    assert execute("--job", job).returncode == 7


def write_copy(folder: Path) -> None:
    """The copy of hpc_amp in a run directory, whose training only shows its arguments."""
    package = folder / "src" / "hpc_amp"
    (package / "train").mkdir(parents=True)
    (folder / "src/__main__.py").write_text(MAIN)
    for name in ("distributed", "errors.py"):
        (package / name).symlink_to(PACKAGE / name)
    (package / "__init__.py").touch()
    (package / "train/__init__.py").touch()
    (package / "train/__main__.py").write_text("import sys; print(sys.argv[1:])")


def test_a_job_without_a_command_trains(tmp_path: Path) -> None:
    """Shown by the module that it asks for, in the snapshot beside the job."""
    job = write_job(tmp_path)
    write_copy(tmp_path)

    result = execute("--job", job)

    assert result.stdout == f"{[job]}\n", result.stderr


@pytest.mark.parametrize(
    ("run", "more"),
    [
        (None, []),
        (["python", "-m", "hpc_amp.train", "given"], []),
        (["true"], ["--", "python", "-m", "hpc_amp.train", "given"]),
    ],
)
def test_a_package_in_the_working_directory_does_not_replace_the_copy(
    run: list[str] | None, more: list[str], tmp_path: Path
) -> None:
    """A clone of hpc-amp, such as that of somebody who has just read its examples."""
    job = write_job(tmp_path, run=run)
    write_copy(tmp_path)
    clone = tmp_path / "work/hpc_amp/train"
    clone.mkdir(parents=True)
    for name in ("train/__init__.py", "__init__.py"):
        (clone.parent / name).touch()
    (clone / "__main__.py").write_text("print('the clone')")

    result = execute("--job", job, *more)

    assert result.stdout == f"{[job if run is None else 'given']}\n", result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--"], ["python", "x.py"], ["--job"], ["--job", "a", "b"], ["--help"], ["--mpi-probe"],
        ["--job", "a", "--mpi-probe", "b"], ["--mpi-probe", "--job", "a"],
    ],
)  # fmt: skip
def test_other_words_are_refused(arguments: list[str]) -> None:
    result = execute(*arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"hpc-amp: {USAGE}\n"


@pytest.mark.parametrize("program", ["no-such-program", "./no-such-file", "/etc/passwd", "/"])
def test_a_program_that_cannot_run(program: str, tmp_path: Path) -> None:
    result = execute("--", program, cwd=tmp_path)

    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: rank 0 cannot run {program!r} in {str(tmp_path)!r}: ")


def test_a_folder_that_is_not_in_the_image(tmp_path: Path) -> None:
    job = write_job(tmp_path, run=["true"])
    (tmp_path / "work").rmdir()

    result = execute("--job", job)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: rank 0 cannot run 'true' in '{tmp_path}/work': ")
    assert line.endswith(f"No such file or directory: '{tmp_path}/work'")


@pytest.mark.parametrize("more", [[], ["--mpi-probe"]])
@pytest.mark.parametrize("content", [None, "", "{", "\xff"])
def test_a_job_that_cannot_be_read(content: str | None, more: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))

    result = execute("--job", str(path), *more)

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"hpc-amp: {path} cannot be read inside the job: ")


def test_a_wrong_world_is_one_line() -> None:
    result = execute("--", "true", HPC_AMP_WORLD_SIZE="4")

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: the job was started for 4 ranks, but this process sees 1 ")


def test_ranks_without_a_meeting_point() -> None:
    result = execute("--", "true", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")

    assert result.returncode == 2
    assert result.stderr == (
        "hpc-amp: MASTER_ADDR and MASTER_PORT not set, but 2 ranks have to find each other\n"
    )


# ---- MPI of the host -----------------------------------------------------------------------------

HOST_MPI = {"prefix": "/host/mpi", "libraries": ["/host/mpi/lib", "/hostlib64"], "bind": ["/host"]}


def mpi_job(folder: Path, use: str, host_mpi: dict[str, Any] | None = None, **env: str) -> str:
    return write_job(
        folder,
        beside={"host_mpi": HOST_MPI if host_mpi is None else host_mpi},
        launch={"mpi": use},
        run=["python", "-c", SHOW],
        container={"env": env},
    )


@pytest.mark.parametrize(
    ("before", "own", "after"),
    [
        ("/image/lib:/more", {}, "/host/mpi/lib:/hostlib64:/image/lib:/more"),
        ("", {}, "/host/mpi/lib:/hostlib64"),
        ("/image/lib", {"LD_LIBRARY_PATH": "/own"}, "/host/mpi/lib:/hostlib64:/own"),
    ],
)
def test_a_bound_mpi_stands_before_the_image_s_libraries(
    before: str, own: dict[str, str], after: str, tmp_path: Path
) -> None:
    """Exporting LD_LIBRARY_PATH into a container replaces the image's, torch's folder included."""
    job = mpi_job(tmp_path, "bind", **own)

    environ = environ_of(job, LD_LIBRARY_PATH=before, OPAL_PREFIX="/image/mpi")

    assert environ["LD_LIBRARY_PATH"] == after
    assert environ["OPAL_PREFIX"] == "/host/mpi"


def test_a_bound_mpi_without_a_prefix_leaves_the_image_s(tmp_path: Path) -> None:
    job = mpi_job(tmp_path, "bind", {"prefix": None, "libraries": ["/cray"], "bind": []})

    environ = environ_of(job, LD_LIBRARY_PATH="/image", OPAL_PREFIX="/image/mpi")

    assert (environ["LD_LIBRARY_PATH"], environ["OPAL_PREFIX"]) == ("/cray:/image", "/image/mpi")


def test_folders_of_a_bound_mpi_that_setup_found(tmp_path: Path) -> None:
    libraries = ["$FOUND", "/pals", "$MISSING"]
    job = mpi_job(tmp_path, "bind", {"prefix": None, "libraries": libraries, "bind": []})

    environ = environ_of(job, LD_LIBRARY_PATH="/image", FOUND="/cray/a::/cray/b:")

    assert environ["LD_LIBRARY_PATH"] == "/cray/a:/cray/b:/pals:/image"


def test_a_prefix_of_the_job_s_own_counts(tmp_path: Path) -> None:
    job = mpi_job(tmp_path, "bind", OPAL_PREFIX="/own")

    assert environ_of(job, OPAL_PREFIX="/image/mpi")["OPAL_PREFIX"] == "/own"


def test_a_prefix_of_the_host_s_mpirun_is_taken_away_where_the_image_lacks_it(
    tmp_path: Path,
) -> None:
    """Open MPI's mpirun sets its own folder for the ranks where it is not where it was built. The
    image's MPI would look there for its files. One that the image has is the image's."""
    for owner in ("openmpi", "pmix"):
        (tmp_path / "image" / "share" / owner).mkdir(parents=True)
    host = {"OPAL_PREFIX": "/host/mpi", "PMIX_PREFIX": "/host/mpi"}
    host |= {"PMIX_INSTALL_PREFIX": "/host/mpi"}
    image = dict.fromkeys(host, str(tmp_path / "image"))
    job = mpi_job(tmp_path, "hybrid")

    assert not host.keys() & environ_of(job, **host).keys()
    assert image.items() <= environ_of(job, **image).items()


@pytest.mark.parametrize("beside", [{}, {"host_mpi": HOST_MPI}])
def test_an_ordinary_job_keeps_its_environment(beside: dict[str, Any], tmp_path: Path) -> None:
    job = write_job(tmp_path, beside=beside, run=["python", "-c", SHOW])
    before = {"LD_LIBRARY_PATH": "/image", "OPAL_PREFIX": "/no/such", "PMIX_PREFIX": "/no/such"}
    before["CUDA_VISIBLE_DEVICES"] = "0,1"

    assert before.items() <= environ_of(job, **before).items()


# ---- order of the GPUs ---------------------------------------------------------------------------


def gpu_changes(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    visible: str | None,
    installed: int | None,
    asked: int = 4,
) -> str | None:
    """CUDA_VISIBLE_DEVICES for `gpu_order: reversed` on a node; None where it stays as it is."""
    gpus = folder / "gpus"
    for index in range(installed or 0):
        (gpus / f"0000:{index:02x}:00.0").mkdir(parents=True)
    monkeypatch.setattr(environment, "GPU_FOLDER", str(gpus))
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    resolved = {
        "gpu_order": "reversed",
        "job": {"job": {"gpus_per_node": asked}, "container": {"env": {}}},
    }
    changes = environment.environment_changes(environ, resolved, folder)
    return changes.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("visible", "after"),
    [
        ("0,1,2,3", "3,2,1,0"),
        ("4, 6", "6,4"),
        ("GPU-aa,GPU-bb", "GPU-bb,GPU-aa"),
        ("MIG-1,MIG-2,MIG-3", "MIG-3,MIG-2,MIG-1"),
        ("2", None),
        ("", None),
        ("NoDevFiles", None),
    ],
)
def test_reversed_gpus_that_the_scheduler_chose(
    visible: str, after: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert gpu_changes(monkeypatch, tmp_path, visible=visible, installed=8) == after


@pytest.mark.parametrize(
    ("installed", "asked", "after"),
    [
        (8, 4, "7,6,5,4,3,2,1,0"),
        (2, 4, "1,0"),
        (1, 4, None),
        (None, 4, "3,2,1,0"),
        (None, 1, None),
        (None, 0, None),
    ],
)
def test_reversed_gpus_that_nobody_chose(
    installed: int | None,
    asked: int,
    after: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Without the driver's folder, the job says how many there are."""
    given = gpu_changes(monkeypatch, tmp_path, visible=None, installed=installed, asked=asked)

    assert given == after


@pytest.mark.parametrize(("own", "seen"), [({}, "1,0"), ({"CUDA_VISIBLE_DEVICES": "5"}, "5")])
def test_reversed_gpus_reach_the_program(own: dict[str, str], seen: str, tmp_path: Path) -> None:
    job = write_job(
        tmp_path,
        beside={"gpu_order": "reversed"},
        run=["python", "-c", SHOW],
        container={"env": own},
    )

    assert environ_of(job, CUDA_VISIBLE_DEVICES="0,1")["CUDA_VISIBLE_DEVICES"] == seen


def test_a_rank_whose_launcher_has_died_before_it_does_not_begin() -> None:
    """The kernel tells only of a parent that dies later."""
    print_parent = ["--", "sh", "-c", 'echo "${HPC_AMP_PARENT-none}"']
    alive = execute(*print_parent, HPC_AMP_PARENT=str(os.getpid()))
    dead = execute(*print_parent, HPC_AMP_PARENT=str(os.getppid()))

    assert (alive.returncode, alive.stdout, alive.stderr) == (0, "none\n", "")
    assert (dead.returncode, dead.stdout, dead.stderr) == (143, "", "")


def test_a_program_that_ignores_sigterm_ends_with_its_supervisor(tmp_path: Path) -> None:
    """Nothing else would end it: it would go on in a directory that the next attempt writes to."""
    script = "trap '' TERM; echo $$ >../part; mv ../part ../pid; while :; do sleep 0.05; done"
    job = write_job(tmp_path, run=["bash", "-c", script], launch={"label": True})
    world = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_amp.distributed.exec", "--job", job],
        env=clean_environ(**world, **place),
    )
    wait_for_file(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())

    process.kill()
    process.wait()

    try:
        wait_until(lambda: not is_running(pid), "the program has ended")
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
