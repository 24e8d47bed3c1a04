"""The configurations of the tasks in `chaos.tasks`, which take the place of `classification`."""

from hpc_amp.tasks.classification.config import ClassificationConfig

EvenConfig = UnevenConfig = DivergingConfig = LargeConfig = ClassificationConfig
