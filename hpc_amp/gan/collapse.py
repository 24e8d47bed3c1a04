"""Signs that the training of a GAN has collapsed, in losses and evaluations that exist anyway.

Each sign has to last: trainings that go well show all of them for some steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

CHANCE = {"hinge": 2.0, "lsgan": 0.25, "nonsaturating": 2 * math.log(2)}
"""The loss of a discriminator that cannot tell real from generated images, by its kind."""
ONE_IMAGE = (
    "{}, so `frechet_random` is infinite: it compares sets of different images. The other metrics "
    "are measured, but no checkpoint is the best"
)
"""What is said of test images that are no set; first, what there is."""

_WON = 0.01
"""The discriminator has won if its losses are below this part of those of chance,"""
_WON_STEPS, _WON_REPORTS = 200, 5
"""for at least so many steps and so many reports."""
_STILL = 1e-3
"""A loss stands still if all reports are within this part of it,"""
_STILL_STEPS, _STILL_REPORTS = 500, 10
"""for at least so many steps and so many reports."""
_ALIKE = 0.01
"""Generated images are alike if their spread is below this part of that of real ones,"""
_ALIKE_AFTER, _ALIKE_EVALUATIONS = 200, 2
"""in so many evaluations in succession, after so many steps. Those of an untrained generator are
alike, too."""


class CollapseWatch:
    """Looks at the reports and the evaluations of a training.

    `discriminator`: the losses by which discriminators tell images apart, each with its value if
    they cannot. `generator`: the losses by which the generator deceives them.

    The results map the name of a cause to a line for the log. What was seen is not part of a
    checkpoint: after a resume, a sign has to last again.
    """

    def __init__(self, discriminator: Mapping[str, float], generator: tuple[str, ...]) -> None:
        self._chance = discriminator
        self._won: tuple[int, int] | None = None
        """The first step and the number of reports in which the discriminator has won."""
        self._still: dict[str, list[tuple[int, float]]] = {name: [] for name in generator}
        """For each loss of the generator, the reports since it stands still: steps and values."""
        self._alike = 0

    def report(self, step: int, losses: Mapping[str, float]) -> dict[str, str]:
        """The signs in a report. `losses` are the means since the last one."""
        return self._discriminator_has_won(step, losses) | self._generator_stands_still(
            step, losses
        )

    def _discriminator_has_won(self, step: int, losses: Mapping[str, float]) -> dict[str, str]:
        judging = [name for name in self._chance if name in losses]
        if not judging:  # phases with other losses, or a step without the phase
            return {}
        if not all(losses[name] < _WON * self._chance[name] for name in judging):
            self._won = None
            return {}
        first, reports = self._won or (step, 0)
        self._won = first, reports + 1
        if step - first < _WON_STEPS or reports + 1 < _WON_REPORTS:
            return {}
        name = judging[0]
        return {
            "discriminator": f"since step {first}, the discriminator tells all images apart: its "
            f"loss `{name}` is {losses[name]:.2g}, and {self._chance[name]:.2g} if it guesses. The "
            "generator hardly learns from it. Try a lower learning rate of the discriminator, a "
            "gradient penalty (adversarial.r1), or more training images"
        }

    def _generator_stands_still(self, step: int, losses: Mapping[str, float]) -> dict[str, str]:
        found = {}
        for name in self._still.keys() & losses.keys():
            now = losses[name]
            seen = [*self._still[name], (step, now)]
            moved = [at for at, (_, value) in enumerate(seen) if not _are_close(value, now)]
            self._still[name] = seen = seen[moved[-1] + 1 :] if moved else seen
            if len(seen) >= _STILL_REPORTS and step - seen[0][0] >= _STILL_STEPS:
                found["generator"] = (
                    f"since step {seen[0][0]}, the generator's loss `{name}` is {now:.4g} and does "
                    "not change: nothing is learned. Look at the pictures in samples/, and start "
                    "again with lower learning rates"
                )
        return found

    def evaluation(self, step: int, spreads: Mapping[str, float]) -> dict[str, str]:
        """The signs in an evaluation. `spreads`: for each set of generated images, its spread
        relative to that of real ones (`hpc_amp.gan.frechet.relative_spread`)."""
        if any(math.isnan(spread) for spread in spreads.values()):
            return {
                "not finite": f"at step {step}, generated images are not finite: the weights or "
                "statistics of the generator are lost. Start again from an earlier checkpoint "
                "(train.start_from), with a lower learning rate or train.clip_norm"
            }
        if not spreads:
            return {}
        found = {}
        same = [name for name, spread in spreads.items() if math.isinf(spread)]
        if same:
            of_sets = f" of {', '.join(same)}" if len(spreads) > 1 else ""
            found["test images"] = ONE_IMAGE.format(f"the test images{of_sets} are all the same")
        name, spread = min(spreads.items(), key=lambda item: item[1])
        alike = spread < _ALIKE and step >= _ALIKE_AFTER
        self._alike = self._alike + 1 if alike else 0
        if self._alike < _ALIKE_EVALUATIONS:
            return found
        of_set = f" of {name}" if len(spreads) > 1 else ""
        return found | {
            "images": f"at step {step}, the generator makes nearly the same image{of_set} from all "
            f"inputs: the spread of generated images is {spread:.2%} of that of real ones. Start "
            "again, anew or from an earlier checkpoint (train.start_from), with lower learning "
            "rates, a larger batch or a gradient penalty (adversarial.r1)"
        }


def _are_close(value: float, other: float) -> bool:
    return abs(value - other) <= _STILL * abs(other)
