"""Image classification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpc_amp.data.memory import Batch
from hpc_amp.data.prepare import PreparedData, prepare
from hpc_amp.models import build_model
from hpc_amp.tasks.base import Best, Losses, Networks, Phase, Task, TrainingData
from hpc_amp.tasks.classification.config import ClassificationConfig

_SHOWN = 16
"""The number of inputs in a picture."""
_TOP = 5
"""With more classes than this, it counts as well whether the right class is among so many."""


class Classification(Task):
    """One network, one optimizer, cross entropy. A batch is images [B, C, H, W] and labels [B]."""

    name: ClassVar[str] = "classification"
    best: ClassVar[Best] = Best("accuracy", "highest")
    train: ClassificationConfig
    data: PreparedData

    @property
    def title(self) -> str:
        """The name of the network."""
        return self.train.model.name

    def prepare_data(self) -> TrainingData:
        """Find, download or generate the images."""
        self.data = prepare(self.train, self.world, self.device)
        self.data_name = self.data.name
        self.synthetic = self.data.synthetic
        return self.data.training

    def build_networks(self) -> dict[str, nn.Module]:
        """The network `model`, for the classes and channels of the data."""
        data = self.data
        model = build_model(
            self.train.model,
            classes=data.classes,
            channels=data.channels,
            image_size=data.image_size,
        )
        return {"model": model}

    def first_weights(self) -> dict[str, str]:
        """The weights of the model, if the job names a file."""
        file = self.train.model.weights
        return {} if file is None else {"model": file}

    def phases(self) -> tuple[Phase, ...]:
        """A single update."""
        return (Phase("train", ("model",), ("loss",), self.train.optimizer),)

    def losses(self, phase: str, batch: Batch, networks: Networks) -> Iterator[Losses]:
        """The cross entropy, with label smoothing."""
        images, labels = batch
        logits = networks["model"](images)
        smoothing = self.train.label_smoothing
        yield {"loss": F.cross_entropy(logits, labels, label_smoothing=smoothing)}

    def forward_pass(self, batch: Batch, networks: Networks) -> bool:
        """The logits of the images."""
        networks["model"](batch[0])
        return True

    def evaluation_batches(self) -> Iterator[Batch]:
        """This rank's share of the test images."""
        return self.data.evaluation()

    def evaluate(self, batch: Batch, networks: Networks) -> dict[str, Tensor]:
        """`correct`, `correct_top5` and `count` (int64), and `loss` (float64), the sum of the cross
        entropies."""
        images, labels = batch
        logits = networks["model"](images).float()
        sums = {
            "correct": (logits.argmax(1) == labels).sum(),
            "loss": F.cross_entropy(logits, labels, reduction="none").sum(dtype=torch.float64),
            "count": torch.tensor(len(labels), device=labels.device),
        }
        if logits.shape[1] > _TOP:
            sums["correct_top5"] = (logits.topk(_TOP).indices == labels[:, None]).sum()
        return sums

    def input_pictures(self, batch: Batch) -> Tensor | None:
        """The first images."""
        return self.data.training.normalization.undo(batch[0][:_SHOWN]).cpu()

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """`accuracy` (0 to 1), `loss` (mean cross entropy), and, with more than 5 classes,
        `accuracy_top5`: how often the right class is among the 5 that are most likely."""
        count = max(1.0, sums["count"])
        metrics = {"accuracy": sums["correct"] / count, "loss": sums["loss"] / count}
        if "correct_top5" in sums:
            metrics["accuracy_top5"] = sums["correct_top5"] / count
        return metrics
