"""AdamW for gradients of which each step delivers a part."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.layout import DTYPES
from thinwire.optim import loading, moments
from thinwire.optim.checks import check_group, check_source
from thinwire.optim.deliveries import DeliveryState, Told
from thinwire.optim.members import Facts, Group, members
from thinwire.optim.moments import State
from thinwire.optim.plan import Plan
from thinwire.optim.shards import local, locals_of, state_of
from thinwire.saved_values import mapping


class Options(TypedDict, total=False):
    """Options of torch.optim.AdamW that are passed on."""

    maximize: bool
    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW that knows for how many steps each element has waited.

    A sparse reduction delivers the sum of an element's gradients once in many steps.
    torch.optim.AdamW takes that for one large gradient after zeros. Here an element d
    that is delivered after tau steps counts for tau steps:

        m = beta1^tau m + (1 - beta1^tau) d / tau
        v = beta2^tau v + (1 - beta2^tau) d^2 / tau
        u = max(v, ((1 - beta1^tau) / c)^2 d^2 / tau)
        theta -= lr tau^(9/8) m / (sqrt(u) + eps)

    with Adam's corrections of bias; nothing of the other elements is read or changed.
    c = max(1, (1 - beta1) / sqrt(1 - beta2)) is how far a step of AdamW can go; with u,
    a delivery goes at most tau^(5/8) times that, also where gradients suddenly grow.
    Weight decay counts all steps; what is pending is applied with a delivery, and to
    every element after 64 steps. With everything delivered in every step it is
    torch.optim.AdamW, to the bit for float32 parameters. For bfloat16 and float16
    the moments are in float32, and results are rounded to the parameter's dtype.

    Without `state`, the elements whose gradient is not exactly zero are the delivered
    ones. With it, only these are looked at, and a step that is not finite on some rank
    changes nothing. Both give the same bits, but for exact zeros in a gradient that was
    delivered as a whole, which only `state` can tell. A gradient that something other
    than the backward pass writes into elements that were not delivered is not seen.

    A row of an `nn.Embedding(sparse=True)` that was not touched had no gradient: it has
    not waited for one. So its moments do a single step whenever it is touched, as in
    torch.optim.SparseAdam, and only its decay counts the steps between.

    Args:
        params: As for torch.optim.AdamW; float32, bfloat16 or float16.
        lr: The learning rate; a tensor is read as a float.
        betas: Those of momentum and energy. A delivered element has few and large
            gradients: 0.99 as the second one was better than 0.95 and 0.999.
        eps: Added to the root of the energy.
        weight_decay: Decoupled decay, for each step `lr * weight_decay`.
        amsgrad: Must be False.
        state: What `thinwire.attach` returned for the model; it may have parameters
            that are not here, and the other way round.
        **options: `maximize`, `foreach` and `fused` as in torch; the last two say how
            steps are made in which no element has waited. `capturable` and
            `differentiable` must be False.

    """

    def __init__(  # noqa: PLR0917 - as torch has them
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,  # noqa: FBT001, FBT002
        *,
        state: DeliveryState | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._source = state
        # Plans of a step, and what they are made for.
        self._planned: tuple[Facts | None, tuple[Plan, ...]] = None, ()
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
        if state is not None:
            check_source(state, self.param_groups)
        # A GradScaler shall unscale gradients itself, and skip steps.
        self._step_supports_amp_scaling = False

    def add_param_group(self, param_group: Group) -> None:
        check_group(self.defaults | param_group)
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dtype not in DTYPES:
                self.param_groups.pop()
                raise ConfigError(
                    f"a parameter is {param.dtype}: thinwire.AdamW updates float32, "
                    "bfloat16 and float16. Give others to another optimizer"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__.setdefault("_source", None)
        self._planned = None, ()
        self._step_supports_amp_scaling = False

    def state_dict(self) -> dict[str, Any]:
        """The state dict of torch, with the waiting counts of every parameter.

        They are in it where no element waits, too: `torch.distributed.checkpoint` loads
        into the keys that it finds.
        """
        found: dict[str, Any] = super().state_dict()
        states = found["state"].items()
        found["state"] = {key: moments.saved(state) for key, state in states}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict, also one of torch.optim.AdamW.

        Nothing changes if this raises. The state is the same on all ranks, because it
        follows the means: that of any rank serves all, of any number.
        """
        mapping(state_dict, "state dict")
        given: list[tuple[Tensor, State]] = []

        def check(_: object, last: dict[str, Any]) -> None:
            loading.check(last, self.param_groups)
            for group in last["param_groups"]:
                check_group(group)
            ids = chain.from_iterable(g["params"] for g in last["param_groups"])
            mine = chain.from_iterable(group["params"] for group in self.param_groups)
            for number, param in zip(ids, mine, strict=True):
                if saved := last["state"].get(number):
                    given.append((param, saved))

        def restore(_: object) -> None:
            # torch rounds all of it to the parameter's dtype.
            for param, saved in given:
                step = self.state[param]["step"].clone()
                self.state[param] = {}
                mine = moments.loaded(local(param), locals_of(saved), step)
                state_of(self.state[param], param).update(mine)

        hooks = (
            self.register_load_state_dict_pre_hook(check),  # after those of the user
            self.register_load_state_dict_post_hook(restore, prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._source is None:
            self._apply(None)
            return loss
        delivered = self._source.deliveries()
        if delivered.finite:
            self._apply(Told(delivered, self._source.parameters))
        return loss

    def _apply(self, told: Told | None) -> None:
        """Do a step; without a state nothing was `told`."""
        facts, (planned, plans) = Facts(self.param_groups, self.state), self._planned
        grads = facts.take_gradients()
        self._planned = None, ()  # for good, if this raises
        renewed = planned is None or not facts.same(planned)
        if renewed:
            plans = self._plans()
        for plan in plans:
            renewed = plan.step(grads, told) or renewed
        if renewed:
            # The step has changed states; the next one compares with what it left.
            planned = Facts(self.param_groups, self.state)
            planned.take_gradients()
        self._planned = planned, plans

    def _plans(self) -> tuple[Plan, ...]:
        """A plan for each device."""
        found = members(self.param_groups, self.state)
        devices = dict.fromkeys(member.param.device for member in found)
        return tuple(
            Plan([member for member in found if member.param.device == device])
            for device in devices
        )
