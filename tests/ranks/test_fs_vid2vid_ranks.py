"""Few-shot vid2vid on two ranks: as on one, and exact resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fs_vid2vid import LOSSES, METRICS, plain_train
from support.rank_trainings import PARITY
from support.video_checks import FRAMES, PAIRS, SEQUENCES, check_ranks
from support.warm import Warm

pytestmark = pytest.mark.ranks


def test_two_ranks_train_and_resume_as_one(warm: Warm, tmp_path: Path) -> None:
    """The same sequences and references in each step, the same losses and metrics."""
    # The generator's hinge loss is a mean of logits around 0: nothing is near to it in relation.
    parity = {**PARITY, "adversarial": {**PARITY["adversarial"], "loss": "lsgan"}}
    images = {"frames": FRAMES, "synthetic": {**SEQUENCES, "identities": 2}}
    short = {"images": images, "fs_vid2vid": PAIRS}
    check_ranks(warm, tmp_path, plain_train, LOSSES, METRICS, short=short, parity=parity)
