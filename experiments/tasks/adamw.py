"""AdamW as GPTs are trained with it: weight decay on matrices only."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class AdamW:
    """The settings of an AdamW."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


def adamw(
    parameters: Iterable[nn.Parameter], settings: AdamW, *, waits: bool = False
) -> torch.optim.Optimizer:
    """AdamW of torch; with `waits` thinwire's, for gradients that come in late."""
    groups = decayed(parameters, settings.weight_decay)
    how: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": tuple(settings.betas),
        "eps": settings.eps,
    }
    if waits:
        thinwire: Any = import_module("thinwire")
        optimizer: torch.optim.Optimizer = thinwire.AdamW(groups, **how)
        return optimizer
    on_device = all(p.is_cuda for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, **how, fused=on_device)


def decayed(
    parameters: Iterable[nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    """Groups of parameters: matrices, which decay, and the rest, which does not."""
    held = list(parameters)
    groups = [
        {"params": [p for p in held if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in held if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
