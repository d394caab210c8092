"""The command `python -m experiments.train`: options, a run, its result."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments import tasks
from experiments.tasks.base import Task
from experiments.train import launched, run
from experiments.train import report as train_report
from experiments.train.numerics import be_quick
from experiments.train.reduction import COMPARED, Reduction
from experiments.train.spec import Spec
from experiments.train.tensorboard import TensorBoard
from thinwire import catalog
from thinwire.collectives.collective import check_density
from thinwire.errors import ConfigError
from thinwire.tools.cli.app import run as run_app

_WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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
        if self.json is not None and not self.json.parent.is_dir():
            raise ConfigError(
                f"cannot write {self.json}: there is no folder {self.json.parent}"
            )
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


def command(  # noqa: PLR0913 - the options are the interface
    *,
    task: Annotated[str, typer.Option(help=f"One of {', '.join(tasks.TASKS)}.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder or file of the task's data. Nothing is downloaded: left "
            "out, it says where to get it.",
            metavar="PATH",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(catalog.METHODS)}; to compare with: "
            f"{', '.join(COMPARED)}."
        ),
    ] = "spardl",
    density: Annotated[
        float, typer.Option(help="Fraction of the gradient that is kept.")
    ] = 0.01,
    codec: Annotated[
        str | None, typer.Option(help="Such as elias-fano+float32; else the method's.")
    ] = None,
    feedback: Annotated[
        str,
        typer.Option(
            help="residual, momentum (momentum correction: the recipe's momentum is "
            "applied before selection) or none."
        ),
    ] = "residual",
    sparse: Annotated[
        str, typer.Option(help="How rows of sparse embeddings are added up.")
    ] = "gather",
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method, such as teams=2; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help=f"Virtual workers; {_WORKERS} if not given, under torchrun its "
            "processes.",
            show_default=False,
        ),
    ] = None,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Virtual workers in this process: what happens anyway, unless "
            "torchrun has started it.",
        ),
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Else the recipe's.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Of one worker; else the recipe's.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="At its highest; else the recipe's.")
    ] = None,
    warmup_densities: Annotated[
        str | None,
        typer.Option(
            help="Densities of the first epochs, such as 0.25,0.0625,0.015,0.004.",
            metavar="LIST",
        ),
    ] = None,
    clip_locally: Annotated[
        bool,
        typer.Option(
            "--clip-locally",
            help="Clip on every worker before it remembers, not the mean.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for checkpoints and results.jsonl.", metavar="FOLDER"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(
            help="Stop before an epoch that would end later; --resume goes on.",
            show_default=False,
        ),
    ] = float("inf"),
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves below --out.")
    ] = False,
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="Take files whose checksums are not the known ones."
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(help="Write the result to this file.", metavar="FILE"),
    ] = None,
) -> None:
    """Train a reference task with a method: accuracy, bytes, health.

    In one process with virtual workers, or as real ones:
    torchrun --nproc-per-node 4 -m experiments.train ...
    """
    reduction = Reduction(
        method=method,
        density=density,
        codec=codec,
        feedback=feedback,
        sparse=sparse,
        clip_locally=clip_locally,
        options=parsed_options(option or []),
    )
    changes = {
        "epochs": epochs,
        "batch": batch,
        "learning_rate": learning_rate,
        "densities": parsed_densities(warmup_densities),
    }
    recipe = {name: value for name, value in changes.items() if value is not None}
    chosen = tasks.task(task, data, verify=not unverified, **recipe)
    spec = Spec(
        task=task,
        reduction=reduction,
        workers=worker_count(workers, virtual=virtual),
        seed=seed,
        recipe=recipe,
        task_options={"verify": False} if unverified else {},
    )
    check(chosen, spec)
    plan = Plan(
        task=chosen,
        spec=spec,
        device=device,
        out=out,
        resume=resume,
        seconds=seconds,
        tensorboard=tensorboard,
        json=json,
    )
    start(plan, Console(quiet=not launched.leads()))


app = typer.Typer(
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True)(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_app(app, arguments)


def worker_count(asked: int | None, *, virtual: bool) -> int:
    """How many workers there are, which under torchrun is not ours to say."""
    if not launched.launched():
        workers = _WORKERS if asked is None else asked
        if workers < 1:
            raise ConfigError(f"{workers} workers: give 1 or more")
        return workers
    if virtual:
        raise ConfigError(
            f"--virtual under torchrun: each of {launched.world()} processes would "
            "train all workers; start thinwire by itself"
        )
    if asked not in {None, launched.world()}:
        raise ConfigError(
            f"--workers {asked}, but torchrun has started {launched.world()} "
            "processes: leave it out"
        )
    return launched.world()


def parsed_options(texts: list[str]) -> dict[str, Any]:
    """Options of a method, with values as JSON has them, else as they stand.

    >>> parsed_options(["teams=2", "variant=exact"])
    {'teams': 2, 'variant': 'exact'}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"--option {text!r}: write NAME=VALUE, such as teams=2")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def parsed_densities(text: str | None) -> tuple[float, ...] | None:
    """Fractions, separated by commas.

    >>> parsed_densities("0.25, 0.0625")
    (0.25, 0.0625)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(
            f"--warmup-densities {text!r}: write fractions separated by commas"
        ) from error


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


def start(plan: Plan, console: Console) -> None:
    """Run it, show what came of it, and write it down."""
    result = _finished(plan) or _trained(plan, console)
    if result is None:
        console.print(_unfinished(plan), highlight=False)
        return
    train_report.show(result, console)
    if plan.json is not None and launched.leads():
        plan.json.write_text(json.dumps(result, indent=2) + "\n")
        console.print(f"Result written to {plan.json}", highlight=False)


def _finished(plan: Plan) -> Mapping[str, Any] | None:
    """The result of this very run, if it is to be resumed and was finished before."""
    if not plan.resume or plan.results is None:
        return None
    found = [r for r in run.read(plan.results) if r["key"] == plan.spec.key]
    return found[-1] if found else None


def _trained(plan: Plan, console: Console) -> Mapping[str, Any] | None:
    limits = run.Limits(
        checkpoint=plan.checkpoint, until=time.monotonic() + plan.seconds
    )
    device = launched.device_of(plan.device)
    be_quick(device)
    with train_report.progress(plan.task, console) as shown:
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


def _curves(plan: Plan) -> list[run.Log]:
    if not plan.tensorboard or plan.out is None or not launched.leads():
        return []
    return [TensorBoard(plan.out / "tensorboard" / plan.name)]


def _write_down(plan: Plan, result: Mapping[str, Any]) -> None:
    if plan.results is not None:
        run.append(plan.results, result)
    if plan.checkpoint is not None:
        plan.checkpoint.unlink(missing_ok=True)


def _unfinished(plan: Plan) -> str:
    if plan.checkpoint is None:
        return "Time was up, and without --out nothing of the run is kept."
    return f"Time was up: the run is kept in {plan.checkpoint}; --resume goes on."
