"""A training run, from its specification to its result, however its workers run.

    run_virtual(task, Spec(task="...", reduction=Reduction(method="spardl")), ...)

Everything random follows from the seed, the epoch, the step and the rank, so a run that
goes on from a checkpoint (made between epochs) is the run that never stopped.
"""

import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from experiments.tasks.base import Recipe, Task
from experiments.train.checkpoint import History, RunCheckpoint, written
from experiments.train.processes import Processes, dense_bytes
from experiments.train.ranks import Place, Way
from experiments.train.reduction import is_plain
from experiments.train.spec import Spec
from experiments.train.virtual import Virtual
from experiments.train.workers import Workers, checksum
from thinwire.errors import ConfigError
from thinwire.hooks.inspection import sparse_names
from thinwire.reducers import Pipeline
from thinwire.version import __version__

logger = logging.getLogger(__name__)

__all__ = [
    "History",
    "Limits",
    "Log",
    "Silent",
    "Spec",
    "append",
    "card_bytes",
    "read",
    "run_processes",
    "run_virtual",
    "virtual",
    "with_recipe",
]

_MARGIN = 1.2  # an epoch may take this much longer than the last


class Log(Protocol):
    """Is called with the progress of a run; steps are counted over all epochs."""

    def begin(self, spec: Spec, steps: int, done: int) -> None: ...
    def step(self, number: int) -> None: ...
    def epoch(self, number: int, figures: Mapping[str, float]) -> None: ...


class Silent:
    """A log that records nothing."""

    def begin(self, spec: Spec, steps: int, done: int) -> None: ...
    def step(self, number: int) -> None: ...
    def epoch(self, number: int, figures: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The checkpoint of a run, and when it must stop (`time.monotonic`).

    The parameters of a finished run are written to `model`.
    """

    checkpoint: Path | None = None
    model: Path | None = None
    until: float = float("inf")
    stop_after: int | None = None  # epochs


def run_virtual(  # noqa: PLR0913 - where and how long, each a keyword
    task: Task,
    spec: Spec,
    *,
    device: torch.device,
    way: Way = Way(),  # noqa: B008 - it is frozen
    log: Log | None = None,
    limits: Limits | None = None,
) -> dict[str, Any] | None:
    """Train with virtual workers; the result, or None where time ran out."""
    task = with_recipe(task, spec.recipe)
    workers, optimizer = virtual(task, spec, device, way)
    training = _Training(task, spec, workers, optimizer, log or Silent())
    return workers.run(lambda _: training.run(limits or Limits()))


def virtual(
    task: Task, spec: Spec, device: torch.device, way: Way
) -> tuple[Virtual, torch.optim.Optimizer]:
    """The virtual workers of a run, and an optimizer for them."""
    workers = Virtual(
        _model(task, spec.seed, device),
        task.data(device),
        Place(spec.workers, spec.seed, way),
        reducer=spec.reduction.reducer(task.recipe, spec.workers, spec.seed),
        sparse=spec.reduction.rows(),
    )
    own = workers.own_optimizer(task.recipe)
    return workers, own or spec.reduction.optimizer(task.recipe, workers.model)


def run_processes(
    task: Task,
    spec: Spec,
    *,
    device: torch.device,
    log: Log | None = None,
    limits: Limits | None = None,
) -> dict[str, Any] | None:
    """Train as one rank of a process group; the result, or None."""
    task = with_recipe(task, spec.recipe)
    spec = replace(spec, workers=torch.distributed.get_world_size())
    workers = Processes(
        _model(task, spec.seed, device),
        task.data(device),
        reducer=spec.reduction.reducer(task.recipe, spec.workers, spec.seed),
        sparse=spec.reduction.rows(),
        seed=spec.seed,
    )
    optimizer = spec.reduction.optimizer(task.recipe, workers.model)
    training = _Training(task, spec, workers, optimizer, log or Silent())
    return training.run(limits or Limits())


def _model(task: Task, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return task.model().to(device)


def with_recipe(task: Task, changes: Mapping[str, Any]) -> Task:
    """The task with these fields of its recipe changed."""
    if not changes:
        return task
    # JSON has no tuples.
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()
    }
    try:
        recipe = replace(task.recipe, **values)
    except TypeError as error:
        raise ConfigError(f"a recipe that cannot be read: {error}") from error
    return replace(task, recipe=recipe)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class _Training:
    """The epochs of a run."""

    task: Task
    spec: Spec
    workers: Workers
    optimizer: torch.optim.Optimizer
    log: Log

    def run(self, limits: Limits) -> dict[str, Any] | None:
        """Train from where the run was left to its end, or until the time is up."""
        epochs, steps = self.task.recipe.epochs, self.workers.steps
        saved = RunCheckpoint(
            limits.checkpoint, self.spec, self.workers, self.optimizer
        )
        history = saved.resume()
        self.log.begin(self.spec, epochs * steps, history.epochs * steps)
        self.workers.model.train()
        while history.epochs < epochs:
            if self.workers.agree(_is_over(history, limits)):
                saved.save(history)
                return None
            self._epoch(history)
            self.workers.check_replicas()
            self.log.epoch(history.epochs, history.last())
            saved.save_if_due(history)
        if limits.model is not None and self.workers.leads:
            written(self.workers.model.state_dict(), limits.model)
        final = self.workers.final()
        return _result(self.task, self.spec, self.workers, history) | {"final": final}

    def _epoch(self, history: History) -> None:
        began = time.perf_counter()
        workers, epoch = self.workers, history.epochs
        density = self.spec.reduction.density
        workers.set_density(self.task.recipe.density(epoch, density))
        before = workers.health_record()
        losses = workers.averages(self._steps(epoch))
        after = workers.health_record()
        sent = [b - a for a, b in zip(before.sent, after.sent, strict=True)]
        history.loss.append(sum(losses) / len(losses))
        history.step_loss += [float(f"{loss:.4g}") for loss in losses]
        history.bytes_per_step.append(sum(sent) / len(sent) / workers.steps)
        history.busiest_bytes_per_step.append(max(sent) / workers.steps)
        rounds = after.rounds - before.rounds
        history.rounds_per_step.append(rounds / workers.steps)
        history.residual_norm.append(sum(after.residual) / len(after.residual))
        seen = after.gradients
        history.gradient_norm.append(None if seen is None else seen.norm)
        history.mean_gradient_norm.append(None if seen is None else seen.norm_of_mean)
        history.checksum.append(checksum(workers.model))
        history.metric.append(workers.evaluate())
        history.seconds.append(time.perf_counter() - began)

    def _steps(self, epoch: int) -> list[float]:
        """Every step of an epoch; their losses."""
        recipe, workers = self.task.recipe, self.workers
        trained = [p for p in workers.model.parameters() if p.requires_grad]
        clip = self.spec.reduction.clip(recipe)
        losses = []
        for step in range(workers.steps):
            number = epoch * workers.steps + step
            for group in self.optimizer.param_groups:
                group["lr"] = recipe.rate(number, workers.steps)
            losses.append(workers.backward(epoch, step))
            if clip is not None:
                nn.utils.clip_grad_norm_(trained, clip)
            self.optimizer.step()
            self.log.step(number + 1)
        found: list[float] = torch.stack(losses).tolist()  # one wait for the device
        return found


def _is_over(history: History, limits: Limits) -> bool:
    if limits.stop_after is not None and history.epochs >= limits.stop_after:
        return True
    if not history.epochs:
        return time.monotonic() > limits.until
    return time.monotonic() + _MARGIN * history.seconds[-1] > limits.until


def _result(
    task: Task, spec: Spec, workers: Workers, history: History
) -> dict[str, Any]:
    """Everything about a finished run, for a line of JSON."""
    trained = [p for p in workers.model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained)
    device = trained[0].device
    best = max if task.higher_is_better else min
    return {
        "key": spec.key,
        **asdict(spec),
        "metric_name": task.metric,
        "higher_is_better": task.higher_is_better,
        "result": history.metric[-1],
        "best": best(history.metric),
        "epochs": history.epochs,
        "steps_per_epoch": workers.steps,
        "parameters": size,
        "resolved_recipe": asdict(task.recipe),
        "history": asdict(history),
        "card_bytes_per_step": None
        if sparse_names(workers.model)  # how many rows, no card can know
        else card_bytes(task.recipe, spec, size),
        "dense_bytes_per_step": dense_bytes(workers.model, workers.ranks),
        "seconds": sum(history.seconds),
        "workers_are": "virtual" if isinstance(workers, Virtual) else "processes",
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu ({platform.machine()})",
        "torch": torch.__version__,
        "thinwire": __version__,
    }


def card_bytes(recipe: Recipe, spec: Spec, size: int) -> float | None:
    """The card's bytes, where they do not depend on the data."""
    reducer = spec.reduction.reducer(recipe, spec.workers, spec.seed)
    if not isinstance(reducer, Pipeline):
        return None
    if is_plain(reducer):
        # As DDP does it, without asking first whether gradients are finite.
        return float(reducer.collective.cost(size, spec.workers, None).nbytes)
    try:
        return float(reducer.cost(size, spec.workers).nbytes)
    except ConfigError:
        return None


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Add one line to a file of results; lines of several processes do not mix.

    A process that was killed while writing left an incomplete line: end it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result, sort_keys=True) + "\n"
    with path.open("a+b", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(line.encode())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The results in a file; none where there is no file.

    A line that cannot be read is skipped with a warning: its run has no result.
    """
    if path.exists():
        with path.open() as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    logger.warning("%s, line %d: cut off, ignored", path, number)
