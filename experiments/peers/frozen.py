"""FrozenAdamW: AdamW whose variance stands still after its first steps."""

from collections.abc import Iterable
from typing import Any

import torch

from experiments.tasks.base import Recipe


class FrozenAdamW(torch.optim.Optimizer):
    """AdamW for `dense` steps; after them, `.grad` is the momentum itself."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], recipe: Recipe, *, dense: int
    ) -> None:
        defaults = {
            "lr": recipe.learning_rate,
            "betas": tuple(recipe.betas),
            "eps": recipe.eps,
            "weight_decay": 0.0,
            "step": 0,
        }
        super().__init__(groups, defaults)
        self._dense = dense

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            held = [p for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(held, 1.0 - group["lr"] * group["weight_decay"])
            for parameter in held:
                self._step_one(parameter, group)

    def _step_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        grad, state = parameter.grad, self.state[parameter]
        assert grad is not None
        (first, second), step = group["betas"], group["step"]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
            state["variance"] = torch.zeros_like(parameter)
        if step <= self._dense:
            state["momentum"].lerp_(grad, 1.0 - first)
            state["variance"].mul_(second).addcmul_(grad, grad, value=1.0 - second)
        else:
            state["momentum"].copy_(grad)
        seen = min(step, self._dense)
        deviation = (state["variance"] / (1.0 - second**seen)).sqrt_()
        rate = group["lr"] / (1.0 - first**step)
        parameter.addcdiv_(state["momentum"], deviation.add_(group["eps"]), value=-rate)
