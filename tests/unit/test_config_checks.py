"""Keys that contradict each other, and files that are not there."""

import os
from pathlib import Path

import pytest

from hpc_amp.config.checks import check_job
from hpc_amp.config.load import load_job
from hpc_amp.config.site import HostMpi, Site
from hpc_amp.errors import ConfigError

TRAIN = "name: x\ntrain:\n"
RUN = "name: x\nrun: [python]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    Path("a.sif").write_text("hsqs: the beginning of an image")
    Path("sandbox").mkdir()
    Path("src").mkdir()
    return tmp_path


def check(text, *overrides):
    Path("job.yaml").write_text(text)
    check_job(load_job(Path("job.yaml"), overrides))


def check_on(text, site):
    Path("job.yaml").write_text(text)
    check_job(load_job(Path("job.yaml")), site)


@pytest.mark.parametrize(
    "text",
    [
        RUN,
        TRAIN + "  batch_size: 24\n  accumulate: 3\njob: {nodes: 2, gpus_per_node: 4}",
        TRAIN + "  batch_size: 6\njob: {nodes: 2, gpus_per_node: 0, ranks_per_node: 3}",
        TRAIN + "  precision: {min_scale: 8, init_scale: 8, max_scale: 8}",
        TRAIN + "  schedule: {milestones: [0, 0.5, 1]}",
        TRAIN + "  schedule: {milestones: []}",
        TRAIN + "  optimizer: {momentum: 0, nesterov: false}",
        TRAIN + "  optimizer: {name: adamw, momentum: 0}",
        TRAIN + "  device: cpu\njob: {gpus_per_node: 0}",
        RUN + "job: {walltime: 61s, stop_margin: 1m}",
        RUN + "launch: single",
        TRAIN + "  precision: O2\n  ema: 0.9",
        RUN + "container: a.sif",
        RUN + "container: {image: sandbox, runtime: singularity}",
        RUN + "container: {image: missing.sif, runtime: none}",
        RUN + "code: src",
        RUN + "launch: {fabric: slingshot-no-eager}",
        RUN + "launch: {fabric: none}",
        RUN + "container: {image: a.sif, bind: ['/usr/lib64:/hostlib64', /opt, '/usr/lib64/x']}",
    ],
)
def test_good_jobs_pass(text):
    check(text)


CASES = {
    TRAIN + "  batch_size: 100\n  accumulate: 2\njob: {nodes: 2, gpus_per_node: 4}": "job.yaml:3: "
    "train.batch_size: 100 does not divide by world size 8 x accumulate 2 = 16; use 96 or 112",
    TRAIN + "  batch_size: 5\njob: {gpus_per_node: 8}": "job.yaml:3: train.batch_size: 5 does not "
    "divide by world size 8; use 8",
    TRAIN + "  epochs: 1\njob: {ranks_per_node: 3}": "job.yaml:2: train.batch_size: 128 does not "
    "divide by world size 3; use 126 or 129",
    TRAIN + "  precision:\n    init_scale: 0.5e8": "job.yaml:4: train.precision.init_scale: 5e+07 "
    "is outside min_scale 1 to max_scale 1.67772e+07; make min_scale <= init_scale <= max_scale",
    TRAIN + "  precision: {min_scale: 70000}": "job.yaml:3: train.precision.init_scale: 65536 is "
    "outside min_scale 70000 to max_scale 1.67772e+07; make min_scale <= init_scale <= max_scale",
    TRAIN + "  schedule: {milestones: [0.7, 0.5]}": "job.yaml:3: train.schedule.milestones: [0.7, "
    "0.5] are not ascending parts of the run; write numbers from 0 to 1, such as [0.5, 0.75]",
    TRAIN + "  schedule: {milestones: [0.5, 0.5]}": "job.yaml:3: train.schedule.milestones: [0.5, "
    "0.5] are not ascending parts of the run; write numbers from 0 to 1, such as [0.5, 0.75]",
    TRAIN + "  schedule: {milestones: [30, 60]}": "job.yaml:3: train.schedule.milestones: [30.0, "
    "60.0] are not ascending parts of the run; write numbers from 0 to 1, such as [0.5, 0.75]",
    TRAIN + "  epochs: 8\n  schedule: {decay_after: 8epochs}": "job.yaml:4: "
    "train.schedule.decay_after: the run ends after 8 epochs, before the rate falls; write fewer "
    "epochs, or name: constant",
    TRAIN + "  schedule: {name: step, decay_after: 8epochs}": "job.yaml:3: "
    "train.schedule.decay_after: the schedule step has no decay; write name: cosine or linear",
    TRAIN + "  optimizer: {momentum: 0}": "job.yaml:3: train.optimizer.momentum: Nesterov "
    "momentum needs a momentum above 0; add nesterov: false",
    TRAIN + "  device: cuda\njob: {gpus_per_node: 0}": "job.yaml:3: train.device: cuda needs GPUs, "
    "but job.gpus_per_node is 0; use auto or cpu, or ask for GPUs",
    TRAIN
    + "  profile: {steps: [2, 4], ranks: [0, 8]}\njob: {nodes: 2, gpus_per_node: 4}": "job.yaml:3: "
    "train.profile.ranks: there is no rank 8: the job has 8, counted from 0; leave it out, or ask "
    "for more nodes",
    RUN + "job: {walltime: 2m}": "job.yaml:3: job.walltime: nothing of 2m is left: "
    "job.stop_margin is 2m; make it longer, or job.stop_margin smaller",
    RUN + "job: {walltime: 3m, stop_margin: 5m}": "job.yaml:3: job.stop_margin: 5m leaves nothing "
    "of the walltime 3m; make it smaller, or the walltime longer",
    RUN + "launch: single\njob: {nodes: 2, gpus_per_node: 4}": "job.yaml:3: launch.method: single "
    "starts one process, but the job has 8 ranks (2 nodes x 4); use auto, or set job.nodes=1 and "
    "job.ranks_per_node=1",
    RUN + "container: {runtime: apptainer}": "job.yaml:3: container.runtime: apptainer needs an "
    "image, and container.image is null; set container.image to a .sif file or a sandbox "
    "folder, or use runtime: none",
    RUN + "container: docker://nvcr.io/nvidia/pytorch:24.05-py3": "job.yaml:3: container.image: "
    "docker://nvcr.io/nvidia/pytorch:24.05-py3 is a URI, which every node would download again; "
    "pull it once with `hpc-amp container pull docker://nvcr.io/nvidia/pytorch:24.05-py3 "
    "pytorch-24.05-py3.sif` and write image: pytorch-24.05-py3.sif",
    RUN + "container: {image: 'library://a/b', runtime: singularity}": "job.yaml:3: "
    "container.image: library://a/b is a URI, which every node would download again; pull it once "
    "with `hpc-amp container pull library://a/b b.sif` and write image: b.sif",
    RUN + "container: ~/a.sif": "job.yaml:3: container.image: there is no file or folder "
    "/home/me/a.sif; check the path",
    RUN + "container: $SCRATCH/a.sif": "job.yaml:3: container.image: there is no file or folder "
    "/scratch/me/a.sif; check the path",
    RUN + "container: /no/a.sif": "job.yaml:3: container.image: there is no file or folder "
    "/no/a.sif; check the path",
    RUN + "launch: {fabric: infiniband}": "job.yaml:3: launch.fabric: there is no fabric profile "
    "'infiniband'; the profiles are ethernet, ib, slingshot, slingshot-no-eager, slingshot-ofi",
    RUN + "container:\n  bind: [/data, '/lib64']": "job.yaml:4: container.bind: /lib64 hides the "
    "image's own /lib64, which its programs are loaded from; bind it under another name: "
    "/lib64:/hostlib64",
    RUN + "container:\n  bind: ['/scratch/usr:/usr']": "job.yaml:4: container.bind: "
    "/scratch/usr:/usr hides the image's own /usr, which its programs are loaded from; bind it "
    "under another name: /scratch/usr:/hostusr",
    RUN + "code: a.sif": "job.yaml:3: code: a.sif is not a folder; name the folder that holds your "
    "code",
}


@pytest.mark.parametrize("text", CASES)
def test_contradictions_are_one_line_with_place_and_remedy(text):
    with pytest.raises(ConfigError) as caught:
        check(text)
    assert str(caught.value) == CASES[text]


ON_A_SITE = {
    ("launch: {mpi: bind}", "slurm"): "launch.mpi: the site lake does not say where the host's MPI "
    "is; write host_mpi into a site file of your own, or use hybrid",
    ("job: {chain: 3}", "slurm"): "job.chain: under Slurm a run goes on in the same job; leave it "
    "out: only job.max_restarts applies",
    ("job: {chain: 3}", "local"): "job.chain: under the local scheduler a run goes on in the same "
    "job; leave it out: only job.max_restarts applies",
}


@pytest.mark.parametrize(("text", "scheduler"), ON_A_SITE)
def test_what_a_site_cannot_do(text, scheduler):
    with pytest.raises(ConfigError) as caught:
        check_on(RUN + text, Site(name="lake", scheduler=scheduler))
    assert str(caught.value) == f"job.yaml:3: {ON_A_SITE[text, scheduler]}"


@pytest.mark.parametrize("scheduler", ["pbs", "cobalt"])
def test_what_a_site_can_do(scheduler):
    site = Site(name="lake", scheduler=scheduler, host_mpi=HostMpi(bind=["/opt/cray"]))
    check_on(RUN + "job: {chain: 3}\nlaunch: {mpi: bind}", site)


@pytest.mark.parametrize(
    "uri",
    [
        "docker://a",
        "library://a",
        "oras://a",
        "shub://a",
        "http://a/b",
        "https://a/b/",
        "DOCKER://",
    ],
)
def test_every_kind_of_uri_is_refused(uri):
    with pytest.raises(ConfigError, match=f"container.image: {uri} is a URI"):
        check(RUN, f"container.image={uri}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("container=b.sif", "container.image: there is no file or folder b.sif"),
        ("code=lib", "code: there is no folder lib"),
    ],
)
def test_relative_paths_are_looked_up_from_here(folder, override, message):
    with pytest.raises(ConfigError) as caught:
        check(RUN, override)
    assert str(caught.value) == f"override {override!r}: {message}; it is looked up in {folder}"


def test_an_unreadable_image(monkeypatch):
    # The tests may run as root, who can read everything, so the kernel's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError) as caught:
        check(RUN + "container: a.sif\n")
    assert str(caught.value) == (
        "job.yaml:3: container.image: a.sif cannot be read; check its permissions with ls -l"
    )
