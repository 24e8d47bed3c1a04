"""Labelled output: the label of each line, and the process that writes it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.environment import clean_environ
from support.waiting import is_running, wait_for_file, wait_until

from hpc_amp.distributed.labels import Stream

LABELLED = """
import os, sys
from hpc_amp.distributed.ending import end_with_parent
from hpc_amp.distributed.labels import LabelledOutput
from hpc_amp.distributed.supervise import supervise
output = LabelledOutput(int(sys.argv[1]))
sys.exit(supervise(sys.argv[2:], os.environ, end_with_parent, output=output))
"""


def words(*program: str, rank: int = 3) -> list[str]:
    return [sys.executable, "-c", LABELLED, str(rank), *program]


def run(script: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        words("bash", "-c", script), env=clean_environ(), check=False, **options
    )


def written(*pieces: bytes, final: bool = True) -> bytes:
    """What a stream of rank 3 writes for pieces of output."""
    reader, writer = os.pipe()
    stream = Stream(writer, b"[rank3]: ")
    for piece in pieces:
        stream.write(piece)
    if final:
        stream.flush()
    os.close(writer)
    with open(reader, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("pieces", "seen"),
    [
        ([b"one\ntwo\n"], b"[rank3]: one\n[rank3]: two\n"),
        ([b"on", b"e\ntw", b"o\n"], b"[rank3]: one\n[rank3]: two\n"),
        ([b"one\n\ntwo\n"], b"[rank3]: one\n\n[rank3]: two\n"),
        ([b"no end"], b"[rank3]: no end"),
        (
            [b"\r 10%", b"\r 20%", b"\rdone\r\n"],
            b"\r[rank3]:  10%\r[rank3]:  20%\r[rank3]: done\r\n",
        ),
        ([b"one\r", b"\ntwo\n"], b"[rank3]: one\r\n[rank3]: two\n"),
        ([b"[rank3]: torch's\nown\n"], b"[rank3]: torch's\n[rank3]: own\n"),
        ([b"[rank1]: another's\n"], b"[rank3]: [rank1]: another's\n"),
        ([b"\xff\x00\n"], b"[rank3]: \xff\x00\n"),
    ],
)
def test_each_line_with_text_gets_the_label_once(pieces: list[bytes], seen: bytes) -> None:
    assert written(*pieces) == seen


def test_a_line_that_was_begun_is_continued_without_a_label() -> None:
    reader, writer = os.pipe()
    stream = Stream(writer, b"[rank3]: ")
    for piece in (b"loading ", b"..", b". done\nnext", b"\n"):
        stream.write(piece)
        stream.flush()
    os.close(writer)

    with open(reader, "rb") as file:
        assert file.read() == b"[rank3]: loading ... done\n[rank3]: next\n"


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    reader, writer = os.pipe()
    stream = Stream(writer, b"[rank3]: ")
    stream.write(b"x" * 2**15)
    assert stream.unfinished
    with open(os.dup(reader), "rb", buffering=0) as file:
        stream._target = os.open(os.devnull, os.O_WRONLY)
        stream.write(b"x" * 2**16)
        assert not stream.unfinished
        os.close(writer)
        assert file.read() == b""
    os.close(stream._target)
    os.close(reader)


def test_outputs_stay_apart() -> None:
    ended = run("echo out; echo err >&2; exit 3", capture_output=True)

    assert (ended.returncode, ended.stdout, ended.stderr) == (
        3,
        b"[rank3]: out\n",
        b"[rank3]: err\n",
    )


def test_outputs_in_one_file_keep_their_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        run("for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done", stdout=log, stderr=log)

    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [f"[rank3]: {name} {n}" for n in range(1, 6) for name in ("out", "err")]


@pytest.mark.parametrize("name", ["KILL", "SEGV", "TERM"])
def test_the_last_words_of_a_program_that_a_signal_ends_are_there(name: str) -> None:
    ended = run(f"echo last words; kill -{name} $$", capture_output=True)

    assert ended.returncode == -getattr(signal, f"SIG{name}")
    assert ended.stdout == b"[rank3]: last words\n"


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "USR2"])
def test_a_signal_reaches_the_program_and_what_it_says_then_is_there(name: str) -> None:
    script = f"trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        words("bash", "-c", script), env=clean_environ(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"[rank3]: ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))

        assert process.stdout.read() == f"[rank3]: got {name}\n".encode()
        assert process.wait() == 7


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "USR2"])
def test_a_signal_to_all_processes_of_a_rank_reaches_the_program_once(name: str) -> None:
    """Slurm sends it to all, mpirun and torchrun to the process group."""
    script = (
        "import os, signal, time\n"
        "reader, writer = os.pipe(); os.set_blocking(writer, False); signal.set_wakeup_fd(writer)\n"
        f"signal.signal(signal.SIG{name}, lambda number, frame: None)\n"
        "print('ready', flush=True)\n"
        "for turn in (1, 2):\n"
        "    first = os.read(reader, 1); time.sleep(0.7); os.write(writer, b'.')\n"
        "    print('got', len(first + os.read(reader, 9)) - 1, flush=True)\n"
    )
    with subprocess.Popen(
        words(sys.executable, "-I", "-S", "-c", script),
        env=clean_environ(),
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"[rank3]: ready\n"
            wait_until(lambda: len(members(process.pid)) == 3, "the witness")
            for _ in range(2):
                os.killpg(process.pid, getattr(signal, f"SIG{name}"))
                assert process.stdout.readline() == b"[rank3]: got 1\n"
            assert process.stdout.read() == b""
            assert process.wait() == 0
        except BaseException:  # also an interrupt of the tests
            os.killpg(process.pid, signal.SIGKILL)
            raise


def members(group: int) -> list[int]:
    """The processes of a group."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found += [pid] if os.getpgid(pid) == group else []
    return found


def test_a_line_that_waits_for_its_end_is_shown() -> None:
    script = "printf 'Continue? '; read -r _; echo yes"
    with subprocess.Popen(
        words("bash", "-c", script),
        env=clean_environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert os.read(process.stdout.fileno(), 100) == b"[rank3]: Continue? "
        process.stdin.write(b"\n")
        process.stdin.close()

        assert process.stdout.read() == b"yes\n"


def test_a_process_that_the_program_left_behind_does_not_keep_the_rank(tmp_path: Path) -> None:
    """It may hold the pipe, and even write to it."""
    pid_file = tmp_path / "pid"
    script = (
        f"(echo $BASHPID >{pid_file}; while :; do echo more; sleep 0.1; done) & echo mine; exit 4"
    )
    ended = run(f"{script}", stdout=subprocess.PIPE)
    try:
        assert ended.returncode == 4
        assert b"[rank3]: mine\n" in ended.stdout
    finally:
        wait_for_file(pid_file)
        with contextlib.suppress(ProcessLookupError):  # if it wrote to the closed pipe
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_program_that_closes_its_output_goes_on(tmp_path: Path) -> None:
    ended = run("exec >/dev/null 2>&1; sleep 0.2; exit 5", capture_output=True)

    assert ended.returncode == 5


def test_a_reader_that_is_gone_does_not_end_the_program(tmp_path: Path) -> None:
    script = f"for n in {{1..2000}}; do echo $n; done; echo whole >{tmp_path / 'end'}"
    with subprocess.Popen(
        words("bash", "-c", script), env=clean_environ(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0

    assert (tmp_path / "end").read_text() == "whole\n"


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    """From four ranks at once into one file, and through one pipe."""
    script = "import sys\nfor n in range(20000): sys.stdout.write(f'{n:06} ' + 'x' * 60 + '\\n')"
    ranks = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        for rank in range(4):
            command = words(sys.executable, "-I", "-S", "-c", script, rank=rank)
            ranks.append(subprocess.Popen(command, env=clean_environ(), stdout=cat.stdin))
        assert cat.stdin is not None
        cat.stdin.close()
        assert cat.stdout is not None
        lines = cat.stdout.read().decode().splitlines()
    assert [process.wait() for process in ranks] == [0] * 4

    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[rank{rank}]: ")]
        assert own == [f"[rank{rank}]: {n:06} " + "x" * 60 for n in range(20000)]
    assert len(lines) == 80000


def test_the_program_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ >{pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 1000"
    process = subprocess.Popen(words("bash", "-c", script), env=clean_environ())
    wait_for_file(pid_file)

    process.kill()
    process.wait()

    pid = int(pid_file.read_text())
    while is_running(pid):
        time.sleep(0.02)


def test_a_file_of_the_launcher_stays_open(tmp_path: Path) -> None:
    """MPICH's launcher talks with the program through one (PMI_FD)."""
    reader, writer = os.pipe()
    with subprocess.Popen(
        words("bash", "-c", f"echo hello >&{writer}"), env=clean_environ(), pass_fds=[writer]
    ) as process:
        os.close(writer)
        with open(reader, "rb") as file:
            assert file.read() == b"hello\n"
        assert process.wait() == 0


def test_labelling_costs_no_import_of_torch() -> None:
    code = (
        "import sys, hpc_amp.distributed.supervise, hpc_amp.distributed.labels; "
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout == "False\n"


def test_signals_reach_a_program_whose_output_is_not_read(tmp_path: Path) -> None:
    script = f"""
trap 'touch {tmp_path}/got; exit 0' TERM
head -c 1000000 /dev/zero | tr '\\0' 'x' | fold -w 99 &
touch {tmp_path}/began
while :; do sleep 0.05; done
"""
    with subprocess.Popen(
        words("bash", "-c", script), env=clean_environ(), stdout=subprocess.PIPE
    ) as process:
        wait_for_file(tmp_path / "began")
        time.sleep(1)  # the pipe is full
        process.send_signal(signal.SIGTERM)
        wait_for_file(tmp_path / "got")
        process.communicate()
