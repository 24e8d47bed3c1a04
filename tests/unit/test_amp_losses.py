"""`amp.scale_loss` with several models, optimizers and losses, against float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hpc_amp import amp
from hpc_amp.amp.scaler import ScaleFloorError

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


def set_scales(*scales: float) -> None:
    entries = ({"loss_scale": scale, "unskipped": 0} for scale in scales)
    amp.load_state_dict({f"loss_scaler{i}": entry for i, entry in enumerate(entries)})


def scales() -> list[float]:
    return [entry["loss_scale"] for entry in amp.state_dict().values()]


class Dot(nn.Module):
    """The inner product of weights and input, plus weights that stay fp32 at O2. Its numbers are
    exact in half precision, so every level has to agree with float64 to the bit."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.dot = nn.Parameter(torch.tensor(weights))
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.dot * x).sum() + self.norm.weight.sum() - 2 * self.norm.bias.sum()

    def weights(self) -> list[float]:
        return [*self.dot.tolist(), *self.norm.weight.tolist(), *self.norm.bias.tolist()]


@dataclass
class Exact:
    """The same training in float64, without any scale: what amp has to give."""

    weights: list[Tensor]
    owner: list[int]
    scales: list[float]
    gradients: list[Tensor] = field(init=False)
    overflown: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.weights = [w.double() for w in self.weights]
        self.zero()

    def zero(self) -> None:
        self.gradients = [torch.zeros_like(w) for w in self.weights]

    def backward(self, loss: int, models: list[int], factor: float, x: Tensor, bad: bool) -> None:
        for model in models:
            slope = torch.cat([x.double(), torch.tensor([1.0, -2.0]).double()])
            self.gradients[model] += factor * slope
        if bad:
            self.scales[loss] /= 2
            self.overflown |= {self.owner[model] for model in models}

    def step(self, lr: float) -> list[bool]:
        taken = [optimizer not in self.overflown for optimizer in range(max(self.owner) + 1)]
        for model, optimizer in enumerate(self.owner):
            if taken[optimizer]:
                self.weights[model] -= lr * self.gradients[model]
        self.overflown = set()
        return taken


@dataclass(frozen=True)
class Plan:
    """A training: which optimizer each model has, which models each loss is made of, and in which
    (iteration, loss) which weight's gradient overflows."""

    owner: tuple[int, ...]
    losses: tuple[tuple[int, ...], ...]
    start_scales: tuple[float, ...]
    overflow: dict[tuple[int, int], str]
    zeroing: str = "optimizer"
    parts: int = 1


LR = 0.125
ITERATIONS = 3


def carry_out(plan: Plan, level: str, **options: Any) -> None:
    """Train by `plan` at `level` and compare everything with the exact training."""
    stream = torch.Generator().manual_seed(len(plan.losses) + plan.parts)
    models = [Dot([1.0 + i, -0.5, 0.25]) for i in range(len(plan.owner))]
    exact = Exact([torch.tensor(m.weights()) for m in models], list(plan.owner), [])
    exact.scales = list(plan.start_scales)
    optimizers: list[Any] = []
    for index in range(max(plan.owner) + 1):
        groups = [
            {"params": m.parameters()}
            for m, o in zip(models, plan.owner, strict=True)
            if o == index
        ]
        optimizers.append(torch.optim.SGD(groups, lr=LR))
    amp.initialize(
        models, optimizers, opt_level=level, loss_scale="dynamic", num_losses=len(plan.losses),
        verbosity=0, **options,
    )  # fmt: skip
    set_scales(*plan.start_scales)
    for iteration in range(ITERATIONS):
        for holder in optimizers if plan.zeroing == "optimizer" else models:
            holder.zero_grad()
        exact.zero()
        for loss, involved in enumerate(plan.losses):
            passed = [optimizers[o] for o in sorted({plan.owner[m] for m in involved})]
            where = plan.overflow.get((iteration, loss))
            for part in range(plan.parts):
                x = torch.randint(-2, 3, (3,), generator=stream).float()
                value = sum((models[m](x) for m in involved), torch.zeros(())) * 2.0**loss
                last = part == plan.parts - 1
                with amp.scale_loss(value, passed, loss, delay_unscale=not last) as scaled:
                    scaled.backward()
                    if where is not None and last:
                        damaged = models[involved[-1]]
                        weight = damaged.dot if where == "half" else damaged.norm.weight
                        weight.grad[0] = torch.inf if loss % 2 else torch.nan
                bad = where is not None and last
                exact.backward(loss, list(involved), 2.0**loss, x, bad)
        for optimizer in optimizers:
            optimizer.step()
        taken = exact.step(LR)
        assert [amp.stepped(optimizer) for optimizer in optimizers] == taken
        assert scales() == exact.scales
        for model, expected in zip(models, exact.weights, strict=True):
            assert model.weights() == expected.tolist(), f"iteration {iteration}"


# apex's own matrix: two or three models, one or two optimizers, losses that share a model, scales 4
# and 16, an overflow in the first or the second iteration, in either kind of weight.
STRUCTURES = {
    "2 models 2 losses 1 optimizer": ((0, 0), ((0,), (0, 1))),
    "3 models 2 losses 1 optimizer": ((0, 0, 0), ((0, 1), (1, 2))),
    "2 models 2 losses 2 optimizers": ((0, 1), ((0, 1), (1,))),
    "3 models 2 losses 2 optimizers": ((0, 1, 0), ((0, 1), (2, 1))),
}
OVERFLOWS = [None, *product((0, 1), (0, 1), ("half", "norm"))]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("zeroing", ["optimizer", "model"])
@pytest.mark.parametrize("overflow", OVERFLOWS, ids=str)
def test_several_models_optimizers_and_losses(
    level: str, structure: str, zeroing: str, overflow: tuple[int, int, str] | None
) -> None:
    owner, losses = STRUCTURES[structure]
    found = {} if overflow is None else {overflow[:2]: overflow[2]}
    carry_out(Plan(owner, losses, (4.0, 16.0), found, zeroing), level)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    models = draw(st.integers(1, 3))
    owner = draw(st.lists(st.integers(0, models - 1), min_size=models, max_size=models))
    names = {name: index for index, name in enumerate(sorted(set(owner)))}
    losses = draw(
        st.lists(
            st.lists(st.integers(0, models - 1), min_size=1, max_size=3, unique=True).map(tuple),
            min_size=1, max_size=3,
        )
    )  # fmt: skip
    scale = st.integers(0, 6).map(lambda power: 2.0**power)
    start = draw(st.lists(scale, min_size=len(losses), max_size=len(losses)))
    place = st.tuples(st.integers(0, ITERATIONS - 1), st.integers(0, len(losses) - 1))
    overflow = draw(st.dictionaries(place, st.sampled_from(["half", "norm"]), max_size=3))
    return Plan(
        tuple(names[o] for o in owner), tuple(losses), tuple(start), overflow,
        draw(st.sampled_from(["optimizer", "model"])), draw(st.integers(1, 3)),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(plan=plans(), level=st.sampled_from(LEVELS), masters=st.booleans())
def test_any_training_is_that_of_float64(plan: Plan, level: str, masters: bool) -> None:
    """Whatever the structure, the scales, the overflows and the parts: the same weights, the same
    scales, the same steps."""
    options = {"master_weights": masters} if level != "O1" else {}
    try:
        carry_out(plan, level, **options)
    finally:
        amp.reset()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(5, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    level=st.sampled_from(["O1", "O2", "O3"]),
    power=st.integers(0, 12),
    parts=st.integers(1, 4),
)
def test_gradients_of_a_network_are_those_of_float64(
    seed: int, level: str, power: int, parts: int
) -> None:
    """To what half precision can hold, at any scale, in any number of parts."""
    torch.manual_seed(seed)
    model = Perceptron()
    exact = Perceptron().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    exact.load_state_dict(model.state_dict())
    set_scales(2.0**power)
    try:
        for x in torch.randn(parts, 6, 5):
            with amp.scale_loss(model(x).square().mean() / parts, optimizer) as scaled:
                scaled.backward()
            (exact(x.double()).square().mean() / parts).backward()
        ours = torch.cat([p.grad.flatten() for p in amp.master_params(optimizer)]).double()
        theirs = torch.cat([p.grad.flatten() for p in exact.parameters()])
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()
        assert scales() == [2.0**power], "nothing overflowed"
    finally:
        amp.reset()


# -- one model, one loss --------------------------------------------------------------------------


def single(level: str = "O1", lr: float = LR, **options: Any) -> tuple[nn.Linear, Any]:
    """A model with one weight, which starts at 1; its input is the gradient."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def backward(model: nn.Module, optimizer: Any, gradient: float = 1.0, **options: Any) -> None:
    with amp.scale_loss(model(torch.full((1, 1), gradient)).sum(), optimizer, **options) as scaled:
        scaled.backward()


def test_the_scaled_loss_is_fp32() -> None:
    """30 times 65536 is infinite in half precision."""
    _, optimizer = single()
    with amp.scale_loss(torch.tensor(30.0, dtype=torch.float16), optimizer) as scaled:
        assert (scaled.dtype, scaled.item()) == (torch.float32, 30 * 65536)


def test_a_scale_of_1_costs_nothing() -> None:
    """No gradient is touched: the short cut of apex."""
    model, optimizer = single("O1", loss_scale=1.0)
    model.weight.grad = torch.ones(1, 1)
    kept = model.weight.grad
    loss = torch.ones((), dtype=torch.float16)
    with amp.scale_loss(loss, optimizer) as scaled:
        assert (scaled.dtype, scaled.item()) == (torch.float32, 1)
        assert model.weight.grad is kept
    assert model.weight.grad is kept


@pytest.mark.parametrize("level", LEVELS)
def test_micro_batches_add_up(level: str) -> None:
    model, optimizer = single(level, loss_scale=64.0)
    for gradient in (1.0, 2.0, 4.0):
        backward(model, optimizer, gradient)
    optimizer.step()
    assert model.weight.item() == 1 - 7 * LR


@pytest.mark.parametrize("level", LEVELS)
def test_delayed_unscaling_adds_up_too(level: str) -> None:
    model, optimizer = single(level, loss_scale="dynamic")
    set_scales(64.0)
    backward(model, optimizer, 1.0, delay_unscale=True)
    backward(model, optimizer, 2.0, delay_unscale=True)
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 0, "no verdict yet"
    backward(model, optimizer, 4.0)
    assert amp.state_dict()["loss_scaler0"]["unskipped"] == 1
    optimizer.step()
    assert model.weight.item() == 1 - 7 * LR


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_overflow_in_a_delayed_part_skips_the_step(level: str) -> None:
    model, optimizer = single(level)
    set_scales(64.0)
    backward(model, optimizer, torch.inf, delay_unscale=True)
    backward(model, optimizer, 1.0)
    optimizer.step()
    assert (amp.stepped(optimizer), model.weight.item(), scales()) == (False, 1.0, [32.0])


def test_a_step_on_gradients_that_are_still_scaled_is_refused() -> None:
    model, optimizer = single()
    backward(model, optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="have the loss scale on them"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_clearing_gradients_clears_those_that_wait_for_a_later_part(level: str) -> None:
    model, optimizer = single(level)
    set_scales(64.0)
    backward(model, optimizer, 4.0)
    backward(model, optimizer, 2.0, delay_unscale=True)
    optimizer.zero_grad()
    backward(model, optimizer, 1.0)
    optimizer.step()
    assert model.weight.item() == 1 - LR


def test_an_optimizer_whose_zero_grad_takes_no_argument() -> None:
    class Old(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

    model = nn.Linear(1, 1, bias=False)
    optimizer = Old(model.parameters(), lr=LR)
    amp.initialize(model, optimizer, opt_level="O2", max_loss_scale=64.0, verbosity=0)
    backward(model, optimizer)
    optimizer.zero_grad()
    assert model.weight.grad is None
    assert next(amp.master_params(optimizer)).grad is None


def test_parts_at_different_scales_are_refused() -> None:
    model, optimizer = single(num_losses=2)
    set_scales(4.0, 8.0)
    backward(model, optimizer, loss_id=0, delay_unscale=True)
    with pytest.raises(RuntimeError, match=r"at scale 4 .* at scale 8: they cannot be added up"):
        backward(model, optimizer, loss_id=1)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_refused_pass_leaves_all_gradients_as_they_were(level: str) -> None:
    one, other = (nn.Linear(1, 1, bias=False) for _ in range(2))
    first, second = (torch.optim.SGD(m.parameters(), lr=LR) for m in (one, other))
    amp.initialize([one, other], [first, second], opt_level=level, num_losses=2, verbosity=0)
    set_scales(16.0, 32.0)
    backward(one, first)
    backward(other, second, loss_id=1, delay_unscale=True)
    with pytest.raises(RuntimeError, match="cannot be added up"):
        backward(one, [first, second])
    (weight,) = amp.master_params(first)
    assert weight.grad is not None
    assert weight.grad.item() == 1


def test_delay_overflow_check_neither_skips_nor_moves_the_scale() -> None:
    model, optimizer = single(loss_scale="dynamic")
    backward(model, optimizer, torch.inf, delay_overflow_check=True)
    optimizer.step()
    assert (amp.stepped(optimizer), scales()) == (True, [65536.0])
    assert not model.weight.isfinite().all()


def test_a_static_scale_never_skips_but_counts() -> None:
    model, optimizer = single(loss_scale=8.0)
    backward(model, optimizer, torch.inf)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 8.0, "unskipped": 1}
    optimizer.step()
    assert amp.stepped(optimizer)


def test_the_scale_grows_to_its_cap_and_falls_to_its_floor() -> None:
    model, optimizer = single(min_loss_scale=1024.0, max_loss_scale=4096.0)
    assert scales() == [4096.0]
    for expected in (2048.0, 1024.0, 1024.0):
        backward(model, optimizer, torch.inf)
        assert scales() == [expected]
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2048.0, "unskipped": 1999}})
    backward(model, optimizer)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 4096.0, "unskipped": 0}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 4096.0, "unskipped": 1999}})
    backward(model, optimizer)
    assert scales() == [4096.0]


def test_a_loss_that_is_never_finite_ends_with_an_explanation_and_whole_weights() -> None:
    model, optimizer = single("O2")
    for _ in range(30):
        optimizer.zero_grad()
        backward(model, optimizer, torch.nan)
        optimizer.step()
    with pytest.raises(ScaleFloorError, match=r"loss 0 overflowed 31 times .* at its floor"):
        backward(model, optimizer, torch.nan)
    assert model.weight.item() == 1
    assert scales() == [2.0**-14]


def test_a_script_that_catches_this_error_does_not_step_on_infinity() -> None:
    model, optimizer = single(min_loss_scale=2.0**16)
    for _ in range(21):
        optimizer.zero_grad()
        with contextlib.suppress(ScaleFloorError):
            backward(model, optimizer, torch.inf)
        optimizer.step()
        assert not amp.stepped(optimizer)
    assert model.weight.item() == 1


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_one_overflow_skips_one_step(level: str) -> None:
    model, optimizer = single(level, loss_scale="dynamic")
    set_scales(64.0)
    for gradient, expected in ((torch.inf, 1.0), (1.0, 1 - LR), (1.0, 1 - 2 * LR)):
        optimizer.zero_grad()
        backward(model, optimizer, gradient)
        optimizer.step()
        assert model.weight.item() == expected
    assert scales() == [32.0]


def test_an_optimizer_that_was_not_passed_is_not_touched() -> None:
    one, other = Dot([1.0]), Dot([1.0])
    first, second = (torch.optim.SGD(m.parameters(), lr=LR) for m in (one, other))
    amp.initialize([one, other], [first, second], verbosity=0)
    set_scales(4.0)
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    with amp.scale_loss(one(torch.full((1,), torch.inf)), [first]) as scaled:
        scaled.backward()
    first.step()
    second.step()
    assert (amp.stepped(first), amp.stepped(second)) == (False, True)
    assert other.dot.item() == 1 - LR


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_a_closure_is_refused_with_masters_or_a_skip(level: str) -> None:
    model, optimizer = single(level, loss_scale="dynamic")
    backward(model, optimizer, torch.inf)
    for call in (lambda: optimizer.step(lambda: None), lambda: optimizer.step(closure=print)):
        with pytest.raises(RuntimeError, match="cannot pass a closure"):
            call()


def test_a_closure_is_fine_at_o1() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, loss_scale=8.0, verbosity=0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).float().square().sum()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        return loss

    optimizer.step(closure)
    assert abs(model.weight.item()) < 0.5


def test_an_overflow_in_a_closure_skips_the_step() -> None:
    model, optimizer = single(loss_scale="dynamic")
    set_scales(8.0)
    for gradient, weight in ((torch.inf, 1.0), (1.0, 1 - LR)):

        def closure(gradient: float = gradient) -> None:
            optimizer.zero_grad()
            backward(model, optimizer, gradient)

        optimizer.step(closure)
        assert model.weight.item() == weight
        assert amp.stepped(optimizer) is (weight != 1)
    assert scales() == [4.0]


def test_an_overflow_in_a_later_call_of_a_closure_is_explained() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, verbosity=0)
    gradients = iter((1.0, torch.inf))
    with pytest.raises(RuntimeError, match="in call 2 of the closure, and LBFGS has changed"):
        optimizer.step(lambda: _loss_of(model, optimizer, next(gradients)))
    assert model.weight.isfinite().all()


def _loss_of(model: nn.Module, optimizer: Any, gradient: float) -> Tensor:
    optimizer.zero_grad()
    backward(model, optimizer, gradient)
    return torch.ones(())


def test_an_optimizer_made_later_is_unknown() -> None:
    model, _ = single()
    later = torch.optim.SGD(model.parameters(), lr=LR)
    with pytest.raises(RuntimeError, match="did not get this SGD"):
        backward(model, later)
    later.step()
    assert amp.stepped(later)


@pytest.mark.parametrize("loss_id", [1, -1])
def test_a_loss_id_out_of_range_is_explained(loss_id: int) -> None:
    model, optimizer = single()
    with pytest.raises(IndexError, match=f"loss_id {loss_id} does not exist.*num_losses=1"):
        backward(model, optimizer, loss_id=loss_id)


def test_backward_and_steps_are_without_casts() -> None:
    seen = []

    class Watching(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append(torch.is_autocast_enabled("cpu"))

    model = nn.Linear(1, 1)
    optimizer = Watching(model.parameters(), lr=LR)
    amp.initialize(model, optimizer, verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer):
        seen.append(torch.is_autocast_enabled("cpu"))
    optimizer.step()
    assert seen == [False, False]
    assert torch.is_autocast_enabled("cpu")


def test_sparse_gradients() -> None:
    for level in ("O1", "O2"):
        model = nn.Embedding(4, 2, sparse=True)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
        set_scales(16.0)
        for index in ([1, 1], [1, 2]):
            with amp.scale_loss(model(torch.tensor(index)).sum(), optimizer) as scaled:
                scaled.backward()
        optimizer.step()
        assert model.weight[:, 0].tolist() == [1, 1 - 3 * LR, 1 - LR, 1]
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.tensor([0])).sum() * torch.inf, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        assert not amp.stepped(optimizer)
        amp.reset()


def test_a_sparse_gradient_joins_a_dense_one() -> None:
    """Tied weights get a dense gradient as a matrix and a sparse one as an embedding."""
    model = nn.Embedding(2, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    amp.initialize(model, optimizer, loss_scale=16.0, verbosity=0)
    for loss in (model.weight.sum(), model(torch.tensor([1])).sum(), model.weight.sum()):
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[2, 2], [3, 3]]


@pytest.mark.parametrize("level", LEVELS)
def test_a_parameter_of_two_optimizers_is_unscaled_once(level: str) -> None:
    model, other = (nn.Linear(1, 1, bias=False) for _ in range(2))
    first = torch.optim.SGD(model.parameters(), lr=LR)
    second = torch.optim.SGD([*other.parameters(), *model.parameters()], lr=LR)
    both = [first, second, first]
    amp.initialize([model, other], [first, second], opt_level=level, loss_scale=8.0, verbosity=0)
    (shared,) = amp.master_params(first)

    def failing() -> None:
        with amp.scale_loss(model(torch.ones(1, 1)).sum(), both) as scaled:
            scaled.backward()
            raise MemoryError

    for gradients in (1, 2):
        backward(model, both)
        assert shared.grad is not None
        assert shared.grad.item() == gradients
        with pytest.raises(MemoryError):
            failing()
        assert shared.grad.item() == gradients


def test_a_gradient_of_many_large_fp16_numbers_is_no_overflow() -> None:
    """Their norm is, in fp16."""
    model = nn.Linear(1000, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    amp.initialize(model, optimizer, opt_level="O3", loss_scale="dynamic", verbosity=0)
    set_scales(1.0)
    with amp.scale_loss(model(torch.full((1, 1000), 6e4)).sum(), optimizer) as scaled:
        scaled.backward()
    assert scales() == [1.0]
    assert torch.equal(model.weight.grad, torch.full((1, 1000), 6e4, dtype=torch.float16))


class Larc:
    """A wrapper around an optimizer, as apex has one: it changes gradients before the step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optim = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optim, name)

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        self.optim.step()


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrapper_around_an_optimizer(level: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = Larc(torch.optim.SGD(model.parameters(), lr=LR))
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    set_scales(64.0)
    for gradient in (torch.inf, 1.0):
        optimizer.zero_grad()
        backward(model, optimizer, gradient)
        optimizer.step()
    assert (model.weight.item(), scales()) == (1 - LR / 2, [32.0])


# -- groups of parameters that are added later ----------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("when", ["before initialize", "before training", "while training"])
@pytest.mark.parametrize("zeroing", ["optimizer", "model"])
@pytest.mark.parametrize("overflow", [None, 0, 1])
def test_a_group_can_be_added_at_any_time(
    level: str, when: str, zeroing: str, overflow: int | None
) -> None:
    model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    for layer in model:
        nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=LR)
    new = {"params": model[1].parameters(), "lr": 2 * LR}
    if when == "before initialize":
        optimizer.add_param_group(new)
    amp.initialize([*model], optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    set_scales(16.0)
    if when == "before training":
        optimizer.add_param_group(new)
    expected = [1.0, 1.0]
    for iteration in range(3):
        if when == "while training" and iteration == 1:
            optimizer.add_param_group(new)
        (optimizer if zeroing == "optimizer" else model).zero_grad()
        bad = iteration == overflow
        x = torch.full((1, 1), torch.inf if bad else 1.0)
        with amp.scale_loss(model[0](x).sum() + model[1](x).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        if not bad:
            expected[0] -= LR
            expected[1] -= 2 * LR * (len(optimizer.param_groups) == 2)
        assert [layer.weight.item() for layer in model] == expected
    assert len(list(amp.master_params(optimizer))) == 2


def test_a_group_that_is_added_joins_gradients_that_are_there() -> None:
    one, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(one.parameters(), lr=LR)
    amp.initialize([one, other], optimizer, opt_level="O2", verbosity=0)
    set_scales(16.0)
    before = one.weight.item(), other.weight.item()
    backward(one, optimizer)
    optimizer.add_param_group({"params": list(other.parameters())})
    backward(other, optimizer)
    backward(one, optimizer)
    optimizer.step()
    moved = before[0] - one.weight.item(), before[1] - other.weight.item()
    assert moved == pytest.approx((2 * LR, LR), abs=2e-3)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_group_of_the_wrong_kind_is_refused(level: str) -> None:
    model, optimizer = single(level)
    other = nn.Linear(1, 1).half()
    with pytest.raises(AssertionError, match="is a dict, not a list"):
        optimizer.add_param_group([other.weight])
    with pytest.raises(TypeError, match="give a list, not a set"):
        optimizer.add_param_group({"params": {other.weight}})
    with pytest.raises(ValueError, match="more than one"):
        optimizer.add_param_group({"params": [model.weight]})
    if level == "O2":
        with pytest.raises(TypeError, match=r"type torch\.float64"):
            optimizer.add_param_group({"params": [other.double().weight]})
    assert len(optimizer.param_groups) == 1
