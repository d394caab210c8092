"""Warns of what the first steps of an optimizer show, and `attach` cannot know.

A plain Adam on sparse deliveries: a delivered entry is the sum of the steps that it
waited. Adam takes it for the gradient of one step, so its second moment is wrong, and
its momentum goes on pushing.

An optimizer that was resumed while the residuals were not (see `hooks.resumed`).
"""

import weakref
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn
from torch.optim import Adam, Adamax, AdamW, NAdam, Optimizer, RAdam
from torch.optim.optimizer import register_optimizer_step_pre_hook

from thinwire.hooks.resumed import LOST, is_resumed
from thinwire.hooks.user_warnings import warn

MEASURED = (
    "a GPT of 10.7 M parameters ended at 2.25 bits per byte instead of 1.64 at 1 %"
)


class OptimizerCheck:
    """Watches steps until one optimizer of a model is known to be plain Adam, or none.

    It is called before every step of every optimizer of the process. The verdict is
    known in the first or second step of an optimizer of `parameters`; the check then
    removes itself after that step. It keeps neither model nor optimizers alive.
    `forgot` says whether residuals should have been loaded and were not.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Collection[Tensor],
        forgot: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model = weakref.ref(model)  # as long as it lives, the ids are its own
        self._ids = frozenset(map(id, parameters))
        self._forgot = forgot
        self._seen: list[weakref.ref[Optimizer]] = []
        self._ended = False
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def end(self) -> None:
        """Watch no further steps."""
        self._ended = True
        self._handle.remove()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._ended:
            return
        if self._model() is None:
            self._end_after(optimizer)
        elif self._steps_the_model(optimizer):
            seen = [each for ref in self._seen if (each := ref()) is not None]
            if not any(each is optimizer for each in seen):
                self._check_resumed(optimizer)
            plain = [each for each in (optimizer, *seen) if is_plain_adam(each)]
            # The second step of one: all have stepped, and have a state to look at.
            if plain or any(each is optimizer for each in seen):
                self._end_after(optimizer)
            self._seen.append(weakref.ref(optimizer))
            if plain:
                _warn(type(plain[0]).__name__)

    def _steps_the_model(self, optimizer: Optimizer) -> bool:
        groups = optimizer.param_groups
        return any(id(p) in self._ids for group in groups for p in group["params"])

    def _check_resumed(self, optimizer: Optimizer) -> None:
        """Warn, once, before the first step of an optimizer that was resumed alone."""
        if is_resumed(optimizer, self._ids) and self._forgot():
            self._forgot = lambda: False
            warn(LOST)

    def _end_after(self, optimizer: Optimizer) -> None:
        """Remove this check after the step: torch now iterates over such hooks."""
        self._ended = True
        optimizer.register_step_post_hook(lambda *_: self._handle.remove())


def is_plain_adam(optimizer: Optimizer) -> bool:
    """Whether it is a kind of Adam, of torch or another library, but not ours."""
    modules = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
    if "thinwire" in modules:
        return False
    if isinstance(optimizer, Adam | AdamW | Adamax | NAdam | RAdam):
        return True
    states = optimizer.state.values()
    return "betas" in optimizer.defaults and any("exp_avg_sq" in s for s in states)


def _warn(name: str) -> None:
    warn(
        f"{name} takes a sparse delivery, the sum of many steps, for the gradient of "
        f"one, and training ends far behind: {MEASURED}. Use thinwire.AdamW(..., "
        "state=state) with the state that attach returned"
    )
