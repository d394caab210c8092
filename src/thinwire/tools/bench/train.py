"""Training steps of a real model: every method trains a replica of its own, in turns.

A step is forward, backward and the optimizer's, timed from a common start on every
rank; the slowest counts. "no exchange" is the same without communication: what no
method can be faster than.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives.collective import check_density
from thinwire.errors import ConfigError, ReplicaError
from thinwire.hooks.attach import attach
from thinwire.hooks.state import State
from thinwire.tools.bench.machine import machine
from thinwire.tools.bench.methods import MethodSpec, method_specs
from thinwire.tools.bench.models import MODELS, Built, Loss
from thinwire.tools.bench.ranks import (
    Interface,
    Neighbours,
    OnProgress,
    ProgressEvent,
    gathered,
    slowest,
)

ALONE = "no exchange"
_WARM = 6  # DDP rebuilds its buckets, kernels are compiled, PowerSGD starts
_LEAST_STEPS = 3
_LEARNING_RATE = 0.01
_MOMENTUM = 0.9
_ONE_BUCKET_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What to train, and how; `model` is a built-in name or module:function."""

    model: str = "vgg16"
    density: float = 0.01
    methods: Sequence[str] = ("spardl",)
    codecs: Sequence[str] = ()
    peers: Sequence[str] = ()
    steps: int = 15
    scope: str = "bucket"
    place: str = "loopback"
    rate: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.steps < _LEAST_STEPS:
            raise ConfigError(
                f"{self.steps} steps: a spread needs {_LEAST_STEPS} or more"
            )
        if self.scope not in ("bucket", "model"):
            raise ConfigError(f"scope is {self.scope!r}: choose 'bucket' or 'model'")
        for spec in self.specs:
            spec.check(self.density)

    @property
    def specs(self) -> list[MethodSpec]:
        """All methods to compare, without the replica that does not communicate."""
        return method_specs(self.methods, self.codecs, self.peers)

    def check(self, ranks: int) -> None:
        """Raise `ConfigError` for unknown models and methods that cannot run."""
        for spec in self.specs:
            spec.check(self.density, ranks)
        builder(self.model)

    def measure(self, on_progress: OnProgress) -> "Result":
        """Train, on every rank at once; every rank gets the result."""
        self.check(dist.get_world_size())
        interface = Interface.own(Neighbours.found())
        replicas = [Replica(None, self, interface)]
        replicas += [Replica(spec, self, interface) for spec in self.specs]
        total = _WARM + self.steps
        for step in range(total):
            on_progress(ProgressEvent(f"step {step + 1}", step, total))
            if step == _WARM:
                for replica in replicas:
                    replica.start_counting()
            order = list(replicas)
            Random(f"{self.seed} {step}").shuffle(order)  # the same on all ranks
            for replica in order:
                torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
                replica.step()
        on_progress(ProgressEvent("done", total, total))
        for replica in replicas:
            replica.check()
        return self._result(replicas)

    def _result(self, replicas: "Sequence[Replica]") -> "Result":
        parameters = replicas[0].model.parameters()
        return Result(
            model=self.model,
            parameters=sum(p.numel() for p in parameters if p.requires_grad),
            density=self.density,
            scope=self.scope,
            ranks=dist.get_world_size(),
            ranks_per_machine=Neighbours.found().ranks_per_machine,
            place=self.place,
            rate=self.rate,
            machine=machine(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=[replica.row() for replica in replicas],
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What one method's steps took."""

    label: str
    method: str
    codec: str | None
    peer: bool
    seconds: float
    low: float
    high: float
    walls: list[float]
    sent: float | None  # bytes a step as thinwire counts, or the interface


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one model."""

    model: str
    parameters: int
    density: float
    scope: str
    ranks: int
    ranks_per_machine: int
    place: str
    rate: int | None
    machine: str
    date: str
    rows: list[Row]


def builder(name: str) -> Callable[[], Built]:
    """The function that makes a model and its loss, by name or by path.

    >>> builder("resnet20").__name__
    'resnet20'
    >>> builder("resnet")
    Traceback (most recent call last):
    thinwire.errors.ConfigError: unknown model 'resnet': there are vgg16, ...
    """
    if name in MODELS:
        return MODELS[name]
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(
            f"unknown model {name!r}: there are {', '.join(MODELS)}; your own is "
            "module:function, which returns a model and a function loss(model)"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot find the model {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"the model {name!r} is {type(found).__name__}, no function")
    made: Callable[[], Built] = found
    return made


@dataclass(slots=True)
class Replica:
    """The copy of the model that one method trains; None does not communicate."""

    spec: MethodSpec | None
    settings: Settings
    interface: Interface | None
    model: DistributedDataParallel = field(init=False)
    loss: Loss = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    state: State | None = None
    walls: list[float] = field(default_factory=list)
    sent: float = 0.0
    wire: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.settings.seed)
        model, self.loss = _built(self.settings.model)
        powersgd = self.spec is not None and self.spec.method.startswith("powersgd")
        # Over Gloo, PowerSGD's collectives of one bucket overtake another's.
        cap = _ONE_BUCKET_MB if powersgd else None
        self.model = DistributedDataParallel(model, bucket_cap_mb=cap)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), _LEARNING_RATE, _MOMENTUM
        )
        if self.spec is not None and self.spec.peer:
            _register(self.model, self.spec.method)
        elif self.spec is not None:
            self.state = attach(
                self.model,
                self.spec.method,
                density=self.settings.density,
                scope=self.settings.scope,  # type: ignore[arg-type]
                codec=self.spec.codec,
                **dict(self.spec.options),
            )

    def start_counting(self) -> None:
        """Discard the warm-up steps."""
        self.walls.clear()
        self.wire = 0
        self.sent = self._counted()

    def step(self) -> None:
        """Forward, backward, the optimizer's step; the slowest rank's time."""
        dist.barrier()
        before = self.interface.sent() if self.interface else 0
        start = perf_counter()
        self.optimizer.zero_grad()
        with self._quiet():
            self.loss(self.model).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        wall = perf_counter() - start
        dist.barrier()
        self.wire += self.interface.sent() - before if self.interface else 0
        self.walls.append(slowest(wall))

    def check(self) -> None:
        """Raise `ReplicaError` unless all ranks have the same parameters."""
        if self.spec is None:
            return
        digest = blake2b()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().contiguous().numpy().data)
        if len(set(gathered(digest.hexdigest()))) > 1:
            raise ReplicaError(f"{self.spec.label}: replicas of the model differ")

    def row(self) -> Row:
        """The figures of all ranks together."""
        low, middle, high = quantiles(self.walls, n=4, method="inclusive")
        spec = self.spec or MethodSpec(ALONE)
        return Row(
            label=spec.label,
            method=spec.method,
            codec=spec.codec,
            peer=self.state is None,
            seconds=middle,
            low=low,
            high=high,
            walls=self.walls,
            sent=self._sent_a_step(),
        )

    def _sent_a_step(self) -> float | None:
        """The busiest rank's bytes: the interface's, else thinwire's count."""
        mine = None
        if self.interface is not None:
            mine = self.wire / len(self.walls)
        elif self.state is not None:
            mine = (self._counted() - self.sent) / len(self.walls)
        every = gathered(mine)
        return None if mine is None else max(every)

    def _counted(self) -> float:
        return 0.0 if self.state is None else self.state.metrics()["bytes_sent"]

    def _quiet(self) -> AbstractContextManager[None]:
        return self.model.no_sync() if self.spec is None else nullcontext()


def _built(name: str) -> tuple[nn.Module, Loss]:
    made: object = builder(name)()
    if isinstance(made, tuple) and len(made) == 2:  # noqa: PLR2004
        model, loss = made
        if isinstance(model, nn.Module) and callable(loss):
            return model, _checked(loss)
    raise ConfigError(
        f"the model {name!r} returned {type(made).__name__}: return a torch.nn.Module "
        "and a function loss(model) that makes a batch and gives a scalar"
    )


def _checked(loss: Loss) -> Loss:
    def checked(model: nn.Module) -> Tensor:
        value: object = loss(model)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ConfigError(f"loss(model) gave {type(value).__name__}, no scalar")
        return value

    return checked


def _register(model: DistributedDataParallel, peer: str) -> None:
    if peer.startswith("powersgd-"):
        rank = int(peer.partition("-")[2])
        state = PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook)
    elif peer == "torch-bf16":
        model.register_comm_hook(None, _bf16)
    elif peer == "torch-fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _bf16(
    state: dist.ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """PyTorch's hook under another name: by its own, DDP refuses it without CUDA."""
    group = state or dist.group.WORLD
    assert group is not None
    return default_hooks.bf16_compress_hook(group, bucket)
