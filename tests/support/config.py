"""The configuration of the task in `support.gan`, which takes the place of `classification`."""

from hpc_amp.tasks.classification.config import ClassificationConfig as TinyGanConfig

__all__ = ["TinyGanConfig"]
