"""Accumulate a gradient and select its exact top k, on one core, against torch.

    python benchmarks/select.py --size 25_000_000 --density 0.01 --repeats 7

Ours is `accumulate_` (which also zeroes the gradient), `select` and `subtract_at_`. The
peer is `x.add_(g)`, `torch.topk(x.abs(), k)`, a gather of the values and a scatter of
zeros. Both run the same error feedback on the same fresh gradients, in turns; every
selection of ours is compared with the peer's, the last one with the reference.
"""

import argparse
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numba
import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import reference

SCALE_PERIOD = 1 << 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=12, help="steps before timing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{processor()}, {torch.get_num_threads()} thread of {cores()} cores")
    print(f"torch {torch.__version__}, numba {numba.__version__}")
    run(options)


def run(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    size, repeats = options.size, options.repeats
    ours, theirs = Ours(size, options.density, options.blocks), Peer(size, options.density)
    grad, copy = torch.empty(size), torch.empty(size)
    scales = scale_of_each(size)
    seconds: dict[str, list[float]] = {"add": [], "ours": [], "peer": []}
    parts: list[tuple[float, float, float]] = []
    scratch = torch.zeros(size)
    for step in range(-options.warmup, repeats):
        fill(grad, scales)
        if step < 0:
            ours.step(grad)
            continue
        if step == 0:
            theirs.x.copy_(ours.x)
        copy.copy_(grad)
        seconds["add"].append(clock(lambda: scratch.add_(copy)))
        seconds["peer"].append(clock(lambda: theirs.step(copy)))
        before = ours.x.clone() if step == repeats - 1 else None
        last = grad.clone() if step == repeats - 1 else None
        # Whatever ran before must not have left our vector in the cache.
        scratch.add_(1.0)
        seconds["ours"].append(clock(lambda: ours.step(grad)))
        parts.append(ours.parts)
        if options.blocks == 1:
            verify(ours, theirs)
        if before is not None and last is not None:
            verify_exactly(ours, before.add_(last))
    report(seconds, parts, ours)
