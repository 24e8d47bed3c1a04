"""The folders that are known, so that commands work from any folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support import commands
from support.stubs import StubHost

from hpc_amp.jobs import known
from hpc_amp.jobs.events import record_event

JOB = "name: {}\nsite: slurm\nrun: ['true']\njob: {{gpus_per_node: 0}}\n"


def submitted(host: StubHost, folder: Path, name: str = "a", **environ: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(JOB.format(name))
    result = host.hpc_amp("submit", "job.yaml", "--json", cwd=folder, **environ)
    assert result.returncode == 0, result.stderr
    return Path(json.loads(result.stdout)["run_dir"])


def listed(host: StubHost, *words: str, cwd: Path | None = None) -> list[str]:
    result = host.hpc_amp("status", "--json", *words, cwd=cwd or host.folder)
    return [row["run_dir"] for row in json.loads(result.stdout)]


def test_runs_are_found_from_any_folder(host: StubHost) -> None:
    here, there = submitted(host, host.work / "one"), submitted(host, host.work / "two", "b")

    assert sorted(listed(host)) == sorted([str(here), str(there)])
    assert listed(host, cwd=host.work / "one") == [str(here)], "the runs of the folder itself"
    assert len(listed(host, "--all", cwd=host.work / "one")) == 2
    for target in ("b", json.loads(host.hpc_amp("status", "b", "--json").stdout)[0]["job_id"]):
        found = json.loads(host.hpc_amp("status", target, "--json", cwd=host.folder).stdout)
        assert found[0]["run_dir"] == str(there)
    record_event(there, "finished")
    assert host.hpc_amp("wait", "b", cwd=host.folder).returncode == 0
    refused = host.hpc_amp("status", "b", "--runs-dir", "one/runs")
    assert refused.returncode == 2, "only the folder that was named"


def test_a_run_here_comes_before_one_elsewhere(host: StubHost) -> None:
    here = submitted(host, host.work / "one")
    submitted(host, host.work / "two")  # newer
    (found,) = json.loads(host.hpc_amp("status", "a", "--json", cwd=host.work / "one").stdout)
    assert found["run_dir"] == str(here)


def test_a_lost_record_is_made_again_by_use(host: StubHost) -> None:
    run = submitted(host, host.work / "one")
    shutil.rmtree(host.folder / "state-home")
    assert listed(host, cwd=host.work / "one") == [str(run)]
    assert listed(host) == [str(run)]


def test_a_lost_record_is_made_again_from_the_queue(host: StubHost) -> None:
    run = submitted(host, host.work / "one")
    shutil.rmtree(host.folder / "state-home")
    (host.bin / "squeue").unlink()
    (host.bin / "squeue").write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f'  *"%i|%o"*) echo "4242|{run}/launch.sh" ;;\n  *) echo "4242|PENDING|None|N/A" ;;\nesac\n'
    )
    (host.bin / "squeue").chmod(0o755)
    assert listed(host) == [str(run)]


def test_what_was_removed_by_hand_is_gone(host: StubHost) -> None:
    run, other = submitted(host, host.work / "one"), submitted(host, host.work / "two")
    shutil.rmtree(run)
    assert listed(host) == [str(other)]
    shutil.rmtree(host.work / "two" / "runs")
    assert listed(host) == []


def test_a_folder_that_is_not_mounted_is_not_forgotten(host: StubHost) -> None:
    run = submitted(host, host.work / "disk" / "project")
    away = (host.work / "disk").rename(host.work / "away")
    assert listed(host) == []
    record = next((host.folder / "state-home" / "hpc-amp" / "folders").iterdir())
    assert record.read_text() == f"{run.parents[1]}\n"
    away.rename(host.work / "disk")
    assert listed(host) == [str(run)]


def test_it_is_forgotten_after_half_a_year(host: StubHost) -> None:
    submitted(host, host.work / "disk" / "project")
    shutil.rmtree(host.work / "disk")
    record = next((host.folder / "state-home" / "hpc-amp" / "folders").iterdir())
    assert listed(host) == [] and record.exists()
    os.utime(record, (0, 0))
    assert listed(host) == [] and not record.exists()


@pytest.mark.parametrize("place", ["/proc/none", "/dev/full"])
def test_without_a_state_folder_a_run_is_submitted_all_the_same(host: StubHost, place: str) -> None:
    run = submitted(host, host.work / "one", XDG_STATE_HOME=place)
    result = host.hpc_amp("status", "--json", cwd=host.work / "one", XDG_STATE_HOME=place)
    assert [row["run_dir"] for row in json.loads(result.stdout)] == [str(run)]


def test_commands_at_once_record_all_folders(host: StubHost) -> None:
    folders = [host.work / str(number) for number in range(6)]
    for folder in folders:
        folder.mkdir()
        (folder / "job.yaml").write_text(JOB.format("a"))
    forks = commands.server()
    words = ("-m", "hpc_amp", "submit", "job.yaml")
    started = [forks.start(*words, cwd=folder, environ=host.environ()) for folder in folders]
    assert [program.wait(300).returncode for program in started] == [0] * 6
    assert len(listed(host)) == 6
    assert len(list((host.folder / "state-home" / "hpc-amp" / "folders").iterdir())) == 6


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert known.state_folder() == tmp_path / ".local" / "state" / "hpc-amp"


def test_foreign_files_among_the_records_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    known.remember(tmp_path)
    folders = tmp_path / "hpc-amp" / "folders"
    (folders / "notes").write_text("/\n")
    (folders / ".half").write_bytes(b"\xff\xfe")
    (folders / "empty").touch()
    assert known.known_folders() == [tmp_path]


def test_a_run_of_another_cluster_is_left_to_it(host: StubHost) -> None:
    """Both have a job 4242, and share the folder."""
    one, two = host.folder / "one.conf", host.folder / "two.conf"
    one.write_text("# of one\nclustername = one\n")
    two.write_text("SlurmctldHost=x\nClusterName=two # of two\n")
    run = submitted(host, host.work, SLURM_CONF=str(one))
    (host.state / "queue").write_text("4242|RUNNING|None\n")
    before = len(host.calls("squeue"))

    def state(conf: Path) -> tuple[str, str]:
        (row,) = json.loads(host.hpc_amp("status", "--json", SLURM_CONF=str(conf)).stdout)
        return row["state"], row["reason"]

    assert state(two) == ("unknown", "it was submitted on the cluster one: ask there")
    assert len(host.calls("squeue")) == before
    for verb in ("cancel", "resume", "wait"):
        refused = host.hpc_amp(verb, str(run), SLURM_CONF=str(two))
        assert refused.returncode == 2 and host.calls("scancel") == []
        assert refused.stderr == (
            f"hpc-amp: {run} was submitted on the cluster one; log in there\n"
        )
    assert state(one)[0] == state(host.folder / "none")[0] == "running"
