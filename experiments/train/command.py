"""The command `python -m experiments.train`: options, a run, its result."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from experiments.tasks.base import Task
from experiments.train import launched, run
from experiments.train import report as train_report
from experiments.train.numerics import be_quick
from experiments.train.options import TrainOptions
from experiments.train.reduction import COMPARED
from experiments.train.spec import Spec
from experiments.train.tensorboard import TensorBoard
from thinwire import catalog
from thinwire.collectives.collective import check_density
from thinwire.errors import ConfigError
from thinwire.tools.cli.app import run as run_app
from thinwire.tools.cli.command import Command
from thinwire.tools.cli.options import takes
from thinwire.tools.cli.outputs import Outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A run that has been checked, and where it takes place."""

    task: Task
    spec: Spec
    device: str = "auto"
    out: Path | None = None
    resume: bool = False
    seconds: float = float("inf")
    tensorboard: bool = False
    json: Path | None = None

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise ConfigError(
                "--resume needs the --out folder of the run to go on with"
            )
        if self.tensorboard and self.out is None:
            raise ConfigError("--tensorboard needs an --out folder to write into")
        if not self.seconds > 0:
            raise ConfigError(f"{self.seconds} seconds: give a time above 0")
        Outputs(self.json).check()
        if not self.resume and self.checkpoint and self.checkpoint.exists():
            raise ConfigError(
                f"{self.checkpoint} is of this very run, which was not finished: pass "
                "--resume to go on with it, or remove the file"
            )

    @property
    def name(self) -> str:
        """Names the files of this run and of no other."""
        digest = hashlib.sha256(self.spec.key.encode()).hexdigest()[:8]
        return f"{self.spec.task}-{self.spec.reduction.method}-{digest}"

    @property
    def checkpoint(self) -> Path | None:
        """Where the run is kept while it is not finished."""
        return self.out / f"{self.name}.pt" if self.out else None

    @property
    def results(self) -> Path | None:
        """The file that finished runs are added to."""
        return self.out / "results.jsonl" if self.out else None


@takes(TrainOptions)
def command(options: TrainOptions) -> None:
    """Train a reference task with a method: accuracy, bytes, health.

    In one process with virtual workers, or as real ones:
    torchrun --nproc-per-node 4 -m experiments.train ...
    """
    task, spec = options.loaded(), options.spec()
    check(task, spec)
    plan = TrainingPlan(
        task=task,
        spec=spec,
        device=options.device,
        out=options.out,
        resume=options.resume,
        seconds=options.seconds,
        tensorboard=options.tensorboard,
        json=options.json,
    )
    printed = Outputs(plan.json).printed
    start(plan, Console(quiet=printed or not launched.leads()))


app = typer.Typer(
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True, cls=Command)(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_app(app, arguments)


def check(task: Task, spec: Spec) -> None:
    """Refuse what cannot be run before anything is loaded."""
    check_density(spec.reduction.density)
    known = (*catalog.METHODS, *COMPARED)
    if spec.reduction.method not in known:
        raise ConfigError(
            f"unknown method {spec.reduction.method!r}: choose from {', '.join(known)}"
        )
    spec.reduction.reducer(task.recipe, spec.workers, spec.seed)
    spec.reduction.rows()


def start(plan: TrainingPlan, console: Console) -> None:
    """Run it, show the result, and write it to the file."""
    result = _finished(plan) or _trained(plan, console)
    if result is None:
        console.print(_unfinished(plan), highlight=False)
        return
    train_report.show(result, console)
    if launched.leads():
        Outputs(plan.json).write(result)


def _finished(plan: TrainingPlan) -> Mapping[str, Any] | None:
    """The result of this very run, if it is to be resumed and was finished before."""
    if not plan.resume or plan.results is None:
        return None
    found = [r for r in run.read(plan.results) if r["key"] == plan.spec.key]
    return found[-1] if found else None


def _trained(plan: TrainingPlan, console: Console) -> Mapping[str, Any] | None:
    limits = run.Limits(
        checkpoint=plan.checkpoint, until=time.monotonic() + plan.seconds
    )
    device = launched.device_of(plan.device)
    be_quick(device)
    with train_report.progress(plan.task, quiet=not launched.leads()) as shown:
        log = train_report.Logs(shown, *_curves(plan))
        if launched.launched():
            with launched.process_group(device):
                result = run.run_processes(
                    plan.task, plan.spec, device=device, log=log, limits=limits
                )
        else:
            result = run.run_virtual(
                plan.task, plan.spec, device=device, log=log, limits=limits
            )
    if result is not None and launched.leads():
        _write_down(plan, result)
    return result


def _curves(plan: TrainingPlan) -> list[run.Log]:
    if not plan.tensorboard or plan.out is None or not launched.leads():
        return []
    return [TensorBoard(plan.out / "tensorboard" / plan.name)]


def _write_down(plan: TrainingPlan, result: Mapping[str, Any]) -> None:
    if plan.results is not None:
        run.append(plan.results, result)
    if plan.checkpoint is not None:
        plan.checkpoint.unlink(missing_ok=True)


def _unfinished(plan: TrainingPlan) -> str:
    if plan.checkpoint is None:
        return "Time was up, and without --out nothing of the run is kept."
    return f"Time was up: the run is kept in {plan.checkpoint}; --resume goes on."
