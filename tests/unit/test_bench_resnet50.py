"""`configs/resnet50.yaml`, the benchmark of mixed precision: in full on a GPU, small on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.environment import REPOSITORY
from support.stubs import StubHost

CONFIG = str(REPOSITORY / "configs" / "resnet50.yaml")


def measured(host: StubHost, *words: str) -> dict[str, Any]:
    ended = host.hpc_amp("bench", CONFIG, *words, "--yes", "--json")
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def test_small_images_on_a_cpu(host: StubHost, warm_python: Path) -> None:
    """The same file with fewer pixels, so that it is known to be right before a GPU is at hand."""
    report = measured(
        host, "--precisions", "fp32", "--repeats", "1", "--warmup", "1", "--steps", "2",
        "job.gpus_per_node=0", "train.batch_size=2", "train.data.synthetic.image_size=32",
        "train.data.synthetic.train=4", "train.data.synthetic.test=2",
        f"container.python={warm_python}",
    )  # fmt: skip
    assert [row["setting"] for row in report["settings"]] == ["fp32"]
    assert report["conditions"]["model"] == "resnet50"
    assert report["conditions"]["channels_last"] is True


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_mixed_precision_is_worth_its_while_on_a_gpu(host: StubHost) -> None:
    """2.2 times as fast as TF32 is what the project promises, on GPUs that have TF32 at all; the
    ratio is that of runs in turn on one device."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has neither TF32 nor bf16")
    report = measured(host, "--precisions", "tf32,fp32,fp16,bf16")
    rows = {row["setting"]: row for row in report["settings"]}
    assert list(rows) == ["tf32", "fp32", "fp16", "bf16"]
    assert report["conditions"]["device_type"] == "cuda"
    assert report["conditions"]["channels_last"] is True
    off, on = ({"matmul": switch, "convolution": switch} for switch in (False, True))
    assert [rows[name]["tf32"] for name in rows] == [on, off, on, on]
    for half in ("fp16", "bf16"):
        assert rows[half]["peak_memory_bytes"] < 0.7 * rows["fp32"]["peak_memory_bytes"]
        assert rows[half]["speedup"] >= 2.2
    assert rows["fp32"]["speedup"] < 1.0
    assert rows["bf16"]["skipped_steps"] == 0
