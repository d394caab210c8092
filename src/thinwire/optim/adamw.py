"""AdamW for gradients of which each step delivers a part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from thinwire import kernels
from thinwire.errors import ConfigError
from thinwire.kernels import AdamRules, AdamTensors
from thinwire.layout import DTYPES
from thinwire.optim import moments
from thinwire.optim.deliveries import Deliveries, DeliveryState, lists_of
from thinwire.optim.moments import State
from thinwire.optim.rows import update_rows_
from thinwire.optim.rules import LONGEST_DECAY, Rules, longer

Group = dict[str, Any]


class Options(TypedDict, total=False):
    """Options of torch.optim.AdamW that are passed on."""

    maximize: bool
    foreach: bool | None
    capturable: bool
    differentiable: bool
    fused: bool | None


@dataclass(slots=True)
class _Member:
    """A parameter that has a gradient in this step.

    `work` and `grad` have the same memory layout, without gaps: those of the parameter,
    or copies.
    """

    param: Tensor
    work: Tensor
    grad: Tensor
    state: State
    group: Group
    rule: int = -1


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW that knows for how many steps each element has waited.

    A sparse reduction delivers the sum of an element's gradients once in many steps.
    torch.optim.AdamW takes that for one large gradient after zeros. Here an element d
    that is delivered after tau steps counts for tau steps:

        m = beta1^tau m + (1 - beta1^tau) d / tau
        v = beta2^tau v + (1 - beta2^tau) d^2 / tau
        theta -= lr tau m / (sqrt(v) + eps)

    with Adam's corrections of bias; nothing of the other elements is read or changed.
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
        # Steps of each parameter, so that a tensor on a device is read once.
        self._counts: dict[Tensor, int] = {}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
        # A GradScaler shall unscale gradients itself, and skip steps.
        self._step_supports_amp_scaling = False

    def add_param_group(self, param_group: Group) -> None:
        _check(self.defaults | param_group)
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
        self._counts = {}
        self._step_supports_amp_scaling = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict, also one of torch.optim.AdamW."""
        for group in state_dict["param_groups"]:
            _check(group)
        super().load_state_dict(state_dict)
        # torch rounds all of it to the parameter's dtype.
        ids = chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        mine = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, param in zip(ids, mine, strict=True):
            saved = state_dict["state"].get(number)
            if saved:
                step = self.state[param]["step"].clone()
                self.state[param] = moments.loaded(param, saved, step)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        delivered = None if self._source is None else self._source.deliveries()
        if delivered is None or delivered.finite:
            self._apply(delivered)
        return loss

    def _apply(self, delivered: Deliveries | None) -> None:
        members, rows = self._members()
        devices = {member.param.device: None for member in (*members, *rows)}
        whole = self._whole(members, delivered)
        torchs = [m for m in members if whole and _is_torchs(m)]
        for group in self.param_groups:
            self._step_as_torch(group, [m for m in torchs if m.group is group])
        waiting = [m for m in members if not (whole and _is_torchs(m))]
        for device in devices:
            here = [m for m in waiting if m.param.device == device]
            rows_here = [m for m in rows if m.param.device == device]
            self._step_waiting(here, rows_here, delivered, whole=whole)

    def _members(self) -> tuple[list[_Member], list[_Member]]:
        """The parameters with a gradient, and those whose gradient has rows."""
        dense, rows = [], []
        for group in self.param_groups:
            fused = bool(group["fused"])
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(moments.new_state(param, fused=fused))
                if grad.is_sparse:
                    rows.append(_Member(param, param, grad.coalesce(), state, group))
                else:
                    dense.append(_Member(param, *_aligned(param, grad), state, group))
        return dense, rows

    def _whole(self, members: Sequence[_Member], delivered: Deliveries | None) -> bool:
        """Whether every element of every parameter was delivered."""
        if delivered is None:
            return not kernels.has_zero([member.grad for member in members])
        if not delivered.units or self._source is None:
            return True
        mine = {member.param for member in members}
        known = self._source.parameters
        return not any(
            known[name] in mine
            for unit in delivered.units
            for name in unit.layout.names
        )

    def _step_as_torch(self, group: Group, members: Sequence[_Member]) -> None:
        for member in members:
            self._counts.pop(member.param, None)
        if members:
            beta1, beta2 = group["betas"]
            adamw(
                [member.param for member in members],
                [member.grad for member in members],
                [member.state["exp_avg"] for member in members],
                [member.state["exp_avg_sq"] for member in members],
                [],
                [member.state["step"] for member in members],
                foreach=group["foreach"],
                fused=group["fused"],
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
            )

    def _step_waiting(
        self,
        members: Sequence[_Member],
        rows: Sequence[_Member],
        delivered: Deliveries | None,
        *,
        whole: bool,
    ) -> None:
        rules, records = Rules(), {}
        for member in (*members, *rows):
            records[member.param] = self._begin(member, rules)
        self._update(members, records, rules, delivered, whole=whole)
        for member in rows:
            one = rules.of([member.rule])
            update_rows_(member.work, member.grad, member.state, one)
        every = (*members, *rows)
        done = {m.param for m in members} if whole else set()
        due = [m for m in every if m.param not in done and _is_due(m.state)]
        if due:
            kernels.decay_(*_call(due, records, rules))
        for member in every:
            if member.work is not member.param:
                member.param.copy_(member.work)
            if member.param in done and member.param.dtype == torch.float32:
                moments.as_torch(member.param, member.state)
            elif member.param in done or _is_due(member.state):
                member.state.pop("pending_decay", None)

    def _begin(self, member: _Member, rules: Rules) -> Tensor:
        """Count a parameter's step; returns its records."""
        param, state = member.param, member.state
        count = self._counts.get(param)
        if count is None:
            count = int(state["step"].item())
        records = moments.in_records(param, state, count)
        self._counts[param] = count + 1
        state["step"] += 1
        pending = longer(state.get("pending_decay", ()), member.group)
        if pending:
            state["pending_decay"] = pending
        member.rule = rules.add(member.group, count + 1, pending)
        return records

    def _update(
        self,
        members: Sequence[_Member],
        records: Mapping[Tensor, Tensor],
        rules: Rules,
        delivered: Deliveries | None,
        *,
        whole: bool,
    ) -> None:
        listed: set[Tensor] = set()
        if delivered is not None and self._source is not None and not whole:
            known = self._source.parameters
            units = delivered.units
            listed = {known[n] for unit in units for n in unit.layout.names}
            some = [m for m in members if m.param in listed]
            numbers = {m.param: i for i, m in enumerate(some)}
            lists = lists_of(units, known, numbers)
            if lists:
                kernels.adamw_at_(*_call(some, records, rules), lists)
        others = [m for m in members if m.param not in listed]
        if others:
            everything = whole or delivered is not None
            kernels.adamw_(*_call(others, records, rules), everything=everything)


def _call(
    members: Sequence[_Member], records: Mapping[Tensor, Tensor], rules: Rules
) -> tuple[AdamTensors, AdamRules]:
    tensors = AdamTensors(
        [member.work for member in members],
        [m.work if m.grad.is_sparse else m.grad for m in members],
        [records[member.param] for member in members],
    )
    return tensors, rules.of([member.rule for member in members])


def _is_due(state: State) -> bool:
    """Whether pending decay is to be applied to all elements."""
    return len(state.get("pending_decay", ())) >= LONGEST_DECAY


def _is_torchs(member: _Member) -> bool:
    """Whether torch's own step is the right one if everything was delivered."""
    single = member.param.dtype == member.grad.dtype == torch.float32
    return single and "delivered_at" not in member.state


def _aligned(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A parameter and its gradient with the same strides, without gaps."""
    if grad.dtype == param.dtype and param.is_contiguous() and grad.is_contiguous():
        return param, grad
    work = moments.filled(param)
    if grad.dtype != param.dtype or grad.stride() != work.stride():
        grad = torch.empty_like(work).copy_(grad)
    return work, grad


def _check(group: Mapping[str, Any]) -> None:
    for name in ("amsgrad", "capturable", "differentiable"):
        if group.get(name):
            raise ConfigError(
                f"{name} is {group[name]!r}: thinwire.AdamW has no such variant. Leave "
                "it out, or use torch.optim.AdamW"
            )
