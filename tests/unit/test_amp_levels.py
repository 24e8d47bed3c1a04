"""`amp.initialize`: levels, their properties, overrides, what is refused, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hpc_amp import amp
from hpc_amp.amp import state
from hpc_amp.amp.opt_levels import Properties, resolve

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def properties() -> Properties:
    found = state.current().properties
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("O0", (FLOAT, False, None, False, 1.0)),
        ("O1", (None, True, None, None, "dynamic")),
        ("O2", (HALF, False, True, True, "dynamic")),
        ("O3", (HALF, False, False, False, 1.0)),
    ],
)
def test_the_defaults_of_each_level(level: str, expected: tuple[Any, ...]) -> None:
    assert resolve(level, HALF, {}) == Properties(level, *expected)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_bf16_needs_no_loss_scale(level: str) -> None:
    found = resolve(level, torch.bfloat16, {})
    assert found.loss_scale == 1.0
    assert found.cast_model_type in (None, torch.bfloat16)
    assert resolve(level, torch.bfloat16, {"loss_scale": "dynamic"}).loss_scale == "dynamic"


@pytest.mark.parametrize("level", ["01", "O4", "o1", "", None, 1])
def test_an_unknown_level_is_explained(level: Any) -> None:
    with pytest.raises(RuntimeError, match="the letter O in front, not a zero"):
        amp.initialize(*pair(), opt_level=level, verbosity=0)
    assert not state.is_initialized()


LEGAL = [
    *((level, "cast_model_type", torch.bfloat16, torch.bfloat16) for level in ("O0", "O2", "O3")),
    *((level, "cast_model_type", False, None) for level in ("O0", "O1", "O2", "O3")),
    ("O1", "cast_model_type", torch.float32, None),
    *((level, "patch_torch_functions", False, False) for level in ("O0", "O1", "O2", "O3")),
    ("O1", "patch_torch_functions", True, True),
    *(
        (level, "keep_batchnorm_fp32", value, value in (True, "True"))
        for level in ("O0", "O2", "O3")
        for value in (True, False, "True", "False")
    ),
    *(
        (level, "master_weights", value, value)
        for level in ("O0", "O2", "O3")
        for value in (True, False)
    ),
    *(
        (level, "loss_scale", value, expected)
        for level in ("O0", "O1", "O2", "O3")
        for value, expected in ((128, 128.0), ("128.0", 128.0), (0.5, 0.5), ("dynamic", "dynamic"))
    ),
]


@pytest.mark.parametrize(("level", "name", "value", "expected"), LEGAL)
def test_an_override_that_a_level_takes(level: str, name: str, value: Any, expected: Any) -> None:
    default = resolve(level, HALF, {})
    found = resolve(level, HALF, {name: value})
    assert getattr(found, name) == expected
    for other in set(Properties.__slots__) - {name}:
        assert getattr(found, other) == getattr(default, other)
    assert resolve(level, HALF, {name: None}) == default, "None is not an override"


ILLEGAL = [
    ("O1", "cast_model_type", torch.float16, RuntimeError, "use O2 or O3"),
    *(
        (level, "patch_torch_functions", True, RuntimeError, "belongs to O1")
        for level in ("O0", "O2", "O3")
    ),
    *(
        ("O1", "keep_batchnorm_fp32", value, RuntimeError, "no meaning at O1")
        for value in (True, False, "False")
    ),
    *(("O1", "master_weights", value, RuntimeError, "no meaning at O1") for value in (True, False)),
    *(
        (level, "keep_batchnorm_fp32", value, AssertionError, "is True or False, not")
        for level in ("O0", "O2", "O3")
        for value in ("true", 1, "yes")
    ),
    *(
        (level, "loss_scale", value, ValueError, "'dynamic' or a number above 0")
        for level in ("O0", "O1", "O2", "O3")
        for value in ("dynmic", 0, -1.0, float("nan"), float("inf"), [128])
    ),
]


@pytest.mark.parametrize(("level", "name", "value", "kind", "words"), ILLEGAL)
def test_an_override_that_a_level_does_not_take_is_explained(
    level: str, name: str, value: Any, kind: type[Exception], words: str
) -> None:
    model, optimizer = pair()
    with pytest.raises(kind, match=words):
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **{name: value})
    assert not state.is_initialized()
    assert "step" not in vars(optimizer)


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="keep_batchnorm"):
        amp.initialize(*pair(), keep_batchnorm=True)


def test_dtype_is_a_half_type() -> None:
    with pytest.raises(ValueError, match=r"float16 or torch\.bfloat16, not torch\.float64"):
        amp.initialize(*pair(), dtype=torch.float64)


# -- what is returned -----------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_what_comes_back_looks_like_what_went_in(enabled: bool) -> None:
    (one, first), (two, second) = pair(), pair()
    for given, expected in [
        ((one,), one),
        ((one, first), (one, first)),
        (([one],), [one]),
        (([one, two], first), ([one, two], first)),
        ((one, [first]), (one, [first])),
        (([one, two], [first, second]), ([one, two], [first, second])),
        ((one, []), (one, [])),
    ]:
        returned = amp.initialize(*given, opt_level="O1", enabled=enabled, verbosity=0)
        assert returned == expected
        assert type(returned) is type(expected)
        amp.reset()


@pytest.mark.parametrize(
    ("models", "optimizers", "words"),
    [
        ("model", None, "models must be one or a list, but there is a str"),
        ((nn.Linear(1, 1), nn.Linear(1, 1)), None, "there is a tuple"),
        (nn.Linear(1, 1), "sgd", "optimizers must be one or a list, but there is a str"),
        (nn.Linear(1, 1), [None], "there is a NoneType"),
    ],
)
def test_things_of_another_type_are_refused(models: Any, optimizers: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        amp.initialize(models, optimizers)


def test_a_wrapped_model_is_refused() -> None:
    model, optimizer = pair()
    with pytest.raises(RuntimeError, match=r"wrapped in DataParallel: call amp\.initialize first"):
        amp.initialize(nn.DataParallel(model), optimizer)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_is_refused(dtype: torch.dtype) -> None:
    model, optimizer = pair()
    model[1].to(dtype)
    with pytest.raises(RuntimeError, match=r"1\.weight of a Sequential is .*16 already"):
        amp.initialize(model, optimizer, opt_level="O2")


def test_a_second_initialize_is_refused_until_reset() -> None:
    model, optimizer = amp.initialize(*pair(), verbosity=0)
    with pytest.raises(RuntimeError, match=r"called before.*amp\.reset\(\)"):
        amp.initialize(model, optimizer)
    amp.reset()
    amp.initialize(model, optimizer, verbosity=0)


def test_an_optimizer_twice_in_the_list_is_refused() -> None:
    model, optimizer = pair()
    with pytest.raises(RuntimeError, match="in the list twice"):
        amp.initialize(model, [optimizer, optimizer])


def test_an_optimizer_that_scales_by_itself_is_refused() -> None:
    model, _ = pair()
    kind = type("FP16_Optimizer", (torch.optim.SGD,), {})
    with pytest.raises(RuntimeError, match="pass the optimizer that it wraps"):
        amp.initialize(model, kind(model.parameters(), lr=0.1))


def test_a_type_of_parameter_that_cannot_be_trained_is_refused_and_nothing_is_changed() -> None:
    model, _ = pair()
    other = nn.Linear(2, 2).double()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(TypeError, match=r"type torch\.float64; with master weights"):
        amp.initialize(model, optimizer, opt_level="O2")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    amp.initialize(model, verbosity=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: amp.scale_loss(torch.ones(()), pair()[1]).__enter__(),
        amp.state_dict,
        lambda: amp.load_state_dict({}),
        lambda: amp.stepped(pair()[1]),
        amp.loss_scale,
        amp.check_ranks,
    ],
)
def test_before_initialize_it_says_so(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"amp\.initialize was not called yet"):
        call()


def test_the_api_before_amp_1_says_what_to_write() -> None:
    with pytest.raises(RuntimeError, match=r"before amp 1\.0: write .*amp\.initialize"):
        amp.init(enabled=True)


def test_a_model_that_is_moved_afterwards_is_refused_when_it_is_used() -> None:
    model, _ = amp.initialize(*pair(), verbosity=0)
    model.to("meta")
    with pytest.raises(RuntimeError, match=r"was on cpu when .* is on meta now: move models first"):
        model(torch.ones(1, 3, device="meta"))


# -- not enabled ----------------------------------------------------------------------------------


def test_without_enabled_everything_is_as_if_amp_were_not_there() -> None:
    model, optimizer = pair()
    before = dict(vars(optimizer)), dict(vars(model))
    amp.initialize(model, optimizer, opt_level="O2", enabled=False)
    assert (dict(vars(optimizer)), dict(vars(model))) == before
    loss = model(torch.ones(2, 3)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
        scaled.backward()
    optimizer.step()
    assert amp.stepped(optimizer)
    assert list(amp.master_params(optimizer)) == list(model.parameters())
    assert amp.state_dict() == {}
    amp.load_state_dict({})
    assert amp.loss_scale() == 1.0


# -- what it prints -------------------------------------------------------------------------------


def overflow(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with amp.scale_loss(model(torch.ones(2, 3)).sum() * torch.inf, optimizer) as scaled:
        scaled.backward()
    optimizer.step()


def test_it_says_what_was_set_and_which_steps_were_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overflow(*amp.initialize(*pair(), opt_level="O2", keep_batchnorm_fp32="False"))
    said = capsys.readouterr().out
    assert "amp: opt_level=O2, cast_model_type=torch.float16" in said
    assert "keep_batchnorm_fp32=False, master_weights=True, loss_scale=dynamic" in said
    assert "amp: gradients overflowed, the step is skipped; loss 0 now has scale 32768" in said


def test_verbosity_0_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    overflow(*amp.initialize(*pair(), verbosity=0))
    assert capsys.readouterr().out == ""


def test_verbosity_2_tells_of_casts(capsys: pytest.CaptureFixture[str]) -> None:
    for verbosity, expected in ((1, 0), (2, 1)):
        amp.initialize(*pair(), verbosity=verbosity)
        torch.nn.functional.gelu(torch.ones(1).half())
        assert capsys.readouterr().out.count("amp: gelu: to_fp32") == expected
        amp.reset()


# -- reset ----------------------------------------------------------------------------------------


def functions() -> list[Any]:
    places = (torch, torch.Tensor, torch.nn.functional, torch._VF)
    return [getattr(place, name) for place in places for name in dir(place)]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_reset_takes_everything_back(level: str) -> None:
    model, optimizer = pair()
    parameters = list(model.parameters())
    before = functions(), set(vars(optimizer)), set(vars(torch.Tensor)), set(vars(torch._VF))
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    for _ in range(3):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.rand(4, 3)).square().sum(), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    amp.reset()
    assert functions() == before[0]
    assert (set(vars(optimizer)), set(vars(torch.Tensor)), set(vars(torch._VF))) == before[1:]
    assert list(model.parameters()) == parameters == optimizer.param_groups[0]["params"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
        assert tensor.dtype == weights[name].dtype
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_autocast_cache_enabled()
    assert model(torch.rand(4, 3)).dtype is torch.float32
    optimizer.zero_grad()
    model(torch.rand(4, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_reset_reaches_buffers_that_were_assigned_since(level: str) -> None:
    model = torch.nn.Module()
    model.register_buffer("mean", torch.ones(1))
    amp.initialize(model, opt_level=level, verbosity=0)
    model.mean = model.mean * 0.5
    assert model.mean.dtype is torch.float16
    amp.reset()
    assert model.mean.dtype is torch.float32


def test_reset_without_initialize_does_nothing() -> None:
    amp.reset()
    amp.reset()
    assert not state.is_initialized()


def test_reset_gives_adams_moments_the_type_of_the_weights() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    amp.initialize(model, optimizer, opt_level="O3", verbosity=0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state[model.weight]["exp_avg"].dtype is torch.float16
    amp.reset()
    assert optimizer.state[model.weight]["exp_avg"].dtype is torch.float32


def trained(model: nn.Module, level: str, **options: Any) -> list[float]:
    """The losses of three steps after `initialize`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    batches = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        losses.append(loss.item())
    amp.reset()
    return losses


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def hooks_of(model: nn.Module) -> list[int]:
    return [len(module._forward_pre_hooks) for module in model.modules()]


def test_models_that_are_not_trained_cost_nothing_in_other_modules() -> None:
    trains, rests, other = small_model(), small_model(), small_model()
    optimizer = torch.optim.SGD(trains.parameters(), lr=0.1)
    amp.initialize([trains, rests], optimizer, verbosity=0)
    for _ in range(2):
        with torch.no_grad():
            rests(torch.zeros(1, 4))
        trains(torch.zeros(1, 4))
    assert not torch.nn.modules.module._has_any_global_hook()
    assert hooks_of(trains) == hooks_of(other) == [0, 0, 0, 0]
    assert hooks_of(rests) == [1, 0, 0, 0]
    with pytest.raises(RuntimeError, match="move models first"):
        rests.to("meta")(torch.zeros(1, 4))
    amp.reset()
    assert hooks_of(rests) == [0, 0, 0, 0]
    assert not torch.nn.modules.module._global_module_registration_hooks


@pytest.mark.filterwarnings("ignore:.*torch.jit::")
def test_scripted_models_train_at_o1_like_others() -> None:
    expected = trained(small_model(), "O1")
    assert trained(torch.jit.script(small_model()), "O1") == expected
    assert trained(nn.Sequential(torch.jit.script(small_model())), "O1") == expected


@pytest.mark.filterwarnings("ignore:.*torch.jit::")
@pytest.mark.parametrize(
    ("level", "options"),
    [("O0", {}), ("O2", {}), ("O3", {}), ("O1", {"cast_model_outputs": torch.float32})],
)
def test_scripted_models_are_refused_where_casts_are_hooks(level: str, options: dict) -> None:
    model = torch.jit.script(small_model())
    with pytest.raises(RuntimeError, match=r"compiled by torch.jit.script .*Use O1"):
        amp.initialize(model, opt_level=level, verbosity=0, **options)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    amp.initialize(model, opt_level="O1", verbosity=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit::")
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_traced_models_train_at_every_level(level: str) -> None:
    expected = trained(small_model(), level, loss_scale=8.0)
    traced = torch.jit.trace(small_model(), torch.zeros(2, 4))
    assert trained(traced, level, loss_scale=8.0) == pytest.approx(expected, rel=1e-2)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, on the way
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_models_may_be_compiled_after_initialize(level: str) -> None:
    expected = trained(small_model(), level)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    compiled = torch.compile(model, backend="eager")
    batches = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1))
    loss = compiled(batches[0]).float().square().mean()
    assert loss.item() == expected[0]
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert compiled(batches[1]).float().square().mean().item() == expected[1]


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, on the way
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_ddp_may_be_compiled(level: str) -> None:
    """As torch advises. The ranks then compare their scales in a hook of it."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    compiled = torch.compile(nn.parallel.DistributedDataParallel(model), backend="eager")
    for _ in range(2):
        loss = compiled(torch.ones(2, 4)).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
    assert len(state.current().replicas) == 1
