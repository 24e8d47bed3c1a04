"""The interface of schedulers, and functions that several schedulers use."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, ParamSpec, TypeVar

from hpc_amp.errors import ConfigError, SchedulerError, UnclearError, UsageError
from hpc_amp.registry import code_beside
from hpc_amp.resources import Which, which
from hpc_amp.schedulers.answers import NOT_IN_QUEUE, JobStatus, Submission

if TYPE_CHECKING:
    import submitit

    from hpc_amp.clients import Clients
    from hpc_amp.config.schema import Job
    from hpc_amp.config.site import Site
    from hpc_amp.config.site_draft import SiteDraft
    from hpc_amp.finding import Finding
    from hpc_amp.jobs.spec import Spec
    from hpc_amp.launchers.base import Launcher
    from hpc_amp.schedulers.arrays import Arrays
    from hpc_amp.schedulers.grammar import Grammar


class Interactive(NamedTuple):
    """The command of an interactive job, which runs a script on a node and on this terminal.

    `job_id` and `ready` are regular expressions for the command's output. A command without them
    handles Ctrl-C itself, and its exit status is the script's unless `loses_status` is set.
    """

    command: list[str]
    environ: Mapping[str, str]
    job_id: str = ""
    """Matches the output while the job waits. Its group is the job's id."""
    ready: str = ""
    """Matches the output when the shell on the node starts."""
    typed: str = ""
    """For a command that opens a login shell: the line to type into it."""
    end_signal: int | None = None
    """The signal that ends the command when hpc-amp gets SIGTERM or SIGHUP. Default: the same."""
    hides_interrupts: bool = False
    """Whether its exit status may be 0 after Ctrl-C ended it before the script started."""
    loses_status: bool = False
    """Whether its exit status may differ from that of the script, which then has to record it."""

    @property
    def is_watched(self) -> bool:
        """Whether its output has to be searched, so that it needs a pseudo-terminal."""
        return self.ready != ""

    @property
    def records_status(self) -> bool:
        """Whether the script has to write its exit status to a file."""
        return self.is_watched or self.loses_status


def run_here(script: Path, environ: Mapping[str, str]) -> Interactive:
    """Run the script on this machine. The environment is not changed, so modules that the user has
    loaded stay loaded."""
    return Interactive(["/bin/bash", str(script)], dict(environ))


def needs_terminal(scheduler: str) -> UsageError:
    """The error for an interactive job without a terminal. `scheduler` is the title."""
    return UsageError(
        f"an interactive job of {scheduler} needs a terminal, for input and for output",
        hint="call it from one without < > or |, or submit a job with this command as `run`",
    )


def script_command(script: Path) -> list[str]:
    """The command that runs a session's script on a new node. As for a batch script, it is a login
    shell."""
    return ["/bin/bash", "-l", str(script)]


class Scheduler(ABC):
    """The directives and commands of one scheduler. Holds no state."""

    name: ClassVar[str]
    title: ClassVar[str]
    """Its name in messages."""
    command: ClassVar[str] = ""
    """The program that submits a job. Empty if no program is needed."""
    grammar: ClassVar[Grammar | None] = None
    """How it reads directives. None for a scheduler without directives."""
    step_launcher: ClassVar[str] = ""
    """The name of the scheduler's own launcher, which starts processes on the nodes of a job. Empty
    if the scheduler has none."""
    gpu_requests: ClassVar[tuple[str, ...]] = ()
    """The values of a site's `gpu_request` besides `auto` and `none`. `auto` means the first one;
    without any, `auto` means `none`."""
    site_keys: ClassVar[tuple[str, ...]] = ()
    """The site keys that this scheduler uses, among those that only some schedulers use: `gpu_type`
    and `chunk`."""
    instead_of_key: ClassVar[Mapping[str, str]] = {}
    """For each such key that this scheduler does not use: what to do instead, as the hint of an
    error. Default: use directives."""
    site_options: ClassVar[Mapping[str, Callable[[str], None]]] = {}
    """The names that a site's `options` may have, each with a check of its value. A check raises
    ValueError."""
    chains: ClassVar[bool] = False
    """Whether a run continues in another job, because this scheduler cannot requeue a job. Jobs can
    then be submitted to wait for each other (`job.chain`)."""
    signals_ranks: ClassVar[bool] = True
    """Whether all ranks get a signal at a cancellation, with time to save."""
    whole_nodes: ClassVar[bool] = False
    """Whether a job never shares its nodes with another job."""
    one_machine: ClassVar[bool] = False
    """Whether all jobs run on this machine, which stands for all nodes of a job."""
    limits: ClassVar[bool] = True
    """Whether it ends jobs at their time limit."""
    grace: ClassVar[int]
    """Seconds between its SIGTERM and its SIGKILL, if the scheduler cannot report them."""

    own_variables: ClassVar[Mapping[str, str]] = {}
    """The variables that its host code sets for every job, with their meanings. A job file and a
    site file cannot set them."""
    allocation: ClassVar[str] = ""
    """The variable that contains the job's id inside an allocation."""
    ask_seconds: ClassVar[float] = 15.0
    """Seconds between two queries about a job whose end is waited for. The files of a run show
    nearly all changes; the queries find jobs that have disappeared."""
    absent_job: ClassVar[str] = "0"
    """A job id of valid form that no job has. `doctor` queries it to check that the scheduler
    answers."""
    leftover_files: ClassVar[str] = ""
    """A regular expression for the names of files that the scheduler itself writes into the working
    directory of a job."""

    @property
    def marker(self) -> str:
        """The beginning of a directive line, such as `#SBATCH`. It is taken from the grammar. A
        scheduler without a grammar may set an attribute of this name."""
        return "#" if self.grammar is None else self.grammar.marker

    @classmethod
    def is_configured(cls, which: Which = which) -> bool:
        """Whether this machine belongs to a cluster with this scheduler: its programs are found by
        `which`, and they are configured for a server."""
        return False

    def cluster(self) -> str:
        """The name of the cluster that this machine belongs to, if a file says it; else empty. Two
        clusters may share a home directory, and both may have a job of the same id. No command is
        run for this."""
        return ""

    def works_with(self, launcher: Launcher) -> bool:
        """Whether a launcher works under this scheduler."""
        return not launcher.makes_steps or launcher.name == self.step_launcher

    def host_code(self) -> str:
        """Bash code that is sourced at the beginning of every job, with the functions that
        hpc_amp/host/begin.sh calls. Default: `host.sh` beside the scheduler's module."""
        return code_beside(self, "host.sh")

    def narrows(self) -> bool:
        """Whether a run can use only the first nodes of a job, as in a campaign of several runs in
        one job. Launchers get a shorter list of nodes. A `step_launcher` does not read that list,
        so the host code has to define a function `use_first_nodes` (see
        hpc_amp/host/campaign.sh)."""
        return not self.step_launcher or "use_first_nodes()" in self.host_code()

    def arrays(self) -> Arrays:
        """How jobs that differ only in a number are submitted. Default: one after the other."""
        from hpc_amp.schedulers.arrays import OneByOne  # only for many runs

        return OneByOne(self)

    def queued(self) -> dict[str, Path]:
        """The user's jobs in the queue by id. The path of each shows to which run it belongs: it is
        its working directory, its script or its log. Raises SchedulerError if the scheduler does
        not answer."""
        return {}

    def find_jobs(self, folder: Path) -> list[str]:
        """The ids of the user's jobs in the queue whose path (`queued`) is `folder` or lies in it.
        Raises SchedulerError if the scheduler does not answer."""
        return [job_id for job_id, path in self.queued().items() if folder in (path, *path.parents)]

    @abstractmethod
    def default_launcher(self, job: Job) -> str:
        """The launcher for `launch.method: auto`."""

    @abstractmethod
    def directives(self, plan: Spec) -> list[str]:
        """The directives of the header without the marker, each quoted for this scheduler's parser
        of directives. The directives of site and job are included unchanged."""

    def exclusive_directive(self, site: Site) -> str:
        """The directive that requests nodes which no other job shares (`job.exclusive`), as
        `directives` contains it. Empty if this scheduler has none, or none on this site."""
        return ""

    @abstractmethod
    def check(self, plan: Spec) -> None:
        """Raise ConfigError if this scheduler cannot run the plan."""

    @abstractmethod
    def submit(
        self,
        script: Path,
        environ: Mapping[str, str],
        *,
        after: str | None = None,
        held: bool = False,
    ) -> Submission:
        """Submit a script. `after`: the id of a job that has to end before this one starts.
        `held`: the job does not start before `release`. Both are used only if the scheduler
        `chains`. Raises SchedulerError if the job is refused, and UnclearError if it is unknown
        whether the scheduler accepted it."""

    @abstractmethod
    def interactive(
        self, plan: Spec, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive:
        """The command that requests a new allocation with the plan's resources and runs the script
        in it once. The plan has to be one of a single process. `terminal`: whether input and output
        are a terminal. Raises UsageError if they are not and the scheduler needs one."""

    def inside(
        self, script: Path, environ: Mapping[str, str], *, terminal: bool
    ) -> Interactive | None:
        """The command that runs the script in the present allocation, which `environ` shows. None
        if there is no allocation."""
        return run_here(script, environ) if environ.get(self.allocation) else None

    @abstractmethod
    def query(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Query the status of jobs, in one request. Jobs that the scheduler does not know, or does
        not know any more, are missing in the answer. Raises SchedulerError if the scheduler does
        not answer, since this does not mean that the jobs have ended."""

    def unended(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """The status of those jobs that wait, run, are ending or are stuck, in one request. Raises
        SchedulerError if the scheduler does not answer."""
        answers = self.query(job_ids)
        found = {job_id: answers[job_id] for job_id in job_ids if job_id in answers}
        return {
            job_id: answer
            for job_id, answer in found.items()
            if answer.state != "ended" or answer.stuck
        }

    def submitit_executor(self, plan: Spec) -> submitit.Executor:
        """Create an executor of submitit that runs functions with the resources of a plan. Its
        files are below `plan.run_dir`, and its interpreter is `plan.run_dir/python`. Raises
        UsageError if submitit does not support this scheduler."""
        raise UsageError(
            f"submitit has no executor for {self.title}",
            hint="hpc-amp submit and hpc-amp sweep run jobs there",
        )

    def check_limits(self, job: Job, site: Site, client: Client) -> Iterator[Finding]:
        """Yield findings, with the id `sched`, on a job that the scheduler's limits do not allow.
        `doctor` shows them, and a job with an error is not submitted. None if `client`, which asks
        the scheduler, gets no answer."""
        yield from ()

    def check_configuration(self, client: Client) -> Iterator[Finding]:
        """Yield findings of `doctor`, with the id `sched`, on the configuration of the scheduler
        itself."""
        yield from ()

    def draft_site(self, draft: SiteDraft, clients: Clients, queue: str | None) -> None:
        """Add what the scheduler's commands report about this cluster to the draft of a site file:
        queues with their limits, GPUs and how they are requested, accounts. `queue` is the queue to
        describe, or None for the one that fits jobs with GPUs best. `clients` runs the commands.
        Default: nothing. Raises UsageError if there is no such queue."""
        return

    def check_site(self, job: Job, site: Site) -> Iterator[Finding]:
        """Yield the findings of `doctor` about the keys of a site, with the id `sched`. `job` has
        the site's defaults. Default: none."""
        yield from ()

    def node_architectures(self, job: Job, client: Client) -> set[str]:
        """The architectures of the nodes that a job may get, in the form of `uname -m`. Empty if
        the scheduler does not report them to `client`."""
        return set()

    def log_files(self, directives: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Yield the log files in the directives of site and job that the nodes open before a job
        starts: the option as it is written, and the path."""
        yield from ()

    lost_log: ClassVar[str] = ""
    """What happens to a job if the nodes cannot open its log. Empty if the job runs normally."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a job. Does nothing if it has already ended. Raises SchedulerError if the scheduler
        does not answer: if nothing is raised, the run is recorded as cancelled."""

    def release(self, job_id: str) -> None:
        """Let a job start that was submitted with `held`. Only called if the scheduler `chains`."""
        raise NotImplementedError(f"{self.name} jobs are not held")

    def final_status(self, job_id: str, run_dir: Path) -> JobStatus:
        """How a job ended that is not in the queue any more, if the scheduler's records or files
        show it."""
        return NOT_IN_QUEUE


def without_options(
    words: Sequence[str], unwanted: Mapping[str, bool], longer: Mapping[str, str]
) -> list[str]:
    """Remove options from the words of a command line. `unwanted` has the long names of the
    options, each with whether it takes a value. `longer` maps short names to long ones."""
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
    """The default launcher for a job on one node if the scheduler has no launcher of its own. Only
    torchrun takes `launch.args`."""
    if job.world_size == 1:
        return "single"
    return "torchrun" if job.launch.args else "processes"


def directive_words(line: str, grammar: Grammar) -> list[str]:
    """Split a directive of site or job into words, as the scheduler does. Raises ConfigError for an
    open quote or a backslash at the end."""
    found = grammar.split(line)
    if found.unmatched is not None:
        raise ConfigError(f"the directive {line!r} cannot be read: {found.unmatched} does not end")
    if (len(line) - len(line.rstrip("\\"))) % 2:
        raise ConfigError(f"the directive {line!r} cannot be read: it ends with a backslash")
    return [word.text for word in found.words]


def merge_directives(
    generated: Sequence[tuple[str, str]], plan: Spec, options: Callable[[str], set[str]]
) -> list[str]:
    """Merge the generated directives with those of site and job.

    `generated` are pairs of an option and its directive. Those whose option is in a
    `skip_directives` of site or job are left out. A directive of the job replaces one of the site
    that sets the same options, and both replace a generated one, because schedulers treat repeated
    options differently. `options` returns the options that a directive sets.
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
    """Raise ConfigError if a directive of site or job has one of the options `refused`, with which
    hpc-amp could not follow the job. Each option is mapped to the reason. Options have the names
    that `grammar` gives them; `W block` is the entry `block` of the option `W`."""
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


# Variables that identify the user and locate programs and the cluster.
_KEPT = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME"),
    *("MODULEPATH", "MODULESHOME", "XDG_RUNTIME_DIR"),
)


# Variables that describe the terminal.
TERMINAL = ("TERM", "COLORTERM")


def submission_environment(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """The part of the submitting shell's environment that the scheduler's commands get. Some
    schedulers pass it on to the job, which must not depend on the rest. `more` are further names of
    variables to keep."""
    kept = {name: environ[name] for name in (*_KEPT, *more) if name in environ}
    kept.setdefault("PATH", os.defpath)
    return kept


def run_submit_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: Path,
    job_id: str,
    lost: str,
    away: str,
) -> Submission:
    """Run the command that submits a job, in `folder`.

    `job_id` is a regular expression for the output lines with the job's id. If it has a group, the
    group is the id. If several lines match, the last one counts. If the output has an id, the job
    was accepted, whatever the exit status is. `lost` and `away` are regular expressions for error
    messages: `lost` if the scheduler may have accepted the job without answering, `away` if the
    command did not reach the scheduler.

    Raises SchedulerError if the job was refused, UnreachableError if the scheduler was not reached,
    and UnclearError if it is unknown whether the job was accepted.
    """
    try:
        # In a session of its own: qsub handles Ctrl-C of the terminal although the signal is
        # blocked here.
        result = run_command(command, environ=environ, folder=folder, own_session=True)
    except NoAnswerError as error:
        raise UnclearError(error.message) from None
    ids = re.findall(job_id, result.stdout, re.MULTILINE)
    if ids:
        return Submission(str(ids[-1]), result.stderr.strip())
    if result.returncode == 0:
        raise UnclearError(f"`{command[0]}` printed no job id: {complaint(result)}")
    if result.returncode < 0:
        raise UnclearError(f"`{command[0]}` was ended by signal {-result.returncode}")
    if re.search(lost, f"{result.stderr}{result.stdout}"):
        raise UnclearError(f"`{command[0]}` got no answer: {complaint(result)}")
    raise not_submitted(command[0], result, away)


_asked: dict[tuple[str, ...], subprocess.CompletedProcess[str]] | None = None


@contextmanager
def asked_once() -> Iterator[None]:
    """In this block, equal questions to a scheduler are asked once: the first answer serves all of
    them. Only for a block that changes nothing in the queue."""
    global _asked
    before, _asked = _asked, {}
    try:
        yield
    finally:
        _asked = before


class NoAnswerError(SchedulerError):
    """A command of a scheduler did not end within its time limit."""


def run_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 60.0,
    own_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command of a scheduler and capture its output. `own_session` separates it from the
    terminal's signals. Raises SchedulerError if it is not installed, and NoAnswerError if it does
    not end within `timeout` seconds."""
    is_question = environ is None and folder is None
    if is_question and _asked is not None and tuple(command) in _asked:
        return _asked[tuple(command)]
    try:
        result = subprocess.run(
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
            hint="submit from a login node, or add site=local to run here",
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"`{command[0]}` did not answer within {timeout:g} s") from None
    if is_question and _asked is not None and result.returncode == 0:
        _asked[tuple(command)] = result
    return result


class Client:
    """Runs commands that ask a scheduler, each at most once, for at most `seconds` in total.

    It keeps the answers, so all runs of a campaign are checked against the same ones. After a
    command that did not answer in time, no further command is run.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left = seconds
        self._answers: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The result of a command. Raises SchedulerError if it is not installed, and NoAnswerError
        if there is no answer in time."""
        if command not in self._answers:
            if self._left <= 0:
                raise NoAnswerError(f"there was no answer within {self._seconds:g} s")
            begin = time.monotonic()
            try:
                self._answers[command] = run_command(command, timeout=self._left)
            except NoAnswerError:
                self._left = 0
                raise
            self._left -= time.monotonic() - begin
        return self._answers[command]

    def output(self, *command: str) -> str:
        """The output of a command. Raises SchedulerError as `ask` does, and if the command
        fails."""
        result = self.ask(*command)
        if result.returncode != 0:
            raise SchedulerError(f"{command[0]} does not answer")
        return result.stdout


def output_of(command: Sequence[str]) -> str:
    """The output of a command that lists jobs. Raises SchedulerError if it fails with a message.
    Without one, the queue may be empty: some commands fail silently then."""
    result = run_command(command)
    if result.returncode != 0 and (result.stdout.strip() or result.stderr.strip()):
        raise SchedulerError(f"{command[0]} does not answer: {complaint(result)}")
    return result.stdout


# Some answers contain a whole traceback. Only its exception is useful.
_TRACEBACK = r"(?s)'-+ START TRACEBACK.*?Exception +: (.*?)(?:\\n|\n).*?END TRACEBACK -+'"
_MEANINGLESS = 'No handlers could be found for logger "Proxy"'
_LONGEST_COMPLAINT = 500


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The error message of a failed command as one line, cut to 500 characters."""
    text = re.sub(_TRACEBACK, r"\1", result.stderr or result.stdout)
    lines = [line.strip() for line in text.splitlines()]
    message = " / ".join(line for line in lines if line and line != _MEANINGLESS)
    if len(message) > _LONGEST_COMPLAINT:
        message = f"{message[:_LONGEST_COMPLAINT]}..."
    return message or f"exit status {result.returncode}"


class UnreachableError(SchedulerError):
    """The scheduler's server cannot be reached, or its answer is not understood. The request had no
    effect and can be repeated."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="try again when the scheduler answers")


def not_submitted(
    command: str, result: subprocess.CompletedProcess[str], away: str
) -> SchedulerError:
    """The error for a command that submitted no job: UnreachableError if its message matches the
    regular expression `away`, else an error that the scheduler refused the job."""
    if re.search(away, f"{result.stderr}{result.stdout}"):
        return UnreachableError(f"{command} does not reach the scheduler: {complaint(result)}")
    return SchedulerError(f"{command} refused the job: {complaint(result)}")


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")
# Seconds. A server that was restarted, or dropped a connection, usually answers again by then.
PAUSES = (2.0, 4.0)


def retried(ask: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """A decorator: call the function again after some seconds, at most twice, if it raises
    UnreachableError."""

    @functools.wraps(ask)
    def asked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Answer:
        for pause in PAUSES:
            try:
                return ask(*args, **options)
            except UnreachableError:
                time.sleep(pause)
        return ask(*args, **options)

    return asked
