"""What is named among the many errors of a failed job, and what must not be named at all."""

from __future__ import annotations

import io
import itertools
import re
import textwrap

import pytest

from hpc_amp.explain.failures import known_failures
from hpc_amp.explain.lines import make_line
from hpc_amp.explain.match import Scan, Verdict

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WATCHDOG = (
    "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=5) ran for 9"
)
PEER = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
)
PROGRESS = "epoch 1/10  step {}/3910  loss 2.1312  lr 0.1  5,321 img/s  eta 3:20\n"
ATTEMPT = (
    "attempt {} of job 7: 2 rank(s) on 1 node(s), first n1:61234, stops by 2026-11-28 03:00:00\n"
)


def traceback(error: str, label: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/code/train.py", line 44, in <module>',
        "    main()  # CUDA out of memory. Tried to allocate nothing: this is source code",
        error,
    ]
    return "".join(f"{label}{line}\n" for line in lines)


def judge(text: str | bytes) -> Verdict:
    scan = Scan(known_failures())
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
    scan.read(io.BytesIO(data), "job.log")
    return scan.verdict()


def named(text: str | bytes) -> str | None:
    finding = judge(text).finding
    return finding.failure.id if finding else None


def first_error(text: str | bytes) -> tuple[int | None, str]:
    """Rank and text of the error that is shown where no cause is named."""
    verdict = judge(text)
    assert verdict.finding is None, verdict.finding
    assert verdict.error is not None
    return verdict.error.rank, verdict.error.text


# ---- the cause among its consequences ------------------------------------------------------------


@pytest.mark.parametrize("label", ["[rank{}]: ", "{}: ", "[1,{}]<stderr>:", "[default{}]:"])
def test_the_cause_is_found_among_what_other_ranks_say(label: str) -> None:
    """Both tracebacks at once, line by line, as launchers mix them."""
    one = traceback(OOM, label.format(1)).splitlines()
    two = traceback(PEER, label.format(2)).splitlines()
    mixed = [line for pair in zip(two, one, strict=True) for line in pair]
    log = "\n".join(["start", *mixed, WATCHDOG, "srun: error: n1: task 1: Exited with exit code 1"])

    finding = judge(log).finding

    assert finding is not None
    assert finding.failure.id == "cuda-out-of-memory"
    assert (finding.line.rank, finding.line.number) == (1, 9)


def test_consequences_that_come_first_do_not_win() -> None:
    log = traceback(PEER) + WATCHDOG + "\n" + traceback(OOM)
    assert named(log) == "cuda-out-of-memory"
    assert named(WATCHDOG + "\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n") == (
        "oom-killed"
    )


def test_a_traceback_that_nobody_knows_is_shown_with_its_rank_and_nothing_else_named() -> None:
    log = (
        PROGRESS.format(20)
        + traceback("KeyError: 'label'", "3: ")
        + WATCHDOG
        + "\n"
        + traceback(PEER, "0: ")
        + "srun: error: n1: task 0: Killed\n"
        + "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-11-28T02:00 DUE TO TIME LIMIT ***\n"
    )
    assert first_error(log) == (3, "KeyError: 'label'")
    unlabelled = log.replace("3: ", "", 4).replace("0: ", "", 4)
    assert first_error(unlabelled)[1] == "KeyError: 'label'"
    assert [found.failure.id for found in judge(log).noticed] == ["slurm-time-limit"]


def test_the_earlier_of_cause_and_unknown_error_counts() -> None:
    assert named(traceback(OOM, "1: ") + traceback("KeyError: 1", "2: ")) == "cuda-out-of-memory"
    assert first_error(traceback("KeyError: 1", "2: ") + traceback(OOM, "1: ")) == (
        2,
        "KeyError: 1",
    )


def test_a_chained_traceback_is_one_error() -> None:
    log = (
        traceback("KeyError: 'x'")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + traceback(OOM)
    )
    assert named(log) == "cuda-out-of-memory"


def test_a_message_of_several_lines_belongs_to_its_error() -> None:
    log = """\
        RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error, NCCL 2.18.1
        ncclSystemError: System call (e.g. socket, malloc) or external library call failed.
        Last error:
        socketStartConnect: Connect to 192.168.102.1<38007> failed : No route to host
        """
    assert named(log) == "nccl-peer-unreachable"


def test_a_symptom_alone_is_named_as_one() -> None:
    finding = judge(WATCHDOG + "\n").finding
    assert finding is not None
    assert (finding.failure.id, finding.level) == ("nccl-watchdog-timeout", "symptom")


def test_a_warning_is_only_likely() -> None:
    warning = (
        "x.py:1: UserWarning: The NVIDIA driver on your system is too old (found version 11040)"
    )
    assert judge(warning).finding.level == "likely"  # type: ignore[union-attr]
    assert first_error(f"{warning}\n{traceback('KeyError: 1')}")[1] == "KeyError: 1"


def test_ranks_that_the_launcher_killed_did_not_run_out_of_memory() -> None:
    killed = "srun: error: n1: task 0: Killed\n"
    assert named(killed) == "killed-by-launcher-or-kernel"
    assert named("srun: error: n2: task 1: Exited with exit code 1\n" + killed) is None


# ---- progress and attempts -----------------------------------------------------------------------


def test_an_error_that_was_survived_does_not_count() -> None:
    steps = "".join(PROGRESS.format(step) for step in (20, 40, 60, 80))
    assert named(traceback(OOM) + steps) is None
    assert first_error(traceback(OOM) + steps + traceback("ZeroDivisionError: x"))[1] == (
        "ZeroDivisionError: x"
    )
    # Progress that waited in a buffer: the log ends with a failure that nothing else explains.
    assert named(traceback(OOM) + steps + "srun: error: n1: task 0: Exited with exit code 1\n") == (
        "cuda-out-of-memory"
    )


def test_the_last_attempt_counts() -> None:
    first = ATTEMPT.format(1) + traceback(OOM) + "attempt 1 ended: failed (status 1)\n"
    second = ATTEMPT.format(2) + "hpc-amp: rank 0: the loss `loss` is nan at step 40: lost\n"
    assert named(first) == "cuda-out-of-memory"
    assert named(first + second) == "hpc-amp-loss-not-finite"
    ended = judge(first + ATTEMPT.format(2) + "attempt 2 ended: finished (status 0)\n")
    assert ended.ended_well and ended.finding is None and ended.error is None


# ---- what must not be named ----------------------------------------------------------------------

HARMLESS = [
    "ERROR: ld.so: object '/opt/xalt/libxalt.so' from LD_PRELOAD cannot be preloaded: ignored.",
    "INFO:    squashfuse not found, will not be able to mount SIF",
    "bash: warning: setlocale: LC_ALL: cannot change locale (fr_FR.UTF-8)",
    "epoch 3 train error 0.132 test error 0.18",
    "clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)",
    "tests/test_oom.py::test_out_of_memory_error PASSED",
    "0 errors, 0 failures",
    "top-1 error: 24.3 %",
    "loss scale 65536, nan_to_num used, inf_norm 3.2",
    "WARNING: underlay of /usr/bin/nvidia-smi required more than 50 (492) bind mounts",
    "W1206 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for all",
    "n1:1:1 [0] NCCL INFO NET/IB : No device found.",
    "n1:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal plugin.",
    "n1:1:1 [0] NCCL INFO Using network Socket",
    "FutureWarning: You are using `torch.load` with `weights_only=False`",
    "the port 29500 was chosen; address already in use elsewhere is not a problem",
    "Killed 3 stale workers before start",
    "Saved checkpoint; disk quota: 12 % used",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_names_nothing(line: str) -> None:
    assert named(f"{line}\n{PROGRESS.format(20)}done\n") is None


def test_a_log_of_a_good_run_names_nothing() -> None:
    ignored = "Exception ignored in: <function _Iter.__del__ at 0x7f>\n"
    verdict = judge("\n".join(HARMLESS) + "\n" + ignored + traceback("AssertionError: can only"))
    assert verdict.finding is None
    assert verdict.error is None or "AssertionError" not in verdict.error.text


def test_every_sample_is_silent_as_source_code_of_a_traceback() -> None:
    for failure in known_failures():
        for line in failure.samples[0].splitlines()[:1]:
            log = traceback("KeyError: 1").replace("    main()", f"    {line.strip()}  #")
            assert first_error(log)[1] == "KeyError: 1", failure.id


# ---- bytes ---------------------------------------------------------------------------------------


def test_colours_carriage_returns_and_foreign_bytes() -> None:
    assert named(
        b"\x1b[31mFATAL:  \x1b[0m could not open image /x: open /x: permission denied\r\n"
    ) == ("image-not-readable")
    bar = b"\r".join(b" %d%%|###  | 3/9 [00:01<00:02]" % i for i in range(50))
    log = b"\xff\xfe caf\xe9\x00\n" + bar + b"\r" + OOM.encode() + b"\n"
    finding = judge(log).finding
    assert finding is not None and finding.line.number == 2


def test_a_line_without_end_and_a_last_line_without_line_feed() -> None:
    log = b"x" * 3_000_000 + b"\n" + OOM.encode()
    assert named(log) == "cuda-out-of-memory"


class Counted(io.RawIOBase):
    """A stream of lines that are made while they are read: nobody can keep them all."""

    def __init__(self, lines: itertools.islice[bytes], tail: bytes) -> None:
        self._lines, self._tail, self.largest = lines, tail, 0

    def read(self, size: int = -1) -> bytes:
        assert 0 < size <= 2**20
        data = b"".join(itertools.islice(self._lines, size // 100))
        if not data:
            data, self._tail = self._tail, b""
        return data


def test_a_large_log_is_read_in_one_pass_and_little_is_looked_at() -> None:
    """The work is counted, not timed: of lines of one shape only the first is looked at."""
    lines = (PROGRESS.format(step).encode() for step in itertools.count())
    scan = Scan(known_failures())
    looked = 0
    take = scan.take

    def counted(line: object) -> bool:
        nonlocal looked
        looked += 1
        return take(line)  # type: ignore[arg-type]

    scan.take = counted  # type: ignore[method-assign, assignment]
    scan.read(Counted(itertools.islice(lines, 30_000), OOM.encode()), "job.log")  # type: ignore[arg-type]

    finding = scan.verdict().finding
    assert finding is not None and finding.line.number == 30_001
    assert looked < 100


# ---- what the log tells must be told -------------------------------------------------------------

DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_of_exceptions_that_caused_each_other_the_root_is_shown_and_what_it_led_to() -> None:
    log = traceback("db.Locked: busy") + DIRECT + traceback("db.Invalid: bad data, it seems")
    verdict = judge(log + DIRECT + traceback("app.Failed: giving up"))
    assert verdict.error is not None and verdict.error.text == "db.Locked: busy"
    assert verdict.led_to is not None and verdict.led_to.text == "app.Failed: giving up"
    assert judge(traceback("db.Locked: busy")).led_to is None


@pytest.mark.parametrize("label", ["", "[rank3]: ", "0: [rank3]: ", "[1,3]<stderr>:"])
def test_an_exception_that_was_being_handled_is_the_root_unless_something_was_only_looked_up(
    label: str,
) -> None:
    chain = HANDLING.replace("During", f"{label}During")
    second = traceback("app.Failed: no device", label)
    assert first_error(traceback("KeyError: 'cache'", label) + chain + second)[1] == (
        "app.Failed: no device"
    )
    assert first_error(traceback("OSError: disk", label) + chain + second)[1] == "OSError: disk"


def test_a_long_message_between_chained_tracebacks_does_not_part_them() -> None:
    message = "db.Locked: busy\n" + "".join(f"[SQL: part {n} of it]\n" for n in range(40))
    log = traceback(message.rstrip()) + DIRECT + traceback("app.Failed: giving up")
    assert first_error(log)[1] == "db.Locked: busy"


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/code/train.py", line 4, in <module>
  |     raise ExceptionGroup("unhandled errors in a TaskGroup", found)
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/code/train.py", line 9, in fetch
    | app.Lost: shard 7
    +---------------- 2 ----------------
    | ValueError: never raised
    +------------------------------------
"""


@pytest.mark.parametrize("label", ["", "[rank1]: ", "2: "])
def test_of_a_group_of_exceptions_the_first_in_it_is_shown(label: str) -> None:
    log = "".join(f"{label}{line}\n" for line in GROUP.splitlines())
    verdict = judge(log.encode())
    assert verdict.error is not None and verdict.error.text == "app.Lost: shard 7"
    assert verdict.led_to is not None and "2 sub-exceptions" in verdict.led_to.text
    after = judge((log + "step 1\n" + traceback(OOM, label)).encode())
    assert after.error is not None and after.error.text == "app.Lost: shard 7"


def test_entries_know_the_exceptions_in_a_group() -> None:
    for part in ("app.Lost: shard 7", "ValueError: never raised"):
        assert named(GROUP.replace(part, OOM).encode()) == "cuda-out-of-memory"


def test_of_two_ranks_without_labels_the_first_that_ends_is_shown() -> None:
    one, two = traceback("app.Lost: a").splitlines(), traceback("app.Gone: b").splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert first_error(mixed + "\n")[1] == "app.Lost: a"


@pytest.mark.parametrize(
    "wrapper",
    [
        "RuntimeError: Caught app.Lost in DataLoader worker process 0.\nOriginal ",
        "submit.FailedJobError: the job failed during processing with trace:\n------\n",
    ],
)
def test_what_an_exception_was_made_of_may_stand_below_it(wrapper: str) -> None:
    verdict = judge(traceback(wrapper + traceback("app.Lost: shard 7").rstrip()))
    assert verdict.error is not None and verdict.error.text == "app.Lost: shard 7"
    assert verdict.led_to is not None and verdict.led_to.text == wrapper.splitlines()[0]


BOX = """\
╭──────────── Traceback (most recent call last) ─────────────╮
│ /code/train.py:12 in main                                  │
│ ❱ 12 │   raise Lost("CUDA out of memory. Tried to allocate")│
╰────────────────────────────────────────────────────────────╯
Lost: shard 7
"""


def test_a_traceback_in_a_frame_is_source_code() -> None:
    assert named(BOX) is None
    assert named(BOX.replace("Lost: shard 7", OOM)) == "cuda-out-of-memory"
    assert first_error(BOX.replace("Lost:", "app.LostError:"))[1] == "app.LostError: shard 7"
    assert first_error(BOX)[1] == "Lost: shard 7"


@pytest.mark.parametrize("label", ["", "[rank1]: "])
def test_an_exception_of_the_program_s_own_may_have_any_name(label: str) -> None:
    log = traceback("Diverged: at step 7", label)
    assert first_error(log)[1] == "Diverged: at step 7"
    assert first_error(log + "and more\nsrun: error: n1: task 0: Exited with exit code 1\n")[1] == (
        "Diverged: at step 7"
    )
    chained = log + f"{label}{DIRECT.strip()}\n" + traceback("app.Failed: giving up", label)
    assert first_error(chained)[1] == "Diverged: at step 7"
    # Another rank's words between a traceback and its last line.
    torn = traceback("Epoch: 3\napp.Lost: shard 7")
    assert first_error(torn)[1] == "app.Lost: shard 7"


@pytest.mark.parametrize(
    ("before", "each"),
    [
        ("12%|█▎        | 3/25 [00:01<00:09, 2.1it/s]", ""),
        ("loss 0.12", ""),
        ("ERROR:root:", ""),
        ("", "(RayWorker pid=7602) ERROR 04-07 00:57:46 ray_utils.py:45] "),
    ],
)
def test_a_traceback_behind_other_words_on_its_line(before: str, each: str) -> None:
    log = before + traceback("app.Lost: shard 7", each)
    assert first_error(log)[1] == "app.Lost: shard 7"


def test_an_exception_behind_a_progress_bar() -> None:
    bar = "12%|█▎        | 3/25 [00:01<00:09, 2.1it/s]"
    assert first_error(traceback(f"{bar}app.Lost: shard 7"))[1] == f"{bar}app.Lost: shard 7"


@pytest.mark.parametrize(
    ("label", "rank"),
    [
        ("3: ", 3), (" 3: ", 3), ("[1,3]<stderr>:", 3), ("[prterun-n1-88@1,3]<stderr>: ", 3),
        ("[rank3]: ", 3), ("[default3]:", 3), ("[3] ", 3), ("x3006c0s13b1n0.hsn.cm 3: ", 3),
        ("gpu07.cluster.example 3: ", 3),
        # What torch calls a rank is one. srun's number and torchrun's count something else then.
        ("0: [rank3]: ", 3), ("1: [default1]:[rank3]: ", 3), ("[1,0]<stderr>:[rank3]: ", 3),
        ("1: [default3]:", None), ("(Worker pid=88, ip=10.0.0.1) ", None),
    ],
)  # fmt: skip
def test_the_rank_of_a_label(label: str, rank: int | None) -> None:
    assert first_error(traceback("KeyError: 1", label)) == (rank, "KeyError: 1")


def test_labels_inside_labels_do_not_get_mixed_up() -> None:
    one, two = traceback("app.Lost: a", "0: [default1]:"), traceback(OOM, "1: [default1]:")
    mixed = [x for pair in zip(one.splitlines(), two.splitlines(), strict=True) for x in pair]
    # As one speaker, the two tracebacks would be one error, which OOM explains.
    verdict = judge("\n".join(mixed) + "\n")
    assert verdict.error is not None and verdict.error.text == "app.Lost: a"


@pytest.mark.parametrize("name", ["train.py 12: error", "line 3: x", "5: 7 of 9"])
def test_what_is_no_label(name: str) -> None:
    assert make_line("x", 1, name.encode()).speaker is None


NCCL = """\
{0}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, internal error, x
{0}ncclInternalError: Internal check failed.
{0}Last error:
"""


@pytest.mark.parametrize("label", ["", "[rank2]: "])
def test_what_nccl_said_last_is_told(label: str) -> None:
    log = NCCL.format(label)
    finding = judge(f"{log}{label}Attribute busid of node nic not found\n").finding
    assert finding is not None and finding.failure.id == "nccl-warning"
    assert finding.captured["text"] == "Attribute busid of node nic not found"
    assert named(f"{log}{label}NET/IB : No matching GID found for port 1\n") == "nccl-ib-connect"
    assert named(f"{log}\n{label}Exception raised from check at x.cpp:1\n") == "nccl-failed"
    # Its shape was seen before, in a line that said nothing.
    known = f"{label}Attribute busid of node nic\n"
    assert named(f"{known}{log}{known}") == "nccl-warning"


def test_a_warning_of_nccl_that_nobody_knows_is_evidence() -> None:
    unknown = "n1:1:1 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/x\n"
    harmless = "n1:1:1 [0] init.cc:1 NCCL WARN NUMA auto balancing enabled which can lead to x\n"
    assert named(unknown + NCCL.format("")) == "nccl-warning"
    assert named(harmless + NCCL.format("")) == "nccl-failed"
    # It only repeats: what knows its line counts before it, and so does an error.
    assert named(unknown + "srun: error: n1: task 0: Killed\n") == "killed-by-launcher-or-kernel"
    assert first_error(unknown + traceback("KeyError: 1"))[1] == "KeyError: 1"


def test_beside_a_consequence_the_first_line_that_sounds_like_an_error_is_told() -> None:
    verdict = judge(f"the frobnicator failed on n3\n{WATCHDOG}\n")
    assert verdict.finding is not None and verdict.finding.failure.id == "nccl-watchdog-timeout"
    assert verdict.words is not None and verdict.words.text == "the frobnicator failed on n3"
    assert judge(WATCHDOG + "\n").words is None


def test_an_error_after_its_warning_is_sure() -> None:
    warning = "WARNING: could not look up the user: unknown userid 5510\n"
    assert judge(warning).finding.level == "likely"  # type: ignore[union-attr]
    fatal = "FATAL:   could not look up the user: unknown userid 5510\n"
    finding = judge(warning + fatal).finding
    assert finding is not None and (finding.level, finding.line.number) == ("cause", 2)


def test_a_scale_that_falls_to_zero_is_seen_among_many_lines_of_its_shape() -> None:
    scale = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
    falling = "".join(scale.format(2.0**n) for n in range(16, 0, -1))
    assert named(falling) is None
    died = traceback("ZeroDivisionError: float division by zero")
    assert named(falling + scale.format("0.0") + died) == "apex-loss-scale-zero"


def test_out_of_memory_where_several_believe_to_be_alone() -> None:
    alone = "I am rank 0 of 1 on n1\n"
    assert named(alone + traceback(OOM)) == "cuda-out-of-memory"
    assert named(alone + alone.replace("n1", "n2") + traceback(OOM)) == "out-of-memory-ranks-alone"


def test_packages_of_the_home_folder_count_before_a_version() -> None:
    error = "AttributeError: module 'numpy' has no attribute 'float'."
    frames = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/dist-packages/a.py", line 1, in <module>\n'
        '  File "/home/u/.local/lib/python3.11/site-packages/b.py", line 2, in <module>\n'
    )
    assert named(frames + error + "\n") == "user-site-mixed"
    assert named(frames.replace("/usr/lib/python3/dist", "/home/u/code/dist") + error + "\n") == (
        "user-site-mixed"
    )
    only_own = frames.replace("/usr/lib/python3/dist-packages", "/home/u/code")
    assert named(only_own + error + "\n") == "numpy-attribute"


def test_a_prologue_that_failed_is_told_from_a_job_that_ran() -> None:
    released = "Fri Nov 27 2026 Info: resources released; starting resource epilogue scripts\n"
    ran = "Fri Nov 27 2026 Command: '/usr/bin/ssh' 'n1'\n"
    assert named("Jobid: 1\n" + released) == "cobalt-prologue"
    assert named("Jobid: 1\n" + ran + released) is None


def test_a_hang_is_told_by_its_stacks() -> None:
    head = (
        "hpc-amp: rank 0: no progress for 600 s in step 12 (evaluation), seen by rank 0 "
        "(launch.timeout). Its stacks:\n"
    )
    frame = 'hpc-amp: rank 0:   File "/env/{}", line 5 in {}\n'
    thread = "hpc-amp: rank 0: Thread 0x00007f (most recent call first):\n"
    waiting = head + thread + "".join(frame.format("lib/x.py", f"f{n}") for n in range(30))
    assert named(waiting) == "hpc-amp-hang"
    loader = frame.format("torch/utils/data/dataloader.py", "_try_get_data")
    assert named(waiting + loader) == "loader-helper-stuck"
    native = "#3  0x0000ffff in _PyThreadState_DeleteExcept () from /usr/lib/libpython3.8.so\n"
    assert named(native) == "forked-beside-threads"


def test_a_line_of_setup_is_named_and_what_it_said_is_told_too() -> None:
    lmod = 'Lmod has detected the following error:  The following module(s) are unknown: "cuda/9"\n'
    line = "hpc-amp: job.setup: line 2: `module load cuda/9` ended with status 1\n"
    for before, noticed in ((lmod, ["module-unknown"]), ("", [])):
        verdict = judge(before + line)
        assert verdict.finding is not None and verdict.finding.failure.id == "setup-line-failed"
        assert verdict.finding.captured["command"] == "`module load cuda/9`"
        assert [found.failure.id for found in verdict.noticed] == noticed


def test_a_message_of_bash_is_an_error_but_no_cause_before_an_exception() -> None:
    assert named("job.sh: line 17: [: -eq: unary operator expected\n") == "shell-error"
    log = "job.sh: line 17: [: -eq: unary operator expected\n" + traceback("KeyError: 1")
    assert first_error(log)[1] == "KeyError: 1"
    # Lines that entries of other programs know.
    assert named("job.sh: line 9: orted: command not found\n") == "mpirun-orted-missing"
    assert named("job.sh: line 9:  4242 Segmentation fault      python x\n") == "segmentation-fault"


def test_no_cause_has_gaps_or_torn_text() -> None:
    """What a cause or fix repeats of a log is there, and whole."""
    for failure in known_failures():
        names = re.findall(r"\{(\w+)\}", failure.cause + failure.fix)
        lines = [line for sample in failure.samples for line in sample.splitlines()]
        for found in filter(None, map(failure.match, lines)):
            for name in names:
                value = found[name]
                assert value and value == value.strip(), (failure.id, found)
                # Words as they were said may be about a bracket.
                assert name == "text" or value.count("(") == value.count(")"), (failure.id, value)


# ---- logs from public reports, in own words ------------------------------------------------------

REPORTS = {
    "node-user-unknown": """
        WARNING: Could not lookup the current user's information: user: unknown userid 5510
        FATAL:   Couldn't determine user account information: user: unknown userid 5510
        srun: error: node03: task 0: Exited with exit code 255
        """,
    "nccl-ib-connect": """
        node11:40211:40388 [3] NCCL INFO Using network IB

        [2026-02-20 22:26:02] node11:40211:40455 [3] misc/ibvwrap.cc:160 NCCL WARN Call to \
ibv_modify_qp failed with error Connection timed out errno 110
        node11:40211:40455 [3] NCCL INFO transport/net_ib.cc:1312 -> 2
        [rank11]: Traceback (most recent call last):
        [rank11]:   File "/work/llm/pretrain.py", line 88, in <module>
        [rank11]:     main()
        [rank11]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, \
remote process exited or there was a network error, NCCL version 2.27.5
        [rank11]: ncclRemoteError: A call failed possibly due to a network error or a remote process
        [rank11]: Last error:
        [rank11]: NET/IB: Call to ibv_modify_qp failed with 110 Connection timed out
        srun: error: node11: task 11: Exited with exit code 1
        """,
    "sqlite-locked": """
        Traceback (most recent call last):
          File "/env/lib/python3.11/site-packages/sqlalchemy/engine/default.py", line 941, in do
            cursor.execute(statement, parameters)
        sqlite3.OperationalError: database is locked

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "/work/hpo/tune.py", line 77, in <module>
            study.optimize(objective, n_trials=20)
        optuna.exceptions.StorageInternalError: An exception is raised during the commit. This \
typically happens due to invalid data in the commit, e.g. exceeding max length.
        srun: error: cn045: task 0: Exited with exit code 1
        """,
    "master-name-is-number": """
        [W socket.cpp:697] [c10d] The client socket has failed to connect to 0.0.0.5:40323 \
(errno: 110 - Connection timed out).
        [E socket.cpp:753] [c10d] The client socket has failed to connect to any network address \
of (05, 40323).
        Traceback (most recent call last):
          File "/opt/conda/bin/torchrun", line 8, in <module>
            sys.exit(main())
        torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. It was closed
        """,
    "activation-set-u": """
        + . /apps/miniconda3/etc/profile.d/conda.sh
        + conda activate work
        /apps/envs/work/etc/conda/activate.d/proj4-activate.sh: line 6: PROJ_LIB: unbound variable
        """,
    "pyxis-setup": """
        srun: job 8812 has been allocated resources
        slurmstepd: error: pyxis: couldn't mkdir /run/pyxis/100005: No such file or directory
        slurmstepd: error: spank: required plugin spank_pyxis.so: init_post_opt() failed with rc=-1
        slurmstepd: error: Plugin stack initialization failed.
        srun: error: task 0 launch failed: Plugin initialization failed
        """,
    "pyxis-error": """
        pyxis: importing docker image: docker://python:3.11
        slurmstepd: error: pyxis: child 3478225 failed with error code: 1
        slurmstepd: error: pyxis: failed to import docker image
        slurmstepd: error: pyxis: printing enroot log file:
        slurmstepd: error: pyxis:     [INFO] Authentication succeeded
        slurmstepd: error: pyxis:     FATAL ERROR:Failed to read file rootfs/etc/.pwd.lock
        slurmstepd: error: pyxis: couldn't start container
        slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
        srun: error: node1: task 0: Exited with exit code 1
        """,
    "nccl-peer-unreachable": """
        h:39964:40075 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to \
10.0.0.2<45763> failed : Software caused connection abort
        h:39964:40075 [0] NCCL INFO misc/socket.cc:564 -> 2
        h:39964:40075 [0] proxy.cc:1519 NCCL WARN [Proxy Service 0] Failed to execute operation \
Connect from rank 0, retcode 2
        h:39964:40044 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote \
peer node1<57557>
        h: Test NCCL failure common.cu:958 'internal error - please report this issue / '
        """,
}


@pytest.mark.parametrize("failure", REPORTS)
def test_a_report(failure: str) -> None:
    assert named(REPORTS[failure]) == failure
