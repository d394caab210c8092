"""Train the character model with one method, on every rank, and look at its loss.

Weights, batches and their order follow from the seed alone, so that runs with
different methods differ in the method only. The clock stands still while the loss on
held-out text is taken, while another method trains, and while kernels are compiled.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thinwire.catalog import WarmupSteps
from thinwire.tools.demo.methods import Trainer, Update
from thinwire.tools.demo.model import CharacterModel, Shape, loss_of
from thinwire.tools.demo.text import Corpus, windows

LEAST_STEPS = 10
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
    least: int = LEAST_STEPS


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

    @property
    def megabytes(self) -> float:
        """What it sent in a step."""
        return self.sent / self.steps / 1e6

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
    """Training time on rank 0, by which all ranks look and stop at the same steps.

    It stands still at first.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._since: float | None = None
        self._before = 0.0
        self.steps = 0
        self.looked = 0

    @property
    def seconds(self) -> float:
        """The time in which the clock did not stand still."""
        since = self._since
        return self._before + (0.0 if since is None else time.monotonic() - since)

    @property
    def fraction(self) -> float:
        """How much of the run is over."""
        of_time = self.seconds / max(self._limits.seconds, 1e-9)
        most = self._limits.most
        return min(max(of_time, self.steps / most if most else 0.0), 1.0)

    def stop(self) -> None:
        """Stand still until it is started again."""
        self._before, self._since = self.seconds, None

    def start(self) -> None:
        """Go on."""
        self._since = time.monotonic()

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
        self._start = 0.0
        self.total = 0.0

    def start(self) -> None:
        """Count from now on."""
        self._start = self._now()

    def stop(self) -> None:
        """What is sent from now on is not counted."""
        self.total += self._now() - self._start

    def _now(self) -> float:
        if self._file is not None:
            return float(self._file.read_text())
        return self._trainer.sent()


class Training:
    """A method's run on this rank, which may be interrupted for another method's."""

    def __init__(
        self, method: str, recipe: Recipe, corpus: Corpus, limits: Limits
    ) -> None:
        _warm_up(method, recipe, corpus)
        self._method, self._recipe, self._corpus = method, recipe, corpus
        self._trainer = _trainer(method, recipe)
        self._clock, self._sent = Clock(limits), SentBytes(self._trainer)
        self._looks = [Look(0, 0.0, self._held_out())]
        self._stride, self._done = 1, False

    def go_on(
        self, fraction: float, on_progress: Callable[[ProgressEvent], None]
    ) -> None:
        """Train until so much of the run is over; all ranks stop together."""
        clock = self._clock
        if self._done:
            return
        self._start()
        while True:
            for _ in range(self._stride):
                batch = batch_of(self._recipe, self._corpus, clock.steps)
                loss = loss_of(self._trainer.model, batch)
                self._trainer.step(loss)
                clock.steps += 1
            self._done, look, over, self._stride = _agreed(clock, fraction)
            self._stop()
            if look:
                now = Look(clock.steps, clock.seconds, self._held_out())
                self._looks.append(now)
                clock.looked = int(clock.fraction * LOOKS)
            self._tell(on_progress, loss.item())
            if over:
                return
            self._start()

    def end(self) -> Run:
        """What it came to; raises `ReplicaError` if replicas differ in a bit."""
        most = torch.tensor(self._sent.total)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        self._trainer.check_replicas()
        self._trainer.close()
        size = sum(p.numel() for p in self._trainer.model.parameters())
        return Run(self._method, tuple(self._looks), most.item(), size)

    def _start(self) -> None:
        self._sent.start()
        self._clock.start()

    def _stop(self) -> None:
        self._clock.stop()
        self._sent.stop()

    def _tell(self, on_progress: Callable[[ProgressEvent], None], loss: float) -> None:
        clock = self._clock
        fraction = 1.0 if self._done else clock.fraction
        on_progress(
            ProgressEvent(
                self._method,
                clock.steps,
                clock.seconds,
                fraction,
                loss,
                self._looks[-1].loss,
            )
        )

    def _held_out(self) -> float:
        module = self._trainer.model.module
        mine = held_out_loss(module, self._recipe, self._corpus)
        total = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()


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


def _agreed(clock: Clock, fraction: float) -> tuple[bool, bool, bool, int]:
    """What rank 0's clock says, on every rank."""
    stop, look, stride = clock.plan()
    # The last turn ends with the run, which has a least number of steps.
    over = stop or (fraction < 1.0 and clock.fraction >= fraction)
    plan = torch.tensor([stop, look, over, stride], dtype=torch.int64)
    dist.broadcast(plan, src=0)
    stop, look, over, stride = plan.tolist()
    return bool(stop), bool(look), bool(over), stride


def _seed(recipe: Recipe, step: int) -> int:
    place = recipe.seed << 48
    return place + step * dist.get_world_size() + dist.get_rank()
