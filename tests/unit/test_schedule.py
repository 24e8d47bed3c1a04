"""Learning rates by step."""

import pytest

from hpc_amp.config.schema import Schedule
from hpc_amp.train.schedule import decay_after, rate_factor


def rates(total: int, **schedule: object) -> list[float]:
    config = Schedule(**schedule)  # type: ignore[arg-type]
    return [rate_factor(config, step, total) for step in range(total)]


def test_warmup_rises_linearly_and_never_starts_at_zero() -> None:
    seen = rates(20, name="constant", warmup=0.2)
    assert seen[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert seen[4:] == [1.0] * 16


def test_cosine_is_torchs_after_the_warmup() -> None:
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=18, eta_min=0.1)
    expected = []
    for _ in range(18):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    ours = rates(20, name="cosine", warmup=0.1, final=0.1)
    assert ours[2:] == pytest.approx(expected)


def test_linear_falls_from_an_epoch_on() -> None:
    """As GANs are trained: half of the epochs at the peak, then down to nothing."""
    config = Schedule(name="linear", warmup=0.0, decay_after="2epochs")
    assert decay_after(config, 3) == 6
    seen = [rate_factor(config, step, 12, decay_after=6) for step in range(12)]
    assert seen == pytest.approx([1] * 7 + [5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    steps = Schedule(name="linear", warmup=0.5, final=0.2, decay_after="2steps")
    seen = [rate_factor(steps, step, 8, decay_after=decay_after(steps, 3)) for step in range(8)]
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4]), "the warm-up is over"


def test_cosine_falls_from_a_step_on() -> None:
    config = Schedule(name="cosine", warmup=0.0, decay_after="4steps")
    seen = [rate_factor(config, step, 8, decay_after=4) for step in range(8)]
    assert seen[:5] == [1.0] * 5
    assert seen[6] == pytest.approx(0.5)


def test_steps_fall_at_the_milestones_whatever_their_number_of_steps() -> None:
    seen = rates(8, name="step", warmup=0.0, milestones=[0.5, 0.75], gamma=0.1)
    assert seen == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["cosine", "linear", "step", "constant"])
@pytest.mark.parametrize("total", [1, 2, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 1.0])
def test_short_runs_have_rates_between_zero_and_peak(name: str, total: int, warmup: float) -> None:
    seen = rates(total, name=name, warmup=warmup)
    assert all(0 < rate <= 1 for rate in seen)
