"""Train the character model with one method, on every rank: a plain DDP loop.

Weights, batches and their order follow from the seed alone, so that runs with
different methods differ in the method only.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import catalog
from thinwire.catalog import WarmupSteps
from thinwire.hooks.attach import attach
from thinwire.optim import AdamW
from thinwire.tools.demo.model import CharacterModel, Shape, loss_of
from thinwire.tools.demo.text import Corpus, windows

_CLOCK_STEPS = 5  # steps between checks of the clock, on all ranks together
_WARM = 3  # steps that may compile kernels and rebuild buckets: not timed
_LARGEST_NORM = 1.0
_HELD_OUT_SEED = 1 << 40  # far from the seeds of training batches


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training run of every method: AdamW, each worker's gradient clipped."""

    shape: Shape = field(default_factory=Shape)
    batch: int = 8
    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.99)
    held_out_windows: int = 64
    density: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """A run stops after `most` steps or `seconds`, but not before `least` steps."""

    seconds: float
    most: int | None = None
    least: int = 10


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """A step of a method's run, of which `fraction` is done."""

    method: str
    step: int
    fraction: float
    loss: float


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one method on one rank; `losses` are of its own batches."""

    method: str
    losses: tuple[float, ...]
    held_out: tuple[float, float]  # before and after
    bytes_sent: float  # a step
    seconds: float  # a step
    parameters: int


class Clock:
    """Stops all ranks at the same step, by the time of rank 0."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._start = time.monotonic()

    def steps(self) -> Iterator[int]:
        """The steps to make, until a limit is reached."""
        step = 0
        while not self._enough(step):
            yield step
            step += 1

    def fraction(self, step: int) -> float:
        """How much of the run is over after `step` steps."""
        of_time = (time.monotonic() - self._start) / max(self._limits.seconds, 1e-9)
        of_steps = step / self._limits.most if self._limits.most else 0.0
        return min(max(of_time, of_steps), 1.0)

    def _enough(self, step: int) -> bool:
        if self._limits.most is not None and step >= self._limits.most:
            return True
        if step < self._limits.least or step % _CLOCK_STEPS:
            return False
        over = torch.tensor([time.monotonic() - self._start >= self._limits.seconds])
        dist.broadcast(over, src=0)
        return bool(over)


def train(
    method: str,
    recipe: Recipe,
    corpus: Corpus,
    *,
    limits: Limits,
    on_progress: Callable[[ProgressEvent], None],
) -> Run:
    """Train from scratch until a limit is reached; all ranks stop together.

    Raises `ReplicaError` if the replicas are not bit-identical at the end.
    """
    clock = Clock(limits)
    torch.manual_seed(recipe.seed)
    model = DistributedDataParallel(CharacterModel(recipe.shape))
    state = attach(
        model,
        method,
        density=recipe.density,
        warmup=warmup_of(method, recipe.density),
        clip=_LARGEST_NORM,
        seed=recipe.seed,
    )
    optimizer = AdamW(
        model.parameters(), recipe.learning_rate, recipe.betas, state=state
    )
    before = held_out_loss(model.module, recipe, corpus)
    losses: list[float] = []
    seconds: list[float] = []
    for step in clock.steps():
        began = time.perf_counter()
        losses.append(train_step(model, optimizer, batch_of(recipe, corpus, step)))
        seconds.append(time.perf_counter() - began)
        on_progress(
            ProgressEvent(method, step + 1, clock.fraction(step + 1), losses[-1])
        )
    metrics = state.metrics()  # before replicas are compared, which is traffic too
    state.check_replicas()
    return Run(
        method,
        tuple(losses),
        (before, held_out_loss(model.module, recipe, corpus)),
        metrics["bytes_sent"] / len(losses),
        median(seconds[_WARM:]),
        sum(p.numel() for p in model.parameters()),
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor
) -> float:
    """One step on one batch; the loss before it."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def warmup_of(method: str, density: float) -> WarmupSteps:
    """Falling densities for methods that have one."""
    chosen = catalog.reducer(method, density=density).collective
    return 0 if chosen.density is None else "auto"


def batch_of(recipe: Recipe, corpus: Corpus, step: int) -> Tensor:
    """This rank's batch of a step: another on every rank."""
    return windows(
        corpus.train,
        recipe.batch,
        recipe.shape.context + 1,
        seed=_seed(recipe, step),
    )


@torch.no_grad()
def held_out_loss(model: nn.Module, recipe: Recipe, corpus: Corpus) -> float:
    """The loss on this rank's share of the text that is not trained on."""
    sample = windows(
        corpus.held_out,
        recipe.held_out_windows,
        recipe.shape.context + 1,
        seed=_seed(recipe, _HELD_OUT_SEED),
    )
    return loss_of(model, sample).item()


def _seed(recipe: Recipe, step: int) -> int:
    place = recipe.seed << 48
    return place + step * dist.get_world_size() + dist.get_rank()
