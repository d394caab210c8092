"""Replicas: P workers on one device, one copy of the parameters, P gradients.

Every worker has a module of its own whose parameters share the memory of the first
one's, and buffers of its own, which start every step as the first worker's: what DDP
does by broadcasting them. Gradients land in the rows of one matrix.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from experiments.tasks.base import Batch, Carry, Data
from thinwire.errors import ConfigError
from thinwire.hooks.inspection import sparse_names
from thinwire.layout import Layout


class Replicas:
    """Workers that compute their gradients from the same weights.

    With `apart`, each computes from weights of its own: a row of `weights`, once the
    layout is known. The model itself is then none of theirs.
    """

    def __init__(
        self, model: nn.Module, data: Data, ranks: int, *, apart: bool = False
    ) -> None:
        self.data = data
        self.models = (
            [copy.deepcopy(model) for _ in range(ranks)]
            if apart
            else [model, *(sharing(model) for _ in range(ranks - 1))]
        )
        self.weights: Tensor | None = None
        self._apart = apart
        rows = sparse_names(model)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        dense = {n: p for n, p in trained.items() if n not in rows}
        self.layout = Layout.of(dense.items())
        self.sparse = [name for name in trained if name in rows]
        device = next(model.parameters()).device
        self.rows = torch.zeros(ranks, self.layout.size, device=device)
        self._leaves: list[list[nn.Parameter]] = []
        self._views: list[list[Tensor]] = []
        self._buffers = [list(each.buffers()) for each in self.models]
        if apart and (rows or self._buffers[0]):
            raise ConfigError(
                "workers with weights of their own have neither sparse gradients nor "
                "buffers such as BatchNorm's: choose another task"
            )

    def lie_as(self, order: Sequence[str]) -> None:
        """Lay gradients out in this order of names."""
        self.layout = self.layout.pick(name for name in order if name in self._known)
        names = [*self.layout.names, *self.sparse]
        for model, row in zip(self.models, self.rows, strict=True):
            held = dict(model.named_parameters())
            self._leaves.append([held[name] for name in names])
            views = self.layout.views(row)
            self._views.append([views[name] for name in self.layout.names])
        if self._apart:
            self._part()

    def _part(self) -> None:
        """Move every worker's parameters into its row of weights."""
        self.weights = torch.zeros_like(self.rows)
        for model, row in zip(self.models, self.weights, strict=True):
            held = dict(model.named_parameters())
            for name, view in self.layout.views(row).items():
                held[name].data = view.copy_(held[name].detach())

    @property
    def _known(self) -> set[str]:
        return set(self.layout.names)

    def share_buffers(self) -> None:
        """Give every worker the first one's buffers, as DDP does before a forward."""
        first, *others = self._buffers
        if first:
            with torch.no_grad():
                for theirs in others:
                    torch._foreach_copy_(theirs, first)

    def backward(
        self, rank: int, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry, list[Tensor]]:
        """One worker's loss, what its next batch needs, and its sparse gradients.

        Its dense gradients are written into its row.
        """
        loss, carry = self.data.loss(self.models[rank], batch, carry)
        found = torch.autograd.grad(loss, self._leaves[rank])
        views = self._views[rank]
        with torch.no_grad():
            torch._foreach_copy_(views, list(found[: len(views)]))
        return loss.detach(), carry, list(found[len(views) :])


def sharing(model: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters' memory, not its buffers'."""
    aliases = {
        id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()
    }
    return copy.deepcopy(model, dict(aliases))


def seed_of(seed: int, step: int, rank: int) -> int:
    """Seeds torch before a worker's forward, in real processes and in virtual ones.

    >>> len({seed_of(seed, step, rank) for seed in (0, 1) for step in (0, 1)
    ...     for rank in (0, 1)})
    8
    """
    return (seed * 1_000_003 + step) * 4_099 + rank


def arrival_order(
    model: nn.Module, data: Data, batch: Batch, *, seed: int = 0
) -> list[str]:
    """Names in the order in which a backward pass completes their gradients.

    This is the order of DDP's buckets once it has redrawn them.
    """
    trial = copy.deepcopy(model)
    order: list[str] = []
    for name, parameter in trial.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, name=name: order.append(name)
            )
    devices = [batch[0].device] if batch and batch[0].is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        loss, _ = data.loss(trial, batch, None)
        loss.backward()  # type: ignore[no-untyped-call]
    unused = {n for n, p in trial.named_parameters() if p.requires_grad} - set(order)
    if unused:
        raise ConfigError(
            f"the loss does not depend on {sorted(unused)[0]!r}: freeze it, or use it"
        )
    return order
