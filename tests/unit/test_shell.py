"""`hpc-amp shell`, as far as it needs neither a terminal nor a scheduler; the rest is in
tests/cluster/test_shell.py."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.environment import require_program, working_directory
from support.stubs import REPORT, StubHost, read_reports

from hpc_amp.errors import UsageError
from hpc_amp.jobs.render import render_session
from hpc_amp.jobs.session import Session, of_config, of_run
from hpc_amp.schedulers import get_scheduler
from hpc_amp.schedulers.base import Interactive, without_options
from hpc_amp.schedulers.slurm.scheduler import _LONG_OPTIONS, _OF_BATCH_JOBS

SCHEDULERS = ["slurm", "pbs", "cobalt", "local"]
JOB: dict[str, Any] = {
    "name": "demo",
    "run": ["python", "train.py"],
    "job": {
        "nodes": 2,
        "gpus_per_node": 4,
        "cpus_per_gpu": 8,
        "walltime": "30m",
        "memory": "64GiB",
        "queue": "debug",
        "account": "project",
    },
}


def session(host: StubHost, scheduler: str, *overrides: str, **more: Any) -> Session:
    """The session of a job like JOB, at a site of that scheduler."""
    (host.work / "site.yaml").write_text(yaml.safe_dump({"scheduler": scheduler}))
    job = {**JOB["job"], **more.pop("job", {})}
    host.write_job({**JOB, "site": "./site.yaml", **more, "job": job})
    with working_directory(host.work):
        return of_config(Path("job.yaml"), overrides, [])


def asked(one: Session, environ: dict[str, str] | None = None) -> Interactive:
    """What it asks of its scheduler, on a terminal."""
    script = one.folder / "shell.sh"
    scheduler = one.plan.scheduler
    return scheduler.interactive(one.request, script, environ or {}, terminal=True)


# ---- what the scheduler is asked for -------------------------------------------------------------


def test_slurm_is_asked_for_one_node_and_one_process(host: StubHost) -> None:
    one = session(host, "slurm")

    how = asked(one, {"SLURM_CONF": "/c", "TERM": "xterm", "SBATCH_QOS": "x", "SLURM_NTASKS": "9"})

    assert how.command == [
        "srun", "--job-name=demo", f"--chdir={one.folder}", "--nodes=1", "--ntasks-per-node=1",
        "--cpus-per-task=32", "--gpus-per-node=4", "--mem=65536M", "--time=00:30:00",
        "--partition=debug", "--account=project", "--nodes=1", "--ntasks=1", "--mpi=none", "--pty",
        "/bin/bash", "-l", f"{one.folder}/shell.sh",
    ]  # fmt: skip
    assert not how.is_watched
    assert {**how.environ, "PATH": ""} == {"SLURM_CONF": "/c", "TERM": "xterm", "PATH": ""}


def test_pbs_is_asked_for_one_node_and_one_process(host: StubHost) -> None:
    one = session(host, "pbs")

    how = asked(one)

    assert how.command == [
        "qsub", "-I", "-N", "demo", "-l", "select=1:ncpus=32:mpiprocs=1:ngpus=4:mem=65536mb",
        "-l", "place=scatter", "-l", "walltime=00:30:00", "-q", "debug", "-A", "project",
        "-W", f"umask={one.plan.umask:03o}", "--", "/bin/bash", "-l", f"{one.folder}/shell.sh",
    ]  # fmt: skip
    assert how.is_watched and not how.typed


def test_cobalt_is_asked_for_one_node_and_told_what_to_run(host: StubHost) -> None:
    one = session(host, "cobalt")

    how = asked(one)

    assert how.command == [
        "qsub", "-I", "--jobname", "demo", "-n", "1", "-t", "30", "--cwd", str(one.folder),
        "-q", "debug", "-A", "project",
    ]  # fmt: skip
    assert how.typed == f"exec /bin/bash -l {one.folder}/shell.sh"


def test_nobody_is_asked_for_this_machine(host: StubHost) -> None:
    one = session(host, "local", "job.queue=null", "job.account=null")

    assert asked(one).command == ["/bin/bash", f"{one.folder}/shell.sh"]


def test_options_of_site_and_job_are_read_as_in_a_header(host: StubHost) -> None:
    directives = ["--qos='a b'", r"--comment='a\\b'", "--gres=gpu:a100:2", "--ntasks=16"]
    skipped = ["--gpus-per-node", "--mem"]

    added = {"directives": directives, "skip_directives": skipped}
    command = asked(session(host, "slurm", job=added)).command

    assert {"--qos=a b", r"--comment=a\b", "--gres=gpu:a100:2"} < set(command)
    assert command.index("--ntasks=16") < command.index("--ntasks=1")  # the last one counts
    assert not [word for word in command if word.startswith(("--gpus-per-node", "--mem="))]

    pbs = asked(session(host, "pbs", job={"directives": ["-l 'filesystems=home eagle'"]})).command
    assert pbs[pbs.index("filesystems=home eagle") - 1] == "-l"
    cobalt = asked(session(host, "cobalt", job={"directives": ["--attrs filesystems=home"]}))
    assert cobalt.command[-2:] == ["--attrs", "filesystems=home"]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--output=x", "-N2"], ["-N2"]),
        (["--output", "x", "-N2"], ["-N2"]),
        (["-o", "x", "-N", "2"], ["-N", "2"]),
        (["-ox", "--requeue", "--qos=a"], ["--qos=a"]),
        (["--outputs=x", "--exclusive"], ["--outputs=x", "--exclusive"]),
        (["-e"], []),
    ],
)
def test_options_of_batch_jobs_go_with_their_values(words: list[str], kept: list[str]) -> None:
    assert without_options(words, _OF_BATCH_JOBS, _LONG_OPTIONS) == kept


@pytest.mark.parametrize(
    ("scheduler", "variable"),
    [("slurm", "SLURM_JOB_ID"), ("pbs", "PBS_JOBID"), ("cobalt", "COBALT_JOBID")],
)
def test_an_allocation_is_used(scheduler: str, variable: str) -> None:
    one, script = get_scheduler(scheduler), Path("/s/shell.sh")
    here = {variable: "42", "SLURMD_NODENAME": "n1", "X": "kept"}

    assert one.inside(script, {"SLURMD_NODENAME": "n1"}, terminal=True) is None
    how = one.inside(script, here, terminal=True)
    assert how == Interactive(["/bin/bash", "/s/shell.sh"], here)


def test_a_shell_of_salloc_on_the_login_node_is_not_on_the_node() -> None:
    how = get_scheduler("slurm").inside(Path("/s/x.sh"), {"SLURM_JOB_ID": "42"}, terminal=False)

    assert how is not None
    assert how.command == [
        "srun", "--jobid=42", "--overlap", "--cpu-bind=none", "--nodes=1", "--ntasks=1",
        "--mpi=none", "--quit-on-interrupt", "/bin/bash", "/s/x.sh",
    ]  # fmt: skip


@pytest.mark.parametrize("scheduler", ["pbs", "cobalt"])
def test_a_scheduler_that_needs_a_terminal_says_so(host: StubHost, scheduler: str) -> None:
    one = session(host, scheduler)

    with pytest.raises(UsageError) as error:
        one.plan.scheduler.interactive(one.request, Path("/s"), {}, terminal=False)

    assert "needs a terminal, for input and for output" in str(error.value)


# ---- the script ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_script_passes_shellcheck(host: StubHost, scheduler: str) -> None:
    require_program("shellcheck")
    account = [] if scheduler != "local" else ["job.queue=null", "job.account=null"]
    one = session(host, scheduler, f"container.image={host.image}", *account)
    for both, command in ((False, []), (True, ["echo", "it's $HOME"])):
        text = render_session(one.plan, one.folder, command, records_status=both, limited=both)
        result = subprocess.run(
            ["shellcheck", "--exclude=SC2016", "-"],  # a user's words may have a `$`
            input=text,
            text=True,
            capture_output=True,
            timeout=300,
        )
        assert result.stdout == "", text


def test_a_command_runs_here_with_what_a_rank_has(host: StubHost) -> None:
    env = {"TEXT": "$(touch pwned) 'a\" \\"}
    host.write_job({**JOB, "site": "slurm", "container": {"image": str(host.image), "env": env}})
    words = ["", "a b", "it's", "$(touch pwned)", "`id`", "--", "-x", "line\nbreak", "ünï💥"]

    result = host.hpc_amp(
        "shell", "--here", "--", "python", "-I", "-S", str(REPORT), "out", *words,
        HPC_AMP_WORLD_SIZE="16", HPC_AMP_PPN="4", OMPI_COMM_WORLD_RANK="3",
        OMPI_COMM_WORLD_SIZE="16", OMPI_COMM_WORLD_LOCAL_RANK="3", PYTHONPATH_="x", RANK="7",
    )  # fmt: skip

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    (report,) = read_reports(host.work / "out")
    assert report.argv == words and report.cwd == str(host.work)
    inside = report.environ
    assert inside["TEXT"] == env["TEXT"]
    world = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    assert [inside[name] for name in world] == ["0", "1", "0", "1"]
    assert inside["OMP_NUM_THREADS"] == "8" and inside["PYTHONNOUSERSITE"] == "1"
    assert not {"HPC_AMP_WORLD_SIZE", "HPC_AMP_PPN", "HPC_AMP_STOP_AT"} & set(inside)
    assert inside["HPC_AMP_JOB"].startswith(f"{host.work}/runs/demo/shell-")
    assert not list(host.work.rglob("pwned"))
    assert not (host.work / "runs" / "demo").exists()
    (call,) = [words for words in host.calls("apptainer") if words[0] == "exec"]
    assert call[1:3] == ["--no-eval", "--nv"]


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_command_s(host: StubHost, command: str, status: int) -> None:
    result = host.hpc_amp("shell", "--here", "site=local", "--", "sh", "-c", command)

    assert (result.returncode, result.stderr) == (status, "")


QRSH = """#!/bin/bash
for word; do words+=" $word"; done
eval "/bin/bash ${words##*/bin/bash}" # on a node, a shell reads the words
echo 'Your "qrsh" request could not be scheduled, try again later.'
exit 1
"""


@pytest.mark.parametrize(("command", "status"), [("exit 5", 5), ("exit 1", 1), ("exit 0", 0)])
def test_the_exit_code_is_not_the_one_of_qrsh(host: StubHost, command: str, status: int) -> None:
    """Seen with Grid Engine 8.1.9 on a busy machine: the job had ended too early for qrsh."""
    qrsh = host.bin / "qrsh"
    qrsh.write_text(QRSH)
    qrsh.chmod(0o755)
    (host.work / "site.yaml").write_text(yaml.safe_dump({"scheduler": "gridengine"}))

    result = host.hpc_amp("shell", "site=./site.yaml", "--", "sh", "-c", f"echo hi; {command}")

    assert result.returncode == status
    assert result.stdout.splitlines()[0] == "hi"
    said = f"hpc-amp: the session has ended with exit status {status}"
    assert (said in result.stderr) == (status != 1)


@pytest.mark.parametrize(("end", "status"), [("exit 0", 129), ("exit 7", 7)])
def test_a_window_that_was_closed(host: StubHost, end: str, status: int) -> None:
    """Seen with Grid Engine: a shell took it for the end of its input, and so ended well."""
    qrsh = host.bin / "qrsh"
    qrsh.write_text("#!/bin/bash\ntrap : INT\nexport WINDOW=$PPID\n" + QRSH)
    qrsh.chmod(0o755)
    (host.work / "site.yaml").write_text(yaml.safe_dump({"scheduler": "gridengine"}))

    result = host.hpc_amp(
        "shell", "site=./site.yaml", "--", "sh", "-c", f'kill -HUP "$WINDOW"; {end}'
    )

    assert result.returncode == status
    said = f"hpc-amp: the session has ended with exit status {status}"
    assert (said in result.stderr) == (status == 7)


LATE = """
import os, signal, sys
while os.path.exists("/proc/" + sys.argv[2]):
    pass
os.kill(int(sys.argv[1]), signal.SIGINT)
"""
ENDS_BEFORE_A_SIGNAL = f"""
import os, subprocess, sys, time
words = [sys.executable, "-S", "-c", {LATE!r}, str(os.getppid()), str(os.getpid())]
subprocess.Popen(words, start_new_session=True)
time.sleep(0.3)  # it is there
raise SystemExit(9)
"""


def test_ctrl_c_that_comes_late_does_not_change_how_the_command_ended(host: StubHost) -> None:
    ended = host.hpc_amp("shell", "--here", "--", "python", "-c", ENDS_BEFORE_A_SIGNAL)
    assert ended.returncode == 9, ended.stderr


def test_input_and_output_may_be_pipes(host: StubHost) -> None:
    host.write_job({**JOB, "site": "slurm"})
    words = [sys.executable, "-m", "hpc_amp", "shell", "--here", "--", "tr", "a-z", "A-Z"]

    result = subprocess.run(
        words, cwd=host.work, env=host.environ(), input="abc\n", text=True, capture_output=True
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "ABC\n", "")


def test_what_the_session_wrote_is_kept(host: StubHost) -> None:
    host.write_job({**JOB, "site": "slurm"})
    write = 'mkdir "$(dirname "$HPC_AMP_JOB")/checkpoints"'

    result = host.hpc_amp("shell", "--here", "--", "sh", "-c", write)

    (kept,) = (host.work / "runs" / "demo").iterdir()
    assert result.stderr == f"kept {kept}: the session wrote checkpoints there\n"
    assert (kept / "checkpoints").is_dir() and (kept / "job.json").exists()
    assert host.hpc_amp("status").stdout == "no runs in runs\n"


def test_code_is_worked_on_where_it_is(host: StubHost) -> None:
    (host.work / "mine").mkdir()
    host.write_job({**JOB, "site": "slurm", "code": "mine"})

    result = host.hpc_amp("shell", "--here", "--", "touch", "edited")

    assert result.returncode == 0, result.stderr
    assert (host.work / "mine" / "edited").exists()


def test_a_program_that_is_not_there(host: StubHost) -> None:
    result = host.hpc_amp("shell", "--here", "site=local", "--", "no-such-program")

    assert result.returncode == 2
    assert result.stderr.startswith("hpc-amp: cannot run 'no-such-program' in ")


def test_a_setup_that_fails_ends_the_session(host: StubHost) -> None:
    result = host.hpc_amp("shell", "--here", "site=local", "job.setup=exit 9", "--", "true")

    assert result.returncode == 9
    assert not (host.work / "runs" / "shell").exists()


# ---- a run's own session -------------------------------------------------------------------------


def test_a_run_s_session_has_its_job_and_its_code(host: StubHost) -> None:
    (host.work / "mine").mkdir()
    run_dir = host.create({"run": ["true"], "code": "mine", "container": {"env": {"A": "run's"}}})
    (host.work / "mine" / "later").touch()

    result = host.hpc_amp(
        "shell", str(run_dir), "job.walltime=5m", "--here", "--", "sh", "-c",
        'echo "$A $PWD $HPC_AMP_JOB $PYTHONPATH"; ls',
    )  # fmt: skip

    expected = f"run's {run_dir}/code {run_dir}/job.json {run_dir}/src\n"
    assert (result.stdout, result.stderr) == (expected, "")
    assert not list(run_dir.glob("shell-*"))


def test_a_run_s_request_may_differ(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "job": {"gpus_per_node": 2, "nodes": 2}})

    with working_directory(host.work):
        command = asked(of_run(run_dir, ["job.walltime=5m", "job.queue=debug"], [])).command

    assert {"--time=00:05:00", "--partition=debug", "--gpus-per-node=2", "--nodes=1"} < set(command)
    with pytest.raises(UsageError) as error:
        of_run(run_dir, ["container.env.A=1"], [])
    assert "only keys of job can be set" in str(error.value)


# ---- --print -------------------------------------------------------------------------------------


def printed(host: StubHost, *words: str) -> list[str]:
    """The lines of --print, which must have left nothing behind and called nobody."""
    before = sorted(host.work.rglob("*"))
    result = host.hpc_amp("shell", "--print", *words)
    assert result.returncode == 0, result.stderr
    assert sorted(host.work.rglob("*")) == before
    assert host.calls("srun") == [] and host.calls("apptainer") == []
    return result.stdout.splitlines()


def test_print_shows_a_line_that_works(host: StubHost) -> None:
    host.install_container("singularity", "singularity-ce version 4.1.0")
    env = {"TEXT": "a 'b' $(touch pwned) \\"}
    container = {"image": str(host.image), "env": env, "runtime": "singularity"}
    host.write_job({**JOB, "site": "slurm", "container": container})

    *comments, line = printed(host, "--", "sh", "-c", 'echo "$TEXT|$RANK|$PWD"')

    assert [text[:2] for text in comments] == ["# "]
    assert comments[0].startswith("# a node of the job's kind: srun --job-name=demo ")
    assert comments[0].endswith(" --pty bash -l")
    assert line.startswith("singularity exec --nv -B ")
    shown = subprocess.run(
        ["bash", "-c", line], env=host.environ(), cwd="/", text=True, capture_output=True
    )
    assert shown.stdout == f"{env['TEXT']}|0|{host.work}\n", shown.stderr
    assert not list(host.work.rglob("pwned"))


def test_print_without_a_command_is_a_shell(host: StubHost) -> None:
    host.write_job({**JOB, "site": "slurm", "container": {"image": str(host.image)}})

    line = printed(host, "--here")[-1]

    words = shlex.split(line)
    assert words[:3] == ["apptainer", "exec", "--nv"] and words[-2:] == ["bash", "--norc"]
    assert "--no-eval" not in words
    assert words[words.index(str(host.image)) + 1] == "env"
    assert len(printed(host, "--here")) == 1


@pytest.mark.parametrize("scheduler", ["pbs", "cobalt"])
def test_print_says_how_to_get_a_node(host: StubHost, scheduler: str) -> None:
    session(host, scheduler)

    comment = printed(host)[0]

    assert comment.startswith("# a node of the job's kind: qsub -I ")
    assert "bash" not in comment
    assert ("walltime=00:30:00" if scheduler == "pbs" else "-t 30 ") in comment


def test_print_has_what_the_site_sets_up(host: StubHost) -> None:
    site = {"scheduler": "local", "setup": "module load apptainer\n", "env": {"PROXY": "a b"}}
    (host.work / "site.yaml").write_text(yaml.safe_dump(site))

    lines = printed(host, "site=./site.yaml", f"container.image={host.image}")

    assert lines[:2] == ["export PROXY='a b'", "module load apptainer"]
    assert "'PROXY=a b'" in lines[2]


# ---- what is meant -------------------------------------------------------------------------------


def test_job_yaml_is_the_default(host: StubHost) -> None:
    image = f"--image={host.image}"
    assert f" {host.image} env " in printed(host, "--here", image)[-1]
    host.write_job({**JOB, "site": "slurm", "container": {"env": {"FROM": "job.yaml"}}})
    assert " FROM=job.yaml " in printed(host, "--here")[-1]
    host.write_job({**JOB, "site": "slurm", "container": {"env": {"FROM": "other"}}}, "o=o.yaml")
    assert " FROM=other " in printed(host, "--here", "o=o.yaml")[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no terminal to type into; call it from one, or give a command"),
        (("--",), "There is no command after '--'."),
        (
            ("job.yaml", "python", "x.py"),
            "'python' does not have the form KEY=VALUE; put a command after `--`",
        ),
        (("none.yaml",), "none.yaml: there is no such job file"),
        (("nothing",), "there is no run 'nothing'"),
        (("job.yaml", "job.wall=1m"), "override 'job.wall=1m': unknown key"),
        (("job.yaml", "container.image=none.sif", "--", "true"), "none.sif"),
    ],
)
def test_errors_are_one_line(host: StubHost, words: tuple[str, ...], said: str) -> None:
    host.write_job({**JOB, "site": "slurm"})

    result = host.hpc_amp("shell", *words)

    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("hpc-amp: ") and said in line
    assert not (host.work / "runs").exists()
    assert host.calls("srun") == []


def test_help_says_what_follows(host: StubHost) -> None:
    shown = host.hpc_amp("shell", "--help").stdout

    assert "Usage: hpc-amp shell [OPTIONS] [CONFIG|RUN] [KEY=VALUE]... [-- COMMAND...]" in shown
    assert "shell" in host.hpc_amp("--help").stdout


def test_job_json_knows_the_interpreter(host: StubHost) -> None:
    run_dir = host.create({"run": ["true"], "container": {"python": "venv/bin/python"}})

    assert (
        json.loads((run_dir / "job.json").read_text())["python"] == f"{host.work}/venv/bin/python"
    )


def test_a_run_whose_site_names_another_runtime_meanwhile(host: StubHost) -> None:
    """The run directory has the host code of the runtime that it was submitted with."""
    image = host.work / "image"
    (image / "bin").mkdir(parents=True)
    (image / "bin" / "sh").write_text("")
    site = host.work / "site.yaml"
    site.write_text("scheduler: slurm\nruntime: none\n")
    (host.work / "train.py").touch()
    host.write_job({**JOB, "site": "./site.yaml", "container": {"image": "image"}})
    submitted = host.hpc_amp("submit", "job.yaml", "--json")
    run_dir = Path(json.loads(submitted.stdout)["run_dir"])
    site.write_text("scheduler: slurm\nruntime: charliecloud\n")

    with working_directory(host.work), pytest.raises(UsageError, match="runtime charliecloud"):
        of_run(run_dir, [], [])
