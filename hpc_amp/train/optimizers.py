"""Makes optimizers from their settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim import Optimizer as TorchOptimizer

from hpc_amp.config.schema import Optimizer

_KINDS: dict[str, type[Any]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def build_optimizer(config: Optimizer, networks: Iterable[nn.Module]) -> TorchOptimizer:
    """Make an optimizer of all trainable parameters of `networks`. The peak learning rate of each
    parameter group is stored as its `peak_lr`."""
    common: dict[str, Any] = {"lr": config.lr}
    groups = _groups(config, networks)
    fused = config.fused
    if fused is None:
        fused = _has_fused(config.name, [p for group in groups for p in group["params"]])
    if fused:
        common["fused"] = True
    kind = _KINDS[config.name]
    if config.name == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        optimizer: TorchOptimizer = kind(
            groups, momentum=config.momentum, nesterov=nesterov, **common
        )
    else:
        optimizer = kind(groups, betas=config.betas, eps=config.eps, **common)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def _groups(config: Optimizer, networks: Iterable[nn.Module]) -> list[dict[str, Any]]:
    learning = (p for network in networks for p in network.parameters() if p.requires_grad)
    parameters = list(dict.fromkeys(learning))  # networks may share some: these step once
    if config.decay_norm_and_bias:
        return [{"params": parameters, "weight_decay": config.weight_decay}]
    # Biases and the weights of normalisation layers are vectors; weight matrices are not.
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _has_fused(name: str, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether this torch has a fused kernel for these parameters. torch 2.1 has none for SGD and
    none for CPUs."""
    kind = _KINDS[name]
    if "fused" not in inspect.signature(kind.__init__).parameters:
        return False
    try:
        kind(parameters, lr=0.0, fused=True)
    except RuntimeError:  # so torch says that it has none
        return False
    return True
