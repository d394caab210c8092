"""The options of the training command, and the run that they describe."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments import tasks
from experiments.tasks.base import Task
from experiments.train import launched
from experiments.train.reduction import COMPARED, Reduction
from experiments.train.spec import Spec
from thinwire import catalog
from thinwire.errors import ConfigError
from thinwire.tools.cli.options import Json

_WORKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of the command."""

    task: Annotated[str, typer.Option(help=f"One of {', '.join(tasks.TASKS)}.")]
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder or file of the task's data. Nothing is downloaded: left "
            "out, it says where to get it.",
            metavar="PATH",
        ),
    ] = None
    method: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(catalog.METHODS)}; to compare with: "
            f"{', '.join(COMPARED)}."
        ),
    ] = "spardl"
    density: Annotated[
        float, typer.Option(help="Fraction of the gradient that is kept.")
    ] = 0.01
    codec: Annotated[
        str | None, typer.Option(help="Such as elias-fano+float32; else the method's.")
    ] = None
    feedback: Annotated[
        str,
        typer.Option(
            help="residual, momentum (momentum correction: the recipe's momentum is "
            "applied before selection) or none."
        ),
    ] = "residual"
    sparse: Annotated[
        str, typer.Option(help="How rows of sparse embeddings are added up.")
    ] = "gather"
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the method, such as teams=2; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help=f"Virtual workers; {_WORKERS} if not given, under torchrun its "
            "processes.",
            show_default=False,
        ),
    ] = None
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Virtual workers in this process: what happens anyway, unless "
            "torchrun has started it.",
        ),
    ] = False
    epochs: Annotated[int | None, typer.Option(help="Else the recipe's.")] = None
    batch: Annotated[
        int | None, typer.Option(help="Of one worker; else the recipe's.")
    ] = None
    learning_rate: Annotated[
        float | None, typer.Option(help="At its highest; else the recipe's.")
    ] = None
    warmup_densities: Annotated[
        str | None,
        typer.Option(
            help="Densities of the first epochs, such as 0.25,0.0625,0.015,0.004.",
            metavar="LIST",
        ),
    ] = None
    clip_locally: Annotated[
        bool,
        typer.Option(
            "--clip-locally",
            help="Clip on every worker before it remembers, not the mean.",
        ),
    ] = False
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for checkpoints and results.jsonl.", metavar="FOLDER"
        ),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")
    ] = False
    seconds: Annotated[
        float,
        typer.Option(
            help="Stop before an epoch that would end later; --resume goes on.",
            show_default=False,
        ),
    ] = float("inf")
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves below --out.")
    ] = False
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="Take files whose checksums are not the known ones."
        ),
    ] = False
    json: Json = None

    def reduction(self) -> Reduction:
        """How gradients are reduced."""
        return Reduction(
            method=self.method,
            density=self.density,
            codec=self.codec,
            feedback=self.feedback,
            sparse=self.sparse,
            clip_locally=self.clip_locally,
            options=parsed_options(self.option or []),
        )

    def recipe(self) -> dict[str, Any]:
        """What differs from the task's own recipe."""
        changes = {
            "epochs": self.epochs,
            "batch": self.batch,
            "learning_rate": self.learning_rate,
            "densities": parsed_densities(self.warmup_densities),
        }
        return {name: value for name, value in changes.items() if value is not None}

    def loaded(self) -> Task:
        """The task, with its recipe."""
        return tasks.task(
            self.task, self.data, verify=not self.unverified, **self.recipe()
        )

    def spec(self) -> Spec:
        """The run as plain values."""
        return Spec(
            task=self.task,
            reduction=self.reduction(),
            workers=worker_count(self.workers, virtual=self.virtual),
            seed=self.seed,
            recipe=self.recipe(),
            task_options={"verify": False} if self.unverified else {},
        )


def worker_count(asked: int | None, *, virtual: bool) -> int:
    """The number of workers; under torchrun, the number of processes."""
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
