"""Rounds of exchanges, with and without saying beforehand what will come.

    thinwire lab up --hosts 8 --rate 1gbit
    thinwire lab run -- python benchmarks/expect.py

Also runs under torchrun. The messages are those of SparDL: to the rank 4, 2 and 1 after
this one, and back, of so many bytes as 14.7 M elements at 1 % take. Every received body
is compared with what was sent. Median ms of the slowest rank, and processor time of a
rank with Gloo's threads; the two ways take turns.
"""

import time
from statistics import median

import torch
import torch.distributed as dist

from thinwire.groups import Op
from thinwire.groups.torch import TorchGroup

NBYTES = 73_000  # of the longest message
STEPS = 150


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = TorchGroup()
    distances = [1 << i for i in range((group.size - 1).bit_length())]
    around = [(d, NBYTES * d // distances[-1]) for d in distances]
    hops = [*reversed(around), *((-d, nbytes) for d, nbytes in around)]
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for step in range(2 * STEPS):
        ahead = bool(step % 2)
        found[ahead].append(timed(group, hops, ahead=ahead))
    if group.rank == 0:
        for ahead, times in found.items():
            wall, cpu = (1e3 * median(each) for each in zip(*times, strict=True))
            name = "expected" if ahead else "not expected"
            print(f"{len(hops)} exchanges of {group.size} ranks, {name}: ", end="")
            print(f"{wall:.1f} ms, processor time {cpu:.2f} ms")
    dist.destroy_process_group()


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
        group.expect([(src, n) for (_, src), n in zip(places, lengths, strict=True)])
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
