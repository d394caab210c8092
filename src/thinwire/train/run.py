"""A training run, from its specification to its result, however its workers run.

    run(Spec(task="...", data="...", reduction=Reduction(method="spardl")), ...)

Everything random follows from the seed, the epoch, the step and the rank, so a run that
goes on from a checkpoint (made between epochs) is the run that never stopped.
"""

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from thinwire.errors import ConfigError
from thinwire.reducers import Pipeline
from thinwire.train.processes import Processes, dense_bytes
from thinwire.train.ranks import Place
from thinwire.train.reduction import Reduction
from thinwire.train.task import Recipe, Task
from thinwire.train.virtual import Virtual
from thinwire.train.workers import Workers, checksum
from thinwire.version import __version__

_SAVE_EVERY = 60.0  # seconds between checkpoints
_MARGIN = 1.2  # an epoch may take this much longer than the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is run: everything that the result depends on, as plain values."""

    task: str
    reduction: Reduction = field(default_factory=Reduction)
    workers: int = 8
    seed: int = 0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Spec":
        """A specification from JSON."""
        try:
            rest = dict(values)
            reduction = Reduction(**rest.pop("reduction", {}))
            return cls(reduction=reduction, **rest)
        except TypeError as error:
            raise ConfigError(f"a run that cannot be read: {error}") from error

    @property
    def key(self) -> str:
        """Names the run: specifications of the same key have the same result.

        >>> Spec(task="toy").key == Spec(task="toy", seed=0).key
        True
        """
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


class Log(Protocol):
    """Who wants to know how a run goes; steps are counted over all epochs."""

    def begin(self, spec: Spec, steps: int, done: int) -> None: ...
    def step(self, number: int) -> None: ...
    def epoch(self, number: int, figures: Mapping[str, float]) -> None: ...


class Silent:
    """Nobody does."""

    def begin(self, spec: Spec, steps: int, done: int) -> None: ...
    def step(self, number: int) -> None: ...
    def epoch(self, number: int, figures: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a run is kept, and until when it may go on (`time.monotonic`)."""

    checkpoint: Path | None = None
    until: float = float("inf")
    stop_after: int | None = None  # epochs


@dataclass(slots=True)
class History:
    """What is known at the end of an epoch."""

    loss: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)
    bytes_per_step: list[float] = field(default_factory=list)
    busiest_bytes_per_step: list[float] = field(default_factory=list)
    rounds_per_step: list[float] = field(default_factory=list)
    residual_norm: list[float] = field(default_factory=list)
    checksum: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """How many are over."""
        return len(self.metric)

    def last(self) -> dict[str, float]:
        """The figures of the last epoch, by name."""
        return {name: float(values[-1]) for name, values in asdict(self).items()}


def run_virtual(
    task: Task,
    spec: Spec,
    *,
    device: torch.device,
    reduce_on: str = "auto",
    log: Log | None = None,
    limits: Limits | None = None,
) -> dict[str, Any] | None:
    """Train with virtual workers; the result, or None where time ran out."""
    task = _with_recipe(task, spec.recipe)
    workers, _ = virtual(task, spec, device, reduce_on)
    return workers.run(
        lambda each: _train(task, spec, each, log or Silent(), limits or Limits())
    )


def virtual(
    task: Task, spec: Spec, device: torch.device, reduce_on: str = "auto"
) -> tuple[Virtual, torch.optim.Optimizer]:
    """The virtual workers of a run, and an optimizer for them."""
    workers = Virtual(
        _model(task, spec.seed, device),
        task.data(device),
        Place(spec.workers, spec.seed, reduce_on),
        reducer=spec.reduction.reducer(task.recipe, spec.workers, spec.seed),
        sparse=spec.reduction.rows(),
    )
    return workers, spec.reduction.optimizer(task.recipe, workers.model)


def run_processes(
    task: Task,
    spec: Spec,
    *,
    device: torch.device,
    log: Log | None = None,
    limits: Limits | None = None,
) -> dict[str, Any] | None:
    """Train as one rank of a process group; the result, or None."""
    task = _with_recipe(task, spec.recipe)
    ranks = torch.distributed.get_world_size()
    spec = replace(spec, workers=ranks)
    workers = Processes(
        _model(task, spec.seed, device),
        task.data(device),
        reducer=spec.reduction.reducer(task.recipe, ranks, spec.seed),
        sparse=spec.reduction.rows(),
        seed=spec.seed,
    )
    return _train(task, spec, workers, log or Silent(), limits or Limits())


def _model(task: Task, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return task.model().to(device)


def _with_recipe(task: Task, changes: Mapping[str, Any]) -> Task:
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


def _train(
    task: Task, spec: Spec, workers: Workers, log: Log, limits: Limits
) -> dict[str, Any] | None:
    """The epochs of a run, from where it was left."""
    recipe, model = task.recipe, workers.model
    optimizer = spec.reduction.optimizer(recipe, model)
    keeper = _Keeper(limits.checkpoint, spec, workers, optimizer)
    history = keeper.resume()
    log.begin(spec, recipe.epochs * workers.steps, history.epochs * workers.steps)
    model.train()
    while history.epochs < recipe.epochs:
        if _is_over(history, limits):
            keeper.save(history)
            return None
        _run_epoch(task, spec, workers, optimizer, history, log)
        workers.check_replicas()
        log.epoch(history.epochs, history.last())
        keeper.save_if_due(history)
    final = workers.final()
    return _result(task, spec, workers, history) | {"final": final}


def _is_over(history: History, limits: Limits) -> bool:
    if limits.stop_after is not None and history.epochs >= limits.stop_after:
        return True
    if not history.epochs:
        return time.monotonic() > limits.until
    return time.monotonic() + _MARGIN * history.seconds[-1] > limits.until


def _run_epoch(
    task: Task,
    spec: Spec,
    workers: Workers,
    optimizer: torch.optim.Optimizer,
    history: History,
    log: Log,
) -> None:
    began = time.perf_counter()
    recipe, epoch = task.recipe, history.epochs
    trained = [p for p in workers.model.parameters() if p.requires_grad]
    clip = spec.reduction.clip(recipe)
    workers.set_density(recipe.density(epoch, spec.reduction.density))
    before = workers.vitals()
    losses = torch.zeros((), device=trained[0].device)
    for step in range(workers.steps):
        number = epoch * workers.steps + step
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(number, workers.steps)
        losses += workers.backward(epoch, step)
        if clip is not None:
            nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        log.step(number + 1)
    after = workers.vitals()
    sent = [b - a for a, b in zip(before.sent, after.sent, strict=True)]
    history.loss.append(losses.item() / workers.steps)
    history.bytes_per_step.append(sum(sent) / len(sent) / workers.steps)
    history.busiest_bytes_per_step.append(max(sent) / workers.steps)
    rounds = (after.rounds - before.rounds) / workers.steps
    history.rounds_per_step.append(rounds)
    history.residual_norm.append(sum(after.residual) / len(after.residual))
    history.checksum.append(checksum(workers.model))
    history.metric.append(workers.evaluate())
    history.seconds.append(time.perf_counter() - began)


class _Keeper:
    """Writes and reads the checkpoint of one run: whole or not at all."""

    def __init__(
        self,
        path: Path | None,
        spec: Spec,
        workers: Workers,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._path, self._spec = path, spec
        self._workers, self._optimizer = workers, optimizer
        self._saved = time.monotonic()

    def resume(self) -> History:
        """Go on from the checkpoint if there is one; what happened before it."""
        if self._path is None or not self._path.exists():
            return History()
        held = torch.load(self._path, map_location="cpu", weights_only=True)
        if held["key"] != self._spec.key:
            raise ConfigError(
                f"{self._path} belongs to another run: {held['key']}. Name another "
                "file, or remove this one"
            )
        self._workers.model.load_state_dict(held["model"])
        self._optimizer.load_state_dict(held["optimizer"])
        self._workers.load_state_dict(held["workers"])
        return History(**held["history"])

    def save_if_due(self, history: History) -> None:
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save(history)

    def save(self, history: History) -> None:
        """Write beside the old one, then put it in its place."""
        self._saved = time.monotonic()
        if self._path is None:
            return
        held = {
            "key": self._spec.key,
            "version": __version__,
            "model": self._workers.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "workers": self._workers.state_dict(),
            "history": asdict(history),
        }
        if self._workers.leads:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            torch.save(held, beside)
            beside.replace(self._path)


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
        "card_bytes_per_step": _card(task.recipe, spec, size),
        "dense_bytes_per_step": dense_bytes(workers.model, workers.ranks),
        "seconds": sum(history.seconds),
        "workers_are": "virtual" if isinstance(workers, Virtual) else "processes",
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu ({platform.machine()})",
        "torch": torch.__version__,
        "thinwire": __version__,
    }


def _card(recipe: Recipe, spec: Spec, size: int) -> float | None:
    """The card's bytes, where they do not depend on the data."""
    reducer = spec.reduction.reducer(recipe, spec.workers, spec.seed)
    if not isinstance(reducer, Pipeline):
        return None
    try:
        return float(reducer.cost(size, spec.workers).nbytes)
    except ConfigError:
        return None


def append(path: Path, result: Mapping[str, Any]) -> None:
    """Add one line to a file of results; lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result, sort_keys=True) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The results in a file; none where there is no file."""
    if path.exists():
        with path.open() as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)
