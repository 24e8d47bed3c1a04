"""O1: which function computes in which type, casts of the user's functions, RNNs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp import amp
from hpc_amp.amp import registry

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    noted = dict(registry.registered)
    yield
    amp.reset()
    registry.registered.clear()
    registry.registered.update(noted)


@pytest.fixture
def casts(request: pytest.FixtureRequest) -> None:
    """O1, without a model: functions are what is tested."""
    amp.initialize([], verbosity=0)


O1 = pytest.mark.usefixtures("casts")


def half(*shape: int) -> Tensor:
    return torch.rand(*shape).to(HALF)


def square() -> Tensor:
    return torch.rand(2, 2)


TO_HALF: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: F.linear(square(), square()),
    "conv1d": lambda: F.conv1d(torch.rand(1, 1, 4), torch.rand(1, 1, 3)),
    "conv2d": lambda: F.conv2d(torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)),
    "conv3d": lambda: F.conv3d(torch.rand(1, 1, 4, 4, 4), torch.rand(1, 1, 3, 3, 3)),
    "conv_transpose1d": lambda: F.conv_transpose1d(torch.rand(1, 1, 4), torch.rand(1, 1, 3)),
    "conv_transpose2d": lambda: F.conv_transpose2d(torch.rand(1, 1, 4, 4), torch.rand(1, 1, 3, 3)),
    "conv_tbc": lambda: torch.conv_tbc(torch.rand(4, 1, 2), torch.rand(3, 2, 2), torch.rand(2)),
    "prelu": lambda: F.prelu(square(), torch.rand(2)),
    "addmm": lambda: torch.addmm(square(), square(), square()),
    "addmv": lambda: torch.addmv(torch.rand(2), square(), torch.rand(2)),
    "addr": lambda: torch.addr(square(), torch.rand(2), torch.rand(2)),
    "matmul": lambda: torch.matmul(square(), square()),
    "@": lambda: square() @ square(),
    "mm": lambda: square().mm(square()),
    "mv": lambda: square().mv(torch.rand(2)),
    "bmm": lambda: torch.bmm(torch.rand(1, 2, 2), torch.rand(1, 2, 2)),
    "addbmm": lambda: torch.addbmm(square(), torch.rand(1, 2, 2), torch.rand(1, 2, 2)),
    "baddbmm": lambda: torch.rand(1, 2, 2).baddbmm(torch.rand(1, 2, 2), torch.rand(1, 2, 2)),
}


def target() -> Tensor:
    return torch.tensor([0, 1])


TO_FLOAT: dict[str, Callable[[], Tensor]] = {
    "interpolate": lambda: F.interpolate(half(1, 1, 2, 2), scale_factor=2, mode="bilinear"),
    "grid_sample": lambda: F.grid_sample(half(1, 1, 2, 2), half(1, 2, 2, 2), align_corners=False),
    "softplus": lambda: F.softplus(half(2)),
    "softmin": lambda: F.softmin(half(2), dim=0),
    "softmax": lambda: F.softmax(half(2), dim=0),
    "Tensor.softmax": lambda: half(2).softmax(0),
    "log_softmax": lambda: F.log_softmax(half(2), dim=0),
    "gelu": lambda: F.gelu(half(2)),
    "layer_norm": lambda: F.layer_norm(half(2, 2), (2,)),
    "group_norm": lambda: F.group_norm(half(1, 2, 2), 2),
    "local_response_norm": lambda: F.local_response_norm(half(1, 2, 2), 1),
    "normalize": lambda: F.normalize(half(2, 2)),
    "cosine_similarity": lambda: F.cosine_similarity(half(2, 2), half(2, 2)),
    "mse_loss": lambda: F.mse_loss(half(2), half(2)),
    "l1_loss": lambda: F.l1_loss(half(2), half(2)),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(half(2), half(2)),
    "cross_entropy": lambda: F.cross_entropy(half(2, 2), target()),
    "nll_loss": lambda: F.nll_loss(half(2, 2), target()),
    "kl_div": lambda: F.kl_div(half(2), half(2), reduction="sum"),
    "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(half(2), half(2)),
    "poisson_nll_loss": lambda: F.poisson_nll_loss(half(2), half(2)),
    "soft_margin_loss": lambda: F.soft_margin_loss(half(2), half(2)),
    "hinge_embedding_loss": lambda: F.hinge_embedding_loss(half(2), half(2)),
    "margin_ranking_loss": lambda: F.margin_ranking_loss(half(2), half(2), half(2)),
    "multi_margin_loss": lambda: F.multi_margin_loss(half(2, 2), target()),
    "multilabel_soft_margin_loss": lambda: F.multilabel_soft_margin_loss(half(2, 2), half(2, 2)),
    "triplet_margin_loss": lambda: F.triplet_margin_loss(half(2, 2), half(2, 2), half(2, 2)),
    "cosine_embedding_loss": lambda: F.cosine_embedding_loss(half(2, 2), half(2, 2), torch.ones(2)),
    "ctc_loss": lambda: F.ctc_loss(
        half(3, 1, 3).log(), torch.ones(1, 1).long(), torch.tensor([3]), torch.tensor([1])
    ),
    "exp": lambda: half(2).exp(),
    "expm1": lambda: torch.expm1(half(2)),
    "log": lambda: half(2).log(),
    "log10": lambda: half(2).log10(),
    "log1p": lambda: half(2).log1p(),
    "log2": lambda: half(2).log2(),
    "acos": lambda: torch.acos(half(2)),
    "asin": lambda: torch.asin(half(2)),
    "cosh": lambda: torch.cosh(half(2)),
    "sinh": lambda: torch.sinh(half(2)),
    "tan": lambda: torch.tan(half(2)),
    "erfinv": lambda: half(2).erfinv(),
    "reciprocal": lambda: half(2).reciprocal(),
    "1 /": lambda: 1 / half(2),
    "rsqrt": lambda: half(2).rsqrt(),
    "pow": lambda: half(2).pow(2),
    "**": lambda: half(2) ** 2,
    "2 **": lambda: 2 ** half(2),
    "sum": lambda: half(2).sum(),
    "prod": lambda: half(2).prod(),
    "cumsum": lambda: half(2).cumsum(0),
    "cumprod": lambda: half(2).cumprod(0),
    "norm": lambda: half(2).norm(),
    "dist": lambda: torch.dist(half(2), half(2)),
    "renorm": lambda: half(2, 2).renorm(2, 0, 1.0),
    "std": lambda: half(2).std(),
    "var": lambda: torch.var(half(2)),
    "cpu": lambda: half(2).cpu(),
}

NO_HALF_KERNEL = {"ctc_loss", "multi_margin_loss"}
"""Of these torch has no kernel on CPUs that computes in half precision."""

AS_GIVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(
        x, torch.zeros(2), torch.ones(2), torch.ones(2), torch.ones(2), training=True
    ),
    "dropout": F.dropout,
    "mean": torch.mean,
    "cat of one type": lambda x: torch.cat([x, x]),
}

TO_WIDEST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": torch.mul,
    "*": lambda a, b: a * b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "/": lambda a, b: a / b,
    "atan2": torch.atan2,
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "vdot": lambda a, b: torch.vdot(a[0], b[0]),
    "cross": lambda a, b: torch.cross(a, b, dim=1),
    "bilinear": lambda a, b: F.bilinear(a, b, torch.rand(1, 3, 3).to(a.dtype)),
    "addcmul": lambda a, b: torch.addcmul(a, b, a),
    "addcdiv": lambda a, b: a.addcdiv(b, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack((a, b)),
}


@O1
@pytest.mark.parametrize("name", TO_HALF)
def test_fp32_becomes_half(name: str) -> None:
    assert TO_HALF[name]().dtype is HALF


@pytest.mark.parametrize("name", TO_HALF)
def test_outside_of_o1_it_stays_fp32(name: str) -> None:
    """The control."""
    assert TO_HALF[name]().dtype is FLOAT


@O1
@pytest.mark.parametrize("name", TO_FLOAT)
def test_half_becomes_fp32(name: str) -> None:
    assert TO_FLOAT[name]().dtype is FLOAT


@pytest.mark.parametrize("name", sorted(TO_FLOAT.keys() - NO_HALF_KERNEL))
def test_outside_of_o1_it_stays_half(name: str) -> None:
    """The control."""
    assert TO_FLOAT[name]().dtype is HALF


@O1
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("name", AS_GIVEN)
def test_the_rest_computes_in_what_it_is_given(name: str, dtype: torch.dtype) -> None:
    assert AS_GIVEN[name](torch.rand(2, 2, 4, 4).to(dtype)).dtype is dtype


@O1
@pytest.mark.parametrize("first", [HALF, FLOAT])
@pytest.mark.parametrize("second", [HALF, FLOAT])
@pytest.mark.parametrize("name", TO_WIDEST)
def test_several_types_become_the_widest(
    name: str, first: torch.dtype, second: torch.dtype
) -> None:
    result = TO_WIDEST[name](torch.rand(2, 3).to(first), torch.rand(2, 3).to(second))
    assert result.dtype is (HALF if first is second is HALF else FLOAT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_same_rules_hold_on_a_gpu() -> None:
    amp.initialize(nn.Linear(1, 1).cuda(), verbosity=0)
    found = {}
    with torch.device("cuda"):
        for name, compute in {**TO_HALF, **TO_FLOAT}.items():
            found[name] = compute().dtype
        for name, combine in TO_WIDEST.items():
            found[name] = combine(half(2, 3), torch.rand(2, 3)).dtype
    expected = {name: HALF if name in TO_HALF else FLOAT for name in found}
    assert found == expected
    with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.rand(2, device="cuda"), torch.ones(2, device="cuda"))


@O1
def test_comparisons_take_mixed_types() -> None:
    a, b = half(3), torch.rand(3)
    for compare in (torch.lt, torch.eq, torch.ge, lambda x, y: x > y, lambda x, y: x != y):
        assert compare(a, b).dtype is torch.bool


@O1
def test_double_is_left_alone() -> None:
    x = torch.rand(2, 2).double()
    assert (x @ x).dtype is x.exp().dtype is torch.mv(x, x[0]).dtype is torch.float64


@O1
def test_in_place_fp32_functions_cannot_change_half_tensors() -> None:
    x = half(2)
    with pytest.raises(NotImplementedError, match=r"exp in fp32.*without the underscore"):
        x.exp_()
    with pytest.raises(NotImplementedError, match="pow in fp32"):
        x.pow_(2)
    wide = torch.ones(2)
    assert torch.equal(wide.exp_(), torch.ones(2).exp())


@O1
def test_a_power_by_assignment_makes_a_new_tensor_of_fp32() -> None:
    """As in apex. In place it would overflow: 300 ** 2 is more than fp16 can hold."""
    x = torch.full((2,), 300.0, dtype=HALF)
    before = x
    x **= 2
    assert (x.dtype, x.tolist(), before.tolist()) == (FLOAT, [9e4] * 2, [300] * 2)
    wide = same = torch.full((2,), 3.0)
    wide **= 2
    assert wide is same
    assert wide.tolist() == [9, 9]
    with amp.disable_casts():
        before **= 1
    assert before.dtype is HALF


@O1
def test_in_place_arithmetic_keeps_the_type_of_its_tensor() -> None:
    for dtype, other in ((HALF, FLOAT), (FLOAT, HALF)):
        x = torch.ones(2, dtype=dtype)
        x += torch.ones(2, dtype=other)
        assert (x.dtype, x.tolist()) == (dtype, [2, 2])


@O1
def test_binary_cross_entropy_is_refused_with_advice() -> None:
    p, target = torch.rand(2), torch.ones(2)
    with pytest.raises(NotImplementedError, match="use binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(p.half(), target)
    with pytest.raises(NotImplementedError, match="register_float_function"):
        nn.BCELoss()(p, target=target.half())
    with amp.disable_casts():
        assert F.binary_cross_entropy(p, target).dtype is FLOAT


def test_binary_cross_entropy_of_fp32_tensors_is_allowed() -> None:
    """apex's advice to those who keep their sigmoid: let it be fp32."""
    amp.register_float_function(torch, "sigmoid")
    model = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
    amp.initialize(model, verbosity=0)
    loss = nn.BCELoss()(model(torch.rand(3, 2)), torch.ones(3, 1))
    assert loss.dtype is FLOAT
    loss.backward()


def test_binary_cross_entropy_is_allowed_once_it_is_registered() -> None:
    amp.register_float_function(F, "binary_cross_entropy")
    amp.initialize([], verbosity=0)
    assert nn.BCELoss()(half(2), half(2)).dtype is FLOAT


# -- where casts are on ---------------------------------------------------------------------------


@O1
def test_casts_can_be_switched_off_for_a_while() -> None:
    with amp.disable_casts():
        assert (square() @ square()).dtype is FLOAT
        assert half(2).exp().dtype is HALF
        assert half(2).exp_().dtype is HALF
    assert (square() @ square()).dtype is HALF


def test_disable_casts_does_nothing_without_o1() -> None:
    with amp.disable_casts():
        assert (square() @ square()).dtype is FLOAT


def test_o1_without_patched_functions_casts_nothing() -> None:
    amp.initialize([], patch_torch_functions=False, verbosity=0)
    assert (square() @ square()).dtype is FLOAT
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 65536


@O1
def test_autocast_of_torch_is_the_same_switch() -> None:
    with torch.autocast("cpu", enabled=False):
        assert half(2).exp().dtype is HALF
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (square() @ square()).dtype is torch.bfloat16


@O1
def test_evaluation_is_cast_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    with torch.no_grad():
        assert model(square()).dtype is HALF


@O1
def test_other_threads_compute_as_they_are_told() -> None:
    seen: list[torch.dtype] = []

    def work() -> None:
        seen.append((square() @ square()).dtype)
        with torch.autocast("cpu", dtype=HALF):
            seen.append(F.softmax(square() @ square(), dim=0).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [FLOAT, FLOAT]


def test_bf16() -> None:
    amp.initialize([], dtype=torch.bfloat16, verbosity=0)
    product = square() @ square()
    assert product.dtype is torch.bfloat16
    assert torch.mv(square(), torch.rand(2)).dtype is torch.bfloat16
    assert F.softmax(product, dim=0).dtype is FLOAT


def test_a_torch_without_this_autocast_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.1 raises when it enters fp16 autocast on a CPU."""

    class Raises:
        def __init__(self, *args: object, **more: object) -> None: ...

        def __enter__(self) -> None:
            raise RuntimeError("AutocastCPU only support Bfloat16")

        def __exit__(self, *args: object) -> None: ...

    exp = torch.exp
    monkeypatch.setattr(torch, "autocast", Raises)
    with pytest.raises(RuntimeError, match="no fp16 autocast on cpu"):
        amp.initialize(nn.Linear(1, 1), verbosity=0)
    assert torch.exp is exp


@O1
def test_functions_keep_their_names() -> None:
    assert (F.softmax.__name__, torch.Tensor.sum.__name__) == ("softmax", "sum")


# -- training, evaluating, training: stale casts --------------------------------------------------


@pytest.mark.parametrize("start", ["train", "evaluate"])
def test_weights_are_cast_anew_after_every_change(start: str) -> None:
    """apex's test of its cache: no forward pass may see weights from before a step, nor may a cast
    made without a graph be used where a gradient is wanted."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    amp.initialize(model, optimizer, loss_scale=8.0, verbosity=0)
    x = torch.eye(4)

    def evaluate() -> None:
        with torch.no_grad():
            assert torch.equal(model(x), model.weight.t().half())

    def train() -> None:
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        with amp.scale_loss(model(x).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        assert torch.equal(model.weight, before - 1)

    steps = (train, evaluate) if start == "train" else (evaluate, train)
    for _ in range(2):
        for step in steps:
            step()
    with torch.no_grad():
        model.weight.fill_(3)
    evaluate()


# -- the user's functions -------------------------------------------------------------------------


def types(*tensors: Tensor) -> list[torch.dtype]:
    return [tensor.dtype for tensor in tensors]


def test_decorated_functions_cast_while_o1_is_on() -> None:
    decorated = [amp.half_function(types), amp.float_function(types), amp.promote_function(types)]
    assert [f(half(1), torch.rand(1)) for f in decorated] == [[HALF, FLOAT]] * 3
    amp.initialize([], verbosity=0)
    expected = [[HALF, HALF], [FLOAT, FLOAT], [FLOAT, FLOAT]]
    assert [f(half(1), torch.rand(1)) for f in decorated] == expected
    with amp.disable_casts():
        assert [f(half(1), torch.rand(1)) for f in decorated] == [[HALF, FLOAT]] * 3
    amp.reset()
    assert [f(half(1), torch.rand(1)) for f in decorated] == [[HALF, FLOAT]] * 3
    assert decorated[0].__name__ == "types"


@O1
def test_arguments_are_cast_wherever_they_are() -> None:
    seen: list[Any] = []

    @amp.float_function
    def function(*args: Any, **kwargs: Any) -> None:
        seen.extend([args, kwargs])

    function([half(1), (half(1), 3)], "text", key={"inner": half(1)}, index=torch.tensor([1]))
    (first, text), kwargs = seen
    assert types(first[0], first[1][0], kwargs["key"]["inner"]) == [FLOAT] * 3
    assert (first[1][1], text, kwargs["index"].dtype) == (3, "text", torch.int64)


class Library:
    """Somebody's module."""

    __name__ = "library"

    @staticmethod
    def types(*tensors: Tensor) -> list[torch.dtype]:
        return types(*tensors)

    @staticmethod
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def test_registered_functions_cast_from_initialize_on() -> None:
    library = Library()
    amp.register_half_function(library, "types")
    assert library.types(torch.rand(1)) == [FLOAT]
    amp.initialize([], verbosity=0)
    assert library.types(torch.rand(1)) == [HALF]
    amp.reset()
    assert library.types(torch.rand(1)) == [FLOAT]
    assert "types" not in vars(library)


def test_a_registered_static_method_stays_one() -> None:
    amp.register_half_function(Library, "types")
    before = vars(Library)["types"]
    amp.initialize([], verbosity=0)
    assert Library.types(torch.rand(1)) == Library().types(torch.rand(1)) == [HALF]
    amp.reset()
    assert vars(Library)["types"] is before


@pytest.mark.parametrize("register", [amp.register_float_function, amp.register_promote_function])
def test_functions_inside_of_a_registered_one_have_their_own_rules(register: Any) -> None:
    library = Library()
    register(library, "types")
    register(library, "product")
    amp.initialize([], verbosity=0)
    assert library.types(half(1), torch.rand(1)) == [FLOAT, FLOAT]
    assert library.product(half(2, 2), square()).dtype is HALF


def test_a_registered_function_of_torch_computes_in_the_registered_type() -> None:
    amp.register_float_function(torch, "matmul")
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(F, "softmax")
    amp.initialize([], verbosity=0)
    assert torch.matmul(half(2, 2), half(2, 2)).dtype is FLOAT
    assert torch.sigmoid(half(2)).dtype is FLOAT
    assert F.softmax(torch.rand(2), dim=0).dtype is HALF


@pytest.mark.parametrize(
    "register",
    [amp.register_half_function, amp.register_float_function, amp.register_promote_function],
)
def test_registering_what_is_not_there_or_too_late_is_refused(register: Any) -> None:
    with pytest.raises(ValueError, match="library has no function 'nothing'"):
        register(Library(), "nothing")
    amp.initialize([], verbosity=0)
    with pytest.raises(RuntimeError, match=r"after amp\.initialize"):
        register(Library(), "types")


# -- RNNs -----------------------------------------------------------------------------------------


@O1
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_rnns_compute_in_half_and_train_in_fp32(
    kind: type[nn.RNNBase], layers: int, bidirectional: bool, dtype: torch.dtype
) -> None:
    rnn = kind(3, 4, num_layers=layers, bidirectional=bidirectional)
    x = torch.rand(5, 2, 3).to(dtype).requires_grad_()
    results, state = rnn(x)
    assert results.dtype is HALF
    assert {tensor.dtype for tensor in (state if kind is nn.LSTM else [state])} == {HALF}
    results.sum().backward()
    assert x.grad is not None and x.grad.dtype is dtype
    assert {p.grad.dtype for p in rnn.parameters() if p.grad is not None} == {FLOAT}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in rnn.parameters())


@O1
@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_cells_compute_in_half_over_many_steps(kind: type[nn.RNNCellBase]) -> None:
    cell = kind(3, 4)
    state = None
    for x in torch.rand(6, 2, 3):
        state = cell(x, state)
        assert (state[0] if isinstance(state, tuple) else state).dtype is HALF
    (state[0] if isinstance(state, tuple) else state).sum().backward()
    assert {p.grad.dtype for p in cell.parameters() if p.grad is not None} == {FLOAT}


@O1
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences(kind: type[nn.RNNBase]) -> None:
    packed = nn.utils.rnn.pack_sequence([torch.rand(4, 3), torch.rand(2, 3)])
    results, _ = kind(3, 4)(packed)
    assert results.data.dtype is HALF
    assert results.batch_sizes.dtype is torch.int64


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_the_gradients_of_an_rnn_are_those_of_float64(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    rnn = kind(3, 4, num_layers=2)
    exact = kind(3, 4, num_layers=2).double()
    exact.load_state_dict(rnn.state_dict())
    optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
    amp.initialize(rnn, optimizer, loss_scale=64.0, verbosity=0)
    x = torch.rand(5, 2, 3)
    with amp.scale_loss(rnn(x)[0].sum(), optimizer) as scaled:
        scaled.backward()
    exact(x.double())[0].sum().backward()
    for ours, theirs in zip(rnn.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-2, atol=1e-2)
