"""Find `apptainer` or `singularity` on this machine, run it with its output shown, and explain
failures with a known cause."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hpc_amp.clients import run_in_time
from hpc_amp.containers.base import PATIENCE
from hpc_amp.errors import HpcAmpError, UsageError
from hpc_amp.pseudo_terminal import copy_window_size, read_available
from hpc_amp.resources import Which, which
from hpc_amp.signals import handling, interrupt

PREFIXES = ("APPTAINER", "SINGULARITY")
_TAIL = 64 * 1024
_SILENCE = 60.0  # seconds without output after which a message says that the command still runs


class Runtime(NamedTuple):
    """The container program of this machine. `flavour` is the product that it really is: the
    command `singularity` may be Apptainer's."""

    program: str
    flavour: Literal["apptainer", "singularity-ce", "singularity"]
    text: str
    """The first line that `--version` prints."""

    @property
    def version(self) -> tuple[int, ...]:
        """Major and minor number; empty if `--version` prints none."""
        match = re.search(r"(\d+)\.(\d+)", self.text)
        return (int(match[1]), int(match[2])) if match else ()

    @property
    def no_eval(self) -> list[str]:
        """The option of `exec` that keeps it from evaluating arguments as shell code. Empty if the
        version has no such option."""
        oldest = {"apptainer": (1, 1), "singularity-ce": (3, 10), "singularity": (1000, 0)}
        return ["--no-eval"] if self.version >= oldest[self.flavour] else []


def find_runtime(
    names: Sequence[str] = ("apptainer", "singularity"),
    *,
    seconds: float = PATIENCE,
    which: Which = which,
) -> Runtime:
    """Find the first of the programs that is in PATH. Raises HpcAmpError if none is, or if it does
    not answer in `seconds`."""
    program = next(filter(None, map(which, names)), None)
    if program is None:
        raise HpcAmpError(
            f"no {' or '.join(names)} on this machine's PATH",
            hint="load its module (module load apptainer), or use a node that has it",
        )
    try:
        status, output, errors = run_in_time([program, "--version"], seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HpcAmpError(f"{program} does not run: {error}") from None
    text = output.strip()
    if status != 0 or not text:
        message = " ".join(errors.split()) or "it prints nothing"
        raise HpcAmpError(f"{program} --version fails: {message}")
    flavour: Literal["apptainer", "singularity-ce", "singularity"] = "singularity"
    if text.startswith("apptainer"):
        flavour = "apptainer"
    elif text.startswith("singularity-ce"):
        flavour = "singularity-ce"
    return Runtime(program, flavour, text.splitlines()[0])


def refuse_many_ranks(command: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError if this process is one of several ranks of a job: each would do the same
    work. `command` says what, such as "pull the image"."""
    for size, rank in (
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("PALS_SIZE", "PALS_RANKID"),
        ("WORLD_SIZE", "RANK"),
    ):
        count = environ.get(size, "")
        if count.isdigit() and int(count) > 1:
            raise UsageError(
                f"this is rank {environ.get(rank, '?')} of {count}, and each would {command}",
                hint="run it once, on one node, before the job or with srun --ntasks=1",
            )


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    secrets: Sequence[str] = (),
    still: Callable[[float], str] | None = None,
    out: Any = None,
) -> tuple[int, str]:
    """Run a command and show its output while it runs.

    `secrets` are replaced by `***` in the output. If the output goes to a terminal, the command
    gets a pseudo-terminal, so that its progress bars work. `still` returns a message that is shown
    after a minute without output; its argument is the number of seconds since the start. `out` is
    the binary stream for the output; default: standard error.

    Returns the exit status and the last 64 KiB of the output. SIGINT and SIGTERM end the command,
    and KeyboardInterrupt is raised after its end.
    """
    stream = out if out is not None else sys.stderr.buffer
    terminal = bool(getattr(stream, "isatty", lambda: False)())
    reader, writer = os.openpty() if terminal else os.pipe()
    if terminal:
        with contextlib.suppress(OSError):  # the stream may have no descriptor
            copy_window_size(sys.stderr.fileno(), reader)
    with handling({signal.SIGTERM: interrupt}):
        try:
            child = subprocess.Popen(
                list(command),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
            )
        finally:
            os.close(writer)
        try:
            return _relay(child, reader, stream, secrets, still)
        except BaseException:
            _end(child)
            raise
        finally:
            os.close(reader)


def _relay(
    child: subprocess.Popen[bytes],
    reader: int,
    stream: Any,
    secrets: Sequence[str],
    still: Callable[[float], str] | None,
) -> tuple[int, str]:
    started = said = time.monotonic()
    tail = held = b""
    hidden = [secret.encode() for secret in secrets if secret]
    longest = max(map(len, hidden), default=0)

    def show(data: bytes) -> None:
        nonlocal tail
        for secret in hidden:
            data = data.replace(secret, b"***")
        tail = (tail + data)[-_TAIL:]
        stream.write(data)
        stream.flush()

    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1.0):
                data = read_available(reader)
                if not data:
                    break
                said = time.monotonic()
                held += data
                # The end of an incomplete line is held back: it may be the beginning of a secret.
                ready = len(held)
                if longest:
                    ready = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
                show(held[:ready])
                held = held[ready:]
            elif child.poll() is not None:
                break  # a process that the command left behind keeps the output open
            elif still is not None and time.monotonic() - said >= _SILENCE:
                said = time.monotonic()
                show(f"hpc-amp: {still(said - started)}\n".encode())
    show(held)
    return child.wait(), tail.decode(errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command. It gets 2 s first, because it may have received Ctrl-C from the terminal and
    be cleaning up."""
    for wait, send in ((2, None), (20, signal.SIGTERM), (None, signal.SIGKILL)):
        if send is not None:
            child.send_signal(send)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(wait)
            return


# ---- failures with a known cause -----------------------------------------------------------------

_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"no space left on device|disk quota exceeded|not enough space",
        "a file system is full, or a quota is exceeded: choose others with --tmp-dir and "
        "--cache-dir",
    ),
    (
        r"hpc-amp: torch has changed",
        "a package replaced files of the image's torch: install it with its dependencies left out, "
        "or another version of it",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "a package wants another torch, or another version of what the image holds: choose another "
        "version of the package",
    ),
    (
        r"no mapping entry found in /etc/sub[ug]id",
        "--fakeroot needs a range of ids for you in /etc/subuid, which an administrator can add; "
        "newer versions of Apptainer do not need it",
    ),
    (
        r"new[ug]idmap was not found",
        "--fakeroot needs newuidmap here (package uidmap or shadow-utils): build elsewhere, or ask "
        "an administrator",
    ),
    (
        r"GLIBC_[0-9.]+'? not found.*|faked?: .*GLIBC_",
        "the host's fakeroot needs a newer C library than the image has: add "
        "--arg=--ignore-fakeroot-command",
    ),
    (
        r"Requesting capability set",
        "this root user lacks capabilities, as in many sandboxes: build as an ordinary user with "
        "--fakeroot",
    ),
    (
        r"must be (the )?root|needs? to be run as root|--remote, --fakeroot",
        "building needs root or --fakeroot",
    ),
    (
        r"user namespace.*(disabled|not (allowed|supported|enabled))|max_user_namespaces"
        r"|Failed to create user namespace",
        "this machine does not let users create namespaces: build on one that does",
    ),
    (
        r"mksquashfs.*(not found|no such file)",
        "mksquashfs is missing here (package squashfs-tools): use a machine that has it",
    ),
    (
        r"toomanyrequests|429 too many requests|pull rate limit",
        "the registry limits anonymous pulls: wait, or give it credentials in "
        "APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD",
    ),
    (
        r"unauthorized|authentication required|denied: |requested access to the resource is denied"
        r"|\bstatus[^\d\n]{1,40}40[13]\b|\b40[13] (unauthorized|forbidden)",
        "the registry refuses the credentials, or needs some: set NGC_API_KEY for nvcr.io, "
        "APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD for others; hpc-amp does not "
        "store them",
    ),
    (
        r"no image satisfies|no image found in (manifest|image index).* for architecture"
        r"|no child with platform|choosing (an )?image",
        "there is no image for this architecture: see --arch",
    ),
    (
        r"architecture \(\w+\) could not run on the host",
        "the image is for another architecture",
    ),
    (
        r"manifest unknown|name unknown|repository name not known|not found: .*manifest"
        r"|\bstatus[^\d\n]{1,40}404\b|\b404 not found",
        "the registry has no such image or tag: check the name",
    ),
    (
        r"x509: |certificate signed by unknown authority",
        "the registry's certificate is not trusted here: if there is a proxy, its certificate has "
        "to be installed",
    ),
    (
        r"server gave HTTP response to HTTPS client",
        "the registry uses plain HTTP: add --arg=--no-https if you trust the network",
    ),
    (
        r"no such host|i/o timeout|connection refused|network is unreachable|proxyconnect"
        r"|connection reset|TLS handshake timeout|Could not resolve|Temporary failure resolving",
        "this node does not reach the registry: use a login node, or set https_proxy (hpc-amp also "
        "uses the site's `env`)",
    ),
)


def explain(output: str) -> tuple[str, str | None]:
    """The last error message in the output of a failed command, and its known cause, or None."""
    without_colours = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    lines = [line.strip() for line in re.split(r"[\r\n]+", without_colours) if line.strip()]
    last = next((line for line in reversed(lines) if "FATAL" in line), lines[-1] if lines else "")
    text = "\n".join(lines[-200:])
    cause = next(
        (cause for pattern, cause in _CAUSES if re.search(pattern, text, re.IGNORECASE)), None
    )
    return re.sub(r"^(FATAL|ERROR)\s*:\s*", "", last), cause
