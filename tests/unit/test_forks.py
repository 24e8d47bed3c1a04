"""The forks that tests use in the place of processes behave as the processes do."""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import commands
from support.environment import clean_environ
from support.terminal import CommandTerminal, Terminal
from support.waiting import is_running, wait_for_file, wait_until
from support.warm_python import WarmPython

# Stands in for hpc_amp.train, which the run's own `src` has.
PROGRAM = """
import os, signal, sys, time
if sys.argv[1] == "exit":
    print("out", os.environ["GIVEN"], os.getcwd(), sys.executable)
    print("err", file=sys.stderr)
    sys.exit(3)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)

def save(number, frame):
    print("saved")
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
with open("part", "w") as out:
    out.write(str(os.getpid()))
os.rename("part", "pid")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "src" / "hpc_amp" / "train"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    return clean_environ(PYTHONPATH=str(tmp_path / "src"), GIVEN="it's $HOME")


def start(python: Path, folder: Path, environ: dict[str, str], word: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-m", "hpc_amp.train", word],
        cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_training_has_the_files_and_the_environment_of_its_python(
    warm_python: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    program = start(warm_python, tmp_path, environ, "exit")
    out, err = program.communicate()
    assert (program.returncode, err) == (3, "err\n")
    assert out == f"out it's $HOME {tmp_path} {warm_python}\n"


def test_a_script_is_a_fork_where_its_command_line_fits(
    warm_pythons: WarmPython, tmp_path: Path
) -> None:
    python = warm_pythons.interpreter(tmp_path / "env", "*look.py*")
    script = tmp_path / "look.py"
    script.write_text(
        "import json, os, sys\n"
        "seen = [__name__, sys.argv, sys.path[0], sys.executable, 'torch' in sys.modules]\n"
        "seen.append(os.nice(0))\n"
        "print(json.dumps(seen))\n"
    )
    other = tmp_path / "other.py"
    other.write_text(script.read_text())

    for name, forked in ((script, True), (other, False)):
        said = subprocess.run(
            ["nice", "-n", "3", python, name, "a b"], text=True, capture_output=True
        )
        facts = ["__main__", [str(name), "a b"], str(tmp_path), str(python), forked, os.nice(0) + 3]
        assert (json.loads(said.stdout), said.stderr, said.returncode) == (facts, "", 0)


def test_a_training_ends_and_is_ended_as_its_python(
    warm_python: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    died = start(warm_python, tmp_path, environ, "die")
    assert died.wait() == -signal.SIGKILL

    terminated = start(warm_python, tmp_path, environ, "wait")
    wait_for_file(tmp_path / "pid")
    terminated.terminate()
    assert terminated.communicate()[0] == "saved\n"
    assert terminated.returncode == 75

    (tmp_path / "pid").unlink()
    killed = start(warm_python, tmp_path, environ, "wait")
    wait_for_file(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())
    assert pid != killed.pid and is_running(pid)
    killed.kill()
    wait_until(lambda: not is_running(pid), "the training to be killed")
    for program in (died, killed):
        program.communicate()


@pytest.mark.parametrize("sent", ["nothing", "a part", "all"])
def test_a_python_that_is_killed_while_it_asks_takes_its_training_along(
    warm_pythons: WarmPython, tmp_path: Path, environ: dict[str, str], sent: str
) -> None:
    words = ["-m", "hpc_amp.train", "wait"]
    encoded = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    facts = {"words": words, "cwd": str(tmp_path), "environ": encoded}
    request = marshal.dumps({**facts, "executable": sys.executable, "nice": 0})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(str(warm_pythons.socket))
        if sent != "nothing":
            socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(request if sent == "all" else request[:9])

    next_one = start(warm_pythons.python, tmp_path, environ, "exit")
    next_one.communicate()
    assert next_one.returncode == 3
    if (tmp_path / "pid").exists():
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not is_running(pid), "the training to be killed")


def test_other_programs_are_processes(warm_python: Path) -> None:
    words = [warm_python, "-c", "import sys, yaml; print(sys.executable, 'torch' in sys.modules)"]
    said = subprocess.run(words, text=True, capture_output=True, check=True).stdout
    assert said == f"{warm_python} False\n"


@pytest.mark.parametrize(
    "words", [["validate", "jöb.yaml"], ["--version"], ["stätus"], ["status", "--json"]]
)
def test_a_command_says_what_a_process_says(tmp_path: Path, words: list[str]) -> None:
    environ = clean_environ()
    process = subprocess.run(
        [sys.executable, "-m", "hpc_amp", *words],
        cwd=tmp_path, env=environ, text=True, capture_output=True,
    )  # fmt: skip
    said = commands.hpc_amp(*words, cwd=tmp_path, environ=environ)
    assert (said.returncode, said.stdout, said.stderr) == (
        process.returncode, process.stdout, process.stderr,
    )  # fmt: skip


ON_A_TERMINAL = """
import json, os, sys, time
own = os.getpid()
facts = [sys.argv, os.getcwd(), os.environ["GIVEN"], os.get_terminal_size()]
facts += [os.isatty(number) for number in range(3)] + [sys.stdin.isatty(), sys.stdout.isatty()]
facts.append(os.getsid(0) == os.getpgid(0) == os.tcgetpgrp(0) == own)
print(json.dumps(facts))
try:
    print(input().upper())
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted")
time.sleep(1000)
"""


@pytest.mark.parametrize("kind", [Terminal, CommandTerminal])
def test_a_fork_on_a_terminal_is_what_a_process_is(kind: type[Terminal], tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_A_TERMINAL, "a b"]
    environ = clean_environ(GIVEN="it's")

    with kind(command, cwd=tmp_path, environ=environ, rows=40, columns=1000) as terminal:
        said = terminal.wait_for(r"\[.*\]\n")[0]
        assert json.loads(said) == [["-c", "a b"], str(tmp_path), "it's", [1000, 40], *[True] * 6]
        terminal.type("typed")
        terminal.wait_for(r"typed\nTYPED\n")
        terminal.interrupt()
        terminal.wait_for("interrupted")
        terminal.close()
        assert terminal.end() == -signal.SIGHUP


def test_what_is_read_when_python_starts_is_read(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    show = ("-c", "import sys; print(sys.stdout.encoding)")
    latin = clean_environ(PYTHONIOENCODING="latin-1")
    assert commands.python(*show, cwd=tmp_path, environ=latin).stdout == "iso8859-1\n"
    custom = clean_environ()
    custom["PYTHONPATH"] += f":{tmp_path}"
    assert commands.python(*show, cwd=tmp_path, environ=custom).stdout == "customized\nutf-8\n"


def test_a_command_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """Not its folder, its variables, its modules or its search path."""
    program = (
        "import os, sys; print(os.getcwd(), os.environ.get('GIVEN'), sys.argv, 'own' in "
        "sys.modules, sys.path[0] == ''); os.environ['GIVEN'] = 'changed'; import own"
    )
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.py").touch()
        said = commands.python(
            "-c", program, name, cwd=folder, environ=clean_environ(GIVEN=name, HOME=os.devnull)
        )
        assert (said.stdout, said.stderr) == (f"{folder} {name} ['-c', '{name}'] False True\n", "")


def test_what_a_command_arranged_for_its_end_is_done(tmp_path: Path) -> None:
    program = "import tempfile; kept = tempfile.TemporaryDirectory(); print(kept.name, end='')"
    said = commands.python("-c", program, cwd=tmp_path, environ=clean_environ())
    assert said.returncode == 0 and said.stdout and not Path(said.stdout).exists()


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    program = "import time\nwhile True:\n  open('alive', 'w').close()\n  time.sleep(0.01)"
    with pytest.raises(subprocess.TimeoutExpired):
        commands.python("-c", program, cwd=tmp_path, environ=clean_environ(), timeout=2)
    (tmp_path / "alive").unlink(missing_ok=True)
    time.sleep(0.5)
    assert not (tmp_path / "alive").exists()
