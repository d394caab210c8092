"""Kernels on the processor: accumulate, select exactly, subtract, encode, decode.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --sizes 14_700_000 --densities 0.01 --threads 1

Ours is an accumulator's `accumulate_`, which also zeroes the gradient and extracts
candidates, and `take`, which selects from every block, in steady error feedback. It is
compared with `x.add_(g)`, the least that any method does, and with what a user of torch
would write: `add_`, `torch.topk`, a gather, and zeroing of gradient and selection. All
three see the same fresh gradients, in turns within one run, none of them cached, and
with several threads after a pause: torch's keep their cores busy for a while after each
operation, with waiting for the next.
Selections are compared with torch's up to ties, the last with the reference, bit for
bit.

Codes are of the last selection, in nanoseconds per entry, both ways, verified.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS
from thinwire.codecs import IndexCodec, ValueCodec
from thinwire.tools.bench.machine import machine

# Gradients are Laplace; each run of PERIOD elements has a scale of its own.
PERIOD = 1 << 16
CHUNK = 1024
WARM = 20
PAUSE = 0.02  # seconds
# Lists are not worth timing below this.
LONG = 30_000

# The most times an `add_` takes, by density; the least factor over torch.
TARGETS = {0.01: 1.6, 0.001: 1.25}
TIMES_FASTER = 20
NANOSECONDS = {"elias-fano": (2.0, 2.5), "rice": (3.0, 3.0), "bfloat16": (0.3, 0.3)}


class Gradients:
    """Fresh gradients of the same shape: x alone evolves.

    In few operations: many leave memory that the next allocation must collect.
    """

    def __init__(self, size: int) -> None:
        torch.manual_seed(0)
        scales = torch.randn(-(-size // PERIOD)).exp_()
        self.scales = scales.repeat_interleave(PERIOD)[:size]
        self.signs = torch.empty(size, dtype=torch.int8)

    def fill(self, grad: Tensor) -> None:
        grad.exponential_().mul_(self.signs.random_(0, 2).mul_(2).sub_(1))
        grad.mul_(self.scales)


class Ours:
    """One pass, then the marked elements only."""

    def __init__(self, size: int, density: float, blocks: int) -> None:
        self.x = Accumulator(size)
        if blocks > 1:
            self.x.set_blocks(kernels.interleaved_blocks(size, blocks, CHUNK))
        self.blocks = self.x.blocks
        self.k = int(size * density) // blocks
        self.chosen: list[tuple[Tensor, Tensor]] = []

    def accumulate(self, grad: Tensor) -> None:
        self.x.accumulate_(grad)

    def take(self) -> None:
        self.chosen = self.x.take([self.k] * len(self.blocks))


class Setting(NamedTuple):
    """What is timed."""

    size: int
    density: float
    blocks: int
    threads: int
    repeats: int


NAMES = ("accumulate_", "take", "ours", "torch.topk", "add_")
Seconds = dict[str, list[float]]


def measure(setting: Setting) -> tuple[Seconds, Ours]:
    size, k = setting.size, int(setting.size * setting.density)
    gradients, ours = Gradients(size), Ours(size, setting.density, setting.blocks)
    # Gradients in torch's memory, as DDP's are; sums in memory of the same kind as x.
    grad, copy, evict = (torch.zeros(size) for _ in range(3))
    floor, peer = kernels.zeros(size), kernels.zeros(size)
    for _ in range(WARM):
        gradients.fill(grad)
        ours.accumulate(grad)
        ours.take()
    peer.copy_(ours.x.whole())
    seconds: Seconds = {name: [] for name in NAMES}
    pause = partial(sleep, PAUSE if setting.threads > 1 else 0.0)
    for repeat in range(setting.repeats):
        gradients.fill(grad)
        copy.copy_(grad)
        before = (
            ours.x.whole() + grad
        )  # and none of what is timed next is cached any more
        pause()
        seconds["add_"].append(clock(lambda: floor.add_(copy)))
        evict.add_(1)
        pause()
        if repeat < 3:  # it takes as long as everything else together
            seconds["torch.topk"].append(clock(partial(stock, peer, copy, k)))
        evict.add_(1)
        pause()
        steps = (lambda: ours.accumulate(grad), ours.take)
        times = [clock(step) for step in steps]
        for name, time in zip(NAMES, [*times, sum(times)], strict=False):
            seconds[name].append(time)
        # The peer goes on from our x: ties must not make the two drift apart.
        peer.copy_(ours.x.whole())
    verify(ours, before)
    return seconds, ours


def stock(x: Tensor, grad: Tensor, k: int) -> None:
    """The same with torch's own operations."""
    x.add_(grad)
    x[torch.topk(x.abs(), k).indices] = 0.0
    grad.zero_()


def verify(ours: Ours, before: Tensor) -> None:
    """Torch's top k but for ties; the reference's, bit for bit."""
    if len(ours.blocks) == 1:
        magnitudes = ours.chosen[0][1].abs().sort(descending=True).values
        assert torch.equal(magnitudes, torch.topk(before.abs(), ours.k).values)
    for block, (indices, values) in zip(ours.blocks, ours.chosen, strict=True):
        wanted = kernels.select.reference(before, ours.k, block=block)
        assert torch.equal(indices, wanted[0])
        assert torch.equal(values, wanted[1])
        kernels.subtract_at_.reference(before, indices, values, block=block)
    assert torch.equal(before, ours.x.whole())


def show(setting: Setting, seconds: Seconds) -> None:
    middle = {name: median(times) for name, times in seconds.items()}
    low, _, high = quantiles(seconds["ours"], n=4)
    ratio = middle["ours"] / middle["add_"]
    faster = middle["torch.topk"] / middle["ours"]
    most = TARGETS.get(setting.density)
    met = "" if most is None else "yes" if ratio <= most else f"no: {most}"
    met += "" if faster >= TIMES_FASTER else f", no: {TIMES_FASTER}x"
    milliseconds = (f"{1e3 * middle[name]:.2f}" for name in list(seconds)[:3])
    cells = (
        f"{setting.size / 1e6:g} M",
        f"{100 * setting.density:g} %",
        f"{setting.blocks}",
        f"{setting.threads}",
        f"{1e3 * middle['add_']:.2f}",
        *milliseconds,
        f"{1e3 * low:.2f} to {1e3 * high:.2f}",
        f"{ratio:.2f}",
        f"{min(seconds['ours']) / min(seconds['add_']):.2f}",
        f"{faster:.0f}",
        met,
    )
    row(*cells)


def show_codes(chosen: tuple[Tensor, Tensor], length: int) -> None:
    """Nanoseconds per entry of a list, and what they should be."""
    indices, values = chosen
    for name, target in NANOSECONDS.items():
        if name in INDEX_CODECS:
            found = both_ways(Indices(INDEX_CODECS[name], length), indices, indices)
        else:
            rounded = values.bfloat16().float()
            found = both_ways(VALUE_CODECS[name], values, rounded)
        said = (f"{ns:.2f} ({most:g})" for ns, most in zip(found, target, strict=True))
        row(f"{len(values):,} of {length / 1e6:.3g} M", name, *said)


class Indices(NamedTuple):
    """An index codec for vectors of one length, called as a value codec is."""

    codec: IndexCodec
    length: int

    def encode(self, indices: Tensor) -> Tensor:
        return self.codec.encode(indices, self.length)

    def decode(self, section: Tensor, nnz: int) -> Tensor:
        return self.codec.decode(section, self.length, nnz)


def both_ways(
    codec: Indices | ValueCodec, given: Tensor, wanted: Tensor
) -> tuple[float, float]:
    """Nanoseconds per entry to encode and to decode."""
    nnz, section = len(given), codec.encode(given)
    assert torch.equal(codec.decode(section, nnz), wanted), codec
    steps = (
        lambda: codec.encode(given),
        lambda: codec.decode(section, nnz),
    )
    encode, decode = (median(clock(step) for _ in range(301)) for step in steps)
    return 1e9 * encode / nnz, 1e9 * decode / nnz


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def head(*names: str) -> None:
    print()
    row(*names)
    print("|" + " --- |" * len(names))


def clock(step: Callable[[], object]) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=numbers, default=[1e6, 14.7e6, 25e6])
    parser.add_argument("--densities", type=numbers, default=[0.01, 0.001])
    parser.add_argument("--threads", type=numbers, default=[1, torch.get_num_threads()])
    parser.add_argument("--blocks", type=numbers, default=[1, 4], help="interleaved")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(machine())
    lists = {}
    parts = ("accumulate_", "take", "ours, ms", "quartiles")
    columns = ("n", "density", "blocks", "threads", "add_ ms", *parts)
    head(*columns, "x add_", "of the fastest", "x faster than topk", "met")
    for size, density, blocks, threads in product(
        options.sizes, options.densities, options.blocks, sorted(set(options.threads))
    ):
        torch.set_num_threads(int(threads))
        setting = Setting(
            int(size), density, int(blocks), int(threads), options.repeats
        )
        seconds, ours = measure(setting)
        show(setting, seconds)
        if len(ours.chosen[0][0]) >= LONG:
            lists[len(ours.chosen[0][0])] = ours.chosen[0], ours.blocks[0].length
    torch.set_num_threads(1)
    head("entries", "code", "encode ns (at most)", "decode ns (at most)")
    for _, (chosen, length) in sorted(lists.items()):
        show_codes(chosen, length)
    print("\nverified: selections with torch.topk and the reference, codes both ways")


if __name__ == "__main__":
    main()
