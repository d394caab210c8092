"""AdamW for gradients of which each step delivers a part."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.adamw import adamw

from thinwire import kernels
from thinwire.errors import ConfigError
from thinwire.kernels import AdamRules, AdamTensors
from thinwire.layout import DTYPES
from thinwire.optim import loading, moments
from thinwire.optim.checks import check_group, check_source
from thinwire.optim.deliveries import DeliveryState, Told, Way
from thinwire.optim.moments import State
from thinwire.optim.rows import update_rows_
from thinwire.optim.rules import LONGEST_DECAY, Rules, longer
from thinwire.optim.shards import local, locals_of, state_of
from thinwire.saved_values import mapping

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
    or copies. A sparse gradient has its own. Of `key`, if it is sharded, these are all
    of this rank's shard.
    """

    key: Tensor
    param: Tensor
    work: Tensor
    grad: Tensor
    state: State
    group: Group
    records: Tensor = field(init=False)
    rule: int = field(init=False)


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW that knows for how many steps each element has waited.

    A sparse reduction delivers the sum of an element's gradients once in many steps.
    torch.optim.AdamW takes that for one large gradient after zeros. Here an element d
    that is delivered after tau steps counts for tau steps:

        m = beta1^tau m + (1 - beta1^tau) d / tau
        v = beta2^tau v + (1 - beta2^tau) d^2 / tau
        theta -= lr tau^(9/8) m / (sqrt(v) + eps)

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
        # What the states' step tensors hold, and the version of each that holds it: one
        # on a device is read only once.
        self._counts: dict[Tensor, tuple[int, int]] = {}
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
        self._counts = {}
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
        members = self._members()
        for device in {member.param.device: None for member in members}:
            here = [member for member in members if member.param.device == device]
            if told is None:
                grads = [m.grad for m in here if not m.grad.is_sparse]
                whole = not kernels.has_zero(grads)
            else:
                whole = all(told.way(member.key) == "all" for member in here)
            torchs = [m for m in here if whole and _is_torchs(m)]
            for group in self.param_groups if torchs else ():
                self._step_as_torch(group, [m for m in torchs if m.group is group])
            waiting = [m for m in here if not (whole and _is_torchs(m))]
            if waiting:
                self._step_waiting(waiting, told, whole=whole)

    def _members(self) -> list[_Member]:
        """The parameters with a gradient."""
        found = []
        for group in self.param_groups:
            fused = bool(group["fused"])
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(moments.new_state(param, fused=fused))
                mine, held = local(param), state_of(state, param)
                work = _aligned(mine, local(param.grad))
                found.append(_Member(param, mine, *work, held, group))
        return found

    def _step_as_torch(self, group: Group, members: Sequence[_Member]) -> None:
        for member in members:
            self._counts.pop(member.state["step"], None)
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
        self, members: Sequence[_Member], told: Told | None, *, whole: bool
    ) -> None:
        rules = Rules()
        for member in members:
            self._begin(member, rules)
        torch._foreach_add_([member.state["step"] for member in members], 1)
        dense = [member for member in members if not member.grad.is_sparse]
        _update_dense(dense, rules, told, "all" if whole else "nonzero")
        for member in members:
            if member.grad.is_sparse:
                one = rules.of([member.rule])
                update_rows_(member.work, member.grad, member.state, one)
        due = [member for member in members if _is_due(member.state)]
        if due:
            kernels.decay_(*_call(due, rules))
        for member in members:
            _finish(member, whole=whole and not member.grad.is_sparse)

    def _begin(self, member: _Member, rules: Rules) -> None:
        """Count a step, in all but its tensor; find records and rule."""
        state, step = member.state, member.state["step"]
        count, version = self._counts.get(step, (0, -1))
        if version != step._version:  # noqa: SLF001 - someone else has written it
            count = int(step.item())
        self._counts[step] = count + 1, step._version + 1  # noqa: SLF001
        member.records = moments.in_records(member.param, state, count)
        pending = longer(state.get("pending_decay", ()), member.group)
        if pending:
            state["pending_decay"] = pending
        member.rule = rules.add(member.group, count + 1, pending)


def _update_dense(
    members: Sequence[_Member], rules: Rules, told: Told | None, usual: Way
) -> None:
    """Update delivered elements; where nothing was `told`, those of the usual way."""
    ways: dict[Way, list[_Member]] = {"listed": [], "nonzero": [], "all": []}
    for member in members:
        ways[usual if told is None else told.way(member.key)].append(member)
    if told is not None and (listed := ways["listed"]):
        lists = told.lists([member.key for member in listed])
        kernels.adamw_at_(*_call(listed, rules), lists)
    if ways["nonzero"]:
        kernels.adamw_(*_call(ways["nonzero"], rules), everything=False)
    if ways["all"]:
        kernels.adamw_(*_call(ways["all"], rules), everything=True)


def _call(members: Sequence[_Member], rules: Rules) -> tuple[AdamTensors, AdamRules]:
    tensors = AdamTensors(
        [member.work for member in members],
        [m.work if m.grad.is_sparse else m.grad for m in members],
        [member.records for member in members],
    )
    return tensors, rules.of([member.rule for member in members])


def _finish(member: _Member, *, whole: bool) -> None:
    """End a parameter's step; `whole` if every element was delivered."""
    param, state = member.param, member.state
    if member.work is not param:
        param.copy_(member.work)
    increment_version(param)  # kernels write without autograd's knowledge
    if whole and param.dtype == torch.float32:
        moments.as_torch(param, state)
    elif whole or _is_due(state):
        state.pop("pending_decay", None)


def _is_due(state: State) -> bool:
    """Whether pending decay is to be applied to all elements."""
    return len(state.get("pending_decay", ())) >= LONGEST_DECAY


def _is_torchs(member: _Member) -> bool:
    """Whether torch's own step is the right one if everything was delivered."""
    single = member.param.dtype == member.grad.dtype == torch.float32
    waiting = member.grad.is_sparse or "delivered_at" in member.state
    return single and not waiting


def _aligned(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """A parameter and its gradient with the same strides, without gaps."""
    if grad.is_sparse:
        return moments.filled(param), grad.coalesce()
    if grad.dtype == param.dtype and param.is_contiguous() and grad.is_contiguous():
        return param, grad
    work = moments.filled(param)
    if grad.dtype != param.dtype or grad.stride() != work.stride():
        grad = torch.empty_like(work).copy_(grad)
    return work, grad
