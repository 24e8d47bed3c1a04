"""What computes in which number format, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import CPU, Regression, engine, fit_until
from torch import Tensor

from hpc_amp.amp.precision import PrecisionError, PrecisionPolicy
from hpc_amp.config.schema import Precision
from hpc_amp.tasks.base import Losses, Networks
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.state import weights_digest

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

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        for losses in super().losses(phase, batch, networks):
            self.seen = networks["model"](batch).dtype, losses["loss"].dtype
            yield losses

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

    def losses(self, phase: str, batch: Any, networks: Networks) -> Iterator[Losses]:
        self.calls = getattr(self, "calls", 0) + 1
        for losses in super().losses(phase, batch, networks):
            yield {"loss": losses["loss"] * (torch.inf if self.calls == 3 else 1)}


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


LEVELS = {
    "O0": (torch.float32, torch.float32, False),
    "O1": (torch.float32, torch.float16, True),
    "O2": (torch.float16, torch.float32, True),
    "O3": (torch.float16, torch.float32, False),
}
"""Of weights, of what a model returns, and whether the loss is scaled."""


@pytest.mark.parametrize("mode", LEVELS)
def test_the_levels_of_apex_train_and_resume_bit_by_bit(mode: str, tmp_path: Path) -> None:
    """Overflows included: the first scales are too large."""
    weights, returned, scales = LEVELS[mode]
    precision = {"mode": mode, "init_scale": 2.0**24, "growth_interval": 3}
    made = {}
    for name, stops in (("whole", []), ("stopped", [1, 3, 8])):
        for attempt, stop in enumerate([*stops, None], 1):
            part = engine(tmp_path / name, Watching, attempt=attempt, precision=precision)
            if stop is None:
                part.fit()
            else:
                fit_until(part, stop)
        made[name] = part
    whole, stopped = made["whole"], made["stopped"]
    assert {p.dtype for p in whole.networks["model"].parameters()} == {weights}
    assert whole.task.seen[0] is returned
    assert weights_digest(whole.networks) == weights_digest(stopped.networks)
    assert (whole.report.loss_scale() is not None) == scales
    assert whole.report.skipped_steps() == stopped.report.skipped_steps()
    assert (whole.report.skipped_steps() > 0) == scales
    saved = whole.store.load(whole.step).tensors["networks"]["model"]
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_master_weights_keep_what_half_precision_cannot(tmp_path: Path) -> None:
    """Steps of a ten-thousandth of the last digit of fp16 add up at O2 and are lost at O3."""
    moved = {}
    for mode in ("O2", "O3"):
        made = engine(
            tmp_path / mode, epochs=4, precision=mode, schedule="constant",
            optimizer={"lr": 1e-5, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False},
        )  # fmt: skip
        before = {k: v.clone() for k, v in made.networks["model"].state_dict().items()}
        made.fit()
        after = made.networks["model"].state_dict()
        moved[mode] = sum(bool((after[key] != before[key]).any()) for key in before)
    assert moved["O2"] == len(before)
    assert moved["O3"] < moved["O2"]
