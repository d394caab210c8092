"""Job: one run as a file of JSON, for machines that have little more than torch.

    {"spec": {"task": "resnet20-cifar10", "reduction": {"method": "spardl"}},
     "data": "cifar10", "results": "results.jsonl", "checkpoint": "run.pt"}

`python -m experiments.train.jobs job.json` runs it, under torchrun as one of real
processes.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments import tasks
from experiments.train import launched, run
from experiments.train.numerics import be_quick
from experiments.train.ranks import Way
from experiments.train.spec import Spec
from experiments.train.virtual import Virtual
from thinwire.errors import ConfigError

_WARM = 5  # steps that compile and capture: not timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run, where its data is, and where its result goes.

    `seconds` bounds it; what is not finished then is in its checkpoint. `probe` is a
    number of steps to time instead. `model` is a file for the trained parameters.
    """

    spec: Mapping[str, Any]
    data: str | None = None
    results: str | None = None
    checkpoint: str | None = None
    seconds: float = float("inf")
    device: str = "auto"
    reduce_on: str = "auto"
    capture: bool = True
    verify: bool = True
    probe: int = 0
    model: str | None = None

    @classmethod
    def read(cls, path: Path) -> "Job":
        """A job from its file."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no job: {error}") from error

    def work(self, began: float) -> str:
        """Run the job; return a line for the log. `began` is on the monotonic clock."""
        spec = Spec.of(self.spec)
        data = None if self.data is None else Path(self.data)
        task = tasks.task(spec.task, data, verify=self.verify)
        task = run.with_recipe(task, spec.recipe)
        device = launched.device_of(self.device)
        be_quick(device)
        limits = run.Limits(
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            until=began + self.seconds,
            model=None if self.model is None else Path(self.model),
        )
        log = Lines()
        if self.probe:
            return self._timed(task, spec, device)
        if launched.launched():
            with launched.process_group(device):
                result = run.run_processes(
                    task, spec, device=device, log=log, limits=limits
                )
        else:
            result = run.run_virtual(
                task,
                spec,
                device=device,
                way=Way(self.reduce_on, self.capture),
                log=log,
                limits=limits,
            )
        return self._written(result)

    def _written(self, result: Mapping[str, Any] | None) -> str:
        if result is None:
            return "unfinished: time is up"
        if launched.leads():
            if self.results is not None:
                run.append(Path(self.results), result)
            if self.checkpoint is not None:
                Path(self.checkpoint).unlink(missing_ok=True)
        return f"finished: {result['metric_name']} {result['result']:.4f}"

    def _timed(self, task: Any, spec: Spec, device: torch.device) -> str:
        """Milliseconds of a step, and of its reduction."""
        workers, optimizer = run.virtual(
            task, spec, device, Way(self.reduce_on, self.capture)
        )
        steps, reductions = workers.run(
            lambda each: _time_steps(each, optimizer, self.probe)
        )
        return (
            f"{workers.how}: {1e3 * median(steps):.1f} ms a step, of which "
            f"{1e3 * median(reductions):.1f} ms the reduction"
        )


class Lines:
    """A line for every epoch."""

    def begin(self, spec: Spec, steps: int, done: int) -> None:
        print(f"{spec.key}: {done} of {steps} steps are done", flush=True)

    def step(self, number: int) -> None: ...

    def epoch(self, number: int, figures: Mapping[str, float]) -> None:
        text = " ".join(f"{name} {value:.6g}" for name, value in figures.items())
        print(f"epoch {number}: {text}", flush=True)


def _time_steps(
    workers: Virtual, optimizer: torch.optim.Optimizer, count: int
) -> tuple[list[float], list[float]]:
    steps: list[float] = []
    reductions: list[float] = []
    for step in range(_WARM + count):
        began = time.perf_counter()
        workers.backward(0, step % workers.steps)
        optimizer.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if step >= _WARM:
            steps.append(time.perf_counter() - began)
            reductions.append(workers.seconds_reducing)
    return steps, reductions
