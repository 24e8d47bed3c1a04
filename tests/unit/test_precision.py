"""What computes in which number format, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import CPU, Regression, engine
from torch import Tensor

from hpc_amp.amp.precision import PrecisionError, PrecisionPolicy
from hpc_amp.config.schema import Precision
from hpc_amp.tasks.base import Networks
from hpc_amp.train.errors import TrainingError

INSIDE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.fixture(autouse=True)
def _backends_as_before() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = cudnn


class Watching(Regression):
    """Notes the dtypes that its network computes in, and those of its losses."""

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[tuple[str, Tensor]]:
        for name, loss in super().losses(phase, batch, networks):
            self.seen = networks["model"](batch).dtype, loss.dtype
            yield name, loss

    def evaluate(self, batch: Any, networks: Networks) -> dict[str, Tensor]:
        self.seen_in_evaluation = networks["model"](batch).dtype
        return super().evaluate(batch, networks)


@pytest.mark.parametrize("mode", INSIDE)
def test_the_model_computes_in_what_was_asked_for(mode: str, tmp_path: Path) -> None:
    made = engine(tmp_path, Watching, precision=mode, epochs=1)
    made.fit()
    assert made.task.seen[0] is made.task.seen_in_evaluation is INSIDE[mode]
    assert {p.dtype for p in made.networks["model"].parameters()} == {torch.float32}
    gradients = {p.grad.dtype for p in made.networks["model"].parameters()}
    assert gradients == {torch.float32}
    assert (made.report.loss_scale() is not None) == (mode == "fp16")
    assert not torch.is_autocast_enabled("cpu")


def test_tf32_is_for_gpus() -> None:
    with pytest.raises(PrecisionError, match=r"NVIDIA GPUs.*fp32"):
        PrecisionPolicy.create(Precision(mode="tf32"), CPU)


def test_autocast_that_torch_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old versions warn and go on in fp32; the warning must not reach the user either."""
    import contextlib
    import warnings

    def unsupported(*args: object, **more: object) -> contextlib.AbstractContextManager[None]:
        warnings.warn("In CPU autocast, but the target dtype is not supported", stacklevel=2)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch, "autocast", unsupported)
    with pytest.raises(PrecisionError, match="no fp16 autocast on cpu"):
        PrecisionPolicy.create(Precision(mode="fp16"), CPU)


def test_autocast_that_raises_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.1 raises when it enters fp16 autocast on a CPU."""

    class Raises:
        def __init__(self, *args: object, **more: object) -> None: ...

        def __enter__(self) -> None:
            raise RuntimeError("AutocastCPU only support Bfloat16")

        def __exit__(self, *args: object) -> None: ...

    monkeypatch.setattr(torch, "autocast", Raises)
    with pytest.raises(PrecisionError, match="no fp16 autocast on cpu; use fp32 or bf16"):
        PrecisionPolicy.create(Precision(mode="fp16"), CPU)


@pytest.mark.parametrize(("mode", "allowed"), [("fp32", False), ("bf16", True)])
def test_tf32_is_off_where_fp32_was_asked_for(mode: str, allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = not allowed
    PrecisionPolicy.create(Precision(mode=mode), CPU).configure_backends()  # type: ignore[arg-type]
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.get_float32_matmul_precision() == ("high" if allowed else "highest")


class Diverging(Regression):
    """Its loss is not finite in the third step."""

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[tuple[str, Tensor]]:
        self.calls = getattr(self, "calls", 0) + 1
        for name, loss in super().losses(phase, batch, networks):
            yield name, loss * (torch.inf if self.calls == 3 else 1)


def test_a_loss_that_is_not_finite_stops_the_run_with_an_explanation(tmp_path: Path) -> None:
    made = engine(tmp_path, Diverging, log_every=2, checkpoint="1steps")
    with pytest.raises(TrainingError, match=r"`loss` is nan since step 3:.*clip_norm"):
        made.fit()
    assert made.store.newest() == 2, "lost weights are not saved as the newest checkpoint"


def test_under_a_loss_scaler_it_is_a_skipped_step(tmp_path: Path) -> None:
    made = engine(tmp_path, Diverging, precision={"mode": "fp16", "init_scale": 4.0})
    made.fit()
    assert (made.report.skipped_steps(), made.report.loss_scale()) == (1, 2.0)
    assert all(p.isfinite().all() for p in made.networks["model"].parameters())
