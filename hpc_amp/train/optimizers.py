"""Makes optimizers from their settings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim import Optimizer as TorchOptimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hpc_amp.config.schema import Optimizer

_KINDS: dict[str, type[Any]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def build_optimizer(config: Optimizer, networks: Sequence[nn.Module]) -> TorchOptimizer:
    """Make an optimizer of all trainable parameters of `networks`. The peak learning rate of each
    parameter group is stored as its `peak_lr`. Its steps are made by `step`."""
    common: dict[str, Any] = {"lr": config.lr}
    groups = _groups(config, networks)
    fused = config.fused
    if fused is None:
        parameters = [p for group in groups for p in group["params"]]
        fused = not _has_sparse(networks) and _has_fused(config.name, parameters)
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


def step(optimizer: TorchOptimizer) -> None:
    """Make a step of an optimizer that `build_optimizer` made.

    torch wraps the function that makes a step in another one, which calls hooks and marks the step
    for a profiler. Without hooks and a profiler, that only takes time: 30 to 45 us on a CPU.
    """
    if isinstance(optimizer, SGD) and optimizer.defaults.get("fused"):
        _add_momentum(optimizer)
    if _is_watched(optimizer):
        optimizer.step()
    else:
        wrapper: Any = type(optimizer).step
        wrapper.__wrapped__(optimizer)


def _is_watched(optimizer: Any) -> bool:
    """Whether a profiler runs, or anything is to be called with each step."""
    return bool(
        torch.autograd._profiler_enabled()
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or "step" in vars(optimizer)
    )


def _add_momentum(optimizer: TorchOptimizer) -> None:
    """Add a momentum of 0 for weights that have their first gradient. torch's fused SGD only does
    so in the first step, and fails in a later one."""
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return  # as in most steps: each weight has had a gradient
    for group in optimizer.param_groups:
        if not group["momentum"]:
            continue
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def _has_sparse(networks: Iterable[nn.Module]) -> bool:
    """Whether gradients of an embedding are sparse, for which there is no fused kernel."""
    modules = (module for network in networks for module in network.modules())
    return any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse for m in modules)


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
