"""COCO-FUNIT (Saito et al., 2020): FUNIT with a style that depends on the content image, so that
the pose of references does not change the layout of the result."""

from __future__ import annotations

from typing import ClassVar

from hpc_amp.tasks.coco_funit.config import CocoFunitConfig, CocoFunitNetworks
from hpc_amp.tasks.coco_funit.networks import ContentConditionedStyle
from hpc_amp.tasks.funit.networks import StyleEncoder
from hpc_amp.tasks.funit.task import Funit


class CocoFunit(Funit):
    """FUNIT with another style network."""

    name: ClassVar[str] = "coco_funit"
    train: CocoFunitConfig  # type: ignore[assignment]

    @property
    def config(self) -> CocoFunitNetworks:
        """The networks, and the weights of losses."""
        return self.train.coco_funit

    def style_network(self) -> StyleEncoder:
        """What computes style codes from content images and references."""
        return ContentConditionedStyle(self.config)
