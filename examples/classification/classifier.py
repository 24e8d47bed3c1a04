"""The task: classification with initial weights by policy, and top-5 accuracy."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from hpc_amp.data.together import from_main, together
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import DataError, Losses, Networks
from hpc_amp.tasks.classification.config import ClassificationConfig
from hpc_amp.tasks.classification.task import Classification

Record = Callable[[Tensor, Tensor, Tensor], None]
"""Called with loss, logits and labels of each step."""


def initialize(network: nn.Module, flags: argparse.Namespace) -> None:
    """Initialise all convolutions and dense layers by `--dense-init-policy`.

    Kaiming: He et al., Delving deep into rectifiers (2015). Xavier: Glorot & Bengio, Understanding
    the difficulty of training deep feedforward neural networks (2010).
    """
    kaiming = {"mode": flags.kaiming_mode, "nonlinearity": flags.kaiming_nonlinearity}
    draw: dict[str, Callable[[Tensor], Any]] = {
        "default": lambda weight: None,
        "kaimingn": lambda weight: nn.init.kaiming_normal_(weight, **kaiming),
        "kaimingu": lambda weight: nn.init.kaiming_uniform_(weight, **kaiming),
        "xaviern": nn.init.xavier_normal_,
        "xavieru": nn.init.xavier_uniform_,
    }
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            draw[flags.dense_init_policy](module.weight)
            if module.bias is not None and flags.dense_bias_init == "zero":
                nn.init.zeros_(module.bias)


def load_pretrained(network: nn.Module, name: str) -> list[str]:
    """Load torchvision's ImageNet weights, as far as names and shapes match. Returns the names of
    the weights that do not match. Raises DataError if there are no weights for the network."""
    try:
        weights = torchvision.models.get_model_weights(name).DEFAULT
        saved = weights.get_state_dict(progress=False, check_hash=True)
    except Exception as error:  # torchvision does not document what it raises
        text = " ".join(str(error).split())
        raise DataError(f"--pretrained: weights of {name} are not available: {text}") from error
    own = network.state_dict()
    fitting = {n: t for n, t in saved.items() if n in own and own[n].shape == t.shape}
    network.load_state_dict(fitting, strict=False)
    return sorted(own.keys() - fitting.keys())


class Classifier(Classification):
    """Reports top-1 and top-5 accuracy, in training through `record` and in evaluations."""

    def __init__(
        self,
        train: ClassificationConfig,
        world: World,
        device: torch.device,
        *,
        flags: argparse.Namespace,
        record: Record,
    ) -> None:
        super().__init__(train, world, device)
        self.flags = flags
        self.record = record

    def build_networks(self) -> dict[str, nn.Module]:
        """The network with its initial weights."""
        networks = super().build_networks()
        initialize(networks["model"], self.flags)
        if self.flags.pretrained:
            name = self.train.model.name
            from_main(self.world, lambda: load_pretrained(networks["model"], name))
            left = together(self.world, lambda: load_pretrained(networks["model"], name))
            if self.world.is_main:
                print(f"pretrained: all weights but {', '.join(left) or 'none'}", flush=True)
        return networks

    def losses(
        self, phase: str, batch: tuple[Tensor, Tensor], networks: Networks
    ) -> Iterator[Losses]:
        """The cross entropy, which is recorded together with logits and labels."""
        images, labels = batch
        logits = networks["model"](images)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.train.label_smoothing)
        self.record(loss.detach(), logits.detach(), labels)
        yield {"loss": loss}

    def evaluation_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images. Prints a line every `--print-freq-ts` batches."""
        for number, batch in enumerate(super().evaluation_batches(), 1):
            yield batch
            if self.world.is_main and number % self.flags.print_freq_ts == 0:
                print(f"test: batch {number}", flush=True)

    def evaluate(self, batch: tuple[Tensor, Tensor], networks: Networks) -> dict[str, Tensor]:
        """The sums of Classification, and the number of labels among the five best guesses."""
        images, labels = batch
        logits = networks["model"](images).float()
        return {
            "correct": hits(logits, labels, 1).sum(),
            "correct5": hits(logits, labels, 5).sum(),
            "loss": F.cross_entropy(logits, labels, reduction="none").sum(dtype=torch.float64),
            "count": torch.tensor(len(labels), device=labels.device),
        }

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """`accuracy` and `top5`, from 0 to 1, and `loss`."""
        return {**super().summarize(sums), "top5": sums["correct5"] / max(1.0, sums["count"])}


def hits(logits: Tensor, labels: Tensor, guesses: int) -> Tensor:
    """Whether each label [N] is among the best guesses: bool [N]."""
    best = logits.topk(min(guesses, logits.shape[1]), dim=1).indices
    return (best == labels[:, None]).any(1)
