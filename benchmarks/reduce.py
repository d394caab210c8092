"""Whole reductions by real processes over loopback, split into their phases.

    python benchmarks/reduce.py --size 14_700_000 --ranks 4 --density 0.01 --steps 15
    python benchmarks/reduce.py --methods "spardl, 1 team;spardl, unchecked"

Every method reduces the same fresh gradients, in turns within one run, with a residual
of its own. Peers are PyTorch's all-reduce and two of its communication hooks, bf16 and
PowerSGD of rank 2, called on one bucket of 512 x 4608 matrices (what VGG-16 is made of,
mostly). Loopback is no slow network, and ranks may have to share cores: this is what
a reduction costs the processor, not what it saves on a wire. "wall" is of the slowest
rank, everything else the mean over the ranks; medians over the steps. Waiting for
others is "agree" in the guard's all-reduce, "exchange" elsewhere; "cpu" is processor
time of all of a process's threads.

Floors, measured in the same run by all processes at once: one `x.add_(g)`, and the
bytes sent over the bandwidth at which neighbours in a ring exchange 8 MB.
Verified: on whole numbers delivered and owed add up exactly to what there was, and all
ranks get the same bits, then and in the last step.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from thinwire import catalog, kernels
from thinwire.codecs import Timed
from thinwire.collectives import AllGather, Collective, Dense, GTopK, SparDL
from thinwire.groups import Counted, Op
from thinwire.groups.torch import TorchGroup
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.tools.bench.machine import machine

METHODS: dict[str, Callable[[float], Collective]] = {
    "dense": lambda density: Dense(),
    "topk": AllGather,
    "gtopk butterfly": GTopK,
    "gtopk tree": lambda density: GTopK(density, "tree"),
    "spardl, 1 team": SparDL,
    "spardl, unchecked": SparDL,
    "spardl, 2 teams": lambda density: SparDL(density, teams=2),
}
PEERS = ("torch all_reduce", "torch bf16 hook", "torch PowerSGD 2")
# What kernels and codecs call their parts; waits and the rest come to it.
PHASES = {
    "guard": ("magnitudes",),
    "accumulate": ("accumulate_",),
    "select": ("select", "take"),
    "code": ("encode", "decode"),
    "merge": (
        *("merge_add", "split", "merge_split", "join", "gather"),
        *("add_at_", "subtract_at_", "leave_at_", "keep_at_"),
    ),
    "write": ("scatter_", "write_mean_"),
}
COLUMNS = ("wall", "cpu", "sent", *PHASES, "agree", "exchange", "rest")
HEADS = (
    "",
    "wall",
    "min",
    "max",
    "cpu",
    "cpu min",
    "sent",
    "floor",
    "x floor",
    *COLUMNS[3:],
)
WARM = 5
ROWS, COLUMNS_OF_A_MATRIX = 512, 4608
PERIOD = 1 << 16
MESSAGE = 8_000_000


class Gradients:
    """Fresh Laplace values; each run of 64 k elements has a scale of its own."""

    def __init__(self, size: int, rank: int) -> None:
        scales = torch.Generator().manual_seed(0)
        self._scales = torch.randn(-(-size // PERIOD), generator=scales).exp_()
        self._generator = torch.Generator().manual_seed(1 + rank)
        self._signs = torch.empty(size, dtype=torch.int8)

    def fill_(self, grad: Tensor) -> None:
        signs = self._signs.random_(0, 2, generator=self._generator).mul_(2).sub_(1)
        grad.exponential_(generator=self._generator).mul_(signs)
        for part, scale in zip(grad.split(PERIOD), self._scales, strict=True):
            part.mul_(scale)

    def fill_whole_(self, grad: Tensor) -> None:
        """Whole numbers with many ties, small enough for exact sums."""
        grad.random_(-8, 9, generator=self._generator)
        grad[:: 1 << 7] *= 31


class Watched(Counted):
    """Counts, and keeps the guard's wait apart: its note alone is in float64."""

    agreeing = 0.0

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        before = self.traffic.wait
        super().all_reduce_(*parts)
        if parts[0][0].dtype == torch.float64:
            self.agreeing += self.traffic.wait - before


class Peer:
    """The library's all-reduce, and the division that makes it a mean."""

    def __init__(self) -> None:
        self.samples: list[Tensor] = []

    def step(self, grad: Tensor) -> None:
        dist.barrier()
        start, started = process_time(), perf_counter()
        self.reduce_(grad)
        wall, cpu = perf_counter() - started, process_time() - start
        self.samples.append(self.sample(wall, cpu))

    def reduce_(self, grad: Tensor) -> None:
        dist.all_reduce(grad)
        grad.div_(dist.get_world_size())

    def sample(self, wall: float, cpu: float) -> Tensor:
        found = dict.fromkeys(COLUMNS, 0.0) | {"wall": wall, "cpu": cpu}
        return torch.tensor([found[column] for column in COLUMNS], dtype=torch.float64)

    def verify(self, grad: Tensor) -> None:
        """Reduce whole numbers, of which nothing may get lost."""
        before = summed(grad)
        self.reduce_(grad)
        check_alike(grad)
        total = (grad * dist.get_world_size()).round_()
        assert torch.equal(total + self.owed(), before), "not conserved"

    def owed(self) -> Tensor:
        return torch.zeros(1)


class Bucket:
    """What communication hooks see of a bucket: its memory, cut into matrices."""

    def __init__(self, grad: Tensor) -> None:
        self._grad = grad

    def buffer(self) -> Tensor:
        return self._grad

    def gradients(self) -> list[Tensor]:
        whole = self._grad.numel() // (ROWS * COLUMNS_OF_A_MATRIX)
        matrices = self._grad[: whole * ROWS * COLUMNS_OF_A_MATRIX]
        rest = self._grad[matrices.numel() :]
        narrow = rest[: rest.numel() // ROWS * ROWS]
        parts = [*matrices.view(whole, ROWS, COLUMNS_OF_A_MATRIX)]
        parts += [narrow.view(ROWS, -1)] if narrow.numel() else []
        tail = rest[narrow.numel() :]
        return parts + ([tail] if tail.numel() else [])

    def parameters(self) -> list[Tensor]:
        return self.gradients()

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


class Hook(Peer):
    """A communication hook of PyTorch; rounding, it conserves nothing."""

    def __init__(self, hook: Callable[[Any, Any], Any], state: Any) -> None:
        super().__init__()
        self._hook, self._state = hook, state

    def reduce_(self, grad: Tensor) -> None:
        mean = self._hook(self._state, Bucket(grad)).wait()
        mean = mean[0] if isinstance(mean, list) else mean
        if mean.data_ptr() != grad.data_ptr():  # as DDP does
            grad.copy_(mean)

    def verify(self, grad: Tensor) -> None:
        self.reduce_(grad)
        check_alike(grad)


def peers() -> dict[str, Peer]:
    """PyTorch's own, by name."""
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    made = (Peer(), Hook(bf16_compress_hook, None), Hook(powerSGD_hook, state))
    return dict(zip(PEERS, made, strict=True))


class Method(Peer):
    """One method's pipeline, with what it remembers and what it took."""

    def __init__(self, name: str, args: argparse.Namespace, group: TorchGroup) -> None:
        super().__init__()
        collective = METHODS[name](args.density)
        self.stopwatch: kernels.Stopwatch = {}
        codec = (
            Timed(catalog.codec(args.codec), self.stopwatch)
            if collective.coded
            else None
        )
        checks = "unchecked" if name.endswith("unchecked") else "propagate"
        self.pipeline = Pipeline(collective, codec, on_nonfinite=checks)
        self.group = Watched(group)
        self.state = self.pipeline.init(Layout.flat(args.size))

    def reduce_(self, grad: Tensor) -> None:
        self.stopwatch.clear()
        self.group.reset()
        self.group.agreeing = 0.0
        with kernels.timed_primitives(self.stopwatch):
            self.pipeline.reduce_([grad], self.group, self.state)

    def sample(self, wall: float, cpu: float) -> Tensor:
        traffic = self.group.traffic
        found = {
            phase: sum(self.stopwatch.get(part, 0.0) for part in parts)
            for phase, parts in PHASES.items()
        }
        found["agree"] = self.group.agreeing
        found["exchange"] = traffic.wait - self.group.agreeing
        found["rest"] = wall - sum(found.values())
        found |= {"wall": wall, "cpu": cpu, "sent": traffic.sent}
        return torch.tensor([found[column] for column in COLUMNS], dtype=torch.float64)

    def owed(self) -> Tensor:
        """What all ranks remember, which they then forget."""
        remembered = summed(self.state.memory.x.whole())
        self.state = self.pipeline.init(self.state.layout)
        return remembered


def summed(vector: Tensor) -> Tensor:
    total = vector.clone()
    dist.all_reduce(total)
    return total


def check_alike(grad: Tensor) -> None:
    theirs = grad.clone()
    dist.broadcast(theirs, src=0)
    assert torch.equal(grad, theirs), "ranks got different means"


class Floors:
    """What the memory and the loopback interface can do, all processes at once."""

    def __init__(self, size: int, group: TorchGroup) -> None:
        self._x = torch.zeros(size)
        self._group = group
        self._body = torch.zeros(MESSAGE, dtype=torch.uint8)
        self.samples: list[Tensor] = []

    def step(self, grad: Tensor) -> None:
        rank, size = self._group.rank, self._group.size
        ring = {"dst": (rank + 1) % size, "src": (rank - 1) % size, "nbytes": MESSAGE}
        add = clock(lambda: self._x.add_(grad))
        pass_on = clock(lambda: self._group.exchange(self._body, **ring))
        self.samples.append(torch.tensor([add, pass_on], dtype=torch.float64))


def clock(step: Callable[[], object]) -> float:
    dist.barrier()
    start = perf_counter()
    step()
    return perf_counter() - start


def work(rank: int, args: argparse.Namespace, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    group = TorchGroup.own()
    gradients, floors = Gradients(args.size, rank), Floors(args.size, group)
    chosen = [name for name in METHODS if name in args.methods]
    methods = peers() | {name: Method(name, args, group) for name in chosen}
    fresh, grad = torch.empty(args.size), torch.empty(args.size)
    gradients.fill_whole_(fresh)
    for method in methods.values():
        method.verify(grad.copy_(fresh))
    names = list(methods)
    for step in range(WARM + args.steps):
        gradients.fill_(fresh)
        floors.step(fresh)
        turn = step % len(names)
        for name in names[turn:] + names[:turn]:
            methods[name].step(grad.copy_(fresh))
            if step == WARM + args.steps - 1:
                check_alike(grad)
    found = {name: gathered(method.samples) for name, method in methods.items()}
    limits = gathered(floors.samples)
    if rank == 0:
        show(found, limits, args)
    dist.barrier()
    dist.destroy_process_group()


def gathered(samples: Sequence[Tensor]) -> Tensor:
    """Every rank's timed samples: ranks x steps x columns."""
    mine = torch.stack(list(samples[WARM:]))
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return torch.stack(every)


def show(found: dict[str, Tensor], limits: Tensor, args: argparse.Namespace) -> None:
    add, pass_on = (median(limits[..., i].mean(0).tolist()) for i in range(2))
    bandwidth = MESSAGE / pass_on
    print(f"{machine()}; {args.ranks} processes of one thread")
    setting = f"{args.size:,} float32, density {args.density:g}, codec {args.codec}"
    print(f"{setting}, {args.steps} steps; load {os.getloadavg()[0]:.1f}")
    memory, wire = f"add_ {1e3 * add:.1f} ms", f"loopback {bandwidth / 1e6:.0f} MB/s"
    print(f"floors: {memory}; {wire} a rank")
    print("ms, MB; floor: add_ and the bytes sent at that bandwidth\n")
    line(HEADS, markdown=args.markdown, head=True)
    for name, samples in found.items():
        walls = samples[..., 0].amax(0).tolist()
        means = {
            column: median(samples[..., i].mean(0).tolist())
            for i, column in enumerate(COLUMNS)
        }
        sent = samples[..., COLUMNS.index("sent")].amax().item()
        floor = add + sent / bandwidth
        least = min(samples[..., COLUMNS.index("cpu")].mean(0).tolist())
        cells = (median(walls), min(walls), max(walls), means["cpu"], least)
        row = [name, *(f"{1e3 * cell:.1f}" for cell in cells)]
        if name in PEERS:
            row += ["-"] * (len(HEADS) - len(row))
        else:
            row += [f"{sent / 1e6:.2f}", f"{1e3 * floor:.1f}"]
            row += [f"{median(walls) / floor:.2f}"]
            row += [f"{1e3 * means[phase]:.2f}" for phase in COLUMNS[3:]]
        line(row, markdown=args.markdown, head=False)
    print("\nverified: whole numbers conserved exactly, all ranks alike")


def line(cells: Sequence[str], *, markdown: bool, head: bool) -> None:
    if markdown:
        print(f"| {' | '.join(cells)} |")
        if head:
            print(f"|{' --- |' * len(cells)}")
        return
    name, *others = cells
    print(f"{name:18}" + "".join(f"{cell:>11}" for cell in others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=14_700_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--methods", default=";".join(METHODS), help="with ; between")
    parser.add_argument("--codec", default=catalog.DEFAULT_CODEC)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    args.methods = args.methods.split(";")
    unknown = set(args.methods) - set(METHODS)
    if unknown:
        parser.error(f"no method is called {unknown}; there are {', '.join(METHODS)}")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    torch.multiprocessing.spawn(work, (args, port), nprocs=args.ranks)


if __name__ == "__main__":
    main()
