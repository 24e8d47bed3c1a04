"""The command line of Cobalt's qsub, and the header of its scripts."""

from __future__ import annotations

import optparse
import os
import re
import sys
from typing import Any, NoReturn

MARKER = "#COBALT "
MODES = ("co", "vn", "script", "interactive")
_USAGE = "%prog [options] <executable> [<executable options>]"
_VERSION = 'version: "qsub.py " + $Revision: 559 $ + , Cobalt  + $Version$'


class Refused(Exception):
    """qsub ends with a message and a status."""

    def __init__(self, message: str, status: int = 1, *, usage: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.usage = usage
        """Whether the usage text goes to standard output before."""


class _Parser(optparse.OptionParser):
    """Notes what optparse forgets: which options were there, and `--env` in two words."""

    def __init__(self) -> None:
        super().__init__(usage=_USAGE, prog="qsub.py", add_help_option=False)
        self.disable_interspersed_args()
        add = self.add_option
        add("-t", "--time", dest="time")
        add("-n", "--nodecount", dest="nodecount", type="int")
        add("-q", "--queue", dest="queue")
        add("-A", "--project", dest="project")
        add("--attrs", dest="attrs", action="callback", type="string", callback=self._attrs)
        add("--env", dest="env", action="callback", type="string", callback=self._env)
        add("-o", "--output", dest="output")
        add("-e", "--error", dest="error")
        add("-O", "--outputprefix", dest="prefix")
        add("--debuglog", dest="debuglog")
        add("-i", "--inputfile", dest="input")
        add("--cwd", dest="cwd", action="callback", type="string", callback=self._cwd)
        add("--jobname", dest="jobname")
        add(
            "--dependencies",
            dest="dependencies",
            action="callback",
            type="string",
            callback=self._dependencies,
        )
        add("-h", "--held", dest="held", action="store_true", default=False)
        add("-I", "--interactive", action="callback", callback=self._interactive)
        self.set_defaults(interactive=False)
        add("--mode", dest="mode", action="callback", type="string", callback=self._mode)
        add("-M", "--notify", dest="notify")
        add("-u", "--umask", dest="umask", action="callback", type="string", callback=self._umask)
        add("--preemptable", dest="preemptable", action="store_true", default=False)
        add("--user_list", "--run_users", dest="run_users")
        add("--run_project", dest="run_project", action="store_true", default=False)
        add("--proccount", dest="proccount", action="callback", type="int", callback=self._count)
        add("-d", "--debug", dest="debug", action="store_true", default=False)
        add("-v", "--verbose", dest="verbose", action="store_true", default=False)
        add(
            "--geometry", dest="geometry", action="callback", type="string", callback=self._geometry
        )
        add("-K", "--kerneloptions", dest="kerneloptions")
        for unused in ("kernel", "ion_kernel", "ion_kerneloptions"):
            add(f"--{unused}", dest=unused)
        add("--disable_preboot", dest="disable_preboot", action="store_true", default=False)
        add("--help", action="callback", callback=self._print, callback_args=(_USAGE,))
        add("--version", action="callback", callback=self._print, callback_args=(_VERSION,))
        self.two_words = False
        self.looked_up: list[str] = []

    def _process_long_opt(self, rargs: list[str], values: Any) -> None:
        self.two_words = "=" not in rargs[0]
        super()._process_long_opt(rargs, values)

    def _env(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        # `--env A=1 --env B=2` joins; `--env=A=1` replaces what was there.
        before = parser.values.env
        parser.values.env = f"{before}:{value}" if self.two_words and before else value

    def _attrs(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        if parser.values.attrs is not None:
            raise Refused(
                "Multiple --attrs options not supported.  "
                "Specify multiple attributes as follows: --attrs FOO=1:BAR=2"
            )
        parser.values.attrs = value

    def _mode(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        before = parser.values.mode
        if before is not None and before != value:
            raise Refused(f"Mode already set to '{before}' and trying to set it again to '{value}'")
        parser.values.mode = value

    def _interactive(
        self, option: Any, name: str, _value: Any, parser: optparse.OptionParser
    ) -> None:
        self._mode(option, name, "interactive", parser)
        parser.values.interactive = True

    def _umask(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        try:
            int(value, 8)
        except ValueError:
            raise Refused(f"Invalid umask value {value}") from None
        parser.values.umask = value

    def _count(self, option: Any, name: str, value: int, parser: optparse.OptionParser) -> None:
        if value <= 0:
            raise Refused(f"{name} is {value} which is greater <= to zero")
        parser.values.proccount = value

    def _geometry(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        if not re.fullmatch(r"\d+(x\d+){3}x[12]", value):
            raise Refused("Invalid geometry entered: ")
        parser.values.geometry = value

    def _cwd(self, option: Any, _name: str, value: str, parser: optparse.OptionParser) -> None:
        # The folder that it is in has to exist, and `sub` names none.
        if not os.path.isdir(os.path.dirname(value)):
            raise Refused(f"directory {value} does not exist")
        parser.values.cwd = value

    def _dependencies(
        self, option: Any, _name: str, value: str, parser: optparse.OptionParser
    ) -> None:
        # Looked up each time that the words are read: again when there is a header.
        self.looked_up.append(value)
        parser.values.dependencies = value

    def _print(self, _option: Any, _name: str, _value: Any, _parser: Any, text: str) -> NoReturn:
        print(text)
        raise SystemExit(0)

    def error(self, msg: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {msg}", file=sys.stderr)
        raise SystemExit(2)


def parse(words: list[str]) -> tuple[optparse.Values, list[str]]:
    """Options, and the executable with its arguments. `looked_up` are the `--dependencies`."""
    parser = _Parser()
    values, command = parser.parse_args(words)
    values.looked_up = parser.looked_up
    return values, command


def usage() -> str:
    """As on standard output."""
    return _Parser().get_usage()


def header(path: str) -> list[str] | None:
    """The words of a script's directives; None where there are none."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        if not file.readline().startswith("#!"):
            return None
        words: list[str] | None = None
        for line in file:
            if len(line) <= len(MARKER) or not line.startswith(MARKER):
                break
            words = [*(words or []), *line[len(MARKER) :].split()]
        return words


_PARTS = ("days", "hours", "minutes", "seconds")


def minutes(text: str) -> int:
    """`M`, `H:M`, `H:M:S` or `D:H:M:S`. Only seconds have a range, and they count for nothing."""
    fields = text.split(":")
    if len(fields) > 4:
        raise Refused(
            "invalid time specification: time may be specified as minutes, HH:MM, HH:MM:SS, or "
            "DD:HH:MM:SS"
        )
    names = {1: _PARTS[2:3], 2: _PARTS[1:3], 3: _PARTS[1:], 4: _PARTS}[len(fields)]
    numbers = {"days": 0, "hours": 0, "minutes": 0, "seconds": 0}
    for field, name in zip(fields, names, strict=True):
        try:
            numbers[name] = int(field)
        except ValueError:
            raise Refused(
                f"invalid time specification: illegal value '{field}' for {name}"
            ) from None
    if not 0 <= numbers["seconds"] <= 59:
        raise Refused(
            f"invalid time specification: seconds value '{numbers['seconds']}' "
            "outside range [0, 59]"
        )
    if numbers[names[0]] < 0:
        raise Refused(f"invalid time specification: {names[0]} value must not be negative")
    return numbers["days"] * 1440 + numbers["hours"] * 60 + numbers["minutes"]


def _unescape(text: str) -> str:
    return text.replace("\\:", ":").replace("\\=", "=")


def variables(text: str) -> dict[str, str]:
    """`A=1:B=2`. A colon splits only where a name and an equals sign follow."""
    found = {}
    for part in re.split(r"(?<!\\):(?=\w+\b=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise Refused(f"Improperly formatted argument to env : {[part]}")
        found[name] = _unescape(value)
    return found


def attributes(text: str) -> dict[str, str]:
    """`filesystems=home,eagle:mcdram=flat:foo:no_x`."""
    found = {}
    for part in text.split(":"):
        fields = part.split("=")
        if len(fields) > 2:
            raise Refused(f"Improperly formatted argument to attrs : {part}")
        if len(fields) == 2:
            found[fields[0]] = fields[1]
        elif part.startswith("no_"):
            found[part[3:]] = "false"
        else:
            found[part] = "true"
    return found
