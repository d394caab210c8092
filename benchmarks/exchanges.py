"""Rounds of exchanges: said beforehand or not, with Gloo's threads kept back or not.

    thinwire lab up --hosts 8 --rate 1gbit
    thinwire lab run -- python benchmarks/exchanges.py

Also runs under torchrun. The messages are those of SparDL: to the rank 4, 2 and 1 after
this one, and back, of so many bytes as 14.7 M elements at 1 % take, or another size
that is given. Every received body is compared with what was sent. Median ms of the
slowest rank with its quartiles, and processor time of a rank with Gloo's threads; the
ways take turns. With `--busy 1`, another thread of each rank computes all the time, as
a backward pass does on processors.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from statistics import median, quantiles
from unittest.mock import patch

import torch
import torch.distributed as dist

from thinwire.groups import Op, gloo_scheduling
from thinwire.groups.torch import TorchGroup
from thinwire.tools.bench.machine import machine

STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nbytes", type=int, default=73_000, help="of the longest")
    parser.add_argument("--busy", type=int, default=0, help="threads that compute")
    options = parser.parse_args()
    nbytes = options.nbytes
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = TorchGroup()
    distances = [1 << i for i in range((group.size - 1).bit_length())]
    around = [(d, nbytes * d // distances[-1]) for d in distances]
    hops = [*reversed(around), *((-d, n) for d, n in around)]
    ways = list(product((False, True), (False, True)))
    found: dict[tuple[bool, bool], list[tuple[float, float]]] = {w: [] for w in ways}
    with computing(options.busy):
        for _, way in product(range(STEPS), ways):
            ahead, kept = way
            with nullcontext() if kept else as_they_are():
                found[way].append(timed(group, hops, ahead=ahead))
    if group.rank == 0:
        print(machine())
        print(f"{len(hops)} exchanges of {group.size} ranks, {nbytes} bytes and less")
        for way, times in found.items():
            tell(way, times)
    dist.destroy_process_group()


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """While it lasts, so many threads compute, without the interpreter's lock."""
    square, done = torch.randn(500, 500), threading.Event()

    def compute() -> None:
        while not done.is_set():
            square @ square

    others = [threading.Thread(target=compute) for _ in range(threads)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        done.set()
        for other in others:
            other.join()


def as_they_are() -> AbstractContextManager[object]:
    """Gloo's threads are not kept back."""
    return patch.object(gloo_scheduling, "as_batch", lambda _: nullcontext())


def tell(way: tuple[bool, bool], times: list[tuple[float, float]]) -> None:
    ahead, kept = way
    walls, cpus = zip(*times, strict=True)
    low, middle, high = (1e3 * each for each in quantiles(walls, n=4))
    name = "expected" if ahead else "not expected"
    name += ", threads kept back" if kept else ", threads as they are"
    print(f"{name}: {middle:.2f} ms ({low:.2f} to {high:.2f}), ", end="")
    print(f"processor time {1e3 * median(cpus):.2f} ms")


def timed(
    group: TorchGroup, hops: list[tuple[int, int]], *, ahead: bool
) -> tuple[float, float]:
    group.all_reduce_((torch.zeros(1), Op.SUM))
    start, cpu = time.perf_counter(), time.process_time()
    places = [
        ((group.rank + distance) % group.size, (group.rank - distance) % group.size)
        for distance, _ in hops
    ]
    lengths = [nbytes for _, nbytes in hops]
    if ahead:
        group.post_receives(
            [(src, n) for (_, src), n in zip(places, lengths, strict=True)]
        )
    received = []
    for (dst, src), nbytes in zip(places, lengths, strict=True):
        body = torch.full((nbytes,), group.rank, dtype=torch.uint8)
        received.append(group.exchange(body, dst=dst, src=src, nbytes=nbytes))
    took = [time.perf_counter() - start, time.process_time() - cpu]
    for (_, src), body in zip(places, received, strict=True):
        assert body is not None
        assert bool((body == src).all())
    slowest = torch.tensor(took[:1])
    mean = torch.tensor(took[1:])
    group.all_reduce_((slowest, Op.MAX), (mean, Op.SUM))
    return slowest.item(), mean.item() / group.size


if __name__ == "__main__":
    main()
