"""Who reduces: thinwire's methods by name, and what PyTorch itself has to offer.

A contestant owns what it remembers between steps. PyTorch's hooks are called as DDP
calls them, on a bucket that holds the whole gradient: over Gloo, PowerSGD's collectives
of one bucket overtake those of another.
"""

import ast
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from thinwire import catalog, kernels
from thinwire.codecs import Timed
from thinwire.collectives import Grade
from thinwire.cost import Cost, ring_all_reduce
from thinwire.errors import ConfigError
from thinwire.groups import Counted, Group, Op
from thinwire.hooks.metrics import PHASES
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.tools.bench.models import matrices

DENSE = "torch"
RANKS = (1, 2, 4)  # of PowerSGD
PEERS = (DENSE, "torch-bf16", "torch-fp16", *(f"powersgd-{rank}" for rank in RANKS))

_EPS = torch.finfo(torch.float32).eps
_WARM = 5  # steps until what is remembered weighs as much as it will


class Contestant(Protocol):
    """One way to turn a gradient into its mean over all ranks.

    `tolerance` is how far what was delivered and what is owed may be from what there
    was, as a share of the sum of magnitudes; None where the method only estimates.
    """

    warm: int
    tolerance: float | None

    def reduce_(self, grad: Tensor) -> None: ...

    def phases(self, wall: float) -> dict[str, float]:
        """The seconds of the last reduction, by what they were spent on."""
        ...

    def cost(self) -> Cost:
        """What this rank sent in the last reduction, headers of TCP/IP not counted."""
        ...

    def owed(self) -> Tensor | None:
        """What this rank remembers."""
        ...

    def forget(self) -> None:
        """Start anew."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A method with options and a codec, as it is typed and as it is shown.

    >>> Entry.parse("spardl:teams=2")
    Entry(method='spardl', options=(('teams', 2),), codec=None)
    >>> Entry.parse("spardl:teams=2", "rice+log4").label
    'spardl:teams=2 rice+log4'
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    codec: str | None = None

    @classmethod
    def parse(cls, text: str, codec: str | None = None) -> "Entry":
        """A name, then options after colons."""
        method, *parts = text.split(":")
        return cls(method, tuple(_option(part, text) for part in parts), codec)

    @property
    def label(self) -> str:
        """Short, and different for different entries."""
        options = "".join(f":{name}={value}" for name, value in self.options)
        return f"{self.method}{options}{f' {self.codec}' if self.codec else ''}"

    @property
    def peer(self) -> bool:
        """Whether it is PyTorch's."""
        return self.method in PEERS

    def pipeline(self, density: float) -> Pipeline:
        """The reducer; a mistake in the entry is an error that says so."""
        return catalog.reducer(
            self.method, density=density, codec=self.codec, **dict(self.options)
        )

    def check(self, density: float, ranks: int | None = None) -> None:
        """Refuse what does not exist, or does not work on so many ranks."""
        if self.peer:
            return
        collective = self.pipeline(density).collective
        if ranks is not None:
            collective.check(ranks)


def entries(
    methods: Sequence[str], codecs: Sequence[str], peers: Sequence[str]
) -> list[Entry]:
    """Dense first, for comparison, then every method with every codec it takes."""
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise ConfigError(f"unknown peer {unknown[0]!r}. There are: {', '.join(PEERS)}")
    found = [Entry(peer) for peer in dict.fromkeys((DENSE, *peers))]
    for text in methods:
        entry = Entry.parse(text)
        own = catalog.method(entry.method).codec is not catalog.default_codec
        choose = codecs and not own and entry.pipeline(0.5).collective.coded
        found += [Entry.parse(text, each) for each in codecs] if choose else [entry]
    return list(dict.fromkeys(found))


def make(entry: Entry, size: int, density: float, group: Group) -> Contestant:
    """A contestant, ready to reduce."""
    if not entry.peer:
        return Ours(entry.pipeline(density), size, group)
    if entry.method.startswith("powersgd-"):
        return PowerSGD(size, int(entry.method.partition("-")[2]))
    return Hook(size, *_HOOKS[entry.method])


def _option(part: str, text: str) -> tuple[str, Any]:
    name, _, value = part.partition("=")
    if not name or not value:
        raise ConfigError(
            f"{part!r} in {text!r}: write options after the name, as in spardl:teams=2"
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


class Ours:
    """A pipeline of thinwire's, watched at its seams."""

    def __init__(self, pipeline: Pipeline, size: int, group: Group) -> None:
        self._stopwatch: kernels.Stopwatch = {}
        codec = pipeline.codec and Timed(pipeline.codec, self._stopwatch)
        self._pipeline = replace(pipeline, codec=codec)
        self._group = Watched(group)
        self._layout = Layout.flat(size)
        self._state = self._pipeline.init(self._layout)
        sparse = pipeline.collective.density is not None
        self.warm = _WARM if sparse else 1
        estimate = pipeline.collective.grade is Grade.NONE
        self.tolerance = None if estimate else 8 * _EPS * group.size

    def reduce_(self, grad: Tensor) -> None:
        self._stopwatch.clear()
        self._group.reset()
        self._group.agreeing = 0.0
        with kernels.timed_primitives(self._stopwatch):
            mean = self._pipeline.reduce_([grad], self._group, self._state)
            if mean is not None:
                self._pipeline.settle(mean, self._state)

    def phases(self, wall: float) -> dict[str, float]:
        seconds = self._stopwatch
        found = {
            phase: sum(seconds.get(part, 0.0) for part in parts)
            for phase, parts in PHASES.items()
        }
        found["agree"] = self._group.agreeing
        found["exchange"] = self._group.traffic.wait - self._group.agreeing
        return found | {"rest": max(wall - sum(found.values()), 0.0)}

    def cost(self) -> Cost:
        return self._group.traffic.cost

    def owed(self) -> Tensor:
        return self._state.memory.x.whole()

    def forget(self) -> None:
        self._state = self._pipeline.init(self._layout)


class Watched(Counted):
    """Counts, and keeps the guard's wait apart: its note alone is in float64."""

    agreeing = 0.0

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        before = self.traffic.wait
        super().all_reduce_(*parts)
        if parts[0][0].dtype == torch.float64:
            self.agreeing += self.traffic.wait - before


class Bucket:
    """A whole gradient, as DDP's hooks see one of DDP's buckets."""

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


class Hook:
    """A hook of PyTorch's that remembers nothing."""

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

    def owed(self) -> None:
        return None

    def forget(self) -> None:
        return None


_HOOKS: Mapping[str, tuple[Callable[..., Any], int, float]] = {
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
        self.forget()

    def reduce_(self, grad: Tensor) -> None:
        bucket = Bucket(grad, self._shapes)
        _deliver(powerSGD_hook(self._state, bucket), grad)

    def phases(self, wall: float) -> dict[str, float]:
        return {"library": wall}

    def cost(self) -> Cost:
        """What it keeps of every matrix, and whole what is too small to compress."""
        factors = sum(
            memory.numel()
            for memories in (self._state.p_memory_dict, self._state.q_memory_dict)
            for memory in memories.values()
        )
        # Counted by the hook, in reductions that are all alike.
        whole = self._state.total_numel_after_compression // self._steps - factors
        size = dist.get_world_size()
        parts = [ring_all_reduce(4 * part, size) for part in (whole, factors)]
        return Cost(3 * parts[1].rounds, sum(part.nbytes for part in parts))

    def owed(self) -> Tensor | None:
        memory: Tensor | None = self._state.error_dict.get(0)
        return memory

    @property
    def _steps(self) -> int:
        done: int = self._state.iter - self._state.start_powerSGD_iter
        return max(done, 1)

    def forget(self) -> None:
        logging.getLogger(PowerSGDState.__module__).setLevel(logging.WARNING)
        self._state = PowerSGDState(None, matrix_approximation_rank=self._rank)
        # Compress from the first step on, not after a thousand.
        self._state.start_powerSGD_iter = self._state.iter = 2


def _deliver(future: "torch.futures.Future[Tensor]", grad: Tensor) -> None:
    """Wait, and put the result where DDP would."""
    mean = future.wait()
    if mean.data_ptr() != grad.data_ptr():
        grad.copy_(mean)
