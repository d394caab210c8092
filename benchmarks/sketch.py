"""Count-sketches: time and error of both hashes, recall, and whole reductions.

    python benchmarks/sketch.py --markdown
    python benchmarks/sketch.py --parts time --repeats 3 --size 14_700_000

- time: encode a Gaussian vector and estimate all of it, on one core, by rows and by the
  block that shares a hash (1: element by element). The floor is the bytes that must
  move, once each, over the bandwidth of a copy in the same run. The error is that of
  the median, relative to what the theory says of its rows. Verified: both kernels with
  the reference on a part of the vector, bit for bit; the error on all of it.
- recall: which share of one vector's top k a step delivers after its second round, by
  columns and candidates per element kept, hash by element / by block, everything
  sketched. "energy" is the share of the top k's squares that is delivered. Recorded
  gradients are the demo's. A residual in training is flatter: energy.py has that.
- reduce: gs-SGD next to Sketched-SGD's star, whose server is rank 0, on simulated ranks
  of 1 Gbit/s: bytes that the busiest rank sends and receives, time on the wire alone.
  Verified: on whole numbers both deliver the same and lose nothing.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import fmean
from time import perf_counter

import torch
from torch import Tensor

from lists import recorded
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import Dense, GsSGD
from thinwire.cost import Link
from thinwire.groups import Counted, SimulatedGroup, simulate
from thinwire.kernels import Hashes
from thinwire.layout import Layout
from thinwire.sparse import SparseVector, keep_count
from thinwire.tools.bench.machine import machine

BLOCKS = (1, 16, 64, 256, 1024)
BY_BLOCK = GsSGD().block
# Of the median of the rows: root mean square error x sqrt(columns) / norm.
THEORY = {1: 1.0, 3: 0.66, 5: 0.53, 7: 0.45}
CHECKED = 100_000
SEEDS = 10

WIRE = Link(latency=50e-6, bandwidth=125e6)
REDUCED = 1_000_000
DENSITY = 0.001


class Table:
    """Rows of cells, aligned, or as Markdown."""

    def __init__(self, heads: Sequence[str], *, markdown: bool) -> None:
        self.widths = [max(len(head), 9) + 2 for head in heads]
        self.markdown = markdown
        print()
        self.row(*heads)
        if markdown:
            self.row(*["---"] * len(heads))

    def row(self, *cells: str) -> None:
        if self.markdown:
            print(f"| {' | '.join(cells)} |", flush=True)
        else:
            padded = zip(cells, self.widths, strict=True)
            print("".join(cell.rjust(width) for cell, width in padded), flush=True)


def clock(step: Callable[[], object], repeats: int) -> float:
    """Milliseconds, the fastest of some runs: neighbours only ever slow one down."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return 1e3 * min(times)


def time(options: argparse.Namespace) -> None:
    size, columns = options.size, int(options.size * options.columns)
    torch.manual_seed(0)
    x, out = torch.randn(size), torch.empty(size)
    copy = clock(lambda: out.copy_(x), 3 * options.repeats)
    print(f"\n{size:,} float32, {columns:,} columns, fastest of {options.repeats}")
    print(f"a copy takes {copy:.1f} ms: {8 * size / copy / 1e6:.1f} GB/s")
    heads = ("rows", "block", "encode ms", "x copy", "estimate ms", "x copy")
    table = Table((*heads, "floor ms", "error / theory"), markdown=options.markdown)
    for rows, expected in THEORY.items():
        # The vector is read (or written), and the table written (or read).
        floor = copy * (4 * size + 4 * rows * columns) / (8 * size)
        for block in BLOCKS:
            hashes = Hashes(rows, columns, min(block, columns))
            verify(x[:CHECKED], hashes)
            found = [kernels.encode_sketch(x, hashes)]

            def encode(hashes: Hashes = hashes, found: list[Tensor] = found) -> None:
                found[0] = kernels.encode_sketch(x, hashes)

            def estimate(hashes: Hashes = hashes, found: list[Tensor] = found) -> None:
                kernels.estimate_sketch_(out, found[0], hashes)

            encoding = clock(encode, options.repeats)
            estimating = clock(estimate, options.repeats)
            error = (out - x).square_().mean().sqrt() * columns**0.5 / x.norm()
            ratio = error.item() / expected
            assert abs(ratio - 1) < 0.05, f"an error of {ratio:.3f} times the theory's"
            table.row(
                f"{rows}",
                f"{block}",
                f"{encoding:.1f}",
                f"{encoding / copy:.1f}",
                f"{estimating:.1f}",
                f"{estimating / copy:.1f}",
                f"{floor:.1f}",
                f"{ratio:.3f}",
            )
    print(f"\nverified: {CHECKED:,} elements with the reference; the error of all")


def verify(x: Tensor, hashes: Hashes) -> None:
    """The kernels' bits are the reference's."""
    table = kernels.encode_sketch(x, hashes)
    assert torch.equal(table, kernels.encode_sketch.reference(x, hashes))
    fast, slow = torch.empty_like(x), torch.empty_like(x)
    kernels.estimate_sketch_(fast, table, hashes)
    kernels.estimate_sketch_.reference(slow, table, hashes, mean=False)
    assert torch.equal(fast, slow)


def power_law(size: int, generator: torch.Generator) -> Tensor:
    sizes = torch.arange(1.0, size + 1).pow_(-0.8)
    signs = torch.rand(size, generator=generator).sub_(0.5).sign_()
    return (sizes * signs)[torch.randperm(size, generator=generator)]


def cubed_laplace(size: int, generator: torch.Generator) -> Tensor:
    signs = torch.rand(size, generator=generator).sub_(0.5).sign_()
    return torch.empty(size).exponential_(generator=generator).pow_(3).mul_(signs)


def recall(options: argparse.Namespace) -> None:
    generator = torch.Generator().manual_seed(1)
    gradient = recorded()
    data = {
        "power law 0.8": (power_law(100_000, generator), 0.001),
        "cubed Laplace": (cubed_laplace(100_000, generator), 0.001),
        "Gaussian": (torch.randn(100_000, generator=generator), 0.001),
        "recorded, 0.1 %": (gradient, 0.001),
        "recorded, 1 %": (gradient, 0.01),
    }
    oversampled = (1, 2, 4, 8)
    print(f"\nrecall, 5 rows, mean of {SEEDS} seeds; hash by element / by {BY_BLOCK}")
    heads = ("vector", "c/k", *(f"q = {q}" for q in oversampled), "energy, q = 4")
    table = Table(heads, markdown=options.markdown)
    for name, (x, density) in data.items():
        for columns in (5, 10, 20, 50):
            shares = {
                block: [delivered(x, density, columns, block, q) for q in oversampled]
                for block in (1, BY_BLOCK)
            }
            cells = [
                " / ".join(f"{shares[block][i][0]:.2f}" for block in shares)
                for i in range(len(oversampled))
            ]
            energy = " / ".join(f"{of[2][1]:.3f}" for of in shares.values())
            table.row(name, f"{columns}", *cells, energy)


def delivered(
    x: Tensor, density: float, columns: int, block: int, q: int
) -> tuple[float, float]:
    """The share of the top k that a step of one rank delivers, and of its energy."""
    k = keep_count(x.numel(), density)
    shape = {"rows": 5, "columns": columns * k, "candidates": q, "block": block}
    method = GsSGD(density, sketched=None, **shape)
    top = kernels.select(x, k)[0]
    best = x[top.long()].square().sum()
    room, shares, energies = torch.empty_like(x), [], []

    def steps(group: SimulatedGroup) -> list[SparseVector]:
        state = method.init(Layout.flat(x.numel()))
        channels = [Channel(group, seed=seed) for seed in range(SEEDS)]
        return [
            method.all_reduce_(Accumulator.of(x), channel, state, lambda: room)
            for channel in channels
        ]

    for total in simulate(1, steps)[0]:
        shares.append(torch.isin(total.indices, top).float().mean().item())
        energies.append((total.values.square().sum() / best).item())
    return fmean(shares), fmean(energies)


def star(x: Tensor, group: Counted, method: GsSGD, room: Tensor) -> SparseVector:
    """Sketched-SGD: rank 0 adds up, gathers candidates, sends the result."""
    size, k = x.numel(), keep_count(x.numel(), method.density)
    asked = min(size, method.candidates * k)
    hashes = method.hashes_for(size, Channel(group))
    own = SparseVector(*kernels.select(x, min(size, method.sketched * k)), size)
    table = kernels.encode_sketch(own.to_dense(), hashes)
    if group.rank:
        send(group, table, 0)
        indices = receive(group, 4 * asked, 0).view(torch.int32)
        send(group, kernels.gather(x, indices), 0)
        kept = receive(group, 4 * k, 0).view(torch.int32)
        total = SparseVector(kept, receive(group, 4 * k, 0).view(torch.float32), size)
    else:
        workers = range(1, group.size)
        for worker in workers:
            table += (
                receive(group, table.nbytes, worker).view(table.dtype).view_as(table)
            )
        kernels.estimate_sketch_(room, table, hashes)
        indices, _ = kernels.select(room, asked)
        for worker in workers:
            send(group, indices, worker)
        values = kernels.gather(x, indices)
        for worker in workers:
            values += receive(group, values.nbytes, worker).view(values.dtype)
        total, _ = SparseVector(indices, values, size).split(k)
        for worker in workers:
            send(group, total.indices, worker)
            send(group, total.values, worker)
    kernels.scatter_(x, total.indices, torch.zeros_like(total.values))
    return total


def send(group: Counted, buffer: Tensor, dst: int) -> None:
    body = buffer.view(-1).view(torch.uint8)
    group.exchange(body, dst=dst, src=None, nbytes=body.numel())


def receive(group: Counted, nbytes: int, src: int) -> Tensor:
    body = group.exchange(None, dst=None, src=src, nbytes=nbytes)
    assert body is not None
    return body


def reduce(options: argparse.Namespace) -> None:
    generator = torch.Generator().manual_seed(2)
    common = cubed_laplace(REDUCED, generator)
    own = [cubed_laplace(REDUCED, generator) for _ in range(max(options.ranks))]
    print(f"\n{REDUCED:,} elements at {DENSITY:g}, 1 Gbit/s, 50 us")
    heads = (
        "P",
        "method",
        "rounds",
        "MB sent",
        "MB received",
        "wire ms",
        "processor ms",
    )
    table = Table(heads, markdown=options.markdown)
    for ranks in options.ranks:
        dense = Dense().cost(REDUCED, ranks, None)
        wire = f"{1e3 * WIRE.seconds(dense):.1f}"
        sent = f"{dense.nbytes / 1e6:.3f}"
        table.row(f"{ranks}", "dense ring", f"{dense.rounds}", sent, sent, wire, "-")
        # Whole numbers, so that every way to add them up gives the same sum.
        xs = [(common + x).mul_(16).round_() for x in own[:ranks]]
        totals = [
            row(table, name, xs) for name in ("star", "tree", "allreduce", "auto")
        ]
        assert all(total == totals[0] for total in totals)
    print("\nverified: every way delivers the same, and nothing is lost")


def row(table: Table, name: str, xs: list[Tensor]) -> dict[int, float]:
    """One method's line; its total."""
    method = GsSGD(DENSITY, sum="tree" if name == "star" else name)
    start = perf_counter()

    def body(group: SimulatedGroup) -> tuple[SparseVector, Tensor, Counted, float]:
        x, room, counted = xs[group.rank].clone(), torch.empty(REDUCED), Counted(group)
        if name == "star":
            total = star(x, counted, method, room)
        else:
            state = method.init(Layout.flat(REDUCED))
            held = Accumulator.of(x)
            total = method.all_reduce_(held, Channel(counted), state, lambda: room)
            x = held.whole()
        return total, x, counted, group.now()

    seen = simulate(len(xs), body, link=WIRE)
    spent = perf_counter() - start
    delivered = sum(x for _, x, _, _ in seen) + seen[0][0].to_dense()
    assert torch.equal(delivered, sum(xs)), f"{name} loses something"
    traffic = [counted.traffic for _, _, counted, _ in seen]
    table.row(
        f"{len(xs)}",
        "Sketched-SGD, star" if name == "star" else f"gs-SGD, {name}",
        f"{max(t.rounds for t in traffic)}",
        f"{max(t.sent for t in traffic) / 1e6:.3f}",
        f"{max(t.received for t in traffic) / 1e6:.3f}",
        f"{1e3 * max(now for *_, now in seen):.1f}",
        f"{1e3 * spent / len(xs):.0f}",
    )
    return seen[0][0].to_dict()


PARTS = {"time": time, "recall": recall, "reduce": reduce}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=14_700_000)
    parser.add_argument(
        "--columns", type=float, default=0.1, help="as a share of the size"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", default="4,8,16")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    options.ranks = [int(count) for count in options.ranks.split(",")]
    torch.set_num_threads(1)
    print(f"{machine()}; one thread")
    for part in options.parts.split(","):
        PARTS[part](options)


if __name__ == "__main__":
    main()
