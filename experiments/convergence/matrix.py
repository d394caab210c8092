"""The runs of the results page: tasks, methods, densities and seeds."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.train.reduction import Reduction
from experiments.train.spec import Spec

RESNET, LSTM, NCF = "resnet20-cifar10", "lstm-wikitext2", "ncf-ratings"
FOLDERS = {
    RESNET: ("cifar10", "cifar10-jpeg"),
    LSTM: ("wikitext-2",),
    NCF: ("ratings", "movietweetings"),
}
WORKERS = {RESNET: 8, LSTM: 8, NCF: 4}

# Densities of the first epochs, for runs at 1 % and at 0.1 %. The LSTM has few epochs.
FALLING = {
    RESNET: {0.01: [0.25, 0.1, 0.04, 0.02], 0.001: [0.25, 0.0625, 0.016, 0.004]},
    LSTM: {0.01: [0.25, 0.05], 0.001: [0.25, 0.016]},
}


@dataclass(frozen=True)
class Run:
    """A line of the matrix.

    `leaves` is the file beside the data sets that its model is written to, `needs` one
    that another run leaves.
    """

    stage: int
    label: str
    spec: Spec
    leaves: str | None = None
    needs: str | None = None

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.spec.key.encode()).hexdigest()[:8]
        words = "".join(c if c.isalnum() else "-" for c in self.label)
        return f"{self.spec.task}-{words}-{self.spec.seed}-{digest}"


def matrix(recipes: dict[str, dict]) -> list[Run]:
    """Every run, in order of importance."""
    return sorted(
        (run for task in FOLDERS for run in _runs(task, recipes.get(task, {}))),
        key=lambda run: run.stage,
    )


Maker = Callable[..., Run]


def _runs(task: str, recipe: dict) -> Iterator[Run]:
    def make(
        stage: int, label: str, seed: int = 0, *, recipe=recipe, **reduction
    ) -> Run:
        spec = Spec(
            task=task,
            reduction=Reduction(**reduction),
            workers=WORKERS[task],
            seed=seed,
            recipe=recipe,
        )
        return Run(stage, label, spec)

    def falling(stage: int, method: str, density: float, **reduction) -> Run:
        """A method with a higher density in the first epochs."""
        return make(
            stage,
            f"{method} {density:.4g} %{note}, densities falling from 25 %",
            recipe={**recipe, "densities": FALLING[task][density / 100]},
            method=method,
            density=density / 100,
            **reduction,
        )

    if task == NCF:
        yield from _recommendation(make)
        return
    if task == RESNET:
        # How momentum meets what waits in a residual.
        note, more = ", momentum before selection", {"feedback": "momentum"}
        yield from _selections(task, make, {"": {}, note: more})
    else:
        # There is no momentum; how clipping meets what waits in a residual. What is
        # delivered is the sum of many steps, which a bound for one gradient would cut
        # without keeping the rest: so workers clip. The other way is looked at once.
        note, more = ", clipped by each worker", {"clip_locally": True}
        yield from _selections(task, make, {note: more})
        yield make(1, "spardl 1 %", method="spardl")
        for seed in (0, 1):
            yield make(1, f"dense{note}", seed, **more)
        yield falling(2, "gtopk", 1, **more)
        codec = "elias-fano+log4"
        label = f"spardl 1 %, {codec}{note}"
        yield make(2, label, method="spardl", codec=codec, **more)
    yield falling(2, "spardl", 1, **more)
    yield falling(3, "spardl", 0.1, **more)


def _selections(task: str, make: Maker, kept: dict[str, dict]) -> Iterator[Run]:
    for seed in (0, 1):
        yield make(1, "dense", seed)
        for method in ("topk", "spardl", "gtopk"):
            for note, more in kept.items():
                yield make(1, f"{method} 1 %{note}", seed, method=method, **more)
    note, more = list(kept.items())[-1]
    for label, changes in _others().items():
        # Eight ranks of Bloom filters over a language model take half a second a step
        # and more on a processor, of Rice codes two seconds on a device.
        rest = task == LSTM and ("bloom" in label or "rice" in label)
        yield make(4 if rest else 2, f"{label}{note}", **changes, **more)
    for rank in (2, 4):
        options = {"rank": rank}
        yield make(2, f"PowerSGD rank {rank}", method="powersgd", options=options)
    for method in ("topk", "spardl", "gtopk", "gs-sgd"):
        for each, how in kept.items():
            # What was better at 1 % first.
            stage = 3 if each == note else 4
            label = f"{method} 0.1 %{each}"
            yield make(stage, label, method=method, density=0.001, **how)


def _others() -> dict[str, dict]:
    """The other methods at 1 %."""
    deepreduce = {
        "bloom-p2 + qsgd": {},
        "bloom-p0 + float32": {"index": "bloom-p0", "value": "float32"},
        "int32 + fit-poly": {"index": "int32", "value": "fit-poly"},
    }
    return {
        "gtopk 1 %, published rule": {"method": "gtopk-published"},
        "spardl 1 %, 2 teams": {"method": "spardl", "options": {"teams": 2}},
        **{
            f"spardl 1 %, {codec}": {"method": "spardl", "codec": codec}
            for codec in ("elias-fano+float32", "rice+log4")
        },
        "gs-sgd 1 %": {"method": "gs-sgd"},
        **{
            f"deepreduce 1 %, {name}": {"method": "deepreduce", "options": options}
            for name, options in deepreduce.items()
        },
    }


def _recommendation(make: Maker) -> Iterator[Run]:
    """Sparse embeddings, which are delivered whole; the rest of the model is small."""
    spardl = {"method": "spardl", "sparse": "s2"}
    # The rest is below the bound: so SparDL leaves it to the dense all-reduce.
    small = {"options": {"min_size": 4096}}
    for seed in (0, 1):
        yield make(1, "dense, rows gathered", seed)
        yield make(1, "spardl 1 %, rows by S2", seed, **spardl)
    for seed in (0, 1):
        label = "spardl 1 %, rows by S2, less than 4,096 elements dense"
        yield make(2, label, seed, **spardl, **small)
    yield make(2, "spardl 10 %, rows by S2", density=0.1, **spardl)
    yield make(2, "dense, rows by S2", sparse="s2")
    yield make(2, "dense, rows by union", sparse="union")
    yield make(2, "topk 1 %, rows gathered", method="topk")
    yield make(2, "gtopk 1 %, rows gathered", method="gtopk")
