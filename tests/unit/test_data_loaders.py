"""Loader processes as one rank uses them."""

from __future__ import annotations

import ast
import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.environment import REPOSITORY, clean_environ
from support.warm import Warm

from hpc_amp.data import loaders as module
from hpc_amp.data.errors import DataError, LoaderError
from hpc_amp.data.loaders import AHEAD, Batch, Loaders
from hpc_amp.data.pictures import PictureRequest


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files whose red is their number."""
    folder = tmp_path_factory.mktemp("images")
    made = []
    for number in range(60):
        made.append(str(folder / f"{number:02}.png"))
        Image.new("RGB", (10, 8), (4 * number, 0, 0)).save(made[-1])
    return made


def batches(paths: list[str], size: int) -> list[Batch]:
    images = [(path, path) for path in paths]
    return [Batch(images[at : at + size]) for at in range(0, len(images), size)]


def numbers(pixels: torch.Tensor) -> list[int]:
    assert pixels.shape[1:] == (3, 6, 6)
    assert pixels.dtype is torch.uint8
    return (pixels[:, 0, 0, 0] // 4).tolist()


@pytest.mark.parametrize(("count", "size"), [(0, 7), (1, 7), (3, 7), (3, 2), (3, 1)])
def test_batches_come_whole_and_in_order(paths: list[str], count: int, size: int) -> None:
    """Also where a batch has fewer images than there are processes, and in the last one."""
    loaders = Loaders(count, side=6, largest=7)
    for _ in range(2):
        seen = [numbers(pixels) for pixels in loaders.load(batches(paths, size))]
        assert seen == [list(range(at, min(at + size, 60))) for at in range(0, 60, size)]
    assert list(loaders.load([])) == []


@pytest.mark.parametrize("count", [0, 2])
def test_passes_may_interleave_and_end_early(paths: list[str], count: int) -> None:
    """An evaluation in the middle of an epoch, one that is given up, a pass that is never begun."""
    loaders = Loaders(count, side=6, largest=5)
    outer = loaders.load(batches(paths[:40], 5))
    loaders.load(batches(paths, 5))
    seen = [numbers(next(outer)), numbers(next(outer))]
    given_up = loaders.load(batches(paths[40:], 3))
    assert numbers(next(given_up)) == [40, 41, 42]
    seen.append(numbers(next(outer)))
    assert numbers(next(given_up)) == [43, 44, 45]
    del given_up
    seen += [numbers(pixels) for pixels in outer]
    assert list(chain.from_iterable(seen)) == list(range(40))


@pytest.mark.parametrize("count", [0, 2])
def test_so_many_batches_are_asked_for_and_no_more(paths: list[str], count: int) -> None:
    taken = []

    def source():
        for batch in batches(paths, 3):
            taken.append(batch)
            yield batch

    steps = Loaders(count, side=6, largest=3).load(source())
    next(steps)
    next(steps)
    assert len(taken) == (AHEAD + 1 if count else 2)


@pytest.mark.parametrize("count", [0, 2])
def test_an_image_that_cannot_be_read_is_named_and_the_others_are_not_lost(
    paths: list[str], tmp_path: Path, count: int
) -> None:
    bad = tmp_path / "b\udcffd.png"
    bad.write_bytes(b"no image")
    loaders = Loaders(count, side=6, largest=5)
    seen = []
    steps = loaders.load(batches([*paths[:12], str(bad), *paths[12:]], 5))
    with pytest.raises(DataError, match=r"the image .*b\udcffd.png cannot be read"):
        seen.extend(numbers(pixels) for pixels in steps)
    assert list(chain.from_iterable(seen)) == list(range(10))
    assert [numbers(p) for p in loaders.load(batches(paths[:4], 2))] == [[0, 1], [2, 3]]


def test_a_defect_shows_its_traceback(paths: list[str]) -> None:
    loaders = Loaders(1, side=6, largest=2)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*in look.*TypeError"):
        next(loaders.load([Batch([(paths[0], [])])]))  # type: ignore[list-item]


def test_signals_at_any_time_spare_the_loaders(paths: list[str]) -> None:
    """From the moment on in which they are started: schedulers signal all processes of a job."""
    loaders = Loaders(2, side=6, largest=7)
    for process in loaders._processes:
        for name in ("TERM", "INT", "QUIT", "USR1", "USR2"):
            os.kill(process.program.pid, getattr(signal, f"SIG{name}"))
    assert [numbers(p) for p in loaders.load(batches(paths[:14], 7))][1] == list(range(7, 14))
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_silent_loader_is_named_with_its_file(
    paths: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)
    loaders = Loaders(1, side=6, largest=2, rank=3)
    list(loaders.load(batches(paths[:2], 2)))
    pid = loaders._processes[0].program.pid
    os.kill(pid, signal.SIGSTOP)

    class WakeUp(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            os.kill(pid, signal.SIGCONT)

    module.log.addHandler(handler := WakeUp())
    try:
        assert numbers(next(loaders.load(batches(paths[2:4], 2)))) == [2, 3]
    finally:
        module.log.removeHandler(handler)
    assert f"rank 3: loader process {pid} has been silent for 0 s. It was reading" in caplog.text
    assert f"{paths[2]} to {paths[3]}" in caplog.text


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, r"was killed \(SIGKILL\)"), (signal.SIGSEGV, r"killed by signal 11 \(SIGS")],
)
def test_a_loader_that_dies_is_named(paths: list[str], number: int, words: str) -> None:
    loaders = Loaders(2, side=6, largest=5)
    steps = loaders.load(batches(paths, 5))
    next(steps)
    victim = loaders._processes[0].program
    os.kill(victim.pid, number)
    with pytest.raises(LoaderError, match=rf"loader process {victim.pid} .*{words}.*was reading"):
        list(steps)


def test_a_loader_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(LoaderError, match=r"loader process 1 of 2 cannot be started: .*/no/such"):
        Loaders(2, side=6, largest=5)


def test_nothing_is_left_of_loaders_that_are_not_needed_any_more(paths: list[str]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    loaders = Loaders(2, side=6, largest=5)
    steps = loaders.load(batches(paths, 5))
    next(steps)
    programs = [process.program for process in loaders._processes]
    os.kill(programs[0].pid, signal.SIGSTOP)
    del loaders, steps
    gc.collect()
    assert all(program.returncode == -signal.SIGKILL for program in programs)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_rank_that_ends_amid_a_request_leaves_no_word_in_the_log(
    paths: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Batches are decoded ahead, also at the moment of a stop."""
    loaders = Loaders(1, side=6, largest=2)
    (process,) = loaders._processes
    process.connection.send(PictureRequest(0, 6, False, False, [(paths[0], "")]))
    assert process.connection.recv() is None  # it is awake
    os.kill(process.program.pid, signal.SIGSTOP)
    process.connection.send(PictureRequest(0, 6, False, False, [(paths[0], "")]))
    process.connection.close()
    os.kill(process.program.pid, signal.SIGCONT)
    assert process.program.wait() == 0
    assert capfd.readouterr().err == ""


def test_a_python_without_memory_files(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert numbers(next(Loaders(1, side=6, largest=5).load(batches(paths, 5)))) == [0, 1, 2, 3, 4]


def test_a_kernel_without_memory_files(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 3.17, which is older than many an image on it."""

    def unknown(name: str) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", unknown)
    assert numbers(next(Loaders(1, side=6, largest=5).load(batches(paths, 5)))) == [0, 1, 2, 3, 4]


def program_with_loaders(path: str, folder: Path, before: str = "") -> Path:
    """One that says `once`, and then the red of an image from a loader."""
    (folder / "programs").mkdir()
    program = folder / "programs" / "program.py"
    program.write_text(
        f"print('once')\n{before}\n"
        "from hpc_amp.data.loaders import Batch, Loaders\n"
        f"pixels = next(Loaders(1, 6, 1).load([Batch([({path!r}, '')])]))\n"
        "print(pixels[0, 0, 0, 0].item())\n"
    )
    return program


def check_red(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["once", "20"]


def test_a_program_without_a_guard_around_its_main(
    warm: Warm, paths: list[str], tmp_path: Path
) -> None:
    """multiprocessing would run it again in every process that it starts."""
    check_red(warm.run(program_with_loaders(paths[5], tmp_path), cwd=tmp_path))


def test_a_loader_imports_what_its_rank_imports(
    warm: Warm, paths: list[str], tmp_path: Path
) -> None:
    """Python looks beside the program, which need not lie in the working directory."""
    (tmp_path / "signal.py").write_text("raise RuntimeError('not this one')")
    check_red(warm.run(program_with_loaders(paths[5], tmp_path), cwd=tmp_path))


def test_paths_that_are_no_text_are_passed_over(
    warm: Warm, paths: list[str], tmp_path: Path
) -> None:
    """As Python does: many programs put a Path into sys.path, and never notice."""
    before = "import sys, pathlib; sys.path.insert(0, pathlib.Path(__file__).parent)"
    check_red(warm.run(program_with_loaders(paths[5], tmp_path, before), cwd=tmp_path))


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_a_rank_that_ignores_its_environment(paths: list[str], tmp_path: Path, option: str) -> None:
    """With which no Python would start, for one."""
    ended = subprocess.run(
        [sys.executable, option, program_with_loaders(paths[5], tmp_path)],
        cwd=tmp_path,
        env={**clean_environ(), "PYTHONHOME": "/no/such"},
        capture_output=True,
        text=True,
    )
    check_red(ended)


def test_a_loader_needs_no_torch() -> None:
    """It would take seconds to start, and half a gigabyte."""
    code = "import hpc_amp.data.loader, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["False", "False"]


FORKING = {"fork", "forkpty", "preexec_fn", "DataLoader", "Process", "Pool", "ProcessPoolExecutor"}
ALLOWED = {("hpc_amp/distributed/supervise.py", "preexec_fn")}
"""Where no other thread lives."""


def test_no_code_of_the_job_side_forks() -> None:
    """A fork beside threads may stand still for ever: starting a program is safe, a fork is not."""
    found = set()
    parts = ("distributed", "amp", "train", "tasks", "data", "models")
    folders = [REPOSITORY / "examples", *(REPOSITORY / "hpc_amp" / part for part in parts)]
    for file in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(file.read_text())):
            names = {getattr(node, field, None) for field in ("id", "attr", "arg", "name")}
            found |= {(str(file.relative_to(REPOSITORY)), str(name)) for name in names & FORKING}
    assert found == ALLOWED


def test_a_supervisor_has_no_threads(tmp_path: Path) -> None:
    """So that the fork in it is one without threads beside it."""
    code = (
        "import os, sys\n"
        "from hpc_amp.distributed import exec\n"
        "from hpc_amp.distributed.labels import LabelledOutput\n"
        "from hpc_amp.distributed.supervise import supervise\n"
        "note = lambda: print(len(os.listdir('/proc/self/task')), flush=True)\n"
        "os.register_at_fork(before=note)\n"
        "sys.exit(supervise(['true'], os.environ, lambda: None, output=LabelledOutput(1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["1"]


def test_another_thread_may_use_them(paths: list[str]) -> None:
    """As in a notebook; its end is theirs, for the kernel takes it for the parent's."""
    seen: list[list[int]] = []

    def use() -> None:
        loaders = Loaders(1, side=6, largest=5)
        seen.extend(numbers(pixels) for pixels in loaders.load(batches(paths[:10], 5)))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert list(chain.from_iterable(seen)) == list(range(10))
