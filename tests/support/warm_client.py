"""`python -I -S warm_client.py SOCKET WORDS`: the interpreter of `support.warm_python` if a fork is
to be `python WORDS`. Ends with the exit status of the fork, or by a signal where it did.

Every training under test starts one of these for each rank. So it imports nothing that is written
in Python: with `os`, `socket` and `signal`, it would take three times as long.
"""

import _signal
import _socket
import marshal
import posix
import sys

PASSED_ON = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)


def main(path, words):  # type: ignore[no-untyped-def]
    request = {"words": words, "cwd": posix.getcwd(), "environ": dict(posix.environ)}
    request |= {"executable": sys.executable, "nice": posix.nice(0)}
    text = marshal.dumps(request)
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(path)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
    server.sendmsg([len(text).to_bytes(8, "big")], rights)
    # The fork is not there before it can be told of a signal.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, PASSED_ON)
    server.sendall(text)
    pid = number_from(server)
    for number in PASSED_ON:
        _signal.signal(number, lambda number, _: tell(pid, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, PASSED_ON)
    status = number_from(server)
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        posix.kill(posix.getpid(), -status)
    sys.exit(status)


def number_from(server):  # type: ignore[no-untyped-def]
    """The number in a line of its answer. ValueError where the process that forks has ended."""
    line = byte = server.recv(1)
    while byte not in (b"", b"\n"):
        byte = server.recv(1)
        line += byte
    return int(line)


def tell(pid, number):  # type: ignore[no-untyped-def]
    try:  # noqa: SIM105
        posix.kill(pid, number)
    except ProcessLookupError:
        pass


main(sys.argv[1], sys.argv[2:])
