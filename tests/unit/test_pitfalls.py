"""Mixed precision as people got it wrong: naive code falls into a pitfall, amp does not.

Each test has both, and the issues in which it was reported. Pitfalls of several ranks (scales that
differ, GANs in DDP, accumulation without exchange) are in tests/ranks/test_amp_ranks.py.
"""

from __future__ import annotations

import argparse
import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hpc_amp import amp
from hpc_amp.amp.scaler import LossScaler, ScaleFloorError
from hpc_amp.config.schema import Precision
from hpc_amp.distributed.world import resolve

HALF, FLOAT = torch.float16, torch.float32
LR = 0.125


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


def one_weight(kind: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Linear, Any]:
    """A model with one weight, which starts at 1; its input is the gradient."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return model, kind(model.parameters(), lr=LR, **options)


def started(level: str = "O1", scale: float = 64.0, **options: Any) -> tuple[nn.Linear, Any]:
    model, optimizer = amp.initialize(
        *one_weight(), opt_level=level, loss_scale="dynamic", verbosity=0, **options
    )
    set_scale(scale)
    return model, optimizer


def set_scale(scale: float, clean_steps: int = 0) -> None:
    entry = {"loss_scale": scale, "unskipped": clean_steps}
    amp.load_state_dict(dict.fromkeys(amp.state_dict(), entry))


def loss_of(model: nn.Module, gradient: float = 1.0) -> Tensor:
    return model(torch.full((1, 1), gradient)).sum()


def backward(model: nn.Module, optimizer: Any, gradient: float = 1.0, **options: Any) -> None:
    with amp.scale_loss(loss_of(model, gradient), optimizer, **options) as scaled:
        scaled.backward()


def native_scaler(scale: float = 64.0, growth_interval: int = 2000) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)


# -- the loss scaler ------------------------------------------------------------------------------


def test_whether_a_step_was_taken_is_known() -> None:
    """pytorch#67590, #44511."""
    model, optimizer = one_weight()
    scaler, answers = native_scaler(), []
    for gradient in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, gradient)).backward()
        answers.append(scaler.step(optimizer))
        scaler.update()
    assert answers == [None, None], "the naive loop cannot tell"

    model, optimizer = started()
    answers = []
    for gradient in (torch.inf, 1.0):
        optimizer.zero_grad()
        backward(model, optimizer, gradient)
        optimizer.step()
        answers.append(amp.stepped(optimizer))
    assert answers == [False, True]


def test_a_schedule_stays_in_step_with_the_weights() -> None:
    """pytorch#55585, transformers#11106, lightning#5558."""
    model, optimizer = one_weight()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = native_scaler()
    scaler.scale(loss_of(model, torch.inf)).backward()
    scaler.step(optimizer)
    with pytest.warns(UserWarning, match=r"before `optimizer\.step\(\)`"):
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == LR / 2, "a rate that no step was taken with"

    model, optimizer = started()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gradient in (torch.inf, 1.0):
            optimizer.zero_grad()
            backward(model, optimizer, gradient)
            optimizer.step()
            if amp.stepped(optimizer):
                schedule.step()
    assert (schedule.last_epoch, model.weight.item()) == (1, 1 - LR)


def test_gradients_in_half_precision_can_be_unscaled() -> None:
    """pytorch#74739, lightning#5140."""
    model, optimizer = one_weight()
    model.half()
    scaler = native_scaler()
    scaler.scale(model(torch.ones(1, 1).half()).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)

    for level in ("O2", "O3"):
        model, optimizer = started(level)
        backward(model, optimizer)
        optimizer.step()
        assert model.weight.item() == 1 - LR
        amp.reset()


def test_an_optimizer_without_gradients_is_no_error() -> None:
    """nerfstudio#1919, cyto-dl#21."""
    _, idle = one_weight()
    scaler = native_scaler()
    scaler.scale(loss_of(one_weight()[0])).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(idle)

    model, busy = one_weight()
    other, idle = one_weight()
    amp.initialize([model, other], [busy, idle], verbosity=0)
    with amp.scale_loss(loss_of(model), [busy, idle]) as scaled:
        scaled.backward()
    busy.step()
    idle.step()
    assert other.weight.item() == 1


def test_gradients_are_clipped_after_they_are_unscaled() -> None:
    """lightning#9599, pytorch#40907, Pytorch-UNet#468."""
    model, optimizer = one_weight()
    scaler = native_scaler(1024.0)
    scaler.scale(loss_of(model, 8.0)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(optimizer)
    assert model.weight.item() > 0.999, "clipped to 2 / 1024"

    for level in ("O1", "O2", "O3"):
        model, optimizer = started(level, 1024.0)
        backward(model, optimizer, 8.0)
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 2.0)
        optimizer.step()
        assert model.weight.item() == 1 - 2 * LR
        amp.reset()


def test_a_scale_that_moves_between_micro_batches_does_no_harm() -> None:
    """pytorch#36601."""
    model, optimizer = one_weight()
    scaler = native_scaler(64.0, growth_interval=1)
    for gradient in (1.0, 2.0):
        scaler.scale(loss_of(model, gradient)).backward()
        scaler.unscale_(optimizer)
        scaler.update()
    # The second division hits the first gradient, too.
    assert model.weight.grad.item() == pytest.approx(2 + 1 / 128)

    model, optimizer = started()
    for gradient in (1.0, 2.0):
        set_scale(64.0, clean_steps=1999)
        backward(model, optimizer, gradient)
        assert amp.loss_scale() == 128
    assert model.weight.grad.item() == 3


def test_several_optimizers_count_one_step() -> None:
    """accelerate#439, fairchem#637, OpenGait#147."""
    (one, first), (other, second) = one_weight(), one_weight()
    scaler = native_scaler(64.0, growth_interval=1)
    scaler.scale(loss_of(one) + loss_of(other)).backward()
    for optimizer in (first, second):
        scaler.step(optimizer)
        scaler.update()
    moved = 1 - one.weight.item(), 1 - other.weight.item()
    assert moved == (LR, LR / 2), "the second optimizer divided by another scale"

    (one, first), (other, second) = one_weight(), one_weight()
    amp.initialize([one, other], [first, second], loss_scale="dynamic", verbosity=0)
    set_scale(64.0, clean_steps=1998)
    with amp.scale_loss(loss_of(one) + loss_of(other), [first, second]) as scaled:
        scaled.backward()
    first.step()
    second.step()
    assert (1 - one.weight.item(), 1 - other.weight.item()) == (LR, LR)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 1999}}


def test_a_step_that_the_script_leaves_out_does_not_confuse_the_scale() -> None:
    """LVSM#19."""
    model, optimizer = one_weight()
    scaler = native_scaler()
    scaler.scale(loss_of(model)).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.update()

    model, optimizer = started()
    backward(model, optimizer)
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 2}}
    assert model.weight.item() == 1 - LR


def test_a_loss_that_stays_nan_ends_before_the_weights_are_lost() -> None:
    """apex#318, #635, #834, DeepSpeed#1958."""
    model, optimizer = one_weight()
    scaler = native_scaler(65536.0)
    for gradient in [torch.nan] * 166 + [1.0]:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, gradient)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0
    assert model.weight.isnan().all(), "written by a batch without a fault"

    model, optimizer = started(scale=65536.0)

    def train() -> None:
        for gradient in [torch.nan] * 166 + [1.0]:
            optimizer.zero_grad()
            backward(model, optimizer, gradient)
            optimizer.step()

    with pytest.raises(ScaleFloorError, match=r"the loss is not finite.*try bf16"):
        train()
    assert model.weight.item() == 1


def test_a_skipped_step_leaves_a_fused_optimizer_alone() -> None:
    """pytorch#90752, #94060, #95847. torch's scaler enters the kernel with its verdict, so state
    is made in a step that is not taken."""
    model, optimizer = one_weight(torch.optim.Adam, fused=True)
    scaler = native_scaler()
    scaler.scale(loss_of(model, torch.inf)).backward()
    scaler.step(optimizer)
    assert optimizer.state[model.weight], "made by no step"

    ends = []
    for fused in (True, False):
        model, optimizer = one_weight(torch.optim.Adam, fused=fused)
        amp.initialize(model, optimizer, loss_scale="dynamic", verbosity=0)
        set_scale(64.0)
        backward(model, optimizer, torch.inf)
        optimizer.step()
        assert not optimizer.state
        for gradient in (1.0, 4.0):
            optimizer.zero_grad()
            backward(model, optimizer, gradient)
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 2.0)
            optimizer.step()
        ends.append(model.weight.item())
        amp.reset()
    assert ends[0] == pytest.approx(ends[1], rel=1e-6)
    assert ends[0] < 1 - LR


def test_accumulation_and_clipping_go_together() -> None:
    """Swin-Transformer#311, accelerate#641."""
    model, optimizer = one_weight()
    scaler = native_scaler()
    scaler.scale(loss_of(model)).backward()
    scaler.unscale_(optimizer)
    scaler.scale(loss_of(model)).backward()
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)

    for level in ("O1", "O2"):
        model, optimizer = started(level)
        for gradient in (1.0, 2.0):
            backward(model, optimizer, gradient)
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), 100.0)
        optimizer.step()
        assert model.weight.item() == 1 - 3 * LR
        amp.reset()


def test_a_loss_in_half_precision_does_not_overflow_by_its_scale() -> None:
    """imaginaire#126: losses added up in a half-precision tensor of shape [1]."""
    total = torch.zeros(1, dtype=HALF) + torch.tensor([2.0], dtype=HALF)
    assert native_scaler(65536.0).scale(total).isinf().all()

    _, optimizer = started(scale=65536.0)
    with amp.scale_loss(total, optimizer) as scaled:
        assert scaled.item() == 2 * 65536


# -- resuming -------------------------------------------------------------------------------------


def test_the_scale_survives_a_restart() -> None:
    """detectron2#3686, vision#4923, transformers#11663."""
    model, optimizer = one_weight()
    fresh = native_scaler(65536.0)
    fresh.scale(loss_of(model, 2.0**113)).backward()
    fresh.step(optimizer)
    assert model.weight.item() == 1, "a scaler that starts anew skips steps again"

    model, optimizer = started()
    backward(model, optimizer)
    saved = copy.deepcopy(amp.state_dict())
    amp.reset()
    model, optimizer = started(scale=65536.0)
    amp.load_state_dict(saved)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 1}}


def test_a_checkpoint_of_a_wrapped_model_reaches_the_masters() -> None:
    """apex#647, pytorch#3805: `module.` in front of every name, so none is found by its name."""
    model, optimizer = started("O2")
    wrapped = nn.DataParallel(model)
    saved = {"module.weight": torch.tensor([[3.0001]])}
    names = {name for name, _ in model.named_parameters()}
    assert not names & saved.keys()
    wrapped.load_state_dict(saved)
    assert next(amp.master_params(optimizer)).item() == pytest.approx(3.0001, abs=1e-6)
    assert wrapped.state_dict()["module.weight"].item() == pytest.approx(3.0001, abs=1e-6)


def test_a_checkpoint_is_read_without_running_code() -> None:
    """nerfstudio#3702, e3nn#519: `weights_only` is torch's default since 2.6."""

    def through_a_file(saved: Any) -> Any:
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    with pytest.raises(Exception, match="Weights only load failed"):
        through_a_file({"scaler": LossScaler(Precision(mode="fp16"))})

    model, optimizer = started("O2")
    backward(model, optimizer)
    optimizer.step()
    saved = [model.state_dict(), optimizer.state_dict(), amp.state_dict()]
    loaded = through_a_file(saved)
    assert torch.equal(loaded[0]["weight"], saved[0]["weight"])
    assert loaded[2] == saved[2]


def test_a_resume_at_o2_does_not_make_the_loss_jump() -> None:
    """apex#180, #250, #480: masters made anew from half-precision weights."""
    torch.manual_seed(0)
    data = torch.randn(64, 8)

    def train(model: nn.Module, optimizer: Any, steps: range, update: Any) -> None:
        for step in steps:
            optimizer.zero_grad()
            update(model(data).float().square().mean() * (1 + step % 3))

    def by_hand(resume: bool) -> Tensor:
        """Half-precision model, fp32 masters, and what a checkpoint of the two usually holds."""
        torch.manual_seed(1)
        model = nn.Linear(8, 8).half()
        masters = [p.detach().float().requires_grad_() for p in model.parameters()]
        optimizer = torch.optim.Adam(masters, lr=1e-3)

        def update(loss: Tensor) -> None:
            loss.backward()
            for parameter, master in zip(model.parameters(), masters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(model.parameters(), masters, strict=True):
                    parameter.copy_(master)

        forward = nn.Module()
        forward.forward = lambda x: model(x.half())  # type: ignore[method-assign]
        train(forward, optimizer, range(10), update)
        if resume:
            with torch.no_grad():
                for parameter, master in zip(model.parameters(), masters, strict=True):
                    master.copy_(parameter)
        train(forward, optimizer, range(10, 20), update)
        return masters[0].detach()

    assert not torch.equal(by_hand(resume=False), by_hand(resume=True))

    def ours(resume: bool) -> Tensor:
        torch.manual_seed(1)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        amp.initialize(model, optimizer, opt_level="O2", verbosity=0)

        def update(loss: Tensor) -> None:
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            optimizer.step()

        train(model, optimizer, range(10), update)
        if resume:
            holders = (model, optimizer, amp)
            saved = copy.deepcopy([holder.state_dict() for holder in holders])
            amp.reset()
            model = nn.Linear(8, 8)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
            amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
            for holder, state in zip((model, optimizer, amp), saved, strict=True):
                holder.load_state_dict(state)
        train(model, optimizer, range(10, 20), update)
        weights = model.state_dict()["weight"].clone()
        amp.reset()
        return weights

    assert torch.equal(ours(resume=False), ours(resume=True))


# -- types ----------------------------------------------------------------------------------------


def test_binary_cross_entropy_of_rounded_probabilities_is_refused() -> None:
    """pytorch#61098, YOLOX#336: sigmoid(12) is 1 in fp16, and what was missing to 1 is lost."""
    logit, target = torch.tensor([12.0], dtype=HALF), torch.zeros(1)
    with torch.autocast("cpu", dtype=HALF):
        assert F.binary_cross_entropy(torch.sigmoid(logit), target).item() == 100

    amp.initialize([], verbosity=0)
    with pytest.raises(NotImplementedError, match="use binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.sigmoid(logit), target)
    loss = F.binary_cross_entropy_with_logits(logit, target)
    assert loss.item() == pytest.approx(12, abs=1e-3)


def test_bf16_has_no_loss_scale() -> None:
    """accelerate#1036, nanoGPT#87, pytorch#127176: a scaler that only costs, and skips steps."""
    for dtype, scale in ((HALF, 65536.0), (torch.bfloat16, 1.0)):
        model, optimizer = amp.initialize(*one_weight(), dtype=dtype, verbosity=0)
        assert amp.loss_scale() == scale
        # 2**10 times the scale is beyond fp16, not beyond bf16.
        backward(model, optimizer, 2.0**10)
        optimizer.step()
        assert amp.stepped(optimizer) == (dtype is torch.bfloat16)
        amp.reset()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_small_gradients_do_not_vanish(level: str) -> None:
    """Open-Rig3R#35, Protenix#258: fp16 without a scale, by mistake or by a misspelt type."""
    tiny = 2.0**-26
    model, optimizer = one_weight()
    with torch.autocast("cpu", dtype=HALF):
        loss = model(torch.ones(1, 1)).sum() * tiny
    loss.backward()
    assert model.weight.grad.item() == 0

    model, optimizer = started(level, 65536.0)
    with amp.scale_loss(model(torch.ones(1, 1)).float().sum() * tiny, optimizer) as scaled:
        scaled.backward()
    (weight,) = amp.master_params(optimizer)
    assert weight.grad.item() == tiny
    amp.reset()
    for misspelt in ({"loss_scale": "Dynamic"}, {"dtype": "fp16"}, {"opt_level": "01"}):
        with pytest.raises((ValueError, RuntimeError), match=r"dynamic|float16|letter O"):
            amp.initialize(nn.Linear(1, 1), verbosity=0, **misspelt)


class Recompute(torch.autograd.Function):
    """Activation checkpointing as it is often written by hand."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor) -> Tensor:
        ctx.run, ctx.x = run, x.detach().requires_grad_()
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        with torch.enable_grad():
            ctx.run(ctx.x).backward(gradient)
        return None, ctx.x.grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_have_the_type_of_the_first_pass(reentrant: bool) -> None:
    """pytorch#141896, #71124."""
    seen: list[torch.dtype] = []
    layer = nn.Linear(3, 3)

    def run(x: Tensor) -> Tensor:
        y = layer(x)
        seen.append(y.dtype)
        return F.gelu(y).float()

    x = torch.randn(2, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=HALF):
        loss = Recompute.apply(run, x).sum()
    loss.backward()
    assert seen == [HALF, FLOAT]

    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    amp.initialize(layer, optimizer, loss_scale=64.0, verbosity=0)
    seen.clear()
    gradients = []
    for call in (run, lambda x: checkpoint(run, x, use_reentrant=reentrant)):
        optimizer.zero_grad()
        with amp.scale_loss(call(x).sum(), optimizer) as scaled:
            scaled.backward()
        gradients.append(layer.weight.grad.clone())
    assert seen == [HALF] * 3
    assert torch.equal(*gradients)


def test_no_stale_weights_and_no_lost_gradients() -> None:
    """pytorch#112583, #65766: torch keeps casts until an autocast block ends. Left open for the
    whole program, it computes with weights from before the last step."""
    x = torch.ones(1, 1)
    model, _ = one_weight()
    left_open = torch.autocast("cpu", dtype=HALF)
    left_open.__enter__()
    try:
        model(x)
        with torch.no_grad():
            model.weight.fill_(3)
        assert model(x).item() == 1
    finally:
        left_open.__exit__(None, None, None)

    model, optimizer = started()
    with torch.no_grad():
        model(x)
    backward(model, optimizer)
    assert model.weight.grad is not None
    optimizer.step()
    assert model(x).item() == 1 - LR
    with torch.no_grad():
        model.weight.fill_(3)
    assert model(x).item() == 3


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", ["parametrization", "hook"])
def test_spectral_norm(level: str, kind: str) -> None:
    """pytorch#125544, apex#181: types that do not match, and an eps that is 0 in fp16."""
    small = torch.full((3,), 2.0**-24, dtype=HALF)
    assert not F.normalize(small * 0, dim=0, eps=1e-12).isfinite().all()

    torch.manual_seed(0)
    if kind == "parametrization":
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4, bias=False))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls it deprecated
            layer = nn.utils.spectral_norm(nn.Linear(6, 4, bias=False))
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    amp.initialize(layer, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    set_scale(64.0)
    for _ in range(20):
        optimizer.zero_grad()
        with amp.scale_loss(layer(torch.randn(5, 6)).float().sum() * 1e-2, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert amp.loss_scale() == 64
    largest = torch.linalg.matrix_norm(layer.weight.detach().float(), 2)
    assert largest.item() == pytest.approx(1, abs=2e-2)


def test_running_statistics_stay_finite() -> None:
    """pytorch#115500."""
    x = torch.tensor([[-1000.0], [1000.0]])
    naive = nn.BatchNorm1d(1).half()
    for _ in range(3):
        naive(x.half())
    assert not naive.running_var.isfinite().all()

    for level in ("O1", "O2"):
        model = amp.initialize(nn.BatchNorm1d(1), opt_level=level, verbosity=0)
        for _ in range(3):
            assert model(x).isfinite().all()
        assert model.running_var.item() == pytest.approx(2e6 * (1 - 0.9**3), rel=1e-3)
        amp.reset()


# -- around the training --------------------------------------------------------------------------


def test_the_local_rank_comes_from_the_environment() -> None:
    """timm#1724, BasicSR#626: launchers changed the spelling of the option."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--local_rank", type=int)
    known, unknown = parser.parse_known_args(["--local-rank=1"])
    assert (known.local_rank, unknown) == (None, ["--local-rank=1"])

    launched = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert resolve(launched).local_rank == 1


def penalty(critic: nn.Module, x: Tensor, scale: float, *, half: bool) -> Tensor:
    """How far the norm of the critic's gradient is from 1 (Gulrajani et al. 2017)."""
    (gradient,) = torch.autograd.grad(critic(x).float().sum() * scale, x, create_graph=True)
    gradient = gradient if half else gradient.float() / scale
    return ((gradient / scale if half else gradient).norm(dim=1) - 1).square().mean()


def test_a_gradient_penalty_is_that_of_fp32() -> None:
    """lightweight-gan#92, apex#654: NaN without end, and a scale of 0."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
    x = torch.randn(6, 4)
    exact = penalty(critic, x.clone().requires_grad_(), 1.0, half=False)
    gradients = torch.autograd.grad(exact, list(critic.parameters())[::2])

    naive = copy.deepcopy(critic).half()
    found = penalty(naive, x.half().requires_grad_(), 2.0**20, half=True)
    assert not found.isfinite(), "scaled inside of half precision"

    optimizer = torch.optim.SGD(critic.parameters(), lr=LR)
    amp.initialize(critic, optimizer, loss_scale="dynamic", verbosity=0)
    set_scale(64.0)
    loss = penalty(critic, x.clone().requires_grad_(), 64.0, half=False)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    for parameter, expected in zip(list(critic.parameters())[::2], gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=2e-2, atol=2e-3)
    optimizer.step()
    assert amp.stepped(optimizer)
