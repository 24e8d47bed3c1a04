"""The interface of schedulers."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from hpc_amp.errors import ConfigError, SchedulerError, UnclearError, UsageError
from hpc_amp.registry import code_beside
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission
from hpc_amp.schedulers.arrays import Arrays, OneByOne
from hpc_amp.schedulers.grammar import Grammar

if TYPE_CHECKING:
    import submitit

    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.launchers.base import Launcher


Which = Callable[[str], "str | None"]


@dataclass(frozen=True, slots=True)
class Interactive:
    """How to get a script to run on a node, on this terminal. Patterns are regular expressions for
    what the command prints; without them it deals with Ctrl-C itself, and its exit status is the
    script's."""

    command: list[str]
    environ: Mapping[str, str]
    job_id: str = ""
    """Has the job's id as its group, and comes while the job waits."""
    ready: str = ""
    """Comes when the terminal is the node's."""
    typed: str = ""
    """For a command that opens a login shell: what to type into it."""
    end_signal: int | None = None
    """What ends the command where this one is told to end. Default: the same signal."""
    hides_interrupts: bool = False
    """Whether its exit status may be 0 where Ctrl-C has ended it before the script started."""

    @property
    def is_watched(self) -> bool:
        """Whether somebody has to look at what the command prints."""
        return self.ready != ""


def run_here(script: Path, environ: Mapping[str, str]) -> Interactive:
    """The script on this machine, with the environment as it is: modules that somebody has loaded
    count."""
    return Interactive(["/bin/bash", str(script)], dict(environ))


def needs_terminal(scheduler: str) -> UsageError:
    """The error of an interactive job without a terminal."""
    return UsageError(
        f"an interactive job of {scheduler} needs a terminal, for input and for output",
        hint="call it from one without < > or |, or submit a job with this command as `run`",
    )


def script_command(script: Path) -> list[str]:
    """What runs a session's script on a new node: like a batch script, a login shell."""
    return ["/bin/bash", "-l", str(script)]


class Scheduler(ABC):
    """Directives and commands of one scheduler. Holds no state."""

    name: ClassVar[str]
    title: ClassVar[str]
    """Its name in messages."""
    command: ClassVar[str] = ""
    """The program that submits a job; empty where none is needed."""
    grammar: ClassVar[Grammar | None] = None
    """How it reads directives; None for one that reads none."""
    step_launcher: ClassVar[str] = ""
    """The launcher with which the scheduler itself starts processes on the nodes of a job; empty
    where it has none."""
    gpu_requests: ClassVar[tuple[str, ...]] = ()
    """The values of a site's `gpu_request` besides `auto` and `none`; the first is what `auto`
    means. Without any, `auto` means `none`."""
    site_keys: ClassVar[tuple[str, ...]] = ()
    """Those of the keys of a site that only some schedulers use (`gpu_type`, `chunk`) which this
    one uses."""
    instead_of_key: ClassVar[Mapping[str, str]] = {}
    """What to do instead of such a key that it does not use. Default: use directives."""
    site_options: ClassVar[Mapping[str, Callable[[str], None]]] = {}
    """The names that a site's `options` may have, each with a check of its value, which raises
    ValueError."""
    chains: ClassVar[bool] = False
    """Whether a run goes on in another job, since the same one cannot be requeued. Then jobs can
    wait for one another (`job.chain`)."""
    signals_ranks: ClassVar[bool] = True
    """Whether ranks can count on hearing of a cancellation and having time to save."""
    whole_nodes: ClassVar[bool] = False
    """Whether the nodes of a job are its own, always."""
    one_machine: ClassVar[bool] = False
    """Whether it is this machine alone, which stands for all nodes of a job."""
    limits: ClassVar[bool] = True
    """Whether it ends jobs at their time limit."""
    grace: ClassVar[int]
    """Seconds between its SIGTERM and its SIGKILL, unless it says so itself."""

    own_variables: ClassVar[Mapping[str, str]] = {}
    """Variables that its host code sets for every job, and what they are: nobody else can."""
    allocation: ClassVar[str] = ""
    """The variable that has the job's id inside an allocation."""
    ask_seconds: ClassVar[float] = 15.0
    """Seconds between two questions about a job that somebody waits for. Files of the run tell
    nearly everything; the questions find jobs that have vanished."""
    absent_job: ClassVar[str] = "0"
    """What has the form of a job's id and is none. `doctor` asks for it (`query`), to see whether
    the scheduler answers."""
    leftover_files: ClassVar[str] = ""
    """A regular expression for the names of files that the scheduler itself writes into the working
    directory of a job."""

    @property
    def marker(self) -> str:
        """What a directive line starts with, such as `#SBATCH`: the grammar says it. A scheduler
        without a grammar may have an attribute of this name instead."""
        return "#" if self.grammar is None else self.grammar.marker

    @classmethod
    def is_configured(cls, which: Which = shutil.which) -> bool:
        """Whether this machine belongs to a cluster with this scheduler: its programs are here, as
        far as `which` finds them, and they know a server."""
        return False

    def works_with(self, launcher: Launcher) -> bool:
        """Whether a launcher works under this scheduler."""
        return not launcher.makes_steps or launcher.name == self.step_launcher

    def host_code(self) -> str:
        """Bash that is sourced at the beginning of every job: what hpc_amp/host/begin.sh calls.
        Default: `host.sh` beside the scheduler's module."""
        return code_beside(self, "host.sh")

    def narrows(self) -> bool:
        """Whether one run of several in a job can have the first of its nodes alone. Launchers get
        a shorter list of nodes; a `step_launcher` does not read that list, and the host code needs
        a function `use_first_nodes` (see hpc_amp/host/campaign.sh)."""
        return not self.step_launcher or "use_first_nodes()" in self.host_code()

    def arrays(self) -> Arrays:
        """How many jobs that differ only in a number are submitted. Default: one by one."""
        return OneByOne(self)

    def queued(self) -> dict[str, Path]:
        """The user's jobs in the queue, each with a path that tells which run it belongs to: its
        working directory, its script or its log. Raises SchedulerError where the scheduler does
        not answer."""
        return {}

    def find_jobs(self, folder: Path) -> list[str]:
        """The ids of the jobs whose script lies in `folder`, as far as the queue shows jobs. Raises
        SchedulerError where the scheduler does not answer."""
        return [job_id for job_id, path in self.queued().items() if folder in (path, *path.parents)]

    @abstractmethod
    def default_launcher(self, job: Job) -> str:
        """The launcher for `launch.method: auto`."""

    @abstractmethod
    def directives(self, plan: Spec) -> list[str]:
        """The options of the header, each quoted as this scheduler's directive parser reads it,
        without the marker. The site's and the user's own lines are included as they are."""

    @abstractmethod
    def check(self, plan: Spec) -> None:
        """Raise ConfigError for what this scheduler cannot do."""

    @abstractmethod
    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Hand in a script, to start after another job or when it is released, where the scheduler
        `chains`. Raises SchedulerError where it is refused, and UnclearError where the scheduler
        may have taken it all the same."""

    @abstractmethod
    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """A new allocation with the plan's resources, which must be those of one process, and the
        script in it, once. Without a `terminal`, input and output may be files and pipes; raises
        UsageError where the scheduler cannot do without."""

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """The script in the allocation that `environ` is in; None where it is in none."""
        return run_here(script, environ) if environ.get(self.allocation) else None

    @abstractmethod
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of jobs, in one request. A job that is not in the answer is one that the
        scheduler no longer (or not yet) knows. Raises SchedulerError where it does not answer:
        silence is not an end."""

    def unended(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Those of the jobs that wait, run, are ending or are stuck, in one request. Raises
        SchedulerError where the scheduler does not answer."""
        answers = self.query(job_ids)
        found = {job_id: answers[job_id] for job_id in job_ids if job_id in answers}
        return {
            job_id: answer
            for job_id, answer in found.items()
            if answer.state != "ended" or answer.stuck
        }

    def submitit_executor(self, plan: Spec) -> submitit.Executor:
        """An executor of submitit that runs functions with the resources of a plan, its files
        below `plan.run_dir`, and `plan.run_dir/python` as the interpreter. Raises UsageError where
        submitit has none for this scheduler."""
        raise UsageError(
            f"submitit has no executor for {self.title}",
            hint="hpc-amp submit and hpc-amp sweep run jobs there",
        )

    def check_limits(self, job: Job, site: Site) -> Iterator[Finding]:
        """What `doctor` finds about a job where the scheduler tells its limits; ids are `sched`."""
        yield from ()

    def node_architectures(self, job: Job) -> set[str]:
        """The architectures of the nodes that a job may get, as `uname -m` gives them; empty where
        the scheduler does not tell."""
        return set()

    def log_files(self, directives: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """The logs that added directives name and that the nodes open before a job starts: the
        option as it is written, and the file."""
        yield from ()

    lost_log: ClassVar[str] = ""
    """What happens to a job whose log the nodes cannot open; empty where nothing does."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a job. No error where it has ended already. Raises SchedulerError where the
        scheduler does not answer: a run is noted as cancelled where nothing is raised."""

    def release(self, job_id: str) -> None:
        """Let a job start that was submitted `held`."""
        raise NotImplementedError(f"{self.name} jobs are not held")

    def last_words(self, job_id: str, run_dir: Path) -> JobStatus:
        """How a job ended that the scheduler no longer lists, as far as it can be found out."""
        return NOT_IN_QUEUE


def without_options(
    words: Sequence[str], unwanted: Mapping[str, bool], longer: Mapping[str, str]
) -> list[str]:
    """A command line's words less some options, by their long names; the value says whether the
    next word belongs to the option. `longer` has the long names of short ones."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, attached, _ = (
            word.partition("=") if word.startswith("--") else (word[:2], word[2:], "")
        )
        name = longer.get(name, name)
        if name not in unwanted:
            kept.append(word)
        elif unwanted[name] and not attached:
            next(rest, None)
    return kept


def launcher_of_one_node(job: Job) -> str:
    """The launcher for a job on one node, where no scheduler starts its ranks."""
    return "single" if job.world_size == 1 else "torchrun"


def directive_words(line: str, grammar: Grammar) -> list[str]:
    """The words of a directive that somebody added, as the scheduler splits it. Raises ConfigError
    where it cannot be read to its end."""
    found = grammar.split(line)
    if found.unmatched is not None:
        raise ConfigError(f"the directive {line!r} cannot be read: {found.unmatched} does not end")
    if (len(line) - len(line.rstrip("\\"))) % 2:
        raise ConfigError(f"the directive {line!r} cannot be read: it ends with a backslash")
    return [word.text for word in found.words]


def merge_directives(
    generated: Sequence[tuple[str, str]], plan: Spec, options: Callable[[str], set[str]]
) -> list[str]:
    """Generated (option, text) pairs less what site and user skip, then the lines they add.

    Skipping touches generated lines only, and compares the whole option (`--gpus-per-node`). A line
    of the job replaces one of the site that sets the same `options`, and both replace a generated
    one: what schedulers do with a repetition differs.
    """
    skipped = {*plan.site.skip_directives, *plan.job.resources.skip_directives}
    lines = [({name}, text) for name, text in generated if name not in skipped]
    for added in (plan.site.directives, plan.job.resources.directives):
        new = [(options(text), text) for text in added]
        replaced = set().union(*(names for names, _ in new))
        lines = [line for line in lines if not line[0] or not line[0] <= replaced]
        lines += new
    return [text for _, text in lines]


def refuse_directives(plan: Spec, grammar: Grammar, refused: Mapping[str, str]) -> None:
    """Raise ConfigError where a line of the site or of the job has one of the options `refused`,
    which says what comes of each: a job that hpc-amp could not follow. They have the names that
    `grammar` gives them; `W block` stands for the entry `block` of the option `W`."""
    for key, lines in (
        (f"directives of site {plan.site.name}", plan.site.directives),
        ("job.directives", plan.job.resources.directives),
    ):
        for line in lines:
            options = grammar.parse_line(line)
            names = [word.text for word in options.alone]
            for option in options.options:
                entries = grammar.entries(option) or []
                names += [option.name, *(f"{option.name} {name}" for name, _ in entries)]
            found = next((name for name in names if name in refused), None)
            if found is not None:
                raise ConfigError(
                    f"{key}: {line!r} cannot be used: {refused[found]}",
                    hint="leave it out: each run is one batch job that hpc-amp follows",
                )


# What finds the user, the programs and the cluster.
_KEPT = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME"),
    *("MODULEPATH", "MODULESHOME", "XDG_RUNTIME_DIR"),
)


# What programs have to know of a terminal.
TERMINAL = ("TERM", "COLORTERM")


def submission_environment(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """What of the submitting shell's environment the scheduler's commands get to see, and so,
    perhaps, the job. Everything else is baked into the script."""
    kept = {name: environ[name] for name in (*_KEPT, *more) if name in environ}
    kept.setdefault("PATH", os.defpath)
    return kept


def hand_in(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: Path,
    job_id: str,
    lost: str,
    away: str,
) -> Submission:
    """Run the command that submits a job.

    `job_id` is a regular expression for the lines that tell the job's id; with a group, the group
    is the id, and of several ids the last counts. The job is there if there is an id, whatever the
    exit status. `lost` matches what the command says where the scheduler may have taken the job but
    its answer did not come, `away` where the scheduler was not reached. Raises SchedulerError where
    the job was refused, AwayError where nobody was asked, UnclearError where it is not known.
    """
    try:
        # In a session of its own: qsub takes a Ctrl-C of the terminal although it is blocked here.
        result = run_command(command, environ=environ, folder=folder, own_session=True)
    except NoAnswerError as error:
        raise UnclearError(error.message) from None
    ids = re.findall(job_id, result.stdout, re.MULTILINE)
    if ids:
        return Submission(str(ids[-1]), result.stderr.strip())
    if result.returncode == 0:
        raise UnclearError(f"`{command[0]}` told no job id: {complaint(result)}")
    if result.returncode < 0:
        raise UnclearError(f"`{command[0]}` was ended by signal {-result.returncode}")
    if re.search(lost, f"{result.stderr}{result.stdout}"):
        raise UnclearError(f"`{command[0]}` got no answer: {complaint(result)}")
    raise not_submitted(command[0], result, away)


class NoAnswerError(SchedulerError):
    """A scheduler's command did not end in its time."""


def run_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 60.0,
    own_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's command. Raises SchedulerError where it is not there, and NoAnswerError
    where it does not end within `timeout` seconds."""
    try:
        return subprocess.run(
            command,
            env=environ,
            cwd=folder,
            timeout=timeout,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=own_session,
            check=False,
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"`{command[0]}` is not on this machine's PATH",
            hint="submit from a login node, or say site=local to run here",
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"`{command[0]}` did not answer within {timeout:g} s") from None


def output_of(command: Sequence[str]) -> str:
    """What a command that lists jobs prints. Raises SchedulerError where it fails and says why: of
    an empty queue some say nothing, and fail."""
    result = run_command(command)
    if result.returncode != 0 and (result.stdout.strip() or result.stderr.strip()):
        raise SchedulerError(f"{command[0]} does not answer: {complaint(result)}")
    return result.stdout


# Cobalt puts a whole traceback into an answer: only its exception says something.
_TRACEBACK = r"(?s)'-+ START TRACEBACK.*?Exception +: (.*?)(?:\\n|\n).*?END TRACEBACK -+'"
_SAYS_NOTHING = 'No handlers could be found for logger "Proxy"'
_LONGEST_COMPLAINT = 500


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed command said, as one line that is not too long."""
    text = re.sub(_TRACEBACK, r"\1", result.stderr or result.stdout)
    lines = [line.strip() for line in text.splitlines()]
    said = " / ".join(line for line in lines if line and line != _SAYS_NOTHING)
    if len(said) > _LONGEST_COMPLAINT:
        said = f"{said[:_LONGEST_COMPLAINT]}..."
    return said or f"exit status {result.returncode}"


class AwayError(SchedulerError):
    """The scheduler's server cannot be reached, or it answers in a way that is not understood:
    nothing came of the request, and it can be made again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="try again when the scheduler answers")


def not_submitted(
    command: str, result: subprocess.CompletedProcess[str], away: str
) -> SchedulerError:
    """The error of a command that submitted nothing: AwayError where what it said matches the
    regular expression `away`, since then nobody has refused anything."""
    if re.search(away, f"{result.stderr}{result.stdout}"):
        return AwayError(f"{command} does not reach the scheduler: {complaint(result)}")
    return SchedulerError(f"{command} refused the job: {complaint(result)}")


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
# A server that is started anew, or drops a connection, is back within seconds.
PAUSES = (2.0, 4.0)


def asked_again(ask: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """`ask`, which asks twice more, some seconds later, where it raises AwayError."""

    @functools.wraps(ask)
    def asked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Answer:
        for pause in PAUSES:
            try:
                return ask(*args, **options)
            except AwayError:
                time.sleep(pause)
        return ask(*args, **options)

    return asked
