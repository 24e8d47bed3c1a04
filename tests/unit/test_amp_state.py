"""The state of loss scalers in apex's format and GradScaler's; schedulers and skipped steps."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hpc_amp import amp


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


def start(**options: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return amp.initialize(model, optimizer, **{"verbosity": 0, **options})


def step(model: nn.Module, optimizer: Any, gradient: float = 1.0, loss_id: int = 0) -> None:
    optimizer.zero_grad()
    loss = model(torch.full((1, 1), gradient)).sum()
    with amp.scale_loss(loss, optimizer, loss_id) as scaled:
        scaled.backward()
    optimizer.step()


def entry(scale: float, clean_steps: int) -> dict[str, float]:
    return {"loss_scale": scale, "unskipped": clean_steps}


# -- apex's format --------------------------------------------------------------------------------


def test_the_state_looks_like_apex_s() -> None:
    model, optimizer = start(num_losses=2, max_loss_scale=1024.0)
    step(model, optimizer, torch.inf, loss_id=0)
    for _ in range(3):
        step(model, optimizer, loss_id=1)
    assert amp.state_dict() == OrderedDict(
        loss_scaler0=entry(512.0, 0), loss_scaler1=entry(1024.0, 3)
    )
    assert (amp.loss_scale(), amp.loss_scale(1)) == (512, 1024)


def test_a_destination_is_filled() -> None:
    start()
    mine: dict[str, Any] = {"epoch": 3}
    assert amp.state_dict(mine) is mine
    assert mine == {"epoch": 3, "loss_scaler0": entry(65536.0, 0)}


def test_entries_are_taken_in_their_order() -> None:
    start(num_losses=2)
    amp.load_state_dict({"loss_scaler7": entry(8.0, 1), "loss_scaler0": entry(16.0, 2)})
    expected = {"loss_scaler0": entry(8.0, 1), "loss_scaler1": entry(16.0, 2)}
    assert amp.state_dict() == expected


@pytest.mark.parametrize("saved", [1, 3])
def test_another_number_of_losses_is_told_and_the_rest_loaded(
    saved: int, capsys: pytest.CaptureFixture[str]
) -> None:
    start(num_losses=2, verbosity=1)
    amp.load_state_dict({f"loss_scaler{i}": entry(4.0 + i, i) for i in range(saved)})
    assert f"has {saved} loss scalers, but num_losses is 2" in capsys.readouterr().out
    assert [amp.loss_scale(i) for i in range(2)] == ([4, 5] if saved == 3 else [4, 65536])


def test_other_keys_are_refused_after_the_rest_was_loaded() -> None:
    start()
    with pytest.raises(RuntimeError, match=r"no loss scaler: \['epoch', 'model'\]"):
        amp.load_state_dict({"model": 1, "loss_scaler0": entry(4.0, 1), "epoch": 2})
    assert amp.loss_scale() == 4


def test_a_static_scale_stays_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    start(loss_scale=128.0, verbosity=1)
    amp.load_state_dict({"loss_scaler0": entry(65536.0, 7)})
    assert amp.state_dict() == {"loss_scaler0": entry(128.0, 7)}
    assert "loss 0 keeps its static scale 128, but the state has 65536" in capsys.readouterr().out


def test_a_scale_below_the_floor_is_raised_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    amp.initialize(nn.Linear(1, 1), min_loss_scale=0.25)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 0.0, "unskipped": 3}})
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 0.25, "unskipped": 3}
    assert "loss 0 has its lowest scale, 0.25, but the state has 0" in capsys.readouterr().out


def test_the_scale_goes_on_where_it_was() -> None:
    model, optimizer = start(max_loss_scale=2.0**20)
    amp.load_state_dict({"loss_scaler0": entry(64.0, 1998)})
    step(model, optimizer)
    assert amp.state_dict() == {"loss_scaler0": entry(64.0, 1999)}
    step(model, optimizer)
    assert amp.state_dict() == {"loss_scaler0": entry(128.0, 0)}


# -- GradScaler's format --------------------------------------------------------------------------


def grad_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **options)


def test_a_grad_scaler_s_state_is_taken_over_by_every_loss() -> None:
    native = grad_scaler(init_scale=512.0)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        native.scale(weight.sum()).backward()
        native.step(optimizer)
        native.update()
    start(num_losses=2)
    amp.load_state_dict(native.state_dict())
    assert list(amp.state_dict().values()) == [entry(512.0, 3)] * 2


def test_a_grad_scaler_takes_over_ours() -> None:
    start(num_losses=2)
    amp.load_state_dict({"loss_scaler0": entry(4.0, 5), "loss_scaler1": entry(256.0, 7)})
    native = grad_scaler()
    native.load_state_dict(amp.grad_scaler_state_dict(1))
    assert native.get_scale() == 256
    assert native.state_dict() == amp.grad_scaler_state_dict(1)
    assert native.get_growth_interval() == 2000


# -- skipped steps and schedulers -----------------------------------------------------------------


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("made", ["before", "after"])
def test_a_scheduler_does_not_warn_when_the_first_step_is_skipped(level: str, made: str) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if made == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    if made == "after":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer, torch.inf)
        assert not amp.stepped(optimizer)
        scheduler.step()
        step(model, optimizer)
        assert amp.stepped(optimizer)
        scheduler.step()


def test_a_scheduler_warns_where_step_was_not_called_at_all() -> None:
    """The control: the marks are not made by initialize."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    amp.initialize(model, optimizer, verbosity=0)
    with pytest.warns(UserWarning, match=r"before `optimizer\.step\(\)`"):
        scheduler.step()


def test_step_hooks_run_for_steps_that_are_taken() -> None:
    model, optimizer = start(max_loss_scale=1024.0)
    calls: list[Any] = []
    optimizer.register_step_post_hook(lambda *args: calls.append(args))
    step(model, optimizer, torch.inf)
    assert calls == []
    step(model, optimizer)
    assert len(calls) == 1
