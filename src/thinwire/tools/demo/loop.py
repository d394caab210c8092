"""Train the character model with one method, on every rank, and look at its loss.

Weights, batches and their order follow from the seed alone, so that runs with
different methods differ in the method only. The clock stands still while the loss on
held-out text is taken, and has not started while kernels are compiled.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.catalog import WarmupSteps
from thinwire.tools.demo.methods import Trainer, Update
from thinwire.tools.demo.model import CharacterModel, Shape, loss_of
from thinwire.tools.demo.text import Corpus, windows

LOOKS = 16  # at the held-out loss, in a run
_WARM_STEPS = 4  # that compile kernels and settle DDP's buckets, on another model
_CHECK_SECONDS = 0.5  # between looks at the clock, by all ranks together
_HELD_OUT_SEED = 1 << 40  # far from the seeds of training batches


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training run of every method: AdamW, gradients clipped."""

    shape: Shape = field(default_factory=Shape)
    batch: int = 8
    learning_rate: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.99)
    held_out_windows: int = 64
    density: float = 0.01
    # "auto" would send all of the gradient for as long as this short run lasts.
    warmup: WarmupSteps = 0
    seed: int = 0

    @property
    def update(self) -> Update:
        """What the optimizer and the method get of it."""
        return Update(
            self.learning_rate, self.betas, self.density, self.warmup, self.seed
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """A run stops after `most` steps or `seconds`, but not before `least` steps."""

    seconds: float
    most: int | None = None
    least: int = 10


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Where a method's run is; losses are of rank 0's batch, and of held-out text."""

    method: str
    step: int
    seconds: float
    fraction: float
    loss: float
    held_out: float


@dataclass(frozen=True, slots=True)
class Look:
    """The held-out loss after some steps and seconds of training, over all ranks."""

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one method came to; `sent` are the bytes of the rank that sent most."""

    method: str
    looks: tuple[Look, ...]
    sent: float
    parameters: int

    @property
    def steps(self) -> int:
        """The steps it made."""
        return self.looks[-1].step

    @property
    def seconds(self) -> float:
        """The time they took, as the ranks spent it on training."""
        return self.looks[-1].seconds

    @property
    def loss(self) -> float:
        """The last held-out loss."""
        return self.looks[-1].loss

    def seconds_to(self, loss: float) -> float | None:
        """When it first reached a held-out loss, between two looks at it; or never."""
        before = self.looks[0]
        for look in self.looks:
            if look.loss <= loss:
                fall = before.loss - look.loss
                part = (before.loss - loss) / fall if fall > 0 else 1.0
                return before.seconds + part * (look.seconds - before.seconds)
            before = look
        return None


class Clock:
    """Training time on rank 0, by which all ranks look and stop at the same steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._since = time.monotonic()
        self._before = 0.0
        self.steps = 0
        self.looked = 0

    @property
    def seconds(self) -> float:
        """The time in which the clock did not stand still."""
        return self._before + time.monotonic() - self._since

    @property
    def fraction(self) -> float:
        """How much of the run is over."""
        of_time = self.seconds / max(self._limits.seconds, 1e-9)
        most = self._limits.most
        return min(max(of_time, self.steps / most if most else 0.0), 1.0)

    @contextmanager
    def standing_still(self) -> Iterator[float]:
        """The time at which it stopped; it goes on with the end of the context."""
        self._before = self.seconds
        self._since = time.monotonic()
        stopped = self._before
        try:
            yield stopped
        finally:
            self._before, self._since = stopped, time.monotonic()

    def plan(self) -> tuple[bool, bool, int]:
        """Whether to stop and to look now, and for how many steps not to ask again."""
        per_step = self.seconds / self.steps
        left = self._limits.seconds - self.seconds
        most = self._limits.most
        enough = left < per_step / 2 and self.steps >= self._limits.least
        stop = enough or self.steps == most
        look = stop or self.fraction * LOOKS >= self.looked + 1
        stride = max(1, int(min(_CHECK_SECONDS, left) / per_step))
        if most is not None:
            stride = min(stride, most - self.steps)
        return stop, look, stride


class SentBytes:
    """What this rank sends while it trains: counted by the kernel where it can be.

    A rank of a lab has an interface to itself; over loopback what was called counts.
    """

    def __init__(self, trainer: Trainer) -> None:
        name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        file = Path("/sys/class/net", name, "statistics", "tx_bytes")
        self._file = None if name.startswith("lo") else file
        self._trainer = trainer
        self._apart = self.now()

    def now(self) -> float:
        """The count."""
        if self._file is not None:
            return float(self._file.read_text())
        return self._trainer.sent()

    @property
    def total(self) -> float:
        """Without what was sent apart from training."""
        return self.now() - self._apart

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is sent meanwhile is not counted."""
        start = self.now()
        yield
        self._apart += self.now() - start


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
    _warm_up(method, recipe, corpus)
    trainer = _trainer(method, recipe)
    held_out = _of_all_ranks(held_out_loss(trainer.model.module, recipe, corpus))
    looks = [Look(0, 0.0, held_out)]
    sent, clock, stride, stop = SentBytes(trainer), Clock(limits), 1, False
    while not stop:
        for _ in range(stride):
            batch = batch_of(recipe, corpus, clock.steps)
            loss = loss_of(trainer.model, batch)
            trainer.step(loss)
            clock.steps += 1
        stop, look, stride = _agreed(clock)
        if look:
            with clock.standing_still() as now, sent.apart():
                held_out = held_out_loss(trainer.model.module, recipe, corpus)
                looks.append(Look(clock.steps, now, _of_all_ranks(held_out)))
            clock.looked = int(clock.fraction * LOOKS)
        on_progress(
            ProgressEvent(
                method,
                clock.steps,
                clock.seconds,
                1.0 if stop else clock.fraction,
                loss.item(),
                looks[-1].loss,
            )
        )
    most = torch.tensor(sent.total)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    trainer.check_replicas()
    trainer.close()
    size = sum(p.numel() for p in trainer.model.parameters())
    return Run(method, tuple(looks), most.item(), size)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor
) -> float:
    """One step on one batch; the loss before it."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


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


def _trainer(method: str, recipe: Recipe) -> Trainer:
    torch.manual_seed(recipe.seed)
    return Trainer(CharacterModel(recipe.shape), method, recipe.update)


def _warm_up(method: str, recipe: Recipe, corpus: Corpus) -> None:
    """A few steps of another model: what they compile is there for the real one."""
    trainer = _trainer(method, replace(recipe, warmup=0))
    for step in range(_WARM_STEPS):
        trainer.step(loss_of(trainer.model, batch_of(recipe, corpus, step)))
    trainer.close()


def _agreed(clock: Clock) -> tuple[bool, bool, int]:
    """What rank 0's clock says, on every rank."""
    plan = torch.tensor(clock.plan(), dtype=torch.int64)
    dist.broadcast(plan, src=0)
    stop, look, stride = plan.tolist()
    return bool(stop), bool(look), stride


def _of_all_ranks(mine: float) -> float:
    """The mean over ranks."""
    total = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def _seed(recipe: Recipe, step: int) -> int:
    place = recipe.seed << 48
    return place + step * dist.get_world_size() + dist.get_rank()
