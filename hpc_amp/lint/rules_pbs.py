"""Rules about PBS Pro's options."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.rules_options import VARIABLE, is_placeholder
from hpc_amp.lint.rules_slurm import comma_in_quotes
from hpc_amp.schedulers.grammar import Header, Option, Options
from hpc_amp.schedulers.pbs.grammar import resource_list

# Resources of a host, which belong in the chunks of select.
_HOST_LEVEL = {"ncpus", "mem", "vmem", "ngpus", "mpiprocs", "ompthreads", "naccelerators", "arch"}
# The values that qsub accepts, as a pattern and as text. Verified with OpenPBS 23.06
# (tests/unit/test_lint_pbs.py).
_VALUES = {
    "a": (r"(?:\d\d){0,4}(?:[01]\d|2[0-3])[0-5]\d(?:\.[0-5]\d)?", "[[[[CC]YY]MM]DD]hhmm[.SS]"),
    "c": (r"[nscw]|[cw]=\d+", "n, s, c, w, c=MINUTES or w=MINUTES"),
    "j": (r"oe|eo|n", "oe, eo or n"),
    "J": (r"\d+-\d+(?::\d+)?(?:%\d+)?", "FIRST-LAST[:STEP][%MAX]"),
    "k": (r"(?=.*[oe])[doe]+|n", "o, e or both, with d for writing at once, or n"),
    "m": (r"[abej]+|n", "letters of a, b, e and j, or n alone"),
    "p": (r"[+-]?\d+", "a whole number from -1024 to 1023"),
    "P": (r"[^/,:;\"]+", "a name without / , : ; and quotes"),
    "r": (r"[yn]", "y or n"),
    "R": (r"[oe]+", "o, e or both"),
    "S": (
        r"/[^,@\s]*(?:@[^,@\s]+)?(?:,/[^,@\s]*(?:@[^,@\s]+)?)*",
        "the absolute path of a shell, or a list of PATH@HOST separated by commas",
    ),
}
_TIMES = {"walltime", "cput", "pcput", "min_walltime", "max_walltime", "soft_walltime"}
_SIZES = {"mem", "vmem", "pmem", "pvmem", "file"}
_COUNTS = {"ncpus", "mpiprocs", "ompthreads", "ngpus", "naccelerators"}
_ARRANGEMENTS = {"free", "pack", "scatter", "vscatter"}
_SHARING = {"excl", "exclhost", "shared"}
_SWITCH = r"(?i:true|false|t|f|y|n|1|0)"
_JOB = r"\d+(?:\[\d*\])?(?:\.[\w.-]+)?(?:@[\w.-]+)?"
# The attributes that -W can set, and the patterns of their values. Not checked are `x`, which is an
# attribute of Torque and Moab, and attributes with a capital letter (`-W Priority=5`).
_ATTRIBUTES = {
    **dict.fromkeys(("stageout", "project", "pwd", "cred", "x"), ".*"),
    **dict.fromkeys(("block", "interactive", "create_resv_from_job", "no_stdio_sockets"), _SWITCH),
    "depend": rf"(?:after|before)(?:ok|notok|any)?:{_JOB}(?::{_JOB})*|on:\d+|runone:{_JOB}",
    "group_list": ".+",
    "stagein": r".+@.+",
    "umask": r"-?\d*",
    "sandbox": "(?i:PRIVATE|HOME|O_WORKDIR)",
    "run_count": r"\d+",
    "max_run_subjobs": r"\d+",
    "release_nodes_on_stageout": _SWITCH,
    "tolerate_node_failures": "all|job_start|none",
}


def check_pbs(header: Header, options: Options, report: FileFindings) -> None:
    """Check the options for PBS: resources given twice, select, -v, -N and other values."""
    resources = [
        (name, value, option)
        for option in options.all("l")
        for name, value in resource_list(option.value or "")
    ]
    _resources(resources, report)
    _torque(options, {name for name, _, _ in resources}, report)
    for option in options.all("v"):
        _variables(option, report)
    given = options.all("v")
    for option in given[1:]:
        if option.value != given[0].value:
            report.add(
                "env-not-merged",
                option.line,
                f"a second -v replaces the first: `{shown(given[0].value or '')}` is lost",
                "put all variables into one -v, or export them in the script",
            )
    for option in options.all("N"):
        _job_name(option, report)
    for option in (*options.all("o"), *options.all("e")):
        _variable_in_log_path(option, report)
    for name, (pattern, allowed) in _VALUES.items():
        for option in options.all(name):
            value = option.value or ""
            left_open = is_placeholder(value.replace("%", "") if name == "J" else value)
            if not re.fullmatch(pattern, value) and not left_open:
                _refused(option, option.shown, f"give {allowed}", report)
    for option in options.all("W"):
        _attributes(option, report)
    _arrays(options, report)
    _numbers(options, report)


def _variable_in_log_path(option: Option, report: FileFindings) -> None:
    value = option.value or ""
    found = VARIABLE.search(value)
    if found and "$$" not in value and "$PBS_" in value.replace("{", ""):
        report.add(
            "variable-in-log-path",
            option.line,
            f"OpenPBS uses `{shown(value[found.start() :], 30)}` as the file name without "
            "expanding it; Torque and some sites expand it",
            "give a folder: PBS then names the file after the job",
        )


def _refused(option: Option, what: str, fix: str, report: FileFindings) -> None:
    report.add("bad-value", option.line, f"qsub refuses `{shown(what)}`", fix)


def _attributes(option: Option, report: FileFindings) -> None:
    """Check -W NAME=VALUE[,NAME=VALUE...]. A value may contain commas."""
    value = option.value or ""
    if is_placeholder(value) or re.search(r"[\s'\"]", value):
        return
    for name, given in re.findall(r"(?:^|,)([a-z][a-z_]*)(=[^,]*)?(?=,|$)", value):
        if name not in _ATTRIBUTES:
            fix = "remove it, or write the attribute as in qsub's manual"
            _refused(option, f"-W {name}", fix, report)
        elif not given or not re.fullmatch(_ATTRIBUTES[name], given[1:]):
            _refused(option, f"-W {name}{given}", "see `-W` in qsub's manual", report)


def _arrays(options: Options, report: FileFindings) -> None:
    """Check the range of -J, and options that cannot be combined with an array."""
    for option in options.all("J"):
        found = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?(?:%\d+)?", option.value or "")
        if found is None:
            continue
        if int(found[2]) <= int(found[1]):
            fix = "make LAST larger than FIRST; a single job is not an array"
            _refused(option, option.shown, fix, report)
        elif found[3] is not None and int(found[3]) == 0:
            _refused(option, option.shown, "make STEP 1 or more", report)
    is_array = bool(options.all("J"))
    for option in options.all("r"):
        if is_array and option.value == "n":
            fix = "remove -r n: the jobs of an array can always be rerun"
            _refused(option, "-r n with -J", fix, report)
    for option in options.all("m"):
        if not is_array and re.fullmatch(r"[abej]*j[abej]*", option.value or ""):
            _refused(option, f"{option.shown} without -J", "remove j", report)


def _numbers(options: Options, report: FileFindings) -> None:
    for option in options.all("p"):
        value = option.value or ""
        if re.fullmatch(r"[+-]?\d+", value) and not -1024 <= int(value) <= 1023:
            fix = "give a whole number from -1024 to 1023"
            _refused(option, option.shown, fix, report)
    for option in options.all("S"):
        paths = (option.value or "").split(",")
        if sum("@" not in path for path in paths) > 1:
            _refused(option, option.shown, "give one shell, or one for each host", report)


def _resources(resources: list[tuple[str, str | None, Option]], report: FileFindings) -> None:
    first: dict[str, tuple[str | None, int]] = {}
    for name, value, option in resources:
        if name not in first:
            first[name] = (value, option.line)
        elif first[name][0] != value:
            kept, line = first[name]
            report.add(
                "first-resource-wins",
                option.line,
                f"PBS uses the first -l {name}, {shown(kept or '')} of line {line}, and ignores "
                f"{shown(value or '')}",
                "keep one of them"
                if name != "select"
                else "join chunks with `+` in one select, or keep one of them",
            )
    _values(resources, report)
    if "select" not in first and "place" in first:
        others = [name for name, *_ in resources if name in _HOST_LEVEL or name == "nodes"]
        what = f"-l place together with -l {others[0]}" if others else "-l place without -l select"
        place = next(option for name, _, option in resources if name == "place")
        report.add(
            "conflicting-options",
            place.line,
            f"qsub refuses {what}",
            "write -l select=N:ncpus=... and keep place",
        )
    if "select" not in first:
        return
    for name, _, option in resources:
        if name in _HOST_LEVEL or name == "nodes":
            report.add(
                "conflicting-options",
                option.line,
                f"qsub refuses -l {name} together with -l select",
                "move it into the chunk: select=N:…"
                if name != "nodes"
                else "use only select: select=N:ncpus=…:mpiprocs=…",
            )


def _values(resources: list[tuple[str, str | None, Option]], report: FileFindings) -> None:
    """Check the values of resources. If one is given twice, qsub only reads the first."""
    names = [name for name, *_ in resources]
    for index, (name, value, option) in enumerate(resources):
        if name in names[:index]:
            continue
        # qsub does not read after a blank, and a placeholder is not a value.
        if value is not None and (is_placeholder(value) or re.search(r"\s", value)):
            continue
        if name == "select":
            _select(value or "", option, report)
        elif name == "place":
            _place(value or "", option, report)
        elif name == "nodes":
            if re.match(r"0+(?::|$)", value or "") or re.search(r":ppn=(?!\d+)", value or ""):
                _refused(option, f"nodes={value}", "give whole numbers, nodes=N:ppn=M", report)
        elif name in _TIMES:
            # Torque allows days before the hours. It has no select.
            may_be_torque = "nodes" in names and re.fullmatch(r"(?:\d+:){3}\d+", value or "")
            if not may_be_torque:
                _resource(name, value, option, report)
        elif name in _SIZES | _COUNTS:
            _resource(name, value, option, report)


def _resource(name: str, value: str | None, option: Option, report: FileFindings) -> None:
    """Check that the value of a resource has the form that its name needs."""
    if name in _TIMES:
        # qsub accepts a name without a value, and a colon or a dot at the end.
        good = re.fullmatch(r"(?:\d+(?::\d*){0,2}(?:\.\d*)?)?", value or "")
        fix = "give seconds or HH:MM:SS, without days or letters for units"
    elif name in _SIZES:
        good = re.fullmatch(r"\d+[kmgtp]?[bw]?", value or "", re.IGNORECASE)
        fix = "give a whole number with b, kb, mb, gb or tb"
    elif name in _COUNTS:
        good = re.fullmatch(r"\d+", value or "")
        fix = "give a whole number"
    else:
        return
    if not good:
        _refused(option, f"{name}={value}" if value is not None else name, fix, report)


def _select(value: str, option: Option, report: FileFindings) -> None:
    """Check a select: [N:]NAME=VALUE[:NAME=VALUE...][+...]."""
    for chunk in re.findall(r"""(?:[^+'"]|'[^']*'|"[^"]*")+""", value) or [""]:
        count, *parts = re.findall(r"""(?:[^:'"]|'[^']*'|"[^"]*")+""", chunk) or [""]
        if "=" in count:
            parts = [count, *parts]
        elif not re.fullmatch(r"0*[1-9]\d*", count):
            fix = "give the number of chunks, 1 or more"
            _refused(option, f"select={value}", fix, report)
            return
        named = [part.partition("=") for part in parts]
        if any(not name or not given for name, _, given in named):
            _refused(option, f"select={value}", "write NAME=VALUE between the colons", report)
            return
        for index, (name, _, given) in enumerate(named):
            if name in [before for before, *_ in named[:index]]:
                fix = "give each resource once in a chunk"
                _refused(option, f"{name} twice in a chunk", fix, report)
                return
            _resource(name, given, option, report)
    if value.endswith((":", "+")) or value.startswith(("+", ":")) or re.search(r"[:+]{2}", value):
        fix = "remove the extra `+` or `:`"
        _refused(option, f"select={value}", fix, report)


def _place(value: str, option: Option, report: FileFindings) -> None:
    """Check a place: an arrangement, a sharing and group=RESOURCE, each at most once."""
    kinds = []
    for word in value.lower().split(":"):
        if word.startswith("group="):
            kinds.append("group")
        elif word in _ARRANGEMENTS:
            kinds.append("arrangement")
        elif word in _SHARING:
            kinds.append("sharing")
        else:
            kinds.append(word)
    if set(kinds) - {"group", "arrangement", "sharing"} or len(set(kinds)) < len(kinds):
        fix = "give free, pack, scatter or vscatter, then excl, exclhost or shared"
        _refused(option, f"place={value}", fix, report)


def _torque(options: Options, resources: set[str], report: FileFindings) -> None:
    if "elapstim_req" in resources or options.all("T"):
        return  # NEC's NQSV, which has `#PBS` lines and options of its own
    is_pro = bool(resources & {"select", "place", "filesystems"})
    for option in options.options:
        if not option.related:
            continue
        if option.spelling == "-t":
            fix = "use -J FIRST-LAST and $PBS_ARRAY_INDEX of PBS Pro"
        elif option.spelling in ("-d", "-w"):
            fix = "change the directory in the script: cd $PBS_O_WORKDIR"
        else:
            fix = "remove it"
        also = ", and this script is written for PBS Pro" if is_pro else ""
        report.add(
            "torque-option",
            option.line,
            f"only Torque's qsub has {option.spelling}; PBS Pro refuses the script{also}",
            fix,
        )


def _variables(option: Option, report: FileFindings) -> None:
    """Check -v NAME[=VALUE],…. PBS parses the list a second time, without the quotes."""
    value = option.value or ""
    if "\\" in value.replace("\\,", ""):
        report.add(
            "env-value",
            option.line,
            "-v doubles a backslash in a value",
            "export the variable in the script instead",
        )
        return
    bare = re.sub(r"\\,|'[^']*'|\"[^\"]*\"", "", value)
    if "'" in bare or '"' in bare:
        report.add(
            "env-value",
            option.line,
            "a value of -v cannot contain a quote: qsub refuses the script",
            "export the variable in the script instead",
        )
        return
    for entry in bare.split(",")[1:]:
        name = entry.partition("=")[0]
        in_value = "=" not in entry and comma_in_quotes(option) and bare == value
        is_name = re.fullmatch(r"[A-Za-z_]\w*", name.rstrip()) is not None and not in_value
        if not is_name and not is_placeholder(name):
            report.add(
                "env-value",
                option.line,
                f"-v separates variables at commas: `{shown(entry, 30)}` is read as another one",
                "export the variable in the script instead, or quote twice: \"A='x,y'\"",
            )
            return


def _job_name(option: Option, report: FileFindings) -> None:
    value = option.value or ""
    if option.attached and value.startswith("="):
        return  # short-option-equals
    bad = re.sub(r"[A-Za-z0-9._+-]", "", value)
    # `%` (used by sbatch) and `[` (used for arrays) do not make the name a placeholder.
    left_open = re.sub(r"%|(?<=.)\[|\](?=.)|(?<=\w)\]$", "", value)
    if is_placeholder(left_open):
        return
    if bad or not value:
        what = f"`{shown(bad[:1])}` is not allowed" if bad else "it is empty"
        report.add(
            "bad-value",
            option.line,
            f"qsub refuses the job name `{shown(value)}`: {what}",
            "use letters, digits and . _ + -",
        )
    elif len(value) > 230:
        report.add(
            "bad-value",
            option.line,
            "qsub refuses a job name of more than 230 characters",
            "shorten it",
        )
