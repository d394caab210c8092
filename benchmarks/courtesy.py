"""Whole reductions, with Gloo's threads kept back as messages are handed over or not.

    torchrun --nproc-per-node 2 benchmarks/courtesy.py
    thinwire lab run -- python benchmarks/courtesy.py --methods spardl --sizes 8e6

Median ms of the slowest rank with 10 and 90 % of the steps; the two ways take turns of
15 steps, of which the first is not counted. Verified: in the last step all ranks have
the same mean. `thinwire.groups.gloo_scheduling` explains it; ranks that share cores
show it.
"""

import argparse
from contextlib import nullcontext
from functools import partial
from itertools import product
from statistics import median, quantiles
from zlib import crc32

import torch
import torch.distributed as dist

from exchanges import as_they_are
from thinwire.groups import round_timing
from thinwire.groups.torch import TorchGroup
from thinwire.tools.bench.machine import machine
from thinwire.tools.plan import calibrate
from thinwire.tools.plan.choice import Choice

TURNS, STEPS = 4, 15
AS_THEY_ARE = "as they are"
WAYS = (AS_THEY_ARE, "kept back")


class Lane:
    """A method at one size, one way and the other in turns."""

    def __init__(self, method: str, size: int, group: TorchGroup) -> None:
        self.method, self.size, self.group = method, size, group
        self.grad, self.step = torch.empty(size), 0
        self.reduce = calibrate.reduction(Choice.parse(method, 0.01), size, group)
        self.walls: dict[str, list[float]] = {way: [] for way in WAYS}

    def go(self) -> None:
        for _, way in product(range(TURNS), WAYS):
            with as_they_are() if way == AS_THEY_ARE else nullcontext():
                walls = [self.reduced() for _ in range(STEPS)]
            self.walls[way] += walls[1:]

    def reduced(self) -> float:
        rank = self.group.rank
        self.grad.copy_(calibrate.gradient(self.size, rank, self.step))
        self.step += 1
        return round_timing.slowest(self.group, partial(self.reduce, self.grad))

    def verify(self) -> None:
        mine = torch.tensor([crc32(self.grad.numpy())]).view(torch.uint8)
        every = self.group.all_gather(mine, nbytes=[8] * self.group.size)
        assert all(torch.equal(mine, each) for each in every), "ranks disagree"

    def tell(self) -> None:
        texts = []
        for way, walls in self.walls.items():
            timed = [1e3 * wall for wall in walls]
            deciles = quantiles(timed, n=10)
            found = f"{median(timed):.1f} ({deciles[0]:.1f}-{deciles[-1]:.1f})"
            texts.append(f"{way} {found}")
        about = f"{self.method}, {self.size / 1e6:g} M, {self.group.size} ranks"
        print(f"{about}: ms, threads {', '.join(texts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default="topk,spardl")
    parser.add_argument("--sizes", default="20e3,1e6,8e6", help="at most 8e6")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = TorchGroup.own()
    methods = options.methods.split(",")
    sizes = [int(float(size)) for size in options.sizes.split(",")]
    if group.rank == 0:
        print(machine())
    for method, size in product(methods, sizes):
        lane = Lane(method, size, group)
        lane.go()
        lane.verify()
        if group.rank == 0:
            lane.tell()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
