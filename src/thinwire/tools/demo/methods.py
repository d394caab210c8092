"""The methods of the demo: what PyTorch offers itself, and those of the catalog.

PyTorch's are trained as its users do: torch.optim.AdamW, and the mean gradient clipped.
"""

import logging
import re
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from thinwire import catalog
from thinwire.catalog import WarmupSteps
from thinwire.cost import ring_all_reduce
from thinwire.groups.torch import TorchGroup
from thinwire.hooks import agreement
from thinwire.hooks.attach import attach
from thinwire.hooks.state import State
from thinwire.optim import AdamW

PLAIN = "dense"
_POWERSGD = re.compile(r"powersgd-([1-9]\d?)")
POWERSGD_DENSE_STEPS = 2
_ONE_BUCKET_MB = 1000  # over Gloo, PowerSGD's messages of two buckets get mixed up
_LARGEST_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Update:
    """How a gradient becomes a step, whatever is sent of it."""

    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.99)
    density: float = 0.01
    warmup: WarmupSteps = 0
    seed: int = 0


class Trainer:
    """A model on every rank, the optimizer, and what travels between ranks."""

    def __init__(self, module: nn.Module, method: str, update: Update) -> None:
        self._size = sum(p.numel() for p in module.parameters())
        self._steps = 0
        self._power: PowerSGDState | None = None
        self._state: State | None = None
        power = powersgd_rank(method)
        if power is not None:
            self.model = DistributedDataParallel(module, bucket_cap_mb=_ONE_BUCKET_MB)
            self._power = _power_state(power, update.seed)
            self.model.register_comm_hook(self._power, powerSGD_hook)
        else:
            self.model = DistributedDataParallel(module)
        if not is_of_torch(method):
            self._state = attach(
                self.model,
                method,
                density=update.density,
                warmup=update.warmup if is_sparse(method, update.density) else 0,
                clip=_LARGEST_NORM,
                seed=update.seed,
            )
        given = (self.model.parameters(), update.learning_rate, update.betas)
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(*given)
            if self._state is None
            else AdamW(*given, state=self._state)
        )

    def step(self, loss: torch.Tensor) -> None:
        """One step down the gradient of a loss."""
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._state is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), _LARGEST_NORM)
        self._optimizer.step()
        self._steps += 1

    def sent(self) -> float:
        """Bytes this rank has sent, by the cards of what it called."""
        ranks = dist.get_world_size()
        if self._state is not None:
            return float(self._state.metrics()["bytes_sent"])
        if self._power is not None:
            dense = min(self._steps, self._power.start_powerSGD_iter)
            factors = self._power.total_numel_after_compression
            elements = dense * self._size + factors
        else:
            elements = self._steps * self._size
        return ring_all_reduce(4 * elements, ranks).nbytes

    def check_replicas(self) -> None:
        """Raise `ReplicaError` if models of different ranks are not bit-identical."""
        if self._state is not None:
            self._state.check_replicas()
            return
        named = dict(self.model.module.named_parameters())
        agreement.compare_replicas(TorchGroup(), named, torch.device("cpu"))

    def close(self) -> None:
        """Release what the method holds."""
        if self._state is not None:
            self._state.close()


def label(method: str) -> str:
    """What a method is called in tables.

    >>> label("dense"), label("powersgd-2"), label("spardl")
    ('plain DDP', 'PowerSGD-2', 'spardl')
    """
    return "plain DDP" if method == PLAIN else method.replace("powersgd", "PowerSGD")


def check(method: str, density: float, workers: int) -> None:
    """Raise `ConfigError` unless it is a method, for so many workers."""
    if powersgd_rank(method) is None:
        catalog.reducer(method, density=density).collective.check(workers)


def is_of_torch(method: str) -> bool:
    """Whether PyTorch has it, without thinwire."""
    return method == PLAIN or powersgd_rank(method) is not None


def is_sparse(method: str, density: float) -> bool:
    """Whether it sends a part of the gradient only.

    >>> is_sparse("spardl", 0.01), is_sparse("bf16", 0.01)
    (True, False)
    """
    return catalog.reducer(method, density=density).collective.density is not None


def powersgd_rank(method: str) -> int | None:
    """The rank in the name of PowerSGD.

    >>> powersgd_rank("powersgd-2"), powersgd_rank("spardl")
    (2, None)
    """
    match = _POWERSGD.fullmatch(method)
    return int(match[1]) if match else None


def _power_state(rank: int, seed: int) -> PowerSGDState:
    """PyTorch's defaults, with error feedback and warm start.

    But it starts after the two dense steps that it needs, not after a thousand: dense
    ones take most of a short run's time, and no other method here makes any.
    """
    logging.getLogger(PowerSGDState.__module__).setLevel(logging.WARNING)
    return PowerSGDState(
        None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=POWERSGD_DENSE_STEPS,
        random_seed=seed,
    )
