"""How sbatch reads directives. Taken from the sources of Slurm, and tested on Slurm 22.05.

Directives begin with `#SBATCH` at column 0 and end at the first line that is not a comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from hpc_amp.schedulers.grammar import (
    Grammar,
    Joined,
    Options,
    Requested,
    number,
    tasks_on_each,
)
from hpc_amp.schedulers.options import OptionTable, spellings
from hpc_amp.schedulers.words import Split, quoted_words

_WITH_VALUE = """
A/account a/array acctg-freq batch bb bbf b/begin D/chdir cluster-constraint M/clusters comment
C/constraint container container-id S/core-spec cores-per-socket cpu-freq cpus-per-gpu
c/cpus-per-task deadline delay-boot d/dependency m/distribution e/error x/exclude
export export-file extra B/extra-node-info gid gpu-bind gpu-freq G/gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint i/input J/job-name
L/licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
F/nodefile w/nodelist N/nodes n/ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode o/output p/partition power prefer priority profile q/qos reservation
resv-ports segment signal sockets-per-node switches thread-spec threads-per-core t/time time-min
tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap tasks-per-node=ntasks-per-node
consolidate-segments oom-kill-step spread-segments
"""
_FLAGS = """
contiguous exclusive get-user-env H/hold h/help ignore-pbs kill-on-invalid-dep k/no-kill nice
no-requeue O/overcommit s/oversubscribe parsable propagate Q/quiet reboot requeue
s/share=oversubscribe spread-job stepmgr test-only use-min-nodes usage V/version v/verbose W/wait
I/immediate
"""
# The options of srun that sbatch does not have, or has in another form.
_SRUN_WITH_VALUE = """
mpi cpu-bind jobid r/relative container-image container-mounts container-workdir container-name
container-env container-mount environment task-prolog task-epilog prolog epilog accel-bind W/wait
het-group pack-group T/threads slurmd-debug image module volume uenv view
"""
_SRUN_FLAGS = """
l/label u/unbuffered K/kill-on-bad-exit pty overlap exact multi-prog X/disable-status whole
Z/no-allocate no-container-mount-home container-mount-home bcast q/quit-on-interrupt E/preserve-env
container-writable container-readonly container-remap-root no-container-remap-root
"""


def _srun(sbatch: OptionTable) -> OptionTable:
    values, flags = spellings(_SRUN_WITH_VALUE), spellings(_SRUN_FLAGS)
    return OptionTable(
        {k: v for k, v in sbatch.with_value.items() if k not in flags} | values,
        {k: v for k, v in sbatch.flags.items() if k not in values} | flags,
    )


class SlurmGrammar(Grammar):
    """Quotes and backslashes work as in a shell, with two exceptions: a backslash also escapes
    inside quotes of both kinds, and an unquoted `#` starts a comment even in the middle of a
    word."""

    name = "slurm"
    title = "Slurm"
    command = "sbatch"
    marker = "#SBATCH"
    without_shebang = "sbatch refuses a script"

    has_comments = True
    # These words begin the next component of a heterogeneous job.
    alone = frozenset({"hetjob", "packjob"})

    options = OptionTable(spellings(_WITH_VALUE), spellings(_FLAGS))
    paths = frozenset({"output", "error", "input", "chdir", "export-file"})
    instead_of_variables = (
        "write the value out, use sbatch's own %j, %x, %u in file names, or give the option on the "
        "command line"
    )

    counts_minutes = True
    keys: ClassVar[Mapping[str, str]] = {
        "nodes": "job.nodes",
        "time": "job.walltime",
        "mem": "job.memory",
        "partition": "job.queue",
        "account": "job.account",
    }
    joined: ClassVar[Mapping[str, Joined]] = {
        "constraint": Joined("&", r"[\w.:-]+(&[\w.:-]+)*"),
        "exclude": Joined(","),
        "gres": Joined(",", named=True),
        "licenses": Joined(",", named=True),
        "mail-type": Joined(","),
    }

    once_a_node = "srun --ntasks-per-node=1"
    job_number = "SLURM_JOB_ID"
    first_node = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
    launchers: ClassVar[Mapping[str, OptionTable]] = {"srun": _srun(options)}

    def split(self, text: str, line: int = 1) -> Split:
        """Split as sbatch does."""
        return quoted_words(text, line, escapes_in_quotes=True, has_comments=True)

    def ends_with_backslash(self, text: str) -> bool:
        """Unlike in the base class, blanks after the backslash are not ignored: the backslash
        escapes the first one."""
        text = text.rstrip("\r")
        return (len(text) - len(text.rstrip("\\"))) % 2 == 1

    def requested(self, options: Options) -> Requested:
        """The resources of the options. The number of nodes of a heterogeneous job is unknown:
        each component has its own options."""
        nodes = _nodes(options)
        per_node, tasks = options.last("ntasks-per-node"), options.last("ntasks")
        return Requested(
            nodes=nodes,
            tasks=number(tasks),
            tasks_said=tasks is not None,
            tasks_per_node=tasks_on_each(per_node, tasks, nodes),
            gpus_per_node=_gpus_per_node(options, nodes),
            gpus=_asks_for_gpus(options),
            for_launchers=True,
        )


def _nodes(options: Options) -> int | None:
    if options.alone:
        return None
    value = options.last("nodes")
    if value:
        return number(value.partition("-")[0])
    tasks, per_node = number(options.last("ntasks")), number(options.last("ntasks-per-node"))
    return -(-tasks // per_node) if tasks and per_node else None


def _gpus_per_node(options: Options, nodes: int | None) -> int | None:
    if value := options.last("gpus-per-node"):
        return _gpu_count(value)
    if value := options.last("gres"):
        match = re.search(r"\bgpu(?:[:=]([^,]*))?", value)
        return (_gpu_count(match[1] or "1") if match else None) or None
    if (value := options.last("gpus")) and (count := _gpu_count(value)):
        return count // (nodes or 1) if count % (nodes or 1) == 0 else None
    return None


def _gpu_count(value: str) -> int | None:
    """The count in `4`, `a100:4` or `gpu:a100:4(S:0-1)`; 1 for a type without a count."""
    last = value.partition("(")[0].rpartition(":")[2]
    if last[:1].isdigit():
        return number(last)
    return 1 if last else None


def _asks_for_gpus(options: Options) -> bool:
    names = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket")
    return any(options.all(name) for name in names) or "gpu" in (options.last("gres") or "")


GRAMMAR = SlurmGrammar()
