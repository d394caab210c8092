"""A step of AdamW when a part of the gradient was delivered: thinwire's and torch's.

    python benchmarks/optimizer.py [--device cuda] [--sizes 14.7 100] [--density 0.01]
                                   [--threads 1]

Parameters are those of a GPT in float32, its size in millions. All optimizers step in
turns, each with parameters of its own; between steps every gradient is written again,
as a backward pass would, so that caches hold what they would hold. Verified: with and
without state the parameters have the same bits, and those of the reference's kernels.
The last column is processor time, which other work on the machine changes less.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

import thinwire
from thinwire.hooks.backward_pass import Deliveries, Delivery
from thinwire.kernels import by_reference
from thinwire.layout import Layout
from thinwire.tools.bench.machine import machine

# Layers, width and vocabulary by millions of parameters.
SHAPES = {14.7: (8, 384, 1024), 100: (13, 768, 10_240), 0.1: (2, 64, 256)}
BUCKET = 25 << 20


def shapes_of(size: float) -> list[tuple[int, ...]]:
    layers, width, words = SHAPES[size]
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width)]
    block += [(width,), (width,), (width,), (4 * width, width), (4 * width,)]
    block += [(width, 4 * width), (width,)]
    return [(words, width), (256, width), *(block * layers), (width,), (width,)]


@dataclass
class Source:
    """What a backward pass delivers, as the state of thinwire.attach says it."""

    parameters: dict[str, Tensor]
    delivered: Deliveries

    def deliveries(self) -> Deliveries:
        return self.delivered


class Gradients:
    """Some different sparse gradients, and the units that they are delivered in."""

    def __init__(self, shapes: list[tuple[int, ...]], args: argparse.Namespace) -> None:
        self.layouts, names, size = [], [], 0
        for number, shape in enumerate(shapes):
            names.append((str(number), shape))
            size += 4 * torch.Size(shape).numel()
            if size >= BUCKET or number + 1 == len(shapes):
                self.layouts.append(Layout(*zip(*names, strict=True)))
                names, size = [], 0
        torch.manual_seed(0)
        self.rounds = []
        for _ in range(4):
            units = []
            for layout in self.layouts:
                count = max(1, int(layout.size * args.density))
                indices = torch.randint(layout.size, (count,), device=args.device)
                indices = indices.unique().int()
                units.append((indices, torch.randn(len(indices), device=args.device)))
            self.rounds.append(units)

    def deliver(self, source: Source, number: int) -> None:
        units = self.rounds[number % len(self.rounds)]
        for layout, (indices, values) in zip(self.layouts, units, strict=True):
            flat = torch.zeros(layout.size, device=values.device)
            flat[indices.long()] = values
            for name, view in layout.views(flat).items():
                source.parameters[name].grad.copy_(view)
        source.delivered = Deliveries(
            tuple(
                Delivery(layout, indices)
                for layout, (indices, _) in zip(self.layouts, units, strict=True)
            )
        )


def optimizers(
    shapes: list[tuple[int, ...]], device: str
) -> dict[str, tuple[Source, torch.optim.Optimizer]]:
    made = {}
    for name, make in MAKERS.items():
        torch.manual_seed(1)
        named = {}
        for number, shape in enumerate(shapes):
            named[str(number)] = nn.Parameter(torch.randn(shape, device=device))
            named[str(number)].grad = torch.zeros(shape, device=device)
        source = Source(named, Deliveries())
        made[name] = source, make(named.values(), source)
    return made


MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "torch, fused": lambda p, _: torch.optim.AdamW(p, fused=True),
    "torch, foreach": lambda p, _: torch.optim.AdamW(p, foreach=True),
    "thinwire": lambda p, _: thinwire.AdamW(p),
    "thinwire, state": lambda p, state: thinwire.AdamW(p, state=state),
}


def verify(args: argparse.Namespace) -> None:
    made = optimizers(shapes_of(0.1), args.device)
    plain = optimizers(shapes_of(0.1), args.device)["thinwire"]
    gradients = Gradients(shapes_of(0.1), args)
    for step in range(70):
        for source, optimizer in made.values():
            gradients.deliver(source, step)
            optimizer.step()
        gradients.deliver(plain[0], step)
        with by_reference():
            plain[1].step()
    for name in ("thinwire", "thinwire, state"):
        for found, wanted in zip(
            made[name][0].parameters.values(), plain[0].parameters.values(), strict=True
        ):
            assert torch.equal(found, wanted), f"{name}: not the reference's bits"


def clock(step: Callable[[], object], device: str) -> tuple[float, float]:
    """Milliseconds of a step, and those of the processor."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, used = perf_counter(), process_time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (perf_counter() - start), 1e3 * (process_time() - used)


def measure(size: float, args: argparse.Namespace) -> None:
    shapes = shapes_of(size)
    made = optimizers(shapes, args.device)
    gradients = Gradients(shapes, args)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for step in range(args.steps + 3):
        for name, (source, optimizer) in made.items():
            gradients.deliver(source, step)
            times[name].append(clock(optimizer.step, args.device))
    elements = sum(layout.size for layout in gradients.layouts)
    print(f"\n{elements:,} elements in {len(shapes)} parameters, {args.density:.1%}")
    print(f"{'ms':<20}{'quarter':>9}{'median':>9}{'3/4':>9}{'mean':>9}{'cpu':>9}")
    for name, all_times in times.items():
        mine, used = zip(*all_times[3:], strict=True)
        low, middle, high = quantiles(mine, n=4)
        mean = sum(mine) / len(mine)
        print(
            f"{name:<20}{low:>9.2f}{middle:>9.2f}{high:>9.2f}{mean:>9.2f}"
            f"{median(used):>9.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", type=float, nargs="+", default=[14.7, 100])
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else machine()
    print(f"{where}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    verify(args)
    print("verified: bits of the reference, with and without state")
    for size in args.sizes:
        measure(size, args)


if __name__ == "__main__":
    main()
