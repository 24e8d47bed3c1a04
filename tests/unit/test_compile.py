"""`train.compile`: networks that torch.compile has compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.dcgan import dcgan
from support.paired import paired
from support.training import FEATURES, Regression, engine, fit_until, settings
from support.warm import Warm

from hpc_amp.errors import KeyProblem
from hpc_amp.train.compiling import Compiler, summary
from hpc_amp.train.engine import Engine
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.rundir import RunDirectory


@pytest.fixture(autouse=True)
def _new_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process: torch has set its default folder, and has compiled nothing."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_nobody")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(cache_size_limit=8, fail_on_cache_limit_hit=False):
        yield


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are traced and then run as they are, which takes seconds and not minutes."""
    monkeypatch.setattr("hpc_amp.train.compiling.BACKEND", "eager")


def said(output: str) -> list[str]:
    return re.findall(r"train\.compile: (.*)", output)


@pytest.mark.usefixtures("one_thread")
def test_a_resume_is_exact_and_weights_keep_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With inductor, whose programs are beside the run."""
    # Programs without vector instructions are compiled in a fraction of the time.
    monkeypatch.setattr("torch._inductor.config.cpp.vec_isa_ok", False)
    whole = engine(tmp_path / "whole", compile=True, ema=0.9)
    whole.fit()
    assert said(capsys.readouterr().out) == ["1 graph compiled, no graph breaks"], "once"
    stopped = engine(tmp_path / "stopped", compile=True, ema=0.9)
    fit_until(stopped, 3)
    torch._dynamo.reset()
    resumed = engine(tmp_path / "stopped", compile=True, ema=0.9, attempt=2)
    resumed.fit()
    expected, seen = (made.report.summary()["weights_sha256"] for made in (whole, resumed))
    assert seen == expected
    assert resumed.metrics == whole.metrics
    saved = torch.load(tmp_path / "stopped/checkpoints/step-00000010/networks.pt")
    assert list(saved["model"]) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    (folder,) = (tmp_path / ".compiled").iterdir()
    assert folder.name.startswith(f"torch-{torch.__version__}")
    assert any(folder.rglob("*.so"))


@pytest.mark.usefixtures("one_thread", "traced")
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "O2"])
def test_each_precision_trains_as_without(mode: str, tmp_path: Path) -> None:
    ends = []
    for compiled in (True, False):
        made = engine(tmp_path / str(compiled), precision=mode, compile=compiled, accumulate=2)
        made.fit()
        ends.append(made.report.summary()["weights_sha256"])
    assert ends[0] == ends[1]


# torch looks at the gradients of inputs when it traces.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("one_thread", "traced")
@pytest.mark.parametrize("name", ["dcgan", "spade"])
def test_gans_train_as_without(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = []
    for compiled in (True, False):
        folder = tmp_path / str(compiled)
        common: dict[str, Any] = {"compile": compiled, "epochs": 1, "precision": "bf16"}
        if name == "dcgan":
            made = dcgan(folder, **common)
        else:
            judges = {"width": 8, "layers": 1, "scales": 1}
            networks = {"stages": 1, "discriminator": judges}
            made = paired(
                folder, name, adversarial={"r1": 0.0}, spade=networks, max_steps=2, **common
            )
        made.fit()
        ends.append(made.report.summary()["weights_sha256"])
    assert ends[0] == ends[1]
    assert "no graph breaks" in said(capsys.readouterr().out)[0]


class Printing(Regression):
    """A network that tracing has to leave."""

    def build_networks(self) -> dict[str, torch.nn.Module]:
        class Broken(torch.nn.Sequential):
            def forward(self, batch: torch.Tensor) -> torch.Tensor:
                torch._dynamo.graph_break("on purpose")
                result: torch.Tensor = super().forward(batch)
                return result

        return {"model": Broken(torch.nn.Linear(6, 1))}


@pytest.mark.usefixtures("one_thread", "traced")
def test_graph_breaks_are_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine(tmp_path, Printing, compile=True).fit()
    (line,) = said(capsys.readouterr().out)
    assert re.match(r"\d graphs? compiled, 1 graph break: .*graph_break", line)


def train(made: Engine, sizes: Iterable[int]) -> None:
    """A step with each of these sizes of a batch."""
    for size in sizes:
        made.train_step([torch.randn(size, FEATURES)])


@pytest.mark.usefixtures("one_thread", "traced")
def test_each_shape_is_compiled_however_many_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume would not be exact if torch gave up at some time; its limit is 8."""
    made = engine(tmp_path / "many", compile=True)
    train(made, range(2, 12))
    assert summary() == "10 graphs compiled, no graph breaks"
    torch._dynamo.reset()
    monkeypatch.setattr("hpc_amp.train.compiling._MOST", 2)
    made = engine(tmp_path / "few", compile=True)
    with pytest.raises(TrainingError, match=r"more than 2 shapes .* Set train\.compile to false"):
        train(made, range(2, 5))


class _OldConfig:
    """As in torch 2.1: options that it does not have cannot be set."""

    __slots__ = ("cache_size_limit", "compile_threads", "layout_optimization")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, None)


def test_older_versions_of_torch_have_fewer_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config

    old = _OldConfig()
    monkeypatch.setattr(torch._dynamo, "config", old)
    monkeypatch.setattr(torch._inductor, "config", old)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    Compiler(RunDirectory(tmp_path, 1), torch.device("cpu"))
    assert (old.cache_size_limit, old.layout_optimization) == (256, False)


# In a process of its own: without the order of `to_channels_last`, oneDNN corrupts its memory.
NARROW = """\
import sys, torch, torch._inductor.config
from pathlib import Path
from torch import nn
from hpc_amp.train.compiling import Compiler
from hpc_amp.train.memory_format import to_channels_last
from hpc_amp.train.rundir import RunDirectory

torch._inductor.config.cpp.vec_isa_ok = False  # takes a fraction of the time
narrow = nn.Conv2d(4, 16, 1, stride=2, bias=False)
compiler = Compiler(RunDirectory(Path(sys.argv[1]), 1), torch.device("cpu"))
network = compiler.compiled({"model": to_channels_last(nn.Sequential(narrow))})["model"]
for _ in range(20):
    images = torch.randn(4, 4, 32, 32).to(memory_format=torch.channels_last)
    network.zero_grad()
    network(images).square().sum().backward()
    plain = nn.functional.conv2d(images.contiguous().double(), narrow.weight.double(), stride=2)
    (expected,) = torch.autograd.grad(plain.square().sum(), narrow.weight)
    torch.testing.assert_close(narrow.weight.grad, expected, rtol=1e-3, atol=1e-3)
"""


def test_a_convolution_that_onednn_gets_wrong_stays_contiguous(warm: Warm, tmp_path: Path) -> None:
    result = warm.run("-c", NARROW, tmp_path / "run")
    assert result.returncode == 0, result.stderr


def test_what_cannot_be_compiled_is_refused_before_the_job() -> None:
    with pytest.raises(KeyProblem, match=r"train\.compile: batch norms that exchange statistics"):
        settings(compile=True, sync_batchnorm=True).check_keys()
    with pytest.raises(KeyProblem, match=r"train\.compile: precision O1 patches"):
        settings(compile=True, precision="O1").check_keys()
    spade = settings(task="spade", compile=True, adversarial={"r1": 10.0})
    with pytest.raises(KeyProblem, match=r"train\.compile: adversarial\.r1 is the gradient"):
        spade.check_keys()
    video: dict[str, Any] = {"compile": True, "images": {"image_size": [256]}}
    repeated = settings(task="vid2vid", vid2vid={"checkpointing": True}, **video)
    with pytest.raises(KeyProblem, match=r"train\.compile: .*vid2vid\.checkpointing repeats"):
        repeated.check_keys()
    with pytest.raises(KeyProblem, match=r"train\.compile: the number of points"):
        settings(task="wc_vid2vid", **video).check_keys()


def test_without_a_compiler_the_training_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, "no-such-compiler"))
    with pytest.raises(TrainingError) as caught:
        engine(tmp_path, compile=True)
    assert "train.compile: torch cannot compile here: " in str(caught.value)
    assert "C++ compiler" in str(caught.value)
    assert "\n" not in str(caught.value)
