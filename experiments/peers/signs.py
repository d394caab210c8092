"""Signs: an optimizer that steps by the sign of the gradient, with decoupled decay."""

from collections.abc import Iterable
from typing import Any

import torch


class Signs(torch.optim.Optimizer):
    """Every element moves by the learning rate, against its gradient's sign."""

    def __init__(self, groups: Iterable[dict[str, Any]], learning_rate: float) -> None:
        super().__init__(groups, {"lr": learning_rate, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            signs = [p.grad.sign() for p in held]
            torch._foreach_mul_(held, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(held, signs, alpha=-group["lr"])
