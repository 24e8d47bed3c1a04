"""O0, O2 and O3: models in another type, what goes in and out, checkpoints, master weights."""

from __future__ import annotations

import copy
import io
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp import amp
from hpc_amp.amp.function_casts import FunctionCasts
from hpc_amp.amp.loss_gradients import LossGradients
from hpc_amp.amp.master_weights import MasterWeights, copy_each
from hpc_amp.amp.model_casts import cast_model
from hpc_amp.amp.scaler import LossScaler
from hpc_amp.config.schema import Precision

HALF, FLOAT = torch.float16, torch.float32
LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


class Net(nn.Module):
    """A part of everything: convolution, batch norm with and without weights, instance norm, an
    integer buffer, an RNN."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.plain_bn = nn.BatchNorm2d(4, affine=False)
        self.instance_norm = nn.InstanceNorm2d(4, affine=True)
        self.rnn = nn.GRU(4, 3)
        self.head = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.dtype)
        x = self.instance_norm(self.plain_bn(self.bn(self.conv(x)))).relu()
        return self.head(self.rnn(x.flatten(2).permute(2, 0, 1))[0][-1])


def sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **more)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(6, 2, 5, 5, generator=stream), torch.tensor([0, 1, 0, 1, 1, 0])


def train(model: nn.Module, optimizer: Any, seeds: range, loss_id: int = 0) -> None:
    for seed in seeds:
        x, target = batch(seed)
        optimizer.zero_grad()
        with amp.scale_loss(F.cross_entropy(model(x), target), optimizer, loss_id) as scaled:
            scaled.backward()
        optimizer.step()


# -- types of weights, inputs and results ---------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "options", "conv", "bn", "plain_bn"),
    [
        ("O0", {}, FLOAT, FLOAT, FLOAT),
        ("O1", {}, FLOAT, FLOAT, FLOAT),
        ("O2", {}, HALF, FLOAT, HALF),
        ("O2", {"keep_batchnorm_fp32": False}, HALF, HALF, HALF),
        ("O3", {}, HALF, HALF, HALF),
        ("O3", {"keep_batchnorm_fp32": "True"}, HALF, FLOAT, HALF),
        ("O2", {"cast_model_type": False}, FLOAT, FLOAT, FLOAT),
        ("O2", {"dtype": torch.bfloat16}, torch.bfloat16, FLOAT, torch.bfloat16),
    ],
)
def test_the_types_of_weights(
    level: str, options: dict[str, Any], conv: Any, bn: Any, plain_bn: Any
) -> None:
    model = amp.initialize(Net(), opt_level=level, verbosity=0, **options)
    assert {t.dtype for t in (model.conv.weight, model.head.bias, model.rnn.weight_hh_l0)} == {conv}
    assert model.instance_norm.weight.dtype is conv
    assert model.bn.weight.dtype is model.bn.running_mean.dtype is bn
    assert model.plain_bn.running_var.dtype is plain_bn
    assert model.calls.dtype is model.bn.num_batches_tracked.dtype is torch.int64
    inside = FLOAT if level == "O1" or conv is FLOAT else conv
    result = model(batch()[0])
    assert model.seen == [inside]
    assert result.dtype is (HALF if level == "O1" else FLOAT)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("outputs", [torch.float16, torch.float32, torch.float64])
def test_results_have_the_type_that_was_asked_for(level: str, outputs: torch.dtype) -> None:
    model = amp.initialize(Net(), opt_level=level, cast_model_outputs=outputs, verbosity=0)
    assert model(batch()[0]).dtype is outputs


class Movable:
    """Something with a `to` of its own."""

    def __init__(self, dtype: torch.dtype = FLOAT) -> None:
        self.dtype = dtype

    def to(self, dtype: torch.dtype) -> Movable:
        return Movable(dtype)


Pair = namedtuple("Pair", ["x", "y"])


class Nested(nn.Module):
    """Gives back what it was given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.given = args, kwargs
        return {"all": [args, kwargs]}


def test_tensors_are_cast_wherever_they_are_and_nothing_else_is() -> None:
    model = amp.initialize(Nested(), opt_level="O3", verbosity=0)
    array, other = np.zeros(2), nn.Linear(1, 1)
    x, index = torch.rand(2), torch.tensor([1, 2])
    returned = model(
        Pair(x, "text"), [x, (x, {x})], array, index, other, Movable(), 3,
        key={"deep": {"x": x}}, nothing=None,
    )  # fmt: skip
    args, kwargs = model.given
    assert isinstance(args[0], Pair) and args[0].x.dtype is HALF and args[0].y == "text"
    assert args[1][0].dtype is args[1][1][0].dtype is HALF
    assert {t.dtype for t in args[1][1][1]} == {HALF}
    assert args[2] is array and args[3] is index and args[6] == 3
    assert args[4] is other and other.weight.dtype is FLOAT
    assert args[5].dtype is HALF
    assert kwargs["key"]["deep"]["x"].dtype is HALF and kwargs["nothing"] is None
    args, kwargs = returned["all"]
    assert args[0].x.dtype is args[1][1][0].dtype is kwargs["key"]["deep"]["x"].dtype is FLOAT
    assert args[5].dtype is FLOAT


def test_packed_sequences_are_cast() -> None:
    model = amp.initialize(nn.LSTM(3, 4), opt_level="O2", verbosity=0)
    results, state = model(nn.utils.rnn.pack_sequence([torch.rand(4, 3), torch.rand(2, 3)]))
    assert isinstance(results, nn.utils.rnn.PackedSequence)
    assert results.data.dtype is state[0].dtype is FLOAT


@pytest.mark.parametrize("torch_has_one_call", [True, False])
def test_tensors_of_several_types_are_copied_at_once(
    monkeypatch: pytest.MonkeyPatch, torch_has_one_call: bool
) -> None:
    if not torch_has_one_call:  # torch 2.1
        monkeypatch.delattr(torch, "_foreach_copy_")
    sources = [torch.tensor([1 / 3, 70000.0]), torch.eye(3), torch.tensor(2.0)]
    targets = [torch.zeros(2, dtype=HALF), torch.zeros(3, 3, dtype=torch.bfloat16), torch.zeros(())]
    copy_each(targets, sources)
    assert all(torch.equal(t, s.to(t.dtype)) for t, s in zip(targets, sources, strict=True))
    copy_each([], [])


def test_a_double_model_becomes_fp32_at_o0() -> None:
    model = amp.initialize(nn.Linear(2, 2).double(), opt_level="O0", verbosity=0)
    assert model.weight.dtype is FLOAT
    assert model(torch.rand(1, 2).double()).dtype is FLOAT


def test_gradients_that_are_there_are_cast_with_their_weights() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    amp.initialize(model, opt_level="O3", verbosity=0)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad.dtype is HALF
    assert torch.equal(model.weight.grad, torch.full((2, 2), 2, dtype=HALF))


def test_an_optimizer_that_has_run_before_goes_on_with_its_state() -> None:
    """Its moments, too, get the type of what it works on."""
    for level, expected in (("O0", FLOAT), ("O2", FLOAT), ("O3", HALF)):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        moment = optimizer.state[model.weight]["exp_avg"].clone()
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        (state,) = [s for p, s in optimizer.state.items() if p.ndim == 2]
        assert state["exp_avg"].dtype is expected
        torch.testing.assert_close(state["exp_avg"].float(), moment, rtol=1e-3, atol=1e-6)
        assert list(optimizer.state) == list(amp.master_params(optimizer))
        optimizer.step()
        amp.reset()


# -- copies of a model ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_copy_computes_with_its_own_weights(level: str) -> None:
    """An average of the weights is usually a deep copy."""
    net = nn.Linear(2, 2, bias=False)
    model, _ = amp.initialize(net, sgd(net), opt_level=level, verbosity=0)
    average = copy.deepcopy(model)
    with torch.no_grad():
        average.weight.zero_()
    x = torch.ones(1, 2)
    assert average(x).dtype is FLOAT
    assert average(x).abs().sum() == 0 < model(x).abs().sum()
    assert average.state_dict()["weight"].abs().sum() == 0, "not the masters of the original"
    average.load_state_dict(model.state_dict())
    assert torch.equal(average(x), model(x))


def test_a_whole_model_can_be_pickled() -> None:
    model, _ = amp.initialize(net := nn.Linear(2, 2), sgd(net), opt_level="O2", verbosity=0)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert loaded.state_dict()["weight"].dtype is FLOAT


def test_replicas_of_data_parallel_compute_with_their_own_weights() -> None:
    model = amp.initialize(nn.Linear(2, 2, bias=False), opt_level="O2", verbosity=0)
    replica = model._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(2, 2, dtype=HALF), None
    assert replica(torch.ones(1, 2)).tolist() == [[0, 0]]


# -- checkpoints across levels --------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_the_state_of_a_model_is_fp32(level: str) -> None:
    model, optimizer = amp.initialize(net := Net(), sgd(net), opt_level=level, verbosity=0)
    train(model, optimizer, range(2))
    for holder, prefix in ((model, ""), (nn.Sequential(model), "0."), (model.rnn, None)):
        state = holder.state_dict()
        floats = {t.dtype for t in state.values() if t.is_floating_point()}
        assert floats == {FLOAT}
        if prefix is not None:
            assert state[f"{prefix}calls"].dtype is torch.int64
            assert state.keys() == {f"{prefix}{name}" for name in Net().state_dict()}
    assert len(model.rnn.state_dict()) == 4


@pytest.mark.parametrize("saved_at", LEVELS)
@pytest.mark.parametrize("loaded_at", LEVELS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("num_losses", [1, 2])
def test_a_checkpoint_of_any_level_loads_at_any_other(
    saved_at: str, loaded_at: str, when: str, num_losses: int
) -> None:
    torch.manual_seed(1)
    more = {"num_losses": num_losses, "verbosity": 0}
    model, optimizer = amp.initialize(
        net := Net(), sgd(net, momentum=0.9), opt_level=saved_at, **more
    )
    train(model, optimizer, range(3), loss_id=num_losses - 1)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    x = batch(9)[0]
    with torch.no_grad():
        expected = model.eval()(x).float()
    amp.reset()

    net = Net()
    optimizer = sgd(net, momentum=0.9)
    if when == "before":
        net.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    amp.initialize(net, optimizer, opt_level=loaded_at, **more)
    if when == "after":
        net.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    amp.load_state_dict(saved[2])
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x).float(), expected, rtol=2e-2, atol=2e-2)
    if {saved_at, loaded_at} <= {"O1", "O2"}:
        assert amp.state_dict() == saved[2]
    for name, tensor in net.state_dict().items():
        # At O2 only batch norm without weights has numbers of half precision and no masters.
        exact = "O3" not in (saved_at, loaded_at) and not name.startswith("plain_bn")
        tolerance = 0.0 if exact else 1e-3
        torch.testing.assert_close(tensor, saved[0][name], rtol=tolerance, atol=tolerance)
    train(net.train(), optimizer, range(3, 5), loss_id=num_losses - 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"eps": 1e-3}], ids=["sgd", "adam"])
def test_a_resumed_run_ends_bit_by_bit_as_one_that_was_not_stopped(
    level: str, options: Any
) -> None:
    kind = torch.optim.SGD if "momentum" in options else torch.optim.Adam

    def start(seed: int) -> tuple[nn.Module, Any]:
        torch.manual_seed(seed)
        net = Net()
        optimizer = kind(net.parameters(), lr=0.01, **options)
        return amp.initialize(net, optimizer, opt_level=level, verbosity=0)

    model, optimizer = start(0)
    train(model, optimizer, range(8))
    expected, scale = copy.deepcopy(model.state_dict()), amp.state_dict()
    amp.reset()

    model, optimizer = start(0)
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), amp.state_dict()], file)
    amp.reset()
    model, optimizer = start(1)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for holder, state in zip((model, optimizer, amp), saved, strict=True):
        holder.load_state_dict(state)
    train(model, optimizer, range(4, 8))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert amp.state_dict() == scale


# -- master weights -------------------------------------------------------------------------------


def quadratic(level: str, lr: float, **more: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A model with one weight, which starts at 1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **more)


def descend(model: nn.Linear, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()


@pytest.mark.parametrize(("level", "expected"), [("O1", 0.99), ("O2", 0.99), ("O3", 1.0)])
def test_updates_too_small_for_half_precision_add_up(level: str, expected: float) -> None:
    model, optimizer = quadratic(level, lr=1e-4, loss_scale=1.0)
    descend(model, optimizer, 100)
    assert model.weight.item() == pytest.approx(expected, abs=1e-3)
    assert model.state_dict()["weight"].item() == pytest.approx(expected, abs=1e-5)


def test_the_optimizer_works_on_the_masters_and_the_model_is_these_rounded() -> None:
    model, optimizer = amp.initialize(net := Net(), sgd(net), opt_level="O2", verbosity=0)
    train(model, optimizer, range(3))
    masters = list(amp.master_params(optimizer))
    assert {p.dtype for p in masters} == {FLOAT}
    rounded_off = 0
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert torch.equal(parameter, master.to(parameter.dtype))
        rounded_off += int((parameter.float() != master).sum())
        assert (parameter is master) == (parameter.dtype is FLOAT)
    assert rounded_off > 0


def test_masters_are_the_weights_from_before_the_cast() -> None:
    net = nn.Linear(3, 3)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    model, optimizer = amp.initialize(net, sgd(net), opt_level="O2", verbosity=0)
    for parameter, master, before in zip(
        model.parameters(), amp.master_params(optimizer), weights, strict=True
    ):
        assert torch.equal(master, before)
        assert torch.equal(parameter, before.half())


def test_weights_set_by_hand_before_the_training_count() -> None:
    model, optimizer = quadratic("O2", lr=0.5, loss_scale=8.0)
    with torch.no_grad():
        model.weight.fill_(3)
    descend(model, optimizer, 1)
    assert model.weight.item() == 2.5


def test_weights_loaded_in_the_middle_of_the_training_count() -> None:
    model, optimizer = quadratic("O2", lr=0.5, loss_scale=8.0)
    descend(model, optimizer, 2)
    model.load_state_dict({"weight": torch.tensor([[3.0001]])})
    assert next(amp.master_params(optimizer)).item() == pytest.approx(3.0001, abs=1e-6)
    assert model.state_dict()["weight"].item() == pytest.approx(3.0001, abs=1e-6)
    descend(model, optimizer, 1)
    assert model.weight.item() == 2.5


def test_a_checkpoint_of_another_shape_leaves_the_masters_alone() -> None:
    model, optimizer = quadratic("O2", lr=0.5)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"weight": torch.zeros(2, 1)})
    assert next(amp.master_params(optimizer)).item() == 1


def test_one_parameter_in_two_optimizers_has_one_master() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    first, second = sgd(model), sgd(model)
    amp.initialize(model, [first, second], opt_level="O2", loss_scale=1.0, verbosity=0)
    for optimizer in (first, second):
        descend(model, optimizer, 1)
    assert next(amp.master_params(first)) is next(amp.master_params(second))
    assert model.state_dict()["weight"].item() == pytest.approx(0.8)


def test_frozen_weights_can_be_thawed() -> None:
    model = nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=8.0, verbosity=0)
    before = model.bias.item()
    descend(model, optimizer, 1)
    assert model.bias.item() == before
    model.bias.requires_grad_(True)
    descend(model, optimizer, 1)
    assert model.bias.item() == pytest.approx(before - 0.5, abs=1e-3)


def test_clipping_master_params_clips_the_true_gradient() -> None:
    for level in LEVELS:
        model, optimizer = quadratic(level, lr=1.0, loss_scale=1024.0)
        with amp.scale_loss(8 * model(torch.ones(1, 1)).sum(), optimizer) as scaled:
            scaled.backward()
        norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.25)
        assert norm.item() == 8
        optimizer.step()
        assert model.weight.item() == pytest.approx(0.75, abs=1e-6)
        amp.reset()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["optimizer", "optimizer keeps", "positional", "model"])
def test_every_way_of_clearing_gradients(level: str, how: str) -> None:
    model, optimizer = quadratic(level, lr=0.125, loss_scale=8.0)
    for _ in range(2):
        if how == "optimizer":
            optimizer.zero_grad()
        elif how == "optimizer keeps":
            optimizer.zero_grad(set_to_none=False)
        elif how == "positional":
            optimizer.zero_grad(False)
        else:
            model.zero_grad()
        with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert model.weight.item() == 0.75


def backward_out_of_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
        scaled.backward()
        raise MemoryError


def test_an_interrupted_backward_pass_leaves_the_gradients_as_they_were() -> None:
    """A script that catches an out-of-memory error and drops the batch."""
    for level in ("O1", "O2"):
        model, optimizer = quadratic(level, lr=0.125, loss_scale=8.0)
        with amp.scale_loss(model(torch.ones(1, 1)).sum(), optimizer) as scaled:
            scaled.backward()
        with pytest.raises(MemoryError):
            backward_out_of_memory(model, optimizer)
        optimizer.step()
        assert model.weight.item() == 0.875
        amp.reset()


def test_batch_norm_keeps_exact_statistics_under_o2() -> None:
    model = nn.BatchNorm1d(1)
    amp.initialize(model, opt_level="O2", verbosity=0)
    for _ in range(50):
        model(torch.full((4, 1), 1000.0))
    assert model.running_mean.dtype is FLOAT
    assert model.running_mean.item() == pytest.approx(1000 * (1 - 0.9**50), rel=1e-4)


# -- the parts, as the engine puts them together --------------------------------------------------


@pytest.mark.parametrize("losses", [1, 2])
def test_the_parts_give_the_same_without_the_state_of_a_process(losses: int) -> None:
    """O2 for a loop that owns its optimizer, its scalers and its steps."""
    x, target = batch()

    def start() -> tuple[Net, torch.optim.Optimizer]:
        torch.manual_seed(0)
        return (net := Net()), sgd(net, momentum=0.9)

    model, optimizer = amp.initialize(*start(), opt_level="O2", num_losses=losses, verbosity=0)
    for _ in range(4):
        optimizer.zero_grad()
        for loss_id in range(losses):
            with amp.scale_loss(F.cross_entropy(model(x), target), optimizer, loss_id) as scaled:
                scaled.backward()
        optimizer.step()
    expected, scales = copy.deepcopy(model.state_dict()), amp.state_dict()
    amp.reset()

    with ExitStack() as undo:
        masters = MasterWeights()
        net, optimizer = start()
        cast_model(net, HALF, keep_batchnorm_fp32=True, masters=masters, undo=undo)
        gradients = LossGradients(optimizer, masters)
        masters.forget()
        scalers = [LossScaler(Precision(mode="fp16"), name=f"loss {i}") for i in range(losses)]
        for _ in range(4):
            optimizer.zero_grad()
            gradients.zero(set_to_none=True)
            overflows = []
            for scaler in scalers:
                gradients.set_aside()
                scaler.scale(F.cross_entropy(net(x), target)).backward()
                overflows.append(bool(gradients.unscale(scaler)))
                scaler.update(overflows[-1])
            if any(overflows):
                gradients.drop_master_gradients()
            else:
                optimizer.step()
                gradients.masters_stepped()
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, expected[name]), name
    assert [scaler.value for scaler in scalers] == [s["loss_scale"] for s in scales.values()]
    assert any(s["unskipped"] for s in scales.values()), "some steps were taken"


def test_the_casts_of_functions_work_inside_an_autocast_block() -> None:
    with ExitStack() as undo:
        FunctionCasts("cpu", HALF, {}, None, undo)
        assert torch.ones(2).half().exp().dtype is HALF
        with torch.autocast("cpu", dtype=HALF):
            assert torch.ones(2).half().exp().dtype is FLOAT
    with torch.autocast("cpu", dtype=HALF):
        assert torch.ones(2).half().exp().dtype is HALF
