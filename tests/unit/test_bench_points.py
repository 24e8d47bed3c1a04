"""`hpc-amp bench`: what is run, in which order, and the script that runs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.environment import require_program, working_directory
from support.stubs import StubHost

from hpc_amp.bench.plan import MODE, BenchOptions, plan_bench, usual_precisions
from hpc_amp.bench.view import BENCH
from hpc_amp.campaigns.folder import Campaign
from hpc_amp.campaigns.plan import CampaignPlan
from hpc_amp.campaigns.submit import describe, parts_of, write, write_script
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.jobs.events import read_events

JOB: dict[str, Any] = {
    "name": "small",
    "site": "slurm",
    "job": {"gpus_per_node": 0, "walltime": "10m"},
    "train": {"batch_size": 32, "epochs": 9, "checkpoint": {"keep_every": "2epochs"}},
}


def options(**changes: Any) -> BenchOptions:
    values = {"precisions": ["fp32", "bf16"], "repeats": 2, "warmup": 3, "steps": 7, "here": False}
    return BenchOptions(**{**values, **changes})


def planned(host: StubHost, *overrides: str, **changes: Any) -> CampaignPlan:
    path = host.write_job({**JOB, **changes.pop("config", {})})
    with working_directory(host.work):
        return plan_bench(path, overrides, Path("benches"), options(**changes))


def jobs(plan: CampaignPlan) -> list[dict[str, Any]]:
    return [json.loads(job)["job"] for job in plan.jobs]


def written(host: StubHost, *overrides: str, **changes: Any) -> tuple[Campaign, Path]:
    """A benchmark on disk, and the script of the job with all its runs."""
    plan = planned(host, *overrides, **changes)
    campaign = describe(BENCH, plan, submitting="one job", options={"warmup": 3, "steps": 7})
    with working_directory(host.work):
        write(campaign, plan)
    (part,) = parts_of(campaign, range(len(campaign.points)), None)
    return campaign, write_script(campaign, part)


def settings_of(plan: CampaignPlan) -> list[list[str]]:
    return [point.settings(plan.space.keys) for point in plan.space.points]


def test_every_round_has_every_precision_once(host: StubHost) -> None:
    plan = planned(host)
    order = [("fp32", 1), ("bf16", 1), ("fp32", 2), ("bf16", 2)]
    assert [(point.values[0], point.repeat) for point in plan.space.points] == order
    modes = [job["train"]["precision"]["mode"] for job in jobs(plan)]
    assert modes == ["fp32", "bf16", "fp32", "bf16"]
    assert len({json.loads(job)["run_dir"] for job in plan.jobs}) == 4
    assert len(plan.groups) == 1


def test_points_differ_in_their_precision_alone(host: StubHost) -> None:
    for job in jobs(planned(host, "train.precision.init_scale=512")):
        train = job["train"]
        assert (train["timing"]["warmup"], train["timing"]["steps"]) == (3, 7)
        assert train["max_steps"] == 10
        assert train["precision"]["init_scale"] == 512
        assert train["batch_size"] == 32
        # Nothing but steps, until the evaluation at the end.
        assert train["log_every"] == train["epochs"] == 10
        assert train["evaluate_every"] > train["epochs"]
        assert int(train["checkpoint"]["every"].removesuffix("steps")) > 10
        assert (train["checkpoint"]["keep_best"], train["checkpoint"]["keep_every"]) == (0, None)
        assert job["job"]["max_restarts"] == 0


def test_further_keys_vary_too(host: StubHost) -> None:
    plan = planned(host, "train.batch_size=32,64", repeats=1)
    assert settings_of(plan) == [
        [f"{MODE}={mode}", f"train.batch_size={batch}"]
        for mode in ("fp32", "bf16")
        for batch in (32, 64)
    ]


def test_points_come_from_a_table(host: StubHost) -> None:
    table = host.work / "points.csv"
    table.write_text("train.precision,train.batch_size\nfp32,32\nbf16,64\n")
    plan = planned(host, table=table, precisions=None, repeats=1)
    assert settings_of(plan) == [
        ["train.precision=fp32", "train.batch_size=32"],
        ["train.precision=bf16", "train.batch_size=64"],
    ]
    table.write_text("train.batch_size\n32\n64\n")
    assert len(planned(host, table=table, repeats=1).jobs) == 4, "each in both precisions"


@pytest.mark.parametrize("key", ["train.precision", MODE])
def test_a_precision_that_is_given_is_the_only_one(host: StubHost, key: str) -> None:
    plan = planned(host, f"{key}=bf16", "train.batch_size=32,64", precisions=None, repeats=1)
    assert [job["train"]["precision"]["mode"] for job in jobs(plan)] == ["bf16", "bf16"]
    with pytest.raises(UsageError, match=f"--precisions sets {MODE}, and {key} is also given"):
        planned(host, f"{key}=bf16")


def test_a_rate_that_falls_after_the_measured_steps_is_no_error(host: StubHost) -> None:
    schedule = ("train.epochs=200", "train.schedule={name: linear, decay_after: 130epochs}")
    rates = [job["train"]["schedule"] for job in jobs(planned(host, *schedule))]
    assert {(rate["name"], rate["decay_after"]) for rate in rates} == {("linear", None)}


def test_a_job_s_own_measurements_do_not_change_those_of_the_benchmark(host: StubHost) -> None:
    for job in jobs(planned(host, "train.profile.steps=[2,3]", "train.timing.seconds=5")):
        train = job["train"]
        timing = train["timing"]
        assert (train["profile"], timing["seconds"], timing["steps"]) == (None, None, 7)


def test_tf32_and_gpus(host: StubHost) -> None:
    assert "tf32" not in usual_precisions(gpus=False)
    assert usual_precisions(gpus=True)[:4] == ("fp32", "tf32", "bf16", "fp16")
    usual = [[f"{MODE}={name}"] for name in usual_precisions(gpus=False)]
    assert settings_of(planned(host, precisions=None, repeats=1)) == usual
    assert settings_of(planned(host, precisions=["fp16"] * 2, repeats=1)) == [[f"{MODE}=fp16"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precisions": ["fp32", "fp61"]}, "'fp61' is not one of fp32, tf32, bf16, fp16"),
        ({"config": {"train": {"batch_size": 0}}}, "train.batch_size: 0 is too small"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    host: StubHost, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(host, **changes)
    assert not (host.work / "benches").exists()


@pytest.mark.parametrize(
    ("axis", "different"),
    [
        ("job.gpus_per_node=1,2", "job.gpus_per_node"),
        ("launch.method=srun,torchrun", "their launchers start 1 and 4 processes on a node"),
    ],
)
def test_runs_of_one_job_ask_the_same_of_a_node(host: StubHost, axis: str, different: str) -> None:
    plan = planned(host, axis, config={**JOB, "job": {**JOB["job"], "ranks_per_node": 4}})
    with pytest.raises(UsageError) as refused:
        describe(BENCH, plan, submitting="one job", options={})
    assert f"not in what they ask of a node: {different}" in refused.value.message


def test_runs_of_one_job_may_have_launchers_that_start_the_same(host: StubHost) -> None:
    plan = planned(host, "launch.method=srun,torchrun", "job.nodes=1,2")
    assert len(plan.groups) == 4
    describe(BENCH, plan, submitting="one job", options={})


# -- the script --------------------------------------------------------------------------------


def test_one_job_is_submitted_for_all_points(host: StubHost) -> None:
    host.write_job(JOB)
    words = ("--submit", "--precisions=fp32,bf16", "--repeats=2", "--json")
    said = json.loads(host.hpc_amp("bench", "job.yaml", *words).stdout)
    assert (said["submitted"], said["job_ids"]) == (4, ["4242"])
    ((*_, script),) = host.calls("sbatch")
    assert script == f"{said['folder']}/array-1.sh"
    text = Path(script).read_text()
    assert f"#SBATCH --chdir={said['folder']}\n" in text
    assert "#SBATCH --time=00:10:00\n" in text
    assert "#SBATCH --array" not in text
    assert [line.split()[-3:] for line in text.splitlines() if line.startswith("run ")] == [
        ["all", f"{index:04d}", "launch.sh"] for index in range(4)
    ]
    assert not (Path(said["folder"]) / "points").exists()


def test_where_the_job_is_refused_nothing_stays_behind(host: StubHost) -> None:
    host.write_job(JOB)
    host.fail("sbatch", "no")
    assert host.hpc_amp("bench", "job.yaml", "--submit").returncode == 1
    assert list((host.work / "benches").iterdir()) == []


def test_the_script_passes_shellcheck(host: StubHost) -> None:
    require_program("shellcheck")
    _, script = written(host)
    result = subprocess.run(["shellcheck", script], text=True, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stdout


def stub_runs(campaign: Campaign, statuses: dict[int, int]) -> None:
    """Launch scripts that only say that they ran, and end so."""
    for point in campaign.points:
        run_dir = campaign.folder / "points" / f"{point.index:04d}"
        (run_dir / "checkpoints").mkdir(parents=True)
        status = statuses.get(point.index, 0)
        done = "finished" if status == 0 else "failed"
        (run_dir / "launch.sh").write_text(
            f'echo "ran ${{HPC_AMP_CHECKED_NODES}}"\n'
            f'echo \'{{"state": "{done}"}}\' >>{run_dir}/state.jsonl\nexit {status}\n'
        )
        (run_dir / "src").symlink_to("../../snapshot/src")


def started(script: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4242"}
    return subprocess.run(
        ["bash", script], text=True, capture_output=True, timeout=300, check=False, env=environ
    )


def said(campaign: Campaign) -> list[str]:
    """What the launch scripts said, by point."""
    logs = [campaign.point_dir(p.index) / "logs" / "job.log" for p in campaign.points]
    return [log.read_text() if log.exists() else "" for log in logs]


def test_the_script_runs_all_points_and_keeps_no_weights(host: StubHost) -> None:
    campaign, script = written(host)
    stub_runs(campaign, {})
    ended = started(script)
    assert ended.returncode == 0, ended.stderr
    # The first run has seen that the nodes are fit.
    assert said(campaign) == ["ran 0\n", *["ran all\n"] * 3]
    assert not list(campaign.folder.glob("points/*/checkpoints"))
    first, second, *_ = read_events(campaign.point_dir(0))
    assert (first["state"], first["array"], second["job_id"]) == ("submitted", 1, "4242")


def test_a_precision_that_fails_is_not_tried_again(host: StubHost) -> None:
    campaign, script = written(host)
    stub_runs(campaign, {0: 2})
    assert started(script).returncode == 1
    assert said(campaign) == ["ran 0\n", "ran 0\n", "", "ran all\n"]
    event = read_events(campaign.point_dir(2))[-1]
    assert (event["state"], event["reason"]) == (
        "failed", "not tried: a run with the same settings failed before",
    )  # fmt: skip


def test_a_job_that_is_started_again_does_the_rest(host: StubHost) -> None:
    campaign, script = written(host)
    stub_runs(campaign, {})
    started(script)
    (campaign.point_dir(1) / "state.jsonl").write_text("")
    assert started(script).returncode == 0
    assert said(campaign) == ["ran 0\n", "ran all\nran 0\n", "ran all\n", "ran all\n"]


def test_a_signal_reaches_the_point_and_no_other_one_begins(host: StubHost) -> None:
    campaign, script = written(host)
    stub_runs(campaign, {})
    (campaign.point_dir(0) / "launch.sh").write_text(
        "trap 'echo warned; exit 75' USR1\n"
        # Its parent is the shell that waits for it.
        "kill -s USR1 $(awk '/^PPid/ { print $2 }' /proc/$PPID/status)\n"
        "while :; do sleep 0.1; done\n"
    )
    assert started(script).returncode == 75
    assert said(campaign) == ["warned\n", "", "", ""]


def test_a_run_that_is_made_again_has_a_directory_of_its_own(host: StubHost) -> None:
    campaign, script = written(host)
    stub_runs(campaign, {0: 2})
    started(script)
    (part,) = parts_of(campaign, [0, 2], None)
    text = write_script(campaign, part).read_text()
    assert [line.split()[-2] for line in text.splitlines() if line.startswith("run ")] == [
        "0000-2",
        "0002-2",
    ]
    assert campaign.point_dir(0).name == "0000", "until it begins"


# -- the folder --------------------------------------------------------------------------------


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no benchmark 'x'"):
        BENCH.find("x", tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "campaign.json").write_text("{}")
    with pytest.raises(UsageError, match="does not describe a campaign: 'format' is missing"):
        BENCH.find("x", tmp_path)
    (tmp_path / "x" / "campaign.json").write_text("{")
    with pytest.raises(UsageError, match="does not describe a campaign"):
        BENCH.find(str(tmp_path / "x"), tmp_path)
