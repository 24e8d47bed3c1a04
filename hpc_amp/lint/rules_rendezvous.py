"""Rules about how the ranks find each other: address, port, interface, and exported variables."""

from __future__ import annotations

import re

from hpc_amp.lint.findings import FileFindings, shown
from hpc_amp.lint.job import LaunchLine, LintedJob, option_in
from hpc_amp.lint.shell import ShellWord
from hpc_amp.schedulers.grammar import number


def check_rendezvous(job: LintedJob, report: FileFindings) -> None:
    """Apply the rules of this module."""
    _ports(job, report)
    if job.is_batch and job.is_distributed:
        _addresses(job, report)
        _localhost(job, report)
        _interface(job, report)
        _first_component(job, report)
    for launch in job.launches:
        _env_not_sent(job, launch, report)
        _drawn_per_task(job, launch, report)


_PORT_NAME = re.compile(
    r"(?:MASTER|MAIN(?:_PROCESS)?|RDZV|TORCH\w*|DDP|DIST\w*)_PORT", re.IGNORECASE
)


_ENDS_IN_PORT = re.compile(r":([1-9]\d{2,4})$")
# $MASTER_ADDR:29500, tcp://host:29500
_ADDRESS_AND_PORT = re.compile(
    r"(?:\$\{?\w*(?:MASTER|HEAD|RDZV|MAIN)\w*\}?|tcp://[^\s:]+):([1-9]\d{3,4})\b", re.IGNORECASE
)


def _ports(job: LintedJob, report: FileFindings) -> None:
    """Check for a port that is the same in every job. This is safe if the job has whole nodes."""
    if _has_whole_nodes(job):
        return
    fix = f"derive it from the job: MASTER_PORT=$((61000 + {job.grammar.job_number} % 4536))"

    def found(line: int, port: str) -> None:
        report.add(
            "fixed-port",
            line,
            f"port {port} is the same in every job: two jobs on one node cannot both use it",
            fix,
        )

    for command in job.commands:
        program = command.program
        name = program[0].text if program else ""
        if name in ("echo", "printf", "cat", "grep", "sed"):
            continue
        for variable, word in command.assignments:
            value = job.expand(word.text).partition("=")[2]
            if _PORT_NAME.fullmatch(variable) and (port := number(value)):
                own = re.fullmatch(r"\d+", word.text.partition("=")[2]) is not None
                if own or not _PORT_NAME.search(word.text.partition("=")[2]):
                    found(word.line, str(port))
            elif variable.upper() == "RDZV_ENDPOINT" and (match := _ENDS_IN_PORT.search(value)):
                found(word.line, match[1])
        items = [item for word in command.words for item in word.items]  # of arrays
        pieces = [*command.words[len(command.words) - len(program) :], *items]
        for index, word in enumerate(pieces):
            text = word.text
            following = pieces[index + 1].text if index + 1 < len(pieces) else ""
            for match in re.finditer(
                r"(?:^|[\s,;:'\"=])(?:export\s+)?(?:MASTER|MAIN)_PORT=(\d{3,5})(?=$|[\s,;'\"&|])",
                text,
            ):
                if not any(word is one for _, one in command.assignments):
                    found(word.line + text.count("\n", 0, match.start()), match[1])
            option = re.match(
                r"--?(?:master|main[-_]process|rdzv)[-_](port|endpoint)(?:=(.*))?$", text
            )
            if option is not None:
                value = job.expand(option[2] if option[2] is not None else following)
                literal = option[2] if option[2] is not None else following
                named = _literal_port(value, option[1])
                if named and (named in literal or not _said(literal)):
                    found(word.line, named)
            elif (match := _ADDRESS_AND_PORT.search(text)) is not None:
                found(word.line + text.count("\n", 0, match.start()), match[1])
            elif re.search(r"\s", text):
                for match in re.finditer(
                    r"--?(?:master|main[-_]process)[-_]port[=\s]+['\"]?(\d{3,5})\b"
                    r"|--?rdzv[-_]endpoint[=\s]+['\"]?[^\s'\"]*:(\d{3,5})\b",
                    text,
                ):
                    found(
                        word.line + text.count("\n", 0, match.start()),
                        match[1] or match[2],
                    )


def _has_whole_nodes(job: LintedJob) -> bool:
    """Whether no other job with GPUs can use the nodes.

    This is so if the job is exclusive, or if it requests eight GPUs, which is a whole node.
    """
    slurm = job.options.get("slurm")
    if slurm is None:
        return False
    alone = any(one.value not in ("user", "mcs", "topo") for one in slurm.all("exclusive"))
    return alone or (job.gpus_per_node or 0) >= 8


def _literal_port(value: str, kind: str) -> str | None:
    pattern = r"['\"]?(\d{2,5})['\"]?" if kind == "port" else r".*:(\d{2,5})['\"]?"
    match = re.fullmatch(pattern, value)
    return match[1] if match else None


def _said(literal: str) -> bool:
    """Whether the port comes from a variable whose assignment is already reported."""
    names = re.findall(r"\$\{?([A-Za-z_]\w*)", literal)
    return any(
        _PORT_NAME.fullmatch(name) or re.fullmatch("RDZV_ENDPOINT", name, re.IGNORECASE)
        for name in names
    )


_ADDRESS_NAME = re.compile(r"master|head|rdzv|main|addr|(?:^|_)ip(?:$|_)|endpoint", re.IGNORECASE)


def _addresses(job: LintedJob, report: FileFindings) -> None:
    """Check the address of the first node, where rank 0 runs."""
    starts_ray = "ray start" in job.body
    for command in job.commands:
        for name, word in command.assignments:
            # The address of the head of a Ray cluster; scripts for Ray choose one of several.
            of_ray = starts_ray and "MASTER" not in name.upper()
            if of_ray or not _ADDRESS_NAME.search(name):
                continue
            _address(job, name, word, report)
        assigned = {id(word) for _, word in command.assignments}
        before = ""
        for word in command.program:
            variable = re.match(r"(?:MASTER|MAIN)_ADDR=", word.text)  # mpirun -x, --env
            if variable and id(word) not in assigned:
                _address(job, "MASTER_ADDR", word, report)
            option = re.match(
                r"--?(?:master[-_]addr|rdzv[-_]endpoint|main[-_]process[-_]ip)=", word.text
            )
            follows = re.fullmatch(r"--?(?:master[-_]addr|rdzv[-_]endpoint)", before)
            if option or follows:
                _address(job, "--master_addr", word, report)
            before = word.text


def _address(job: LintedJob, name: str, word: ShellWord, report: FileFindings) -> None:
    value = word.live
    fix = f"MASTER_ADDR={job.grammar.first_node}"
    found = re.search(r"\bhostname\s+(-[iI]\b|--ip-address\b|--all-ip-addresses\b)", word.text)
    if found is not None:
        report.add(
            "hostname-address",
            word.line,
            f"`hostname {found[1]}` may print 127.0.1.1, several addresses, or an address of "
            "another network",
            f"use the host name: {fix}",
        )
    elif "SLURM_LAUNCH_NODE_IPADDR" in value:
        report.add(
            "launch-node-address",
            word.line,
            "SLURM_LAUNCH_NODE_IPADDR is the node on which srun was started, which may not be the "
            "node of rank 0",
            fix,
        )
    elif name.upper() == "MASTER_ADDR" and job.nodes != 1 and _cuts_node_list(value):
        report.add(
            "node-list-cut",
            word.line,
            "a node list may be compressed, such as `n[01-04]-ib`: text tools cannot split it",
            fix,
        )


def _cuts_node_list(value: str) -> bool:
    """Whether text tools take the address from a node list."""
    if not re.search(r"SLURM_(?:JOB_|STEP_)?NODELIST\b", value):
        return False
    return not re.search(r"scontrol|hostlist|nodeset|nodels|srun|expand", value)


_LOCALHOST = r"(?:localhost|127\.0\.0\.1)"


def _localhost(job: LintedJob, report: FileFindings) -> None:
    """Check for a rendezvous at localhost in a job with several nodes."""
    if (job.nodes or 1) < 2:
        return
    texts = [" ".join(job.argv(command.program)) for command in job.commands]
    if any(option_in(text, "nnodes") in ("1", "1:1") or "--standalone" in text for text in texts):
        return
    if any(launch.kind == "srun" and launch.options.get("nodes") == "1" for launch in job.launches):
        return  # separate runs on one node each
    if not job.launches:
        return
    for command in job.commands:
        program = command.program
        if program and program[0].text in ("echo", "printf"):
            continue
        before = ""
        for word in command.words:
            found = re.search(
                rf"(?:^|[\s,;'\"])MASTER_ADDR=['\"]?{_LOCALHOST}(?=$|[\s,;:'\"])"
                rf"|--?(?:master[-_]addr|rdzv[-_]endpoint)[=\s]+['\"]?{_LOCALHOST}",
                word.text,
            )
            separate = re.fullmatch(r"--?(?:master[-_]addr|rdzv[-_]endpoint)", before) and re.match(
                _LOCALHOST, word.text
            )
            if found or separate:
                report.add(
                    "localhost-on-many-nodes",
                    word.line,
                    f"on each of the {job.nodes} nodes, localhost is the node itself: the ranks "
                    "cannot connect",
                    "use the name of the first node",
                )
                return
            before = word.text


def _interface(job: LintedJob, report: FileFindings) -> None:
    """Check NCCL_SOCKET_IFNAME=^docker0, which replaces NCCL's default that excludes lo."""
    for command in job.commands:
        for name, word in command.assignments:
            value = word.text.partition("=")[2]
            excluded = value[1:].split(",") if value.startswith("^") else ["lo"]
            if name == "NCCL_SOCKET_IFNAME" and "lo" not in excluded:
                report.add(
                    "interface-excluded",
                    word.line,
                    f"`{shown(value)}` replaces the default, which excludes lo: NCCL may now "
                    "choose lo, which reaches no other node",
                    f"write NCCL_SOCKET_IFNAME={shown(value)},lo, or name the interface to use",
                )


_OPEN_MPI = re.compile(
    r"(?<!\S)(?:--?(?:npernode|map-by|bind-to|mca|oversubscribe|report-bindings|bynode|tag-output)"
    r"|-x)(?!\S)"
)


def _env_not_sent(job: LintedJob, launch: LaunchLine, report: FileFindings) -> None:
    """Check for variables that Open MPI does not pass to other nodes without -x."""
    if not launch.is_mpi or "slurm" in job.options or not _OPEN_MPI.search(launch.text):
        return
    nodes = job.nodes
    if nodes == 1 or (nodes is None and not re.search(r"host-?file|machinefile", launch.text)):
        return
    if re.search(r"mca_base_env_list|--?(?:genv|env)all|-x\s+['\"]?\$", launch.text):
        return
    wanted = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name in job.exported]
    missing = [name for name in wanted if not re.search(rf"-x\s+['\"]?{name}\b", launch.text)]
    uses = [name for name in missing if not re.search(rf"\b{name}\b", launch.text)]
    if uses:
        report.add(
            "env-not-sent",
            launch.line,
            f"{launch.kind} of Open MPI does not pass {' and '.join(uses)} to other nodes",
            "add " + " ".join(f"-x {name}" for name in uses),
        )


# Expressions that give a different number in each process.
_DRAWN = (
    r"(?:\$\(\([^)]*\bRANDOM\b[^)]*\)\)|\$\{?RANDOM\b\}?|\$\$|\$\((?:[^()]|\([^()]*\))*"
    r"(?:shuf|random|%N|getsockname|RANDOM)(?:[^()]|\([^()]*\))*\))"
)
_DRAWN_PORT = re.compile(
    r"(?:\b(?:MASTER|MAIN)_PORT=|--?(?:master|main[-_]process)[-_]port[=\s]+"
    rf"|--?rdzv[-_]endpoint[=\s]+\S*:)[\"']?\d*{_DRAWN}"
)
_DRAWN_SEED = re.compile(rf"(?:\bSEED=|--seed[=\s]+)[\"']?{_DRAWN}")


def _drawn_per_task(job: LintedJob, launch: LaunchLine, report: FileFindings) -> None:
    """Check for random ports and seeds that each task draws separately."""
    if not job.starts_many(launch):
        return
    pieces = [(word.text, word.live, word.line) for word in launch.command.program]
    pieces = [one for one in pieces if re.search(r"\s", one[0])]
    scripts = [(one.text, "", one.line) for one in launch.command.heredocs if not one.live]
    for text, live, line in [*pieces, *scripts]:
        if not _is_one_world(launch, text):
            continue
        for rule, pattern in (("port-per-task", _DRAWN_PORT), ("seed-per-task", _DRAWN_SEED)):
            match = pattern.search(text)
            if match is None or match[0] in live:
                continue  # the batch shell evaluates it once
            what = "port" if rule == "port-per-task" else "seed"
            effect = ", so they cannot connect" if what == "port" else ""
            report.add(
                rule,
                line + text.count("\n", 0, match.start()),
                f"every task evaluates `{shown(match[0], 40)}` and gets a different {what}{effect}",
                f"choose the {what} once, in the batch script, and export it",
            )


def _is_one_world(launch: LaunchLine, text: str) -> bool:
    """Whether the tasks that run `text` certainly are ranks or agents of one run.

    It is not certain if the text tests for rank 0, which may choose the number for all.
    """
    if re.search(r"(?:-eq|==?)\s*[\"']?0\b", text):
        return False
    if launch.agent is not None or re.search(r"\btorchrun\b", text):
        return option_in(text, "nnodes", "num-machines") not in (None, "1", "1:1")
    return re.search(r"\bRANK=\S*(?:PROCID|RANK)|\bWORLD_SIZE=", text) is not None


def _first_component(job: LintedJob, report: FileFindings) -> None:
    """Check SLURM_JOB_NODELIST in a heterogeneous job: it only has the nodes of component 0."""
    if not job.is_heterogeneous:
        return
    later = [one for one in job.launches if _runs_without_the_first(one) and one.agent]
    for command in job.commands:
        for name, word in command.assignments:
            if not re.search(r"\bSLURM_(?:JOB_)?NODELIST\b(?!_HET)", job.expand(word.live)):
                continue
            users = [
                one
                for one in later
                if any(re.search(rf"\$\{{?{name}\b", part.text) for part in one.command.program)
            ]
            if users:
                report.add(
                    "first-component-address",
                    word.line,
                    "SLURM_JOB_NODELIST only has the nodes of component 0: the ranks of line "
                    f"{users[0].line} do not run there",
                    f"write SLURM_JOB_NODELIST_HET_GROUP_{users[0].options.get('het-group')}",
                )


def _runs_without_the_first(launch: LaunchLine) -> bool:
    group = launch.options.get("het-group") or launch.options.get("pack-group") or ""
    has_other_server = re.search(r"etcd|\s:\s", launch.text) is not None
    return re.fullmatch(r"[1-9]\d*", group) is not None and not has_other_server
