"""What a rank's environment becomes inside, against images and hosts that try to spoil it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpc_amp.distributed import environment
from hpc_amp.distributed.environment import environment_changes
from hpc_amp.distributed.world import World, standard_variables

RUN = Path("/runs/x")


def changes(environ: dict[str, str], **more: Any) -> dict[str, str | None]:
    """For a job of 8 cores a rank; `env` is its `container.env`, `train` its `train`."""
    job = {
        "job": {"cpus_per_gpu": 8, "gpus_per_node": 4},
        "container": {"env": more.pop("env", {})},
    }
    job["launch"] = {"mpi": more.pop("mpi", "none")}
    job["train"] = more.pop("train", None)
    return environment_changes(environ, {"job": job, **more}, RUN)


def test_an_image_masks_nothing_that_matters() -> None:
    image = {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "", "TMPDIR": "/image/tmp"}
    image |= {"TRITON_CACHE_DIR": "/root/.triton", "HPC_AMP_CONTAINER": "1", "HPC_AMP_JOB_ID": "7"}

    made = changes(image)

    assert made["OMP_NUM_THREADS"] == "8"
    assert made["PYTHONNOUSERSITE"] == "1"
    assert made["TMPDIR"] == "/tmp"
    assert made["TRITON_CACHE_DIR"] == f"/tmp/hpc-amp-{os.getuid()}-7/triton"
    assert made["TORCHINDUCTOR_CACHE_DIR"] == f"/tmp/hpc-amp-{os.getuid()}-7/inductor"
    compiled = changes(image, train={"compile": True})
    assert compiled["TORCHINDUCTOR_CACHE_DIR"] is compiled["TRITON_CACHE_DIR"] is None


def test_the_host_keeps_its_own_places() -> None:
    made = changes({"TMPDIR": "/scratch/tmp"})

    assert not {"TMPDIR", "TRITON_CACHE_DIR", "LD_LIBRARY_PATH"} & made.keys()


def test_the_job_has_the_last_word() -> None:
    own = {"OMP_NUM_THREADS": "2", "TMPDIR": "/local", "PYTHONNOUSERSITE": "0", "OPAL_PREFIX": "/o"}

    made = changes({"HPC_AMP_CONTAINER": "1"}, env=own, mpi="bind", host_mpi={"prefix": "/host"})

    assert {name: made[name] for name in own} == own


def test_where_the_ranks_meet_is_the_script_s_to_say() -> None:
    environ = {"MASTER_ADDR": "image", "MASTER_PORT": "1"}
    environ |= {"HPC_AMP_MASTER_ADDR": "n1", "HPC_AMP_MASTER_PORT": "61001"}

    made = standard_variables(World(0, 2, 0, 2, 1, "test"), environ)

    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("n1", "61001")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("/opt/torch/lib:/cuda/lib", "/host/mpi:/site/lib:/opt/torch/lib:/cuda/lib"),
        ("", "/host/mpi:/site/lib"),
    ],
)
def test_libraries_stand_before_those_of_the_image(image: str, expected: str) -> None:
    environ = {"LD_LIBRARY_PATH": image, "HPC_AMP_LD_LIBRARY_PATH": "/site/lib"}

    made = changes(environ, mpi="bind", host_mpi={"libraries": ["/host/mpi"]})

    assert made["LD_LIBRARY_PATH"] == expected
    assert made["HPC_AMP_LD_LIBRARY_PATH"] is None


def test_without_such_libraries_the_image_s_stay_as_they_are() -> None:
    assert "LD_LIBRARY_PATH" not in changes({"LD_LIBRARY_PATH": "/opt/torch/lib"})


@pytest.mark.parametrize(
    ("environ", "own", "expected"),
    [
        ({}, {}, "/runs/x/src"),
        ({"PYTHONPATH": "/image"}, {}, "/runs/x/src:/image"),
        ({"PYTHONPATH": "/image"}, {"PYTHONPATH": "/mine"}, "/runs/x/src:/mine"),
    ],
)
def test_the_snapshot_is_found_first(
    environ: dict[str, str], own: dict[str, str], expected: str
) -> None:
    assert changes(environ, env=own)["PYTHONPATH"] == expected


def test_the_driver_is_found_by_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "HOST_LIBRARIES", str(tmp_path))
    assert "TRITON_LIBCUDA_PATH" not in changes({"HPC_AMP_CONTAINER": "1"})

    (tmp_path / "libcuda.so.1").touch()
    assert changes({"HPC_AMP_CONTAINER": "1"})["TRITON_LIBCUDA_PATH"] == str(tmp_path)
    assert "TRITON_LIBCUDA_PATH" not in changes({})
