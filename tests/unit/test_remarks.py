"""What somebody wrote and has no effect: directives that replace each other, variables that `setup`
exports in vain."""

import re
from pathlib import Path

import pytest

from hpc_amp.config.checks import check_job
from hpc_amp.config.sites import load_for_site
from hpc_amp.jobs.plan import make_plan
from hpc_amp.jobs.render import render
from hpc_amp.schedulers import get_scheduler


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPC_AMP_SITES", raising=False)


def plan_of(scheduler, site, job, *overrides, site_more=""):
    Path("lake.yaml").write_text(f"scheduler: {scheduler}\ndirectives: {site}\n{site_more}")
    Path("job.yaml").write_text(
        f"name: x\nsite: ./lake.yaml\nrun: [a]\njob:\n  gpus_per_node: 0\n  directives: {job}\n"
    )
    loaded, chosen = load_for_site(Path("job.yaml"), overrides)
    check_job(loaded, chosen)
    return make_plan(loaded, chosen, Path("runs/x/20261127-223455-kqzf"))


REPLACED = {
    ("slurm", "[--constraint=gpu]", "[--constraint=a100]"): "--constraint=a100 of job.directives "
    "replaces --constraint=gpu of the site; for both, write --constraint=gpu&a100 in "
    "job.directives",
    ("slurm", "[--constraint=gpu]", "[-C a100]"): "-C a100 of job.directives replaces "
    "--constraint=gpu of the site; for both, write -C gpu&a100 in job.directives",
    ("slurm", "[--constraint=a&b]", "[--constraint=c]"): "--constraint=c of job.directives "
    "replaces --constraint=a&b of the site; for both, write --constraint=a&b&c in job.directives",
    ("slurm", "['--constraint=a|b']", "[--constraint=c]"): "--constraint=c of job.directives "
    "replaces --constraint=a|b of the site",
    ("slurm", "['--constraint=[a*2]']", "[--constraint=c]"): "--constraint=c of job.directives "
    "replaces --constraint=[a*2] of the site",
    ("slurm", "[--qos=regular]", "[--qos=debug]"): "--qos=debug of job.directives replaces "
    "--qos=regular of the site",
    ("slurm", "[--gres=nvme:1]", "[--gres=gpu:2]"): "--gres=gpu:2 of job.directives replaces "
    "--gres=nvme:1 of the site; for both, write --gres=nvme:1,gpu:2 in job.directives",
    ("slurm", "[--gres=gpu:1]", "[--gres=gpu:2]"): "--gres=gpu:2 of job.directives replaces "
    "--gres=gpu:1 of the site",
    ("slurm", "[--exclude=n1]", "['-x n2']"): "-x n2 of job.directives replaces --exclude=n1 of "
    "the site; for both, write -x n1,n2 in job.directives",
    ("slurm", "[]", "[--qos=a, --qos=b]"): "of two in job.directives, --qos=b counts and --qos=a "
    "does not",
    ("slurm", "[--qos=a, --qos=b]", "[]"): "of two in the site's directives, --qos=b counts and "
    "--qos=a does not",
    ("pbs", "[-q prod -A x]", "[-q debug]"): "-q debug of job.directives replaces -q prod of the "
    "site",
    ("pbs", "['-l filesystems=home']", "['-l filesystems=eagle']"): "-l filesystems=eagle of "
    "job.directives replaces -l filesystems=home of the site",
    ("pbs", "[-v A=1]", "[-v B=2]"): "-v B=2 of job.directives replaces -v A=1 of the site; for "
    "both, write -v A=1,B=2 in job.directives",
    ("cobalt", "[-q prod]", "[--queue debug]"): "--queue debug of job.directives replaces -q prod "
    "of the site",
    ("cobalt", "['--attrs a=1:b=2']", "['--attrs a=3:c=4']"): "--attrs a=3 of job.directives "
    "replaces --attrs a=1 of the site",
}


@pytest.mark.parametrize(("scheduler", "site", "job"), REPLACED)
def test_a_directive_that_replaces_another_is_said(scheduler, site, job):
    remarks = plan_of(scheduler, site, job).remarks
    assert remarks == (REPLACED[scheduler, site, job],)


@pytest.mark.parametrize(
    ("scheduler", "site", "job"),
    [
        ("slurm", "[--constraint=gpu]", "[--constraint=gpu]"),
        ("slurm", "[--constraint=gpu, --exclusive]", "[--qos=debug]"),
        ("pbs", "['-l filesystems=home', '-W group_list=a']", "['-l a=1', '-W umask=022']"),
        ("cobalt", "['--attrs a=1']", "['--attrs b=2', '--env A=b']"),
        ("local", "[]", "[--constraint=x, --constraint=y]"),
    ],
)
def test_directives_that_go_together_are_not_mentioned(scheduler, site, job):
    assert plan_of(scheduler, site, job).remarks == ()


@pytest.mark.parametrize(
    ("scheduler", "directive", "key"),
    [
        ("slurm", "-p big", "job.queue: small"),
        ("slurm", "--time=5:00", "job.walltime: 10m"),
        ("slurm", "--mem=5G", "job.memory: 4GiB"),
        ("pbs", "-q big", "job.queue: small"),
        ("pbs", "-l walltime=5:00", "job.walltime: 10m"),
        ("cobalt", "-t 5", "job.walltime: 10m"),
        ("cobalt", "-A you", "job.account: me"),
    ],
)
def test_a_directive_that_replaces_a_key_of_the_job_is_said(scheduler, directive, key):
    plan = plan_of(scheduler, f"['{directive}']", "[]", key.replace(": ", "="))
    assert plan.remarks == (f"{directive} of the site replaces {key}",)


@pytest.mark.parametrize("override", ["job.queue=big", "job.account=me"])
def test_a_directive_that_says_the_same_or_something_else_than_a_key_is_not_mentioned(override):
    assert plan_of("slurm", "['-p big']", "[]", override).remarks == ()


def test_a_resource_of_the_site_that_takes_the_place_of_the_gpus_is_said():
    def remarks(gres):
        site_more = "gpu_request: gres\ngpu_type: a100\n"
        given = ("slurm", f"[--gres={gres}]", "[]", "job.gpus_per_node=4")
        return plan_of(*given, site_more=site_more).remarks

    assert remarks("gpu:a100:4") == ()
    assert remarks("nvme:1") == (
        "--gres=nvme:1 of the site replaces the request for GPUs; for both, write "
        "--gres=nvme:1,gpu:a100:4",
    )


@pytest.mark.parametrize(("scheduler", "site", "job"), REPLACED)
def test_what_is_said_is_what_the_scheduler_reads(scheduler, site, job):
    """The last of an option is the one that counts."""
    plan = plan_of(scheduler, site, job)
    grammar = get_scheduler(scheduler).grammar
    header = grammar.read(render(plan).splitlines())
    last = {option.name: option.value for option in grammar.parse(header).options}
    match = re.match(r"(?:of two in .*, )?-\S+?[ =](\S+) (?:of|counts)", plan.remarks[0])
    assert match is not None
    assert any(match[1] in (value, *str(value).split(":")) for value in last.values())


def test_the_joined_form_is_accepted_as_one_value():
    plan = plan_of("slurm", "[--constraint=gpu]", "[--constraint=gpu&a100]")
    grammar = plan.scheduler.grammar
    options = grammar.parse(grammar.read(render(plan).splitlines()))
    assert [option.value for option in options.all("constraint")] == ["gpu&a100"]


def test_exports_that_are_in_vain_are_said():
    plan = plan_of(
        "slurm",
        "[]",
        "[]",
        "job.setup='module load x; export OMP_NUM_THREADS=4 A=b # export RANK=1'",
        site_more="setup: 'export MASTER_PORT=1; MASTER_ADDR=x'\n",
    )
    assert plan.remarks == (
        "the site's setup exports MASTER_PORT, which hpc-amp sets afterwards: it is another one "
        "for each job and attempt",
        "job.setup exports OMP_NUM_THREADS, which hpc-amp sets afterwards: it is job.cpus_per_gpu; "
        "set another value in container.env",
    )


def test_variables_in_options_of_the_container_that_are_in_vain_are_said():
    plan = plan_of(
        "slurm",
        "[]",
        "[]",
        "container.args=[--env, 'A=b c,RANK=1', --nv, '--env=RANKS=1']",
        site_more="container_args: ['--env=MASTER_PORT=1']\n",
    )
    assert plan.remarks == (
        "--env MASTER_PORT of the site's container_args has no effect, since hpc-amp sets it: it "
        "is another one for each job and attempt",
        "--env RANK of container.args has no effect, since hpc-amp sets it: it differs from rank "
        "to rank",
    )
