"""The loss scaler: verdicts, growth, floor, cap, static mode, state."""

import math

import pytest
import torch

from hpc_amp.amp.scaler import LossScaler, ScaleFloorError
from hpc_amp.config.schema import Precision


def scaler(**precision: object) -> LossScaler:
    return LossScaler(Precision(mode="fp16", **precision), name="train/loss")  # type: ignore[arg-type]


def test_the_scaled_loss_is_fp32() -> None:
    loss = torch.tensor(30.0, dtype=torch.float16)  # 30 * 65536 is infinite in fp16
    scaled = scaler().scale(loss)
    assert scaled.dtype is torch.float32
    assert scaled.item() == 30 * 65536


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_value_anywhere_is_an_overflow(bad: float, place: int) -> None:
    gradients = [torch.ones(3), torch.ones(2, 2, dtype=torch.float16), torch.ones(5).double()]
    assert not scaler().unscale(gradients)
    gradients[place].view(-1)[-1] = bad
    verdict = scaler().unscale(gradients)
    assert verdict.shape == ()
    assert verdict


def test_infinities_of_both_signs_do_not_cancel() -> None:
    assert scaler().unscale([torch.tensor([math.inf]), torch.tensor([-math.inf])])


def test_unscaling_divides_in_place() -> None:
    gradients = [torch.full((3,), 65536.0), torch.full((2, 2), -131072.0)]
    assert not scaler().unscale(gradients)
    assert torch.equal(gradients[0], torch.ones(3))
    assert torch.equal(gradients[1], torch.full((2, 2), -2.0))


def test_no_gradients_are_no_overflow() -> None:
    assert not scaler().unscale([])


def test_the_scale_grows_after_clean_steps_in_a_row_and_halves_on_overflow() -> None:
    made = scaler(init_scale=8.0, growth_interval=3)
    seen = []
    for overflow in (False, False, True, False, False, False, False, False, False):
        made.update(overflow)
        seen.append(made.value)
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16]
    assert made.skipped_steps == 1


def test_cap_and_floor() -> None:
    made = scaler(init_scale=8.0, growth_interval=1, max_scale=12.0, min_scale=3.0)
    made.update(False)
    assert made.value == 12
    for expected in (6, 3, 3):
        made.update(True)
        assert made.value == expected


def test_twenty_overflows_in_a_row_at_the_floor_are_explained() -> None:
    made = scaler(init_scale=2.0)
    for _ in range(19):
        made.update(True)
    made.update(False)
    for _ in range(19):
        made.update(True)
    with pytest.raises(ScaleFloorError, match=r"train/loss overflowed 20 times in a row.*bf16"):
        made.update(True)


def test_a_high_scale_may_fall_for_longer_than_twenty_steps() -> None:
    made = scaler(init_scale=2.0**24)
    for _ in range(24):
        made.update(True)
    assert made.value == 1


def test_a_static_scale_never_moves_but_skips() -> None:
    made = scaler(static_scale=128.0, growth_interval=1)
    made.update(False)
    made.update(True)
    assert (made.value, made.skipped_steps) == (128, 1)
    for _ in range(18):
        made.update(True)
    with pytest.raises(ScaleFloorError, match="128"):
        made.update(True)


def test_the_state_carries_everything() -> None:
    """A copy made at any point of a long history goes on as the original does."""
    pattern = [False, False, True, False, False, False, True, True, False, False, False, False]
    whole = scaler(init_scale=64.0, growth_interval=3)
    for overflow in pattern:
        whole.update(overflow)
    original = scaler(init_scale=64.0, growth_interval=3)
    for index, overflow in enumerate(pattern):
        copy = scaler(init_scale=2.0, growth_interval=3)
        copy.load_state_dict(original.state_dict())
        for following in pattern[index:]:
            copy.update(following)
        assert copy.state_dict() == whole.state_dict()
        original.update(overflow)
