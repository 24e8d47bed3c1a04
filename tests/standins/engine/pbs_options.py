"""The command line of PBS's qsub, and the directives of its scripts."""

from __future__ import annotations

import getopt
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPTIONS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
MARKER = "#PBS"

USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
	[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
	[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]

       qsub --version

"""


class Refused(Exception):
    """qsub ends with a message and a status."""

    def __init__(self, message: str, status: int, *, usage: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.usage = usage


# ---- the directives ------------------------------------------------------------------------------


def directives(text: str, marker: str = MARKER) -> list[str]:
    """What stands behind the marker, of all directives up to the first command."""
    lines = text.split("\n")
    if any(line.endswith("\r") for line in lines[:-1]):
        raise Refused("qsub: script contains cr, lf", 1)
    found: list[str] = []
    if not marker:
        return found
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        start = line.lstrip(" \t")
        if start.startswith(marker):
            rest = start[len(marker) :]
            while rest.rstrip(" \t").endswith("\\") and position < len(lines):
                rest = rest.rstrip(" \t")[:-1] + lines[position]
                position += 1
            found.append(rest)
        elif start and not start.startswith("#") and not line.startswith(":"):
            break
    return found


def split(text: str) -> list[str]:
    """Words. Both kinds of quotes protect everything; a backslash escapes outside them."""
    words: list[str] = []
    word: list[str] | None = None
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character in " \t":
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        if character in "'\"":
            end = text.find(character, position)
            if end < 0:
                raise Refused("qsub: unmatched ", 1)
            word.append(text[position:end])
            position = end + 1
        elif character == "\\" and position < len(text):
            word.append(text[position])
            position += 1
        else:
            word.append(character)
    if word is not None:
        words.append("".join(word))
    return words


# ---- values --------------------------------------------------------------------------------------


def _illegal(option: str) -> Refused:
    return Refused(f"qsub: illegal {option} value", 2, usage=True)


def _pattern(option: str, expression: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not re.fullmatch(expression, value):
            raise _illegal(option)
        return value

    return check


def job_name(value: str) -> str:
    """Letters, digits and a few signs, 230 at most."""
    if not re.fullmatch(r"[A-Za-z0-9._+-]+", value):
        raise _illegal("-N")
    if len(value) > 230:
        raise Refused("qsub: Job name is too long", 2)
    return value


def _path(option: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        host, colon, rest = value.partition(":")
        plain = rest if colon else value
        if colon and (not rest.startswith("/") or not re.fullmatch(r"[\w.-]+", host)):
            raise _illegal(option)
        if not plain or any(not 32 <= ord(character) < 127 for character in plain):
            raise _illegal(option)
        return plain

    return check


def _project(value: str) -> str:
    if set(value) & set('/[]";:|<>+,?*'):
        raise Refused("qsub: Illegal attribute or resource value project", 166)
    return value


def _priority(value: str) -> str:
    if not re.fullmatch(r"[+-]?\d+", value) or not -1024 <= int(value) <= 1023:
        raise _illegal("-p")
    return value


def _shells(value: str) -> str:
    """`PATH[@HOST],...`, of which one may be without a host."""
    paths = value.split(",")
    if not all(re.fullmatch(r"/[^,@\s]*(@[\w.-]+)?", path) for path in paths):
        raise _illegal("-S")
    if sum("@" not in path for path in paths) > 1:
        raise _illegal("-S")
    return value


_CHECKS: dict[str, Callable[[str], str]] = {
    "-A": str,
    "-c": _pattern("-c", r"[ns]|[cw](=\d+)?"),
    "-e": _path("-e"),
    "-j": _pattern("-j", "oe|eo|n"),
    "-k": _pattern("-k", "n|(?=.*[oe])[doe]+"),
    "-m": _pattern("-m", "n|[abej]+"),
    "-M": str,
    "-N": job_name,
    "-o": _path("-o"),
    "-p": _priority,
    "-P": _project,
    "-q": str,
    "-R": _pattern("-R", "[oe]+"),
    "-S": _shells,
    "-u": str,
}


Array = dict[str, Any]


def array(text: str) -> Array:
    """The indices of `X-Y[:Z][%most]`, and how many subjobs may run at once."""
    match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?:%(\d+))?", text)
    if match is None or int(match[1]) >= int(match[2]) or match[3] == "0":
        raise _illegal("-J")
    indices = range(int(match[1]), int(match[2]) + 1, int(match[3] or 1))
    if len(indices) > 10_000:
        raise Refused("qsub: Array job exceeds server or queue size limit", 3)
    return {"indices": list(indices), "most": None if match[4] is None else int(match[4])}


class Options:
    """What command line and directives ask for together."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.flags: set[str] = set()
        self.resources: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        self.marker = MARKER
        self.array: Array | None = None
        self._from_command_line: set[str] = set()

    def command_line(self, words: Sequence[str]) -> list[str]:
        """Take the options; return what follows them."""
        if list(words) == ["--version"]:
            return ["--version"]
        try:
            pairs, rest = getopt.getopt(list(words), OPTIONS)
        except getopt.GetoptError as error:
            raise Refused(_getopt_text(error), 2, usage=True) from None
        for option, value in pairs:
            self._take(option, value, from_script=False)
        self._from_command_line = {*self.values}
        return rest

    def directive(self, text: str) -> None:
        """Take one directive's options."""
        words = split(text)
        try:
            pairs, rest = getopt.getopt(words, OPTIONS)
        except getopt.GetoptError as error:
            complaint = f"{_getopt_text(error)}\nqsub: directive error: {text.strip()} "
            raise Refused(complaint, 1) from None
        if rest:
            raise Refused(f"qsub: directive error: {text.strip()} ", 1)
        for option, value in pairs:
            if option not in self._from_command_line:
                self._take(option, value, from_script=True, text=text)

    def check(self) -> None:
        """What the options mean together."""
        if self.array is not None and self.values.get("-r") == "n":
            raise Refused("qsub:  cannot submit non-rerunable Array Job", 1)
        if self.array is None and "j" in self.values.get("-m", ""):
            raise Refused("qsub: mail option 'j' can not be used without array job", 1)
        check_attributes(self.attributes)

    def _take(self, option: str, value: str, *, from_script: bool, text: str = "") -> None:
        if option == "-C":
            self.marker = value
        elif option in ("-f", "-h", "-I", "-V", "-X", "-z"):
            self.flags.add(option)
        elif option == "-l":
            for name, amount in _list(value):
                # Of directives, and of the command line before them, the first stands.
                if from_script and name in self.resources:
                    continue
                self.resources[name] = amount
        elif option == "-W":
            if any("=" not in part for part in re.split(r",(?=[a-z_]+(?:=|$))", value)):
                raise Refused("qsub: illegal -W value", 1)
            for name, amount in _list(value, commas_in="depend"):
                if not (from_script and name in self.attributes):
                    self.attributes[name] = amount
        elif option in ("-r", "-a"):
            day = r"(\d\d){0,4}([01]\d|2[0-3])[0-5]\d(\.[0-5]\d)?"
            if not re.fullmatch(r"y|n" if option == "-r" else day, value):
                if from_script:
                    raise Refused(f"qsub: directive error: {text.strip()} ", 1)
                raise Refused(f"qsub: illegal {option} value", 1, usage=True)
            self.values[option] = value
        elif option == "-J":
            self.array = array(value)
            self.values[option] = value
        elif option == "-v":
            self.values[option] = value
        else:
            self.values[option] = _CHECKS[option](value)


def _getopt_text(error: getopt.GetoptError) -> str:
    if "requires argument" in error.msg:
        return f"qsub: option requires an argument -- '{error.opt}'"
    return f"qsub: invalid option -- '{error.opt[:1] or '-'}'"


def _list(text: str, commas_in: str = "") -> list[tuple[str, str]]:
    """`a=1,b=2`. A comma that no name and equals sign follow belongs to the value."""
    parts = re.split(r",(?=[A-Za-z_][\w.]*(?:=|$|,))", text)
    if commas_in and text.startswith(f"{commas_in}="):
        parts = re.split(r",(?=[a-z_]+=)", text)
    pairs = (part.partition("=") for part in parts)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


# ---- resources -----------------------------------------------------------------------------------

HOST_LEVEL = ("ncpus", "mem", "vmem", "mpiprocs", "ompthreads", "host", "vnode", "arch")
JOB_LEVEL = ("select", "place", "nodes", "walltime", "cput", "pcput", "pmem", "pvmem", "nice")
JOB_LEVEL += ("software", "file", "min_walltime", "max_walltime", "soft_walltime")
_SIZE = re.compile(r"(\d+)([kmgtp]?)([bw]?)", re.IGNORECASE)


def _illegal_resource(name: str) -> Refused:
    return Refused(f"qsub: Illegal attribute or resource value {name}", 166)


def seconds(text: str) -> int | None:
    """`S`, `M:S` or `H:M:S`, with a fraction that counts for nothing. None where it is no time."""
    if not re.fullmatch(r"\d+(:\d*){0,2}(\.\d*)?", text):
        return None
    total = 0
    for field in text.partition(".")[0].split(":"):
        total = total * 60 + int(field or 0)
    return total


def moment(text: str) -> float:
    """`[[[[CC]YY]MM]DD]hhmm[.SS]` as seconds since the epoch; what is left out is the next such
    moment's."""
    digits, _, second = text.partition(".")
    now = time.localtime()
    given = [int(digits[at : at + 2]) for at in range(0, len(digits), 2)]
    minute, hour = given.pop(), given.pop()
    day = given.pop() if given else now.tm_mday
    month = given.pop() if given else now.tm_mon
    year = now.tm_year
    if given:
        year = given.pop() + (100 * given.pop() if given else 2000)
    found = time.mktime((year, month, day, hour, minute, int(second or 0), 0, 0, -1))
    return found + 86400 if len(digits) == 4 and found < time.time() else found


def size(text: str) -> int | None:
    """Bytes of `4gb`. None where it is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    scale = 1024 ** "_kmgtp".index(match[2].lower() or "_")
    return int(match[1]) * scale * (8 if match[3].lower() == "w" else 1)


Chunks = list[dict[str, Any]]


def chunks(resources: Mapping[str, str], custom: Sequence[str]) -> Chunks:
    """One entry a chunk, with the resources that it takes. Checks what is asked for."""
    known = {*HOST_LEVEL, *JOB_LEVEL, *custom}
    for name, value in resources.items():
        if name not in known:
            raise Refused(f"qsub: Unknown resource Resource_List.{name}", 187)
        _check_value(name, value, "Resource_List.")
    explicit = "select" in resources or "place" in resources
    for name in resources:
        if explicit and name in (*HOST_LEVEL, "ngpus") and name in known:
            text = '"-lresource=" cannot be used with "select" or "place", resource is: '
            raise Refused(f"qsub: {text}{name}", 5)
        if explicit and name == "nodes":
            raise Refused("qsub: Cannot be used with select or place: nodes", 6)
    if "place" in resources and "select" not in resources:
        raise Refused('qsub: Cannot have "place" without "select"', 7)
    if "nodes" in resources:
        return _select(_nodes_as_select(resources["nodes"]), known)
    if "select" in resources:
        return _select(resources["select"], known)
    alone = {name: resources[name] for name in resources if name in (*HOST_LEVEL, "ngpus")}
    return _select(":".join(["1", *(f"{name}={value}" for name, value in alone.items())]), known)


def _nodes_as_select(text: str) -> str:
    """`N:ppn=M` or a host, with other resources, several with `+`; what follows `#` is for all."""
    found = []
    for part in text.partition("#")[0].split("+"):
        first, *settings = part.split(":")
        given = dict(setting.partition("=")[::2] for setting in settings)
        per_node = given.pop("ppn", None)
        if re.fullmatch("0+", first) or not (per_node or "1").isdigit():
            raise Refused("qsub: node(s) specification error", 241)
        count, host = (first or "1", "") if first.isdigit() or not first else ("1", first)
        if per_node is not None:
            given = {"ncpus": per_node, "mpiprocs": per_node, **given}
        given = {"ncpus": "1", **given, **({"host": host} if host else {})}
        found.append(":".join([count, *(f"{name}={value}" for name, value in given.items())]))
    return "+".join(found)


def _check_value(name: str, value: str, prefix: str) -> None:
    if not value and name.endswith(("walltime", "cput")):
        return  # a name alone is accepted, and counts for nothing
    if name in ("ncpus", "mpiprocs", "ompthreads", "ngpus", "naccelerators", "nice"):
        legal = value.isascii() and value.isdigit()
    elif name in ("mem", "vmem", "pmem", "pvmem", "file"):
        legal = size(value) is not None
    elif name.endswith(("walltime", "cput")):
        legal = seconds(value) is not None
    elif name == "place":
        kinds = ("free|pack|scatter|vscatter", "excl|shared|exclhost", "group=.+")
        found = [
            next((kind for kind in kinds if re.fullmatch(kind, part)), None)
            for part in value.lower().split(":")
        ]
        legal = None not in found and len(set(found)) == len(found)
    else:
        legal = True
    if not legal:
        raise _illegal_resource(f"{prefix}{name}")


def _select(text: str, known: set[str]) -> Chunks:
    found: Chunks = []
    for part in text.split("+"):
        first, *settings = part.split(":")
        if first.isascii() and first.isdigit():
            count = int(first)
            if count == 0:
                raise Refused("qsub: Illegal attribute or resource value", 166)
        elif "=" in first:
            count, settings = 1, [first, *settings]
        else:
            raise _illegal_resource("Resource_List.select")
        chunk: dict[str, Any] = {"ncpus": 1}
        for index, setting in enumerate(settings):
            name, equals, value = setting.partition("=")
            if not equals or not value:
                raise _illegal_resource("Resource_List.select")
            if name in [before.partition("=")[0] for before in settings[:index]]:
                text = "duplicated resource within a section of a select specification"
                raise Refused(f"qsub: {text}, resource is: {name}", 12)
            if name not in known or name in JOB_LEVEL:
                raise Refused(f"qsub: Unknown resource: {name}", 187)
            _check_value(name, value, "select.")
            chunk[name] = int(value) if value.isascii() and value.isdigit() else value
        found += [dict(chunk) for _ in range(count)]
    if not found:
        raise _illegal_resource("Resource_List.select")
    return found


# ---- -W and -v -----------------------------------------------------------------------------------

ATTRIBUTES = ("depend", "block", "umask", "group_list", "sandbox", "stagein", "stageout", "pwd")
ATTRIBUTES += ("run_count", "release_nodes_on_stageout", "tolerate_node_failures", "project")
ATTRIBUTES += ("interactive", "create_resv_from_job", "no_stdio_sockets", "cred")
_DEPENDENCIES = ("after", "afterok", "afternotok", "afterany")
_JOB_ID = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?(@[\w.-]+)?")


_TRUTH = r"(?i:true|false|t|f|y|n|1|0)"
_VALUES = {
    **dict.fromkeys(("block", "interactive", "create_resv_from_job", "no_stdio_sockets"), _TRUTH),
    "group_list": ".+",
    "release_nodes_on_stageout": _TRUTH,
    "run_count": r"\d+",
    "sandbox": "(?i:private|home|o_workdir)",
    "stagein": ".+@.+",
    "tolerate_node_failures": "all|job_start|none",
    "umask": r"-?\d*",
}


def check_attributes(attributes: Mapping[str, str]) -> None:
    """The names of -W, and their values."""
    for name, value in attributes.items():
        if name not in ATTRIBUTES and not name[:1].isupper():
            raise Refused("qsub: Error (15002) submitting job", 154)
        if not re.fullmatch(_VALUES.get(name, ".*"), value):
            raise _illegal("-W")
        if name == "depend":
            dependencies(value)


def umask(text: str) -> int:
    """What a job gets; digits that are none of a mask are taken at submission, too."""
    return int(text, 8) & 0o777 if re.fullmatch(r"[0-7]+", text) else 0o077


def dependencies(text: str) -> list[tuple[str, str]]:
    """`afterok:1:2,afterany:3.head` as (kind, id) pairs."""
    found = []
    for part in text.split(","):
        kind, *names = part.split(":")
        if kind in ("before", "beforeok", "beforenotok", "beforeany", "on"):
            raise Refused(f"qsub (stand-in): dependencies `{kind}` are not imitated", 2)
        if kind not in _DEPENDENCIES or not names:
            raise _illegal("-W")
        for name in names:
            if not _JOB_ID.fullmatch(name):
                raise _illegal("-W")
            found.append((kind, name))
    return found


_CANNOT_SEND = "qsub: cannot send environment with the job"


def variables(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The list of -v, as the job sees it."""
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = re.compile(r"\s*([^=,]*)(=?)").match(text, position)
        assert match is not None
        name, position = match[1], match.end()
        if match[2]:
            value, position = _value(text, position)
        else:
            if name not in environ:
                raise Refused(_CANNOT_SEND, 1)
            value = environ[name]
            if "'" in value or '"' in value:
                raise Refused(_CANNOT_SEND, 1)
            value = value.replace("\\", "\\\\")
        if not name:
            raise Refused(_CANNOT_SEND, 1)
        found[name] = value.rstrip(" ")
        position += 1  # the comma
    return found


def _value(text: str, position: int) -> tuple[str, int]:
    """One value, and where it ends."""
    if text[position : position + 1] in ("'", '"'):
        quote = text[position]
        # Up to the last such quote before the next name: those within are lost.
        end = re.compile(re.escape(quote) + r"(?=,[A-Za-z_]\w*(?:=|,|$)|$)").search(
            text, position + 1
        )
        if end is None:
            raise Refused(_CANNOT_SEND, 1)
        inner = text[position + 1 : end.start()]
        if "'" in inner:
            raise Refused(_CANNOT_SEND, 1)
        return inner.replace(quote, "").replace("\\", "\\\\"), end.end()
    value = ""
    while position < len(text) and text[position] != ",":
        if text[position] in "'\"":
            raise Refused(_CANNOT_SEND, 1)
        if text.startswith("\\,", position):
            value += ","
            position += 2
            continue
        value += "\\\\" if text[position] == "\\" else text[position]
        position += 1
    return value, position


def whole_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What -V sends."""
    return {name: value.rstrip(" ") for name, value in environ.items()}


def submit_variables(environ: Mapping[str, str], cwd: str, host: str) -> dict[str, str]:
    """The PBS_O_* variables."""
    kept = {
        "PBS_O_HOME": environ.get("HOME", ""),
        "PBS_O_LANG": environ.get("LANG", ""),
        "PBS_O_LOGNAME": environ.get("LOGNAME", ""),
        "PBS_O_PATH": environ.get("PATH", ""),
        "PBS_O_SHELL": environ.get("SHELL", ""),
        "PBS_O_WORKDIR": cwd,
        "PBS_O_SYSTEM": os.uname().sysname,
        "PBS_O_HOST": host,
    }
    return {name: value for name, value in kept.items() if value}


def default_name(path: str) -> str:
    """The script's file name, which must do as a job's name."""
    return job_name(os.path.basename(path))
