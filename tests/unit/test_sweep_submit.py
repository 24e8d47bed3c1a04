"""Handing a sweep to a scheduler: how often, with how many files, and cut how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import commands
from support.campaigns import find_sweep, group, make_campaign, planned_sweep
from support.environment import require_program, working_directory
from support.standins import CobaltStandIn, PbsStandIn, StandIn
from support.stubs import StubHost
from support.waiting import wait_until

from hpc_amp.campaigns.folder import Campaign, Group, holding, read_campaign
from hpc_amp.campaigns.parts import cut, render_part
from hpc_amp.campaigns.record import read_submitted
from hpc_amp.campaigns.status import point_statuses
from hpc_amp.campaigns.submit import describe, parts_of, submit, was_taken, write
from hpc_amp.errors import UsageError
from hpc_amp.jobs import rundir
from hpc_amp.lint.linter import lint
from hpc_amp.schedulers import base, get_scheduler
from hpc_amp.schedulers.base import UnreachableError
from hpc_amp.sweep.view import SWEEP

JOB: dict[str, Any] = {
    "name": "test",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "walltime": "10m"},
    "train": {},
}
THOUSAND = "train.seed=" + ",".join(map(str, range(1000)))


def files_below(folder: Path) -> list[str]:
    """Everything in a folder and its folders, also links and folders."""
    return sorted(
        str(Path(at, name).relative_to(folder))
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )


@pytest.fixture
def host(tmp_path: Path) -> StubHost:
    return StubHost(tmp_path)


def test_a_thousand_points_are_one_array_and_ten_files_at_most(host: StubHost) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("sweep", "job.yaml", THOUSAND, "--json")

    facts = json.loads(result.stdout)
    assert facts["submitted"] == 1000
    assert facts["job_ids"] == ["4242"]
    assert len(host.calls("sbatch")) == 1
    written = files_below(host.work / "sweeps" / "test")
    sweep_id = Path(facts["folder"]).name
    assert written == sorted(
        [
            "latest",
            sweep_id,
            *(
                f"{sweep_id}/{name}"
                for name in (
                    *("array-1.sh", "config.yaml", "jobs.jsonl", "launch.sh", "logs"),
                    *("snapshot.tar", "state.jsonl", "campaign.json"),
                )
            ),
        ]
    )
    assert len(written) <= 10
    script = (Path(facts["folder"]) / "array-1.sh").read_text()
    assert "#SBATCH --array=0-999\n" in script
    assert [call[-1] for call in host.calls("sbatch")] == [f"{facts['folder']}/array-1.sh"]


def test_what_is_written_is_read_back(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("sweep", "job.yaml", "train.seed=0,1,2", "job.nodes=1,2", "--max-parallel=5")

    sweep = find_sweep("test", host.work / "sweeps")

    assert sweep == find_sweep(str(sweep.folder), Path("elsewhere"))
    assert sweep.keys == ("train.seed", "job.nodes")
    assert [point.values for point in sweep.points][:2] == [("0", "1"), ("0", "2")]
    assert [(group.script, group.points) for group in sweep.groups] == [
        ("launch.sh", (0, 2, 4)),
        ("launch-2.sh", (1, 3, 5)),
    ]
    assert [(one.number, one.points, one.job_ids) for one in read_submitted(sweep)] == [
        (1, (0, 2, 4), ("4242",)),
        (2, (1, 3, 5), ("4243",)),
    ]
    assert sweep.at_once == 5


def test_a_dry_run_prints_points_and_the_bytes_to_be_submitted(host: StubHost) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("sweep", "job.yaml", "train.seed=0,1", "job.nodes=2,4", "--dry-run")

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["point  seed  nodes", "    0  0     2"]
    names = [line.rpartition("/")[2] for line in lines if line.startswith("==== ")]
    assert names == ["array-1.sh", "array-2.sh", "launch.sh", "launch-2.sh"]
    assert lines.count("#SBATCH --array=0-1") == 2
    assert host.calls("sbatch") == []
    assert not (host.work / "sweeps").exists()


def test_a_refused_sweep_leaves_nothing_behind(host: StubHost) -> None:
    host.write_job(JOB)
    host.fail("sbatch", "Invalid account")

    result = host.hpc_amp("sweep", "job.yaml", "train.seed=0,1")

    assert result.returncode == 1
    assert result.stderr.startswith(
        "hpc-amp: sbatch refused the job: sbatch: error: Invalid account"
    )
    assert files_below(host.work / "sweeps") == []


def test_a_refused_sweep_leaves_the_name_to_the_one_before(host: StubHost) -> None:
    host.write_job(JOB)
    assert host.hpc_amp("sweep", "job.yaml", "train.seed=0,1").returncode == 0
    before = find_sweep("test", host.work / "sweeps").folder
    host.fail("sbatch", "Invalid account")

    assert host.hpc_amp("sweep", "job.yaml", "train.seed=2,3").returncode == 1

    assert find_sweep("test", host.work / "sweeps").folder == before


def test_a_sweep_that_cannot_be_recorded_leaves_the_name_to_the_one_before(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = host.write_job(JOB)
    assert host.hpc_amp("sweep", "job.yaml", "train.seed=0,1").returncode == 0
    before = find_sweep("test", host.work / "sweeps").folder

    def full(*arguments: object) -> None:
        raise UsageError("no space left")

    monkeypatch.setattr("hpc_amp.campaigns.submit.record_submitted", full)
    with working_directory(host.work):
        planned = planned_sweep(config, "train.seed=2,3")
        sweep = describe(SWEEP, planned)
        write(sweep, planned)
        with pytest.raises(UsageError, match="no space left"):
            submit(sweep, parts_of(sweep, [0, 1], None))
    assert not was_taken(sweep)
    rundir.discard(sweep.folder)  # as the command does then

    assert find_sweep("test", host.work / "sweeps").folder == before


@pytest.mark.parametrize("verb", ["status", "report", "continue", "cancel"])
@pytest.mark.parametrize("how", ["folder", "name"])
def test_a_sweep_of_an_older_version_is_one_line(host: StubHost, verb: str, how: str) -> None:
    folder = host.work / "sweeps" / "test" / "20261127-223455-kqzf"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text('{"schema": 2}')

    refused = host.hpc_amp("sweep", verb, str(folder) if how == "folder" else "test")

    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert f"{folder.name} was made by an older hpc-amp, and this one does not read" in line


def test_a_campaign_of_another_command_is_named(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("sweep", "job.yaml", "train.seed=0,1")
    folder = find_sweep("test", host.work / "sweeps").folder
    content = json.loads((folder / "campaign.json").read_text())
    (folder / "campaign.json").write_text(json.dumps({**content, "view": "bench"}))

    refused = host.hpc_amp("sweep", "status", "test")

    assert refused.returncode == 2
    assert "was started by hpc-amp bench; use hpc-amp bench" in refused.stderr


def test_a_sweep_of_a_version_to_come_is_refused(host: StubHost) -> None:
    host.write_job(JOB)
    assert host.hpc_amp("sweep", "job.yaml", "train.seed=0,1").returncode == 0
    folder = find_sweep("test", host.work / "sweeps").folder
    content = json.loads((folder / "campaign.json").read_text())
    (folder / "campaign.json").write_text(json.dumps({**content, "format": 99}))

    with pytest.raises(UsageError, match="format 99"):
        read_campaign(folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.seed=0"], "nothing varies"),
        (["train.seed=0,1", "--points", "none.csv"], "none.csv cannot be read"),
        (["train.sed=0,1"], "did you mean train.seed?"),
        (["train.seed=0,1", "job.nodes=1,2", "--max-parallel=1"], "give --max-parallel 2 or more"),
    ],
)
def test_bad_input_is_one_line(host: StubHost, words: list[str], said: str) -> None:
    host.write_job(JOB)

    result = host.hpc_amp("sweep", "job.yaml", *words)

    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (host.work / "sweeps").exists()


def test_the_users_code_is_taken_along_without_sweeps(host: StubHost, tmp_path: Path) -> None:
    (host.work / "code.py").write_text("print(1)\n")
    (host.work / "__pycache__").mkdir()
    (host.work / "__pycache__" / "code.pyc").write_text("")
    host.write_job({**JOB, "code": "."})
    for _ in range(2):
        assert host.hpc_amp("sweep", "job.yaml", "train.seed=0,1").returncode == 0

    newest = find_sweep("test", host.work / "sweeps").folder
    names = subprocess.run(
        ["tar", "-tf", newest / "snapshot.tar"], text=True, capture_output=True, check=True
    ).stdout.split()

    assert "code/code.py" in names
    assert "src/__main__.py" in names
    assert "src/hpc_amp/train/engine.py" in names
    assert not [name for name in names if "sweeps" in name.split("/")[1:2] or "__pycache__" in name]


# ---- cutting -------------------------------------------------------------------------------------


def campaign(*groups: Group, **changes: Any) -> Campaign:
    points = sum(len(one.points) for one in groups)
    values = [(str(point),) for point in range(points)]
    return make_campaign(Path(), ["train.seed"], values, groups=groups, **changes)


def test_arrays_are_no_larger_than_the_scheduler_takes() -> None:
    made = campaign(group(*range(5)), group(5, 6))
    parts = cut(made, range(7), largest=3, first_number=4, at_once=None)

    assert [(part.number, part.points) for part in parts] == [
        (4, (0, 1, 2)),
        (5, (3, 4)),
        (6, (5, 6)),
    ]


def test_only_wanted_points_are_in_them() -> None:
    made = campaign(group(*range(5)), group(5))
    (part,) = cut(made, {1, 4}, largest=9, first_number=1, at_once=None)

    assert part.points == (1, 4)


def test_together_they_stay_within_the_bound() -> None:
    made = campaign(group(*range(9)))
    parts = cut(made, range(9), largest=3, first_number=1, at_once=5)

    assert [part.at_once for part in parts] == [2, 2, 1]
    with pytest.raises(UsageError):
        cut(made, range(9), largest=3, first_number=1, at_once=2)


def test_what_earlier_arrays_may_run_counts_too() -> None:
    made = campaign(group(*range(9)))
    parts = cut(made, range(9), largest=5, first_number=3, at_once=7, in_use=4)

    assert [part.at_once for part in parts] == [2, 1]
    with pytest.raises(UsageError) as refused:
        cut(made, range(9), largest=5, first_number=3, at_once=5, in_use=4)
    assert "2 arrays, and earlier arrays may run 4: 5 points at once is less" in str(refused.value)
    assert "give --max-parallel 6 or more" in str(refused.value)


def test_jobs_of_their_own_come_in_the_order_of_the_points() -> None:
    small, large = group(0, 2), group(1, 3, nodes=4)
    made = campaign(small, large, submitting="jobs")
    parts = cut(made, {3, 1, 2}, largest=1, first_number=1, at_once=None)

    assert [(part.number, part.points) for part in parts] == [(1, (1,)), (2, (2,)), (3, (3,))]
    assert [part.group for part in parts] == [large, small, large]


def test_one_job_has_the_nodes_of_the_largest_run() -> None:
    small, large = group(0, 2), group(1, 3, nodes=4)
    made = campaign(small, large, submitting="one job")
    (part,) = cut(made, {0, 1, 3}, largest=1, first_number=1, at_once=None)
    (rest,) = cut(made, {2}, largest=1, first_number=2, at_once=None)

    assert (part.points, part.group) == ((0, 1, 3), large)
    assert (rest.points, rest.group) == ((2,), small)


def test_the_site_says_how_large_an_array_may_be(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = host.bin / "scontrol"
    program.unlink()
    program.write_text("#!/bin/sh\necho 'MaxArraySize            = 401'\n")
    program.chmod(0o755)
    host.write_job(JOB)

    result = host.hpc_amp("sweep", "job.yaml", THOUSAND, "--max-parallel=9", "--json")

    folder = Path(json.loads(result.stdout)["folder"])
    assert json.loads(result.stdout)["job_ids"] == ["4242", "4243", "4244"]
    headers = [
        line
        for number in (1, 2, 3)
        for line in (folder / f"array-{number}.sh").read_text().splitlines()
        if line.startswith(("#SBATCH --array", "points="))
    ]
    assert [header.partition(" #")[0] for header in headers if header[0] == "p"] == [
        "points=({0000..0400})",
        "points=({0401..0801})",
        "points=({0802..0999})",
    ]
    assert [header for header in headers if header[0] == "#"] == [
        "#SBATCH --array=0-400%3",
        "#SBATCH --array=0-400%3",
        "#SBATCH --array=0-197%3",
    ]


def test_slurms_default_counts_where_scontrol_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert get_scheduler("slurm").arrays().largest() == 1001


# ---- other schedulers ----------------------------------------------------------------------------


def scripts(folder: Path, site: str, *overrides: str, at_once: int | None = None) -> list[str]:
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "site": site, "code": str(folder)}))
    with working_directory(folder):
        sweep = describe(SWEEP, planned_sweep(Path("job.yaml"), *overrides), at_once=at_once)
        parts = parts_of(sweep, range(len(sweep.points)), at_once)
    return [render_part(sweep, part) for part in parts]


@pytest.mark.parametrize("site", ["slurm", "pbs", "cobalt", "local"])
def test_array_scripts_pass_our_linter_and_shellcheck(tmp_path: Path, site: str) -> None:
    (script,) = scripts(tmp_path, site, "train.seed=0,1,2")

    assert [str(finding) for finding in lint(script.encode(), "array-1.sh")] == []
    require_program("shellcheck")
    result = subprocess.run(
        ["shellcheck", "-"], input=script, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stdout


def test_pbs_gets_an_array_with_a_log_for_each_task(tmp_path: Path) -> None:
    (script,) = scripts(tmp_path, "pbs", "train.seed=0,1,2", at_once=2)

    header = [line for line in script.splitlines() if line.startswith("#PBS ")]
    assert "#PBS -J 0-2%2" in header
    (log,) = (line for line in header if line.startswith("#PBS -o "))
    assert log.endswith("/logs/^array_index^.log")


def test_pbs_takes_no_array_of_one(tmp_path: Path) -> None:
    alone, other = scripts(tmp_path, "pbs", "job.nodes=1,2")

    assert "#PBS -J" not in alone + other
    assert "logs/job.log\n" in alone
    assert get_scheduler("pbs").arrays().task_id(["490.head"], 0, 1) == "490.head"
    assert get_scheduler("pbs").arrays().task_id(["490[].head"], 7, 9) == "490[7].head"


def hpc_amp_at(stand_in: StandIn, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of a user of the stand-in."""
    return commands.hpc_amp(*words, cwd=stand_in.work, environ=stand_in.environ())


def pbs_sweep(pbs: PbsStandIn, command: str, *words: str) -> Campaign:
    job = {**JOB, "site": "pbs", "run": ["sh", "-c", command], "launch": {"preflight": False}}
    del job["train"]
    (pbs.work / "job.yaml").write_text(yaml.safe_dump(job))
    result = hpc_amp_at(pbs, "sweep", "job.yaml", "container.env.A=x,y,z", *words, "--json")
    assert result.returncode == 0, result.stderr
    return read_campaign(Path(json.loads(result.stdout)["folder"]))


def states_of(pbs: PbsStandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[[Campaign], list[str]]:
    monkeypatch.setenv("PATH", pbs.environ()["PATH"])
    return lambda sweep: [status.state for status in point_statuses(sweep)]


@pytest.mark.parametrize("history", [True, False])
def test_pbs_runs_all_points_as_one_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    with PbsStandIn(tmp_path / "pbs", history=history) as pbs:
        states = states_of(pbs, monkeypatch)
        wait = f"touch {pbs.work}/at-$A; until [ -e {pbs.work}/go ]; do sleep 0.02; done"
        sweep = pbs_sweep(pbs, f'{wait}; echo "$A"; [ "$A" != y ]', "--max-parallel=2")

        (submitted,) = read_submitted(sweep)
        assert submitted.job_ids == ("0[].head",)
        wait_until((pbs.work / "at-y").exists, "the second point")
        wait_until(lambda: states(sweep) == ["running", "running", "pending"], "two points")
        (pbs.work / "go").touch()
        wait_until(lambda: states(sweep) == ["finished", "failed", "finished"], "the end of all")

        logs = [(sweep.point_dir(index) / "logs" / "job.log").read_text() for index in range(3)]
        assert ["x" in logs[0].split(), "z" in logs[2].split()] == [True, True]
        assert [job_id in logs[1] for job_id in ("0[1].head", "0[2].head")] == [True, False]
        wait_until(lambda: len(list(sweep.folder.glob("logs/*.log"))) == 3, "PBS's own logs")
        assert {path.name for path in sweep.folder.glob("logs/*.log")} == {
            "0.log", "1.log", "2.log",
        }  # fmt: skip

        # One point alone is not an array.
        again = hpc_amp_at(pbs, "sweep", "continue", "test")
        assert again.returncode == 0, again.stderr
        assert read_submitted(sweep)[1].job_ids == ("1.head",)
        wait_until(lambda: states(sweep)[1] == "failed", "the second attempt")


def test_a_sweep_on_pbs_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PbsStandIn(tmp_path / "pbs", history=False, kill_delay=0.5) as pbs:
        states = states_of(pbs, monkeypatch)
        sweep = pbs_sweep(pbs, f"touch {pbs.work}/at-$A; sleep 1000", "--max-parallel=1")
        wait_until((pbs.work / "at-x").exists, "the first point")
        wait_until(lambda: states(sweep) == ["running", "pending", "pending"], "one point")

        result = hpc_amp_at(pbs, "sweep", "cancel", "test")

        assert "cancelled 3 points" in result.stdout, result.stderr
        wait_until(lambda: not pbs.jobs(), "the end of the array")
        assert states(sweep) == ["cancelled"] * 3
        assert not (pbs.work / "at-y").exists()


def test_a_point_on_pbs_goes_on_in_a_job_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PbsStandIn(tmp_path / "pbs", history=False) as pbs:
        (pbs.home / ".profile").write_text(f'PATH="$PATH:{pbs.bin}"\n')
        states = states_of(pbs, monkeypatch)
        sweep = pbs_sweep(pbs, '[ "$A$HPC_AMP_ATTEMPT" != y1 ] || exit 75')

        wait_until(lambda: states(sweep) == ["finished"] * 3, "the end of all")

        attempts = [
            len(list((sweep.point_dir(index) / "attempts").iterdir())) for index in range(3)
        ]
        assert attempts == [1, 2, 1]
        log = (sweep.point_dir(1) / "logs" / "job.log").read_text()
        assert "continuing in job 1.head" in log


def cobalt_sweep(cobalt: CobaltStandIn) -> subprocess.CompletedProcess[str]:
    job = {**JOB, "site": "cobalt", "run": ["sh", "-c", "echo $A"], "launch": {"preflight": False}}
    del job["train"]
    (cobalt.work / "job.yaml").write_text(yaml.safe_dump(job))
    return hpc_amp_at(cobalt, "sweep", "job.yaml", "container.env.A=x,y,z", "--json")


def test_cobalt_runs_a_job_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CobaltStandIn(tmp_path / "cobalt") as cobalt:
        result = cobalt_sweep(cobalt)

        assert result.returncode == 0, result.stderr
        facts = json.loads(result.stdout)
        assert len(set(facts["job_ids"])) == 3
        sweep = read_campaign(Path(facts["folder"]))
        monkeypatch.setenv("PATH", cobalt.environ()["PATH"])
        wait_until(
            lambda: [status.state for status in point_statuses(sweep)] == ["finished"] * 3,
            "three points to finish",
        )
        logs = [(sweep.point_dir(index) / "logs" / "job.log").read_text() for index in range(3)]
        assert [log.splitlines().count(word) for log, word in zip(logs, "xyz", strict=True)] == [
            1
        ] * 3


def test_cobalts_queue_may_take_only_some(tmp_path: Path) -> None:
    with CobaltStandIn(tmp_path / "cobalt") as cobalt:
        real = (cobalt.bin / "qsub").rename(cobalt.bin / "real-qsub")
        full = (
            f'[ "$(ls {tmp_path}/taken | wc -l)" -lt 2 ] || {{ echo "queue is full" >&2; exit 1; }}'
        )
        (tmp_path / "taken").mkdir()
        (cobalt.bin / "qsub").write_text(
            f'#!/bin/sh\n{full}\ntouch {tmp_path}/taken/$$\nexec {real} "$@"\n'
        )
        (cobalt.bin / "qsub").chmod(0o755)

        result = cobalt_sweep(cobalt)

        assert result.returncode == 1
        assert "queue is full; 2 jobs were submitted; hpc-amp sweep continue" in result.stderr
        (folder,) = (cobalt.work / "sweeps" / "test").glob("2*")
        (submitted,) = read_submitted(read_campaign(folder))
        assert len(submitted.job_ids) == 2
        # By its name, too: that is the newest sweep, not the one before it.
        assert find_sweep("test", cobalt.work / "sweeps").folder == folder.resolve()


@pytest.mark.parametrize(
    ("site", "away", "job_id"),
    [
        ("cobalt", "Proxy.py     :L#422:cn:queue-manager", "7"),
        ("pbs", "Connection refused\nqsub: cannot connect to server head (errno=111)", "7.head"),
    ],
)
def test_an_outage_is_over_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, away: str, job_id: str
) -> None:
    qsub = tmp_path / "qsub"
    qsub.write_text(
        f"#!/bin/sh\n[ ! -e {tmp_path}/away ] || "
        f"{{ rm {tmp_path}/away; echo '{away}' >&2; exit 1; }}\necho {job_id}\n"
    )
    qsub.chmod(0o755)
    (tmp_path / "away").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    assert list(get_scheduler(site).arrays().submit(tmp_path / "array-1.sh", 1)) == [job_id]
    (tmp_path / "away").touch()
    monkeypatch.setattr(base, "PAUSES", ())
    with pytest.raises(UnreachableError, match="does not reach the scheduler"):
        list(get_scheduler(site).arrays().submit(tmp_path / "array-1.sh", 1))


def test_cobalt_cannot_be_told_how_many_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        scripts(tmp_path, "cobalt", "train.seed=0,1", at_once=1)

    assert "--max-parallel needs arrays, and cobalt has none here" in str(caught.value)


# ---- what interrupts it --------------------------------------------------------------------------


def test_ctrl_c_during_a_submission_waits_for_the_schedulers_answer(host: StubHost) -> None:
    """Nor may sbatch, which is in another session than the terminal, die between taking an array
    and saying so: `continue` would submit all points once more."""
    host.write_job(JOB)
    sbatch = host.bin / "sbatch"
    sbatch.unlink()
    sbatch.write_text("#!/bin/bash\nkill -INT $PPID 0; sleep 0.2; echo 4242\n")
    sbatch.chmod(0o755)

    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "sweep", "job.yaml", "train.seed=0,1"],
        cwd=host.work, env=host.environ(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said, _ = process.communicate(timeout=300)

    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "the rest: hpc-amp sweep continue" in said
    (one,) = read_submitted(find_sweep("test", host.work / "sweeps"))
    assert (one.job_ids, one.has_ended) == (("4242",), True)


def test_one_command_at_a_time_submits_points(host: StubHost) -> None:
    host.write_job(JOB)
    host.hpc_amp("sweep", "job.yaml", "train.seed=0,1")
    sweep = find_sweep("test", host.work / "sweeps")

    for command in ("continue", "cancel"):
        with holding(sweep, "points"):
            result = host.hpc_amp("sweep", command, "test")
        assert result.returncode == 2
        assert "another command is submitting points" in result.stderr
    assert host.hpc_amp("sweep", "continue", "test").returncode == 0
    assert len(host.calls("sbatch")) == 1


def test_a_command_that_is_killed_during_a_submission(host: StubHost) -> None:
    """It can be continued: the queue tells what became of the array."""
    host.write_job(JOB)
    sbatch = host.bin / "sbatch"
    sbatch.unlink()
    sbatch.write_text("#!/bin/sh\nkill -KILL $PPID\n")
    sbatch.chmod(0o755)
    assert host.hpc_amp("sweep", "job.yaml", "train.seed=0,1").returncode == -9
    (folder,) = (host.work / "sweeps" / "test").glob("2*")
    squeue = host.bin / "squeue"
    squeue.unlink()
    squeue.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *%o*) echo "4242_[0-1]|{folder}/array-1.sh" ;;\n'
        "*) printf '4242_%s|PENDING|Priority\\n' 0 1 ;; esac\n"
    )
    squeue.chmod(0o755)

    result = host.hpc_amp("sweep", "continue", "test")  # by name: no folder was told

    assert (result.returncode, "2 points are under way" in result.stdout) == (0, True)
    assert read_submitted(read_campaign(folder))[0].job_ids == ("4242",)
