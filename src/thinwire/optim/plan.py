"""A step of AdamW, prepared once for the same parameters, layouts and units.

What a step does for each parameter is then done by kernels, and by loops of C: lists of
tensors, addresses, places in units and counts are at hand. Options of groups are read
in every step. Nothing here keeps a gradient from one step to the next.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from thinwire import kernels
from thinwire.kernels import AdamTensors
from thinwire.optim.deliveries import Told, Way
from thinwire.optim.members import Member
from thinwire.optim.waiting import Waiting


class Plan:
    """Steps of the parameters on one device."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._copied = [member for member in members if member.aligned is not None]
        self._dense = [member for member in members if not member.rows]
        works = [member.work for member in self._dense]
        self._looked_at = AdamTensors.of(works, works, works)
        self._form: Any = None
        self._torchs: list[_Torchs] = []
        self._waiting: Waiting | None = None

    def step(self, grads: list[Tensor], told: Told | None) -> bool:
        """Do a step; returns whether the tensors of states are others than before.

        `grads` are those of all parameters; some are replaced by aligned copies.
        """
        for member in self._copied:
            grads[member.place] = member.align(grads[member.place])
        form = told.form if told is not None else not self._has_zero(grads)
        waiting = self._waiting
        fits = form == self._form and (waiting is None or waiting.is_current)
        if not fits:
            self._arrange(told, whole=form is True)
            self._form = form
        for torchs in self._torchs:
            torchs.step(grads)
        if self._waiting is not None:
            self._waiting.step(grads, told)
            if self._waiting.ends:
                self._form = None
        return not fits or self._form is None

    def _has_zero(self, grads: Sequence[Tensor]) -> bool:
        mine = [grads[member.place] for member in self._dense]
        with self._looked_at.given(mine) as tensors:
            return kernels.has_zero(tensors)

    def _arrange(self, told: Told | None, *, whole: bool) -> None:
        """Decide who steps as in torch, and where delivered elements are."""
        ways: dict[int, Way] = {} if told is None else told.ways()
        if told is not None:
            whole = not any(id(member.key) in ways for member in self._members)
        usual: Way = "all" if whole or told is not None else "nonzero"
        torchs = [each for each in self._members if whole and _is_torchs(each)]
        others = [each for each in self._members if not (whole and _is_torchs(each))]
        groups = groupby(torchs, key=lambda member: id(member.group))
        self._torchs = [_Torchs([*members]) for _, members in groups]
        named = [(each, ways.get(id(each.key), usual)) for each in others]
        self._waiting = Waiting(named, told, whole=whole) if others else None


class _Torchs:
    """Parameters of a group for which torch's own step is the right one."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._group = members[0].group
        self._places = [member.place for member in members]
        self._params = [member.param for member in members]
        names = ("exp_avg", "exp_avg_sq", "step")
        self._states = [[member.state[name] for member in members] for name in names]

    def step(self, grads: Sequence[Tensor]) -> None:
        group = self._group
        beta1, beta2 = group["betas"]
        momenta, energies, steps = self._states
        adamw(
            self._params,
            [grads[place] for place in self._places],
            momenta,
            energies,
            [],
            steps,
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


def _is_torchs(member: Member) -> bool:
    """Whether torch's own step is the right one if everything was delivered."""
    waiting = member.rows or "delivered_at" in member.state
    return member.param.dtype == torch.float32 and not waiting
