"""Accumulate a gradient and select its exact top k, on one core, against torch.

    python benchmarks/select.py --size 25_000_000 --density 0.01 --repeats 7

Ours is `accumulate_`, which also zeroes the gradient and marks, `select`, and
`subtract_at_`. The peer is `x.add_(g)`, `torch.topk(x.abs(), k)` and a gather of the
values; the zeroing of its gradient and of what it selected is not timed. Both see the
same fresh gradients and evolve by error feedback, in turns. Every selection of ours is
compared with the peer's up to ties, the last with the reference, bit for bit.
"""

import sys

# Behind the standard library, which has a `select` of its own.
sys.path.append(sys.path.pop(0))

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from machine import machine
from thinwire import kernels
from thinwire.kernels import Block, Marker, reference

# Gradients are Laplace; each run of so many elements has a scale of its own.
PERIOD = 1 << 16


class Gradients:
    """Fresh gradients of the same shape: x alone evolves."""

    def __init__(self, size: int) -> None:
        torch.manual_seed(0)
        self.scales = torch.randn(-(-size // PERIOD)).exp_()
        self.signs = torch.empty(size, dtype=torch.int8)

    def fill(self, grad: Tensor) -> None:
        grad.exponential_().mul_(self.signs.random_(0, 2).mul_(2).sub_(1))
        for part, scale in zip(grad.split(PERIOD), self.scales, strict=True):
            part.mul_(scale)


class Ours:
    """One pass, then the marked elements only."""

    def __init__(self, size: int, density: float, blocks: int) -> None:
        self.x = torch.zeros(size)
        cut = kernels.interleaved_blocks(size, blocks, 4096)
        self.blocks = cut if blocks > 1 else (Block.whole(size),)
        self.marker = Marker(self.blocks)
        self.k = int(size * density) // blocks

    def accumulate(self, grad: Tensor) -> None:
        kernels.accumulate_(self.x, grad, marker=self.marker)

    def select(self) -> None:
        self.chosen = [
            kernels.select(self.x, self.k, marker=self.marker, number=b)
            for b in range(len(self.blocks))
        ]

    def subtract(self) -> None:
        for block, chosen in zip(self.blocks, self.chosen, strict=True):
            kernels.subtract_at_(self.x, *chosen, block=block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--blocks", type=int, default=1, help="interleaved, for SparDL")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=20, help="steps before timing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}; one thread")
    report(measure(options), options)


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    size, k = options.size, int(options.size * options.density)
    gradients, ours = Gradients(size), Ours(size, options.density, options.blocks)
    grad, copy, floor = (torch.zeros(size) for _ in range(3))
    for _ in range(options.warmup):
        gradients.fill(grad)
        ours.accumulate(grad)
        ours.select()
        ours.subtract()
    peer = ours.x.clone()
    names = ("accumulate_", "select", "subtract_at_", "ours", "peer", "add_")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.repeats):
        gradients.fill(grad)
        copy.copy_(grad)
        seconds["add_"].append(clock(lambda: floor.add_(copy)))
        before = ours.x + grad

        def top() -> tuple[Tensor, Tensor]:
            peer.add_(copy)
            indices = torch.topk(peer.abs(), k).indices
            return indices, peer[indices]

        seconds["peer"].append(clock(top))
        steps = (lambda: ours.accumulate(grad), ours.select, ours.subtract)
        times = [clock(step) for step in steps]
        for name, time in zip(names, [*times, sum(times)], strict=False):
            seconds[name].append(time)
        verify(ours, before)
        # The peer goes on from our x: ties must not make the two drift apart.
        peer.copy_(ours.x)
    verify_exactly(ours, before)
    return seconds


def verify(ours: Ours, before: Tensor) -> None:
    """The same magnitudes as the peer's top k: the same elements, but for ties."""
    if len(ours.blocks) == 1:
        magnitudes = ours.chosen[0][1].abs().sort(descending=True).values
        assert torch.equal(magnitudes, torch.topk(before.abs(), ours.k).values)


def verify_exactly(ours: Ours, before: Tensor) -> None:
    for block, (indices, values) in zip(ours.blocks, ours.chosen, strict=True):
        wanted = reference.select(before, ours.k, block=block, marker=None, number=0)
        assert torch.equal(indices, wanted[0])
        assert torch.equal(values, wanted[1])
        reference.subtract_at_(before, indices, values, block=block)
    assert torch.equal(before, ours.x)
    every = ", every one with torch.topk" if len(ours.blocks) == 1 else ""
    print(f"verified: the last selection with the reference{every}")


def report(seconds: dict[str, list[float]], options: argparse.Namespace) -> None:
    print(f"\n{options.size:,} float32, density {options.density:g}, ", end="")
    print(f"{options.blocks} block(s), {options.repeats} repeats\n")
    print(f"{'ms':14}{'median':>10}{'min':>10}{'max':>10}{'x add_':>10}")
    floor = median(seconds["add_"])
    for name, times in seconds.items():
        row = (1e3 * value for value in (median(times), min(times), max(times)))
        columns = "".join(f"{value:10.2f}" for value in row)
        print(f"{name:14}{columns}{median(times) / floor:10.2f}")
    ratio = median(seconds["peer"]) / median(seconds["ours"])
    print(f"\nours is {ratio:.1f} times as fast as add_ + torch.topk + gather")


def clock(step: Callable[[], object]) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


if __name__ == "__main__":
    main()
