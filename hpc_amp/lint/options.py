"""The options of sbatch, PBS Pro's qsub and Cobalt's qsub: which take a value, what belongs to it.

Without this a stray word cannot be told from a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hpc_amp.lint.directives import Header, SchedulerName, Word

# LETTER/NAME pairs; a name alone has no letter. `SLURM_VALUE` need a value, `SLURM_FLAG` take none
# or only one behind `=`.
_SLURM_VALUE = """
A/account a/array acctg-freq batch bb bbf b/begin D/chdir cluster-constraint M/clusters comment
C/constraint container container-id S/core-spec cores-per-socket cpu-freq cpus-per-gpu
c/cpus-per-task deadline delay-boot d/dependency m/distribution e/error x/exclude
export export-file extra B/extra-node-info gid gpu-bind gpu-freq G/gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint i/input J/job-name
L/licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network
F/nodefile w/nodelist N/nodes n/ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode o/output p/partition power prefer priority profile q/qos reservation
resv-ports segment signal sockets-per-node switches thread-spec threads-per-core t/time time-min
tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap tasks-per-node consolidate-segments
oom-kill-step spread-segments
"""
_SLURM_FLAG = """
contiguous exclusive get-user-env H/hold h/help ignore-pbs kill-on-invalid-dep k/no-kill nice
no-requeue O/overcommit s/oversubscribe parsable propagate Q/quiet reboot requeue s/share
spread-job stepmgr test-only use-min-nodes usage V/version v/verbose W/wait I/immediate
"""
_SLURM_SAME = {"tasks-per-node": "ntasks-per-node", "share": "oversubscribe", "workdir": "chdir"}

_PBS_VALUE = "a A c C e J j k l m M N o p P q r R S u v W"
_PBS_FLAG = "f G h I V X z"
# Torque's qsub has these, PBS Pro's has not.
_TORQUE_VALUE = "b d D F K L t T w"
_TORQUE_FLAG = "E n x"

_COBALT_VALUE = """
n/nodecount t/time A/project q/queue attrs env o/output e/error debuglog O/outputprefix i/inputfile
cwd jobname dependencies M/notify u/umask run_users proccount mode kernel K/kerneloptions
ion_kernel ion_kerneloptions geometry user_list
"""
_COBALT_FLAG = """
h/held preemptable run_project disable_preboot I/interactive d/debug v/verbose version help
"""


def _table(text: str) -> dict[str, str]:
    """Both spellings of every option, each with the long name (or the letter, without one)."""
    names: dict[str, str] = {}
    for entry in text.split():
        letter, _, name = entry.rpartition("/")
        names[f"--{name}" if len(name) > 1 else f"-{name}"] = name
        if letter:
            names[f"-{letter}"] = name
    return names


@dataclass(frozen=True)
class Grammar:
    """The options of one scheduler."""

    with_value: dict[str, str]
    flags: dict[str, str]
    long: bool  # has --long options at all

    def canonical(self, spelling: str) -> str | None:
        """The name of an option, also of an unambiguous beginning of a long one."""
        known = self.with_value.get(spelling) or self.flags.get(spelling)
        if known is not None:
            return known
        if not spelling.startswith("--"):
            return None
        longer = [name for name in self.all_long if name.startswith(spelling)]
        exact = {self.with_value.get(name) or self.flags.get(name) for name in longer}
        return exact.pop() if len(exact) == 1 else None

    def takes_value(self, spelling: str) -> bool | None:
        """None for an option that is not known."""
        if spelling in self.with_value:
            return True
        if spelling in self.flags:
            return False
        name = self.canonical(spelling)
        if name is None:
            return None
        return name in self.with_value.values()

    @property
    def all_long(self) -> list[str]:
        return [name for name in (*self.with_value, *self.flags) if name.startswith("--")]


GRAMMARS: dict[SchedulerName, Grammar] = {
    "slurm": Grammar(_table(_SLURM_VALUE), _table(_SLURM_FLAG), long=True),
    "pbs": Grammar(_table(_PBS_VALUE), _table(_PBS_FLAG), long=False),
    "cobalt": Grammar(_table(_COBALT_VALUE), _table(_COBALT_FLAG), long=True),
}
_TORQUE = Grammar(_table(_TORQUE_VALUE), _table(_TORQUE_FLAG), long=False)


@dataclass(frozen=True)
class Option:
    """An option as a scheduler understands it. `name` is the long name where there is one,
    `known` is False for one that the scheduler itself does not have."""

    name: str
    spelling: str
    value: str | None
    word: Word
    value_word: Word | None = None
    attached: bool = False  # a letter with its value in the same word
    known: bool = True
    torque: bool = False

    @property
    def line(self) -> int:
        return self.word.line

    @property
    def shown(self) -> str:
        """As it was written, more or less."""
        if self.value is None:
            return self.spelling
        return f"{self.spelling}{'=' if self.spelling.startswith('--') else ' '}{self.value}"


@dataclass
class Options:
    """All options of a header, in order, and the words that belong to none."""

    options: list[Option] = field(default_factory=list)
    strays: list[Word] = field(default_factory=list)
    no_value: list[Option] = field(default_factory=list)

    def all(self, name: str) -> list[Option]:
        return [option for option in self.options if option.name == name]

    def last(self, name: str) -> str | None:
        found = self.all(name)
        return found[-1].value if found else None


def parse_options(header: Header) -> Options:
    """The options of a header. sbatch and Cobalt collect the words of all lines first, PBS takes
    every line for itself."""
    result = Options()
    if header.scheduler == "pbs":
        for directive in header.directives:
            _parse(directive.split.words, "pbs", result)
    else:
        words = [word for directive in header.directives for word in directive.split.words]
        if header.scheduler == "slurm":
            # A line of its own that begins the next job of several ("heterogeneous").
            alone = {
                d.line
                for d in header.directives
                if [word.text for word in d.split.words] in (["hetjob"], ["packjob"])
            }
            words = [word for word in words if word.line not in alone]
        _parse(words, header.scheduler, result)
    return result


def _parse(words: Sequence[Word], scheduler: SchedulerName, result: Options) -> None:
    grammar = GRAMMARS[scheduler]
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        text = word.text
        if text == "--":
            result.strays += words[at:]
            return
        if text.startswith("--") and grammar.long:
            spelling, equals, value = text.partition("=")
            at = _add_long(spelling, value if equals else None, words, at - 1, grammar, result)
        elif text.startswith("-") and len(text) > 1:
            at = _add_short(words, at - 1, scheduler, result)
        else:
            # getopt and optparse stop at the first word that is no option.
            result.strays.append(word)
            if scheduler == "cobalt":
                return
            while at < len(words) and words[at].line == word.line:
                at += 1


def _add_long(
    spelling: str,
    value: str | None,
    words: Sequence[Word],
    at: int,
    grammar: Grammar,
    result: Options,
) -> int:
    word = words[at]
    takes = grammar.takes_value(spelling)
    name = grammar.canonical(spelling)
    known = name is not None
    name = _SLURM_SAME.get(name or "", name or spelling[2:])
    following = words[at + 1] if at + 1 < len(words) else None
    if value is not None or takes is False:
        result.options.append(Option(name, spelling, value, word, word, known=known))
        return at + 1
    if takes is None:
        # A plug-in's option: what follows on its line may be its value.
        is_value = (
            following is not None
            and following.line == word.line
            and not following.text.startswith("-")
        )
        text = following.text if following is not None and is_value else None
        result.options.append(Option(name, spelling, text, word, following, known=False))
        return at + (2 if is_value else 1)
    if following is None:
        result.no_value.append(Option(name, spelling, None, word))
        return at + 1
    if following.line != word.line and following.text.startswith("-"):
        # It swallows an option of the next line: surely not meant. Go on as if it did not.
        result.no_value.append(Option(name, spelling, following.text, word))
        return at + 1
    result.options.append(Option(name, spelling, following.text, word, following))
    return at + 2


def _add_short(words: Sequence[Word], at: int, scheduler: SchedulerName, result: Options) -> int:
    """A word of letters: flags, and at last one with a value, in the same word or the next."""
    grammar = GRAMMARS[scheduler]
    word = words[at]
    for index, letter in enumerate(word.text[1:], 1):
        spelling = f"-{letter}"
        rest = word.text[index + 1 :]
        torque = False
        takes = grammar.takes_value(spelling)
        if takes is None and scheduler == "pbs":
            takes = _TORQUE.takes_value(spelling)
            torque = takes is not None
        name = grammar.canonical(spelling) or letter
        if takes is False:
            result.options.append(Option(name, spelling, None, word, torque=torque))
            continue
        known = takes is not None
        if rest:
            option = Option(name, spelling, rest, word, word, True, known, torque)
            result.options.append(option)
            return at + 1
        following = words[at + 1] if at + 1 < len(words) else None
        next_is_option = (
            following is not None
            and following.text.startswith("-")
            and (following.line != word.line or not known)
        )
        if following is None or next_is_option:
            if known:
                option = Option(name, spelling, following.text if following else None, word)
                result.no_value.append(option)
            else:
                result.options.append(Option(name, spelling, None, word, known=False))
            return at + 1
        option = Option(name, spelling, following.text, word, following, False, known, torque)
        result.options.append(option)
        return at + 2
    return at + 1


def likely_meant(spelling: str, scheduler: SchedulerName) -> str | None:
    """The long option of the scheduler that a misspelt one stands for: it differs by an underscore,
    a letter or a swap of two. None if there is none so near: a site's plug-ins add options."""
    grammar = GRAMMARS[scheduler]
    dashed = spelling.replace("_", "-") if scheduler == "slurm" else spelling
    candidates = set(grammar.all_long)
    if dashed != spelling and grammar.canonical(dashed) is not None:
        return dashed
    return next((name for name in sorted(candidates) if one_edit_apart(dashed, name)), None)


def one_edit_apart(one: str, other: str) -> bool:
    """Whether one letter more, less or other, or a swap of neighbours, makes one the other."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    left, right = one[start:], other[start:]
    if len(left) == len(right):
        swapped = left[1:2] + left[0:1] + left[2:]
        return left[1:] == right[1:] or swapped == right
    return left[1:] == right or right[1:] == left


def resource_list(value: str) -> Iterable[tuple[str, str | None]]:
    """The `name[=value]` of one PBS `-l`; commas in quotes do not part them."""
    for part in re.findall(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""", value):
        name, equals, rest = part.partition("=")
        yield name.strip(), rest.strip() if equals else None
