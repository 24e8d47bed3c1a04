"""The script that is submitted for many points, run as the scheduler would run it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.stubs import Ended, StubHost, events, read_reports, report_command, wait

from hpc_amp.campaigns.folder import Campaign, read_campaign
from hpc_amp.campaigns.submit import parts_of, write_script


class ArrayHost(StubHost):
    """A stub host with a sweep that was submitted."""

    def submit(self, config: dict[str, Any], *words: str, cwd: Path | None = None) -> Campaign:
        job = {"gpus_per_node": 0, "walltime": "10m", **config.pop("job", {})}
        base = {"name": "test", "site": "slurm", "job": job, "launch": {"preflight": False}}
        path = self.write_job({**base, **config})
        result = self.hpc_amp("sweep", str(path), *words, "--json", cwd=cwd)
        assert result.returncode == 0, result.stderr
        return read_campaign(Path(json.loads(result.stdout)["folder"]))

    def start_task(self, sweep: Campaign, task: int, *, array: int = 1) -> subprocess.Popen[str]:
        batch = {"SLURM_JOB_ID": str(100 + task), "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "1"}
        batch |= {"SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": str(task)}
        batch |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
        return self.start_script(sweep.folder / f"array-{array}.sh", batch)

    def start_script(self, script: Path, batch: Mapping[str, str]) -> subprocess.Popen[str]:
        """A script with the variables that the scheduler sets."""
        return subprocess.Popen(
            ["bash", str(script)],
            cwd="/",
            env=self.environ(**batch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run_task(self, sweep: Campaign, task: int, *, array: int = 1) -> Ended:
        return wait(self.start_task(sweep, task, array=array))


@pytest.fixture
def host(tmp_path: Path) -> ArrayHost:
    return ArrayHost(tmp_path)


def test_a_task_makes_the_run_of_its_point_and_becomes_it(host: ArrayHost, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    job = {"run": report_command(reports)}
    sweep = host.submit(job, "container.env.WORD=one,it's $HOME `x`")

    ended = host.run_task(sweep, 1)

    run_dir = sweep.point_dir(1)
    log = (run_dir / "logs" / "job.log").read_text()
    assert ended.status == 0, log
    assert ended.output == "", "all of it belongs into the run's own log"
    (report,) = read_reports(reports)
    assert report.environ["WORD"] == "it's $HOME `x`"
    assert report.cwd == str(host.work)
    assert events(run_dir) == ["submitted", "queued", "started", "finished"]
    assert '"job_id": "41_1"' in (run_dir / "state.jsonl").read_text()
    assert json.loads((run_dir / "job.json").read_text())["run_dir"] == str(run_dir)
    assert str(run_dir) in (run_dir / "launch.sh").read_text()
    assert "points/0000" not in (run_dir / "launch.sh").read_text()
    assert (run_dir / "src" / "hpc_amp" / "distributed" / "exec.py").is_file()
    assert (run_dir / "config.yaml").read_text() == (host.work / "job.yaml").read_text()
    assert not sweep.point_dir(0).exists()


def test_a_point_is_a_run_for_the_other_commands(host: ArrayHost) -> None:
    sweep = host.submit({"run": ["echo", "hello"]}, "container.env.A=1,2")
    host.run_task(sweep, 0)

    shown = host.hpc_amp("status", str(sweep.point_dir(0)), "--json")
    said = host.hpc_amp("logs", str(sweep.point_dir(0)))

    assert json.loads(shown.stdout)[0]["state"] == "finished"
    assert "hello\n" in said.stdout


def test_a_task_that_starts_once_more_was_submitted_once(host: ArrayHost) -> None:
    sweep = host.submit({"run": ["sh", "-c", "exit 75"]}, "container.env.A=1,2")
    (host.state / "fail-requeue").write_text("Requested operation is presently disabled")

    host.run_task(sweep, 0)
    host.run_task(sweep, 0)

    found = events(sweep.point_dir(0))
    assert found.count("submitted") == 1
    assert found.count("started") == 2


def test_a_later_array_goes_on_in_the_same_run(host: ArrayHost) -> None:
    sweep = host.submit({"run": ["sh", "-c", "echo again; exit 3"]}, "container.env.A=1,2")
    host.run_task(sweep, 1)
    run_dir = sweep.point_dir(1)
    launch = (run_dir / "launch.sh").stat()
    (part,) = parts_of(sweep, [1], None)
    assert part.number == 2
    write_script(sweep, part)

    host.run_task(sweep, 0, array=2)  # its first and only task

    assert events(run_dir).count("submitted") == 2
    assert (run_dir / "logs" / "job.log").read_text().count("again\n") == 2
    assert (run_dir / "launch.sh").stat().st_ino == launch.st_ino


def test_tasks_that_start_together_unpack_the_code_once(host: ArrayHost) -> None:
    sweep = host.submit({"run": ["true"]}, "container.env.A=0,1,2,3,4,5")

    started = [host.start_task(sweep, task) for task in range(6)]
    ended = [wait(process) for process in started]

    assert [one.status for one in ended] == [0] * 6
    assert [events(sweep.point_dir(index))[-1] for index in range(6)] == ["finished"] * 6
    assert [path.name for path in sweep.folder.glob(".*")] == []


def test_whoever_began_to_unpack_may_be_gone(host: ArrayHost) -> None:
    sweep = host.submit({"run": ["true"]}, "container.env.A=0,1")
    (sweep.folder / ".unpacking").mkdir()
    clock = host.bin / "sleep"
    clock.write_text("#!/bin/sh\n")  # time flies
    clock.chmod(0o755)

    assert host.run_task(sweep, 0).status == 0
    assert (sweep.folder / "snapshot" / "src" / "__main__.py").is_file()


def test_every_point_has_a_copy_of_the_users_code(host: ArrayHost, tmp_path: Path) -> None:
    code = tmp_path / "mine"
    code.mkdir()
    (code / "go.sh").write_text('echo "$A" >out; echo "in $PWD"\n')
    sweep = host.submit({"run": ["sh", "go.sh"], "code": str(code)}, "container.env.A=one,two")

    for task in range(2):
        assert host.run_task(sweep, task).status == 0

    outs = [(sweep.point_dir(index) / "code" / "out").read_text() for index in range(2)]
    assert outs == ["one\n", "two\n"]
    assert f"in {sweep.point_dir(1)}/code\n" in (sweep.point_dir(1) / "logs/job.log").read_text()


def test_a_task_of_pbs(host: ArrayHost, tmp_path: Path) -> None:
    """As PBS starts the second job of an array."""
    qsub = host.bin / "qsub"
    qsub.write_text("#!/bin/sh\necho '490[].head'\n")
    qsub.chmod(0o755)
    sweep = host.submit({"site": "pbs", "run": ["sh", "-c", "echo $A"]}, "container.env.A=x,y")
    (tmp_path / "nodes").write_text("n1\n")
    batch = {"PBS_JOBID": "490[1].head", "PBS_ARRAY_INDEX": "1"}
    batch["PBS_NODEFILE"] = str(tmp_path / "nodes")

    ended = wait(host.start_script(sweep.folder / "array-1.sh", batch))

    run_dir = sweep.point_dir(1)
    log = (run_dir / "logs" / "job.log").read_text()
    assert ended.status == 0, log
    assert "y\n" in log
    assert events(run_dir) == ["submitted", "queued", "started", "finished"]
    assert '"job_id": "490[1].head"' in (run_dir / "state.jsonl").read_text()


def test_any_folder_will_do(host: ArrayHost) -> None:
    folder = host.work / "a b'c|d&e*f"
    folder.mkdir()
    sweep = host.submit({"run": ["true"], "site": "local"}, "container.env.A=1,2", cwd=folder)

    assert [events(sweep.point_dir(index))[-1] for index in range(2)] == ["finished"] * 2


@pytest.mark.parametrize(
    ("name", "said"), [("jobs.jsonl", "no line"), ("snapshot.tar", "unpacked")]
)
def test_a_damaged_sweep_is_told_in_the_log(host: ArrayHost, name: str, said: str) -> None:
    sweep = host.submit({"run": ["true"]}, "container.env.A=1,2")
    (sweep.folder / name).write_text("")

    ended = host.run_task(sweep, 1)

    assert ended.status == 2
    log = (sweep.point_dir(1) / "logs" / "job.log").read_text()
    assert "hpc-amp: point 0001: " in log
    assert said in log
