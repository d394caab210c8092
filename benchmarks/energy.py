"""How much of a gradient one step delivers, next to the exact top k of the mean.

    python benchmarks/energy.py --ranks 4,8,16 --seeds 3 --markdown [--only direct]
    python benchmarks/energy.py --baselines --elements 14700000 --seeds 1 --ranks 5,14

x is a rank's residual and gradient before a reduction, m the mean of x over ranks, d
the delivered mean. Three measures, each relative to that of the exact top k of m:

- removed: |m|^2 - |m - d|^2, the part of the error that the step takes away;
- delivered: |d|^2, where values that came from some of the ranks only count as such;
- support: |m at the indices of d|^2, how well the indices were chosen.

A cell has the first step, where x is the gradient, and the mean of the later ones, with
error feedback. topk and topk-dsa list up to k P entries, the others k: they are in a
class of their own. Bytes are those that the busiest rank sends, as `Counted` counts
them, with the codec named by --codec, the finite check included.

Data: Laplace values, scaled per 64 k elements by lognormal(0, 1), half of the variance
common to all ranks, fresh in every step; and gradients of the demo's model, recorded
while it trains. Verified in every step: delivered plus residual add up.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire import catalog
from thinwire.codecs import Codec
from thinwire.collectives import (
    AllGather,
    Collective,
    GsSGD,
    GTopK,
    OkTopK,
    SparDL,
    TopKDSA,
    spardl,
)
from thinwire.groups import Counted, SimulatedGroup, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector, keep_count
from thinwire.tools.bench.machine import machine
from thinwire.tools.demo.loop import Recipe, train_step
from thinwire.tools.demo.model import CharacterModel, loss_of
from thinwire.tools.demo.text import Corpus, standard_library, windows

DENSITY = 0.01
STEPS = 6
SIZE = 1_000_000
PERIOD = 1 << 16
SHARED = 0.5
TRAINED = 100  # steps that the model has made before its gradients are recorded

HALVING = SparDL(DENSITY, scatter="halving")
METHODS: dict[str, tuple[Collective, int | None]] = {
    "topk": (AllGather(DENSITY), None),
    "topk-dsa": (TopKDSA(DENSITY), None),
    "gtopk": (GTopK(DENSITY), None),
    "ok-topk": (OkTopK(DENSITY), None),
    "spardl": (SparDL(DENSITY), None),
    "gs-sgd": (GsSGD(DENSITY), None),
    "gs-sgd, all sketched": (GsSGD(DENSITY, sketched=None), None),
    "spardl contiguous": (replace(HALVING, partition="contiguous"), None),
    "spardl halving": (HALVING, None),
    "spardl direct": (SparDL(DENSITY, scatter="direct"), None),
    "spardl halving, 2 teams": (replace(HALVING, teams=2), None),
    "spardl direct, 2 teams": (SparDL(DENSITY, teams=2, scatter="direct"), None),
} | {
    f"  halving, chunks of {chunk}": (HALVING, chunk)
    for chunk in (64, 256, 1024, 4096, 16384)
}

BASELINES = ("topk", "topk-dsa", "gtopk", "ok-topk", "spardl")

HEADS = ("", "", "removed", "first, seeds", "delivered", "support", "entries / k", "kB")
WIDTHS = (8, 22, 14, 14, 14, 14, 14, 16)


class Shape(NamedTuple):
    """Of the synthetic data: elements of a gradient; of both: steps."""

    size: int
    steps: int


Gradients = list[list[Tensor]]
"""Of every step, of every rank."""


@dataclass(frozen=True)
class Energy:
    """What one step captured, how many times k entries it listed, and kB sent."""

    removed: float
    delivered: float
    support: float
    listed: float
    sent: float


def laplace(size: int, generator: torch.Generator) -> Tensor:
    sign = torch.rand(size, generator=generator).sub_(0.5).sign_()
    return torch.empty(size).exponential_(generator=generator).mul_(sign)


def synthetic(ranks: int, seed: int, shape: Shape) -> Gradients:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randn(-(-shape.size // PERIOD), generator=generator).exp_()
    scale = scales.repeat_interleave(PERIOD)[: shape.size]
    steps = []
    for _ in range(shape.steps):
        common = laplace(shape.size, generator).mul_(SHARED**0.5)
        own = [laplace(shape.size, generator) for _ in range(ranks)]
        rest = (1 - SHARED) ** 0.5
        steps.append([x.mul_(rest).add_(common).mul_(scale) for x in own])
    return steps


def recorded(ranks: int, seed: int, shape: Shape) -> Gradients:
    """The demo's model, trained on the mean of all ranks' gradients."""
    recipe = Recipe(seed=seed)
    corpus = Corpus.of(standard_library())
    torch.manual_seed(seed)
    model = CharacterModel(recipe.shape)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, recipe.learning_rate, recipe.betas)
    seeds = iter(range(seed << 32, (seed + 1) << 32))

    def batch(count: int) -> Tensor:
        length = recipe.shape.context + 1
        return windows(corpus.train, count, length, seed=next(seeds))

    for _ in range(TRAINED):
        train_step(model, optimizer, batch(4 * recipe.batch))
    steps = []
    for _ in range(shape.steps):
        batches = [batch(recipe.batch) for _ in range(ranks)]
        losses = (loss_of(model, each) for each in batches)
        found = [torch.autograd.grad(loss, parameters) for loss in losses]
        steps.append([torch.cat([g.view(-1) for g in each]) for each in found])
        train_step(model, optimizer, torch.cat(batches))
    return steps


@contextmanager
def chunks_of(length: int | None) -> Iterator[None]:
    """Blocks of chunks this long, however few; as the library has them if None."""
    kept = spardl.CHUNK, spardl.FEW
    if length is not None:
        spardl.CHUNK, spardl.FEW = length, 1
    spardl._blocks.cache_clear()  # noqa: SLF001 - what other chunks were cut into
    try:
        yield
    finally:
        spardl.CHUNK, spardl.FEW = kept
        spardl._blocks.cache_clear()  # noqa: SLF001


def measure(collective: Collective, codec: Codec, gradients: Gradients) -> list[Energy]:
    """Each step of a method, with error feedback."""
    pipeline = Pipeline(collective, codec if collective.coded else None)
    ranks, size = len(gradients[0]), len(gradients[0][0])
    before = torch.zeros(len(gradients), size)
    after = torch.zeros(len(gradients), size)

    # Only one rank runs at any moment, so that all may add to the same sums.
    def reduce(group: SimulatedGroup) -> list[tuple[SparseVector | None, int]]:
        state, counted = pipeline.init(Layout.flat(size)), Counted(group)
        seen = []
        for step, grads in enumerate(gradients):
            grad = grads[group.rank].clone()
            before[step] += state.memory.x.whole() + grad
            counted.reset()
            mean = pipeline.reduce_([grad], counted, state)
            after[step] += state.memory.x.whole()
            seen.append((mean if group.rank == 0 else None, counted.traffic.sent))
        return seen

    found = []
    steps = zip(*simulate(ranks, reduce), strict=True)
    for seen, x, rest in zip(steps, before, after, strict=True):
        mean = seen[0][0]
        gap = (mean.to_dense() * ranks + rest - x).norm() / x.norm()
        assert gap < 1e-5, f"{collective} lost {gap:.1e} of the gradient"
        found.append(energy(mean, x / ranks, max(sent for _, sent in seen)))
    return found


def energy(delivered: SparseVector, mean: Tensor, sent: int) -> Energy:
    k = keep_count(mean.numel(), DENSITY)
    squares = mean.double().square_()
    best = squares.topk(k).values.sum()
    there = mean[delivered.indices.long()].double()
    values = delivered.values.double()
    removed = (2 * there - values) * values
    sums = (part.sum() / best for part in (removed, values**2, there**2))
    return Energy(*(share.item() for share in sums), delivered.nnz / k, sent / 1e3)


def row(name: str, ranks: int, codec: Codec, runs: Sequence[Gradients]) -> list[str]:
    collective, chunk = METHODS[name]
    with chunks_of(chunk):
        found = [
            measure(collective, codec, [grads[:ranks] for grads in steps])
            for steps in runs
        ]
    removed = [steps[0].removed for steps in found]
    return [
        f"P = {ranks}",
        name,
        pair([[e.removed for e in steps] for steps in found]),
        f"{min(removed):.2f} to {max(removed):.2f}",
        pair([[e.delivered for e in steps] for steps in found]),
        pair([[e.support for e in steps] for steps in found]),
        pair([[e.listed for e in steps] for steps in found]),
        pair([[e.sent for e in steps] for steps in found], digits=0),
    ]


def pair(runs: Sequence[Sequence[float]], digits: int = 2) -> str:
    first = fmean(steps[0] for steps in runs)
    later = fmean(fmean(steps[1:]) for steps in runs)
    return f"{first:,.{digits}f} / {later:,.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="4,8,16")
    parser.add_argument("--only", default="", help="methods whose name has this")
    parser.add_argument(
        "--baselines", action="store_true", help=f"{', '.join(BASELINES)} only"
    )
    parser.add_argument("--elements", type=int, default=SIZE)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--codec", default=catalog.DEFAULT_CODEC)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    ranks = [int(count) for count in options.ranks.split(",")]
    torch.set_num_threads(1)
    start = perf_counter()
    print(f"{machine()}; one core")
    print(f"density {DENSITY:g}, {options.codec}; ", end="")
    print(f"first step / mean of steps 2 to {options.steps}; ", end="")
    print(f"means of {options.seeds} seeds")
    shape, codec = Shape(options.elements, options.steps), catalog.codec(options.codec)
    titles = {synthetic: f"Laplace, {shape.size:,} elements"}
    if shape.size == SIZE:
        titles[recorded] = "the demo's model"
    for data, title in titles.items():
        print(f"\n{title}\n")
        runs = [data(max(ranks), seed, shape) for seed in range(options.seeds)]
        show(HEADS, markdown=options.markdown, head=True)
        known = BASELINES if options.baselines else METHODS
        chosen = [name for name in known if options.only in name]
        for count, name in product(ranks, chosen):
            show(row(name, count, codec, runs), markdown=options.markdown, head=False)
    print("\nverified: delivered plus residual add up to the gradients in each step")
    print(f"took {perf_counter() - start:.0f} s")


def show(cells: Sequence[str], *, markdown: bool, head: bool) -> None:
    if markdown:
        print(f"| {' | '.join(cell.strip() for cell in cells)} |", flush=True)
        if head:
            print(f"|{' --- |' * len(cells)}")
        return
    columns = zip(cells, WIDTHS, strict=True)
    print("".join(f"{cell:{width}}" for cell, width in columns), flush=True)


if __name__ == "__main__":
    main()
