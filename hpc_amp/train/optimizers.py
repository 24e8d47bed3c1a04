"""Makes optimizers from their settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim import Optimizer as TorchOptimizer

from hpc_amp.config.schema import Optimizer


def build_optimizer(
    config: Optimizer, networks: Iterable[nn.Module], device: torch.device
) -> TorchOptimizer:
    """Make an optimizer of all trainable parameters of `networks`. The peak learning rate of each
    parameter group is stored as its `peak_lr`."""
    common: dict[str, Any] = {"lr": config.lr}
    fused = config.fused if config.fused is not None else _has_fused(config.name, device)
    if fused:
        common["fused"] = True
    groups = _groups(config, networks)
    if config.name in ("adam", "adamw"):
        kind = Adam if config.name == "adam" else AdamW
        optimizer: TorchOptimizer = kind(groups, betas=config.betas, eps=config.eps, **common)
    else:
        nesterov = config.nesterov and config.momentum > 0
        optimizer = SGD(groups, momentum=config.momentum, nesterov=nesterov, **common)
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


def _has_fused(name: str, device: torch.device) -> bool:
    """Whether torch has a fused kernel on this device. torch 2.1 had none for SGD."""
    if device.type != "cuda":
        return False
    return name in ("adam", "adamw") or "fused" in inspect.signature(SGD.__init__).parameters
