"""The runs under AdamW: tasks, methods, learning rates and seeds."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from experiments.convergence.matrix import Run
from experiments.tasks.gpts import PRETRAINED
from experiments.train.reduction import Reduction
from experiments.train.spec import Spec

GPT, NANOGPT, FINETUNE = "gpt-bytes", "nanogpt-shakespeare", "gpt-finetune"
VIT, WORDS = "vit-cifar10", "transformer-wikitext2-adamw"
SMALL = "small-shakespeare"
FOLDERS = {
    GPT: ("wikitext-2",),
    VIT: ("cifar10", "cifar10-jpeg"),
    FINETUNE: ("",),  # of all data sets: it reads a model too
    WORDS: ("wikitext-2",),
    NANOGPT: ("tiny-shakespeare",),
    SMALL: ("tiny-shakespeare",),
}
WORKERS = 8
STAGES = {
    1: "gpt-bytes, dense and spardl",
    2: "other tasks, dense and spardl",
    3: "peers, and AdamW of torch",
    4: "learning rates and other selections",
    5: "long runs",
    6: "second seeds",
    7: "small-shakespeare, on a processor",
}
_RATES = (0.5e-3, 2e-3)
_WARM = {"options": {"warmup": "auto"}}
_TORCH = {"optimizer": "torch-adamw"}
# What is delivered rarely has a longer memory of its energy than dense's 0.95.
_SLOW = {"recipe": {"betas": [0.9, 0.99]}}

Make = Callable[..., Run]


def matrix(recipes: dict[str, dict]) -> list[Run]:
    """Every run, in order of importance."""
    runs = [run for task in FOLDERS for run in _runs(task, recipes.get(task, {}))]
    return sorted(runs, key=lambda run: run.stage)


def _runs(task: str, recipe: dict) -> Iterator[Run]:
    def make(stage: int, label: str, seed: int = 0, **reduction) -> Run:
        changes = reduction.pop("recipe", {})
        spec = Spec(
            task=task,
            reduction=Reduction(**reduction),
            workers=WORKERS,
            seed=seed,
            recipe={**recipe, **changes},
        )
        leaves = None
        if task == GPT and label == "dense" and not (seed or changes):
            leaves = PRETRAINED
        needs = PRETRAINED if task == FINETUNE else None
        return Run(stage, label, spec, leaves, needs)

    if task in (GPT, SMALL):
        yield from (_gpt if task == GPT else _small)(make)
        return
    for seed in (0, 1):
        if task == NANOGPT:
            yield from _nanogpt(make, seed)
            continue
        stage = 6 if seed and task != VIT else 2
        yield make(stage, "dense", seed)
        slow = _SLOW if task == FINETUNE else {}
        yield sparse(make, stage, "spardl", 1, seed, **slow)


def _nanogpt(make: Make, seed: int) -> Iterator[Run]:
    """The one recipe that clips: what is delivered late would be cut twice."""
    stage = 6 if seed else 5
    yield make(stage, "dense", seed)
    for percent in (1, 2):
        run = sparse(make, stage, "spardl", percent, seed, clip_locally=True)
        yield replace(run, label=f"{run.label}, clipped by each worker")
    if not seed:
        yield sparse(make, 6, "spardl", 1)


def _gpt(make: Make) -> Iterator[Run]:
    for seed in (0, 1):
        yield make(1, "dense", seed)
        for percent in (1, 2, 0.1):
            yield sparse(make, 1, "spardl", percent, seed, **_SLOW)
    for method in ("spardl", "topk"):
        label = f"{method} 1 %, AdamW of torch"
        yield make(3, label, method=method, recipe=_TORCH)
    for label, reduction in _peers().items():
        yield make(3, label, **reduction)
    yield from _changed(make)


def _small(make: Make) -> Iterator[Run]:
    """What takes minutes on a processor. Workers clip, but those of torch's AdamW."""
    stage, clipped = 7, {"clip_locally": True}
    for seed in (0, 1):
        yield make(stage, "dense", seed)
        for percent in (1, 2, 0.1):
            yield sparse(make, stage, "spardl", percent, seed, **_SLOW, **clipped)
    for rate in (3e-3, 6e-3):
        yield make(stage, "dense", recipe={"learning_rate": rate})
        changes = {**_SLOW["recipe"], "learning_rate": rate}
        yield sparse(make, stage, "spardl", 1, recipe=changes, **clipped)
    label = "spardl 1 %, AdamW of torch"
    yield make(stage, label, method="spardl", recipe=_TORCH)
    peers = _peers()
    for label in (
        "DeMo, 32 of 4,096",
        "PowerSGD rank 4",
        "bf16",
        "1-bit Adam, 225 steps dense",
        "SparseLoCo, 15 steps, 3 %",
    ):
        yield make(stage, label, **peers[label])


def _changed(make: Make) -> Iterator[Run]:
    """Other learning rates, selections and memories."""
    for rate in _RATES:
        yield make(4, "dense", recipe={"learning_rate": rate})
        changes = {**_SLOW["recipe"], "learning_rate": rate}
        yield sparse(make, 4, "spardl", 1, recipe=changes)
    for method in ("topk", "gtopk"):
        yield sparse(make, 4, method, 1, **_SLOW)
    yield make(4, "dense, beta2 0.99", **_SLOW)
    yield replace(sparse(make, 4, "spardl", 1), label="spardl 1 %, beta2 0.95")
    halved = {"options": {**_WARM["options"], "scatter": "halving"}}
    for percent in (1, 2):
        density = percent / 100
        label = f"spardl {percent} %, halving"
        yield make(4, label, method="spardl", density=density, **halved, **_SLOW)
    for rate in _RATES:
        changes = {**_TORCH, "learning_rate": rate}
        yield make(4, "spardl 1 %, AdamW of torch", method="spardl", recipe=changes)


def sparse(
    make: Make, stage: int, method: str, percent: float, seed: int = 0, **more
) -> Run:
    """A method with what fits AdamW: thinwire's optimizer, falling densities."""
    label = f"{method} {percent:g} %"
    density = round(percent / 100, 6)
    return make(stage, label, seed, method=method, density=density, **_WARM, **more)


def _peers() -> dict[str, dict]:
    """What others send, each with its published settings unless the label says more."""
    return {
        "DeMo, 32 of 4,096": {"method": "demo"},
        "SparseLoCo, 15 steps, 3 %": {"method": "sparse-loco"},
        "1-bit Adam, 225 steps dense": {"method": "1-bit-adam"},
        "PowerSGD rank 4": {"method": "powersgd", "options": {"rank": 4}},
        "bf16": {"method": "bf16"},
        "DeMo, 41 of 4,096": {"method": "demo", "options": {"keep": 41}},
        "SparseLoCo, 30 steps, 3 %": {
            "method": "sparse-loco",
            "options": {"every": 30},
        },
        "SparseLoCo, 15 steps, 15 %": {
            "method": "sparse-loco",
            "options": {"density": 0.15},
        },
        "1-bit Adam, 225 steps dense, top 1 %": {
            "method": "1-bit-adam",
            "options": {"density": 0.01},
        },
    }
