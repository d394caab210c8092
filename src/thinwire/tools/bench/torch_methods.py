"""Methods that PyTorch itself offers, called as DDP calls their hooks.

A hook gets one bucket that holds the whole gradient: over Gloo, PowerSGD's collectives
of one bucket overtake those of another.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from thinwire.cost import Cost, ring_all_reduce
from thinwire.tools.bench.models import matrices

DENSE = "torch"
RANKS = (1, 2, 4)  # of PowerSGD
PEERS = (DENSE, "torch-bf16", "torch-fp16", *(f"powersgd-{rank}" for rank in RANKS))

_EPS = torch.finfo(torch.float32).eps


class Bucket:
    """A whole gradient with the interface of a bucket of DDP's."""

    def __init__(self, grad: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
        self._grad = grad
        sizes = [torch.Size(shape).numel() for shape in shapes]
        parts = zip(torch.split(grad, sizes), shapes, strict=True)
        self._views = [part.view(shape) for part, shape in parts]

    def index(self) -> int:
        return 0

    def buffer(self) -> Tensor:
        return self._grad

    def gradients(self) -> list[Tensor]:
        return self._views

    def is_last(self) -> bool:
        return True


class TorchHook:
    """A hook of PyTorch's without a residual."""

    warm = 1

    def __init__(
        self, size: int, hook: Callable[..., Any], width: int, rounding: float
    ) -> None:
        self._hook, self._size, self._width = hook, size, width
        self.tolerance: float | None = rounding * (dist.get_world_size() + 1)

    def reduce_(self, grad: Tensor) -> None:
        _deliver(self._hook(None, Bucket(grad, [(self._size,)])), grad)

    def phases(self, wall: float) -> dict[str, float]:
        return {"library": wall}

    def cost(self) -> Cost:
        return ring_all_reduce(self._width * self._size, dist.get_world_size())

    def residual(self) -> None:
        return None

    def reset(self) -> None:
        return None


HOOKS: Mapping[str, tuple[Callable[..., Any], int, float]] = {
    DENSE: (default_hooks.allreduce_hook, 4, _EPS),
    "torch-bf16": (default_hooks.bf16_compress_hook, 2, 2.0**-8),
    "torch-fp16": (default_hooks.fp16_compress_hook, 2, 2.0**-10),
}


class PowerSGD:
    """PyTorch's PowerSGD with error feedback and warm start, its defaults."""

    warm = 3

    def __init__(self, size: int, rank: int) -> None:
        self._shapes = matrices(size)
        self._rank = rank
        self.tolerance: float | None = 64 * _EPS * dist.get_world_size()
        self.reset()

    def reduce_(self, grad: Tensor) -> None:
        bucket = Bucket(grad, self._shapes)
        _deliver(powerSGD_hook(self._state, bucket), grad)

    def phases(self, wall: float) -> dict[str, float]:
        return {"library": wall}

    def cost(self) -> Cost:
        """Two factors of every matrix, and small matrices whole."""
        factors = sum(
            memory.numel()
            for memories in (self._state.p_memory_dict, self._state.q_memory_dict)
            for memory in memories.values()
        )
        # Counted by the hook; all reductions send the same number of elements.
        whole = self._state.total_numel_after_compression // self._steps - factors
        size = dist.get_world_size()
        parts = [ring_all_reduce(4 * part, size) for part in (whole, factors)]
        return Cost(3 * parts[1].rounds, sum(part.nbytes for part in parts))

    def residual(self) -> Tensor | None:
        memory: Tensor | None = self._state.error_dict.get(0)
        return memory

    @property
    def _steps(self) -> int:
        done: int = self._state.iter - self._state.start_powerSGD_iter
        return max(done, 1)

    def reset(self) -> None:
        logging.getLogger(PowerSGDState.__module__).setLevel(logging.WARNING)
        self._state = PowerSGDState(None, matrix_approximation_rank=self._rank)
        # Compress from the first step on, not after a thousand.
        self._state.start_powerSGD_iter = self._state.iter = 2


def _deliver(future: "torch.futures.Future[Tensor]", grad: Tensor) -> None:
    """Wait for the mean and copy it into `grad`, as DDP does."""
    mean = future.wait()
    if mean.data_ptr() != grad.data_ptr():
        grad.copy_(mean)
